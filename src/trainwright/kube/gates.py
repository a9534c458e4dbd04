# SPDX-License-Identifier: Apache-2.0
"""When a request may be sent: not faster than was asked for, and no write without a lease to stand on. For `http`.

The operator puts both before its requests; those that renew the lease itself go through neither.
"""

import asyncio

from trainwright.errors import UnavailableError
from trainwright.runtime.election import Elector


class Limit:
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


class Fence:
    """A write may be sent only while the lease, if there is one, lasts longer than the request may take."""

    def __init__(self, elector: Elector | None, timeout: float, limit: Limit | None = None) -> None:
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
