# SPDX-License-Identifier: Apache-2.0
"""Requests to the API server: concurrency limit, timeouts, retries, metrics, rate limit and write fence.

The client retries idempotent requests after a lost connection or the HTTP codes 5xx and 429. It retries other requests
only if the server certainly changed nothing. Before a retry, it waits at least for the time in the Retry-After header.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial
from random import random
from ssl import SSLCertVerificationError
from time import perf_counter
from typing import TypeVar

from msgspec import Struct

from trainwright.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    TooManyRequestsError,
    UnavailableError,
    UntrustedError,
)
from trainwright.kube.certificates import AuthHeaders
from trainwright.kube.codec import Request, decode_status, error_of
from trainwright.kube.connection import AnswerStream, ConnectError, HttpAnswer, ProxyError
from trainwright.kube.session import ApiSession
from trainwright.kube.unreachable import no_answer, what_happened, what_to_try
from trainwright.runtime.election import Elector

T = TypeVar("T")
#: Called after each attempt with the verb, the resource's id, the HTTP code (0: no answer) and the duration in seconds.
RequestObserver = Callable[[str, str, int, float], None]
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.1, 5.0
_CONNECT_SECONDS = 10.0
_CONNECTION_ERRORS = (ConnectError, TimeoutError, OSError)


class RateLimit:
    """Allows `rate` requests per second; after a pause, it allows `burst` requests at once. Calls keep their order."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, max(burst, 1)
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next request may be sent."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - (self._burst - 1) / self._rate)
        wait, self._next = self._next - now, self._next + 1 / self._rate
        if wait > 0:
            await asyncio.sleep(wait)


class WriteFence:
    """Allows a write only if the lease lasts longer than the request's timeout, or if there is no leader election."""

    def __init__(self, elector: Elector | None, timeout: float, limit: RateLimit | None = None) -> None:
        self._elector, self._timeout, self._limit = elector, timeout, limit
        self._closed = False

    def close(self) -> None:
        """Refuse every write from now on."""
        self._closed = True

    async def wait(self, *, is_write: bool) -> None:
        """Wait for the rate limit; then, for a write, check the lease, because the wait uses up time of the lease."""
        if self._limit is not None:
            await self._limit.wait()
        if is_write:
            self.check()

    def check(self) -> None:
        """Raise UnavailableError if a write must not be sent now.

        The client also calls this just before it sends the first byte, as the process can be suspended after `wait`.
        """
        if self._closed:
            raise UnavailableError("nothing is written: this operator is about to end")
        if self._elector is not None and self._elector.left <= self._timeout:
            raise UnavailableError("nothing is written: this operator's lease has ended or is about to end")


class RequestPolicy(Struct, frozen=True):
    """Timeouts, retries and concurrency of the requests of one client."""

    #: Seconds to wait for one answer.
    timeout: float = 30.0
    #: Maximum seconds from the first attempt to the last retry.
    retry_seconds: float = 15.0
    max_concurrent: int = 48


class _FailedAttempt(Struct, frozen=True):
    error: ApiError
    #: Whether a later attempt can succeed.
    temporary: bool = False
    #: Whether it is certain that the server changed nothing.
    harmless: bool = False
    #: The credentials, if the server rejected them.
    rejected: AuthHeaders | None = None


class HttpClient:
    """Sends requests with one `RequestPolicy`. Several clients can share a session."""

    def __init__(
        self,
        session: ApiSession,
        policy: RequestPolicy | None = None,
        *,
        fence: WriteFence | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        self.session, self.policy = session, policy or RequestPolicy()
        self._fence, self._observer = fence, observer
        self._slots = asyncio.Semaphore(self.policy.max_concurrent)
        self._connect_seconds = min(_CONNECT_SECONDS, self.policy.timeout)
        self._seconds = self._connect_seconds, self.policy.timeout

    async def send(self, request: Request) -> bytes:
        """Send a request and return the body of the answer. Raises ApiError."""
        return await self._retried(request, self._attempt)

    async def stream(self, request: Request, seconds: float) -> AsyncGenerator[bytes, None]:
        """The body of the answer in chunks, for at most `seconds`. Raises UnavailableError if the connection breaks.

        The limit of concurrent requests does not include streams.
        """
        async with AsyncExitStack() as stack:
            answer = await self._retried(request, partial(self._attempt_stream, stack, seconds))
            try:
                async with aclosing(answer.chunks()) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except TimeoutError:
                return
            except _CONNECTION_ERRORS as error:
                raise self._no_answer(error).error from None

    async def _retried(self, request: Request, attempt: Callable[[Request], Awaitable[T | _FailedAttempt]]) -> T:
        """Repeat the attempt until it succeeds, until a retry is not allowed, or until the time is over."""
        loop = asyncio.get_running_loop()
        end, pause, may_refresh = loop.time() + self.policy.retry_seconds, _FIRST_RETRY_SECONDS, True
        while True:
            outcome = await attempt(request)
            if not isinstance(outcome, _FailedAttempt):
                return outcome
            if outcome.rejected is not None and may_refresh:
                may_refresh = False
                if self.session.credentials.rejected(outcome.rejected):
                    continue
            wait = max(pause * (0.5 + random()), outcome.error.retry_after or 0.0)  # noqa: S311 - jitter, not a secret
            again = outcome.temporary and (request.idempotent or outcome.harmless)
            if not again or loop.time() + wait > end:
                raise outcome.error
            await asyncio.sleep(wait)
            pause = min(pause * 2, _MAX_RETRY_SECONDS)

    async def _attempt(self, request: Request) -> bytes | _FailedAttempt:
        async with self._slots:
            auth = await self._permitted(request)
            check = self._fence.check if self._fence is not None and request.is_write else None
            began, code = perf_counter(), 0
            try:
                answer = await self.session.transport(auth).exchange(request, auth, self._seconds, check)
                code = answer.code
            except _CONNECTION_ERRORS as error:
                return self._no_answer(error)
            finally:
                self._observe(request, code, began)
        return answer.body if 200 <= code < 300 else _refused(request, answer, auth)

    async def _attempt_stream(
        self, stack: AsyncExitStack, seconds: float, request: Request
    ) -> AnswerStream | _FailedAttempt:
        """Open a stream; `stack` closes the stream later. After a failure, the stack is empty."""
        auth = await self._permitted(request)
        began, code, data = perf_counter(), 0, b""
        try:
            async with asyncio.timeout(self.policy.timeout):
                opening = self.session.transport(auth).stream(request, auth, (self._connect_seconds, seconds))
                answer = await stack.enter_async_context(opening)
                code = answer.code
                if not 200 <= code < 300:
                    data = b"".join([chunk async for chunk in answer.chunks()])
        except _CONNECTION_ERRORS as error:
            await stack.aclose()
            return self._no_answer(error)
        finally:
            self._observe(request, code, began)
        if 200 <= code < 300:
            return answer
        await stack.aclose()
        return _refused(request, HttpAnswer(code, data, answer.retry_after), auth)

    async def _permitted(self, request: Request) -> AuthHeaders:
        """Get the credentials first, then wait for the fence, because nothing must delay a request after the fence."""
        auth = await self.session.credentials.auth_headers()
        if self._fence is not None:
            await self._fence.wait(is_write=request.is_write)
        return auth

    def _observe(self, request: Request, code: int, began: float) -> None:
        if self._observer is not None:
            self._observer(request.verb, request.resource, code, perf_counter() - began)

    def _no_answer(self, error: Exception) -> _FailedAttempt:
        """The failure of an attempt without an answer. If there was no connection, the server changed nothing."""
        if isinstance(error.__cause__, ApiError):  # the last check of the fence failed, so nothing was sent
            return _FailedAttempt(error.__cause__)
        harmless = isinstance(error, ConnectError)
        temporary = not isinstance(_cause(error), SSLCertVerificationError)
        connecting = harmless and isinstance(_cause(error), TimeoutError)
        seconds = self._connect_seconds if connecting else self.policy.timeout
        text = no_answer(self.session.server, self.session.origin, describe(error, seconds), advice(error))
        kind = UnavailableError if temporary else UntrustedError
        return _FailedAttempt(kind(text), temporary=temporary, harmless=harmless)


def _refused(request: Request, answer: HttpAnswer, auth: AuthHeaders) -> _FailedAttempt:
    code, status = answer.code, decode_status(answer.code, answer.body)
    error = error_of(status, code, answer.retry_after)
    if code == 401:
        return _FailedAttempt(ForbiddenError(f"the server does not know who we are: {error}"), rejected=auth)
    if code == 422 and request.pinned and status.has_cause("metadata.uid"):
        return _FailedAttempt(ConflictError(f"another object of that name: {error}"))
    # A retry does not help against two errors: an invalid object, and ResourceVersionTooLarge. The second error means
    # that the server does not have the requested version yet, although it has already waited for this version.
    final = status.has_cause("ResourceVersionTooLarge") or isinstance(error, InvalidError)
    busy = isinstance(error, TooManyRequestsError)
    return _FailedAttempt(error, temporary=busy or (code >= 500 and not final), harmless=busy)


# -- texts for connection errors ---------------------------------------------------------------------------------------


def describe(error: Exception, seconds: float) -> str:
    """A text about the error. `seconds` is the time for which the client waited for an answer."""
    return what_happened(_cause(error), getattr(error, "host", ""), seconds)


def advice(error: Exception) -> str:
    """A text about what the user can try; empty if there is no specific advice."""
    not_connected = isinstance(error, ConnectError) and not isinstance(error, ProxyError)
    return what_to_try(_cause(error)) if not_connected else ""


def _cause(error: Exception) -> Exception:
    """The error of the operating system or of OpenSSL behind the error of a connection, or the error itself."""
    return error.cause if isinstance(error, ConnectError) else error
