# SPDX-License-Identifier: Apache-2.0
"""A node of any cluster (`trainwright node`): the agent with its supervisor, its network and its devices.

The node reaches the cluster only through `runtime.ports.Cluster`. `local.node_pool` does the same work for the nodes
of the embedded engine.
"""

import asyncio
import fcntl
import os
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from msgspec.structs import replace

from trainwright.errors import EngineError, InvalidError, NotFoundError, UsageError
from trainwright.model.meta import Key
from trainwright.node import logs
from trainwright.node.agent import Agent
from trainwright.node.context import Tokens
from trainwright.node.devices.pool import DevicePool
from trainwright.node.link import SupervisorLink
from trainwright.node.network.shared import NetworkMember, join
from trainwright.node.settings import CHOSEN, PLAIN, AgentSettings
from trainwright.runtime.ports import Cluster, LogPart, WallClock

#: Subfolders of the agent's folder, with Secrets, tokens and logs. Other users must not read these files.
_PRIVATE_FOLDERS = ("pods", "logs")
_NETWORK_HOLDER_KILLED = (
    "the process that holds the network of this machine's nodes was killed: pods continue to run, but agents that start"
    " from now on get another network, which the pods of this agent do not reach; restart all agents to repair this"
)
#: A device stays leased for this many seconds after the end of its pod. The supervisor has this time to unlock it.
_DEVICE_LINGER_SECONDS = 1.0


class LocalNode:
    """One node. Call `prepare`, then `start`, then `leave`."""

    def __init__(self, settings: AgentSettings, notify: Callable[[str], None]) -> None:
        self._settings = settings
        self._notify = notify
        self._member: NetworkMember | None = None
        self._link: SupervisorLink | None = None
        self._agent: Agent | None = None
        self._lock = _lock_folder(Path(settings.folder))
        # Devices that the user only pretends to have are not leased, since several agents may pretend to have them.
        real = {name: found for name, found in settings.devices.items() if not found.pretended}
        self._devices = DevicePool({settings.node: real}, "", WallClock())
        self._devices.linger = _DEVICE_LINGER_SECONDS
        #: Set when the node can no longer run pods.
        self.broken = asyncio.Event()

    async def prepare(self, runtime: str, network: str) -> None:
        """Start the supervisor with this runtime. `auto` chooses the sandbox if it works here. Raises EngineError."""
        if runtime == "process":
            await self._start_supervisor(PLAIN)
            return
        try:
            await self._start_sandbox(network)
        except EngineError as error:
            await self._leave_network()
            if runtime == "sandbox":
                raise EngineError(f"the sandbox runtime does not work here: {error}") from None
            await self._start_supervisor(f"{PLAIN}; the sandbox does not work here: {error}")

    async def _start_sandbox(self, network: str) -> None:
        if sys.platform != "linux":
            raise EngineError("it needs Linux")
        self._member = member = await asyncio.to_thread(join, network)
        # The network has notices only if pods cannot reach addresses outside this machine; the notices say why.
        self._settings = replace(
            self._settings,
            runtime="sandbox",
            network={"subnet": member.subnet, "holder": member.spaces},
            range=member.range,
            outside=not member.notices,
        )
        await self._start_supervisor(f"{CHOSEN}; their addresses are in {member.range}")
        for notice in member.notices:
            self._notify(notice)
        asyncio.get_running_loop().add_reader(member, self._network_holder_killed, member)

    def _network_holder_killed(self, member: NetworkMember) -> None:
        asyncio.get_running_loop().remove_reader(member)
        self._notify(_NETWORK_HOLDER_KILLED)

    async def _start_supervisor(self, description: str) -> None:
        channel = self._devices.channel(self._settings.node)
        self._link = await SupervisorLink.begin(self._settings.supervisor(channel.theirs.fileno()))
        channel.handed()
        self._notify(f"runtime {self._settings.runtime}: {description}")

    async def start(self, cluster: Cluster, port: int, tokens: Tokens) -> None:
        """Register the node and begin to run pods; `port` is the port that serves logs."""
        assert self._link is not None  # noqa: S101 - `prepare` has set it
        self._settings = settings = replace(self._settings, port=port)
        self._agent = Agent(cluster, self._link, WallClock(), settings, self._notify, tokens, leases=self._devices)
        for notice in self._link.ready.result()["notices"]:
            self._notify(notice)
        self._agent.on_failed = self.broken.set
        await self._agent.start()

    async def leave(self, grace: float | None, *, remove: bool) -> None:
        """Stop the pods within `grace` seconds (None: their own grace periods), then the node. Its logs stay.

        `remove` also deletes the Node object.
        """
        try:
            if self._agent is not None:
                await self._agent.leave(grace, remove=remove)
            elif self._link is not None:
                await self._link.close()
        finally:
            await self._leave_network()
            self._devices.close()
            os.close(self._lock)

    async def _leave_network(self) -> None:
        member, self._member = self._member, None
        self._settings = replace(self._settings, runtime="process", network=None, range="")
        if member is not None:
            asyncio.get_running_loop().remove_reader(member)
            await asyncio.to_thread(member.close)

    def log(self, pod: Key, name: str, part: LogPart) -> AsyncGenerator[bytes, None]:
        """The log of a container. Raises NotFoundError, or InvalidError if the container has no log yet."""
        worker = self._agent.worker(pod) if self._agent is not None else None
        if worker is None:
            raise NotFoundError(f'pod "{pod}" is not on node "{self._settings.node}"')
        found = next((one for one in worker.pod.containers if one.view.name == name), None)
        if found is None:
            raise NotFoundError(f'container "{name}" is not in pod "{pod}"')
        restarts = found.view.restarts - part.previous
        path = worker.pod.log_path(found, restarts)
        if restarts < 0 or not Path(path).exists():
            if part.previous:
                raise InvalidError(f'previous terminated container "{name}" in pod "{pod.name}" not found')
            waiting = found.view.state.get("waiting")
            problem = f"is waiting to start: {waiting.get('reason', '')}" if waiting else "has no log any more"
            raise InvalidError(f'container "{name}" in pod "{pod.name}" {problem}')
        return logs.read(path, part, lambda: found.live and found.view.restarts == restarts)


def _lock_folder(folder: Path) -> int:
    """Create the agent's folder and lock it until the returned descriptor is closed: agents must not share a folder."""
    for part in (folder / name for name in _PRIVATE_FOLDERS):
        part.mkdir(parents=True, exist_ok=True)
        part.chmod(0o700)
    lock = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UsageError(f"another node agent works in {folder}; a second agent needs its own --name") from None
    return lock
