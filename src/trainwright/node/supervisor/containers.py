# SPDX-License-Identifier: Apache-2.0
"""The running containers of the supervisor, and the commands that run inside them.

When the main process of a container ends, the supervisor writes the exit status to the journal, kills the other
processes of the container, reads the container's last output, reaps the main process, and only then tells the agent.

Commands come from the agent (probes and hooks) and from `trainwright exec`. The supervisor kills a command when the
container ends, when the command's timeout ends, and when the client that sent the command disconnects.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainwright.node.supervisor import resource_limits, tree
from trainwright.node.supervisor.journal import Journal, LeaseDescriptors
from trainwright.node.supervisor.launch import Descriptors, Process, Runtime, StartRefused, join_cgroups
from trainwright.node.supervisor.logs import ContainerLog, OutputPipe
from trainwright.node.supervisor.loop import Loop, Timer
from trainwright.node.supervisor.resource_limits import CONTROLLERS, Cgroups, ContainerCgroup, remedy
from trainwright.node.supervisor.tree import ProcessEnd, reap_child

if TYPE_CHECKING:
    from trainwright.node.supervisor import protocol
    from trainwright.node.supervisor.control import Reply

    SendEvent = Callable[[protocol.Event], None]

_CGROUP_RETRY_SECONDS = 0.1  # the pause until the supervisor tries again to remove a busy cgroup
_OUTPUT_TAIL_BYTES = 4096
_MEASURED = "limits.memory is checked only once a second, and a container that exceeds it is killed then"
_NOT_ENFORCED = "limits.{} is not enforced"


class RunningContainer:
    """A container whose main process has not been reaped."""

    __slots__ = ("exceeded_memory", "group", "log", "name", "pipe", "pod", "process")

    def __init__(
        self,
        request: protocol.StartContainer,
        process: Process,
        pipe: OutputPipe,
        log: ContainerLog,
        group: ContainerCgroup,
    ) -> None:
        self.name, self.pod = request["container"], request["pod"]
        self.process, self.pipe, self.log, self.group = process, pipe, log, group
        self.exceeded_memory = False  # True: MemoryWatch found that the container used more than its memory limit


class Containers:
    """All containers of this supervisor. `send` sends an event to the agent."""

    def __init__(
        self, loop: Loop, runtime: Runtime, journal: Journal, send: SendEvent, leases: LeaseDescriptors
    ) -> None:
        self.running: dict[str, RunningContainer] = {}
        self.closing = False  # True: new containers are refused
        self.rotate: tuple[int, int]
        self.stamps = False  # whether each line of a log begins with its time
        self.cgroups = Cgroups()
        self._by_pid: dict[int, RunningContainer] = {}
        self._loop, self._runtime, self._journal, self._send = loop, runtime, journal, send
        self.leases = leases
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._memory = resource_limits.MemoryWatch(loop, self._kill_over_limit)
        self._noticed: set[str] = set()  # limits that no cgroup enforces; the agent already has a notice of each
        self._removal_scheduled = False

    def start(self, request: protocol.StartContainer) -> int:
        """Start a container and return its pid. Raises StartRefused."""
        name = request["container"]
        if name in self._journal.entries:
            raise StartRefused(f'the container "{name}" was started before.')
        if self.closing:
            raise StartRefused("the supervisor is about to end.")
        limits = request.get("limits") or {}
        group = self._make_group(limits)
        if "restart" in request:
            self._journal.starting(request)
        try:
            container = self._spawn(request, group)
        except BaseException:
            self._remove_group(group)
            self._journal.forget(name)
            raise
        self.running[name] = self._by_pid[container.process.pid] = container
        if limits.get("memory") and (not group.folders or "memory" in self.cgroups.refusals):
            self._memory.add(container.process.pid, name, int(limits["memory"]))
        self._journal.started(name, container.pod, container.process.pid)
        return container.process.pid

    def _spawn(self, request: protocol.StartContainer, group: ContainerCgroup) -> RunningContainer:
        name, path = request["container"], request["log"]
        inherited = self.leases.of(request.get("leases") or [])
        pipe = OutputPipe(self._loop)
        try:
            fds = Descriptors(self._null, pipe.write_end, pipe.write_end, entries=group.entries, inherited=inherited)
            process = self._runtime.spawn(request, fds)
        except BaseException:
            pipe.close()
            raise
        log = ContainerLog(
            path,
            self.rotate,
            lambda reason: self._notice(f"the log of {name} is incomplete: {reason} ({path})"),
            stamps=self.stamps,
        )
        pipe.open(log.write)
        return RunningContainer(request, process, pipe, log, group)

    def signal(self, name: str, number: int) -> None:
        """Signal the main process, unless it has ended. Raises StartRefused for an unknown container."""
        if name in self.running:
            self.running[name].process.send(number)
        elif name not in self._journal.entries:
            raise StartRefused(f'there is no container "{name}".')

    def kill(self, name: str) -> None:
        """SIGKILL all processes of a container, if it still runs."""
        if name in self.running:
            self.running[name].group.kill()
            self._runtime.kill(name)

    def of(self, pod: str) -> list[str]:
        """The containers of a pod that still run."""
        return [name for name, container in self.running.items() if container.pod == pod]

    def end(self, end: ProcessEnd) -> str | None:
        """Handle the end of a main process, reap the process and return its container; None for any other process."""
        container = self._by_pid.pop(end.pid, None)
        if container is None:
            return None
        del self.running[container.name]
        self._memory.remove(end.pid)
        oom = container.exceeded_memory or container.group.oom()
        status: protocol.ExitStatus = {"code": end.code, "signal": end.signal, "oom": oom, "at": time.time()}
        if not self.closing:  # a closing supervisor kills its containers, and does not record their ends
            self._journal.ended(container.name, status)
        self._runtime.ended(container.name)
        container.pipe.drain()
        container.log.close()
        reap_child(end.pid)
        container.process.close()
        container.group.kill()
        self._remove_group(container.group)
        self._send({"event": "ended", "container": container.name, **status})
        return container.name

    def close(self) -> None:
        """Release all descriptors and cgroups, after all processes have ended."""
        for container in self.running.values():
            container.pipe.close()
            container.log.close()
            container.process.close()
        os.close(self._null)
        self.cgroups.close()

    def _make_group(self, limits: protocol.Limits) -> ContainerCgroup:
        """Create a cgroup for the limits that a cgroup can enforce. For each other limit, send one notice."""
        wanted = [name for name in CONTROLLERS if limits.get(name)]
        refusals, group = self.cgroups.refusals, ContainerCgroup([])
        if any(name not in refusals for name in wanted):
            try:
                group = self.cgroups.group(limits)
            except OSError as error:
                refusals = dict.fromkeys(wanted, error.strerror or str(error))
        for name in wanted:
            if name in refusals and name not in self._noticed:
                self._noticed.add(name)
                measured = name == "memory" and resource_limits.measurable()
                text = _MEASURED if measured else _NOT_ENFORCED.format(name)
                self._notice(f"{text}, since trainwright cannot make a cgroup for it: {refusals[name]}{remedy()}")
        return group

    def _kill_over_limit(self, name: str) -> None:
        self.running[name].exceeded_memory = True
        self.kill(name)

    def _remove_group(self, group: ContainerCgroup) -> None:
        if self.cgroups.remove(group) and not self._removal_scheduled:
            self._retry_removal()

    def _retry_removal(self) -> None:
        self._removal_scheduled = self.cgroups.remove_leftovers()
        if self._removal_scheduled:
            self._loop.later(_CGROUP_RETRY_SECONDS, self._retry_removal)

    def _notice(self, text: str) -> None:
        self._send({"event": "notice", "text": text})


class RunningExec:
    """A command that runs in a container. `finish` is called when the command has ended."""

    __slots__ = ("_tail", "container", "finish", "pipe", "process", "timed_out", "timer")

    def __init__(self, container: str, process: Process) -> None:
        self.container = container
        self.process = process
        self.finish: Callable[[ProcessEnd], None] = lambda _: None
        self.pipe: OutputPipe | None = None
        self.timer: Timer | None = None
        self.timed_out = False
        self._tail = b""

    def keep_tail(self, data: bytes) -> None:
        """Keep the last bytes of the output."""
        self._tail = (self._tail + data)[-_OUTPUT_TAIL_BYTES:]

    def signal(self, number: int) -> None:
        """Signal all processes in the command's process group, as a terminal does after Ctrl-C."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL the command and its descendants."""
        tree.kill(self.process)

    def expire(self) -> None:
        """Kill the command at its timeout."""
        self.timed_out = True
        self.kill()

    def answer(self, end: ProcessEnd) -> protocol.Executed:
        """The answer for the agent."""
        output = self._tail.decode(errors="replace")
        return {"ok": True, "code": end.code, "signal": end.signal, "timeout": self.timed_out, "output": output}

    def close(self) -> None:
        """Release the command's resources after it has been reaped."""
        self.process.close()
        if self.timer is not None:
            self.timer.cancel()
        if self.pipe is not None:
            self.pipe.drain()


class ExecTable:
    """All commands that run in containers, by pid."""

    def __init__(self, loop: Loop, runtime: Runtime, containers: Containers) -> None:
        self._loop, self._runtime, self._containers = loop, runtime, containers
        self._by_pid: dict[int, RunningExec] = {}

    def run(self, request: protocol.Exec, reply: Reply) -> None:
        """Run a command for the agent and reply when it has ended. Raises StartRefused."""
        pipe = OutputPipe(self._loop)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            command = self.enter(request, Descriptors(null, pipe.write_end, pipe.write_end))
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(null)
        command.pipe = pipe
        pipe.open(command.keep_tail)
        command.finish = lambda end: reply(command.answer(end))
        timeout = request.get("timeout")
        if timeout:
            command.timer = self._loop.later(timeout, command.expire)

    def enter(self, request: protocol.Exec, fds: Descriptors) -> RunningExec:
        """Start a command in a container, with the container's limits. Raises StartRefused."""
        name = request["container"]
        process = self._runtime.enter(request, fds)
        join_cgroups(process.pid, self._containers.running[name].group.entries)
        command = self._by_pid[process.pid] = RunningExec(name, process)
        return command

    def end(self, end: ProcessEnd) -> bool:
        """Reap a command that has ended and return True; False for any other process."""
        command = self._by_pid.pop(end.pid, None)
        if command is None:
            return False
        reap_child(end.pid)
        command.close()
        command.finish(end)
        return True

    def kill_in(self, container: str) -> None:
        """Kill all commands of a container that has ended."""
        for command in self._by_pid.values():
            if command.container == container:
                command.kill()
