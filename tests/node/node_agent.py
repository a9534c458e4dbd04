# SPDX-License-Identifier: Apache-2.0
"""A real node agent on a real store with a real supervisor, as the tests drive it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from patience import PATIENCE
from trainwright.errors import NotFoundError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node.agent import Agent
from trainwright.node.context import Tokens
from trainwright.node.devices.pool import DevicePool
from trainwright.node.environment import passed
from trainwright.node.link import SupervisorLink
from trainwright.node.settings import AgentDelays, AgentSettings
from trainwright.runtime.ports import PODS, Cluster, Resource, WallClock

NODE = "node-0"
WHOLE = PODS.whole()
#: Kubernetes' waits, a hundred times as fast.
PACE = AgentDelays(
    restart_backoff=0.1, max_restart_backoff=0.4, config_retry=0.1, api_retry=0.02, max_api_retry=0.1, min_grace=0.2
)


def settings(folder: Path, **more: Any) -> AgentSettings:
    given = AgentSettings(
        node=NODE,
        runtime="process",
        folder=str(folder),
        volumes=str(folder / "claims"),
        cwd=str(folder),
        capacity={"cpu": "4", "memory": "8Gi", "pods": "110"},
        passed=passed(os.environ),
        delays=PACE,
    )
    return replace(given, **more)


def container(script: str = "", name: str = "main", **more: Any) -> Body:
    argv = ["/bin/sh", "-c", (script or "exit 0").replace("$$", "$$$$")]  # a pod says `$$` for one `$`
    return {"name": name, "image": "some/image", "command": argv, **more}


def manifest(*containers: Body, name: str = "pod", **spec: Any) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "space", "annotations": {"trainwright.dev/address": "127.3.0.7"}},
        "spec": {"nodeName": NODE, "restartPolicy": "Never", "containers": list(containers or (container(),)), **spec},
    }


class AgentRig:
    """A node, and what one asks of it."""

    def __init__(self, store: Store, agent: Agent, notices: list[str]) -> None:
        self.store = store
        self.agent = agent
        self.notices = notices
        self.folder = Path(agent.context.settings.folder)

    def create(self, resource: Resource, body: Body) -> Body:
        return self.store.create(resource.whole(), body)

    def run(self, *containers: Body, name: str = "pod", **spec: Any) -> Body:
        return self.create(PODS, manifest(*containers, name=name, **spec))

    def pod(self, name: str = "pod") -> Body:
        return self.store.get(WHOLE, Key("space", name))

    def status(self, name: str = "pod") -> Body:
        status: Body = self.pod(name)["status"]
        return status

    def delete(self, name: str = "pod", grace: int | None = None) -> None:
        self.store.delete(WHOLE, Key("space", name), grace=grace)

    async def until(self, test: Callable[[Body], object], name: str = "pod") -> Body:
        """The status of the pod once it is so."""
        deadline = time.monotonic() + PATIENCE
        while not test(self.status(name)):
            assert time.monotonic() < deadline, f"waited in vain; the pod is {self.status(name)}"
            await asyncio.sleep(0.005)
        return self.status(name)

    async def phase(self, phase: str, name: str = "pod") -> Body:
        return await self.until(lambda status: status.get("phase") == phase, name)

    async def ended(self, name: str = "pod") -> Body:
        return await self.until(lambda status: status.get("phase") in ("Succeeded", "Failed"), name)

    async def gone(self, name: str = "pod") -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                self.pod(name)
            except NotFoundError:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"the pod is still there: {self.pod(name)}")

    def log(self, name: str = "pod", container: str = "main", restart: int = 0) -> str:
        uid = self.pod(name)["metadata"]["uid"][:8]
        return (self.folder / "logs" / name / f"{uid}-{container}-{restart}.log").read_text()


def state(status: Body, index: int = 0) -> Body:
    """The state of one container."""
    found: Body = status["containerStatuses"][index]["state"]
    return found


def end(status: Body, index: int = 0) -> Body:
    found: Body = state(status, index)["terminated"]
    return found


def waiting(status: Body, index: int = 0) -> Body:
    statuses = status.get("containerStatuses")
    found: Body = statuses[index]["state"].get("waiting", {}) if statuses else {}
    return found


@asynccontextmanager
async def agent_rig(
    folder: Path, cluster: Callable[[Store], Cluster] = LocalCluster, tokens: Tokens | None = None, **more: Any
) -> AsyncIterator[AgentRig]:
    """A node, and nothing left of it afterwards."""
    notices: list[str] = []
    store = Store(WallClock())
    given = settings(folder, **more)
    leases = DevicePool({NODE: given.devices}, "", WallClock()) if given.kubelet else None
    if leases is not None:
        leases.linger = 0.2
    channel = leases.channel(NODE) if leases is not None else None
    link = await SupervisorLink.begin(given.supervisor(channel.theirs.fileno() if channel is not None else None))
    if channel is not None:
        channel.handed()
    agent = Agent(cluster(store), link, WallClock(), given, notices.append, tokens, leases=leases)
    try:
        await agent.start()
        yield AgentRig(store, agent, notices)
    finally:
        await agent.stop()
        if leases is not None:
            leases.close()


async def settle(test: Callable[[], object]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not test():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
