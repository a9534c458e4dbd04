# SPDX-License-Identifier: Apache-2.0
"""The containers: starting one, passing its output to its log, and telling how it ended. `control` calls it.

An end is written to the journal; then what the process left is killed and its last words are read; then it is reaped;
and only then the agent hears of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainwright.local.supervisor import memory
from trainwright.local.supervisor.cgroups import CONTROLLERS, Cgroups, Group, remedy
from trainwright.local.supervisor.children import End, reap
from trainwright.local.supervisor.journal import Journal
from trainwright.local.supervisor.launch import NOT_POSSIBLE
from trainwright.local.supervisor.leases import LeaseDescriptors
from trainwright.local.supervisor.logs import Log
from trainwright.local.supervisor.loop import Loop
from trainwright.local.supervisor.pipes import Pipe
from trainwright.local.supervisor.runtimes import Process, Refused, Runtime

if TYPE_CHECKING:
    from trainwright.local.supervisor.protocol import Event, HowEnded, Limits, StartContainer

    Tell = Callable[[Event], None]

_TIDY = 0.1  # seconds until a cgroup that was busy is tried again
_MEASURED = "limits.memory is checked only once a second, and a container that exceeds it is killed then"
_NOT_ENFORCED = "limits.{} is not enforced"


class Container:
    """One that runs."""

    __slots__ = ("exceeded", "group", "log", "name", "pipe", "pod", "process")

    def __init__(self, name: str, pod: str, process: Process, pipe: Pipe, log: Log) -> None:
        self.name, self.pod, self.process, self.pipe, self.log = name, pod, process, pipe, log
        self.group: Group | None = None
        self.exceeded = False  # its memory limit, by measurement


class Containers:
    """All containers of this supervisor. `tell` sends an event to the agent."""

    def __init__(self, loop: Loop, runtime: Runtime, journal: Journal, tell: Tell, leases: LeaseDescriptors) -> None:
        self.running: dict[str, Container] = {}
        self.closing = False  # nothing is started any more
        self.rotate: tuple[int, int]
        self.stamps = False  # whether each line of a log begins with its time
        self.cgroups = Cgroups()
        self._by_pid: dict[int, Container] = {}
        self._loop, self._runtime, self._journal, self._tell = loop, runtime, journal, tell
        self.leases = leases
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._memory = memory.MemoryWatch(loop, self._exceeded)
        self._told: set[str] = set()  # limits of which people know that no cgroup enforces them
        self._tidying = False

    def start(self, request: StartContainer) -> int:
        """Start a container; its pid. Raises Refused."""
        name = request["container"]
        if name in self._journal.entries:
            raise Refused(NOT_POSSIBLE, f'the container "{name}" was started before.')
        if self.closing:
            raise Refused(NOT_POSSIBLE, "the supervisor is about to end.")
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

    def _spawned(self, request: StartContainer, group: Group | None) -> Container:
        name, path = request["container"], request["log"]
        inherited = self.leases.of(request.get("leases") or [])
        pipe = Pipe(self._loop)
        try:
            stdio = (self._null, pipe.entry, pipe.entry)
            entries = group.entries if group is not None else ()
            process = self._runtime.spawn(request, stdio, entries, inherited)
        except BaseException:
            pipe.close()
            raise
        log = Log(
            path,
            self.rotate,
            lambda why: self._notice(f"the log of {name} is cut short: {why} ({path})"),
            stamps=self.stamps,
        )
        pipe.open(log.write)
        container = Container(name, request["pod"], process, pipe, log)
        container.group = group
        return container

    def signal(self, name: str, number: int) -> None:
        """Signal the main process; one that has ended hears nothing any more. Raises Refused."""
        if name in self.running:
            self.running[name].process.send(number)
        elif name not in self._journal.entries:
            raise Refused(NOT_POSSIBLE, f'there is no container "{name}".')

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

    def end(self, end: End) -> str | None:
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
        reap(end.pid)
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

    def _group(self, limits: Limits) -> Group | None:
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
                measured = name == "memory" and memory.measurable()
                what = _MEASURED if measured else _NOT_ENFORCED.format(name)
                self._notice(f"{what}, since trainwright cannot make a cgroup for it: {refusals[name]}{remedy()}")
        return group

    def _exceeded(self, name: str) -> None:
        self.running[name].exceeded = True
        self.kill(name)

    def _remove(self, group: Group) -> None:
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
