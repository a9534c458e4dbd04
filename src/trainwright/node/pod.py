# SPDX-License-Identifier: Apache-2.0
"""The state of one pod and of its containers, and the pod status that follows from it.

`lifecycle` starts and stops the containers that are recorded here; `worker` decides at which time.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from trainwright.model.cause import SIGNALS
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS, CONTAINER_SCHEME, JOB_UID
from trainwright.model.units import parse_time, rfc3339
from trainwright.node import environment, submission
from trainwright.node.context import AgentContext, StatusReport
from trainwright.node.devices.pool import Granted
from trainwright.node.found import ContainerEnd
from trainwright.node.link import SupervisorLink
from trainwright.node.logs import log_path, without_timestamps
from trainwright.node.status import CREATING, INITIALIZING, ContainerView, PodFailure, StatusFacts, compose
from trainwright.node.supervisor.protocol import Notes
from trainwright.node.watches import object_key

DEFAULT_MESSAGE_PATH = "/dev/termination-log"
#: Limits of a termination message: bytes from the message file; bytes and lines from the end of the log, if the log
#: is used instead.
_MESSAGE_BYTES = 4096
_LOG_TAIL_BYTES = 2048
_LOG_TAIL_LINES = 80
_ADDRESS_IN_USE = "address already in use"
_ADDRESS_IN_USE_ADVICE = (
    'another process on this machine already listens on that port; "--runtime sandbox" gives every replica its own'
    " network"
)
_OWN_CONDITIONS = ("Initialized", "ContainersReady", "Ready")
_DEFAULT_GRACE_SECONDS = 30.0
_MAX_HOSTNAME_LENGTH = 63


class ContainerRecord(Struct, eq=False):
    """A container over all its restarts. `view` is what the pod status says about the container."""

    body: Body
    index: int
    init: bool
    view: ContainerView
    id: str = ""
    log: str = ""
    #: The file to which the container can write its termination message; empty: there is no such file.
    message_file: str = ""
    #: Whether the container has a process, or the supervisor was asked to start one.
    live: bool = False
    #: Events: the supervisor has answered the current start request, and the container has ended.
    start_answered: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    #: Seconds to wait before the next restart.
    backoff: float = 0.0
    #: The time at which the container was last started, by the event loop's clock and as RFC 3339.
    started_loop_time: float = 0.0
    started_at: str = ""
    #: The time at which the container has ended, by the event loop's clock.
    ended_loop_time: float = 0.0
    #: What an earlier agent has done with the container that still runs.
    notes: Notes = field(default_factory=Notes)
    #: Why the agent stops the container; empty if the agent does not stop it.
    stop_message: str = ""
    kill_timer: asyncio.TimerHandle | None = None

    @property
    def path(self) -> str:
        """The path of the container in the pod object."""
        return f"spec.{'initContainers' if self.init else 'containers'}[{self.index}]"

    @property
    def has_hooks_or_probes(self) -> bool:
        """Whether the agent runs hooks or probes while the container runs."""
        return any(map(self.body.get, ("lifecycle", "startupProbe", "readinessProbe", "livenessProbe")))

    def set_waiting(self, reason: str, message: str) -> bool:
        """Record why the container cannot be started now. Return whether the state has changed."""
        state = {"waiting": {"reason": reason, "message": message}}
        changed, self.view.state = self.view.state != state, state
        return changed

    def set_starting(self, container_id: str, now: datetime) -> None:
        """Record that the supervisor was asked to start the container under that ID."""
        self.id, self.started_loop_time, self.started_at = container_id, loop_time(), rfc3339(now)
        self.stop_message, self.notes = "", {}
        self.view.id = f"{CONTAINER_SCHEME}{container_id}"
        self.start_answered.clear()
        self.ended.clear()
        self.live = True

    def set_start_answered(self) -> None:
        """Record that the supervisor answered the start: the container runs, unless it has ended already."""
        if self.live:
            self.view.state = {"running": {"startedAt": self.started_at}}
            if not self.has_hooks_or_probes:
                self.view.ready = self.view.started = True
        self.start_answered.set()

    def set_terminated(self, end: ContainerEnd, reason: str, message: str) -> None:
        """Record the end of the container, and wake the tasks that wait for the end."""
        finished = datetime.fromtimestamp(end.at, UTC)
        state: dict[str, Any] = {
            "exitCode": end.code,
            "reason": reason,
            "startedAt": self.started_at or rfc3339(finished),
            # With microseconds, so that the first of several failures is known. A Kubernetes API server drops them.
            "finishedAt": finished.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "containerID": self.view.id,
        }
        if end.signal:
            state["signal"] = _linux_signal_number(end.signal)
        if message:
            state["message"] = message
        self.view.state = {"terminated": state}
        self.view.ready = self.view.started = False
        self.kill_at(None)
        self.live, self.ended_loop_time = False, loop_time()
        self.ended.set()

    def prepare_restart(self) -> None:
        """Count a restart and move the terminated state to `lastState`."""
        if "terminated" in self.view.state:
            self.view.last = self.view.state
        self.view.state = CREATING
        self.view.restarts += 1

    def kill_at(self, when: float | None, link: SupervisorLink | None = None) -> None:
        """Kill all processes of the container at that time of the event loop's clock; None cancels the kill."""
        if self.kill_timer is not None:
            self.kill_timer.cancel()
            self.kill_timer = None
        if when is not None and link is not None and self.live:
            loop = asyncio.get_running_loop()
            self.kill_timer = loop.call_at(when, lambda: link.kill({"container": self.id}))


class PodState:
    """One pod: its object, its containers, and the resources that the agent has given to the pod."""

    def __init__(self, body: Body, context: AgentContext) -> None:
        meta, spec = body["metadata"], body["spec"]
        self.body = body
        self.context = context
        self.uid: str = meta["uid"]
        self.key = object_key(body)
        inits = spec.get("initContainers") or ()
        self.inits = _records(inits, CREATING, init=True)
        self.mains = _records(spec["containers"], INITIALIZING if inits else CREATING, init=False)
        self.restart_policy: str = spec.get("restartPolicy") or "Always"
        self.hostname = str(spec.get("hostname") or meta["name"])[:_MAX_HOSTNAME_LENGTH].rstrip("-.")
        self.folder = f"{context.settings.folder}/pods/{self.uid}"
        #: The folder of the pod's job, which has its logs; in a private run, the folder of the run.
        self.job_folder = submission.folder_of(context.settings.folder, meta.get("annotations"))
        #: Whether the pod uses `folder`. If so, the agent removes `folder` with the pod.
        self.has_folder = False
        #: Whether the supervisor has opened the pod and must close it.
        self.opened = False
        #: Why the pod as a whole fails; None if it does not fail.
        self.failure: PodFailure | None = None
        #: Whether the agent has stopped the pod: no container is started any more, whatever the restart policy says.
        self.stopped = False
        #: The time at which the containers of a pod that is being stopped are killed, by the event loop's clock.
        self.kill_time: float | None = None
        #: The IDs of the pod's devices, by resource name.
        self.devices: Granted = {}
        #: The address that this agent has given to the pod; empty: the agent has given no address.
        self.assigned_address = ""
        #: The Secrets, ConfigMaps, claims and tokens that the containers were started with.
        self.sources: dict[tuple[str, str], Body | None] = {}
        #: The task that renews the tokens in the pod's files, if the pod has token files.
        self.token_refresh: asyncio.Task[None] | None = None
        self.report = StatusReport(self.key, self.uid, self._status)
        status: Body = body.get("status") or {}
        self.ended = status.get("phase") in ("Succeeded", "Failed")
        self.start_time = parse_time(status.get("startTime") or "") or context.clock.now()
        #: Whether an earlier agent has started containers of this pod.
        self.is_adopted = False

    @property
    def containers(self) -> list[ContainerRecord]:
        """All containers, in the order in which they start."""
        return [*self.inits, *self.mains] if self.inits else self.mains

    @property
    def has_own_network(self) -> bool:
        """Whether the pod has a network namespace of its own."""
        return self.context.settings.sandboxed and not self.body["spec"].get("hostNetwork")

    @property
    def address(self) -> str:
        """The pod's own address; the address of this machine if the pod has no address of its own."""
        if self.context.settings.kubelet:
            return self.assigned_address or self.context.settings.address
        reserved = (self.body["metadata"].get("annotations") or {}).get(ADDRESS)
        return str(reserved) if reserved else self.context.settings.address

    @property
    def grace_seconds(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        seconds = self.body["spec"].get("terminationGracePeriodSeconds")
        return _DEFAULT_GRACE_SECONDS if seconds is None else float(seconds)

    @property
    def job(self) -> str:
        """The UID of the pod's job, or of the pod if it has no job. Some notices are sent only once per job."""
        return str((self.body["metadata"].get("labels") or {}).get(JOB_UID) or self.uid)

    @property
    def facts(self) -> environment.PodFacts:
        """The facts that variables and files of the downward API need and that the pod object does not have."""
        settings = self.context.settings
        return environment.PodFacts(settings.node, self.address, settings.address, settings.offered)

    def log_path(self, container: ContainerRecord, restarts: int) -> str:
        """The path of the log that the container writes after that many restarts."""
        return log_path(self.job_folder, self.key.name, self.uid, container.view.name, restarts)

    def submission(self) -> submission.Submission:
        """What the shell of the user adds to this pod. Raises EngineError if the file of the job cannot be read."""
        settings = self.context.settings
        found = submission.read(self.job_folder) if self.job_folder != settings.folder else None
        return found or submission.Submission(settings.cwd, settings.passed, settings.env, settings.visible)

    def mark_changed(self) -> None:
        """Tell the status writer to write the pod's status after a short delay."""
        self.context.reports.mark(self.report)

    def container_ended(self, container: ContainerRecord, end: ContainerEnd) -> None:
        """Record that the process of a container has ended."""
        reason = "OOMKilled" if end.oom else "Error" if end.code else "Completed"
        settings = self.context.settings
        message = _termination_message(container, end, sandboxed=settings.sandboxed, stamped=settings.kubelet)
        container.set_terminated(end, reason, message or container.stop_message)
        self.mark_changed()

    def note(self, container: ContainerRecord, notes: Notes) -> None:
        """Let the supervisor remember what this agent does with a container, if the supervisor outlives this agent."""
        if self.context.settings.orphans == "keep":
            self.context.link.note({"container": container.id, "notes": notes})

    def kill_by(self, when: float) -> None:
        """Kill the containers at that time of the event loop's clock, unless an earlier time is set already."""
        if self.kill_time is None or when < self.kill_time:
            self.kill_time = when
            for container in self.containers:
                container.kill_at(when, self.context.link)

    def _status(self) -> dict[str, Any]:
        settings = self.context.settings
        failure = self.failure if self.ended else None  # the status shows a failure only after the pod has ended
        # An agent that replaces a kubelet assigns the pod's own address when the pod starts. Before that, the status
        # has no address. The engine reserves the address of a pod earlier.
        address = self.address if self.assigned_address or not self.has_own_network or not settings.kubelet else ""
        policy, start, host = self.restart_policy, rfc3339(self.start_time), settings.address
        facts = StatusFacts(policy, start, address, host, failure, self.stopped, settings.kubelet)
        # `self.body` comes from the watch, which perhaps does not have the conditions that this agent wrote last.
        written = [one for one in (self.report.stored or {}).get("conditions", ()) if one["type"] in _OWN_CONDITIONS]
        conditions = [*((self.body.get("status") or {}).get("conditions") or ()), *written]
        now = rfc3339(self.context.clock.now())
        return compose(facts, [one.view for one in self.inits], [one.view for one in self.mains], conditions, now)


def _records(bodies: Sequence[Body], state: Body, *, init: bool) -> list[ContainerRecord]:
    views = [ContainerView(one["name"], state, one.get("image") or "") for one in bodies]
    return [ContainerRecord(body, index, init, views[index]) for index, body in enumerate(bodies)]


def loop_time() -> float:
    """The time of the event loop's clock, in seconds."""
    return asyncio.get_running_loop().time()


def _linux_signal_number(number: int) -> int:
    """Translate a signal number of this platform to Linux, since readers of a status know only Linux numbers."""
    name = next((one.name for one in signal.Signals if one == number), "")  # most real-time signals have no name
    return next((known for known, one in SIGNALS.items() if one == name), number)


def _termination_message(container: ContainerRecord, end: ContainerEnd, *, sandboxed: bool, stamped: bool) -> str:
    """What the container wrote to its terminationMessagePath, else the end of its log if its policy allows that."""
    message = _read_tail(container.message_file, _MESSAGE_BYTES) if container.message_file else ""
    if message or not end.code:
        return message
    uses_log = container.body.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    if not uses_log and sandboxed:
        return ""
    tail = _read_tail(container.log, _LOG_TAIL_BYTES)
    tail = without_timestamps(tail) if stamped else tail
    if not sandboxed and _ADDRESS_IN_USE in tail.lower():
        return f"Address already in use: {_ADDRESS_IN_USE_ADVICE}"
    return "\n".join(tail.splitlines()[-_LOG_TAIL_LINES:]) if uses_log else ""


def _read_tail(path: str, limit: int) -> str:
    """The last `limit` bytes of a file; empty if there is no file."""
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit))
        return file.read(limit).decode(errors="replace")
    return ""
