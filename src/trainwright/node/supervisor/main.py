# SPDX-License-Identifier: Apache-2.0
"""The supervisor process: `main` is its entry point, with the configuration as the only argument.

The supervisor builds its parts, sends `ready`, and runs the loop until the agent disconnects (`orphans: end`) or until
SIGTERM; then it ends all containers. With `orphans: keep` it continues without an agent, and ends when a periodic check
finds that no container runs and no agent is connected. Its journal stays for the next agent. An agent that takes over
from another agent must prove that it has the lock of the folder (`identity`), so two agents never command a supervisor.

`SupervisorService` implements the verbs of the protocol. A repeated request is no error, because an agent that was
killed and started again repeats its requests.
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

from trainwright import open_files
from trainwright.jsonlines import SUPERVISOR_PROTOCOL, hello, mismatch
from trainwright.node.supervisor import tree
from trainwright.node.supervisor.containers import Containers, ExecTable
from trainwright.node.supervisor.control import Control, LineSocket
from trainwright.node.supervisor.journal import Journal, LeaseDescriptors
from trainwright.node.supervisor.launch import Runtime, StartRefused
from trainwright.node.supervisor.logs import DEFAULT_ROTATION
from trainwright.node.supervisor.loop import Loop
from trainwright.node.supervisor.plain import ProcessRuntime
from trainwright.node.supervisor.terminal import ExecListener

if TYPE_CHECKING:
    from trainwright.node.supervisor import protocol
    from trainwright.node.supervisor.control import Reply

_ENDS_PER_TURN = 64  # at most this many ended children per turn: the loop must read logs between turns
_KILL_SECONDS = 5.0  # the time that processes have to end after SIGKILL, when the supervisor ends
#: Seconds between two checks of a supervisor that keeps orphans and has no agent: it ends if no container runs.
_LINGER_SECONDS = 600.0
_MAX_DEFECT_NOTICES = 10
_MAX_KEPT_NOTICES = 50  # the newest notices are kept for an agent that connects later
_OK: protocol.Done = {"ok": True}


def main() -> None:
    """Run a supervisor. The only argument is its configuration, as JSON."""
    config: protocol.Config = json.loads(sys.argv[1])
    keep = config.get("orphans") == "keep"
    os.set_inheritable(config["fd"], False)
    lines = LineSocket(socket.socket(fileno=config["fd"]))
    try:
        problem = mismatch(config, SUPERVISOR_PROTOCOL, "the agent", "the supervisor")
        if problem is not None:
            raise StartRefused(problem)
        if keep:
            from trainwright.node.supervisor import identity  # noqa: PLC0415 - `trainwright run` does not need it

            identity.settle(config["folder"], config["runtime"])  # the lock is held until this process ends
        open_files.raise_limit()
        supervisor = Supervisor(config, lines, _make_runtime(config))
    except Exception as error:
        lines.send({"event": "failed", "text": str(error) or type(error).__name__})
        lines.flush()
        sys.exit(3)
    if not keep:
        tree.wake_without_parent()  # after `_make_runtime`: entering a user namespace would undo this call
    supervisor.run()


def _make_runtime(config: protocol.Config) -> Runtime:
    if config["runtime"] == "process":
        return ProcessRuntime(config)
    if config["runtime"] != "sandbox":
        raise StartRefused(f"expected the runtime `sandbox` or `process`, found {config['runtime']!r}.")
    from trainwright.node.supervisor.sandbox import SandboxRuntime  # noqa: PLC0415 - slow to import, because of ctypes

    return SandboxRuntime(config)


class Supervisor:
    """All parts of the supervisor, and the rules for when it ends."""

    def __init__(self, config: protocol.Config, lines: LineSocket, runtime: Runtime) -> None:
        self._config, self._runtime = config, runtime
        self._keep = config.get("orphans") == "keep"
        self._notices = [*runtime.notices]
        self._stopping = self._terminate_requested = False
        self._defects = 0
        self._check_children = True  # whether a child may have ended
        self._loop = Loop(self._report_defect)
        self._control = Control(self._loop, self._agent_lost)
        self._journal = Journal(f"{config['folder']}/journal")
        self._leases = LeaseDescriptors(self._loop, config.get("leases"))
        self._containers = Containers(self._loop, runtime, self._journal, self._send, self._leases)
        size, count = config.get("rotate") or DEFAULT_ROTATION
        self._containers.rotate = size, count
        self._containers.stamps = bool(config.get("stamps"))
        self._execs = ExecTable(self._loop, runtime, self._containers)
        self._service = SupervisorService(self._control, runtime, self._containers, self._execs, self._journal)
        self._listener = ExecListener(self._loop, config["folder"], self._execs, self._attach_again)
        self._loop.tasks.insert(0, self._handle_ends)
        self._attach(lines)

    def run(self) -> None:
        """Run until all containers have ended, then clean up."""
        self._wakeup = _install_signal_handlers(self._request_terminate)
        self._loop.watch(self._wakeup.fileno(), self._signalled)
        self._loop.run()
        self._runtime.stop()
        deadline = time.monotonic() + _KILL_SECONDS
        while self._reap_all() and time.monotonic() < deadline:
            time.sleep(0.002)
        self._control.flush()
        self._listener.close()
        self._containers.close()
        self._journal.close()

    def _attach_again(self, lines: LineSocket, request: protocol.Attach) -> None:
        """Let another agent take over. Raises StartRefused if the first agent may still be there."""
        if self._stopping:
            raise StartRefused("the supervisor is about to end.")
        fds = lines.fds
        if self._keep and self._control.attached:
            from trainwright.node.supervisor import identity  # noqa: PLC0415 - `trainwright run` does not need it

            if not fds or not identity.proves_agent(self._config["folder"], fds[0]):
                raise StartRefused("another agent commands this supervisor.")
        self._loop.unwatch(lines.fileno())
        if request.get("leases") and len(fds) > 1:
            self._leases.attach(fds.pop(1))
        lines.close_fds()  # the lock must end with the agent
        self._attach(lines)

    def _attach(self, lines: LineSocket) -> None:
        self._control.attach(lines)
        ready: protocol.Ready = {
            "event": "ready",
            "protocol": SUPERVISOR_PROTOCOL,
            "version": hello(SUPERVISOR_PROTOCOL)["version"],
            "runtime": self._config["runtime"],
            "cgroup": self._containers.cgroups.version,
            "outside": self._runtime.outside,
            "notices": self._notices,
        }
        if self._keep:
            ready["pid"], ready["start"] = os.getpid(), tree.start_time(os.getpid()) or ""
        self._control.send(ready)

    def _send(self, event: protocol.Event) -> None:
        if event["event"] == "notice":
            self._notices = [*self._notices, event["text"]][-_MAX_KEPT_NOTICES:]
        self._control.send(event)

    def _report_defect(self, error: Exception) -> None:
        sys.excepthook(type(error), error, error.__traceback__)
        self._defects += 1
        if self._defects <= _MAX_DEFECT_NOTICES:
            self._send({"event": "notice", "text": f"the supervisor met a defect and goes on: {error!r}"})
        else:
            time.sleep(0.01)  # a repeated defect must not use a whole CPU

    def _agent_lost(self) -> None:
        if not self._keep:
            self._finish()
        else:
            self._loop.later(self._config.get("linger", _LINGER_SECONDS), self._end_if_idle)

    def _end_if_idle(self) -> None:
        if not self._control.attached and self._containers.running:
            self._agent_lost()
        elif not self._control.attached:
            self._finish()

    def _finish(self) -> None:
        """Kill all containers, and stop the loop when they have ended."""
        if not self._stopping:
            self._stopping = self._containers.closing = True
            self._loop.later(_KILL_SECONDS, self._loop.stop)
        for name in [*self._containers.running]:
            self._containers.kill(name)

    def _signalled(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)
        self._check_children = True
        if self._terminate_requested:
            self._finish()

    def _request_terminate(self, *_: object) -> None:
        """Handle SIGTERM. It may interrupt any code, so this method only sets a flag; `_signalled` acts on the flag."""
        self._terminate_requested = True

    def _handle_ends(self) -> bool:
        """Handle children that have ended, a bounded number per turn."""
        found_unknown = False
        for _ in range(_ENDS_PER_TURN if self._check_children else 0):
            try:
                end = tree.ended_child()
            except ChildProcessError:  # there are no children
                end = None
            if end is None:
                self._check_children = False
                break
            found_unknown = not self._handle_end(end) or found_unknown
        if found_unknown:
            self._runtime.orphaned()
        if self._stopping and not self._containers.running:
            self._loop.stop()
        return self._check_children

    def _handle_end(self, end: tree.ProcessEnd) -> bool:
        """Report and reap a child. False: the child is neither a container's main process nor a command."""
        container = self._containers.end(end)
        if container is not None:
            self._service.container_ended(container)
            return True
        if self._execs.end(end):
            return True
        tree.reap_child(end.pid)
        return False

    def _reap_all(self) -> bool:
        """After the loop has stopped, reap all children that have ended. False: no child is left."""
        try:
            while (end := tree.ended_child()) is not None:
                self._handle_end(end)
        except ChildProcessError:
            return False
        self._runtime.orphaned()
        return True


def _install_signal_handlers(terminated: Callable[..., None]) -> socket.socket:
    """Return a socket that is readable after a signal. No signal is set to SIG_IGN: new processes would inherit it."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, terminated)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return ours


class SupervisorService:
    """The verbs of the protocol: one method per verb. `protocol` describes the requests."""

    def __init__(
        self, control: Control, runtime: Runtime, containers: Containers, execs: ExecTable, journal: Journal
    ) -> None:
        self._runtime, self._containers, self._execs, self._journal = runtime, containers, execs, journal
        self._opened: set[str] = set()
        self._closing: dict[str, list[Reply]] = {}
        control.handlers = {
            "open": self._open,
            "start": self._start,
            "signal": self._signal,
            "kill": self._kill,
            "exec": execs.run,
            "close": self._close,
            "list": lambda _, __: {"ok": True, "containers": [*journal.entries.values()], "pods": [*self._opened]},
            "note": self._note,
            "forget": self._forget,
            "ping": lambda _, __: _OK,
            "leased": self._leased,
        }

    def _open(self, request: protocol.OpenPod, _: Reply) -> protocol.Done:
        self._runtime.open(request)
        self._opened.add(request["pod"])
        return _OK

    def _note(self, request: protocol.NoteContainer, _: Reply) -> protocol.Done:
        self._journal.note(request["container"], request["notes"])
        return _OK

    def _leased(self, request: protocol.Leased, _: Reply) -> protocol.Done:
        self._containers.leases.of(request["devices"])
        return _OK

    def _start(self, request: protocol.StartContainer, _: Reply) -> protocol.Started:
        return {"ok": True, "pid": self._containers.start(request)}

    def _signal(self, request: protocol.SignalContainer, _: Reply) -> protocol.Done:
        self._containers.signal(request["container"], request["signal"])
        return _OK

    def _kill(self, request: protocol.ContainerRequest, _: Reply) -> protocol.Done:
        self._containers.kill(request["container"])
        return _OK

    def _close(self, request: protocol.PodRequest, reply: Reply) -> protocol.Done | None:
        """Kill the containers of a pod. When they have ended, release what they shared, and answer."""
        pod = request["pod"]
        running = self._containers.of(pod)
        if not running:
            self._release(pod)
            return _OK
        self._closing.setdefault(pod, []).append(reply)
        for container in running:
            self._containers.kill(container)
        return None

    def _release(self, pod: str) -> None:
        self._runtime.close(pod)
        self._opened.discard(pod)

    def _forget(self, request: protocol.ContainerRequest, _: Reply) -> protocol.Done:
        """Remove a container from the journal, because the agent has its exit status. Ignore a running container."""
        if request["container"] not in self._containers.running:
            self._journal.forget(request["container"])
        return _OK

    def container_ended(self, container: str) -> None:
        """Kill the commands of a container that has ended, and close pods that waited for its end."""
        self._execs.kill_in(container)
        for pod in [pod for pod in self._closing if not self._containers.of(pod)]:
            self._release(pod)
            for reply in self._closing.pop(pod):
                reply(_OK)
