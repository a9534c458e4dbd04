# SPDX-License-Identifier: Apache-2.0
"""What we read of other people's objects: narrow slices, decoded without the rest, plus `Observed`, one job's view.

Backends decode these; `core.observe` reads them. They are never written back: an object that was not decoded in full
must not be PUT. Go servers write `null` for empty lists, so every list here may be None.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import force_setattr

from trainwright.model.meta import Meta, ObjectMeta, Wire

#: The reason of a container that waits for its configuration, such as a ConfigMap.
CONFIG_ERROR = "CreateContainerConfigError"
#: How kubelets, and our own agents, name a ConfigMap that does not exist or lacks a key.
_CONFIG_MAP_NAME = re.compile(r"""configmap\s+["']?(?:[a-z0-9.-]+/)?([\w.-]+)""", re.IGNORECASE)
#: The reason of a container that its kubelet will start again after a while.
BACKING_OFF = "CrashLoopBackOff"


class Waiting(Wire, frozen=True, gc=False):
    """A container that does not run yet."""

    reason: str = ""
    message: str = ""
    #: The ConfigMaps that are missing, or lack a key. Only the message tells their names: they are read from it here,
    #: when the status is decoded, and nobody decides by the message itself.
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
    """Exactly one of the three is set."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Wire, frozen=True, gc=False):
    """The status of one container."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState | None = None
    #: How it was before its kubelet last restarted it.
    last_state: ContainerState | None = None


#: Why a node that was removed is not ready: it is gone for certain, not only silent.
NODE_GONE = "NodeGone"


class ObjectCondition(Wire, frozen=True, gc=False):
    """A condition of a pod or a node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class PodSpec(Wire, frozen=True, gc=False):
    """Where a pod was put, whether its kubelet restarts containers, and how long it may take to end."""

    node_name: str = ""
    restart_policy: str = "Never"
    termination_grace_period_seconds: int = 0


class PodStatus(Wire, frozen=True, gc=False):
    """How a pod is."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = field(name="podIP", default="")
    start_time: datetime | None = None
    conditions: tuple[ObjectCondition, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(Wire, frozen=True, gc=False):
    """A pod as the decision sees it."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Service(Wire, frozen=True, gc=False):
    """A service: that it exists is all we ask."""

    metadata: Meta


class ConfigMap(Wire, frozen=True, gc=False):
    """A config map, with its digest among the annotations."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None


class GroupStatus(Wire, frozen=True, gc=False):
    """The phase of a pod group, where its scheduler writes one."""

    phase: str = ""


class Extra(Wire, frozen=True, gc=False):
    """A child of the whole job: a pod group, a config map."""

    kind: str
    metadata: ObjectMeta
    status: GroupStatus | None = None
    #: Pod groups of several schedulers bear the same kind and name.
    api_version: str = ""


class Taint(Wire, frozen=True, gc=False):
    """A taint of a node."""

    key: str = ""
    effect: str = ""
    time_added: datetime | None = None


class NodeSpec(Wire, frozen=True, gc=False):
    """What keeps pods off a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeStatus(Wire, frozen=True, gc=False):
    """How a node is, and what it offers."""

    conditions: tuple[ObjectCondition, ...] | None = None
    allocatable: dict[str, str] | None = None


#: What every kubelet tells of its node beside that it is ready; none of it holds where all is well.
_STANDARD_CONDITIONS = frozenset({"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})


class Node(Wire, frozen=True, gc=True, dict=True):
    """A node as the decision sees it."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """It says so itself; kubelets write that condition last."""
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
        """It is ready, and nobody says anything out of the ordinary of it: most are like that, for days. Found once."""
        told = {condition.type: condition.status for condition in self.status.conditions or ()}
        well = told.pop("Ready", "") == "True" and all(told[word] == "False" for word in told)
        return well and told.keys() <= _STANDARD_CONDITIONS and not self.spec.taints


class Event(Wire, frozen=True, gc=False):
    """An event, as far as we read it."""

    metadata: Meta
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None


class LeaseSpec(Wire, frozen=True, gc=False):
    """Who leads, since when, for how long."""

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
    """A child that could not be created: the answer that the engine got, and when it may be tried again."""

    name: str
    reason: str
    message: str
    retry_at: datetime | None = None
    kind: str = "Pod"
    #: Since when it has been refused, again and again.
    since: datetime | None = None
    #: A quota is used up, so that others like it would be refused as well.
    quota: bool = False


class Observed(Struct, frozen=True, gc=False):
    """What one job has in the world.

    `nodes` is None where nodes are not known: then no node is ever judged. A node that was removed stays among them, as
    not ready since it was seen to go, for as long as pods are on it.
    """

    pods: tuple[Pod, ...] = ()
    services: tuple[Service, ...] = ()
    extras: tuple[Extra, ...] = ()
    nodes: Mapping[str, Node] | None = None
    refusals: tuple[Refusal, ...] = ()
    #: First ports of the blocks that other jobs hold; only given where this one still needs some.
    ports: frozenset[int] = frozenset()
