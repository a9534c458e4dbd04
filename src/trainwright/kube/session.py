# SPDX-License-Identifier: Apache-2.0
"""Connections to one API server as one user: TLS, proxy and keep-alive.

The session keeps connections open for the next request. When the client certificate changes, new requests use new
connections. A minute later, the session closes the old connections. This interrupts only watches.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit
from weakref import WeakSet

from aiohappyeyeballs import start_connection

from trainwright.errors import InvalidError
from trainwright.kube.auth import credentials, user_headers
from trainwright.kube.certificates import AuthHeaders, KeyPair, is_header_value, ssl_context
from trainwright.kube.codec import Request
from trainwright.kube.config import Access
from trainwright.kube.connection import AnswerStream, ConnectError, Connection, HttpAnswer
from trainwright.runtime.ports import Clock, WallClock

#: Seconds after which we close an idle connection. API servers close it after 90 s, and we must close it earlier.
_IDLE_SECONDS = 60.0
#: TCP keep-alive: seconds of silence before the first probe, seconds between probes, number of probes.
_TCP_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
#: If a server has several addresses, the next one is tried after this many seconds without a connection (RFC 8305).
_NEXT_ADDRESS_SECONDS = 0.25
#: Seconds after which old connections are closed. Only watches take longer than this, and a client restarts watches.
_RETIRE_SECONDS = 60.0
_CLOSE_MILLISECONDS = 250


class Transport(Protocol):
    """The connections of one user with one client certificate. `seconds`: for the connection, and in total.

    Nothing follows a redirect, because a redirect could send our token to another server.
    """

    async def exchange(
        self, request: Request, auth: AuthHeaders, seconds: tuple[float, float], check: Callable[[], None] | None
    ) -> HttpAnswer:
        """Send a request and return the whole answer.

        `check` is called immediately before the first byte is sent. If `check` raises, nothing is sent.
        """
        ...

    def stream(
        self, request: Request, auth: AuthHeaders, seconds: tuple[float, float]
    ) -> AbstractAsyncContextManager[AnswerStream]:
        """Send a request; the body of the answer arrives in parts."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class ApiSession:
    """The connections to one server as one user."""

    def __init__(self, access: Access, clock: Clock | None = None) -> None:
        self.server, self.origin = access.server, access.origin
        self.credentials = credentials(access, clock or WallClock())
        self._access = access
        self._headers = user_headers(access.user)
        self._transport: Transport | None = None
        self._key_pair: KeyPair | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def transport(self, auth: AuthHeaders) -> Transport:
        """The connections for a request with these credentials."""
        if self._transport is None or self._key_pair != auth.key_pair:
            if self._transport is not None:
                task = asyncio.create_task(_retire(self._transport))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
            self._transport, self._key_pair = self._new_transport(auth), auth.key_pair
        return self._transport

    async def reload(self) -> None:
        """Read the credentials again, because their files were replaced. The next request uses the new credentials."""
        self.credentials.rejected(await self.credentials.auth_headers())

    async def close(self) -> None:
        """Close every connection."""
        transport, self._transport = self._transport, None
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        if transport is not None:
            await transport.close()
        await self._close_sockets()

    async def _close_sockets(self) -> None:
        """Wait until the event loop has closed the sockets of cancelled requests, because the loop may end soon."""
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for _ in range(_CLOSE_MILLISECONDS):
            if all(sock.fileno() < 0 for sock in self._sockets):
                return
            await asyncio.sleep(0.001)

    def _new_transport(self, auth: AuthHeaders) -> Transport:
        proxy, server_name = self._access.proxy, self._access.cluster.value.tls_server_name
        secure = any(url.startswith("https:") for url in (self.server, proxy))
        context = ssl_context(self._access.cluster, self._access.user, auth.key_pair) if secure else None
        if not proxy:
            return DirectTransport(self.server, server_name or "", self._headers, context, self._new_socket)
        from aiohttp import TCPConnector  # noqa: PLC0415 - slow to import, and most servers need no proxy

        from trainwright.kube.proxy import ProxyTransport  # noqa: PLC0415

        # `http` limits the number of concurrent requests. The limit does not apply to watches and logs.
        connector = TCPConnector(
            limit=0, ssl=context or True, keepalive_timeout=_IDLE_SECONDS, socket_factory=self._new_socket
        )
        return ProxyTransport(self.server, proxy, server_name or "", self._headers, connector)

    def _new_socket(self, address: tuple[Any, ...]) -> socket.socket:
        """Create a socket with TCP keep-alive, which finds a lost peer: a watch can be silent for minutes."""
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _TCP_KEEPALIVE.items():
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return made


class DirectTransport:
    """Connections without a proxy. An idle connection is used again, the one that was used last first."""

    def __init__(
        self,
        server: str,
        server_name: str,
        headers: list[tuple[str, str]],
        context: ssl.SSLContext | None,
        new_socket: Callable[[tuple[Any, ...]], socket.socket],
    ) -> None:
        url = urlsplit(server)
        self._context, self._new_socket = context, new_socket
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        # A name with a dot at the end is absolute for the resolver, but certificates contain it without the dot.
        self._server_name = (server_name or self._host).rstrip(".") if context is not None else None
        self._path = url.path
        self._common = "".join(f"{name}: {value}\r\n" for name, value in [("Host", _host_header(url)), *headers])
        self._auth: AuthHeaders | None = None
        self._head = ""
        #: Idle connections, each with the time since which it is idle.
        self._idle: list[tuple[Connection, float]] = []
        self._connections: WeakSet[Connection] = WeakSet()
        self._closed = False

    async def exchange(
        self, request: Request, auth: AuthHeaders, seconds: tuple[float, float], check: Callable[[], None] | None
    ) -> HttpAnswer:
        """Send a request and return the whole answer."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds[1]
        data = self._encode(request, auth)
        connection = self._take() or await self._connect(seconds[0])
        try:
            if check is not None:
                check()
            return await connection.exchange(data, end - loop.time())
        finally:
            if connection.usable:
                self._idle.append((connection, loop.time()))
            else:
                connection.abort()

    @asynccontextmanager
    async def stream(
        self, request: Request, auth: AuthHeaders, seconds: tuple[float, float]
    ) -> AsyncIterator[AnswerStream]:
        """Send a request; the body of the answer arrives in parts. Its connection is not used again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds[1]
        data = self._encode(request, auth)
        connection = self._take() or await self._connect(seconds[0])
        try:
            yield await connection.open(data, end - loop.time())
        finally:
            connection.abort()

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._idle.clear()
        for connection in list(self._connections):
            connection.abort()

    def _take(self) -> Connection | None:
        """An idle connection. The server may close a connection that was idle for long, so such a one is not used."""
        oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while self._idle and (self._idle[0][1] < oldest or not self._idle[0][0].usable):
            self._idle.pop(0)[0].abort()
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, seconds: float) -> Connection:
        loop, connection = asyncio.get_running_loop(), Connection()
        try:
            async with asyncio.timeout(seconds):
                addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                sock = await start_connection(
                    addresses,
                    happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
                    interleave=1,
                    socket_factory=self._new_socket,
                )
                try:
                    await loop.create_connection(
                        lambda: connection, sock=sock, ssl=self._context, server_hostname=self._server_name
                    )
                    if self._closed:  # while this connection was being opened
                        raise ConnectionAbortedError("the connection was closed")
                except BaseException:
                    # First stop the event loop from watching the socket, because a new socket can get the same number.
                    connection.abort()
                    sock.close()
                    raise
        except OSError as error:
            raise ConnectError(error, self._host) from error
        self._connections.add(connection)
        return connection

    def _encode(self, request: Request, auth: AuthHeaders) -> bytes:
        if auth is not self._auth:
            lines = "".join(f"{name}: {value}\r\n" for name, value in auth.headers.items())
            self._auth, self._head = auth, f" HTTP/1.1\r\n{self._common}{lines}"
        if not is_header_value(request.path):
            raise InvalidError(f"the path {request.path!r} has characters that an HTTP request cannot contain")
        body = request.body
        head = f"{request.method} {self._path}{request.path}{self._head}"
        if body is None:
            return f"{head}\r\n".encode("ascii")
        return (
            f"{head}Content-Type: {request.content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode("ascii") + body
        )


def _host_header(url: SplitResult) -> str:
    """The header Host of a server's URL: without a user, and with a name in ASCII."""
    host = (url.hostname or "").encode("idna").decode("ascii")
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{url.port}" if url.port else host


async def _retire(transport: Transport) -> None:
    try:
        await asyncio.sleep(_RETIRE_SECONDS)
    finally:
        await transport.close()
