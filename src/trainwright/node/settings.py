# SPDX-License-Identifier: Apache-2.0
"""The settings of a node agent. The default delays are the delays of Kubernetes."""

from typing import Literal

from msgspec import Struct, field

from trainwright import __version__
from trainwright.jsonlines import SUPERVISOR_PROTOCOL
from trainwright.node.devices.inventory import DeviceSet
from trainwright.node.supervisor.protocol import Config, NetworkConfig

Runtime = Literal["sandbox", "process"]
#: The name of the engine call with which an agent in a process of its own shows that the agent is alive.
HEARTBEAT = "heartbeat"
CHOSEN = "every pod has its own network, processes and mounts"
PLAIN = "pods are plain processes that share this machine's network and files"


class AgentDelays(Struct, frozen=True, kw_only=True):
    """How long the agent waits, in seconds."""

    #: The wait before the second restart of a container. The wait doubles with each further restart up to the maximum.
    restart_backoff: float = 10.0
    max_restart_backoff: float = 300.0
    #: After a container has run for this time, its next restart does not wait.
    backoff_reset: float = 600.0
    #: The wait before the agent tries again to configure a container.
    config_retry: float = 3.0
    #: The agent renews a token after this part of the token's lifetime. This number has no unit.
    token_refresh_share: float = 0.5
    #: Changes of a status within this time become one write.
    debounce: float = 0.02
    #: The wait before a failed request to the API is sent again. The wait doubles up to the maximum.
    api_retry: float = 0.2
    max_api_retry: float = 5.0
    #: A container gets at least this time after SIGTERM, even if its preStop hook used up the grace period.
    min_grace: float = 2.0


class AgentSettings(Struct, frozen=True, kw_only=True):
    """One node: its name, what it offers, where it keeps its files."""

    node: str
    runtime: Runtime
    #: The folder of the run, with the subfolders logs, pods and nodes.
    folder: str
    #: The folder of the PersistentVolumeClaims, which outlives runs.
    volumes: str
    #: The working directory of containers that do not set a working directory.
    cwd: str
    #: Whether the agent keeps the files of pods whose objects are gone.
    keep: bool = False
    #: The address of this machine (`hostIP`); also the address of pods that have no address of their own.
    address: str = "127.0.0.1"
    labels: dict[str, str] = field(default_factory=dict)
    capacity: dict[str, str] = field(default_factory=dict)
    #: The resources that pods may use; None: the whole capacity.
    allocatable: dict[str, str] | None = None
    #: The devices of the node, by resource name.
    devices: dict[str, DeviceSet] = field(default_factory=dict)
    #: Whether the engine's scheduler chooses devices, leases them and lists them in an annotation of the pod.
    scheduled: bool = False
    #: The variables of this process that every container inherits: see `environment.passed`.
    passed: dict[str, str] = field(default_factory=dict)
    #: Variables that replace variables of pods. A value may be secret: never write it to a file or a command line.
    env: dict[str, str] = field(default_factory=dict)
    #: Folders below /tmp that stay visible in pods that have a /tmp of their own.
    visible: tuple[str, ...] = ()
    #: The maximum size of one log file in bytes, and the number of files to keep, including the current file.
    rotate: tuple[int, int] = (10 << 20, 5)
    #: Seconds between heartbeats on the node object; 0: no heartbeats.
    heartbeat: float = 0.0
    #: Seconds until a supervisor that was stopped (SIGSTOP) is killed; `silence` computes other limits from this.
    silence_grace: float = 10.0
    #: Whether pods end or continue when the agent dies.
    orphans: Literal["end", "keep"] = "end"
    #: The network of the supervisor: the subnet and, if several agents share a network, the process that holds it.
    network: NetworkConfig | None = None
    #: Whether pods can reach addresses outside this machine.
    outside: bool = True
    #: Whether the agent replaces a kubelet, in a cluster other than the embedded engine. Such an agent assigns
    #: addresses to its pods, checks whether the pods fit on the node, and writes a complete Node object.
    kubelet: bool = False
    #: The user ID of all processes on this node; a pod that asks for another user is refused.
    user: int = 0
    #: The addresses that the agent assigns to its pods, as a CIDR; empty: it assigns no addresses.
    range: str = ""
    #: The taints of a new Node object, in the form of the API.
    taints: tuple[dict[str, str], ...] = ()
    #: The port that serves logs; 0: logs are not served.
    port: int = 0
    delays: AgentDelays = AgentDelays()

    @property
    def sandboxed(self) -> bool:
        """Whether pods have their own network, file system and process IDs."""
        return self.runtime == "sandbox"

    @property
    def offered(self) -> dict[str, str]:
        """The resources that pods may use."""
        return self.capacity if self.allocatable is None else self.allocatable

    def supervisor(self, leases: int | None = None) -> Config:
        """The configuration of the supervisor; `leases` is the descriptor of a socket that receives device leases."""
        return {
            "protocol": SUPERVISOR_PROTOCOL,
            "version": __version__,
            "folder": f"{self.folder}/nodes/{self.node}",
            "runtime": self.runtime,
            "orphans": self.orphans,
            "network": self.network,
            "outside": self.outside,
            "rotate": list(self.rotate),
            "stamps": self.kubelet,
            "leases": leases,
        }
