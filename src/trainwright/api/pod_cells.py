# SPDX-License-Identifier: Apache-2.0
"""The cells of the table of pods: how a pod's phase and the states of its containers become one word.

The rules are those of the API server of Kubernetes, so that people and scripts see the same words on both engines:
`Init:0/1`, `CrashLoopBackOff`, `Completed`, `Terminating`. `trainwright get` has words of its own (`cli.condition`).
"""

from typing import Any

from msgspec import Struct

from trainwright.api.cells import NONE, duration, name_of, number, object_age, part, parts, text
from trainwright.model.job import Body
from trainwright.model.units import Time, parse_time

_SCHEDULING_GATED = "SchedulingGated"
#: The reason of a pod whose node does not answer.
_NODE_LOST = "NodeLost"
_TERMINAL_PHASES = ("Succeeded", "Failed")


class _Restarts(Struct):
    """How often containers were restarted, and when the last of them had ended before its restart."""

    count: int = 0
    last: Time | None = None

    def add(self, container: Body) -> None:
        self.count += number(container, "restartCount")
        ended = parse_time(text(part(container, "lastState", "terminated"), "finishedAt"))
        if ended is not None and (self.last is None or self.last < ended):
            self.last = ended

    def printed(self, now: Time) -> str:
        """The text of the cell: `2 (13s ago)`."""
        ago = f" ({duration((now - self.last).total_seconds())} ago)" if self.count and self.last is not None else ""
        return f"{self.count}{ago}"


class _Summary(Struct):
    """What the cells Ready, Status and Restarts say. The functions below fill it in, container by container."""

    reason: str
    restarts: _Restarts
    ready: int = 0


def pod_cells(body: Body, now: Time) -> list[Any]:
    """The cells of a pod."""
    spec, status = part(body, "spec"), part(body, "status")
    sidecars = [one.get("name") for one in parts(spec, "initContainers") if one.get("restartPolicy") == "Always"]
    summary = _summary(spec, status, sidecars)
    addresses = [text(one, "ip") for one in parts(status, "podIPs")] or [text(status, "podIP")]
    return [
        name_of(body),
        f"{summary.ready}/{len(parts(spec, 'containers')) + len(sidecars)}",
        _deletion(body, status) or summary.reason,
        summary.restarts.printed(now),
        object_age(body, now),
        addresses[0] or NONE,
        text(spec, "nodeName") or NONE,
        text(status, "nominatedNodeName") or NONE,
        _gates(spec, status),
    ]


def _deletion(body: Body, status: Body) -> str:
    """The status of a pod that is being deleted; empty if it shows the same status as other pods."""
    if not part(body, "metadata").get("deletionTimestamp"):
        return ""
    if status.get("reason") == _NODE_LOST:
        return "Unknown"
    return "" if status.get("phase") in _TERMINAL_PHASES else "Terminating"


def _summary(spec: Body, status: Body, sidecars: list[Any]) -> _Summary:
    conditions = parts(status, "conditions")
    gated = any(one.get("type") == "PodScheduled" and one.get("reason") == _SCHEDULING_GATED for one in conditions)
    reason = _SCHEDULING_GATED if gated else text(status, "reason") or text(status, "phase")
    summary = _Summary(reason, _Restarts())
    initializing = _add_init_containers(summary, spec, status, sidecars)
    if not initializing or _is_true(conditions, "Initialized"):
        # From here on, only restarts of containers that still run are of interest.
        summary.restarts = _Restarts()
        for container in parts(status, "initContainerStatuses"):
            if container.get("name") in sidecars:
                summary.restarts.add(container)
        _add_containers(summary, status, conditions)
    return summary


def _add_init_containers(summary: _Summary, spec: Body, status: Body, sidecars: list[Any]) -> bool:
    """Read the init containers up to the first that has not done its work. Returns whether there is one."""
    for index, container in enumerate(parts(status, "initContainerStatuses")):
        summary.restarts.add(container)
        terminated = part(container, "state").get("terminated")
        if isinstance(terminated, dict) and not number(terminated, "exitCode"):
            continue
        if container.get("name") in sidecars and container.get("started") is True:
            summary.ready += container.get("ready") is True
            continue
        waiting = text(part(container, "state", "waiting"), "reason")
        if isinstance(terminated, dict):
            summary.reason = f"Init:{_ending(terminated)}"
        elif waiting and waiting != "PodInitializing":
            summary.reason = f"Init:{waiting}"
        else:
            summary.reason = f"Init:{index}/{len(parts(spec, 'initContainers'))}"
        return True
    return False


def _add_containers(summary: _Summary, status: Body, conditions: list[Body]) -> None:
    """Read the main containers. The first one that waits or has ended decides the status."""
    running = False
    for container in reversed(parts(status, "containerStatuses")):
        summary.restarts.add(container)
        state = part(container, "state")
        if waiting := text(part(state, "waiting"), "reason"):
            summary.reason = waiting
        elif isinstance(state.get("terminated"), dict):
            summary.reason = _ending(state["terminated"])
        elif container.get("ready") is True and isinstance(state.get("running"), dict):
            running = True
            summary.ready += 1
    if summary.reason == "Completed" and running:
        summary.reason = "Running" if _is_true(conditions, "Ready") else "NotReady"


def _ending(terminated: Body) -> str:
    """How a container ended: the reason, or the signal, or the exit code."""
    if reason := text(terminated, "reason"):
        return reason
    signal = number(terminated, "signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{number(terminated, 'exitCode')}"


def _is_true(conditions: list[Body], kind: str) -> bool:
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


def _gates(spec: Body, status: Body) -> str:
    gates = parts(spec, "readinessGates")
    told = {text(one, "type"): one.get("status") for one in reversed(parts(status, "conditions"))}
    met = sum(told.get(text(gate, "conditionType")) == "True" for gate in gates)
    return f"{met}/{len(gates)}" if gates else NONE
