# SPDX-License-Identifier: Apache-2.0
"""A detached engine in a process of its own that a test kills, and its successor that reads what it wrote.

SIGTERM ends the engine with its pods; SIGUSR1 ends the engine and leaves its pods.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from node_agent import settle

from patience import PATIENCE
from trainwright.errors import NotFoundError
from trainwright.local.engine import Engine
from trainwright.local.settings import SOCKET, EngineSettings
from trainwright.local.sockets.client import RemoteCluster
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node import adoption
from trainwright.node.devices.inventory import DeviceSet
from trainwright.node.supervisor import identity, journal, tree
from trainwright.runtime.ports import PODS

WHOLE = PODS.whole()
GPU = "nvidia.com/gpu"
_FILE = "store.db"


# -- the engine's process ---------------------------------------------------------------------------------------------


async def _serve(folder: Path, options: dict[str, Any]) -> None:
    gpus = options.pop("gpus", 0)
    devices = {GPU: DeviceSet(tuple(map(str, range(gpus))), ("NVIDIA_VISIBLE_DEVICES",))} if gpus else {}
    work = folder / "place"
    work.mkdir(exist_ok=True)
    engine = Engine(
        EngineSettings(
            folder=folder,
            volumes=folder / "claims",
            working=work,
            detached=True,
            silence_grace=2.0,
            devices=devices,
            notify=lambda text: print(text, flush=True),
            journal=folder / _FILE,
            **options,
        )
    )
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    for number, keep in ((signal.SIGTERM, False), (signal.SIGUSR1, True)):
        asyncio.get_running_loop().add_signal_handler(number, ended.set_result, keep)
    await engine.start()
    (folder / "up").write_text(str(os.getpid()))
    await engine.stop(0.5, keep_running=await ended)


# -- the test's side --------------------------------------------------------------------------------------------------


class DetachedEngine:
    """An engine that comes and goes."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options = folder, options
        self.process: subprocess.Popen[bytes]
        self._cluster: RemoteCluster

    async def begin(self) -> None:
        (self.folder / "up").unlink(missing_ok=True)
        words = [sys.executable, __file__, str(self.folder), json.dumps(self.options)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(words, stdout=output, stderr=output, env=environment)
        await settle(lambda: (self.folder / "up").exists() or self.process.poll() is not None)
        if self.process.poll() is not None and "the sandbox runtime does not work here" in self.output():
            pytest.skip(self.output())
        assert self.process.poll() is None, self.output()
        self._cluster = await RemoteCluster(self.folder / SOCKET).__aenter__()

    async def kill(self) -> None:
        self.process.kill()
        await self._gone()

    async def end(self, *, keep_running: bool) -> None:
        self.process.send_signal(signal.SIGUSR1 if keep_running else signal.SIGTERM)
        await self._gone()
        assert self.process.returncode == 0, self.output()

    async def _gone(self) -> None:
        await asyncio.to_thread(self.process.wait, PATIENCE)
        await self._cluster.__aexit__(None, None, None)

    def output(self) -> str:
        return (self.folder / "output").read_text()

    async def create(self, name: str, *containers: Body, **spec: Any) -> None:
        meta = {"name": name, "namespace": "space"}
        body = {"restartPolicy": "Never", "containers": list(containers), **spec}
        await self._cluster.create(WHOLE, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body})

    async def pod(self, name: str) -> Body:
        found: Body = await self._cluster.get(WHOLE, Key("space", name))
        return found

    async def delete(self, name: str, grace: int | None = None) -> None:
        await self._cluster.delete(WHOLE, Key("space", name), grace=grace)

    async def get(self, resource: Any, key: Key) -> Body:
        found: Body = await self._cluster.get(resource.whole(), key)
        return found

    async def until(self, name: str, *phases: str) -> Body:
        """The pod once it is in one of these phases."""
        for _ in range(int(PATIENCE / 0.02)):
            pod = await self.pod(name)
            if pod["status"]["phase"] in phases:
                return pod
            await asyncio.sleep(0.02)
        raise AssertionError(f"waited in vain; the pod is {await self.pod(name)}; the engine said {self.output()}")

    async def until_gone(self, name: str) -> None:
        for _ in range(int(PATIENCE / 0.02)):
            try:
                await self.pod(name)
            except NotFoundError:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"the pod is still there: {await self.pod(name)}")

    def log(self, name: str, restart: int = 0) -> str:
        found = sorted((self.folder / "logs" / name).glob(f"*-main-{restart}.log"))
        return found[-1].read_text() if found else ""

    async def said(self, name: str, count: int = 1) -> list[str]:
        """The first lines of a log."""
        await settle(lambda: len(self.log(name).splitlines()) >= count)
        return self.log(name).splitlines()

    def supervisors(self) -> dict[str, int]:
        """The living supervisors, by node."""
        folders = [one for one in (self.folder / "nodes").iterdir() if identity.lives(str(one))]
        return {one.name: known["pid"] for one in folders if (known := identity.read(str(one))) is not None}

    def agents(self) -> list[int]:
        """The processes of the agents, in the order of their start."""
        pid = self.process.pid
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return sorted(one for one in children if b"agent_main" in tree.read(f"/proc/{one}/cmdline"))

    def journal(self, node: str = "node-0") -> dict[str, Any]:
        return dict(journal.read(str(self.folder / "nodes" / node / "journal")))


@asynccontextmanager
async def detached_engine(folder: Path, **options: Any) -> AsyncIterator[DetachedEngine]:
    """A running engine, and nothing left of it afterwards."""
    engine = DetachedEngine(folder, **options)
    try:
        await engine.begin()
        yield engine
    finally:
        if engine.process.poll() is None:
            await engine.kill()
        nodes = folder / "nodes"
        for one in nodes.iterdir() if nodes.is_dir() else ():
            await adoption.end_supervisor(one)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), json.loads(sys.argv[2])))
