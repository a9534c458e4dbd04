# SPDX-License-Identifier: Apache-2.0
"""The nodes of an embedded engine: which runtime they have, and their agents. `engine` starts and stops them.

One node is an agent in the engine's own process. Several, or one that is to be started again when it is lost, are
processes of their own (`agents`) that reach the store through its socket; one that is killed takes its pods along, as a
machine would.
"""

import asyncio
import os
import sys
from contextlib import ExitStack, closing
from pathlib import Path
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
from trainwright.node.settings import CHOSEN, PLAIN
from trainwright.node.settings import AgentSettings as Node
from trainwright.node.supervisor.launch import Process
from trainwright.node.watchdog import fence, unkillable
from trainwright.runtime.ports import Clock, Cluster

if TYPE_CHECKING:
    from trainwright.local.agents import AgentProcesses

#: Seconds for a supervisor to end what is left of its pods.
_PATIENCE = 3.0


class NodePool:
    """All nodes of one engine."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: EngineSettings) -> None:
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        shares = machine.share(machine.machine(settings.devices), settings.nodes)
        self._nodes = [_node(settings, f"node-{index}", share) for index, share in enumerate(shares)]
        self.devices = DevicePool({node.node: node.devices for node in self._nodes}, settings.folder.name, clock)
        self._leases = ExitStack()
        self._link: SupervisorLink | None = None
        self._agent: Agent | None = None
        self._crew: AgentProcesses | None = None
        self.runtime = settings.runtime
        self.choice = ""
        #: The addresses of pods, where they have some of their own.
        self.subnet = ""

    async def prepare(self) -> None:
        """Settle on a runtime: the sandbox if it works here, unless another one is asked for. Raises EngineError."""
        if self._settings.runtime == "process":
            await self._settle("process", PLAIN)
            return
        try:
            await self._settle("sandbox", CHOSEN)
        except EngineError as error:
            if self._settings.runtime == "sandbox":
                raise EngineError(f"the sandbox runtime does not work here: {error}") from None
            await self._settle("process", f"{PLAIN}; the sandbox does not work here: {error}")

    async def _settle(self, runtime: str, why: str) -> None:
        if runtime == "sandbox" and sys.platform != "linux":
            raise EngineError("it needs Linux")
        self._leases.close()
        subnet, network = "", None
        if runtime == "sandbox":
            leased = lease()
            self._leases.callback(leased.close)
            subnet, network = leased.subnet, {"subnet": leased.subnet, "holder": None}
        self._nodes = [replace(node, runtime=runtime, network=network) for node in self._nodes]
        if len(self._nodes) == 1 and self._settings.revive is None:
            channel = self.devices.channel(self._nodes[0].node)
            self._link = await SupervisorLink.begin(self._nodes[0].supervisor(channel.theirs.fileno()))
            channel.handed()
        else:
            from trainwright.local.agents import AgentProcesses  # noqa: PLC0415 - hardly any run needs it

            self._crew = AgentProcesses(self._cluster, self._clock, self._settings, self.devices)
            await self._crew.prepare(subnet)
        self.runtime, self.choice, self.subnet = runtime, why, subnet

    async def heartbeat(self, request: HeartbeatRequest) -> None:
        """An agent in a process of its own says that it is alive."""
        if self._crew is not None:
            await self._crew.heartbeat(request)

    async def start(self) -> None:
        """Every node registered and ready for pods."""
        if self._crew is not None:
            await self._crew.start(self._nodes)
        elif self._link is not None:
            self._agent = Agent(self._cluster, self._link, self._clock, self._nodes[0], self._settings.notify)
            for notice in self._link.ready.result()["notices"]:
                self._settings.notify(notice)
            await self._agent.start()

    async def stop(self, grace: float) -> None:
        """All nodes down, and nothing left of their pods."""
        if self._agent is not None:
            await self._stop_agent(self._agent, grace)
        elif self._link is not None:
            await self._link.close()
        if self._crew is not None:
            await self._crew.stop(grace)
        if self.runtime == "sandbox" and self._may_have_left():
            from trainwright.node.supervisor.outside import tidy  # noqa: PLC0415 - rarely needed

            await asyncio.to_thread(tidy)
        self.devices.close()
        self._leases.close()

    def _may_have_left(self) -> bool:
        """Whether one was killed that had rules on this machine. The keeper of a crew's network may have been."""
        return self._crew is not None or (self._link is not None and (self._link.process.returncode or 0) < 0)

    async def _stop_agent(self, agent: Agent, grace: float) -> None:
        """Its supervisor answers at once, or is beyond answering; then its end is the end of its pods."""
        stopping = asyncio.ensure_future(agent.stop(grace))
        done, _ = await asyncio.wait({stopping}, timeout=grace + _PATIENCE)
        if not done and self._link is not None:
            name, notify = self._nodes[0].node, self._settings.notify
            with closing(Process(self._link.process.pid)) as supervisor:
                await fence(supervisor, self._link.folder, lambda left: notify(unkillable(name, left)))
        await stopping


def _node(settings: EngineSettings, name: str, share: machine.NodeCapacity) -> Node:
    return Node(
        node=name,
        runtime="process",
        folder=str(settings.folder),
        volumes=str(settings.volumes),
        cwd=str(settings.working),
        keep=settings.keep,
        capacity=share.capacity(),
        devices=share.devices,
        scheduled=True,
        node_grace=settings.node_grace,
        passed=passed(os.environ),
        env=settings.env,
        visible=_visible(settings),
    )


def _visible(settings: EngineSettings) -> tuple[str, ...]:
    """What must not disappear with the machine's /tmp: where the user stands, the Python that runs this, and theirs."""
    theirs = [path for path in [os.environ.get("VIRTUAL_ENV", "")] if Path(path).is_absolute()]
    return tuple(dict.fromkeys(str(path) for path in (settings.working, sys.prefix, sys.base_prefix, *theirs)))
