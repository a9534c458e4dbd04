# SPDX-License-Identifier: Apache-2.0
"""Commands in a running container: probes and hooks that the agent asks for, and people's from `terminal`.

They are never the container's main process. They are killed with it, at their timeout, and when whoever asked is gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainwright.local.supervisor import tree
from trainwright.local.supervisor.children import End, reap
from trainwright.local.supervisor.containers import Containers
from trainwright.local.supervisor.loop import Loop, Timer
from trainwright.local.supervisor.pipes import Pipe
from trainwright.local.supervisor.runtimes import Process, Runtime, Stdio

if TYPE_CHECKING:
    from trainwright.local.supervisor import protocol
    from trainwright.local.supervisor.control import Reply

_TAIL = 4096

Finish = Callable[[End], None]


class Exec:
    """One command that runs; `finish` is called when it has ended."""

    __slots__ = ("_tail", "container", "finish", "late", "pipe", "process", "timer")

    def __init__(self, container: str, process: Process) -> None:
        self.container = container
        self.process = process
        self.finish: Finish = lambda _: None
        self.pipe: Pipe | None = None
        self.timer: Timer | None = None
        self.late = False
        self._tail = b""

    def hear(self, data: bytes) -> None:
        """Keep the end of what it says."""
        self._tail = (self._tail + data)[-_TAIL:]

    def signal(self, number: int) -> None:
        """Signal it and its group, as a terminal would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL it and what descends from it."""
        tree.kill(self.process)

    def expire(self) -> None:
        """Its time is over."""
        self.late = True
        self.kill()

    def answer(self, end: End) -> protocol.Executed:
        """What the agent gets to know."""
        output = self._tail.decode(errors="replace")
        return {"ok": True, "code": end.code, "signal": end.signal, "timeout": self.late, "output": output}

    def close(self) -> None:
        """It has been reaped."""
        self.process.close()
        if self.timer is not None:
            self.timer.cancel()
        if self.pipe is not None:
            self.pipe.drain()


class Execs:
    """All of them, by pid."""

    def __init__(self, loop: Loop, runtime: Runtime, containers: Containers) -> None:
        self._loop, self._runtime, self._containers = loop, runtime, containers
        self._by_pid: dict[int, Exec] = {}

    def run(self, request: protocol.Exec, reply: Reply) -> None:
        """Run a command for the agent and reply when it has ended. Raises Refused."""
        pipe = Pipe(self._loop)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            one = self.enter(request, (null, pipe.entry, pipe.entry))
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(null)
        one.pipe = pipe
        pipe.open(one.hear)
        one.finish = lambda end: reply(one.answer(end))
        timeout = request.get("timeout")
        if timeout:
            one.timer = self._loop.later(timeout, one.expire)

    def enter(self, request: protocol.Exec, stdio: Stdio) -> Exec:
        """Start a command in a container. Raises Refused."""
        name = request["container"]
        tty = bool(request.get("tty"))
        process = self._runtime.enter(name, request["argv"], request.get("env"), request.get("cwd"), stdio, tty=tty)
        self._containers.join(name, process)
        one = self._by_pid[process.pid] = Exec(name, process)
        return one

    def end(self, end: End) -> bool:
        """A child has ended. True, and it is reaped, if it was one of these."""
        one = self._by_pid.pop(end.pid, None)
        if one is None:
            return False
        reap(end.pid)
        one.close()
        one.finish(end)
        return True

    def leave(self, container: str) -> None:
        """The container has ended, and so must they."""
        for one in self._by_pid.values():
            if one.container == container:
                one.kill()
