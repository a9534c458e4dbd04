# SPDX-License-Identifier: Apache-2.0
"""Containers that wait for a ConfigMap: told so as a kubelet tells it, and woken when it comes."""

import asyncio
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from node_agent import PACE, agent_rig, container, waiting

from trainwright.errors import ForbiddenError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import KIND, Key
from trainwright.node import watches
from trainwright.runtime.ports import CONFIG_MAPS, EVERYTHING, ListPage, Resource, Selection, WallClock

#: So long that a pod which is not woken is late.
SLOW = replace(PACE, config_retry=60.0)
NEEDS: dict[str, Any] = {"envFrom": [{"configMapRef": {"name": "peers"}}]}


def peers(data: dict[str, str], labels: dict[str, str] | None = None) -> Body:
    meta: Body = {"name": "peers", "namespace": "space", "labels": {KIND: "paddlejob"} if labels is None else labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


async def test_a_pod_waits_with_its_address_known_and_starts_as_soon_as_the_map_is_there(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, delays=SLOW) as node:
        for name in ("one", "two"):
            node.run(container("echo $PEERS", **NEEDS), name=name)
        status = await node.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError", "one")
        assert status["podIP"] == "127.3.0.7"
        assert "there is no ConfigMap 'peers' in namespace 'space'" in waiting(status)["message"]
        assert status["phase"] == "Pending"
        began = time.monotonic()
        node.create(CONFIG_MAPS, peers({"PEERS": "a,b"}))
        for name in ("one", "two"):
            await node.phase("Succeeded", name)

        assert time.monotonic() - began < 30
        assert node.log("one") == "a,b\n"


async def test_a_map_without_the_key_that_is_needed_is_waited_for_too(tmp_path: Path) -> None:
    key = {"name": "WORLD", "valueFrom": {"configMapKeyRef": {"name": "peers", "key": "now"}}}
    async with agent_rig(tmp_path, delays=SLOW) as node:
        node.create(CONFIG_MAPS, peers({"before": "x"}))
        node.run(container("echo $WORLD", env=[key]))
        await node.until(lambda status: "has no key 'now'" in waiting(status).get("message", ""))
        node.store.patch(CONFIG_MAPS.whole(), Key("space", "peers"), {"data": {"now": "y"}})
        await node.phase("Succeeded")

        assert node.log() == "y\n"


async def test_a_map_that_goes_and_comes_is_read_as_it_is_then(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, delays=SLOW) as node:
        node.create(CONFIG_MAPS, peers({"PEERS": "old"}))
        node.run(container("echo $PEERS", **NEEDS), name="before")
        await node.phase("Succeeded", "before")
        node.store.delete(CONFIG_MAPS.whole(), Key("space", "peers"))
        node.run(container("echo $PEERS", **NEEDS))
        await node.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError")
        node.create(CONFIG_MAPS, peers({"PEERS": "new"}))
        await node.phase("Succeeded")

        assert node.log() == "new\n"


async def test_one_of_somebody_else_is_looked_for_again_and_again(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as node:
        node.run(container("echo $PEERS", **NEEDS))
        await node.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError")
        node.create(CONFIG_MAPS, peers({"PEERS": "theirs"}, labels={}))
        await node.phase("Succeeded")

        assert node.log() == "theirs\n"


class Closed(LocalCluster):
    """One on which ConfigMaps may only be asked for by name."""

    asked = 0

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        if resource.plural == "configmaps" and scope.labels:
            Closed.asked += 1
            raise ForbiddenError("not yours to list")
        return await super().list(resource, scope, not_older_than=not_older_than)


async def test_where_the_watch_is_not_allowed_it_is_asked_for_once_and_pods_look_by_themselves(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, cluster=Closed) as node:
        node.run(container("echo $PEERS", **NEEDS))
        await node.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError")
        await asyncio.sleep(0.5)
        node.create(CONFIG_MAPS, peers({"PEERS": "late"}))
        await node.phase("Succeeded")

        assert (node.log(), Closed.asked) == ("late\n", 1)


@pytest.mark.parametrize("more", [{}, NEEDS])
async def test_a_pod_that_is_deleted_while_it_waits_goes(tmp_path: Path, more: dict[str, Any]) -> None:
    secret = [*more.get("envFrom", ()), {"secretRef": {"name": "none"}}]
    async with agent_rig(tmp_path, delays=SLOW) as node:
        node.run(container("exit 0", envFrom=secret))
        await node.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError")
        node.delete(grace=0)
        await node.gone()


class ByName(LocalCluster):
    """A cluster on which a node may list and watch a ConfigMap by its name alone."""

    scopes: ClassVar[list[Selection]] = []

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        if resource.plural == "configmaps":
            ByName.scopes.append(scope)
            if not scope.fields or not scope.namespace:
                raise ForbiddenError("a node may only read what its pods refer to")
        return await super().list(resource, scope, not_older_than=not_older_than)


async def test_on_a_cluster_each_map_is_watched_by_its_name(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, cluster=ByName, delays=SLOW, kubelet=True) as node:
        for name in ("one", "two"):
            node.run(container("echo $PEERS", **NEEDS), name=name)
            await node.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError", name)
        began = time.monotonic()
        node.create(CONFIG_MAPS, peers({"PEERS": "a,b"}, labels={}))
        for name in ("one", "two"):
            await node.phase("Succeeded", name)

        assert time.monotonic() - began < 30
        assert set(ByName.scopes) == {Selection("space", fields="metadata.name=peers")}


async def test_the_watch_of_a_name_ends_some_time_after_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_IDLE_WATCH_SECONDS", 0.05)
    one = watches.ConfigMapWaiter(LocalCluster(Store(WallClock())), PACE, by_name=True)
    key = Key("space", "peers")
    await one.wait_changed({key: 0}, 0.1)
    assert key in one._name_watches
    await one.wait_changed({key: 0}, 0.1)
    assert key in one._name_watches
    await asyncio.sleep(0.2)
    assert key not in one._name_watches
    await one.close()
