# SPDX-License-Identifier: Apache-2.0
"""Why an API server gave no answer, in words: what happened, and what to try. `http` puts both into its errors.

Requests to the API server: bounded, timed, counted, let through by a gate, and tried again where that is safe.

`cluster` and `logs` make `Call`s; `session` carries them. What can be repeated is, on lost connections, 5xx and 429;
anything else only if it is certain that nothing was done. What the server asks for in Retry-After is kept.

When a request may be sent: not faster than was asked for, and no write without a lease to stand on. For `http`.

The operator puts both before its requests; those that renew the lease itself go through neither.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from random import random
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError
from time import perf_counter
from typing import Protocol, TypeVar

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientHttpProxyError,
    ClientResponse,
    ClientTimeout,
    ConnectionTimeoutError,
)
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
from trainwright.kube.auth import AuthHeaders
from trainwright.kube.codec import Request, error_of, read
from trainwright.kube.session import ApiSession
from trainwright.runtime.election import Elector

_CHOOSE = "or choose another one with --kubeconfig or --context"
_NETWORK = "your VPN or firewall"


def happened(error: Exception, seconds: float) -> str:
    """What went wrong. `seconds` is how long an answer was waited for."""
    cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    match error, cause:
        case TimeoutError(), _:
            return f"none within {seconds:g} s"
        case ClientHttpProxyError(), _:  # its own text has the proxy's URL, password and all
            return f"the proxy says {error.status} {error.message}".rstrip()
        case ClientConnectorDNSError(), _:
            return f"the name {error.host} does not resolve ({_plain(cause)})"
        case _, SSLCertVerificationError():
            why = getattr(cause, "verify_message", "") or cause
            return f"its certificate is not trusted (certificate verify failed: {why})"
        case _, SSLError():
            return f"no TLS connection ({getattr(cause, 'reason', '') or cause})"
        case _, OSError():
            return _plain(cause)
        case _:
            return str(error) or type(error).__name__


def advice(error: Exception) -> str:
    """What to try; empty: nothing in particular."""
    cause = getattr(error, "os_error", None)
    match error:
        case ClientConnectorDNSError():
            return f"check the name, your DNS and {_NETWORK}, {_CHOOSE}"
        case ClientConnectorCertificateError():
            return "check certificate-authority-data of the cluster in the kubeconfig, and whether it is this cluster's"
        case ConnectionTimeoutError():
            return f"check the address and {_NETWORK}, {_CHOOSE}"
        case ClientConnectorError() if isinstance(cause, SSLError):
            return "check whether the server's address begins with the right one of https:// and http://"
        case ClientConnectorError() if isinstance(cause, ConnectionRefusedError):
            return f"nothing listens there: start the cluster, {_CHOOSE}"
        case ClientConnectorError():
            return f"check the address and {_NETWORK}, {_CHOOSE}"
        case _:
            return ""


def _plain(cause: object) -> str:
    """The system's own words for an error."""
    if isinstance(cause, gaierror):
        return str(cause.strerror or cause)
    number = getattr(cause, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else str(cause)


T = TypeVar("T")
#: Called with the verb, the resource's id, the HTTP code (0: no answer) and the seconds it took, for every attempt.
Count = Callable[[str, str, int, float], None]
_FIRST, _MOST = 0.1, 5.0
#: Seconds that making a connection may take.
_CONNECT = 10.0
_LOST = (ClientError, TimeoutError, OSError)


class RequestGate(Protocol):
    """Whoever decides when a request may be sent, or raises an ApiError because it may not."""

    async def pass_(self, verb: str, write: bool) -> None:
        """Wait for leave to send one request."""
        ...

    def check(self, write: bool) -> None:
        """Asked once more as the bytes go out: a process may have been stopped in between, for longer than it leads."""
        ...


class RequestPolicy(Struct, frozen=True):
    """How patient a caller is, in seconds, and how many requests it has under way at a time."""

    #: For one answer.
    timeout: float = 30.0
    #: From the first attempt to the last.
    patience: float = 15.0
    at_once: int = 32


class _Failed(Struct, frozen=True):
    """An attempt that came to nothing."""

    error: ApiError
    #: It may be another time.
    passing: bool = False
    #: It is certain that nothing was done.
    harmless: bool = False
    #: The server does not know us: with this proof.
    proof: AuthHeaders | None = None


class HttpClient:
    """Requests in one manner. Several share a session: `apart`."""

    def __init__(
        self,
        session: ApiSession,
        manner: RequestPolicy | None = None,
        *,
        gate: RequestGate | None = None,
        count: Count | None = None,
    ) -> None:
        self.session, self.manner = session, manner or RequestPolicy()
        self._gate, self._count = gate, count
        self._slots = asyncio.Semaphore(self.manner.at_once)
        self._connect = min(_CONNECT, self.manner.timeout)
        self._limits = ClientTimeout(total=self.manner.timeout, sock_connect=self._connect)

    def apart(self, manner: RequestPolicy, *, gate: RequestGate | None = None) -> "HttpClient":
        """The same server, asked in another manner, through another gate or none, and never behind other requests."""
        return HttpClient(self.session, manner, gate=gate, count=self._count)

    async def ask(self, call: Request) -> bytes:
        """The answer; ApiError."""
        return await self._insist(call, self._answer)

    async def stream(self, call: Request, seconds: float) -> AsyncGenerator[bytes, None]:
        """The answer as it comes, for so many seconds; UnavailableError if it breaks off. Not one of the bounded."""
        limits = ClientTimeout(total=seconds, sock_connect=self._connect)
        async with AsyncExitStack() as stack:
            response = await self._insist(call, partial(self._open, stack, limits))
            try:
                async for chunk in response.content.iter_any():
                    yield chunk
            except TimeoutError:
                return
            except _LOST as error:
                raise self._lost(error).error from None

    # ------------------------------------------------------------------------------------------------------------

    async def _insist(self, call: Request, once: Callable[[Request], Awaitable[T | _Failed]]) -> T:
        """Try until it works, or is not worth it, or takes too long."""
        loop = asyncio.get_running_loop()
        end, pause, known = loop.time() + self.manner.patience, _FIRST, True
        while True:
            outcome = await once(call)
            if not isinstance(outcome, _Failed):
                return outcome
            if outcome.proof is not None and known:
                known = False
                if self.session.credentials.refused(outcome.proof):
                    continue
            wait = max(pause * (0.5 + random()), outcome.error.retry_after or 0.0)  # noqa: S311 - jitter, not a secret
            again = outcome.passing and (call.repeatable or outcome.harmless)
            if not again or loop.time() + wait > end:
                raise outcome.error
            await asyncio.sleep(wait)
            pause = min(pause * 2, _MOST)

    async def _answer(self, call: Request) -> bytes | _Failed:
        """One attempt at an answer."""
        async with self._slots:
            proof = await self._cleared(call)
            began, code = perf_counter(), 0
            try:
                async with self.session.send(call, proof, self._limits, self._last_check(call)) as response:
                    code = response.status
                    data = await response.read()
            except _LOST as error:
                return self._lost(error)
            finally:
                self._counted(call, code, began)
        return data if 200 <= code < 300 else _refused(call, response, data, proof)

    async def _open(self, stack: AsyncExitStack, limits: ClientTimeout, call: Request) -> ClientResponse | _Failed:
        """One attempt at a stream, which the stack closes."""
        proof = await self._cleared(call)
        began, code = perf_counter(), 0
        try:
            async with asyncio.timeout(self.manner.timeout):
                response = await stack.enter_async_context(self.session.send(call, proof, limits))
                code = response.status
                data = b"" if 200 <= code < 300 else await response.read()
        except _LOST as error:
            return self._lost(error)
        finally:
            self._counted(call, code, began)
        return response if 200 <= code < 300 else _refused(call, response, data, proof)

    async def _cleared(self, call: Request) -> AuthHeaders:
        """Who we are, and leave to send. The gate comes last: nothing may delay what it let through."""
        proof = await self.session.credentials.proof()
        if self._gate is not None:
            await self._gate.pass_(call.verb, call.write)
        return proof

    def _last_check(self, call: Request) -> Callable[[], None] | None:
        return partial(self._gate.check, call.write) if self._gate is not None and call.write else None

    def _counted(self, call: Request, code: int, began: float) -> None:
        if self._count is not None:
            self._count(call.verb, call.resource, code, perf_counter() - began)

    def _lost(self, error: Exception) -> _Failed:
        """No answer. Where not even a connection was made, nothing was done."""
        if isinstance(error.__cause__, ApiError):  # of the last check: nothing was sent
            return _Failed(error.__cause__)
        harmless = isinstance(error, ClientConnectorError | ConnectionTimeoutError | ClientHttpProxyError)
        passing = not isinstance(error, ClientConnectorCertificateError)
        seconds = self._connect if isinstance(error, ConnectionTimeoutError) else self.manner.timeout
        text = f"no answer from {self.session.server}: {happened(error, seconds)}"
        text += f"; the address is from {self.session.origin}" if self.session.origin else ""
        text += f"; {todo}" if (todo := advice(error)) else ""
        return _Failed((UnavailableError if passing else UntrustedError)(text), passing=passing, harmless=harmless)


def _refused(call: Request, response: ClientResponse, data: bytes, proof: AuthHeaders) -> _Failed:
    code, status = response.status, read(response.status, data)
    error = error_of(status, code, response.headers.get("Retry-After", ""))
    if code == 401:
        return _Failed(ForbiddenError(f"the server does not know who we are: {error}"), proof=proof)
    if code == 422 and call.pinned and status.blames("metadata.uid"):
        return _Failed(ConflictError(f"another object of that name: {error}"))
    # It has waited long enough for a version that it has not seen; what is too large stays so.
    final = status.blames("ResourceVersionTooLarge") or isinstance(error, InvalidError)
    busy = isinstance(error, TooManyRequestsError)
    return _Failed(error, passing=busy or (code >= 500 and not final), harmless=busy)


class RateLimit:
    """So many requests a second, and so many at once after a rest; waiting requests go in their order."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, max(burst, 1)
        self._next = 0.0

    async def pass_(self, verb: str, write: bool) -> None:  # noqa: ARG002 - a gate's signature
        """Wait for the next place."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - (self._burst - 1) / self._rate)
        wait, self._next = self._next - now, self._next + 1 / self._rate
        if wait > 0:
            await asyncio.sleep(wait)

    def check(self, write: bool) -> None:
        """What has waited for its place may go."""


class WriteFence:
    """A write may be sent only while the lease, if there is one, lasts longer than the request may take."""

    def __init__(self, elector: Elector | None, timeout: float, limit: RateLimit | None = None) -> None:
        self._elector, self._timeout, self._limit = elector, timeout, limit
        self._closed = False

    def close(self) -> None:
        """From now on, nothing is written."""
        self._closed = True

    async def pass_(self, verb: str, write: bool) -> None:
        """First the wait, then the look at the lease: it is the moment of sending that counts."""
        if self._limit is not None:
            await self._limit.pass_(verb, write)
        self.check(write)

    def check(self, write: bool) -> None:
        """Raises what keeps a write from being sent at this very moment."""
        if write and self._closed:
            raise UnavailableError("nothing is written: this operator is about to end")
        if write and self._elector is not None and self._elector.left <= self._timeout:
            raise UnavailableError("nothing is written: this operator's lease is about to end, or has")
