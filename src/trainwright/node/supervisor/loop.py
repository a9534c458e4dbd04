# SPDX-License-Identifier: Apache-2.0
"""The supervisor's only loop: descriptors, timers, and what is done once a turn. Nothing here waits but `select`.

Callbacks do a bounded piece of work and come back, so that one busy container cannot starve another.
"""

import contextlib
import heapq
import itertools
import selectors
import time
from collections.abc import Callable

Task = Callable[[], bool]


class Timer:
    """Something to be done later, unless it is cancelled before."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        """Never do it."""
        self.act = None


class Loop:
    """Runs until `stop`. `defect` hears of an exception that nobody has caught; the loop goes on."""

    def __init__(self, defect: Callable[[Exception], None]) -> None:
        self.tasks: list[Task] = []  # once a turn; True: there is more to do, do not sleep
        self._defect = defect
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._going = True

    def watch(self, fd: int, act: Callable[[], object]) -> None:
        """Call `act` whenever `fd` can be read (or has ended)."""
        self._selector.register(fd, selectors.EVENT_READ, act)

    def unwatch(self, fd: int) -> None:
        """No more; before `fd` is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def writing(self, fd: int, act: Callable[[], object], wanted: bool) -> None:
        """Wake up also when a watched `fd` can be written, or no more."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        self._selector.modify(fd, events, act)

    def later(self, seconds: float, act: Callable[[], None]) -> Timer:
        """Call `act` once, after so many seconds."""
        timer = Timer(act)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._count), timer))
        return timer

    def stop(self) -> None:
        """Return from `run` after this turn."""
        self._going = False

    def run(self) -> None:
        """Until `stop`."""
        busy = self._going = True  # the tasks may have something to do already
        while self._going:
            for key, _ in self._selector.select(0 if busy else self._patience()):
                self._guarded(key.data)
            self._ring()
            busy = False
            for task in self.tasks:
                busy = self._guarded(task) is True or busy

    def close(self) -> None:
        """Give the selector's descriptor back."""
        self._selector.close()

    def _patience(self) -> float | None:
        while self._timers and self._timers[0][2].act is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _ring(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            act = heapq.heappop(self._timers)[2].act
            if act is not None:
                self._guarded(act)

    def _guarded(self, act: Callable[[], object]) -> object:
        try:
            return act()
        except Exception as error:  # a defect in one place must not end every container
            self._defect(error)
            return None
