# SPDX-License-Identifier: Apache-2.0
"""One pod in an agent's charge: its object, its containers, and the status that follows from them.

`worker` leads it through its life; `start`, `stop` and `probes` do what they do to one container of it.
"""

import asyncio
from typing import Any

from trainwright.local.agent import fields, messages
from trainwright.local.agent.container import Container
from trainwright.local.agent.link import End
from trainwright.local.agent.means import Means
from trainwright.local.agent.report import Report
from trainwright.local.agent.status import Facts, Over, compose
from trainwright.local.agent.tidy import SHORT
from trainwright.local.devices.pool import Granted
from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS, CONTAINER_SCHEME, JOB_UID, Key
from trainwright.model.units import moment, rfc3339

_UNKNOWN = "The container could not be located when the pod was looked after again"
_RESTARTED = Over("NodeLost", "The node agent was started anew, and what ran under the one before ended with it")
_LONGEST_HOST = 63


class Charge:
    """A pod. `due` is when its containers are killed, once it is being ended."""

    def __init__(self, pod: Body, means: Means) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        self.pod = pod
        self.means = means
        self.uid: str = meta["uid"]
        self.key = Key(meta.get("namespace", ""), meta["name"])
        inits = spec.get("initContainers") or ()
        self.inits = [Container(body, index, init=True) for index, body in enumerate(inits)]
        self.mains = [
            Container(body, index, init=False, alone=not inits) for index, body in enumerate(spec["containers"])
        ]
        self.policy: str = spec.get("restartPolicy") or "Always"
        self.host = str(spec.get("hostname") or meta["name"])[:_LONGEST_HOST].rstrip("-.")
        self.folder = f"{means.settings.folder}/pods/{self.uid}"
        #: It has a folder of its own, which must go with it.
        self.housed = False
        #: The supervisor knows it.
        self.opened = False
        self.over: Over | None = None
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
        self.report = Report(self.key, self.uid, self._status)
        status: Body = pod.get("status") or {}
        self.ended = status.get("phase") in ("Succeeded", "Failed")
        self.begun = moment(status.get("startTime") or "") or means.clock.now()
        self.started = rfc3339(self.begun)
        if status.get("containerStatuses"):
            self._restore(status)

    @property
    def containers(self) -> list[Container]:
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
    def facts(self) -> fields.Facts:
        """What its variables may refer to."""
        settings = self.means.settings
        allocatable = settings.capacity if settings.allocatable is None else settings.allocatable
        return fields.Facts(settings.node, self.address, settings.address, allocatable)

    def log_of(self, container: Container, restarts: int) -> str:
        """The path of the log of a container, as it was started for that time."""
        name = f"{self.uid[:SHORT]}-{container.seen.name}-{restarts}.log"
        return f"{self.means.settings.folder}/logs/{self.key.name}/{name}"

    def mark(self) -> None:
        """Something about it has changed."""
        self.means.reports.mark(self.report)

    def finished(self, container: Container, end: End) -> None:
        """A process of it has ended."""
        reason = "OOMKilled" if end.oom else "Error" if end.code else "Completed"
        words = messages.last(container, end, sandboxed=self.means.settings.sandboxed)
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
        facts = Facts(self.policy, self.started, address, settings.address, over, self.final, settings.kubelet)
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

    def _ended_untold(self, container: Container) -> None:
        """It ran, as far as anybody was told; how it ended is known if that was before the agent's own end."""
        end = self.means.link.former.get(container.seen.id.removeprefix(CONTAINER_SCHEME))
        if end is not None:
            self.finished(container, end)
            return
        lost = End(code=137, at=self.means.clock.now().timestamp())
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
