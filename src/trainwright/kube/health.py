# SPDX-License-Identifier: Apache-2.0
"""Health checks and metrics of the operator over HTTP: `/healthz`, `/readyz` and `/metrics`.

The server runs in the event loop of the controller: if the loop is stuck, a probe gets no answer and fails. It answers
one GET or HEAD request per connection, which is all that kubelets and Prometheus need, because aiohttp's server would
need 14 MiB of memory (docs/decisions/0008-own-http.md).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from msgspec import Struct

from trainwright.errors import UsageError

#: A function that returns a text about the problem; an empty text means that there is no problem.
HealthCheck = Callable[[], str]
#: Returns the HTTP code, the content type and the text of an answer.
_Handler = Callable[[], tuple[int, str, str]]
_TEXT, _METRICS = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
#: A client must send its request within this many seconds, with a head of at most this many bytes.
_REQUEST_SECONDS, _MAX_HEAD_BYTES = 10.0, 1 << 14
#: Connections at the same time; more are closed at once, so that nobody can use up the operator's file descriptors.
_MAX_CONNECTIONS = 64


class HealthAddresses(Struct, frozen=True):
    """Where to serve health checks and metrics, as `host:port`. An empty address or `0` means: serve nothing there."""

    everything: str = ""
    metrics: str = ""
    probes: str = ""


@asynccontextmanager
async def serve_health(
    addresses: HealthAddresses, healthy: HealthCheck, ready: HealthCheck, metrics: Callable[[], str]
) -> AsyncIterator[None]:
    """Serve health checks and metrics until the end of the block. Raises UsageError if an address cannot be used."""
    numbers: dict[str, _Handler] = {"/metrics": lambda: (200, _METRICS, metrics())}
    probes: dict[str, _Handler] = {"/healthz": _probe(healthy), "/readyz": _probe(ready)}
    routes: dict[str, dict[str, _Handler]] = {}
    for address in (addresses.everything, addresses.metrics):
        routes.setdefault(address, {}).update(numbers)
    for address in (addresses.everything, addresses.probes):
        routes.setdefault(address, {}).update(probes)
    async with AsyncExitStack() as stack:
        for address, handlers in routes.items():
            if address not in ("", "0"):
                await stack.enter_async_context(_Server(handlers).listening(address))
        yield


def _probe(check: HealthCheck) -> _Handler:
    def answer() -> tuple[int, str, str]:
        problem = check()
        return 503 if problem else 200, _TEXT, f"{problem or 'ok'}\n"

    return answer


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`. `:port` means all addresses of the machine."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"expected an address such as 127.0.0.1:8080 or :8080, found {address!r}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - the usual meaning of `:port`


class _Server:
    """Serves some paths at one address."""

    def __init__(self, handlers: dict[str, _Handler]) -> None:
        self._handlers = handlers
        self._connections: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self, address: str) -> AsyncIterator[None]:
        host, port = split_address(address)
        try:
            server = await asyncio.start_server(self._serve, host, port, limit=_MAX_HEAD_BYTES)
        except OSError as error:
            raise UsageError(f"cannot listen at {address}: {error.strerror or error}") from None
        try:
            yield
        finally:
            server.close()
            for writer in self._connections:
                writer.transport.abort()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(writer)
        try:
            # A client that ends the connection, sends too much or takes too long gets no answer.
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_REQUEST_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        finally:
            self._connections.discard(writer)
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            code, kind, text = 400, _TEXT, "expected an HTTP/1.1 request\n"
        elif (handler := self._handlers.get(target.partition("?")[0])) is None:
            code, kind, text = 404, _TEXT, f"not found; try {' or '.join(self._handlers)}\n"
        elif method not in ("GET", "HEAD"):
            code, kind, text = 405, _TEXT, "expected GET\n"
        else:
            code, kind, text = handler()
        body = text.encode()
        lines = [f"HTTP/1.1 {code} {_REASONS[code]}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
        answer = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
        return answer if method == "HEAD" else answer + body
