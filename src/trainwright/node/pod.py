# SPDX-License-Identifier: Apache-2.0
"""One container of a pod in an agent's charge: what it asks for, how it is, and when its process is to be killed.

A container's last words: what it left at its terminationMessagePath, else the end of its log. Called by `PodState`.

One pod in an agent's charge: its object, its containers, and the status that follows from them.

`worker` leads it through its life; `start`, `stop` and `probes` do what they do to one container of it.
"""

import asyncio
import contextlib
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainwright.model.cause import SIGNALS
from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS, CONTAINER_SCHEME, JOB_UID, Key
from trainwright.model.units import moment, rfc3339
from trainwright.node import environment
from trainwright.node.context import AgentContext, StatusReport
from trainwright.node.devices.pool import Granted
from trainwright.node.link import ContainerEnd, SupervisorLink
from trainwright.node.logs import SHORT
from trainwright.node.status import CREATING, INITIALIZING, ContainerView, PodEnd, StatusFacts, compose


class ContainerRecord:
    """A container over all its restarts. Its states are in the words of the API: see `status.Seen`."""

    __slots__ = (
        "_timer",
        "_waiting",
        "begun",
        "body",
        "id",
        "index",
        "init",
        "live",
        "log",
        "message",
        "path",
        "pause",
        "seen",
        "since",
        "started",
        "why",
    )

    def __init__(self, body: Body, index: int, *, init: bool, alone: bool = True) -> None:
        self.body = body
        self.index = index
        self.init = init
        self.path = f"spec.{'initContainers' if init else 'containers'}[{index}]"
        self.seen = ContainerView(body["name"], CREATING if alone else INITIALIZING, body.get("image") or "")
        self.id = ""
        self.log = ""
        #: The file that its last words are expected in, where there is one.
        self.message = ""
        #: It has a process, or is just getting one.
        self.live = False
        #: Done when it is known whether the process of this time runs.
        self.begun: asyncio.Future[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        #: How long the next restart waits.
        self.pause = 0.0
        #: When it was last started, by the loop's clock and by everybody's.
        self.since = 0.0
        self.started = ""
        #: Why we end it, if it is us.
        self.why = ""
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, reason: str, message: str) -> bool:
        """It cannot be started now. Says whether that is news."""
        state = {"waiting": {"reason": reason, "message": message}}
        news, self.seen.state = self.seen.state != state, state
        return news

    def launch(self, name: str, now: datetime) -> None:
        """It is being started, under that name."""
        loop = asyncio.get_running_loop()
        self.id, self.since, self.started, self.why = name, loop.time(), rfc3339(now), ""
        self.seen.id = f"{CONTAINER_SCHEME}{name}"
        self.begun, self.live = loop.create_future(), True

    def begin(self) -> None:
        """Its start was answered: it runs, unless it has ended already."""
        if self.live:
            self.seen.state = {"running": {"startedAt": self.started}}
            if not self.attended:
                self.seen.ready = self.seen.started = True
        if self.begun is not None and not self.begun.done():
            self.begun.set_result(None)

    @property
    def attended(self) -> bool:
        """Somebody looks after it while it runs: hooks or probes."""
        body = self.body
        return any(body.get(word) for word in ("lifecycle", "startupProbe", "readinessProbe", "livenessProbe"))

    def end(self, end: ContainerEnd, reason: str, message: str) -> None:
        """It has ended."""
        finished = rfc3339(datetime.fromtimestamp(end.at, UTC))
        state: dict[str, Any] = {
            "exitCode": end.code,
            "reason": reason,
            "startedAt": self.started or finished,
            "finishedAt": finished,
            "containerID": self.seen.id,
        }
        if end.signal:
            state["signal"] = _linux(end.signal)
        if message:
            state["message"] = message
        self.seen.state = {"terminated": state}
        self.seen.ready = self.seen.started = False
        self.kill_at(None)
        self.live = False
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def over(self) -> None:
        """Until it has ended. Everybody waits by a future of their own: who is cancelled must not cancel the rest."""
        if self.live:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def renew(self) -> None:
        """It is about to be started once more."""
        if "terminated" in self.seen.state:
            self.seen.last = self.seen.state
        self.seen.state = CREATING
        self.seen.restarts += 1

    def kill_at(self, when: float | None, link: SupervisorLink | None = None) -> None:
        """Kill the whole tree at that time of the loop's clock; None: not at all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when is not None and link is not None and self.live:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(when, lambda: link.kill({"container": self.id}))


def _linux(number: int) -> int:
    """The number that Linux has for a signal of this machine: those who read a status know no others."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        return number
    return next((known for known, one in SIGNALS.items() if one == name), number)


DEFAULT_MESSAGE_PATH = "/dev/termination-log"
_MESSAGE = 4096
_LINES = 80
_TAIL = 2048
_IN_USE = "address already in use"
_ADVICE = (
    'another process on this machine already listens on that port; "--runtime sandbox" gives every replica its own'
    " network"
)


def termination_message(container: ContainerRecord, end: ContainerEnd, *, sandboxed: bool) -> str:
    """The message of its end."""
    said = _read(container.message, _MESSAGE) if container.message else ""
    if said or not end.code:
        return said
    falls_back = container.body.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    if not falls_back and sandboxed:
        return ""
    tail = _read(container.log, _TAIL)
    if not sandboxed and _IN_USE in tail.lower():
        return f"Address already in use: {_ADVICE}"
    return "\n".join(tail.splitlines()[-_LINES:]) if falls_back else ""


def _read(path: str, most: int) -> str:
    """The end of a file, so many bytes at most; nothing if there is none."""
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        return file.read(most).decode(errors="replace")
    return ""


_UNKNOWN = "The container could not be located when the pod was looked after again"
_RESTARTED = PodEnd("NodeLost", "The node agent was started anew, and what ran under the one before ended with it")
_LONGEST_HOST = 63


class PodState:
    """A pod. `due` is when its containers are killed, once it is being ended."""

    def __init__(self, pod: Body, means: AgentContext) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        self.pod = pod
        self.means = means
        self.uid: str = meta["uid"]
        self.key = Key(meta.get("namespace", ""), meta["name"])
        inits = spec.get("initContainers") or ()
        self.inits = [ContainerRecord(body, index, init=True) for index, body in enumerate(inits)]
        self.mains = [
            ContainerRecord(body, index, init=False, alone=not inits) for index, body in enumerate(spec["containers"])
        ]
        self.policy: str = spec.get("restartPolicy") or "Always"
        self.host = str(spec.get("hostname") or meta["name"])[:_LONGEST_HOST].rstrip("-.")
        self.folder = f"{means.settings.folder}/pods/{self.uid}"
        #: It has a folder of its own, which must go with it.
        self.housed = False
        #: The supervisor knows it.
        self.opened = False
        self.over: PodEnd | None = None
        self.final = False
        self.due: float | None = None
        #: Its devices, by resource name.
        self.held: Granted = {}
        #: The address that we have given it, where that is for us to do.
        self.given = ""
        #: The Secrets, tokens and so on that its containers were started with.
        self.sources: dict[tuple[str, str], Body | None] = {}
        #: What keeps its files fresh, if anything has to.
        self.refreshing: asyncio.Task[None] | None = None
        self.report = StatusReport(self.key, self.uid, self._status)
        status: Body = pod.get("status") or {}
        self.ended = status.get("phase") in ("Succeeded", "Failed")
        self.begun = moment(status.get("startTime") or "") or means.clock.now()
        self.started = rfc3339(self.begun)
        if status.get("containerStatuses"):
            self._restore(status)

    @property
    def containers(self) -> list[ContainerRecord]:
        """All of them, in the order in which they begin."""
        return [*self.inits, *self.mains] if self.inits else self.mains

    @property
    def networked(self) -> bool:
        """It has a network of its own."""
        return self.means.settings.sandboxed and not self.pod["spec"].get("hostNetwork")

    @property
    def address(self) -> str:
        """The address that was reserved for it; this machine's own if it has none."""
        if self.means.settings.kubelet:
            return self.given or self.means.settings.address
        reserved = (self.pod["metadata"].get("annotations") or {}).get(ADDRESS)
        return str(reserved) if reserved else self.means.settings.address

    @property
    def grace(self) -> float:
        """How long its containers have after SIGTERM."""
        asked = self.pod["spec"].get("terminationGracePeriodSeconds")
        return 30.0 if asked is None else float(asked)

    @property
    def job(self) -> str:
        """What notices are about: the job, or the pod itself if it belongs to none."""
        return str((self.pod["metadata"].get("labels") or {}).get(JOB_UID) or self.uid)

    @property
    def facts(self) -> environment.PodFacts:
        """What its variables may refer to."""
        settings = self.means.settings
        allocatable = settings.capacity if settings.allocatable is None else settings.allocatable
        return environment.PodFacts(settings.node, self.address, settings.address, allocatable)

    def log_of(self, container: ContainerRecord, restarts: int) -> str:
        """The path of the log of a container, as it was started for that time."""
        name = f"{self.uid[:SHORT]}-{container.seen.name}-{restarts}.log"
        return f"{self.means.settings.folder}/logs/{self.key.name}/{name}"

    def mark(self) -> None:
        """Something about it has changed."""
        self.means.reports.mark(self.report)

    def finished(self, container: ContainerRecord, end: ContainerEnd) -> None:
        """A process of it has ended."""
        reason = "OOMKilled" if end.oom else "Error" if end.code else "Completed"
        words = termination_message(container, end, sandboxed=self.means.settings.sandboxed)
        container.end(end, reason, words or container.why)
        self.mark()

    def hasten(self, due: float) -> None:
        """Its containers are killed then, or earlier if that was said before."""
        if self.due is None or due < self.due:
            self.due = due
            for container in self.containers:
                container.kill_at(due, self.means.link)

    def _status(self) -> dict[str, Any]:
        over = self.over if self.ended else None  # a pod has failed when its containers have ended, not before
        settings = self.means.settings
        address = self.address if self.given or not self.networked or not settings.kubelet else ""
        facts = StatusFacts(self.policy, self.started, address, settings.address, over, self.final, settings.kubelet)
        known = [*((self.pod.get("status") or {}).get("conditions") or ()), *_ours(self.report.stored)]
        now = rfc3339(self.means.clock.now())
        return compose(facts, [one.seen for one in self.inits], [one.seen for one in self.mains], known, now)

    def _restore(self, status: Body) -> None:
        """Go on from what another agent has told of it: what it left running is lost."""
        told = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        by_name = {one["name"]: one for one in told}
        for container in self.containers:
            then = by_name.get(container.seen.name)
            if then is None:
                continue
            seen, state = container.seen, then.get("state") or {}
            seen.restarts, seen.last = then.get("restartCount", 0), then.get("lastState") or None
            if "terminated" in state:
                seen.state = state
            elif "running" in state:
                seen.id, container.started = then.get("containerID", ""), state["running"].get("startedAt", "")
                self._ended_untold(container)
            elif (state.get("waiting") or {}).get("reason") == BACKING_OFF and seen.last:
                seen.state = seen.last  # its restart is still to be counted

    def _ended_untold(self, container: ContainerRecord) -> None:
        """It ran, as far as anybody was told; how it ended is known if that was before the agent's own end."""
        end = self.means.link.former.get(container.seen.id.removeprefix(CONTAINER_SCHEME))
        if end is not None:
            self.finished(container, end)
            return
        lost = ContainerEnd(code=137, at=self.means.clock.now().timestamp())
        container.end(lost, "ContainerStatusUnknown", _UNKNOWN)
        if self.means.settings.kubelet and self.policy == "Never":
            self.over = _RESTARTED


def _ours(stored: Body | None) -> list[Body]:
    """The conditions that we wrote last: the watch may not have told them yet."""
    if stored is None:
        return []
    kinds = ("Initialized", "ContainersReady", "Ready")
    return [condition for condition in stored["conditions"] if condition["type"] in kinds]


def loop_time() -> float:
    """The loop's clock, by which everything here is due."""
    return asyncio.get_running_loop().time()
