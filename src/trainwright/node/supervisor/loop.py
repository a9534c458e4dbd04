# SPDX-License-Identifier: Apache-2.0
"""The supervisor's event loop: descriptors, timers, and tasks that run once per turn. Only `select` blocks.

A callback does a bounded amount of work and returns, so that a busy container cannot delay the others for long.
"""

import contextlib
import heapq
import itertools
import selectors
import time
from collections.abc import Callable

Task = Callable[[], bool]


class Timer:
    """A callback that runs later, unless it is cancelled before."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not run the callback."""
        self.callback = None


class Loop:
    """Runs until `stop`. An exception in a callback does not end the loop: `on_error` gets the exception."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self.tasks: list[Task] = []  # each runs once per turn; if one returns True, the loop does not sleep
        self._on_error = on_error
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._running = True

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call `callback` whenever `fd` is readable or at its end."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`. Call this before `fd` is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def watch_writable(self, fd: int, callback: Callable[[], object], wanted: bool) -> None:
        """Call `callback` when the watched `fd` is readable and, if `wanted`, also when `fd` is writable."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        self._selector.modify(fd, events, callback)

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, after this number of seconds."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._count), timer))
        return timer

    def stop(self) -> None:
        """Return from `run` after this turn."""
        self._running = False

    def run(self) -> None:
        """Run until `stop`."""
        busy = self._running = True  # the first turn runs the tasks without waiting
        while self._running:
            for key, _ in self._selector.select(0 if busy else self._time_to_next_timer()):
                self._call(key.data)
            self._run_timers()
            busy = False
            for task in self.tasks:
                busy = self._call(task) is True or busy

    def _time_to_next_timer(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                self._call(callback)

    def _call(self, callback: Callable[[], object]) -> object:
        try:
            return callback()
        except Exception as error:  # a defect in one callback must not end every container
            self._on_error(error)
            return None
