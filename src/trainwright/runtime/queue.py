# SPDX-License-Identifier: Apache-2.0
"""The work queue: each key at most once, never twice at the same time, at its time. `controller` feeds and empties it.

A key that is added while it is worked on comes again afterwards. Timers live here too: one heap, one alarm.
"""

import asyncio
from collections import deque
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

from trainwright.runtime.telemetry import Telemetry

K = TypeVar("K")
#: Timers that were overtaken may lie about; more of them than this, and than keys, are cleared away.
_LITTER = 256


class Queue(Generic[K]):
    """Keys to look at, each when it is due."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        #: When each key comes; -inf once it waits for a worker, so that no timer brings it a second time.
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._ready: deque[K] = deque()
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
            self._make_ready(key)
            return
        self._count += 1
        heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 2 * len(self._due) + _LITTER:
            self._clear_away()
        self._set_alarm()

    async def get(self) -> K:
        """The next key that is due; it stays in work until `done`."""
        while not self._ready:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(turn)
            await turn
        key = self._ready.popleft()
        self._due.pop(key, None)
        self._working.add(key)
        self._telemetry.depth = len(self._ready)
        return key

    def done(self, key: K) -> None:
        """The work on this key is over; it comes again if it was added meanwhile."""
        self._working.discard(key)
        at = self._due.get(key)
        if at is not None and at <= asyncio.get_running_loop().time():
            self._make_ready(key)

    def _make_ready(self, key: K) -> None:
        self._due[key] = -inf
        self._ready.append(key)
        self._telemetry.depth = len(self._ready)
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
                self._make_ready(key)
        if self._heap:
            self._set_alarm()
