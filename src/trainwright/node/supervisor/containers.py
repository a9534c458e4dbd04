# SPDX-License-Identifier: Apache-2.0
"""The containers: starting one, passing its output to its log, and telling how it ended. `control` calls it.

An end is written to the journal; then what the process left is killed and its last words are read; then it is reaped;
and only then the agent hears of it.

Commands in a running container: probes and hooks that the agent asks for, and people's from `terminal`.

They are never the container's main process. They are killed with it, at their timeout, and when whoever asked is gone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainwright.node.supervisor import resource_limits, tree
from trainwright.node.supervisor.journal import Journal, LeaseDescriptors
from trainwright.node.supervisor.launch import NOT_POSSIBLE, Process, Runtime, StartRefused, Stdio
from trainwright.node.supervisor.logs import ContainerLog, OutputPipe
from trainwright.node.supervisor.loop import Loop, Timer
from trainwright.node.supervisor.resource_limits import CONTROLLERS, Cgroups, ContainerCgroup, remedy
from trainwright.node.supervisor.tree import ProcessEnd, reap_child

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Event, HowEnded, Limits, StartContainer

    Tell = Callable[[Event], None]

_TIDY = 0.1  # seconds until a cgroup that was busy is tried again
_MEASURED = "limits.memory is checked only once a second, and a container that exceeds it is killed then"
_NOT_ENFORCED = "limits.{} is not enforced"


class RunningContainer:
    """One that runs."""

    __slots__ = ("exceeded", "group", "log", "name", "pipe", "pod", "process")

    def __init__(self, name: str, pod: str, process: Process, pipe: OutputPipe, log: ContainerLog) -> None:
        self.name, self.pod, self.process, self.pipe, self.log = name, pod, process, pipe, log
        self.group: ContainerCgroup | None = None
        self.exceeded = False  # its memory limit, by measurement


class Containers:
    """All containers of this supervisor. `tell` sends an event to the agent."""

    def __init__(self, loop: Loop, runtime: Runtime, journal: Journal, tell: Tell, leases: LeaseDescriptors) -> None:
        self.running: dict[str, RunningContainer] = {}
        self.closing = False  # nothing is started any more
        self.rotate: tuple[int, int]
        self.stamps = False  # whether each line of a log begins with its time
        self.cgroups = Cgroups()
        self._by_pid: dict[int, RunningContainer] = {}
        self._loop, self._runtime, self._journal, self._tell = loop, runtime, journal, tell
        self.leases = leases
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._memory = resource_limits.MemoryWatch(loop, self._exceeded)
        self._told: set[str] = set()  # limits of which people know that no cgroup enforces them
        self._tidying = False

    def start(self, request: StartContainer) -> int:
        """Start a container; its pid. Raises Refused."""
        name = request["container"]
        if name in self._journal.entries:
            raise StartRefused(NOT_POSSIBLE, f'the container "{name}" was started before.')
        if self.closing:
            raise StartRefused(NOT_POSSIBLE, "the supervisor is about to end.")
        limits = request.get("limits") or {}
        group = self._group(limits)
        try:
            container = self._spawned(request, group)
        except BaseException:
            if group is not None:
                self._remove(group)
            raise
        self.running[name] = self._by_pid[container.process.pid] = container
        if limits.get("memory") and (group is None or "memory" in self.cgroups.refusals):
            self._memory.add(container.process.pid, name, int(limits["memory"]))
        self._journal.started(name, container.pod, container.process.pid)
        return container.process.pid

    def _spawned(self, request: StartContainer, group: ContainerCgroup | None) -> RunningContainer:
        name, path = request["container"], request["log"]
        inherited = self.leases.of(request.get("leases") or [])
        pipe = OutputPipe(self._loop)
        try:
            stdio = (self._null, pipe.entry, pipe.entry)
            entries = group.entries if group is not None else ()
            process = self._runtime.spawn(request, stdio, entries, inherited)
        except BaseException:
            pipe.close()
            raise
        log = ContainerLog(
            path,
            self.rotate,
            lambda why: self._notice(f"the log of {name} is cut short: {why} ({path})"),
            stamps=self.stamps,
        )
        pipe.open(log.write)
        container = RunningContainer(name, request["pod"], process, pipe, log)
        container.group = group
        return container

    def signal(self, name: str, number: int) -> None:
        """Signal the main process; one that has ended hears nothing any more. Raises Refused."""
        if name in self.running:
            self.running[name].process.send(number)
        elif name not in self._journal.entries:
            raise StartRefused(NOT_POSSIBLE, f'there is no container "{name}".')

    def kill(self, name: str) -> None:
        """SIGKILL the whole tree, if it still runs."""
        container = self.running.get(name)
        if container is None:
            return
        if container.group is not None:
            container.group.kill()
        self._runtime.kill(name)

    def kill_all(self) -> None:
        """SIGKILL every tree."""
        for name in [*self.running]:
            self.kill(name)

    def join(self, name: str, process: Process) -> None:
        """A process that entered the container is limited like it."""
        group = self.running[name].group
        if group is not None:
            group.add(process.pid)

    def of(self, pod: str) -> list[str]:
        """The containers of a pod that still run."""
        return [name for name, container in self.running.items() if container.pod == pod]

    def end(self, end: ProcessEnd) -> str | None:
        """A child has ended. Which container it was the main process of, or None; only then it is reaped here."""
        container = self._by_pid.pop(end.pid, None)
        if container is None:
            return None
        del self.running[container.name]
        self._memory.remove(end.pid)
        oom = container.exceeded or (container.group is not None and container.group.oom())
        how: HowEnded = {"code": end.code, "signal": end.signal, "oom": oom, "at": time.time()}
        if not self.closing:  # an end that we make is not the container's own
            self._journal.ended(container.name, how)
        self._runtime.ended(container.name)
        container.pipe.drain()
        container.log.close()
        reap_child(end.pid)
        container.process.close()
        if container.group is not None:
            container.group.kill()
            self._remove(container.group)
        self._tell({"event": "ended", "container": container.name, **how})
        return container.name

    def close(self) -> None:
        """Give everything back; nothing runs any more."""
        for container in self.running.values():
            container.pipe.close()
            container.log.close()
            container.process.close()
        os.close(self._null)
        self.cgroups.close()

    def _group(self, limits: Limits) -> ContainerCgroup | None:
        """A cgroup for the limits that it can enforce. Of each other limit people are told once."""
        asked = [name for name in CONTROLLERS if limits.get(name)]
        refusals, group = self.cgroups.refusals, None
        if any(name not in refusals for name in asked):
            try:
                group = self.cgroups.group(limits)
            except OSError as error:
                refusals = dict.fromkeys(asked, error.strerror or str(error))
        for name in asked:
            if name in refusals and name not in self._told:
                self._told.add(name)
                measured = name == "memory" and resource_limits.measurable()
                what = _MEASURED if measured else _NOT_ENFORCED.format(name)
                self._notice(f"{what}, since trainwright cannot make a cgroup for it: {refusals[name]}{remedy()}")
        return group

    def _exceeded(self, name: str) -> None:
        self.running[name].exceeded = True
        self.kill(name)

    def _remove(self, group: ContainerCgroup) -> None:
        self.cgroups.remove(group)
        self._tidy()

    def _tidy(self) -> None:
        if not self._tidying and self.cgroups.tidy():
            self._tidying = True
            self._loop.later(_TIDY, self._tidy_again)

    def _tidy_again(self) -> None:
        self._tidying = False
        self._tidy()

    def _notice(self, text: str) -> None:
        self._tell({"event": "notice", "text": text})


if TYPE_CHECKING:
    from trainwright.node.supervisor import protocol
    from trainwright.node.supervisor.control import Reply

_TAIL = 4096

Finish = Callable[[ProcessEnd], None]


class RunningExec:
    """One command that runs; `finish` is called when it has ended."""

    __slots__ = ("_tail", "container", "finish", "late", "pipe", "process", "timer")

    def __init__(self, container: str, process: Process) -> None:
        self.container = container
        self.process = process
        self.finish: Finish = lambda _: None
        self.pipe: OutputPipe | None = None
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

    def answer(self, end: ProcessEnd) -> protocol.Executed:
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


class ExecTable:
    """All of them, by pid."""

    def __init__(self, loop: Loop, runtime: Runtime, containers: Containers) -> None:
        self._loop, self._runtime, self._containers = loop, runtime, containers
        self._by_pid: dict[int, RunningExec] = {}

    def run(self, request: protocol.Exec, reply: Reply) -> None:
        """Run a command for the agent and reply when it has ended. Raises Refused."""
        pipe = OutputPipe(self._loop)
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

    def enter(self, request: protocol.Exec, stdio: Stdio) -> RunningExec:
        """Start a command in a container. Raises Refused."""
        name = request["container"]
        tty = bool(request.get("tty"))
        process = self._runtime.enter(name, request["argv"], request.get("env"), request.get("cwd"), stdio, tty=tty)
        self._containers.join(name, process)
        one = self._by_pid[process.pid] = RunningExec(name, process)
        return one

    def end(self, end: ProcessEnd) -> bool:
        """A child has ended. True, and it is reaped, if it was one of these."""
        one = self._by_pid.pop(end.pid, None)
        if one is None:
            return False
        reap_child(end.pid)
        one.close()
        one.finish(end)
        return True

    def leave(self, container: str) -> None:
        """The container has ended, and so must they."""
        for one in self._by_pid.values():
            if one.container == container:
                one.kill()
