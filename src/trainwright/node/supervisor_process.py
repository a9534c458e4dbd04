# SPDX-License-Identifier: Apache-2.0
"""The process of a supervisor, as its agent holds it: a child, or a process that an earlier agent has started."""

import asyncio
import os
import subprocess

from trainwright.node.supervisor import tree
from trainwright.node.supervisor.launch import Process

_POLL_SECONDS = 0.02  # only for systems without pidfds


class SupervisorProcess:
    """A handle that is safe against the reuse of the process ID. Only a child is reaped and has an exit code."""

    def __init__(self, handle: Process, child: "subprocess.Popen[bytes] | None" = None) -> None:
        self.handle = handle
        self.pid = handle.pid
        self._child = child

    @classmethod
    def of_child(cls, child: "subprocess.Popen[bytes]") -> "SupervisorProcess":
        """A supervisor that this process has started."""
        return cls(Process(child.pid), child)

    @classmethod
    def find(cls, pid: int, start: str) -> "SupervisorProcess | None":
        """The process with this ID and this start time (see `tree.start_time`); None if it has ended."""
        try:
            handle = Process(pid)
        except OSError:
            return None
        if (tree.start_time(pid) or "") == start:  # checked after the pidfd was opened: the ID cannot be reused now
            return cls(handle)
        handle.close()
        return None

    @property
    def start(self) -> str:
        """The start time, in the clock ticks of the kernel; empty if the process has been reaped."""
        return tree.start_time(self.pid) or ""

    @property
    def was_killed(self) -> bool:
        """Whether a child was killed by a signal, and so could not clean up."""
        return self._child is not None and (self._child.poll() or 0) < 0

    def send(self, number: int) -> None:
        """Signal the process if it still runs."""
        self.handle.send(number)

    async def wait(self) -> None:
        """Wait until the process has ended, and reap a child. With pidfds, this needs neither polling nor a thread."""
        if self.handle.pidfd >= 0:
            await _readable(self.handle.pidfd)
        elif self._child is not None:
            await asyncio.to_thread(self._child.wait)
        else:
            while not self.handle.ended():
                await asyncio.sleep(_POLL_SECONDS)
        if self._child is not None:
            self._child.wait()

    def close(self) -> None:
        """Release the handle. The process may go on: then the process that adopts it reaps it."""
        self.handle.close()
        if self._child is not None and self._child.poll() is None:
            self._child.returncode = 0  # so that Popen does not warn about a running child


async def _readable(fd: int) -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    own = os.dup(fd)  # another task may wait for the same process
    loop.add_reader(own, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(own)
        os.close(own)
