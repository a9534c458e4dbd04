# SPDX-License-Identifier: Apache-2.0
"""What a cluster asks of its operator over HTTP: `/healthz`, `/readyz` and `/metrics`. `operator` serves it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from trainwright.errors import UsageError


@asynccontextmanager
async def serving(address: str, ready: Callable[[], bool], metrics: Callable[[], str]) -> AsyncIterator[None]:
    """Answer at `host:port` until the end of the block; nowhere, if no address is given."""
    if not address:
        yield
        return
    runner = web.AppRunner(_app(ready, metrics), access_log=None)
    await runner.setup()
    try:
        host, port = split(address)
        await web.TCPSite(runner, host, port).start()
        yield
    except OSError as error:
        raise UsageError(f"{address} cannot be listened at: {error.strerror or error}") from None
    finally:
        await runner.cleanup()


def _app(ready: Callable[[], bool], metrics: Callable[[], str]) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if ready() else web.Response(text="not yet\n", status=503)

    async def exposed(_: web.Request) -> web.Response:
        return web.Response(text=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposed)])
    return app


def split(address: str) -> tuple[str, int]:
    """`host:port`, `:port` for all addresses."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"expected an address such as 127.0.0.1:8080 or :8080, found {address!r}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - what `:port` means everywhere
