# SPDX-License-Identifier: Apache-2.0
"""Connections to one API server as one user: TLS, proxy and keep-alive.

The session keeps connections open for the next request. When the client certificate changes, new requests use new
connections. A minute later, the session closes the old connections. This interrupts only watches.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any
from weakref import WeakSet

from aiohttp import BytesPayload, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict
from yarl import URL

from trainwright.kube.auth import credentials, user_headers
from trainwright.kube.certificates import AuthHeaders, ssl_context
from trainwright.kube.codec import Request
from trainwright.kube.config import Access
from trainwright.runtime.ports import Clock, WallClock

#: Seconds after which we close an idle connection. API servers close it after 90 s, and we must close it earlier.
_IDLE_SECONDS = 60.0
#: TCP keep-alive: seconds of silence before the first probe, seconds between probes, number of probes.
_TCP_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_READ_BUFFER_BYTES = 1 << 18
#: Seconds after which old connections are closed. Only watches take longer than this, and a client restarts watches.
_RETIRE_SECONDS = 60.0
_CLOSE_MILLISECONDS = 250


class ApiSession:
    """The connections to one server as one user."""

    def __init__(self, access: Access, clock: Clock | None = None) -> None:
        self.server, self.origin = access.server, access.origin
        self.credentials = credentials(access, clock or WallClock())
        self._access = access
        self._headers = CIMultiDict(user_headers(access.user))
        self._options: dict[str, Any] = {"proxy": access.proxy} if access.proxy else {}
        if access.cluster.value.tls_server_name:
            self._options["server_hostname"] = access.cluster.value.tls_server_name
        self._session: ClientSession | None = None
        self._key_pair: object = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def send(
        self, request: Request, auth: AuthHeaders, timeout: ClientTimeout, check: Callable[[], None] | None = None
    ) -> AbstractAsyncContextManager[ClientResponse]:
        """Send one request. The session follows no redirect, because a redirect could send our token to another server.

        The session calls `check` immediately before it sends the first byte. If `check` raises, nothing is sent.
        """
        data = _CheckedBody(request.body, check) if request.body is not None and check is not None else request.body
        url = URL(f"{self.server}{request.path}", encoded=True)
        headers = {**request.headers, **auth.headers}
        return self._session_for(auth).request(
            request.method, url, headers=headers, data=data, timeout=timeout, allow_redirects=False, **self._options
        )

    async def reload(self) -> None:
        """Read the credentials again, because their files were replaced. The next request uses the new credentials."""
        self.credentials.rejected(await self.credentials.auth_headers())

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        if session is not None:
            await session.close()
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

    def _session_for(self, auth: AuthHeaders) -> ClientSession:
        if self._session is None or self._key_pair != auth.key_pair:
            if self._session is not None:
                task = asyncio.create_task(_retire(self._session))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
            self._session, self._key_pair = self._new_session(auth), auth.key_pair
        return self._session

    def _new_session(self, auth: AuthHeaders) -> ClientSession:
        secure = any(url.startswith("https:") for url in (self.server, self._access.proxy))
        context = ssl_context(self._access.cluster, self._access.user, auth.key_pair) if secure else True
        # `http` limits the number of concurrent requests. The limit does not apply to watches and logs.
        connector = TCPConnector(limit=0, ssl=context, keepalive_timeout=_IDLE_SECONDS, socket_factory=self._new_socket)
        session = ClientSession(
            connector=connector, cookie_jar=DummyCookieJar(), headers=self._headers, read_bufsize=_READ_BUFFER_BYTES
        )
        # Forbid retries by aiohttp: it would send some requests again, even deletions, without a new call of `check`.
        session._retry_connection = False
        return session

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


class _CheckedBody(BytesPayload):
    """A request body that calls `check` before it is sent. aiohttp sends the headers together with the body."""

    def __init__(self, body: bytes, check: Callable[[], None]) -> None:
        super().__init__(body)
        self._check = check

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Check, then write at once. The connection exists already, so nothing delays the write after the check."""
        self._check()
        await super().write_with_length(writer, content_length)


async def _retire(session: ClientSession) -> None:
    try:
        await asyncio.sleep(_RETIRE_SECONDS)
    finally:
        await session.close()
