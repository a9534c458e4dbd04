# SPDX-License-Identifier: Apache-2.0
"""A store that stays, and agents in processes of their own that a test kills: the supervisor and its pods go on."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from node_agent import NODE, container, manifest, settings, settle

from patience import PATIENCE
from trainwright.local.agent_main import AgentConfig
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.protocol import HeartbeatRequest
from trainwright.local.sockets.server import Verb, serve
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node import adoption
from trainwright.node.settings import HEARTBEAT
from trainwright.node.supervisor import identity, journal
from trainwright.runtime.ports import PODS, WallClock

WHOLE = PODS.whole()


class KeptNode:
    """A store behind its socket, and one node whose agent comes and goes."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder, self.node_folder = folder, folder / "nodes" / NODE
        self.settings = settings(folder, orphans="keep", silence_grace=2.0, **more)
        self.store = Store(WallClock())
        self.heartbeats: list[HeartbeatRequest] = []
        self.agents: list[Process] = []

    async def heartbeat(self, request: HeartbeatRequest) -> None:
        self.heartbeats.append(request)

    async def begin_agent(self) -> int:
        """Start an agent, and wait until it has its supervisor. Returns the supervisor's process ID."""
        config = AgentConfig(str(self.folder / "engine.sock"), self.settings)
        words = [sys.executable, "-m", "trainwright.local.agent_main", msgspec.json.encode(config).decode()]
        agent = await asyncio.create_subprocess_exec(*words, stdout=PIPE)
        self.agents.append(agent)
        await settle(lambda: self.supervisor_of(agent) or agent.returncode is not None)
        assert agent.returncode is None
        return self.supervisor_of(agent)

    def supervisor_of(self, agent: Process) -> int:
        return max((one["supervisor"] for one in self.heartbeats if one["pid"] == agent.pid), default=0)

    async def kill_agent(self) -> None:
        """As the kernel does it when memory is short: nothing is cleaned up."""
        self.agents[-1].kill()
        await self.agents[-1].wait()

    async def kill_supervisor(self) -> None:
        known = identity.read(str(self.node_folder))
        assert known is not None
        os.kill(known["pid"], signal.SIGKILL)
        await settle(lambda: not identity.lives(str(self.node_folder)))

    def create(self, *containers: Body, name: str = "pod", **spec: Any) -> Body:
        return self.store.create(WHOLE, manifest(*(containers or (container(),)), name=name, **spec))

    def pod(self, name: str = "pod") -> Body:
        return self.store.get(WHOLE, Key("space", name))

    def status(self, name: str = "pod") -> Body:
        status: Body = self.pod(name)["status"]
        return status

    def delete(self, name: str = "pod", grace: int | None = None) -> None:
        self.store.delete(WHOLE, Key("space", name), grace=grace)

    def exists(self, name: str = "pod") -> bool:
        return any(one["metadata"]["name"] == name for one in self.store.list(WHOLE)[0])

    async def until(self, phase: str, name: str = "pod") -> Body:
        await settle(lambda: self.status(name)["phase"] == phase)
        return self.status(name)

    def log(self, name: str = "pod", restart: int = 0) -> str:
        uid = self.pod(name)["metadata"]["uid"][:8]
        path = self.folder / "logs" / name / f"{uid}-main-{restart}.log"
        return path.read_text() if path.exists() else ""

    def journal(self) -> dict[str, Any]:
        return dict(journal.read(str(self.node_folder / "journal")))

    def ends_in_journal(self) -> int:
        return sum(1 for one in self.journal().values() if one["ended"])


@asynccontextmanager
async def kept_node(folder: Path, **more: Any) -> AsyncIterator[KeptNode]:
    """A node, and nothing left of it afterwards."""
    node = KeptNode(folder, **more)
    verbs = {HEARTBEAT: Verb(HeartbeatRequest, node.heartbeat)}
    async with serve(folder / "engine.sock", LocalCluster(node.store), verbs):
        try:
            yield node
        finally:
            for agent in node.agents:
                with contextlib.suppress(ProcessLookupError):
                    agent.kill()
                await asyncio.wait_for(agent.communicate(), PATIENCE)
            await adoption.end_supervisor(node.node_folder)
