# SPDX-License-Identifier: Apache-2.0
"""The single node of a detached engine. Its agent runs in the engine's process; its supervisor outlives the engine.

A detached engine runs for days, so it cannot end because its only node is lost: after the death of the supervisor the
pods are lost, and the node starts again with a new supervisor.
"""

import asyncio
from collections.abc import Callable

from trainwright.errors import ApiError, EngineError
from trainwright.node import adoption
from trainwright.node.agent import Agent
from trainwright.node.devices.pool import DevicePool
from trainwright.node.link import SupervisorLink
from trainwright.node.node_object import AgentNode
from trainwright.node.settings import AgentSettings
from trainwright.node.watches import end_tasks
from trainwright.runtime.ports import Clock, Cluster

#: Seconds until a node that failed is started again. The wait doubles up to the maximum while the node fails quickly.
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.1, 10.0
#: A node that ran for this many seconds has started well, so the next failure begins with a short wait again.
_STABLE_SECONDS = 30.0


class KeptNode:
    """One node. Call `prepare`, then `start`, then `stop`."""

    def __init__(self, cluster: Cluster, clock: Clock, devices: DevicePool, notify: Callable[[str], None]) -> None:
        self._cluster, self._clock, self._devices, self._notify = cluster, clock, devices, notify
        self._settings: Callable[[], AgentSettings]
        self._link: SupervisorLink | None = None
        self._agent: Agent | None = None
        self._failed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def prepare(self, settings: Callable[[], AgentSettings]) -> None:
        """Attach to the living supervisor, or start one. `settings` is called for each supervisor. Raises EngineError.

        A supervisor with another protocol is drained later, in the background, since this can take days.
        """
        self._settings = settings
        try:
            self._link = await self._connect(adoption.connect)
        except adoption.OtherProtocolError:
            self._link = None

    async def start(self) -> None:
        """Start the agent, and keep the node running."""
        if self._link is not None:
            await self._start_agent(self._link)
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self, grace: float, *, keep_running: bool) -> None:
        """Leave the pods to the next engine, or end them and the supervisor."""
        await end_tasks(self._keeper)
        agent, link = self._agent, self._link
        if agent is not None:
            await (agent.detach() if keep_running else agent.stop_within(grace))
        elif link is not None:
            await link.close(end=not keep_running)
        if not keep_running:  # the supervisor may be one that is drained, or one that was just being started
            await adoption.end_supervisor(adoption.folder_of(self._settings().supervisor()))

    async def _connect(self, connect: adoption.Connect) -> SupervisorLink:
        settings = self._settings()
        channel = self._devices.channel(settings.node)
        link = await connect(settings.supervisor(channel.theirs.fileno()))
        channel.handed()
        self._devices.take_over(settings.node, link.process.pid, asyncio.get_running_loop().time())
        return link

    async def _start_agent(self, link: SupervisorLink) -> None:
        self._link, self._failed = link, asyncio.Event()
        self._agent = Agent(self._cluster, link, self._clock, self._settings(), self._notify)
        self._agent.on_failed = self._failed.set
        for notice in link.ready.result()["notices"]:
            self._notify(notice)
        await self._agent.start()

    async def _keep(self) -> None:
        """Start the node again whenever it has failed."""
        loop = asyncio.get_running_loop()
        wait = _FIRST_WAIT_SECONDS
        while True:
            if self._agent is not None:
                began = loop.time()
                await self._failed.wait()
                await self._leave()
                wait = _FIRST_WAIT_SECONDS if loop.time() - began > _STABLE_SECONDS else wait
                await asyncio.sleep(wait)
                wait = min(2 * wait, _MAX_WAIT_SECONDS)
            await self._start_again()

    async def _leave(self) -> None:
        """Give up the failed agent. If its supervisor is lost, its devices are free when its last process has ended."""
        agent, self._agent, self._link = self._agent, None, None
        if agent is None:
            return
        is_lost = not agent.context.link.alive
        await agent.detach()
        if is_lost:
            self._devices.node_lost(agent.context.settings.node)

    async def _start_again(self) -> None:
        settings = self._settings()
        node = AgentNode(self._cluster, self._clock, settings)
        wait = _FIRST_WAIT_SECONDS
        while True:
            try:
                link = await self._connect(lambda config: adoption.connect_or_drain(config, node, self._notify))
                await self._start_agent(link)
            except (EngineError, ApiError, OSError) as error:
                self._notify(f"{settings.node} cannot be started: {error}")
                await self._leave()
                await asyncio.sleep(wait)
                wait = min(2 * wait, _MAX_WAIT_SECONDS)
            else:
                self._notify(f"{settings.node} is started again")
                return
