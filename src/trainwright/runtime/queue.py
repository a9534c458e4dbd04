# SPDX-License-Identifier: Apache-2.0
"""The work queue: each key at most once, never twice at the same time, at its time. `controller` feeds and empties it.

A key that is added while it is worked on comes again afterwards. Timers live here too: one heap, one alarm. Keys that
can wait (jobs nobody has looked at yet) let the others pass, but not all of them: what has begun is seen in time.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

from trainwright.runtime.telemetry import Telemetry

K = TypeVar("K")
#: Timers that were overtaken may lie about; more of them than this, and than keys, are cleared away.
_LITTER = 256
#: So many others pass a key that can wait.
_PASS = 8


class Queue(Generic[K]):
    """Keys to look at, each when it is due; those that `waits` is true of when they are, a little later."""

    def __init__(self, telemetry: Telemetry, waits: Callable[[K], bool] = lambda _: False) -> None:
        self._telemetry = telemetry
        self._waits = waits
        #: When each key comes; -inf once it waits for a worker, so that no timer brings it a second time.
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        #: With the time at which each was due.
        self._ready: deque[tuple[K, float]] = deque()
        self._waiting: deque[tuple[K, float]] = deque()
        #: How many have passed the first that waits.
        self._passed = 0
        self._working: set[K] = set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._count = 0

    def add(self, key: K, delay: float = 0.0) -> None:
        """Look at this key so many seconds from now, or earlier if that was asked for already."""
        loop = asyncio.get_running_loop()
        at = loop.time() + delay
        known = self._due.get(key)
        if known is not None and known <= at:
            return
        self._due[key] = at
        if delay <= 0 and key not in self._working:
            self._make_ready(key, at)
            return
        self._count += 1
        heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 2 * len(self._due) + _LITTER:
            self._clear_away()
        self._set_alarm()

    async def get(self) -> K:
        """The next key that is due; it stays in work until `done`."""
        while not self._depth:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(turn)
            await turn
        key, at = self._next().popleft()
        self._telemetry.waits.observe(asyncio.get_running_loop().time() - at)
        self._due.pop(key, None)
        self._working.add(key)
        self._telemetry.depth = self._depth
        return key

    @property
    def _depth(self) -> int:
        return len(self._ready) + len(self._waiting)

    def _next(self) -> deque[tuple[K, float]]:
        """Whose turn it is."""
        if self._waiting and (not self._ready or self._passed >= _PASS):
            self._passed = 0
            return self._waiting
        self._passed = self._passed + 1 if self._waiting else 0
        return self._ready

    @property
    def working(self) -> int:
        """How many keys are in work."""
        return len(self._working)

    def done(self, key: K) -> None:
        """The work on this key is over; it comes again if it was added meanwhile."""
        self._working.discard(key)
        at = self._due.get(key)
        if at is not None and at <= asyncio.get_running_loop().time():
            self._make_ready(key, at)

    def _make_ready(self, key: K, at: float) -> None:
        self._due[key] = -inf
        (self._waiting if self._waits(key) else self._ready).append((key, at))
        self._telemetry.depth = self._depth
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _clear_away(self) -> None:
        """Drop the timers that were overtaken."""
        self._heap = list({entry[2]: entry for entry in self._heap if self._due.get(entry[2]) == entry[0]}.values())
        heapify(self._heap)

    def _set_alarm(self) -> None:
        first = self._heap[0][0]
        if self._alarm is not None and self._alarm.when() <= first and not self._alarm.cancelled():
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(first, self._ring)

    def _ring(self) -> None:
        """Everything that is due becomes ready; entries that were overtaken by an earlier one are skipped."""
        self._alarm = None
        now = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heappop(self._heap)
            if self._due.get(key) == at and key not in self._working:
                self._make_ready(key, at)
        if self._heap:
            self._set_alarm()
