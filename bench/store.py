# SPDX-License-Identifier: Apache-2.0
"""Measures the store against a plain dict and list: writes with ten watchers, each verb, memory. See README.md.

Run: python bench/store.py [--quick]
"""

import asyncio
import gc
import platform
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import msgspec

import trainwright
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import KIND, Key
from trainwright.runtime.ports import JOBS, PODS, Resource, Selection, WallClock

QUICK = "--quick" in sys.argv
PODS_AT_ONCE = 200 if QUICK else 2000
RUNS = 1 if QUICK else 5
WATCHERS = 10
JOB = JOBS["genericjob"]
STARTED = "2026-11-15T12:00:00Z"
Body = dict[str, Any]


def wire(index: int, uid: str) -> bytes:
    """Return a pod as the controller creates it: about 5 KB of JSON, which shares nothing with other pods."""
    env = [{"name": f"VARIABLE_{i}", "value": f"value {i} of pod {index}"} for i in range(45)]
    mounts = [{"name": f"volume-{i}", "mountPath": f"/data/{i}"} for i in range(10)]
    volumes = [{"name": f"volume-{i}", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} for i in range(10)]
    container = {"name": "main", "image": "python:3.12-slim", "command": ["python", "/train.py"], "env": env}
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "8"}}
    owner = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": "job", "uid": uid, "controller": True}
    labels = {KIND: "genericjob", **{f"example.com/label-{i}": f"value-{i}" for i in range(8)}}
    metadata = {"name": f"job-worker-{index}", "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    spec = {"containers": [{**container, "resources": resources, "volumeMounts": mounts}], "volumes": volumes}
    tolerations = [{"key": f"node.kubernetes.io/{i}", "operator": "Exists", "effect": "NoExecute"} for i in range(10)]
    return msgspec.json.encode({"metadata": metadata, "spec": {**spec, "tolerations": tolerations}})


def pods(number: int, uid: str) -> list[Body]:
    """Return this number of pods."""
    return [msgspec.json.decode(wire(index, uid)) for index in range(number)]


def running(index: int) -> Body:
    """Return the status that a node agent writes."""
    state = {"running": {"startedAt": STARTED}}
    container = {"name": "main", "ready": True, "restartCount": 0, "started": True, "state": state}
    ready = [{"type": kind, "status": "True", "lastTransitionTime": STARTED} for kind in ("Ready", "ContainersReady")]
    address = f"10.1.{index // 250}.{index % 250}"
    return {"status": {"phase": "Running", "podIP": address, "conditions": ready, "containerStatuses": [container]}}


ENDED = {"status": {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}}


def opened() -> tuple[Store, str]:
    """Return a store with one job, and the job's UID."""
    store = Store(WallClock())
    made = store.create(JOB, {"metadata": {"name": "job", "namespace": "default"}, "spec": {}})
    return store, made["metadata"]["uid"]


def lives(store: Store, bodies: list[Body]) -> Iterator[object]:
    """Do five writes for each pod: create, bind, running, ended, delete."""
    for index, body in enumerate(bodies):
        key = Key("default", body["metadata"]["name"])
        yield store.create(PODS, body)
        yield store.bind(key, "node-1")
        yield store.patch(PODS, key, running(index), status=True)
        yield store.patch(PODS, key, ENDED, status=True)
        yield store.delete(PODS, key)


def floor(bodies: list[Body]) -> float:
    """Return the CPU seconds of one write to a plain dict with a plain list as its history."""
    table: dict[Key, Body] = {}
    history: list[tuple[int, Body]] = []
    began = process_time()
    for index, body in enumerate(bodies):
        for version in range(5):
            table[Key("default", body["metadata"]["name"])] = body
            history.append((5 * index + version, body))
    return (process_time() - began) / (5 * len(bodies))


async def watched(resource: Resource, scope: Selection, burst: int) -> float:
    """Return the CPU seconds of one write with ten watchers, which read all events after every burst of writes."""
    store, uid = opened()
    cluster, bodies = LocalCluster(store), pods(PODS_AT_ONCE, uid)
    seen = [0] * WATCHERS

    async def follow(number: int) -> None:
        async for batch in cluster.watch(resource, scope, since=store.version):
            seen[number] += len(batch)

    tasks = [asyncio.create_task(follow(number)) for number in range(WATCHERS)]
    await asyncio.sleep(0)
    gc.collect()
    began = process_time()
    for number, _ in enumerate(lives(store, bodies)):
        if number % burst == burst - 1:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    cost = (process_time() - began) / (5 * len(bodies))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert seen == [5 * len(bodies)] * WATCHERS
    return cost


def writes() -> None:
    """Measure the writes of a pod's life with ten watchers."""
    base = min(floor(pods(PODS_AT_ONCE, "uid")) for _ in range(RUNS))
    row("dict and list (floor)", base, base)
    ours = Selection(labels=KIND)
    for what, resource, scope, burst, target in (
        ("10 watchers, whole objects", PODS.whole(), Selection(), 16, "≥ 20,000"),
        ("10 watchers, decoded", PODS, Selection(), 16, "≥ 20,000"),
        ("10 watchers, decoded, by label", PODS, ours, 16, "≥ 20,000"),
        ("the same, ten tasks woken for every single write", PODS, ours, 1, ""),
    ):
        row(what, min(asyncio.run(watched(resource, scope, burst)) for _ in range(RUNS)), base, target)


def calls(store: Store, bodies: list[Body]) -> dict[str, Callable[[int], object]]:
    """Return one function per verb; it takes the number of the pod."""
    keys = [Key("default", body["metadata"]["name"]) for body in bodies]
    said = [running(index) for index in range(len(bodies))]
    return {
        "create": lambda index: store.create(PODS, bodies[index]),
        "bind": lambda index: store.bind(keys[index], "node-1"),
        "status": lambda index: store.patch(PODS, keys[index], said[index], status=True),
        "status, nothing new": lambda index: store.patch(PODS, keys[index], said[index], status=True),
        "label": lambda index: store.patch(PODS, keys[index], {"metadata": {"labels": {"new": "label"}}}),
        "delete, with a grace": lambda index: store.delete(PODS, keys[index]),
        "delete": lambda index: store.delete(PODS, keys[index], grace=0),
    }


def verbs() -> None:
    """Measure each verb alone."""
    print()
    base = min(floor(pods(PODS_AT_ONCE, "uid")) for _ in range(RUNS))
    costs: dict[str, float] = {}
    for _ in range(RUNS):
        store, uid = opened()
        for name, call in calls(store, pods(PODS_AT_ONCE, uid)).items():
            gc.collect()
            began = process_time()
            for index in range(PODS_AT_ONCE):
                call(index)
            costs[name] = min(costs.get(name, 1.0), (process_time() - began) / PODS_AT_ONCE)
    for name, cost in costs.items():
        row(name, cost, base)


def memory() -> None:
    """Measure the store's own memory per object at three sizes. It does not copy the bodies."""
    print()
    for size in (100, 1000) if QUICK else (1000, 10000, 50000):
        store, uid = opened()
        tracemalloc.start()
        bodies = pods(size, uid)
        given = tracemalloc.get_traced_memory()[0] / size
        for body in bodies:
            store.create(PODS, body)
        added = tracemalloc.get_traced_memory()[0] / size - given
        tracemalloc.stop()
        what = f"{size:,} pods"
        print(f"{what:48} {given:9,.0f} B of bodies  + {added:6,.0f} B of store per object")


def row(what: str, cost: float, base: float, target: str = "") -> None:
    """Print one line of the table."""
    print(f"{what:48} {1 / cost:12,.0f} writes/s {cost * 1e6:8.2f} µs {cost / base:7.1f} x floor  {target}", flush=True)


if __name__ == "__main__":
    print(f"trainwright {trainwright.__version__}, msgspec {msgspec.__version__}, Python {platform.python_version()}")
    print(f"a pod is {len(wire(1, 'u' * 36)):,} bytes of JSON; CPU time, smallest of {RUNS} runs\n")
    for part in (writes, verbs, memory):
        part()
