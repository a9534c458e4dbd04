# SPDX-License-Identifier: Apache-2.0
"""Memory limits where no cgroup can be had: once a second the supervisor measures the containers that have one.

A cgroup is better: the kernel refuses memory before it is used. Here a container may exceed its limit until the next
measurement. The supervisor measures the memory that a cgroup could not take back either: anonymous and shared memory,
swapped out or not, but no pages of files. Each of several processes that share a page counts a part of it. So a
container that is killed here would be killed in a cgroup too.
"""

import os
import time
from collections.abc import Callable

from trainwright.local.supervisor import tree
from trainwright.local.supervisor.loop import Loop

INTERVAL = 1.0  # seconds between two measurements
_REST = 20  # the next measurement waits at least this many times as long as the last one took: 5 % of a CPU

# Cheap, but counts a page once for each process that shares it, for example after a fork.
_STATUS = "status", (b"RssAnon", b"RssShmem", b"VmSwap")
# The kernel walks all page tables of the process: read only if the cheap sum exceeds the limit.
_ROLLUP = "smaps_rollup", (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")


class MemoryWatch:
    """Measures containers by their main processes. `exceeded` hears of each that has more memory than its limit."""

    def __init__(self, loop: Loop, exceeded: Callable[[str], None]) -> None:
        self._loop, self._exceeded = loop, exceeded
        self._watched: dict[int, tuple[str, int]] = {}  # by main process: the container, and its limit in bytes
        self._waiting = False

    def add(self, pid: int, container: str, limit: int) -> None:
        """Watch a container until `remove`."""
        self._watched[pid] = container, limit
        self._wait(INTERVAL)

    def remove(self, pid: int) -> None:
        """The main process has ended. One that is not watched is no error."""
        self._watched.pop(pid, None)

    def _wait(self, seconds: float) -> None:
        if self._watched and not self._waiting:
            self._waiting = True
            self._loop.later(seconds, self._measure)

    def _measure(self) -> None:
        self._waiting = False
        began = time.monotonic()
        processes = tree.members({pid: container for pid, (container, _) in self._watched.items()})
        try:
            for container, limit in [*self._watched.values()]:
                if _size(processes[container], _STATUS) > limit and _size(processes[container], _ROLLUP) > limit:
                    self._exceeded(container)
        finally:
            self._wait(max(INTERVAL, _REST * (time.monotonic() - began)))


def measurable() -> bool:
    """Whether this system tells which processes there are, and how much memory they have: Linux does."""
    pid = os.getpid()
    return os.path.exists(f"/proc/{pid}/task/{pid}/children") and _size([pid], _ROLLUP) > 0


def _size(pids: list[int], source: tuple[str, tuple[bytes, ...]]) -> int:
    """Bytes of all of them together. A process that has ended, or may not be read, counts nothing."""
    name, fields = source
    lines = [line.split() for pid in pids for line in tree.read(f"/proc/{pid}/{name}").splitlines()]
    return sum(int(words[1]) << 10 for words in lines if len(words) > 1 and words[0].rstrip(b":") in fields)
