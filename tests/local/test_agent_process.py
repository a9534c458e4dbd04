# SPDX-License-Identifier: Apache-2.0
"""A node agent in a process of its own: killing it is the death of a node."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from node_agent import NODE, alive, container, end, manifest, settings, settle

from patience import PATIENCE
from trainwright.errors import NotFoundError
from trainwright.local.agent_main import AgentConfig
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.protocol import HeartbeatRequest
from trainwright.local.sockets.server import Verb, serve
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node.settings import HEARTBEAT
from trainwright.runtime.ports import NODES, PODS, WallClock

WHOLE = PODS.whole()


class Engine:
    """A store behind its socket, and an agent's process at the other end."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.closing = asyncio.Event()
        self.serving = asyncio.create_task(self._serve())
        self.agent: Process
        self.heartbeats: list[HeartbeatRequest] = []

    async def _serve(self) -> None:
        verbs = {HEARTBEAT: Verb(HeartbeatRequest, self._heartbeat)}
        async with serve(self.folder / "engine.sock", LocalCluster(self.store), verbs):
            await self.closing.wait()

    async def _heartbeat(self, request: HeartbeatRequest) -> None:
        self.heartbeats.append(request)

    async def start(self) -> None:
        config = AgentConfig(str(self.folder / "engine.sock"), settings(self.folder, silence_grace=2.0))
        await settle((self.folder / "engine.sock").exists)
        words = [sys.executable, "-m", "trainwright.local.agent_main", msgspec.json.encode(config).decode()]
        self.agent = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE)
        await settle(self.ready)

    def ready(self) -> bool:
        try:
            node = self.store.get(NODES.whole(), Key("", NODE))
        except NotFoundError:
            return False
        return bool((node.get("status") or {}).get("conditions"))

    def status(self) -> Body:
        status: Body = self.store.get(WHOLE, Key("space", "pod"))["status"]
        return status

    async def running(self) -> int:
        """A pod that runs, by its process."""
        self.store.create(WHOLE, manifest(container("echo $$; exec sleep 60")))
        await settle(lambda: self.status()["phase"] == "Running")
        (log,) = (self.folder / "logs/pod").glob("*.log")
        await settle(lambda: log.read_text().strip())
        return int(log.read_text())

    async def close(self) -> None:
        self.closing.set()
        await self.serving


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(Store(WallClock()), tmp_path)
    try:
        await engine.start()
        yield engine
    finally:
        if engine.agent.returncode is None:
            engine.agent.kill()
        await engine.agent.communicate()
        await engine.close()


async def test_it_runs_pods_through_the_socket(engine: Engine) -> None:
    engine.store.create(WHOLE, manifest(container("exit 3")))
    await settle(lambda: engine.status()["phase"] == "Failed")
    assert end(engine.status())["exitCode"] == 3


async def test_killing_it_kills_its_pods(engine: Engine) -> None:
    pid = await engine.running()
    os.kill(engine.agent.pid, signal.SIGKILL)
    await settle(lambda: not alive(pid))


async def test_it_ends_with_its_engine_and_takes_its_pods_along(engine: Engine) -> None:
    pid = await engine.running()
    await engine.close()
    assert await asyncio.wait_for(engine.agent.wait(), PATIENCE) == 0
    await settle(lambda: not alive(pid))


async def test_sigterm_ends_its_pods_gracefully_and_tells_how_they_ended(engine: Engine) -> None:
    await engine.running()
    engine.agent.terminate()
    assert await asyncio.wait_for(engine.agent.wait(), PATIENCE) == 0
    assert end(engine.status())["exitCode"] == 143


async def test_it_ends_when_its_supervisor_does_and_tells_how_its_pods_ended(engine: Engine) -> None:
    """So that the engine can start another one."""
    pid = await engine.running()
    agent = engine.agent.pid
    (supervisor,) = map(int, Path(f"/proc/{agent}/task/{agent}/children").read_text().split())
    os.kill(supervisor, signal.SIGKILL)
    assert await asyncio.wait_for(engine.agent.wait(), PATIENCE) == 3
    assert engine.status()["reason"] == "SupervisorLost"
    node = engine.store.get(NODES.whole(), Key("", NODE))
    assert [(one["status"], one["reason"]) for one in node["status"]["conditions"]] == [("False", "SupervisorLost")]
    await settle(lambda: not alive(pid))


async def test_one_that_goes_on_after_its_pod_was_given_up_kills_it_at_once(engine: Engine) -> None:
    """Nobody can end it before: on a cluster its replica runs twice until then."""
    pid = await engine.running()
    engine.agent.send_signal(signal.SIGSTOP)
    engine.store.delete(WHOLE, Key("space", "pod"), grace=0)
    await asyncio.sleep(0.5)
    assert alive(pid)
    engine.agent.send_signal(signal.SIGCONT)
    await settle(lambda: not alive(pid))
    assert engine.agent.returncode is None


async def test_it_says_regularly_that_it_is_alive(engine: Engine) -> None:
    await settle(lambda: len(engine.heartbeats) >= 3)
    (said,) = {(one["node"], one["pid"]) for one in engine.heartbeats}
    assert said == (NODE, engine.agent.pid)


async def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    config = AgentConfig(str(tmp_path / "nobody.sock"), settings(tmp_path))
    words = [sys.executable, "-m", "trainwright.local.agent_main", msgspec.json.encode(config).decode()]
    agent = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE)
    _, told = await agent.communicate()
    assert agent.returncode == 1
    assert told.decode().startswith("node agent: ")
    assert "Traceback" not in told.decode()
