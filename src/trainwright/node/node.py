# SPDX-License-Identifier: Apache-2.0
"""A node of somebody else's cluster: the agent with its runtime and its place in the network of this machine.

`trainwright node` makes one with the `Cluster` of an API server. What `node_pool` is to one engine, this is to any
other; it knows nothing of Kubernetes but the ports.
"""

import asyncio
import fcntl
import os
import sys
from collections.abc import AsyncGenerator, Callable
from functools import partial
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
from trainwright.node.pod import ContainerRecord
from trainwright.node.settings import CHOSEN, PLAIN, AgentSettings
from trainwright.runtime.ports import Cluster, LogPart, WallClock

Notify = Callable[[str], None]
#: In the agent's folder: Secrets, tokens, and what containers wrote.
_PRIVATE = ("pods", "logs")
_ALONE = (
    "the process that keeps the network of this machine's nodes was killed: pods go on as they are, but agents that are"
    " started from now on have another network, which pods of this one do not reach; start all agents anew to mend that"
)
#: Seconds until a device that no pod needs is given back: its supervisor has let go of it by then.
_LINGER = 1.0


class LocalNode:
    """One node; `prepare` it, `start` it, and let it `leave`."""

    def __init__(self, settings: AgentSettings, notify: Notify) -> None:
        self._settings = settings
        self._notify = notify
        self._member: NetworkMember | None = None
        self._link: SupervisorLink | None = None
        self._agent: Agent | None = None
        self._lock = _claimed(Path(settings.folder))
        # Several agents on one machine may each pretend to have the same devices: those are not leased.
        real = {name: found for name, found in settings.devices.items() if not found.pretended}
        self._devices = DevicePool({settings.node: real}, "", WallClock())
        self._devices.linger = _LINGER
        #: Set when nothing can be run here any more.
        self.broken = asyncio.Event()

    async def prepare(self, runtime: str, network: str) -> None:
        """Settle on a runtime: the sandbox if it works here, unless another one is asked for. Raises EngineError."""
        if runtime == "process":
            await self._settle(PLAIN)
            return
        try:
            await self._settle_sandboxed(network)
        except EngineError as error:
            await self._part()
            if runtime == "sandbox":
                raise EngineError(f"the sandbox runtime does not work here: {error}") from None
            await self._settle(f"{PLAIN}; the sandbox does not work here: {error}")

    async def _settle_sandboxed(self, network: str) -> None:
        if sys.platform != "linux":
            raise EngineError("it needs Linux")
        self._member = member = await asyncio.to_thread(join, network)
        place = {"subnet": member.subnet, "holder": member.spaces}
        # Whether there is a way out, the keeper has told.
        self._settings = replace(
            self._settings, runtime="sandbox", network=place, range=member.range, outside=not member.notices
        )
        await self._settle(f"{CHOSEN}; their addresses are in {member.range}")
        for notice in member.notices:
            self._notify(notice)
        asyncio.get_running_loop().add_reader(member, self._alone, member)

    def _alone(self, member: NetworkMember) -> None:
        """The keeper of the network has gone; what we hold of it stays."""
        asyncio.get_running_loop().remove_reader(member)
        self._notify(_ALONE)

    async def _settle(self, why: str) -> None:
        channel = self._devices.channel(self._settings.node)
        self._link = await SupervisorLink.begin(self._settings.supervisor(channel.theirs.fileno()))
        channel.handed()
        self._notify(f"runtime {self._settings.runtime}: {why}")

    async def start(self, cluster: Cluster, port: int, tokens: Tokens) -> None:
        """The node registered, and its pods run; `port` is where logs are served."""
        assert self._link is not None  # noqa: S101 - it is prepared first
        self._settings = replace(self._settings, port=port)
        settings, notify = self._settings, self._notify
        self._agent = Agent(cluster, self._link, WallClock(), settings, notify, tokens, leases=self._devices)
        for notice in self._link.ready.result()["notices"]:
            self._notify(notice)
        self._link.lost = partial(self._lose, self._link.lost)
        self._agent.failed = self.broken.set
        await self._agent.start()

    def _lose(self, told: Callable[[], None]) -> None:
        told()
        self.broken.set()

    async def leave(self, grace: float | None, *, remove: bool) -> None:
        """End: the pods within their grace, then everything else. Nothing is left but logs and, mostly, the Node."""
        try:
            if self._agent is not None:
                await self._agent.leave(grace, remove=remove)
            elif self._link is not None:
                await self._link.close()
        finally:
            await self._part()
            self._devices.close()
            os.close(self._lock)

    async def _part(self) -> None:
        member, self._member = self._member, None
        self._settings = replace(self._settings, runtime="process", network=None, range="")
        if member is not None:
            asyncio.get_running_loop().remove_reader(member)
            await asyncio.to_thread(member.close)

    def log(self, pod: Key, name: str, part: LogPart) -> AsyncGenerator[bytes, None]:
        """What a container of one of our pods wrote. NotFoundError, or InvalidError where it has not written yet."""
        worker = self._agent.worker(pod) if self._agent is not None else None
        if worker is None:
            raise NotFoundError(f'pod "{pod}" is not on node "{self._settings.node}"')
        charge = worker.charge
        found = next((one for one in charge.containers if one.seen.name == name), None)
        if found is None:
            raise NotFoundError(f'container "{name}" is not in pod "{pod}"')
        restarts = found.seen.restarts - part.previous
        path = charge.log_of(found, restarts)
        if restarts < 0 or not Path(path).exists():
            which = "previous terminated container" if part.previous else "container"
            raise InvalidError(f'{which} "{name}" in pod "{pod.name}" {"not found" if part.previous else _why(found)}')
        return logs.read(path, part, lambda: found.live and found.seen.restarts == restarts)


def _why(container: ContainerRecord) -> str:
    waiting = container.seen.state.get("waiting")
    return f"is waiting to start: {waiting.get('reason', '')}" if waiting else "has no log any more"


def _claimed(folder: Path) -> int:
    """The folder is ours for as long as this is open: two agents must not share it, and others not look into pods."""
    for part in (folder / name for name in _PRIVATE):
        part.mkdir(parents=True, exist_ok=True)
        part.chmod(0o700)
    lock = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UsageError(f"another node agent works in {folder}; a second one needs its own --name") from None
    return lock
