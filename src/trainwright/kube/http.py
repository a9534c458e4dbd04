# SPDX-License-Identifier: Apache-2.0
"""Requests to the API server: bounded, timed, counted, let through by a gate, and tried again where that is safe.

`cluster` and `logs` make `Call`s; `session` carries them. What can be repeated is, on lost connections, 5xx and 429;
anything else only if it is certain that nothing was done. What the server asks for in Retry-After is kept.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from random import random
from time import perf_counter
from typing import Protocol, TypeVar

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientError,
    ClientHttpProxyError,
    ClientResponse,
    ClientTimeout,
    ConnectionTimeoutError,
)
from msgspec import Struct

from trainwright.errors import ApiError, ConflictError, ForbiddenError, TooManyRequestsError, UnavailableError
from trainwright.kube.calls import Call
from trainwright.kube.proof import Proof
from trainwright.kube.session import Session
from trainwright.kube.status import error_of, read

T = TypeVar("T")
#: Called with the verb, the resource's id, the HTTP code (0: no answer) and the seconds it took, for every attempt.
Count = Callable[[str, str, int, float], None]
_FIRST, _MOST = 0.1, 5.0
_LOST = (ClientError, TimeoutError, OSError)


class Gate(Protocol):
    """Whoever decides when a request may be sent, or raises an ApiError because it may not."""

    async def pass_(self, verb: str, write: bool) -> None:
        """Wait for leave to send one request."""
        ...


class Manner(Struct, frozen=True):
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
    proof: Proof | None = None


class Http:
    """Requests in one manner. Several share a session: `apart`."""

    def __init__(
        self, session: Session, manner: Manner | None = None, *, gate: Gate | None = None, count: Count | None = None
    ) -> None:
        self.session, self.manner = session, manner or Manner()
        self._gate, self._count = gate, count
        self._slots = asyncio.Semaphore(self.manner.at_once)

    def apart(self, manner: Manner, *, gate: Gate | None = None) -> "Http":
        """The same server, asked in another manner, through another gate or none, and never behind other requests."""
        return Http(self.session, manner, gate=gate, count=self._count)

    async def ask(self, call: Call) -> bytes:
        """The answer; ApiError."""

        async def once() -> bytes | _Failed:
            async with self._slots, AsyncExitStack() as stack:
                opened = await self._open(call, stack, ClientTimeout(total=self.manner.timeout))
                return opened if isinstance(opened, _Failed) else await self._body(opened)

        return await self._insist(call, once)

    async def stream(self, call: Call, seconds: float | None) -> AsyncGenerator[bytes, None]:
        """The answer as it comes, for so many seconds; UnavailableError if it breaks off. Not one of the bounded."""
        limits = ClientTimeout(total=seconds, sock_connect=self.manner.timeout)
        async with AsyncExitStack() as stack:

            async def once() -> ClientResponse | _Failed:
                return await self._open(call, stack, limits)

            response = await self._insist(call, once)
            try:
                async for chunk in response.content.iter_any():
                    yield chunk
            except _LOST as error:
                raise self._lost(error).error from None

    # ------------------------------------------------------------------------------------------------------------

    async def _insist(self, call: Call, once: Callable[[], Awaitable[T | _Failed]]) -> T:
        """Try until it works, or is not worth it, or takes too long."""
        loop = asyncio.get_running_loop()
        end, pause, known = loop.time() + self.manner.patience, _FIRST, True
        while True:
            outcome = await once()
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

    async def _open(self, call: Call, stack: AsyncExitStack, limits: ClientTimeout) -> ClientResponse | _Failed:
        """Send it, and see what comes back. The gate comes last: nothing may delay what it let through."""
        proof = await self.session.credentials.proof()
        if self._gate is not None:
            await self._gate.pass_(call.verb, call.write)
        began, code = perf_counter(), 0
        try:
            async with asyncio.timeout(self.manner.timeout):
                response = await stack.enter_async_context(self.session.send(call, proof, limits))
                code = response.status
                if 200 <= code < 300:
                    return response
                return _refused(call, response, await response.read(), proof)
        except _LOST as error:
            return self._lost(error)
        finally:
            if self._count is not None:
                self._count(call.verb, call.resource, code, perf_counter() - began)

    async def _body(self, response: ClientResponse) -> bytes | _Failed:
        try:
            return await response.read()
        except _LOST as error:
            return self._lost(error)

    def _lost(self, error: Exception) -> _Failed:
        """No answer. Where not even a connection was made, nothing was done."""
        harmless = isinstance(error, ClientConnectorError | ConnectionTimeoutError | ClientHttpProxyError)
        passing = not isinstance(error, ClientConnectorCertificateError)
        why = f"none within {self.manner.timeout:g} s" if isinstance(error, TimeoutError) else str(error)
        text = f"no answer from {self.session.server}: {why or type(error).__name__}"
        return _Failed(UnavailableError(text), passing=passing, harmless=harmless)


def _refused(call: Call, response: ClientResponse, data: bytes, proof: Proof) -> _Failed:
    code, status = response.status, read(response.status, data)
    error = error_of(status, code, response.headers.get("Retry-After", ""))
    if code == 401:
        return _Failed(ForbiddenError(f"the server does not know who we are: {error}"), proof=proof)
    if code == 422 and call.pinned and status.blames("metadata.uid"):
        return _Failed(ConflictError(f"another object of that name: {error}"))
    # It has waited long enough for a version that it has not seen.
    waited = status.blames("ResourceVersionTooLarge")
    busy = isinstance(error, TooManyRequestsError)
    return _Failed(error, passing=busy or (code >= 500 and not waited), harmless=busy)
