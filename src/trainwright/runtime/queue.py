# SPDX-License-Identifier: Apache-2.0
"""The work queue of the controller, with delays and two priorities.

A key is in the queue at most once, and two workers never process the same key at the same time: if a key is added while
a worker processes it, `get` returns it again afterwards. One heap and one timer implement all delays. Keys of high
priority (jobs that the controller already knows) overtake keys of low priority (new jobs), up to a limit.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

from trainwright.runtime.telemetry import Telemetry

K = TypeVar("K")
#: Old heap entries are removed when the heap has more than two entries per key plus this number.
_MAX_STALE_TIMERS = 256
#: At most this many keys of high priority overtake the first key of low priority.
_MAX_OVERTAKES = 8


class Queue(Generic[K]):
    """Keys to process, each at its due time. `is_low_priority` is called when a key becomes due."""

    def __init__(self, telemetry: Telemetry, is_low_priority: Callable[[K], bool] = lambda _: False) -> None:
        self._telemetry = telemetry
        self._is_low_priority = is_low_priority
        #: The due time of each key. It is -inf while the key waits for a worker, so that no timer adds the key again.
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        #: Due keys of high and of low priority, with their due times.
        self._high: deque[tuple[K, float]] = deque()
        self._low: deque[tuple[K, float]] = deque()
        #: The number of keys that have overtaken the first key in `_low`.
        self._overtakes = 0
        self._working: set[K] = set()
        #: One future per worker that waits for a key.
        self._idle: deque[asyncio.Future[None]] = deque()
        #: The timer for the first due time in the heap, and that time.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = inf
        self._count = 0

    def add(self, key: K, delay: float = 0.0) -> None:
        """Add a key that is due after `delay` seconds. If the key already has an earlier due time, that time stays."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        due_before = self._due.get(key)
        if due_before is not None and due_before <= due:
            return
        self._due[key] = due
        if delay <= 0 and key not in self._working:
            self._make_ready(key, due)
            return
        self._count += 1
        heappush(self._heap, (due, self._count, key))
        if len(self._heap) > 2 * len(self._due) + _MAX_STALE_TIMERS:
            self._drop_stale_timers()
        self._set_timer()

    async def get(self) -> K:
        """Wait for the next due key. The caller must call `done` when it has processed the key."""
        while not self._depth:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter
        key, due = self._next().popleft()
        self._telemetry.queue_seconds.observe(asyncio.get_running_loop().time() - due)
        self._due.pop(key, None)
        self._working.add(key)
        self._telemetry.queue_depth = self._depth
        return key

    @property
    def _depth(self) -> int:
        return len(self._high) + len(self._low)

    def _next(self) -> deque[tuple[K, float]]:
        """The deque whose first key is next."""
        if self._low and (not self._high or self._overtakes >= _MAX_OVERTAKES):
            self._overtakes = 0
            return self._low
        self._overtakes = self._overtakes + 1 if self._low else 0
        return self._high

    @property
    def working(self) -> int:
        """The number of keys that workers process now."""
        return len(self._working)

    def done(self, key: K) -> None:
        """Report that a key is processed. If the key was added in the meantime, `get` returns it again."""
        self._working.discard(key)
        due = self._due.get(key)
        if due is not None and due <= asyncio.get_running_loop().time():
            self._make_ready(key, due)

    def _make_ready(self, key: K, due: float) -> None:
        self._due[key] = -inf
        (self._low if self._is_low_priority(key) else self._high).append((key, due))
        self._telemetry.queue_depth = self._depth
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _drop_stale_timers(self) -> None:
        """Remove the heap entries of keys whose due time has changed."""
        self._heap = list({entry[2]: entry for entry in self._heap if self._due.get(entry[2]) == entry[0]}.values())
        heapify(self._heap)

    def _set_timer(self) -> None:
        first = self._heap[0][0]
        if self._timer is not None:
            if self._timer_due <= first:
                return
            self._timer.cancel()
        self._timer, self._timer_due = asyncio.get_running_loop().call_at(first, self._on_timer), first

    def _on_timer(self) -> None:
        """Make all due keys ready. Entries of keys whose due time has changed are skipped."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heappop(self._heap)
            if self._due.get(key) == due and key not in self._working:
                self._make_ready(key, due)
        if self._heap:
            self._set_timer()
