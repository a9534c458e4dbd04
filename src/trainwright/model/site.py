# SPDX-License-Identifier: Apache-2.0
"""The facts about the place where a job runs, as one frozen value."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from trainwright.model.meta import Key


class CreationRules(Struct, frozen=True, gc=False):
    """What happens to pods whose containers cannot be created (image, configuration)."""

    #: Seconds for which such pods are replaced, from the first such pod of a replica.
    restart_period: float = 1800.0
    #: Seconds after which such a pod is replaced.
    duration_period: float = 900.0
    #: Whether the replica fails after `restart_period`; otherwise it waits.
    fail: bool = False


class DeviceRules(Struct, frozen=True, gc=False):
    """Which resources are GPUs, and how their failure is recognized."""

    resources: frozenset[str] = frozenset({"nvidia.com/gpu", "amd.com/gpu"})
    #: Conditions of nodes that mean a failure, by type and status.
    conditions: frozenset[tuple[str, str]] = frozenset(
        {
            # node-problem-detector on AKS
            ("GPUMissing", "True"),
            ("NVLinkStatusInactive", "True"),
            ("XIDErrors", "True"),
            ("UnhealthyNvidiaDevicePlugin", "True"),
            # NVIDIA's NVSentinel: DCGM health watches, and Xid errors from the kernel log
            ("GpuMemWatch", "True"),
            ("GpuPcieWatch", "True"),
            ("GpuNvlinkWatch", "True"),
            ("GpuSmWatch", "True"),
            ("GpuDriverWatch", "True"),
            ("GpuInforomWatch", "True"),
            ("GpuNvswitchFatalWatch", "True"),
            ("SysLogsXIDError", "True"),
            ("SysLogsSXIDError", "True"),
            ("SysLogsGPUFallenOff", "True"),
            # the node monitoring agent of EKS
            ("AcceleratedHardwareReady", "False"),
        }
    )
    #: Keys of taints that mean a failure.
    taints: frozenset[str] = frozenset(
        {"nvidia.com/gpu-health", "nvidia.com/gpu-error", "nvidia.com/gpu-nvlink-error", "nvidia.com/syslog-xid-error"}
    )
    #: Seconds that the failure must last, because a restarting device plugin reports no GPUs for a moment.
    grace: float = 60.0


class SizingRules(Struct, frozen=True, gc=False):
    """How automatically sized roles change their size."""

    #: Seconds that pods may wait for a node before the role shrinks.
    patience: float = 30.0
    #: Seconds after a resize before the role may grow; doubled after each search that finds no node.
    cooldown: float = 60.0


class WaitRules(Struct, frozen=True):
    """The init container in which pods wait until the name of another replica resolves."""

    image: str = "alpine:3.10"
    #: How often the container looks for the name, every two seconds, before it fails.
    tries: int = 100
    #: Containers to use instead of the kind's own; `LEADER` in their texts means the name of the other replica.
    containers: tuple[Mapping[str, Any], ...] = ()


#: Stands for the name of the awaited replica in `WaitRules.containers`.
LEADER = "trainwright-leader-name"


class Endpoints(Struct, frozen=True, gc=False):
    """A role whose replica addresses are written into pods: prefix of the replica names, number of replicas, ports."""

    stem: str
    replicas: int
    ports: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the replicas."""
        return tuple(f"{self.stem}{index}" for index in range(self.replicas))


class Site(Struct, frozen=True):
    """Cluster domain, operator settings, installed gang APIs, and how addresses are written."""

    #: The cluster domain. Kinds that write full host names append it to each host name.
    domain: str = ""
    #: Installed gang APIs, as `group/version`.
    gangs: frozenset[str] = frozenset()
    #: Seconds that a node may be not ready before its pods count as lost.
    node_grace: float = 60.0
    #: Seconds after the deletionTimestamp of a pod on a lost node until we delete the pod by force.
    linger: float = 30.0
    #: GPUs and their failures.
    devices: DeviceRules = DeviceRules()
    #: Seconds that a failed node must be healthy before it gets another replica.
    node_quarantine: float = 120.0
    #: Automatically sized roles.
    sizing: SizingRules = SizingRules()
    #: What happens if containers cannot be created, for roles without their own setting.
    creating: CreationRules = CreationRules()
    #: The scheduler for gangs, if a kind leaves the choice to the operator; empty: none.
    gang_scheduler: str = ""
    #: Where elastic jobs look up their size, as `host:port,…`; empty: nowhere.
    elastic_server: str = ""
    #: First and last of the node ports that may be assigned to replicas.
    host_ports: tuple[int, int] = (35000, 65000)
    #: How pods wait for the name of another replica; None: they are created only after the other replica runs.
    waiting: WaitRules | None = WaitRules()
    #: The place has an autoscaler (HorizontalPodAutoscaler).
    has_autoscaler: bool = True
    #: Replicas can be reached by name. If not (process runtime), they share the ports of one machine, and the
    #: engine reserves a host and ports for each replica before it calls `reconcile`.
    names_resolve: bool = True
    #: Reserved hosts, by job and replica name.
    hosts: Mapping[tuple[Key, str], str] = MappingProxyType({})
    #: Reserved ports, by job, replica name and normal port: the port that the kind uses if names resolve.
    ports: Mapping[tuple[Key, str, int], int] = MappingProxyType({})

    @property
    def patience(self) -> float | None:
        """Seconds after which a container that cannot be created fails its replica; None: never."""
        return self.creating.restart_period if self.creating.fail else None

    def host(self, job: Key, name: str) -> str:
        """Return the host of the replica with this name."""
        return name if self.names_resolve else self.hosts.get((job, name), name)

    def port(self, job: Key, name: str, port: int) -> int:
        """Return the real port of the replica with this name: the port reserved for `port`, or `port` itself."""
        return port if self.names_resolve else self.ports.get((job, name, port), port)
