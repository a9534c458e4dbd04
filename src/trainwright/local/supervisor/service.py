# SPDX-License-Identifier: Apache-2.0
"""What each request of the agent means: the verbs of the supervisor, for `control`. See `runtimes` for what is behind.

Asking for what is done already is no error: an agent that was killed asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.local.supervisor.containers import Containers
from trainwright.local.supervisor.control import Control
from trainwright.local.supervisor.execs import Execs
from trainwright.local.supervisor.journal import Journal
from trainwright.local.supervisor.runtimes import Runtime

if TYPE_CHECKING:
    from trainwright.local.supervisor import protocol
    from trainwright.local.supervisor.control import Reply

_OK: protocol.Done = {"ok": True}


class Service:
    """Answers to the verbs; `ended` is called by `main` when a container's main process has ended."""

    def __init__(self, runtime: Runtime, containers: Containers, execs: Execs, journal: Journal) -> None:
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
