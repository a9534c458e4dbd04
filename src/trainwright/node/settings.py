# SPDX-License-Identifier: Apache-2.0
"""What a node agent is told when it starts: the engine makes it, every module here reads it.

Times are Kubernetes' own unless a test says otherwise.
"""

from typing import Literal

from msgspec import Struct, field

from trainwright import __version__
from trainwright.jsonlines import SUPERVISOR_PROTOCOL
from trainwright.node.devices.inventory import DeviceSet
from trainwright.node.supervisor.protocol import Config, NetworkConfig

Runtime = Literal["sandbox", "process"]
#: The engine's verb by which an agent in a process of its own says that it is alive.
HEARTBEAT = "heartbeat"
CHOSEN = "every pod has its own network, processes and mounts"
PLAIN = "pods are plain processes that share this machine's network and files"


class AgentDelays(Struct, frozen=True, kw_only=True):
    """How long the agent waits before it does a thing (again), in seconds."""

    #: Before a container's second restart; doubles with each further one up to `longest`.
    backoff: float = 10.0
    longest: float = 300.0
    #: A container that ran so long begins with a short back-off again.
    calm: float = 600.0
    #: Before a container that cannot be configured is tried again.
    retry: float = 3.0
    #: The part of a token's life after which a pod is given another.
    refresh: float = 0.5
    #: Changes of a status within this time are one write.
    debounce: float = 0.02
    #: After an API that does not answer; doubles up to `patience`.
    unavailable: float = 0.2
    patience: float = 5.0
    #: Seconds that a container gets after SIGTERM even if its preStop hook used up the grace period.
    least_grace: float = 2.0


class AgentSettings(Struct, frozen=True, kw_only=True):
    """One node: its name, what it offers, where it keeps its files."""

    node: str
    runtime: Runtime
    #: The folder of the run: logs, pods, hosts and nodes are below it.
    folder: str
    #: The folder of the PersistentVolumeClaims, which outlives runs.
    volumes: str
    #: Working directory of containers that name none.
    cwd: str
    #: Keep the files of pods that are gone.
    keep: bool = False
    #: This machine's own address, as pods are told it.
    address: str = "127.0.0.1"
    labels: dict[str, str] = field(default_factory=dict)
    capacity: dict[str, str] = field(default_factory=dict)
    #: None: everything.
    allocatable: dict[str, str] | None = None
    #: The devices of the node, by resource name.
    devices: dict[str, DeviceSet] = field(default_factory=dict)
    #: The scheduler leases devices and says which in the pod's annotation: pods wait for that.
    scheduled: bool = False
    #: Environment that every container starts from: see `environment.passed`.
    passed: dict[str, str] = field(default_factory=dict)
    #: Variables that replace those of pods. They may be secrets: they are never written to a file or a command line.
    env: dict[str, str] = field(default_factory=dict)
    #: Folders below /tmp that stay visible where /tmp is private to a pod.
    visible: tuple[str, ...] = ()
    #: A file of a log has so many bytes, and so many files are kept with the one that is written.
    rotate: tuple[int, int] = (10 << 20, 5)
    #: Seconds between signs of life on the node object; 0: none.
    heartbeat: float = 0.0
    #: Seconds until a supervisor that is stopped is killed; see `local.silence` for one that only does not answer.
    node_grace: float = 10.0
    #: What becomes of the pods when the agent dies.
    orphans: Literal["end", "keep"] = "end"
    #: The supervisor's `network`: subnet and, where several agents share one, its holder.
    network: NetworkConfig | None = None
    #: Pods may reach what is outside this machine.
    outside: bool = True
    #: It stands in for a kubelet, on an API server that others use too: it gives its pods their addresses, judges
    #: whether they fit, and its node looks like any other.
    kubelet: bool = False
    #: Whose processes pods are: this user's, whatever they ask for.
    user: int = 0
    #: The addresses that it gives, where its pods have some of their own.
    range: str = ""
    #: Taints that a new node begins with, as the API has them.
    taints: tuple[dict[str, str], ...] = ()
    #: Where logs are served; 0: nowhere.
    port: int = 0
    pace: AgentDelays = AgentDelays()

    @property
    def sandboxed(self) -> bool:
        """Pods have a network, a file system and a process space of their own."""
        return self.runtime == "sandbox"

    def supervisor(self, leases: int | None = None) -> Config:
        """The configuration of this node's supervisor; `leases` is the descriptor of the socket of the leases."""
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
