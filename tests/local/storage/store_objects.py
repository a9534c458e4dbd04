# SPDX-License-Identifier: Apache-2.0
"""Objects and a clock for the store's own tests."""

from datetime import UTC, datetime, timedelta
from typing import Any

from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.ports import JOBS, PODS, SECRETS, Resource

JOB = JOBS["genericjob"]
SPACE = "default"


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 15, 12, 0, 0, 700_000, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def later(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def store(history: int = 8192) -> Store:
    return Store(Clock(), history=history)


def body(name: str, resource: Resource = SECRETS, **metadata: Any) -> dict[str, Any]:
    namespace = {"namespace": SPACE} if resource.namespaced else {}
    return {"metadata": {"name": name, **namespace, **metadata}}


def pod(name: str, *, node: str = "", **metadata: Any) -> dict[str, Any]:
    spec = {"nodeName": node} if node else {}
    return {**body(name, PODS, **metadata), "spec": {**spec, "containers": [{"name": "main"}]}}


def owner(owned_by: dict[str, Any], *, blocks: bool = False) -> dict[str, Any]:
    return {"uid": owned_by["metadata"]["uid"], "blockOwnerDeletion": blocks}


def key(name: str) -> Key:
    return Key(SPACE, name)


def names(items: Store, resource: Resource = SECRETS) -> list[str]:
    return [item["metadata"]["name"] for item in items.list(resource)[0]]
