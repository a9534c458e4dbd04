# SPDX-License-Identifier: Apache-2.0
"""Node agents in their own processes, for `--nodes N` and `--revive`; each process runs `agent_main`.

In the sandbox the nodes share one network. It belongs to a separate process, the holder, so that the end of a node does
not end the network. An agent that does not answer is killed. After the end of an agent, its node is marked as lost
only when all processes of its pods have ended.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

import trainwright
from trainwright.errors import ApiError, EngineError
from trainwright.local.agent_main import AgentConfig
from trainwright.local.scheduling.scheduler import mark_node_lost
from trainwright.local.settings import SOCKET, EngineSettings
from trainwright.local.sockets.protocol import HeartbeatRequest
from trainwright.model.meta import Key
from trainwright.node.devices.pool import DevicePool
from trainwright.node.settings import AgentSettings
from trainwright.node.supervisor import launch
from trainwright.node.watchdog import Watchdog, described, hold, see_out, unkillable
from trainwright.runtime.ports import NODES, Clock, Cluster

#: Time limit in seconds for the start of an agent, for the start of the network, and for the end of stopped pods.
_TIMEOUT_SECONDS = 30.0
#: Seconds from the end of the grace period until agents that still run are killed.
_STOP_TIMEOUT_SECONDS = 5.0
#: Seconds between two checks whether a node is ready.
_READY_POLL_SECONDS = 0.02
#: Seconds within which the network holder must end.
_HOLDER_TIMEOUT_SECONDS = 5.0


class AgentProcess:
    """One agent: its process and the process of its supervisor. The first heartbeat has the supervisor's PID."""

    def __init__(self, node: AgentSettings, process: Process) -> None:
        self.node = node
        self.process = process
        self.watchdog = Watchdog(process.pid, node.silence_grace)
        #: The agent's name in messages, and the reason why we killed the agent (empty: we did not kill it).
        self.title = f"its agent (process {process.pid})"
        self.kill_reason = ""
        self._handle = hold(process.pid, os.getpid())
        self._supervisor: launch.Process | None = None

    def record_heartbeat(self, heartbeat: HeartbeatRequest) -> None:
        """Record that the agent has answered, and remember the process of its supervisor."""
        if heartbeat["pid"] == self.process.pid:
            self.watchdog.answered()
            self._supervisor = self._supervisor or hold(heartbeat["supervisor"], heartbeat["pid"])

    async def watch(self, notify: Callable[[str], None]) -> None:
        """Wait until the agent no longer answers, then kill the agent."""
        silence = await self.watchdog.run(lambda seen: notify(f"{self.node.node}: {self.title} {described(seen)}"))
        self.kill_reason = f"{self.title} {described(silence)}; it and its pods were killed"
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL, which also ends a stopped process."""
        if self._handle is not None:
            self._handle.send(signal.SIGKILL)

    async def see_out(self, notify: Callable[[str], None]) -> None:
        """After the agent has ended, wait until its supervisor and all its pods have ended."""
        folder = Path(self.node.supervisor()["folder"])
        if self._supervisor is not None:
            await see_out(self._supervisor, folder, lambda left: notify(unkillable(self.node.node, left)))
        for one in (self._handle, self._supervisor):
            if one is not None:
                one.close()
        self._handle = self._supervisor = None


class AgentProcesses:
    """All agents of an engine."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: EngineSettings, devices: DevicePool) -> None:
        self._devices = devices
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        self._holder: Process | None = None
        self._namespaces: dict[str, int] = {}
        self._agents: dict[str, AgentProcess] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def prepare(self, subnet: str) -> None:
        """If there is a subnet, start the network that all nodes share. Raises EngineError."""
        if not subnet:
            return
        self._holder = await _start_python("trainwright.node.supervisor.outside", subnet)
        assert self._holder.stdout is not None  # noqa: S101 - it is a pipe
        line = await asyncio.wait_for(self._holder.stdout.readline(), _TIMEOUT_SECONDS)
        if not line:
            raise EngineError("the network of the nodes could not be made")
        paths = msgspec.json.decode(line)
        self._namespaces = {name: os.open(path, os.O_RDONLY) for name, path in paths.items() if path}

    async def start(self, nodes: Sequence[AgentSettings]) -> None:
        """Start all agents; returns when every node is ready."""
        for node in nodes:
            self._agents[node.node] = await self._launch(node)
        loop = asyncio.get_running_loop()
        self._watchers = [loop.create_task(self._run_node(node)) for node in nodes]
        for node in nodes:
            await self._ready(node.node)

    async def heartbeat(self, heartbeat: HeartbeatRequest) -> None:
        """Record the heartbeat of an agent."""
        agent = self._agents.get(heartbeat["node"])
        if agent is not None:
            agent.record_heartbeat(heartbeat)

    async def _launch(self, node: AgentSettings) -> AgentProcess:
        if node.network is not None:
            node = replace(node, network={**node.network, "holder": self._namespaces})
        channel = self._devices.channel(node.node)
        # Variables can be secrets, and other users can read the arguments of a process, so stdin carries the variables.
        config = AgentConfig(str(self._settings.folder / SOCKET), replace(node, env={}), leases=channel.theirs.fileno())
        text = msgspec.json.encode(config).decode()
        fds = (channel.theirs.fileno(), *self._namespaces.values())
        process = await _start_python("trainwright.local.agent_main", text, fds)
        channel.handed()
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(msgspec.json.encode(node.env))
        process.stdin.close()
        return AgentProcess(node, process)

    async def _ready(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _TIMEOUT_SECONDS
        while True:
            with suppress(ApiError):
                if (await self._cluster.get(NODES, Key("", name))).ready:
                    return
            if self._agents[name].process.returncode is not None or loop.time() > deadline:
                raise EngineError(f"the agent of {name} did not start")
            await asyncio.sleep(_READY_POLL_SECONDS)

    async def _run_node(self, node: AgentSettings) -> None:
        """Follow a node's agent. After the agent has ended, start a new agent if `revive` is set."""
        while True:
            await self._follow_agent(self._agents[node.node])
            if self._settings.revive is None:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._settings.revive)
                return
            self._settings.notify(f"{node.node} is started again")
            self._agents[node.node] = agent = await self._launch(node)
            if self._stopping.is_set():
                agent.kill()  # `stop` was called before this agent existed, so kill it here.

    async def _follow_agent(self, agent: AgentProcess) -> None:
        """Forward an agent's notices; kill the agent if it does not answer. After its end, mark its node as lost."""
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
            reason = agent.kill_reason or f"{agent.title} {_exit_text(code)}"
            notify(f"{name} is lost: {reason}")
            await mark_node_lost(self._cluster, name, self._clock, reason)

    async def stop(self, grace: float) -> None:
        """Stop all agents with their pods, and kill agents that do not end in time."""
        self._stopping.set()
        alive = [agent for agent in self._agents.values() if agent.process.returncode is None]
        for agent in alive:
            agent.process.send_signal(signal.SIGTERM if grace else signal.SIGKILL)
        try:
            async with asyncio.timeout(grace + _STOP_TIMEOUT_SECONDS):
                await asyncio.gather(*(agent.process.wait() for agent in alive))
        except TimeoutError:
            for agent in alive:
                if agent.process.returncode is None:
                    agent.kill()
        if self._watchers:
            # Wait until all processes of pods have ended, but only for a limited time: some processes cannot be killed.
            _, late = await asyncio.wait(self._watchers, timeout=_TIMEOUT_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._watchers, return_exceptions=True)
        await self._release_network()

    async def _release_network(self) -> None:
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._namespaces = {}
        if self._holder is not None:
            assert self._holder.stdin is not None  # noqa: S101 - it is a pipe
            self._holder.stdin.close()
            try:
                await asyncio.wait_for(self._holder.wait(), _HOLDER_TIMEOUT_SECONDS)
            except TimeoutError:
                self._holder.kill()  # A killed holder does not remove its network rules; `NodePool.stop` removes them.
                await self._holder.wait()


def _exit_text(code: int) -> str:
    """A text that says how a process ended. `code` is asyncio's return code, which is negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    names = {one.value: one.name for one in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


async def _start_python(module: str, argument: str, pass_fds: tuple[int, ...] = ()) -> Process:
    """Run a module with our Python, in a new session, so that Ctrl-C for the engine does not reach the new process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(trainwright.__file__).parents[1])}
    words = (sys.executable, "-m", module, argument)
    return await asyncio.create_subprocess_exec(
        *words, stdin=PIPE, stdout=PIPE, pass_fds=pass_fds, start_new_session=True, env=environment
    )
