# SPDX-License-Identifier: Apache-2.0
"""Node agents as processes of their own, for `--nodes N` and `--revive`; each process runs `agent.main`.

In the sandbox they share one network, kept by a process of its own, so that no node's death takes it along. An agent
that falls silent is killed. However an agent has ended: its node counts as lost only when nothing of its pods runs.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import trainwright
from trainwright.errors import ApiError, EngineError
from trainwright.local.agent_main import AgentConfig
from trainwright.local.scheduling.scheduler import node_lost
from trainwright.local.settings import SOCKET, EngineSettings
from trainwright.local.sockets.protocol import HeartbeatRequest
from trainwright.model.meta import Key
from trainwright.node.devices.pool import DevicePool
from trainwright.node.settings import AgentSettings as Node
from trainwright.node.supervisor import launch
from trainwright.node.watchdog import Watchdog, described, hold, see_out, unkillable
from trainwright.runtime.ports import NODES, Clock, Cluster

_PATIENCE = 30.0
#: Seconds for the process that keeps the network to end.
_RELEASE = 5.0


class AgentProcess:
    """One agent: its process, and its supervisor's once it has told that."""

    def __init__(self, node: Node, process: Process) -> None:
        self.node = node
        self.process = process
        self.watchdog = Watchdog(process.pid, node.node_grace)
        #: The agent in words, and why it was killed, where we did that.
        self.title = f"its agent (process {process.pid})"
        self.verdict = ""
        self._held = hold(process.pid, os.getpid())
        self._supervisor: launch.Process | None = None

    def heard(self, heartbeat: HeartbeatRequest) -> None:
        """The agent is alive, and has told which process its supervisor is."""
        if heartbeat["pid"] == self.process.pid:
            self.watchdog.answered()
            self._supervisor = self._supervisor or hold(heartbeat["supervisor"], heartbeat["pid"])

    async def watch(self, notify: Callable[[str], None]) -> None:
        """Kill it when it does not answer any more."""
        silence = await self.watchdog.run(lambda seen: notify(f"{self.node.node}: {self.title} {described(seen)}"))
        self.verdict = f"{self.title} {described(silence)}; it and its pods were killed"
        self.kill()

    def kill(self) -> None:
        """End it at once. SIGKILL also ends a process that is stopped, and a later SIGCONT does not bring it back."""
        if self._held is not None:
            self._held.send(signal.SIGKILL)

    async def see_out(self, notify: Callable[[str], None]) -> None:
        """After its end: until its supervisor and all its pods have ended, too."""
        folder = Path(self.node.supervisor()["folder"])
        if self._supervisor is not None:
            await see_out(self._supervisor, folder, lambda left: notify(unkillable(self.node.node, left)))
        for one in (self._held, self._supervisor):
            if one is not None:
                one.close()
        self._held = self._supervisor = None


class AgentProcesses:
    """The agents, and what became of them."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: EngineSettings, devices: DevicePool) -> None:
        self._devices = devices
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        self._holder: Process | None = None
        self._spaces: dict[str, int] = {}
        self._agents: dict[str, AgentProcess] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def prepare(self, subnet: str) -> None:
        """Have the network that all nodes share; none is needed without a subnet. Raises EngineError."""
        if not subnet:
            return
        self._holder = await _python("trainwright.node.supervisor.holder", subnet, stdin=PIPE)
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

    async def heartbeat(self, heartbeat: HeartbeatRequest) -> None:
        """An agent says that it is alive."""
        agent = self._agents.get(heartbeat["node"])
        if agent is not None:
            agent.heard(heartbeat)

    async def _launch(self, node: Node) -> AgentProcess:
        if node.network is not None:
            node = replace(node, network={**node.network, "holder": self._spaces})
        channel = self._devices.channel(node.node)
        # Everybody can read the arguments of a process, and variables may be secrets.
        config = AgentConfig(str(self._settings.folder / SOCKET), replace(node, env={}), leases=channel.theirs.fileno())
        text = msgspec.json.encode(config).decode()
        fds = (channel.theirs.fileno(), *self._spaces.values())
        process = await _python("trainwright.local.agent_main", text, stdin=PIPE, pass_fds=fds)
        channel.handed()
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(msgspec.json.encode(node.env))
        process.stdin.close()
        return AgentProcess(node, process)

    async def _ready(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE
        while not await self._registered(name):
            if self._agents[name].process.returncode is not None or loop.time() > deadline:
                raise EngineError(f"the agent of {name} did not start")
            await asyncio.sleep(0.02)

    async def _registered(self, name: str) -> bool:
        try:
            node = await self._cluster.get(NODES, Key("", name))
        except ApiError:
            return False
        return bool(node.ready)

    async def _keep(self, node: Node) -> None:
        """Follow a node's agent; once it has died, and if that is asked for, start another after a while."""
        while True:
            await self._follow(self._agents[node.node])
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

    async def _follow(self, agent: AgentProcess) -> None:
        """Tell what an agent has to say, and kill it if it does not answer any more. When it ends, its node is lost."""
        name, process, notify = agent.node.node, agent.process, self._settings.notify
        watching = asyncio.get_running_loop().create_task(agent.watch(notify))
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        async for line in process.stdout:
            notify(line.decode(errors="replace").rstrip())
        code = await process.wait()
        watching.cancel()
        await agent.see_out(notify)
        self._devices.node_lost(name)
        if not self._stopping.is_set():
            why = agent.verdict or f"{agent.title} {_ended(code)}"
            notify(f"{name} is lost: {why}")
            await node_lost(self._cluster, name, self._clock, why)

    async def stop(self, grace: float) -> None:
        """Every agent down, with all its pods; those that do not end in time are killed."""
        self._stopping.set()
        alive = [agent for agent in self._agents.values() if agent.process.returncode is None]
        for agent in alive:
            agent.process.send_signal(signal.SIGTERM if grace else signal.SIGKILL)
        try:
            async with asyncio.timeout(grace + 5.0):
                await asyncio.gather(*(agent.process.wait() for agent in alive))
        except TimeoutError:
            for agent in alive:
                if agent.process.returncode is None:
                    agent.kill()
        await self._see_out()
        await self._release()

    async def _see_out(self) -> None:
        """Until nothing of any pod runs; a process that cannot be killed is not waited for beyond reason."""
        if self._watchers:
            _, late = await asyncio.wait(self._watchers, timeout=_PATIENCE)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._watchers, return_exceptions=True)

    async def _release(self) -> None:
        for space in self._spaces.values():
            os.close(space)
        self._spaces = {}
        if self._holder is not None:
            assert self._holder.stdin is not None  # noqa: S101 - it is a pipe
            self._holder.stdin.close()
            try:
                await asyncio.wait_for(self._holder.wait(), _RELEASE)
            except TimeoutError:
                self._holder.kill()  # it is stopped; `node_pool` clears away what it leaves on this machine
                await self._holder.wait()


def _ended(code: int) -> str:
    """How a process ended, from the code that asyncio has for it."""
    if code >= 0:
        return f"ended with exit code {code}"
    names = {one.value: one.name for one in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


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
