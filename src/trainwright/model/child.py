# SPDX-License-Identifier: Apache-2.0
"""The parts that we read of Kubernetes objects, and `Observed`: everything that exists for one job.

Decoding skips all other fields, so these structs must never be written back. Go servers write `null` for empty lists,
so every list may be None.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import force_setattr

from trainwright.model.meta import Meta, ObjectMeta, Wire

#: Waiting reason of a container whose configuration, such as a ConfigMap, is missing.
CONFIG_ERROR = "CreateContainerConfigError"
#: Finds the name of a missing or incomplete ConfigMap in a message of a kubelet or of our own agent.
_CONFIG_MAP_NAME = re.compile(r"""configmap\s+["']?(?:[a-z0-9.-]+/)?([\w.-]+)""", re.IGNORECASE)
#: Waiting reason of a container that its kubelet restarts after a back-off.
BACKING_OFF = "CrashLoopBackOff"


class Waiting(Wire, frozen=True, gc=False):
    """A container that does not run yet."""

    reason: str = ""
    message: str = ""
    #: Names of ConfigMaps that the container needs, but that do not exist or miss a key. Only the message contains
    #: these names, so they are read from the message once, when the status is decoded.
    missing: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        names = _CONFIG_MAP_NAME.findall(self.message) if self.reason == CONFIG_ERROR else ()
        force_setattr(self, "missing", frozenset(names))


class Running(Wire, frozen=True, gc=False):
    """A container that runs."""

    started_at: datetime | None = None


class Terminated(Wire, frozen=True, gc=False):
    """A container that ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None
    container_id: str = field(name="containerID", default="")


class ContainerState(Wire, frozen=True, gc=False):
    """Exactly one of the three fields is set."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Wire, frozen=True, gc=False):
    """The status of one container."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState | None = None
    #: The state of the container before the kubelet last restarted it.
    last_state: ContainerState | None = None


#: Reason on the Ready condition of a node that was removed: it is gone, not only unreachable.
NODE_GONE = "NodeGone"


class ObjectCondition(Wire, frozen=True, gc=False):
    """A condition of a pod or a node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class PodSpec(Wire, frozen=True, gc=False):
    """The node of a pod, its restart policy and its grace period."""

    node_name: str = ""
    restart_policy: str = "Never"
    termination_grace_period_seconds: int = 0


class PodStatus(Wire, frozen=True, gc=False):
    """The status of a pod."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = field(name="podIP", default="")
    start_time: datetime | None = None
    conditions: tuple[ObjectCondition, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(Wire, frozen=True, gc=False):
    """The fields of a pod that decisions read."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Service(Wire, frozen=True, gc=False):
    """A service. Only its existence matters."""

    metadata: Meta


class ConfigMap(Wire, frozen=True, gc=False):
    """A ConfigMap, with its digest among the annotations."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None


class GroupStatus(Wire, frozen=True, gc=False):
    """The phase of a pod group, if its scheduler writes a phase."""

    phase: str = ""


class Extra(Wire, frozen=True, gc=False):
    """A child of the whole job: a pod group or a ConfigMap."""

    kind: str
    metadata: ObjectMeta
    status: GroupStatus | None = None
    #: Pod groups of different schedulers can have the same kind and name.
    api_version: str = ""


class Taint(Wire, frozen=True, gc=False):
    """A taint of a node."""

    key: str = ""
    effect: str = ""
    time_added: datetime | None = None


class NodeSpec(Wire, frozen=True, gc=False):
    """The fields of a node that can prevent the scheduling of pods on it."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeStatus(Wire, frozen=True, gc=False):
    """The conditions and the capacity of a node."""

    conditions: tuple[ObjectCondition, ...] | None = None
    allocatable: dict[str, str] | None = None


#: Conditions that every kubelet reports besides Ready; all are False on a healthy node.
_STANDARD_CONDITIONS = frozenset({"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})


class Node(Wire, frozen=True, gc=True, dict=True):
    """The fields of a node that decisions read."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether the Ready condition is True. We check the last condition first: kubelets write Ready last."""
        conditions = self.status.conditions
        if conditions:
            last = conditions[-1]
            if last.type == "Ready":
                return last.status == "True"
            for condition in conditions:
                if condition.type == "Ready":
                    return condition.status == "True"
        return False

    @cached_property
    def is_healthy(self) -> bool:
        """Whether the node is ready, with no unusual condition and no taint. Cached, because decisions ask often."""
        told = {condition.type: condition.status for condition in self.status.conditions or ()}
        well = told.pop("Ready", "") == "True" and all(told[word] == "False" for word in told)
        return well and told.keys() <= _STANDARD_CONDITIONS and not self.spec.taints


class Event(Wire, frozen=True, gc=False):
    """The fields of an event that we read."""

    metadata: Meta
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None


class LeaseSpec(Wire, frozen=True, gc=False):
    """The holder of a lease, the times of its acquisition and renewal, and the duration."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None


class Lease(Wire, frozen=True, gc=False):
    """The lock of leader election."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()


class Refusal(Struct, frozen=True, gc=False):
    """A child that could not be created: the API server's answer, and the time from which the engine may retry."""

    name: str
    reason: str
    message: str
    retry_at: datetime | None = None
    kind: str = "Pod"
    #: The time of the first refusal.
    since: datetime | None = None
    #: A quota is used up, so similar objects would be refused too.
    quota: bool = False


class Observed(Struct, frozen=True, gc=False):
    """Everything that exists for one job.

    `nodes` is None if nodes are not known; then no node counts as unhealthy. While pods are on a removed node, the node
    stays in `nodes`, as not ready since its removal.
    """

    pods: tuple[Pod, ...] = ()
    services: tuple[Service, ...] = ()
    extras: tuple[Extra, ...] = ()
    nodes: Mapping[str, Node] | None = None
    refusals: tuple[Refusal, ...] = ()
    #: First ports of blocks that other jobs hold; filled only if this job still needs ports.
    ports: frozenset[int] = frozenset()
