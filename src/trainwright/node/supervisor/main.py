# SPDX-License-Identifier: Apache-2.0
"""What each request of the agent means: the verbs of the supervisor, for `control`. See `launch` for what is behind.

Asking for what is done already is no error: an agent that was killed asks again.

The supervisor process: `main` is what the agent starts, with its configuration as the only argument.

It builds the parts, says `ready`, and runs the loop until the agent hangs up (`orphans: end`) or SIGTERM; then nothing
is left of it. With `orphans: keep` it goes on alone, until nothing has run for a while and nobody has come back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainwright.jsonlines import SUPERVISOR_PROTOCOL, hello, mismatch
from trainwright.node.supervisor import launch, tree
from trainwright.node.supervisor.containers import Containers, ExecTable
from trainwright.node.supervisor.control import Control, LineSocket
from trainwright.node.supervisor.journal import Journal, LeaseDescriptors
from trainwright.node.supervisor.launch import Runtime, StartRefused
from trainwright.node.supervisor.logs import DEFAULT
from trainwright.node.supervisor.loop import Loop
from trainwright.node.supervisor.plain import ProcessRuntime
from trainwright.node.supervisor.terminal import ExecListener

if TYPE_CHECKING:
    from trainwright.node.supervisor import protocol
    from trainwright.node.supervisor.control import Reply

_OK: protocol.Done = {"ok": True}


class SupervisorService:
    """Answers to the verbs; `ended` is called by `main` when a container's main process has ended."""

    def __init__(self, runtime: Runtime, containers: Containers, execs: ExecTable, journal: Journal) -> None:
        self._runtime, self._containers, self._execs, self._journal = runtime, containers, execs, journal
        self._closing: dict[str, list[Reply]] = {}

    def register(self, control: Control) -> None:
        """Let the agent use the verbs."""
        pods = (self.open, self.start, self.signal, self.kill, self.exec, self.close)
        control.handlers = {verb.__name__: verb for verb in (*pods, self.list, self.forget, self.ping, self.leased)}

    def open(self, request: protocol.OpenPod, _: Reply) -> protocol.Done:
        """Make what the containers of a pod share."""
        self._runtime.open(request)
        return _OK

    def leased(self, request: protocol.Leased, _: Reply) -> protocol.Done:
        """Whether the locks of these devices are held here; refused while they are not."""
        self._containers.leases.of(request["devices"])
        return _OK

    def start(self, request: protocol.StartContainer, _: Reply) -> protocol.Started:
        """Start a container."""
        return {"ok": True, "pid": self._containers.start(request)}

    def signal(self, request: protocol.SignalContainer, _: Reply) -> protocol.Done:
        """Signal a container's main process."""
        self._containers.signal(request["container"], request["signal"])
        return _OK

    def kill(self, request: protocol.OneContainer, _: Reply) -> protocol.Done:
        """SIGKILL the whole tree of a container."""
        self._containers.kill(request["container"])
        return _OK

    def exec(self, request: protocol.Exec, reply: Reply) -> None:
        """Run a command in a container; answered when it has ended."""
        self._execs.run(request, reply)

    def close(self, request: protocol.OnePod, reply: Reply) -> protocol.Done | None:
        """Kill what is left of a pod and drop what its containers shared; answered when they have ended."""
        pod = request["pod"]
        left = self._containers.of(pod)
        if not left:
            self._runtime.close(pod)
            return _OK
        self._closing.setdefault(pod, []).append(reply)
        for container in left:
            self._containers.kill(container)
        return None

    def list(self, _: protocol.Request, __: Reply) -> protocol.Listed:
        """Every container whose end is not forgotten."""
        return {"ok": True, "containers": [*self._journal.entries.values()]}

    def forget(self, request: protocol.OneContainer, _: Reply) -> protocol.Done:
        """The agent has stored how a container ended. One that runs is not forgotten."""
        if request["container"] not in self._containers.running:
            self._journal.forget(request["container"])
        return _OK

    def ping(self, _: protocol.Request, __: Reply) -> protocol.Done:
        """Show that the supervisor answers."""
        return _OK

    def ended(self, container: str) -> None:
        """Its commands end with it, and a pod that waited for it can be closed."""
        self._execs.leave(container)
        for pod in [pod for pod in self._closing if not self._containers.of(pod)]:
            self._runtime.close(pod)
            for reply in self._closing.pop(pod):
                reply(_OK)


if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Config, Event, Ready

_A_TURN = 64  # ends; as with requests, the logs want to be read in between
_GRACE = 5.0  # seconds for processes to die of SIGKILL, when all must
_LINGER = 600.0  # seconds alone with nothing to do
_DEFECTS = 10  # notices of them
_REMEMBERED = 50  # notices, for an agent that comes back


class Supervisor:
    """The parts, and what holds them together."""

    def __init__(self, config: Config, lines: LineSocket, runtime: Runtime) -> None:
        self._config, self._runtime = config, runtime
        self._notices = [*runtime.notices]
        self._stopping = self._told_to = False
        self._defects = 0
        self._changed = True  # a child may have ended: look
        self._loop = Loop(self._defect)
        self._control = Control(self._loop, self._alone)
        self._journal = Journal(f"{config['folder']}/journal")
        leases = LeaseDescriptors(self._loop, config.get("leases"))
        self._containers = Containers(self._loop, runtime, self._journal, self._tell, leases)
        size, kept = config.get("rotate") or DEFAULT
        self._containers.rotate = size, kept
        self._containers.stamps = bool(config.get("stamps"))
        self._execs = ExecTable(self._loop, runtime, self._containers)
        self._service = SupervisorService(runtime, self._containers, self._execs, self._journal)
        self._service.register(self._control)
        self._entrance = ExecListener(self._loop, config["folder"], self._execs, self._attach)
        self._loop.tasks.insert(0, self._ends)
        self._attach(lines)

    def run(self) -> None:
        """Until all has ended; then clean up."""
        self._wake = _signals(self._terminated)
        self._loop.watch(self._wake.fileno(), self._woken)
        self._loop.run()
        self._runtime.stop()
        deadline = time.monotonic() + _GRACE
        while self._reaped() and time.monotonic() < deadline:
            time.sleep(0.002)
        self._control.flush()
        self._entrance.close()
        self._containers.close()
        self._journal.close()

    def _attach(self, lines: LineSocket) -> None:
        self._control.attach(lines)
        ready: Ready = {
            "event": "ready",
            **hello(SUPERVISOR_PROTOCOL),
            "runtime": self._config["runtime"],
            "cgroup": self._containers.cgroups.version,
            "outside": self._runtime.outside,
            "notices": self._notices,
        }
        self._control.tell(ready)

    def _tell(self, event: Event) -> None:
        if event["event"] == "notice":
            self._notices = [*self._notices, event["text"]][-_REMEMBERED:]
        self._control.tell(event)

    def _defect(self, error: Exception) -> None:
        sys.excepthook(type(error), error, error.__traceback__)
        self._defects += 1
        if self._defects <= _DEFECTS:
            self._tell({"event": "notice", "text": f"the supervisor met a defect and goes on: {error!r}"})
        else:
            time.sleep(0.01)  # one that repeats may not take a whole CPU

    def _alone(self) -> None:
        """The agent has gone."""
        if self._config.get("orphans") != "keep":
            self._finish()
        else:
            self._loop.later(self._config.get("linger", _LINGER), self._linger)

    def _linger(self) -> None:
        if self._control.attached:
            return
        if self._containers.running:
            self._loop.later(self._config.get("linger", _LINGER), self._linger)
        else:
            self._finish()

    def _finish(self) -> None:
        """End everything, and then the loop."""
        if not self._stopping:
            self._stopping = self._containers.closing = True
            self._loop.later(_GRACE, self._loop.stop)
        self._containers.kill_all()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
        self._changed = True
        if self._told_to:
            self._finish()

    def _terminated(self) -> None:
        """SIGTERM, which may come in the middle of anything: `_woken` acts on it."""
        self._told_to = True

    def _ends(self) -> bool:
        """Look after the children that have ended, some a turn."""
        strange = False
        for _ in range(_A_TURN if self._changed else 0):
            end = _next()
            if end is None:
                self._changed = False
                break
            strange = not self._known(end) or strange
        if strange:
            self._runtime.orphaned()
        if self._stopping and not self._containers.running:
            self._loop.stop()
        return self._changed

    def _known(self, end: tree.ProcessEnd) -> bool:
        """Report an end; False if nobody knows the process."""
        container = self._containers.end(end)
        if container is not None:
            self._service.ended(container)
            return True
        if self._execs.end(end):
            return True
        tree.reap_child(end.pid)
        return False

    def _reaped(self) -> bool:
        """Reap everything, after the loop. False: there is no child left."""
        try:
            end = tree.ended_child()
            while end is not None:
                self._known(end)
                end = tree.ended_child()
        except tree.NoChildren:
            return False
        self._runtime.orphaned()
        return True


def _next() -> tree.ProcessEnd | None:
    try:
        return tree.ended_child()
    except tree.NoChildren:
        return None


def _signals(terminated: Callable[[], None]) -> socket.socket:
    """Our signals; a socket that can be read after one. Handlers, not SIG_IGN: a new process would inherit that."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: terminated())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return ours


def _runtime(config: Config) -> Runtime:
    if config["runtime"] == "process":
        return ProcessRuntime(config)
    if config["runtime"] != "sandbox":
        raise StartRefused(128, f"expected the runtime `sandbox` or `process`, found {config['runtime']!r}.")
    from trainwright.node.supervisor.sandbox import SandboxRuntime  # noqa: PLC0415 - ctypes and more, for those who want it

    return SandboxRuntime(config)


def main() -> None:
    """Be a supervisor. The only argument is its configuration, as JSON."""
    config: Config = json.loads(sys.argv[1])
    os.set_inheritable(config["fd"], False)
    lines = LineSocket(socket.socket(fileno=config["fd"]))
    try:
        problem = mismatch(config, SUPERVISOR_PROTOCOL, "the agent", "the supervisor")
        if problem is not None:
            raise StartRefused(128, problem)
        launch.raise_descriptor_limit()
        supervisor = Supervisor(config, lines, _runtime(config))
    except Exception as error:
        lines.send({"event": "failed", "text": str(error) or type(error).__name__})
        lines.flush()
        sys.exit(3)
    if config.get("orphans") != "keep":
        tree.wake_without_parent()  # only now: a change of user namespace may undo it
    supervisor.run()
