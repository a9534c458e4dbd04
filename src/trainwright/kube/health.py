# SPDX-License-Identifier: Apache-2.0
"""What a cluster asks of its operator over HTTP: `/healthz`, `/readyz` and `/metrics`. `operator` serves it.

It is answered by the loop that does the work: one that is stuck does not answer, and a probe takes that for a no.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web
from msgspec import Struct

from trainwright.errors import UsageError

#: Says what is the matter; empty: nothing.
Check = Callable[[], str]
_Handler = Callable[[web.Request], Awaitable[web.Response]]
_TEXT = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class Places(Struct, frozen=True):
    """Where it is served, as `host:port`; empty or `0`: nowhere."""

    everything: str = ""
    metrics: str = ""
    probes: str = ""


class Answers(Struct, frozen=True):
    """Whom to ask."""

    healthy: Check
    ready: Check
    metrics: Callable[[], str]


@asynccontextmanager
async def serving(places: Places, answers: Answers) -> AsyncIterator[None]:
    """Answer there until the end of the block."""
    async with AsyncExitStack() as stack:
        for address, routes in _routes(places, answers).items():
            await stack.enter_async_context(_at(address, routes))
        yield


def _routes(places: Places, answers: Answers) -> dict[str, dict[str, _Handler]]:
    """What is served at each address."""
    probes = {"/healthz": _probe(answers.healthy), "/readyz": _probe(answers.ready)}
    found: dict[str, dict[str, _Handler]] = {}
    for address, routes in (
        (places.everything, {**probes, "/metrics": _metrics(answers.metrics)}),
        (places.metrics, {"/metrics": _metrics(answers.metrics)}),
        (places.probes, probes),
    ):
        if address not in ("", "0"):
            found.setdefault(address, {}).update(routes)
    return found


@asynccontextmanager
async def _at(address: str, routes: dict[str, _Handler]) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        host, port = split(address)
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UsageError(f"{address} cannot be listened at: {error.strerror or error}") from None
        yield
    finally:
        await runner.cleanup()


def _probe(check: Check) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        wrong = check()
        return web.Response(text=f"{wrong or 'ok'}\n", status=503 if wrong else 200)

    return answer


def _metrics(metrics: Callable[[], str]) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=metrics(), headers=_TEXT)

    return answer


def split(address: str) -> tuple[str, int]:
    """`host:port`, `:port` for all addresses."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"expected an address such as 127.0.0.1:8080 or :8080, found {address!r}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - what `:port` means everywhere
