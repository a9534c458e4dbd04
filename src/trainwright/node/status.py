# SPDX-License-Identifier: Apache-2.0
"""From the states of its containers to the status of a pod, as a kubelet words it. `context` calls `compose`; pure.

States are kept in the words of the API already (`{"running": {"startedAt": …}}`), so that composing is only putting
together: a thousand short pods pay for it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from trainwright.model.job import Body

CREATING: Body = {"waiting": {"reason": "ContainerCreating"}}
INITIALIZING: Body = {"waiting": {"reason": "PodInitializing"}}
_OURS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


class ContainerView(Struct):
    """One container, as it is seen now."""

    name: str
    state: Body
    image: str = ""
    last: Body | None = None
    ready: bool = False
    started: bool = False
    restarts: int = 0
    id: str = ""

    @property
    def code(self) -> int | None:
        """The exit code of a container that has ended."""
        end = self.state.get("terminated")
        return None if end is None else int(end["exitCode"])


class PodEnd(Struct, frozen=True):
    """Why a pod as a whole has ended, whatever its containers say."""

    reason: str
    message: str


class StatusFacts(Struct, frozen=True):
    """What else the status of a pod says."""

    policy: str
    started: str
    address: str = ""
    host: str = ""
    over: PodEnd | None = None
    #: Nothing is started any more, whatever the policy says.
    final: bool = False
    #: Only our own conditions are written: the API keeps the others.
    merged: bool = False


def phase(facts: StatusFacts, inits: Sequence[ContainerView], mains: Sequence[ContainerView]) -> str:
    """The phase, in a kubelet's order of precedence."""
    if facts.over is not None:
        return "Failed"
    if facts.policy == "Never" and any(_failed(one) for one in inits):
        return "Failed"
    if facts.final:
        return "Succeeded" if all(one.code == 0 for one in (*inits, *mains)) else "Failed"
    if any(one.code is None and one.last is None for one in inits):
        return "Pending"
    states = [_kind(one) for one in mains]
    if "waiting" in states or any(one.code != 0 for one in inits):
        return "Pending"
    if "running" in states or facts.policy == "Always":
        return "Running"
    if all(one.code == 0 for one in mains):
        return "Succeeded"
    return "Failed" if facts.policy == "Never" else "Running"


def _kind(one: ContainerView) -> str:
    if "running" in one.state:
        return "running"
    return "stopped" if "terminated" in one.state or one.last is not None else "waiting"


def _failed(one: ContainerView) -> bool:
    end = one.state.get("terminated") or ((one.last or {}).get("terminated") if "waiting" in one.state else None)
    return end is not None and end["exitCode"] != 0


def compose(
    facts: StatusFacts, inits: Sequence[ContainerView], mains: Sequence[ContainerView], known: Iterable[Body], now: str
) -> dict[str, Any]:
    """The status of the pod. `known` are the conditions it has: others' are kept, ours keep the time they turned."""
    status: dict[str, Any] = {
        "phase": phase(facts, inits, mains),
        "startTime": facts.started,
        "containerStatuses": [_container(one) for one in mains],
    }
    if inits:
        status["initContainerStatuses"] = [_container(one) for one in inits]
    if facts.address:
        status["podIP"], status["podIPs"] = facts.address, [{"ip": facts.address}]
    if facts.host:
        status["hostIP"], status["hostIPs"] = facts.host, [{"ip": facts.host}]
    if facts.over is not None:
        status["reason"], status["message"] = facts.over.reason, facts.over.message
    conditions = _conditions(status["phase"], inits, mains, known, now)
    status["conditions"] = _own(conditions, known) if facts.merged else conditions
    return status


def _own(conditions: list[Body], known: Iterable[Body]) -> list[Body]:
    """Those that nobody else writes; the scheduler has said itself that it was scheduled, where there was one."""
    scheduled = any(one["type"] == "PodScheduled" for one in known)
    return [one for one in conditions if one["type"] in _OURS and not (scheduled and one["type"] == "PodScheduled")]


def _container(one: ContainerView) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": one.name,
        "image": one.image,
        "imageID": "",
        "ready": one.ready,
        "started": one.started,
        "restartCount": one.restarts,
        "state": one.state,
        "lastState": one.last or {},
    }
    if one.id:
        found["containerID"] = one.id
    return found


def _conditions(
    phase: str, inits: Sequence[ContainerView], mains: Sequence[ContainerView], known: Iterable[Body], now: str
) -> list[Body]:
    before = {condition["type"]: condition for condition in known}
    found = [condition for kind, condition in before.items() if kind not in _OURS]
    wanted = (("PodScheduled", "", ""), ("Initialized", *_uninitialized(phase, inits)), *_unready(phase, mains))
    for kind, reason, message in wanted:
        complete = phase == "Succeeded" and kind == "Initialized"
        value = "False" if reason and not complete else "True"
        then = before.get(kind)
        turned = then.get("lastTransitionTime", now) if then is not None and then.get("status") == value else now
        condition = {"type": kind, "status": value, "lastTransitionTime": turned}
        if reason:
            condition["reason"] = reason
        if message:
            condition["message"] = message
        found.append(condition)
    return found


def _uninitialized(phase: str, inits: Sequence[ContainerView]) -> tuple[str, str]:
    if phase == "Succeeded":
        return "PodCompleted", ""
    left = [one.name for one in inits if one.code != 0]
    return ("ContainersNotInitialized", f"containers with incomplete status: [{' '.join(left)}]") if left else ("", "")


def _unready(phase: str, mains: Sequence[ContainerView]) -> tuple[tuple[str, str, str], ...]:
    if phase in ("Succeeded", "Failed"):
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
        return ("ContainersReady", reason, ""), ("Ready", reason, "")
    left = [one.name for one in mains if not one.ready]
    if not left:
        return ("ContainersReady", "", ""), ("Ready", "", "")
    text = f"containers with unready status: [{' '.join(left)}]"
    return ("ContainersReady", "ContainersNotReady", text), ("Ready", "ContainersNotReady", text)
