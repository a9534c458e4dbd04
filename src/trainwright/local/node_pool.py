# SPDX-License-Identifier: Apache-2.0
"""The nodes of an embedded engine: chooses the runtime of the nodes, and starts and stops their agents.

The agent of a single node runs in the engine's process. If there are several nodes, or if lost nodes are started again,
each agent has its own process (`agents`) and uses the store through the engine's socket. If such an agent is killed,
its pods end with it, as on a machine that fails. The nodes of a detached engine are different (`detached`).
"""

import asyncio
import os
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from trainwright.errors import EngineError
from trainwright.local.settings import EngineSettings
from trainwright.local.sockets.protocol import HeartbeatRequest
from trainwright.node import machine
from trainwright.node.agent import Agent
from trainwright.node.devices.pool import DevicePool
from trainwright.node.environment import passed
from trainwright.node.link import SupervisorLink
from trainwright.node.network.pools import lease
from trainwright.node.settings import CHOSEN, PLAIN, AgentSettings, Runtime
from trainwright.node.submission import visible_folders
from trainwright.runtime.ports import Clock, Cluster

if TYPE_CHECKING:
    from trainwright.local.agents import AgentProcesses
    from trainwright.local.detached import DetachedNodes


class NodePool:
    """All nodes of one engine."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: EngineSettings) -> None:
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        shares = machine.share(machine.machine(settings.devices), settings.nodes)
        self._nodes = [_agent_settings(settings, f"node-{index}", share) for index, share in enumerate(shares)]
        self.devices = DevicePool({node.node: node.devices for node in self._nodes}, settings.folder.name, clock)
        self._leases = ExitStack()
        self._link: SupervisorLink | None = None
        self._agent: Agent | None = None
        self._agent_processes: AgentProcesses | None = None
        self._detached: DetachedNodes | None = None
        #: The number on which the ranges of loopback addresses and ports depend.
        self.seed = os.getpid()
        if settings.detached:
            from trainwright.local import detached  # noqa: PLC0415 - `trainwright run` does not need it

            self._detached = detached.DetachedNodes(cluster, clock, settings, self.devices)
            self.seed = self._detached.seed
        self.runtime = settings.runtime
        self.choice = ""
        #: The network of the pods; empty in the process runtime.
        self.subnet = ""

    async def prepare(self) -> None:
        """Set up the runtime of the settings. `auto`: sandbox, or process if the sandbox fails. Raises EngineError.

        `auto` continues with the runtime of pods of an earlier engine, as long as they run.
        """
        if self._detached is not None:
            await self._detached.take_stock({node.node for node in self._nodes})
            before = self._detached.runtime
            if before and self._settings.runtime in ("auto", before):
                await self._use_runtime(before, CHOSEN if before == "sandbox" else PLAIN)
                return
        if self._settings.runtime == "process":
            await self._use_runtime("process", PLAIN)
            return
        try:
            await self._use_runtime("sandbox", CHOSEN)
        except EngineError as error:
            if self._settings.runtime == "sandbox":
                raise EngineError(f"the sandbox runtime does not work here: {error}") from None
            await self._use_runtime("process", f"{PLAIN}; the sandbox does not work here: {error}")

    async def _use_runtime(self, runtime: Runtime, reason: str) -> None:
        if runtime == "sandbox" and sys.platform != "linux":
            raise EngineError("it needs Linux")
        self._leases.close()
        subnet, network = "", None
        if self._detached is not None:
            subnet = await self._detached.prepare(self._nodes, runtime)
            self.runtime, self.choice, self.subnet = runtime, reason, subnet
            return
        if runtime == "sandbox":
            subnet = self._leases.enter_context(closing(lease())).subnet
            network = {"subnet": subnet, "holder": None}
        self._nodes = [replace(node, runtime=runtime, network=network) for node in self._nodes]
        if len(self._nodes) == 1 and self._settings.revive is None:
            channel = self.devices.channel(self._nodes[0].node)
            self._link = await SupervisorLink.begin(self._nodes[0].supervisor(channel.theirs.fileno()))
            channel.handed()
        else:
            from trainwright.local.agents import AgentProcesses  # noqa: PLC0415 - most runs do not need it

            self._agent_processes = AgentProcesses(self._cluster, self._clock, self._settings, self.devices)
            await self._agent_processes.prepare(subnet)
        self.runtime, self.choice, self.subnet = runtime, reason, subnet

    async def heartbeat(self, request: HeartbeatRequest) -> None:
        """Record a heartbeat from an agent that has its own process."""
        nodes = self._detached or self._agent_processes
        if nodes is not None:
            await nodes.heartbeat(request)

    async def start(self) -> None:
        """Start the agents; returns when every node is ready for pods."""
        if self._detached is not None:
            await self._detached.start()
        elif self._agent_processes is not None:
            await self._agent_processes.start(self._nodes)
        elif self._link is not None:
            self._agent = Agent(self._cluster, self._link, self._clock, self._nodes[0], self._settings.notify)
            for notice in self._link.ready.result()["notices"]:
                self._settings.notify(notice)
            await self._agent.start()

    async def stop(self, grace: float, *, keep_running: bool = False) -> None:
        """Stop all nodes and all their pods. `keep_running`: leave the pods of a detached engine to the next engine."""
        if self._detached is not None:
            await self._detached.stop(grace, keep_running=keep_running)
        elif self._agent is not None:
            await self._agent.stop_within(grace)
        elif self._link is not None:
            await self._link.close()
        if self._agent_processes is not None:
            await self._agent_processes.stop(grace)
        # If a supervisor or a network holder was killed, its network rules may still exist on this machine.
        killed = self._link is not None and self._link.process.was_killed
        if self.runtime == "sandbox" and (killed or self._agent_processes is not None or self._detached is not None):
            from trainwright.node.supervisor.outside import tidy  # noqa: PLC0415 - rarely needed

            await asyncio.to_thread(tidy)
        self.devices.close()
        self._leases.close()


def _agent_settings(settings: EngineSettings, name: str, share: machine.NodeCapacity) -> AgentSettings:
    return AgentSettings(
        node=name,
        runtime="process",
        folder=str(settings.folder),
        volumes=str(settings.volumes),
        cwd=str(settings.working),
        keep=settings.keep,
        capacity=share.capacity(),
        devices=share.devices,
        scheduled=True,
        silence_grace=settings.silence_grace,
        orphans="keep" if settings.detached else "end",
        passed=passed(os.environ),
        env=settings.env,
        visible=visible_folders(settings.working),
    )
