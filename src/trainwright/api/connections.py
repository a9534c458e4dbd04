# SPDX-License-Identifier: Apache-2.0
"""The connections of the API: how many there may be, and how long a client may take for TLS and for a request head.

A connection counts from the moment when it is accepted, before TLS begins, because it needs an open file from then on.
Until its client has sent a request with a valid token, a connection is *unproven*. If there are too many connections,
the oldest unproven one is closed. So clients without a token can keep neither new clients out nor end a watch.
"""

import asyncio
import socket
import ssl
from asyncio import Task, TimerHandle, Transport, sslproto
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from trainwright.api.access import AccessRole, ApiIdentity
from trainwright.api.bodies import MAX_BODY_BYTES
from trainwright.api.budgets import share_of_others
from trainwright.errors import TooManyRequestsError
from trainwright.unix_sockets import is_trusted

#: The buffer of each TLS connection in bytes: the size of one TLS record. asyncio's default is sixteen times as large.
_TLS_BUFFER_BYTES = 16 << 10
#: The time limits for TLS, and then for the head of each request, in seconds.
_HANDSHAKE_SECONDS, _HEAD_SECONDS = 5.0, 10.0
_MAX_HEAD_BYTES = 32 << 10
_KEEPALIVE_SECONDS = 75.0
#: The number of connections that are accepted before the engine does something else.
_ACCEPTED_AT_ONCE = 16
#: After a failure to accept, for example because no file is left, the listener waits this many seconds.
_ACCEPT_PAUSE_SECONDS = 0.1

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ApiConnection(RequestHandler):
    """One connection. It is closed if TLS, or the head of a request, takes too long."""

    def __init__(self, connections: "ApiConnections", **options: Any) -> None:
        super().__init__(connections, loop=asyncio.get_running_loop(), **options)
        self._all = connections
        self._opening: Task[None] | None = None
        self._head_timer: TimerHandle | None = None

    def open(self, peer: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Begin to serve a client that has connected."""
        self._opening = asyncio.get_running_loop().create_task(self._open(peer, tls))

    async def _open(self, peer: socket.socket, tls: ssl.SSLContext | None) -> None:
        seconds = _HANDSHAKE_SECONDS if tls is not None else None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: self, peer, ssl=tls, ssl_handshake_timeout=seconds)
        except OSError:
            pass  # the client has gone, TLS has failed, or it took too long
        finally:
            self._opening = None
            if self.transport is None:  # asyncio calls `connection_lost` only after `connection_made`
                self._all.forget(self)

    def abort(self) -> None:
        """Close the connection, also if TLS has not begun."""
        if self._opening is not None:
            self._opening.cancel()
        elif isinstance(self.transport, Transport):
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request. If it is the beginning of a head, the rest must arrive in time."""
        super().data_received(data)
        is_waiting = self._waiter is not None and not self._waiter.done()
        if is_waiting and data and self._head_timer is None:
            self._expect_head()
        elif not is_waiting and self._request_count:
            self._stop_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        self._all.forget(self)
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(_HEAD_SECONDS, self.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class ApiConnections(web.Server):
    """The connections of one listener, and their limits."""

    #: The part of the connections that may be unproven: a quarter.
    _unproven_part = 4

    def __init__(self, handler: Handler, limit: int) -> None:
        """There are at most `limit` connections."""
        super().__init__(handler, request_factory=_request, handler_cancellation=True)
        self.limit = limit
        self._open: set[ApiConnection] = set()
        #: The unproven connections in the order of their arrival.
        self._unproven: dict[ApiConnection, None] = {}
        #: The connections of clients who are no admins.
        self._others: set[ApiConnection] = set()

    def accept(self, peer: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve a client that has connected, or refuse it."""
        if len(self._open) >= self.limit or len(self._unproven) >= self._max_unproven:
            self._close_oldest_unproven()
        if len(self._open) >= self.limit or not self.admits(peer):
            peer.close()
            return
        connection = self()
        self._open.add(connection)
        self._unproven[connection] = None
        connection.open(peer, tls)

    def admits(self, peer: socket.socket) -> bool:  # noqa: ARG002 - TCP does not tell the user
        """Whether the process on the other side may send requests."""
        return True

    def prove(self, connection: RequestHandler, identity: ApiIdentity) -> None:
        """Remember that the client of a connection has a token.

        Raises TooManyRequestsError if clients who are no admins have too many connections.
        """
        assert isinstance(connection, ApiConnection)  # noqa: S101 - `__call__` makes no others
        if connection not in self._open:
            return  # it is closed already
        if identity.role is not AccessRole.ADMIN and connection not in self._others:
            most = share_of_others(self.limit)
            if len(self._others) >= most:
                raise TooManyRequestsError(f"{most} connections are open already", retry_after=5)
            self._others.add(connection)
        self._unproven.pop(connection, None)

    def forget(self, connection: ApiConnection) -> None:
        """A connection is closed."""
        self._open.discard(connection)
        self._unproven.pop(connection, None)
        self._others.discard(connection)

    async def shutdown(self, timeout: float | None = None) -> None:
        """Close all connections; requests that are being answered have `timeout` seconds."""
        for connection in [*self._unproven]:
            connection.abort()
        await super().shutdown(timeout)

    @property
    def _max_unproven(self) -> int:
        return max(self.limit // self._unproven_part, 1)

    def _close_oldest_unproven(self) -> None:
        oldest = next(iter(self._unproven), None)
        if oldest is not None:
            oldest.abort()
            self.forget(oldest)

    def __call__(self) -> ApiConnection:
        """The protocol of a new connection."""
        return ApiConnection(
            self,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            max_line_size=_MAX_HEAD_BYTES // 4,
            max_field_size=_MAX_HEAD_BYTES // 2,
            access_log=None,
        )


class OwnerConnections(ApiConnections):
    """The connections of the Unix socket, which only processes of the same user and of root may use."""

    _unproven_part = 1

    def admits(self, peer: socket.socket) -> bool:
        """Whether the process on the other side belongs to the same user or to root."""
        return is_trusted(peer)


class ApiListener:
    """Accepts connections at a socket until it is closed. A new connection counts before TLS begins."""

    def __init__(self, listener: socket.socket, connections: ApiConnections, tls: ssl.SSLContext | None) -> None:
        sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES
        self._listener, self._connections, self._tls = listener, connections, tls
        self._loop = asyncio.get_running_loop()
        self._pause: TimerHandle | None = None
        listener.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Accept no further connections."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _begin(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                peer, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._begin)
                return
            peer.setblocking(False)
            with suppress(OSError):  # the client has gone already
                self._connections.accept(peer, self._tls)


def _request(
    message: Any, payload: Any, protocol: RequestHandler, writer: Any, task: "asyncio.Task[None]"
) -> web.BaseRequest:
    """A request whose body may have at most MAX_BODY_BYTES bytes."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)
