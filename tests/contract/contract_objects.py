# SPDX-License-Identifier: Apache-2.0
"""What the contract's tests write and how they look at it: bodies that a real API server takes, one line each.

What an API server does a little later is waited for with `eventually`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from trainwright.model.meta import Key
from trainwright.runtime.ports import JOBS, PODS, SECRETS, Cluster, Resource, Selection, WatchEvent, WatchEventType

PODS_WHOLE = PODS.whole()
GENERICJOBS = JOBS["genericjob"]
#: Where everything is; tests that run beside each other on one server must not meet.
SPACE = f"contract-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
HERE = Selection(namespace=SPACE)
ONE, TWO = "MQ==", "Mg=="


def secret(name: str, **metadata: Any) -> dict[str, Any]:
    return {**_head(SECRETS, name, metadata), "data": {"a": ONE}}


def pod(name: str, *, node: str = "", grace: int | None = None, **metadata: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "busybox:1.37", "command": ["true"]}]
    spec: dict[str, Any] = {"containers": containers, "schedulerName": "nobody"}
    spec |= {"nodeName": node} if node else {}
    spec |= {"terminationGracePeriodSeconds": grace} if grace is not None else {}
    return {**_head(PODS, name, metadata), "spec": spec}


def job(name: str, **metadata: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "busybox:1.37", "command": ["true"]}]}}
    spec = {"replicaSpecs": [{"type": "worker", "replicas": 1, "template": template}]}
    return {**_head(GENERICJOBS, name, metadata), "spec": spec}


def _head(resource: Resource, name: str, metadata: dict[str, Any]) -> dict[str, Any]:
    named = {"name": name, "namespace": SPACE} if name else {"namespace": SPACE}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {**named, **metadata}}


def owner(body: dict[str, Any], *, blocks: bool = False) -> dict[str, Any]:
    """A reference to it."""
    named = {"apiVersion": body["apiVersion"], "kind": body["kind"], "name": body["metadata"]["name"]}
    return {**named, "uid": body["metadata"]["uid"], "blockOwnerDeletion": blocks}


def key(name: str) -> Key:
    return Key(SPACE, name)


def version(body: dict[str, Any]) -> str:
    return str(body["metadata"]["resourceVersion"])


async def names(cluster: Cluster, resource: Resource, **scope: str) -> list[str]:
    page = await cluster.list(resource, Selection(namespace=SPACE, **scope))
    return [resource.meta(item).name for item in page.items]


async def told(cluster: Cluster, resource: Resource, since: str, number: int, **scope: str) -> list[WatchEvent]:
    """The next changes of a watch, without bookmarks, which an engine may send or not."""
    seen: list[WatchEvent] = []
    async with (
        asyncio.timeout(5),
        aclosing(cluster.watch(resource, Selection(namespace=SPACE, **scope), since=since)) as batches,
    ):
        async for batch in batches:
            seen += [change for change in batch if change.what is not WatchEventType.BOOKMARK]
            if len(seen) >= number:
                break
    return seen


async def eventually(test: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so; a busy garbage collector takes its time."""
    async with asyncio.timeout(20):
        while not await test():
            await asyncio.sleep(0.01)
