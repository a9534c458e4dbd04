# SPDX-License-Identifier: Apache-2.0
"""The nodes of a detached engine: they outlive the engine, and the next engine of the same folder continues with them.

A single node has its agent in the engine's process (`kept_node`), several nodes have agents in their own processes
(`agents`). Pods that run keep their runtime, subnet, addresses and devices.
"""

import os
from contextlib import ExitStack, suppress

from msgspec.structs import replace

from trainwright.errors import EngineError
from trainwright.local import persistent
from trainwright.local.agents import AgentProcesses
from trainwright.local.kept_node import KeptNode
from trainwright.local.scheduling.scheduler import mark_node_lost
from trainwright.local.settings import EngineSettings
from trainwright.local.sockets.protocol import HeartbeatRequest
from trainwright.node import adoption
from trainwright.node.devices.pool import DevicePool
from trainwright.node.network.pools import SubnetLease, lease
from trainwright.node.pod_devices import scheduled_devices
from trainwright.node.settings import AgentSettings, Runtime
from trainwright.node.supervisor import identity
from trainwright.node.supervisor.protocol import NetworkConfig
from trainwright.runtime.ports import NODES, PODS, Clock, Cluster


class DetachedNodes:
    """All nodes of one detached engine. Call `take_stock`, `prepare`, `start` and `stop`."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: EngineSettings, devices: DevicePool) -> None:
        self._cluster, self._clock, self._settings, self._devices = cluster, clock, settings, devices
        self._before = persistent.load(settings.folder)
        #: The number on which the ranges of loopback addresses and ports depend: that of the first engine.
        self.seed = self._before.seed if self._before is not None else os.getpid()
        self._leases = ExitStack()
        self._lease = SubnetLease("", -1)
        self._nodes: list[AgentSettings] = []
        self._node: KeptNode | None = None
        self._agents = AgentProcesses(cluster, clock, settings, devices) if settings.nodes > 1 else None

    @property
    def runtime(self) -> Runtime | None:
        """The runtime of pods that still run; None if none runs, so that this engine is free to choose."""
        folders = persistent.node_folders(self._settings.folder)
        lives = any(identity.lives(str(node)) for node in folders)
        return self._before.runtime if self._before is not None and lives else None

    async def take_stock(self, names: set[str]) -> None:
        """Learn what earlier engines have left. `names` are the nodes of this engine; other nodes are ended.

        The devices of pods must be known before any device is granted. Pods of a node that is ended are lost with it.
        """
        pods = (await self._cluster.list(PODS.whole())).items
        living = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
        self._devices.claim((pod, found) for pod in living if (found := scheduled_devices(pod)))
        for folder in [one for one in persistent.node_folders(self._settings.folder) if one.name not in names]:
            if await adoption.end_supervisor(folder):
                self._settings.notify(f"{folder.name} is ended, since this engine does not have it")
        for name in [node["metadata"]["name"] for node in (await self._cluster.list(NODES.whole())).items]:
            if name not in names:
                await mark_node_lost(self._cluster, name, self._clock, "the engine no longer has this node")

    async def prepare(self, nodes: list[AgentSettings], runtime: Runtime) -> str:
        """Get ready to run pods with this runtime, and return their subnet. Raises EngineError."""
        before = self._before.subnet if self._before is not None else ""
        self._nodes = [replace(node, runtime=runtime) for node in nodes]
        subnet = ""
        if runtime == "sandbox":
            subnet = await (self._lease_subnet(before) if self._agents is None else self._agents.join_network(before))
        persistent.save(self._settings.folder, persistent.NetworkRecord(runtime, subnet, self.seed))
        if self._agents is None:
            self._node = KeptNode(self._cluster, self._clock, self._devices, self._settings.notify)
            await self._node.prepare(self._settings_with_lease)
        elif subnet:
            self._nodes = [replace(node, network={"subnet": subnet, "holder": None}) for node in self._nodes]
        return subnet

    async def start(self) -> None:
        """Start the agents."""
        if self._node is not None:
            await self._node.start()
        elif self._agents is not None:
            await self._agents.start(self._nodes)

    async def heartbeat(self, request: HeartbeatRequest) -> None:
        """Record a heartbeat from an agent that has its own process."""
        if self._agents is not None:
            await self._agents.heartbeat(request)

    async def stop(self, grace: float, *, keep_running: bool) -> None:
        """Leave all pods to the next engine, or end them with all supervisors."""
        if self._node is not None:
            await self._node.stop(grace, keep_running=keep_running)
        elif self._agents is not None:
            await self._agents.stop(grace, keep_running=keep_running)
        self._leases.close()

    async def _lease_subnet(self, before: str) -> str:
        self._leases.close()
        self._lease = await persistent.lease_again(before, self._settings.folder)
        self._leases.callback(self._lease.close)
        return self._lease.subnet

    def _settings_with_lease(self) -> AgentSettings:
        """The settings for the next supervisor of the single node, which also holds the lease of the subnet."""
        leased = self._lease
        if not leased.subnet:
            return self._nodes[0]
        if leased.fd < 0:  # a supervisor held the lease; perhaps it has died
            with suppress(EngineError):
                again = lease(preferred=leased.subnet)
                if again.subnet == leased.subnet:
                    leased.fd = again.fd
                else:
                    again.close()
        network: NetworkConfig = {"subnet": leased.subnet, "lease": leased.fd if leased.fd >= 0 else None}
        return replace(self._nodes[0], network=network)
