# SPDX-License-Identifier: Apache-2.0
"""Node agents in their own processes, for `--nodes N` and `--revive`; each process runs `agent_main`.

In the sandbox the nodes share one network. It belongs to a separate process, the holder, so that the end of a node does
not end the network. An agent that does not answer is killed. After the end of an agent, its node is marked as lost
only when all processes of its pods have ended.

In a detached engine, pods outlive their agents: the engine starts a new agent at once, which attaches to the living
supervisor, and the node is not lost. The holder of the network is then the keeper of `network.shared`, which ends when
the engine and all supervisors have ended.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

import trainwright
from trainwright import open_files
from trainwright.errors import ApiError, EngineError
from trainwright.local import persistent
from trainwright.local.agent_main import DETACH_SIGNAL, AgentConfig
from trainwright.local.scheduling.affinity import ready_condition
from trainwright.local.scheduling.scheduler import mark_node_lost
from trainwright.local.settings import SOCKET, EngineSettings
from trainwright.local.sockets.protocol import HeartbeatRequest
from trainwright.model.meta import Key
from trainwright.node import adoption
from trainwright.node.devices.pool import DevicePool
from trainwright.node.node_object import is_draining
from trainwright.node.settings import AgentSettings
from trainwright.node.supervisor import launch
from trainwright.node.supervisor_process import SupervisorProcess
from trainwright.node.watchdog import Watchdog, described, hold, see_out, unkillable
from trainwright.runtime.ports import NODES, Clock, Cluster

if TYPE_CHECKING:
    from trainwright.node.network.shared import NetworkMember

#: Time limit in seconds for the start of an agent, for the start of the network, and for the end of stopped pods.
_TIMEOUT_SECONDS = 30.0
#: Seconds from the end of the grace period until agents that still run are killed.
_STOP_TIMEOUT_SECONDS = 5.0
#: Seconds between two checks whether a node is ready.
_READY_POLL_SECONDS = 0.02
#: Seconds until a detached engine starts another agent, if agents end soon after their start.
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS, _STABLE_SECONDS = 0.1, 10.0, 30.0
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
        #: Set when the agent has its supervisor.
        self.has_supervisor = asyncio.Event()
        self._handle = hold(process.pid, os.getpid())
        self._supervisor: launch.Process | None = None

    def record_heartbeat(self, heartbeat: HeartbeatRequest) -> None:
        """Record that the agent has answered, and remember the process of its supervisor."""
        if heartbeat["pid"] != self.process.pid:
            return
        self.watchdog.answered()
        if self._supervisor is None and heartbeat["supervisor"]:
            if self.node.orphans == "keep":  # the supervisor need not be a child of this agent
                found = SupervisorProcess.find(heartbeat["supervisor"], heartbeat.get("start", ""))
                self._supervisor = found.handle if found is not None else None
            else:
                self._supervisor = hold(heartbeat["supervisor"], heartbeat["pid"])
            self.has_supervisor.set()

    @property
    def supervisor_ended(self) -> bool:
        """Whether the supervisor is known and has ended."""
        return self._supervisor is not None and self._supervisor.ended()

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
        self.close()

    def close(self) -> None:
        """Release the handles of the processes."""
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
        self._member: NetworkMember | None = None
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

    async def join_network(self, before: str) -> str:
        """Join the network that all nodes of a detached engine share, and return its subnet. Raises EngineError.

        `before` is the subnet of the engine before. If the process that held that network was killed, the pods of that
        network cannot reach new pods, so they are ended.
        """
        from trainwright.node.network.shared import join  # noqa: PLC0415 - Linux only

        folder = self._settings.folder
        self._member = member = await asyncio.to_thread(join, persistent.network_name(folder), before)
        if member.subnet != before:
            for node in persistent.node_folders(folder):
                if await adoption.end_supervisor(node):
                    self._settings.notify(f"{node.name} lost its pods: the process that held their network was killed")
        for notice in member.notices:
            self._settings.notify(notice)
        self._namespaces = member.holder()
        return member.subnet

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
            is_new = not agent.has_supervisor.is_set()
            agent.record_heartbeat(heartbeat)
            if is_new and agent.has_supervisor.is_set() and self._settings.detached:
                now = asyncio.get_running_loop().time()
                self._devices.take_over(agent.node.node, heartbeat["supervisor"], now)

    async def _launch(self, node: AgentSettings) -> AgentProcess:
        if node.network is not None:
            node = replace(node, network={**node.network, "holder": self._namespaces})
        channel = self._devices.channel(node.node)
        # Variables can be secrets, and other users can read the arguments of a process, so stdin carries the variables.
        socket, leases = str(self._settings.folder / SOCKET), channel.theirs.fileno()
        config = AgentConfig(socket, replace(node, env={}), leases=leases, engine=os.getpid())
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
                node = await self._cluster.get(NODES.whole(), Key("", name))
                # After a restart of a detached engine, the node is still ready according to the store.
                has_agent = self._agents[name].has_supervisor.is_set() or is_draining(node)
                if ready_condition(node).get("status") == "True" and (has_agent or not self._settings.detached):
                    return
            has_ended = self._agents[name].process.returncode is not None and not self._settings.detached
            if has_ended or loop.time() > deadline:
                raise EngineError(f"the agent of {name} did not start")
            await asyncio.sleep(_READY_POLL_SECONDS)

    async def _run_node(self, node: AgentSettings) -> None:
        """Follow a node's agent. After the agent has ended, start a new agent if `revive` is set."""
        if self._settings.detached:
            await self._keep_node(node)
            return
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

    async def _keep_node(self, node: AgentSettings) -> None:
        """Follow a node's agent in a detached engine. After its end, a new agent attaches to the living supervisor."""
        loop, notify, wait = asyncio.get_running_loop(), self._settings.notify, 0.0
        while True:
            agent, began = self._agents[node.node], loop.time()
            reason = await self._until_ended(agent)
            is_lost = agent.supervisor_ended
            agent.close()
            if is_lost:
                self._devices.node_lost(node.node)
            wait = 0.0 if loop.time() - began > _STABLE_SECONDS else wait
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stopping.wait()  # returns at once, even without time, if the engine stops
                return
            wait = min(max(2 * wait, _FIRST_WAIT_SECONDS), _MAX_WAIT_SECONDS)
            notify(f"{node.node} gets a new agent: {reason}")
            self._agents[node.node] = agent = await self._launch(node)
            if self._stopping.is_set():
                agent.kill()  # `stop` was called before this agent existed, so kill it here.

    async def _until_ended(self, agent: AgentProcess) -> str:
        """Forward an agent's notices, and kill the agent if it does not answer. Returns why the agent has ended."""
        process, notify = agent.process, self._settings.notify
        watching = asyncio.get_running_loop().create_task(agent.watch(notify))
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        async for line in process.stdout:
            notify(line.decode(errors="replace").rstrip())
        code = await process.wait()
        watching.cancel()
        return agent.kill_reason or f"{agent.title} {_exit_text(code)}"

    async def _follow_agent(self, agent: AgentProcess) -> None:
        """Follow an agent. After its end, mark its node as lost."""
        name, notify = agent.node.node, self._settings.notify
        reason = await self._until_ended(agent)
        await agent.see_out(notify)
        self._devices.node_lost(name)
        if not self._stopping.is_set():
            notify(f"{name} is lost: {reason}")
            await mark_node_lost(self._cluster, name, self._clock, reason)

    async def stop(self, grace: float, *, keep_running: bool = False) -> None:
        """Stop all agents with their pods, and kill agents that do not end in time.

        `keep_running`: leave the pods of a detached engine to the next engine.
        """
        self._stopping.set()
        alive = [agent for agent in self._agents.values() if agent.process.returncode is None]
        for agent in alive:
            end = signal.SIGTERM if grace else signal.SIGKILL
            agent.process.send_signal(DETACH_SIGNAL if keep_running else end)
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
        if self._settings.detached and not keep_running:
            folders = [Path(agent.node.supervisor()["folder"]) for agent in self._agents.values()]
            await asyncio.gather(*map(adoption.end_supervisor, folders))
        await self._release_network()

    async def _release_network(self) -> None:
        if self._member is not None:
            self._namespaces = {}
            await asyncio.to_thread(self._member.close)
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
    process = await asyncio.create_subprocess_exec(
        *words, stdin=PIPE, stdout=PIPE, pass_fds=pass_fds, start_new_session=True, env=environment
    )
    open_files.restore_limit(process.pid)
    return process
