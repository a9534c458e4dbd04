# SPDX-License-Identifier: Apache-2.0
"""What a fake node reports of itself and of its pods: statuses as a kubelet writes them, without any container.

`cluster_kubelet` sends them. What happens to a pod is its `Script`: that of all pods, with what its annotations say.
"""

import time
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

Body = dict[str, Any]
#: Annotations: `exit: "3"` or `exit: "1,0"` (first pod of this name, next), `runs: "0.5"`, `forever`, `forever,1`, …
PREFIX = "test.trainwright.dev/"
_FOREVER = "forever"
_TERMINATED = 143


class Script(Struct, frozen=True):
    """How a pod goes. Times in seconds: until it runs, how long it runs (None: until deleted), until it has stopped."""

    starts: float = 0.0
    runs: float | None = 0.0
    #: By pods of one name, if not always the same: as `exit`.
    lasts: tuple[float | None, ...] = ()
    stops: float = 0.0
    #: From then until its end is confirmed.
    confirms: float = 0.0
    exit: tuple[int, ...] = (0,)
    #: Of its first init container, which fails: then nothing else runs.
    init: int = 0
    reason: str = ""
    waiting: str = ""  # never starts, for this reason: ImagePullBackOff

    def code(self, before: int) -> int:
        """Its exit code, when that many pods of its name were there before; the last one stands for all further."""
        return self.exit[min(before, len(self.exit) - 1)]

    def time(self, before: int) -> float | None:
        """How long it runs, likewise."""
        return self.lasts[min(before, len(self.lasts) - 1)] if self.lasts else self.runs


class ConfigMapRef(Struct):
    """A ConfigMap that a container needs."""

    name: str = ""


class EnvFrom(Struct, rename="camel"):
    """Where variables come from."""

    config_map_ref: ConfigMapRef | None = None


class Container(Struct, rename="camel"):
    """What is known of one."""

    name: str
    image: str = ""
    env_from: list[EnvFrom] = []


class Metadata(Struct, rename="camel"):
    """Of a pod."""

    name: str
    namespace: str
    uid: str
    annotations: dict[str, str] = {}
    deletion_timestamp: str = ""


class Spec(Struct, rename="camel"):
    """Where, and what."""

    containers: list[Container] = []
    init_containers: list[Container] = []
    node_name: str = ""
    scheduling_gates: list[Any] = []
    priority: int = 0


class Status(Struct):
    """How far it is."""

    phase: str = "Pending"


class Pod(Struct):
    """As much of a pod as is looked at."""

    metadata: Metadata
    spec: Spec = field(default_factory=Spec)
    status: Status = field(default_factory=Status)

    @property
    def path(self) -> str:
        """Its address."""
        return f"/api/v1/namespaces/{self.metadata.namespace}/pods/{self.metadata.name}"

    @property
    def needs(self) -> list[str]:
        """The ConfigMaps without which its containers do not start."""
        sources = [source for container in self.spec.containers for source in container.env_from]
        return [source.config_map_ref.name for source in sources if source.config_map_ref is not None]


def script_of(pod: Pod, usual: Script) -> Script:
    """The usual, unless its annotations say otherwise."""
    found = {key.removeprefix(PREFIX): value for key, value in pod.metadata.annotations.items() if PREFIX in key}
    if "," in found.get("runs", ""):
        found["lasts"] = found.pop("runs")
    return replace(usual, **{key: _read(key, value) for key, value in found.items()}) if found else usual


def _read(key: str, value: str) -> Any:
    if key == "exit":
        return tuple(int(code) for code in value.split(","))
    if key == "init":
        return int(value)
    if key == "lasts":
        return tuple(_seconds(one) for one in value.split(","))
    return _seconds(value) if key in ("starts", "runs", "stops", "confirms") else value


def _seconds(value: str) -> float | None:
    return None if value == _FOREVER else float(value)


def now() -> str:
    """As Kubernetes writes times."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def waiting(pod: Pod, reason: str) -> Body:
    """Pending, and why."""
    state = {"waiting": {"reason": reason, "message": f"{reason}, as the test has it"}}
    return {"phase": "Pending", **_conditions(ready=False), **_containers(pod, [state] * len(pod.spec.containers))}


def unconfigured(pod: Pod, address: str, name: str) -> Body:
    """It has its address, and waits for a ConfigMap."""
    state = {"waiting": {"reason": "CreateContainerConfigError", "message": f'configmap "{name}" not found'}}
    where = {"hostIP": "127.0.0.1", "podIP": address, "podIPs": [{"ip": address}], "startTime": now()}
    states = [state] * len(pod.spec.containers)
    return {"phase": "Pending", **where, **_conditions(ready=False), **_containers(pod, states)}


def running(pod: Pod, address: str) -> Body:
    """All its containers run."""
    at = now()
    states = [{"running": {"startedAt": at}}] * len(pod.spec.containers)
    where = {"hostIP": "127.0.0.1", "podIP": address, "podIPs": [{"ip": address}], "startTime": at}
    return {"phase": "Running", **where, **_conditions(ready=True), **_containers(pod, states)}


def ended(pod: Pod, code: int, reason: str = "") -> Body:
    """Its first container exited with that code, the others well."""
    at = now()
    codes = [code, *[0] * (len(pod.spec.containers) - 1)]
    states = [{"terminated": {**_exit(one, reason), "startedAt": at, "finishedAt": at}} for one in codes]
    return {"phase": "Failed" if code else "Succeeded", **_conditions(ready=False), **_containers(pod, states)}


def failed_before(pod: Pod, code: int) -> Body:
    """Its first init container exited with that code; what follows it waits for ever."""
    at = now()
    waits = {"waiting": {"reason": "PodInitializing"}}
    end = {"terminated": {**_exit(code, ""), "startedAt": at, "finishedAt": at}}
    pairs = [(one, waits if place else end) for place, one in enumerate(pod.spec.init_containers)]
    rest = _containers(pod, [waits] * len(pod.spec.containers))
    first = {"initContainerStatuses": [_container(one, state) for one, state in pairs]}
    return {"phase": "Failed", "startTime": at, **_conditions(ready=False), **first, **rest}


def terminated(pod: Pod) -> Body:
    """It was deleted, and ended by the signal."""
    return ended(pod, _TERMINATED)


def _exit(code: int, reason: str) -> Body:
    return {"exitCode": code, "reason": (reason if code and reason else "Error") if code else "Completed"}


def _conditions(*, ready: bool) -> Body:
    word, at = str(ready), now()
    kinds = {"PodScheduled": "True", "Initialized": "True", "ContainersReady": word, "Ready": word}
    return {"conditions": [{"type": kind, "status": is_so, "lastTransitionTime": at} for kind, is_so in kinds.items()]}


def _containers(pod: Pod, states: list[Body]) -> Body:
    pairs = zip(pod.spec.containers, states, strict=True)
    return {"containerStatuses": [_container(one, state) for one, state in pairs]}


def _container(one: Container, state: Body) -> Body:
    up = "running" in state
    image = {"image": one.image, "imageID": "fake"}
    return {"name": one.name, **image, "ready": up, "started": up, "restartCount": 0, "state": state}


def node(name: str) -> Body:
    """A node with room for everything."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}


def node_status() -> Body:
    """Ready."""
    at = now()
    room = {
        "cpu": "10000",
        "memory": "100Ti",
        "ephemeral-storage": "100Ti",
        "pods": "100000",
        "nvidia.com/gpu": "10000",
    }
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "message": "a fake node", "lastTransitionTime": at}
    return {"capacity": room, "allocatable": room, "conditions": [{**ready, "lastHeartbeatTime": at}]}
