# SPDX-License-Identifier: Apache-2.0
"""Whether a pod that was put on this node can be had: room, and nothing that this agent cannot do. Pure.

`agent` asks where it stands in for a kubelet: a pod may name its node itself, and schedulers may be behind. The reasons
are a kubelet's.
"""

from collections.abc import Iterable

from trainwright.local.agent.settings import Settings
from trainwright.local.agent.status import Over
from trainwright.local.agent.volumes import SUPPORTED
from trainwright.local.scheduling.requests import amounts, asks, needed, present, total
from trainwright.model.job import Body

_UNSUPPORTED = "UnsupportedPod"


def order(pod: Body) -> tuple[bool, str, str]:
    """In which order pods are judged: those that were taken before, then by age."""
    meta, status = pod["metadata"], pod.get("status") or {}
    return not status.get("startTime"), str(meta.get("creationTimestamp") or ""), str(meta["name"])


def refusal(pod: Body, others: Iterable[Body], settings: Settings) -> Over | None:
    """Why not, if it cannot."""
    problem = _unsupported(pod["spec"], sandboxed=settings.sandboxed) or _other_user(pod["spec"], settings.user)
    if problem:
        return Over(_UNSUPPORTED, f"Pod was rejected: {problem}")
    offered = amounts(settings.capacity if settings.allocatable is None else settings.allocatable)
    used = total(asks(other["spec"]) for other in others)
    for name, amount in asks(pod["spec"]).items():
        free = max(0, offered.get(name, 0) - used.get(name, 0))
        if amount > free:
            wanted, there = needed(name, amount), present(name, free)
            text = f"Node didn't have enough resource: {name}, requested: {wanted}, free: {there}"
            return Over(f"OutOf{name}", f"Pod was rejected: {text}")
    return None


def _unsupported(spec: Body, *, sandboxed: bool) -> str:
    for index, container in enumerate(spec.get("initContainers") or ()):
        if container.get("restartPolicy") == "Always":
            path = f"spec.initContainers[{index}].restartPolicy"
            return f"{path}: Always is not supported: an init container must end before the next one begins"
    for word in ("hostPID", "hostIPC"):
        if spec.get(word) and sandboxed:
            return f"spec.{word}: not supported in the sandbox runtime"
    containers = (*(spec.get("initContainers") or ()), *spec["containers"])
    mounted = {mount.get("name") for container in containers for mount in container.get("volumeMounts") or ()}
    for index, volume in enumerate(spec.get("volumes") or ()):
        kinds = [word for word in volume if word != "name"]
        if volume["name"] in mounted and kinds and kinds[0] not in SUPPORTED:
            return f"spec.volumes[{index}].{kinds[0]}: not supported here; expected one of {', '.join(SUPPORTED)}"
    return ""


def _other_user(spec: Body, user: int) -> str:
    """Who asks not to be root must not be, nor somebody else than they asked to be."""
    whole = spec.get("securityContext") or {}
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            asked = whole | (container.get("securityContext") or {})
            path, wanted = f"spec.{group}[{index}].securityContext", asked.get("runAsUser")
            if wanted is not None and wanted != user:
                return f"{path}.runAsUser: {wanted} cannot be had: every process of this node is user {user}'s"
            if asked.get("runAsNonRoot") and user == 0:
                return f"{path}.runAsNonRoot: cannot be had: every process of this node is root's"
    return ""
