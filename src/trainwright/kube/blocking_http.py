# SPDX-License-Identifier: Apache-2.0
"""A small client for commands that send a few requests and then end. It blocks, and several threads can share it.

`http` has the client for everything else: watches, metrics, proxies. This one uses `http.client`, because the import of
aiohttp takes longer than the whole command (docs/decisions/0007-two-http-clients.md). For an engine on this machine, it
uses a Unix socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from queue import SimpleQueue
from random import random
from socket import SO_KEEPALIVE, SOL_SOCKET
from threading import BoundedSemaphore, Lock, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from trainwright.errors import (
    ApiError,
    ForbiddenError,
    GoneError,
    TooManyRequestsError,
    TrainwrightError,
    UnavailableError,
    UntrustedError,
)
from trainwright.kube.auth import credentials, user_headers
from trainwright.kube.certificates import AuthHeaders, ssl_context
from trainwright.kube.codec import (
    PAGE_SIZE,
    Request,
    collection_path,
    decode_page,
    decode_status,
    error_of,
    selector_query,
    with_query,
)
from trainwright.kube.config import Access
from trainwright.kube.unix_connection import BlockingAnswer, BlockingConnection, UnixConnection
from trainwright.kube.unreachable import no_answer, no_engine, what_happened, what_to_try
from trainwright.runtime.ports import Resource, Selection, WallClock

if TYPE_CHECKING:
    from ssl import SSLContext

T = TypeVar("T")
_FIRST_RETRY_SECONDS = 0.1


class BlockingHttpPolicy(Struct, frozen=True):
    """Timeouts, retries and concurrency."""

    #: Seconds to wait for one answer.
    timeout: float = 15.0
    #: Maximum seconds from the first attempt to the last retry.
    retry_seconds: float = 2.0
    #: Maximum number of concurrent requests. Each needs its own TLS connection, and if the server is near, opening a
    #: connection takes longer than a request.
    max_concurrent: int = 4


def http_client(access: Access, policy: BlockingHttpPolicy | None = None) -> BlockingHttpClient:
    """A client for the server of `access`. The caller closes it. Raises ApiError or UsageError."""
    if not access.proxy:
        return BlockingHttpClient(access, policy)
    from trainwright.kube.proxied import ProxiedHttpClient  # noqa: PLC0415 - aiohttp is slow to import

    return ProxiedHttpClient(access, policy)


class NoAnswerInTimeError(UnavailableError):
    """The server did not answer within the time that the caller gave."""


class BlockingHttpClient:
    """Sends requests to one server as one user. Its connections stay open for the next request."""

    def __init__(self, access: Access, policy: BlockingHttpPolicy | None = None) -> None:
        self._access, self._policy = access, policy or BlockingHttpPolicy()
        parts = urlsplit(access.server)
        self._secure, self._host, self._prefix = parts.scheme == "https", parts.hostname or "", parts.path
        self._port = parts.port or (443 if self._secure else 80)
        self._credentials = credentials(access, WallClock())
        self._auth = self._credentials.current()
        self._headers = user_headers(access.user)
        self._context: tuple[AuthHeaders, SSLContext] | None = None
        self._idle: list[tuple[AuthHeaders, BlockingConnection]] = []
        self._lock, self._slots = Lock(), BoundedSemaphore(self._policy.max_concurrent)
        #: Not `_lock`: an exec plug-in can run for long, and `close` must not wait for it.
        self._refresh_lock = Lock()
        #: Rejected credentials that could not be replaced, and why. Each request would run a plug-in again.
        self._failed_refresh: tuple[AuthHeaders, TrainwrightError] | None = None

    def send(self, request: Request, seconds: float | None = None) -> bytes:
        """The body of the answer. Raises ApiError; NoAnswerInTimeError if there is none within `seconds`."""
        limit = self._policy.timeout if seconds is None else seconds
        end, pause, may_refresh = monotonic() + min(self._policy.retry_seconds, limit), _FIRST_RETRY_SECONDS, True
        while True:
            with self._slots:
                auth = self._auth
                answer = self._attempt(request, auth, limit)
            if isinstance(answer, bytes):
                return answer
            error, again = answer
            if isinstance(error, RejectedError) and may_refresh and self._refreshed(auth):
                may_refresh = False
                continue
            wait = max(pause * (0.5 + random()), error.retry_after or 0.0)  # noqa: S311 - jitter, not a secret
            if not again or monotonic() + wait > end:
                raise error
            sleep(wait)
            pause *= 2

    def list(self, resource: Resource, scope: Selection) -> tuple[Any, ...]:
        """All selected objects, read page by page. If a page token expires, one request reads the whole list again."""
        query = selector_query(scope)
        try:
            return self._pages(resource, scope, query | {"limit": str(PAGE_SIZE)})
        except GoneError:
            return self._pages(resource, scope, query)

    def _pages(self, resource: Resource, scope: Selection, query: dict[str, str]) -> tuple[Any, ...]:
        path, token = collection_path(resource, scope.namespace), ""
        items: list[Any] = []
        while True:
            more = {"continue": token} if token else {}
            data = self.send(Request("list", resource.id, with_query(path, query | more), idempotent=True))
            page, token = decode_page(resource, data)
            items.extend(page.items)
            if not token:
                return tuple(items)

    def current_auth(self) -> AuthHeaders:
        """The credentials of the next request, for a connection of another client."""
        return self._auth

    def close(self) -> None:
        """Close the connections that no request uses."""
        with self._lock:
            while self._idle:
                self._idle.pop()[1].close()

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _attempt(self, request: Request, auth: AuthHeaders, seconds: float) -> bytes | tuple[ApiError, bool]:
        """The body of the answer, or an error and whether to send the request again.

        A write that is not idempotent is sent again only if the server certainly changed nothing.
        """
        end, connection = monotonic() + seconds, self._connection(auth)
        is_new = connection.sock is None
        try:
            if is_new:
                connection.open(seconds)
                is_new = False
            code, retry_after, data = self._exchange(connection, request, auth, end)
        except OSError as problem:
            connection.close()
            error, temporary = self._no_answer(problem, seconds, connecting=is_new)
            return error, temporary and (is_new or request.idempotent or not request.is_write)
        if connection.sock is not None:
            self._idle.append((auth, connection))
        if 200 <= code < 300:
            return data
        return self._refused(request, code, retry_after, data)

    def _refused(self, request: Request, code: int, retry_after: str, data: bytes) -> tuple[ApiError, bool]:
        error = error_of(decode_status(code, data), code, retry_after)
        if code == 401:
            return RejectedError(f"the server does not know who we are: {error}"), False
        may_repeat = code >= 500 and (request.idempotent or not request.is_write)
        return error, may_repeat or isinstance(error, TooManyRequestsError)

    def _connection(self, auth: AuthHeaders, *, new: bool = False) -> BlockingConnection:
        """An idle connection that was used only with these credentials, or a new one. Closes other idle connections."""
        with self._lock:
            while self._idle and not new:
                used, connection = self._idle.pop()
                if used is auth:
                    return connection
                connection.close()
            if self._access.socket is not None:
                return UnixConnection(self._access.socket)
            from trainwright.kube.tcp_connection import TcpConnection, TlsConnection  # noqa: PLC0415 - slow to import

            if not self._secure:
                return TcpConnection(self._host, self._port)
            if self._context is None or self._context[0] is not auth:
                self._context = auth, ssl_context(self._access.cluster, self._access.user, auth.key_pair)
            return TlsConnection(
                self._host, self._port, self._context[1], self._access.cluster.value.tls_server_name or self._host
            )

    def _exchange(
        self, connection: BlockingConnection, request: Request, auth: AuthHeaders, end: float
    ) -> tuple[int, str, bytes]:
        """Send the request. Return the HTTP code, the Retry-After header and the body, all of it before `end`."""
        sock = connection.sock
        assert sock is not None  # noqa: S101 - the connection is open
        sock.settimeout(_left(end))
        with closing(self._ask(connection, request, auth)) as answer:
            data = b"".join(answer.parts(lambda: sock.settimeout(_left(end))))
            return answer.status, answer.retry_after, data

    def _ask(self, connection: BlockingConnection, request: Request, auth: AuthHeaders) -> BlockingAnswer:
        body = request.body
        length = {} if body is None else {"Content-Length": str(len(body))}
        headers = (*self._headers, *auth.headers.items(), *request.headers.items(), *length.items())
        return connection.ask(request.method, self._prefix + request.path, headers, body)

    # -- streams -------------------------------------------------------------------------------------------------------

    def stream(self, request: Request) -> Iterator[bytes]:
        """The body of the answer in parts, as they arrive, without a time limit. Raises ApiError.

        A stream has a connection of its own, which the limit of concurrent requests does not include.
        """
        may_refresh = True
        while True:
            auth = self._auth
            opened = self._open(request, auth)
            if not isinstance(opened, ApiError):
                break
            if not (isinstance(opened, RejectedError) and may_refresh and self._refreshed(auth)):
                raise opened
            may_refresh = False
        connection, answer = opened
        try:
            yield from answer.parts(lambda: None)
        except OSError as problem:
            raise self._no_answer(problem, self._policy.timeout, connecting=False)[0] from None
        finally:
            answer.close()
            connection.close()

    def _open(self, request: Request, auth: AuthHeaders) -> tuple[BlockingConnection, BlockingAnswer] | ApiError:
        """Send the request on a new connection and wait for the head of the answer, or return the error."""
        seconds, connection = self._policy.timeout, self._connection(auth, new=True)
        connected = False
        try:
            connection.open(seconds)
            connected, sock = True, connection.sock
            answer = self._ask(connection, request, auth)
            if 200 <= answer.status < 300 and sock is not None:
                sock.settimeout(None)
                sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
                return connection, answer
            data = b"".join(answer.parts(lambda: None))
        except OSError as problem:
            connection.close()
            return self._no_answer(problem, seconds, connecting=not connected)[0]
        connection.close()
        return self._refused(request, answer.status, answer.retry_after, data)[0]

    def _no_answer(self, error: Exception, seconds: float, *, connecting: bool) -> tuple[ApiError, bool]:
        if self._access.socket is not None:
            text = no_engine(self._access.socket, error, connecting=connecting)
            return NoAnswerInTimeError(text) if isinstance(error, TimeoutError) else UnavailableError(text), True
        from ssl import SSLCertVerificationError  # noqa: PLC0415 - slow to import

        what = what_happened(error, self._host, seconds)
        text = no_answer(self._access.server, self._access.origin, what, what_to_try(error) if connecting else "")
        if isinstance(error, TimeoutError):
            return NoAnswerInTimeError(text), True
        if isinstance(error, SSLCertVerificationError):
            return UntrustedError(text), False
        return UnavailableError(text), True

    def _refreshed(self, auth: AuthHeaders) -> bool:
        """Get other credentials than `auth`, which the server rejected. Returns whether there are any."""
        with self._refresh_lock:
            if self._failed_refresh is not None and self._failed_refresh[0] is auth:
                raise self._failed_refresh[1]
            try:
                if self._auth is auth and self._credentials.rejected(auth):
                    self._auth = self._credentials.current()
            except TrainwrightError as error:
                self._failed_refresh = auth, error
                raise
            return self._auth is not auth


class RejectedError(ForbiddenError):
    """The server does not accept the credentials."""


def _left(end: float) -> float:
    left = end - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make the calls at the same time and return their results. Raises the error of the first call that failed.

    Ctrl-C ends the wait at once: the threads do not delay the end of the process.
    """
    if len(calls) == 1:
        return [calls[0]()]
    done: SimpleQueue[tuple[int, T | None, BaseException | None]] = SimpleQueue()

    def work(place: int) -> None:
        try:
            done.put((place, calls[place](), None))
        except BaseException as error:  # the caller's thread raises it
            done.put((place, None, error))

    for place in range(len(calls)):
        Thread(target=work, args=(place,), daemon=True).start()
    results = sorted((done.get() for _ in calls), key=lambda one: one[0])
    for _, _, error in results:
        if error is not None:
            raise error
    return [result for _, result, _ in results]  # type: ignore[misc]
