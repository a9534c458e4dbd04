# SPDX-License-Identifier: Apache-2.0
"""The scheduler on the real store, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from scheduler_objects import node, pod

from trainwright.local.cluster import LocalCluster
from trainwright.local.scheduling.scheduler import Scheduler, mark_node_lost
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import NODES, POD_GROUPS, PODS, Resource, WatchEventType
from trainwright.testing.factories import NOW

pytestmark = pytest.mark.looptime


class LoopClock:
    """The time of the event loop, which the tests advance."""

    def now(self) -> datetime:
        return NOW + timedelta(seconds=asyncio.get_running_loop().time())


@asynccontextmanager
async def scheduling(*nodes: dict[str, Any], history: int = 8192) -> AsyncIterator[Store]:
    store = Store(LoopClock(), history=history)
    for one in nodes:
        store.create(NODES, one)
    async with running(Scheduler(LocalCluster(store), LoopClock())):
        yield store


@asynccontextmanager
async def running(*parts: Scheduler) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(part.run()) for part in parts]
    yield
    for task in tasks:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def where(store: Store, *names: str) -> list[str]:
    return [store.get(PODS, Key("default", name))["spec"].get("nodeName", "") for name in names]


def scheduled(store: Store, name: str) -> dict[str, Any]:
    conditions = store.get(PODS, Key("default", name))["status"].get("conditions") or []
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def end(store: Store, name: str, phase: str = "Succeeded") -> None:
    store.patch(PODS, Key("default", name), {"status": {"phase": phase}}, status=True)


def writes(store: Store, resource: Resource, since: str) -> int:
    return sum(one.what is not WatchEventType.BOOKMARK for one in store.watch(resource, since=since).take())


def gang(least: int) -> dict[str, Any]:
    return {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": least}}


async def test_a_pod_gets_a_node_within_milliseconds() -> None:
    async with scheduling(node()) as store:
        store.create(PODS, pod("a", cpu=1))
        await asyncio.sleep(0.01)
        assert where(store, "a") == ["node-0"]
        assert scheduled(store, "a")["status"] == "True"


async def test_what_waits_is_told_and_goes_when_room_becomes_free() -> None:
    async with scheduling(node()) as store:
        store.create(PODS, pod("a", cpu=2))
        store.create(PODS, pod("b", cpu=1))
        await asyncio.sleep(1)
        told = scheduled(store, "b")
        assert (told["status"], told["reason"]) == ("False", "Unschedulable")
        assert told["message"] == "0/1 nodes are available: node-0: cpu: needs 1, 0 of 2 are free"
        end(store, "a")
        await asyncio.sleep(0.01)
        assert where(store, "b") == ["node-0"]
        assert scheduled(store, "b") == {
            "type": "PodScheduled",
            "status": "True",
            "lastTransitionTime": rfc3339(NOW + timedelta(seconds=1)),
        }


async def test_a_node_that_comes_later_takes_what_waits() -> None:
    async with scheduling() as store:
        store.create(PODS, pod("a"))
        await asyncio.sleep(1)
        assert scheduled(store, "a")["message"] == "0/0 nodes are available: no node has reported yet"
        store.create(NODES, node("late"))
        await asyncio.sleep(0.01)
        assert where(store, "a") == ["late"]


async def test_pods_that_are_there_before_the_scheduler_are_counted_and_placed() -> None:
    store = Store(LoopClock())
    store.create(NODES, node())
    store.create(PODS, pod("old", cpu=2, spec={"nodeName": "node-0"}))
    store.create(PODS, pod("new", cpu=1))
    async with running(Scheduler(LocalCluster(store), LoopClock())):
        await asyncio.sleep(1)
        assert where(store, "new") == [""]
        store.delete(PODS, Key("default", "old"), grace=0)
        await asyncio.sleep(0.01)
        assert where(store, "new") == ["node-0"]


async def test_a_pod_that_is_placed_at_once_costs_one_write() -> None:
    async with scheduling(node()) as store:
        store.create(PODS, pod("a"))
        version = store.version
        await asyncio.sleep(5)
        assert writes(store, PODS, version) == 1


async def test_a_pod_that_waits_for_a_moment_is_not_told_why() -> None:
    async with scheduling(node()) as store:
        store.create(PODS, pod("a", cpu=2))
        await asyncio.sleep(0.01)
        store.create(PODS, pod("b", cpu=1))
        version = store.version
        await asyncio.sleep(0.1)
        end(store, "a")
        await asyncio.sleep(5)
        assert where(store, "b") == ["node-0"]
        assert writes(store, PODS, version) == 2  # the end and the binding


async def test_a_reason_is_written_once_and_again_when_it_changes() -> None:
    async with scheduling(node(cpu=4)) as store:
        store.create(PODS, pod("a", cpu=2))
        store.create(PODS, pod("b", cpu=1))
        await asyncio.sleep(0.01)
        store.create(PODS, pod("c", cpu=3))
        version = store.version
        await asyncio.sleep(5)
        assert writes(store, PODS, version) == 1
        since = scheduled(store, "c")["lastTransitionTime"]
        end(store, "b", "Failed")
        version = store.version
        await asyncio.sleep(5)
        assert writes(store, PODS, version) == 1
        assert scheduled(store, "c")["message"].endswith("cpu: needs 3, 2 of 4 are free")
        assert scheduled(store, "c")["lastTransitionTime"] == since


async def test_pods_that_come_and_go_do_not_make_those_who_wait_write() -> None:
    async with scheduling(node(cpu=1)) as store:
        for index in range(200):
            store.create(PODS, pod(f"p-{index:03}", cpu=1))
        await asyncio.sleep(5)
        version = store.version
        for index in range(20):
            end(store, f"p-{index:03}")
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert where(store, "p-020") == ["node-0"]
        assert writes(store, PODS, version) == 20 + 20  # the ends and the bindings


async def test_a_gang_goes_together_or_waits_together() -> None:
    async with scheduling(node(), node("node-1")) as store:
        store.create(POD_GROUPS, gang(4))
        for index in range(3):
            store.create(PODS, pod(f"w-{index}", group="g", cpu=1))
        await asyncio.sleep(1)
        assert where(store, "w-0", "w-1", "w-2") == ["", "", ""]
        assert scheduled(store, "w-0")["message"] == "gang needs 4 pods at once: 3 of them exist"
        store.create(PODS, pod("w-3", group="g", cpu=1))
        await asyncio.sleep(0.01)
        assert sorted(where(store, "w-0", "w-1", "w-2", "w-3")) == ["node-0", "node-0", "node-1", "node-1"]


async def test_a_member_that_is_made_again_joins_the_others() -> None:
    async with scheduling(node(cpu=4)) as store:
        store.create(POD_GROUPS, gang(2))
        for name in ("w-0", "w-1"):
            store.create(PODS, pod(name, group="g", cpu=1))
        await asyncio.sleep(0.01)
        store.delete(PODS, Key("default", "w-1"), grace=0)
        store.create(PODS, pod("w-1", group="g", cpu=1))
        await asyncio.sleep(0.01)
        assert where(store, "w-0", "w-1") == ["node-0", "node-0"]


async def test_a_watch_that_falls_behind_begins_anew() -> None:
    async with scheduling(node(pods=10000), history=8) as store:
        await asyncio.sleep(0.01)
        for index in range(100):
            store.create(PODS, pod(f"p-{index}"))
        await asyncio.sleep(1)
        assert set(where(store, *(f"p-{index}" for index in range(100)))) == {"node-0"}


async def test_a_node_that_is_removed_takes_no_more_pods() -> None:
    async with scheduling(node(), node("node-1", cpu=1)) as store:
        store.delete(NODES, Key("", "node-0"))
        store.create(PODS, pod("a", cpu=2))
        await asyncio.sleep(1)
        assert scheduled(store, "a")["message"] == "can never fit: node-1: cpu: needs 2, this node has 1"


async def test_a_pod_that_somebody_else_binds_first_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(LoopClock())
    bind = store.bind
    store.create(NODES, node())

    def late(key: Key, node: str, *, uid: str = "", annotations: Any = None) -> dict[str, Any]:
        bind(key, "elsewhere")
        return bind(key, node, uid=uid)

    monkeypatch.setattr(store, "bind", late)
    async with running(Scheduler(LocalCluster(store), LoopClock())):
        store.create(PODS, pod("a", cpu=2))
        await asyncio.sleep(1)
        assert where(store, "a") == ["elsewhere"]
        store.create(PODS, pod("b", cpu=2))
        await asyncio.sleep(1)
        assert where(store, "b") == ["elsewhere"]


async def test_a_pod_that_goes_while_it_waits_is_forgotten() -> None:
    async with scheduling(node()) as store:
        store.create(PODS, pod("a", cpu=9))
        await asyncio.sleep(0.1)
        store.delete(PODS, Key("default", "a"))
        version = store.version
        await asyncio.sleep(5)
        assert writes(store, PODS, version) == 0


async def test_a_lost_node_takes_no_pods_until_it_is_back() -> None:
    async with scheduling(node()) as store:
        cluster = LocalCluster(store)
        store.create(PODS, pod("before"))
        await asyncio.sleep(3)
        await mark_node_lost(cluster, "node-0", LoopClock())
        store.create(PODS, pod("after"))
        await asyncio.sleep(1)
        assert where(store, "before", "after") == ["node-0", ""]
        assert scheduled(store, "after")["message"] == "0/1 nodes are available: node-0: not ready"
        [ready] = store.get(NODES, Key("", "node-0"))["status"]["conditions"]
        assert ready == {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "the node agent went away",
            "lastTransitionTime": rfc3339(NOW + timedelta(seconds=3)),
        }
        version = store.version
        await mark_node_lost(cluster, "node-0", LoopClock())
        await mark_node_lost(cluster, "nobody", LoopClock())
        assert store.version == version
        store.patch(NODES, Key("", "node-0"), {"status": node()["status"]}, status=True)
        await asyncio.sleep(0.01)
        assert where(store, "after") == ["node-0"]
