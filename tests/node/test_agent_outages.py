# SPDX-License-Identifier: Apache-2.0
"""A node that is cut off from its API server for a while, or may no longer speak, and what its agents tell then."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from node_agent import NODE, PACE, AgentRig, agent_rig, container, end, manifest, settings, settle, waiting

from trainwright.errors import ApiError, ForbiddenError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.node.agent import Agent
from trainwright.node.lifecycle import _refresh_tokens
from trainwright.node.link import SupervisorLink
from trainwright.node.node import LocalNode
from trainwright.runtime.ports import NODES, PODS, SECRETS, Resource, WallClock

AWAY, FORBIDDEN = UnavailableError("nobody is there"), ForbiddenError("you may not")


class Cut(LocalCluster):
    """A cluster that answers what is asked about these resources with an error, while there is one."""

    def __init__(self, store: Store, error: ApiError | None = None) -> None:
        super().__init__(store)
        self.error = error
        self.renewals = 0
        self.slow = 0.0

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    async def get(self, resource: Resource, key: Key) -> Any:
        self._check()
        return await super().get(resource, key)

    async def patch(self, resource: Resource, key: Key, body: Any, **more: Any) -> Any:
        await asyncio.sleep(self.slow)
        self._check()
        self.renewals += resource.plural == "leases"
        return await super().patch(resource, key, body, **more)

    async def delete(self, resource: Resource, key: Key, **more: Any) -> Any:
        self._check()
        return await super().delete(resource, key, **more)


def cluster_of(node: AgentRig) -> Cut:
    cluster = node.agent.context.cluster
    assert isinstance(cluster, Cut)
    return cluster


def ready(store: Store) -> str:
    conditions = store.get(NODES.whole(), Key("", NODE))["status"]["conditions"]
    return str(next(one["status"] for one in conditions if one["type"] == "Ready"))


async def test_a_node_that_was_found_dead_is_ready_with_its_next_sign_of_life(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, Cut, kubelet=True, heartbeat=0.1) as node:
        cluster = cluster_of(node)
        cluster.error = AWAY
        await settle(lambda: any("heartbeats of node node-0 do not reach" in text for text in node.notices))
        dead = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        node.store.patch(NODES.whole(), Key("", NODE), dead, status=True)
        cluster.error, cluster.renewals = None, 0
        await settle(lambda: ready(node.store) == "True")
        assert cluster.renewals <= 2
        await settle(lambda: "API server again" in node.notices[-1])
        assert sum("do not reach" in text for text in node.notices) == 1


async def test_a_status_that_was_forbidden_is_told_once_it_is_allowed(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, Cut) as node:
        node.run(container("sleep 0.2; exit 3"))
        await node.phase("Running")
        cluster_of(node).error = FORBIDDEN
        await settle(lambda: any("its status was refused" in text for text in node.notices))
        await asyncio.sleep(0.1)
        cluster_of(node).error = None
        assert end(await node.phase("Failed"))["exitCode"] == 3


async def test_a_pod_that_may_not_be_removed_goes_once_it_may(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, Cut) as node:
        node.run(container("exec sleep 60"))
        await node.phase("Running")
        cluster_of(node).error = FORBIDDEN
        node.delete(grace=1)
        await settle(lambda: any("refused" in text for text in node.notices))
        cluster_of(node).error = None
        await node.gone()


async def test_a_container_is_restarted_with_what_it_had_while_nobody_answers(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, Cut) as node:
        node.create(SECRETS, {"metadata": {"name": "s", "namespace": "space"}, "data": {"word": "c2VzYW1l"}})
        word = {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "word"}}}
        node.run(container("echo $WORD; sleep 0.2; exit 1", env=[word]), restartPolicy="OnFailure")
        await node.phase("Running")
        cluster_of(node).error = AWAY
        uid = node.pod()["metadata"]["uid"][:8]
        second = node.folder / "logs" / "pod" / f"{uid}-main-1.log"
        await settle(lambda: second.exists() and second.read_text() == "sesame\n")


async def test_a_token_that_could_not_be_renewed_is_asked_for_again_soon(tmp_path: Path) -> None:
    asked: list[float] = []

    async def tokens(_: Any, __: str, ___: int) -> str:
        asked.append(asyncio.get_running_loop().time())
        raise AWAY

    source = {"serviceAccountToken": {"path": "token"}}
    async with agent_rig(tmp_path, tokens=tokens, kubelet=True, delays=replace(PACE, token_refresh_share=0.1)) as node:
        node.run(container("exec sleep 60"), volumes=[{"name": "t", "projected": {"sources": [source]}}])
        await node.phase("Running")
        worker = node.agent.worker(Key("space", "pod"))
        assert worker is not None
        worker.pod.token_refresh = asyncio.ensure_future(_refresh_tokens(worker.pod, 20))
        await settle(lambda: len(asked) > 2)
    assert asked[1] - asked[0] < 1.5  # a wait that was no sooner would be of two seconds


async def test_a_restart_that_was_waited_for_is_counted_by_the_next_agent(tmp_path: Path) -> None:
    store = Store(WallClock())
    async with agent_rig(
        tmp_path, lambda _: LocalCluster(store), kubelet=True, delays=replace(PACE, restart_backoff=60)
    ) as node:
        node.store = store
        node.run(container("echo run; exit 1"), restartPolicy="OnFailure")
        await node.until(lambda status: waiting(status).get("reason") == "CrashLoopBackOff")
        told = node.status()
        node.agent.context.reports._cluster = Cut(store, AWAY)  # it is killed, and tells no more
    assert told["containerStatuses"][0]["restartCount"] == 1
    store.patch(PODS.whole(), Key("space", "pod"), {"status": told}, status=True)
    async with agent_rig(
        tmp_path, lambda _: LocalCluster(store), kubelet=True, delays=replace(PACE, restart_backoff=60)
    ) as node:
        node.store = store
        await node.until(lambda status: status["containerStatuses"][0]["restartCount"] == 2)
        assert node.log(restart=1).count("run") == 1


async def _second(store: Store, folder: Path) -> dict[str, Any]:
    """How the pod has ended, as the next agent tells it."""
    async with agent_rig(folder, lambda _: LocalCluster(store), kubelet=True) as node:
        node.store = store
        return await node.ended()


@pytest.mark.parametrize("asked", [True, False], ids=["ends", "is killed"])
async def test_an_end_that_could_not_be_told_is_told_by_the_next_agent(tmp_path: Path, *, asked: bool) -> None:
    given, store = settings(tmp_path, kubelet=True), Store(WallClock())
    cluster = Cut(store)
    link = await SupervisorLink.begin(given.supervisor())
    agent = Agent(cluster, link, WallClock(), given, lambda _: None)
    await agent.start()
    store.create(PODS.whole(), manifest(container("sleep 0.2; exit 0")))
    await settle(lambda: store.get(PODS.whole(), Key("space", "pod"))["status"]["phase"] == "Running")
    cluster.error = AWAY
    worker = agent.worker(Key("space", "pod"))
    assert worker is not None
    await settle(lambda: worker.pod.ended)
    await (agent.stop(None) if asked else link.close())
    status = await _second(store, tmp_path)

    assert (status["phase"], end(status)["exitCode"], end(status)["reason"]) == ("Succeeded", 0, "Completed")
    await agent.stop()


async def test_what_ends_with_its_agent_did_not_end_by_itself(tmp_path: Path) -> None:
    given, store = settings(tmp_path, kubelet=True), Store(WallClock())
    cluster = Cut(store)
    link = await SupervisorLink.begin(given.supervisor())
    agent = Agent(cluster, link, WallClock(), given, lambda _: None)
    await agent.start()
    store.create(PODS.whole(), manifest(container("trap 'exit 0' TERM; while :; do sleep 0.02; done")))
    await settle(lambda: store.get(PODS.whole(), Key("space", "pod"))["status"]["phase"] == "Running")
    cluster.error = AWAY
    await agent.stop(None)
    status = await _second(store, tmp_path)

    assert (status["phase"], status["reason"]) == ("Failed", "NodeLost")


async def test_an_agent_that_ends_waits_for_what_is_just_being_told(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, Cut, kubelet=True) as node:
        node.run(container("sleep 0.2"))
        await node.phase("Running")
        cluster_of(node).slow = 0.3
        worker = node.agent.worker(Key("space", "pod"))
        assert worker is not None
        await settle(lambda: worker.pod.ended)
        await node.agent.stop(None)
        assert node.status()["phase"] == "Succeeded"


async def test_a_pod_that_is_deleted_as_it_ends_has_its_end_told(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, Cut, kubelet=True) as node:
        body = manifest(container("sleep 0.2"))
        node.create(PODS, {**body, "metadata": {**body["metadata"], "finalizers": ["ours/counts"]}})
        await node.phase("Running")
        cluster_of(node).slow = 0.3
        worker = node.agent.worker(Key("space", "pod"))
        assert worker is not None
        await settle(lambda: worker.pod.ended)
        node.delete()
        await node.phase("Succeeded")


async def test_others_cannot_look_into_the_pods_of_a_node(tmp_path: Path) -> None:
    node = LocalNode(settings(tmp_path, kubelet=True), lambda _: None)
    await node.leave(0, remove=False)

    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("pods", "logs")}
    assert modes == {"pods": 0o700, "logs": 0o700}


async def test_an_agent_with_a_defect_does_not_pass_for_a_node(tmp_path: Path) -> None:
    (tmp_path / "logs" / "old" / "folder").mkdir(parents=True)  # not ours, and no defect
    async with agent_rig(tmp_path, partial(Cut), kubelet=True) as node:
        failed = asyncio.Event()
        node.agent.on_failed = failed.set
        node.run()
        await node.phase("Succeeded")
        assert not failed.is_set()
        node.agent._spawn(_defect())
        await settle(failed.is_set)
    assert "has failed: ValueError('x')" in node.notices[-1]


async def _defect() -> None:
    raise ValueError("x")
