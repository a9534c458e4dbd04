# SPDX-License-Identifier: Apache-2.0
"""The facts of the place a job runs in, as one frozen value. Engines make it; `core` and the dialects read it."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from trainwright.model.meta import Key


class CreationRules(Struct, frozen=True, gc=False):
    """What becomes of pods whose containers cannot be created: their image, their configuration."""

    #: For so many seconds they are tried again and again.
    restart_period: float = 1800.0
    #: Seconds after which one such pod is replaced, within that time.
    duration_period: float = 900.0
    #: After that time the replica fails; else it is waited for.
    fail: bool = False


class DeviceRules(Struct, frozen=True, gc=False):
    """What counts as a GPU, and how it is known that those of a node have failed."""

    resources: frozenset[str] = frozenset({"nvidia.com/gpu", "amd.com/gpu"})
    #: Conditions of nodes, by type and status.
    conditions: frozenset[tuple[str, str]] = frozenset(
        {
            # node-problem-detector as AKS sets it up
            ("GPUMissing", "True"),
            ("NVLinkStatusInactive", "True"),
            ("XIDErrors", "True"),
            ("UnhealthyNvidiaDevicePlugin", "True"),
            # NVIDIA's NVSentinel: what DCGM watches, and Xids from the kernel's log
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
    #: Keys of taints.
    taints: frozenset[str] = frozenset(
        {
            "nvidia.com/gpu-health",
            "nvidia.com/gpu-error",
            "nvidia.com/gpu-nvlink-error",
            "nvidia.com/syslog-xid-error",
        }
    )
    #: How long that must last, in seconds: a device plugin that is restarted has no GPUs for a moment.
    grace: float = 60.0


class SizingRules(Struct, frozen=True, gc=False):
    """How roles that resize themselves go about it."""

    #: Seconds that pods may be without a place before the role does without them.
    patience: float = 30.0
    #: Seconds after a change of size before more is tried; twice as long each time there is no room.
    cooldown: float = 60.0


class Endpoints(Struct, frozen=True, gc=False):
    """Replicas of one role that others are told of: what their names begin with, how many, and at which ports."""

    stem: str
    replicas: int
    ports: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the replicas."""
        return tuple(f"{self.stem}{index}" for index in range(self.replicas))


class Site(Struct, frozen=True):
    """Cluster domain, the operator's settings, gang APIs found, and how addresses are written."""

    #: Appended to host names where a kind writes full ones.
    domain: str = ""
    #: Gang APIs that were found here, as `group/version`.
    gangs: frozenset[str] = frozenset()
    #: How long a node may be silent before its pods are given up, in seconds.
    node_grace: float = 60.0
    #: How long past its deadline a terminating pod may linger on a lost node before it is removed by force.
    linger: float = 30.0
    #: GPUs, and when they have failed.
    devices: DeviceRules = DeviceRules()
    #: How long a node that failed a replica must be well again before it is trusted with another.
    node_quarantine: float = 120.0
    #: Roles that resize themselves.
    sizing: SizingRules = SizingRules()
    #: Containers that cannot be created, where a role has no word of its own on that.
    creating: CreationRules = CreationRules()
    #: Which scheduler starts gangs, where a kind leaves that to the operator; empty: none.
    gang_scheduler: str = ""
    #: Where elastic jobs agree on their members, as `host:port,…`; empty: nowhere.
    elastic_server: str = ""
    #: Ports of nodes that may be handed out, the first and the last.
    host_ports: tuple[int, int] = (35000, 65000)
    #: A replica can be reached by its name. Where it cannot (process runtime), replicas share the ports of one machine,
    #: and the controller reserves a host and ports for each before it calls `reconcile`.
    names_resolve: bool = True
    #: By job and name of a replica: the host that was reserved for it.
    hosts: Mapping[tuple[Key, str], str] = MappingProxyType({})
    #: By job, name and the port that its kind would use: the port that was reserved for it.
    ports: Mapping[tuple[Key, str, int], int] = MappingProxyType({})

    @property
    def patience(self) -> float | None:
        """Seconds after which a container that cannot be created fails its replica; None: it is waited for."""
        return self.creating.restart_period if self.creating.fail else None

    def host(self, job: Key, name: str) -> str:
        """How others reach the replica called `name`."""
        return name if self.names_resolve else self.hosts.get((job, name), name)

    def port(self, job: Key, name: str, port: int) -> int:
        """At which port others reach the replica called `name`, where its kind hands out `port`."""
        return port if self.names_resolve else self.ports.get((job, name, port), port)
