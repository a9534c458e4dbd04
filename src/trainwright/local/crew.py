# SPDX-License-Identifier: Apache-2.0
"""Node agents as processes of their own, for `--nodes N`. `fleet` makes it; each process runs `agent.main`.

In the sandbox they share one network, kept by a process of its own, so that no node's death takes it along.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import trainwright
from trainwright.errors import ApiError, EngineError
from trainwright.local.agent.main import Config
from trainwright.local.agent.settings import Settings as Node
from trainwright.local.devices.pool import DevicePool
from trainwright.local.scheduling.liveness import node_lost
from trainwright.local.settings import SOCKET, Settings
from trainwright.model.meta import Key
from trainwright.runtime.ports import Clock, Cluster
from trainwright.runtime.resources import NODES

_PATIENCE = 30.0


class Crew:
    """The agents, and what became of them."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: Settings, devices: DevicePool) -> None:
        self._devices = devices
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        self._holder: Process | None = None
        self._spaces: dict[str, int] = {}
        self._agents: dict[str, Process] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def prepare(self, subnet: str) -> None:
        """Have the network that all nodes share; none is needed without a subnet. Raises EngineError."""
        if not subnet:
            return
        self._holder = await _python("trainwright.local.supervisor.holder", subnet, stdin=PIPE)
        assert self._holder.stdout is not None  # noqa: S101 - it is a pipe
        told = await asyncio.wait_for(self._holder.stdout.readline(), _PATIENCE)
        if not told:
            raise EngineError("the network of the nodes could not be made")
        self._spaces = {name: os.open(path, os.O_RDONLY) for name, path in msgspec.json.decode(told).items() if path}

    async def start(self, nodes: Sequence[Node]) -> None:
        """Every agent up, and its node ready."""
        for node in nodes:
            self._agents[node.node] = await self._launch(node)
        loop = asyncio.get_running_loop()
        self._watchers = [loop.create_task(self._keep(node)) for node in nodes]
        for node in nodes:
            await self._ready(node.node)

    async def _launch(self, node: Node) -> Process:
        if node.network is not None:
            node = replace(node, network=node.network | {"holder": self._spaces})
        channel = self._devices.channel(node.node)
        config = Config(str(self._settings.folder / SOCKET), node, leases=channel.theirs.fileno())
        text = msgspec.json.encode(config).decode()
        passed = (channel.theirs.fileno(), *self._spaces.values())
        agent = await _python("trainwright.local.agent.main", text, pass_fds=passed)
        channel.handed()
        return agent

    async def _ready(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE
        while not await self._registered(name):
            if self._agents[name].returncode is not None or loop.time() > deadline:
                raise EngineError(f"the agent of {name} did not start")
            await asyncio.sleep(0.02)

    async def _registered(self, name: str) -> bool:
        try:
            node = await self._cluster.get(NODES, Key("", name))
        except ApiError:
            return False
        return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())

    async def _keep(self, node: Node) -> None:
        """Follow a node's agent; once it has died, and if that is asked for, start another after a while."""
        while True:
            await self._follow(node.node, self._agents[node.node])
            if await self._over(self._settings.revive):
                return
            self._settings.notify(f"{node.node} is started again")
            self._agents[node.node] = agent = await self._launch(node)
            if self._stopping.is_set():
                agent.kill()  # `stop` did not know of it

    async def _over(self, wait: float | None) -> bool:
        """Whether that was the end: it is when everything stops within that time."""
        if wait is None:
            return True
        try:
            await asyncio.wait_for(self._stopping.wait(), wait)
        except TimeoutError:
            return False
        return True

    async def _follow(self, name: str, agent: Process) -> None:
        """What an agent has to say; when it ends, its node is lost."""
        assert agent.stdout is not None  # noqa: S101 - it is a pipe
        async for line in agent.stdout:
            self._settings.notify(line.decode(errors="replace").rstrip())
        code = await agent.wait()
        self._devices.node_lost(name)
        if not self._stopping.is_set():
            self._settings.notify(f"{name} is lost: its agent (process {agent.pid}) ended with {code}")
            await node_lost(self._cluster, name, self._clock)

    async def stop(self, grace: float) -> None:
        """Every agent down, with all its pods; those that do not end in time are killed."""
        self._stopping.set()
        alive = [agent for agent in self._agents.values() if agent.returncode is None]
        for agent in alive:
            agent.send_signal(signal.SIGTERM if grace else signal.SIGKILL)
        try:
            async with asyncio.timeout(grace + 5.0):
                await asyncio.gather(*(agent.wait() for agent in alive))
        except TimeoutError:
            for agent in alive:
                if agent.returncode is None:
                    agent.kill()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await self._release()

    async def _release(self) -> None:
        for space in self._spaces.values():
            os.close(space)
        self._spaces = {}
        if self._holder is not None:
            assert self._holder.stdin is not None  # noqa: S101 - it is a pipe
            self._holder.stdin.close()
            await self._holder.wait()


async def _python(module: str, argument: str, *, stdin: int = DEVNULL, pass_fds: tuple[int, ...] = ()) -> Process:
    """Our own Python, in a session of its own so that a Ctrl-C meant for the engine does not reach it."""
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(Path(trainwright.__file__).parents[1])}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        argument,
        stdin=stdin,
        stdout=PIPE,
        pass_fds=pass_fds,
        start_new_session=True,
        env=environment,
    )
