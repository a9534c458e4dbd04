# SPDX-License-Identifier: Apache-2.0
"""The status of a pod, composed from the states of its containers, as a kubelet does it. Pure.

Container states are stored in the form of the API (`{"running": {"startedAt": …}}`), so that composing is cheap: the
agent composes the status for every change of every pod.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from trainwright.model.job import Body

CREATING: Body = {"waiting": {"reason": "ContainerCreating"}}
INITIALIZING: Body = {"waiting": {"reason": "PodInitializing"}}


class ContainerView(Struct):
    """What the status says about one container."""

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
        """The exit code; None if the container has not ended."""
        end = self.state.get("terminated")
        return None if end is None else int(end["exitCode"])


class PodFailure(Struct, frozen=True):
    """Why a pod as a whole has failed, regardless of the exit codes of its containers."""

    reason: str
    message: str


class StatusFacts(Struct, frozen=True):
    """What the status of a pod needs besides its containers."""

    restart_policy: str
    start_time: str
    address: str = ""
    host: str = ""
    failure: PodFailure | None = None
    #: Whether the agent starts no container any more, whatever the restart policy says.
    stopped: bool = False
    #: Whether the status has only the agent's own conditions. The API server then keeps the other conditions.
    own_only: bool = False


def phase(facts: StatusFacts, inits: Sequence[ContainerView], mains: Sequence[ContainerView]) -> str:
    """The phase of the pod. A kubelet makes the same checks in the same order."""
    if facts.failure is not None:
        return "Failed"
    if facts.restart_policy == "Never" and any(_has_failed(one) for one in inits):
        return "Failed"
    if facts.stopped:
        return "Succeeded" if all(one.code == 0 for one in (*inits, *mains)) else "Failed"
    if any(one.code is None and one.last is None for one in inits):
        return "Pending"
    states = [_state_name(one) for one in mains]
    if "waiting" in states or any(one.code != 0 for one in inits):
        return "Pending"
    if "running" in states or facts.restart_policy == "Always":
        return "Running"
    if all(one.code == 0 for one in mains):
        return "Succeeded"
    return "Failed" if facts.restart_policy == "Never" else "Running"


def _state_name(one: ContainerView) -> str:
    if "running" in one.state:
        return "running"
    return "stopped" if "terminated" in one.state or one.last is not None else "waiting"


def _has_failed(one: ContainerView) -> bool:
    end = one.state.get("terminated") or ((one.last or {}).get("terminated") if "waiting" in one.state else None)
    return end is not None and end["exitCode"] != 0


def compose(
    facts: StatusFacts, inits: Sequence[ContainerView], mains: Sequence[ContainerView], known: Iterable[Body], now: str
) -> dict[str, Any]:
    """The status of the pod.

    `known` are the present conditions of the pod. Unless `own_only`, the status keeps conditions of other controllers.
    An unchanged condition of the agent keeps the time of its last transition.
    """
    status: dict[str, Any] = {
        "phase": phase(facts, inits, mains),
        "startTime": facts.start_time,
        "containerStatuses": [_container_status(one) for one in mains],
    }
    if inits:
        status["initContainerStatuses"] = [_container_status(one) for one in inits]
    if facts.address:
        status["podIP"], status["podIPs"] = facts.address, [{"ip": facts.address}]
    if facts.host:
        status["hostIP"], status["hostIPs"] = facts.host, [{"ip": facts.host}]
    if facts.failure is not None:
        status["reason"], status["message"] = facts.failure.reason, facts.failure.message
    initialized, ready = _initialized_reason(status["phase"], inits), _ready_reason(status["phase"], mains)
    own = {"PodScheduled": ("", ""), "Initialized": initialized, "ContainersReady": ready, "Ready": ready}
    before = {condition["type"]: condition for condition in known}
    if facts.own_only and "PodScheduled" in before:
        del own["PodScheduled"]  # the scheduler has set this condition
    others = [] if facts.own_only else [condition for kind, condition in before.items() if kind not in own]
    status["conditions"] = others + _conditions(own, before, now)
    return status


def _container_status(one: ContainerView) -> dict[str, Any]:
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


def _conditions(own: dict[str, tuple[str, str]], before: dict[str, Body], now: str) -> list[Body]:
    """The agent's conditions. A condition with a reason is False, except Initialized with the reason PodCompleted."""
    found = []
    for kind, (reason, message) in own.items():
        value = "False" if reason and (reason != "PodCompleted" or kind != "Initialized") else "True"
        old = before.get(kind, {})
        since = old.get("lastTransitionTime", now) if old.get("status") == value else now
        condition = {"type": kind, "status": value, "lastTransitionTime": since}
        if reason:
            condition["reason"] = reason
        if message:
            condition["message"] = message
        found.append(condition)
    return found


def _initialized_reason(phase: str, inits: Sequence[ContainerView]) -> tuple[str, str]:
    if phase == "Succeeded":
        return "PodCompleted", ""
    left = [one.name for one in inits if one.code != 0]
    return ("ContainersNotInitialized", f"containers with incomplete status: [{' '.join(left)}]") if left else ("", "")


def _ready_reason(phase: str, mains: Sequence[ContainerView]) -> tuple[str, str]:
    if phase in ("Succeeded", "Failed"):
        return ("PodCompleted" if phase == "Succeeded" else "PodFailed"), ""
    left = [one.name for one in mains if not one.ready]
    return ("ContainersNotReady", f"containers with unready status: [{' '.join(left)}]") if left else ("", "")
