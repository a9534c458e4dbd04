# SPDX-License-Identifier: Apache-2.0
"""Connections to one API server: TLS, proxy, and who we are. `http` sends its requests through it.

Connections are kept for the next request; the kernel finds out about peers that vanished. When our certificate changes
so do the connections: the old ones end as soon as no plain request can be on them any more.
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

from trainwright import __version__
from trainwright.kube.auth import AuthHeaders, context_of, credentials
from trainwright.kube.codec import Request
from trainwright.kube.config import Access, UserEntry
from trainwright.runtime.ports import Clock, WallClock

#: Less than the 90 s after which API servers close a connection that nobody uses.
_IDLE = 60.0
#: After so long without a sign of life the kernel asks for one, so often, so many times.
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_CHUNK = 1 << 18
#: What is still on old connections after so many seconds are watches, which begin again.
_RETIRE = 60.0
#: Milliseconds that sockets have to close at the end.
_TURNS = 250


class ApiSession:
    """One server, one user."""

    def __init__(self, access: Access, clock: Clock | None = None) -> None:
        self.server, self.origin = access.server, access.origin
        self.credentials = credentials(access, clock or WallClock())
        self._access = access
        self._headers = _headers(access.user.value)
        self._options: dict[str, Any] = {"proxy": access.proxy} if access.proxy else {}
        if access.cluster.value.tls_server_name:
            self._options["server_hostname"] = access.cluster.value.tls_server_name
        self._session: ClientSession | None = None
        self._pair: object = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def send(
        self, call: Request, proof: AuthHeaders, limits: ClientTimeout, check: Callable[[], None] | None = None
    ) -> AbstractAsyncContextManager[ClientResponse]:
        """One request; redirects are not followed, as they would carry our token elsewhere.

        `check` is called when its bytes go out, and may raise: then nothing does.
        """
        data = _Checked(call.body, check) if call.body is not None and check is not None else call.body
        url = URL(f"{self.server}{call.path}", encoded=True)
        headers = {**call.headers, **proof.headers}
        return self._open(proof).request(
            call.method, url, headers=headers, data=data, timeout=limits, allow_redirects=False, **self._options
        )

    async def reload(self) -> None:
        """Read the credentials again, because their files were replaced. The next request uses the new ones."""
        self.credentials.refused(await self.credentials.proof())

    async def close(self) -> None:
        """End every connection."""
        session, self._session = self._session, None
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        if session is not None:
            await session.close()
        await self._closed()

    async def _closed(self) -> None:
        """Requests that were given up leave sockets to the event loop, which may be about to end."""
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for _ in range(_TURNS):
            if all(sock.fileno() < 0 for sock in self._sockets):
                return
            await asyncio.sleep(0.001)

    def _open(self, proof: AuthHeaders) -> ClientSession:
        if self._session is None or self._pair != proof.pair:
            if self._session is not None:
                task = asyncio.create_task(_retire(self._session))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
            self._session, self._pair = self._made(proof), proof.pair
        return self._session

    def _made(self, proof: AuthHeaders) -> ClientSession:
        secure = self.server.startswith("https:")
        context = context_of(self._access.cluster, self._access.user, proof.pair) if secure else True
        # How many requests there are at a time is bounded by `http`; watches and logs come on top.
        connector = TCPConnector(limit=0, ssl=context, keepalive_timeout=_IDLE, socket_factory=self._socket)
        session = ClientSession(
            connector=connector, cookie_jar=DummyCookieJar(), headers=self._headers, read_bufsize=_CHUNK
        )
        # What aiohttp would send a second time by itself, a deletion among it, would pass no gate.
        session._retry_connection = False
        return session

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket whose peer cannot vanish unnoticed: a watch may be silent for minutes."""
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES.items():
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return made


class _Checked(BytesPayload):
    """A body with a last look before it goes. The headers go with it, and not before."""

    def __init__(self, body: bytes, check: Callable[[], None]) -> None:
        super().__init__(body)
        self._check = check

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """After the connection was made, and without another pause."""
        self._check()
        await super().write_with_length(writer, content_length)


def _headers(user: UserEntry) -> CIMultiDict[str]:
    headers = CIMultiDict({"User-Agent": f"trainwright/{__version__}", "Accept": "application/json"})
    if user.impersonate:
        headers["Impersonate-User"] = user.impersonate
    if user.impersonate_uid:
        headers["Impersonate-Uid"] = user.impersonate_uid
    for group in user.impersonate_groups or ():
        headers.add("Impersonate-Group", group)
    return headers


async def _retire(session: ClientSession) -> None:
    try:
        await asyncio.sleep(_RETIRE)
    finally:
        await session.close()
