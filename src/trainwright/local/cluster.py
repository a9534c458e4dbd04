# SPDX-License-Identifier: Apache-2.0
"""A `Cluster` on a store, for the controller, the scheduler and the agents in the same process.

Only `watch` waits: until the next write to the watched resource. The other methods return at once.
"""

from asyncio import Event
from collections.abc import AsyncGenerator
from typing import Any

from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import EVERYTHING, PODS, ListPage, Propagation, Resource, Selection, WatchEvent


class LocalCluster:
    """A `Cluster` that uses a store in the same process."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """The objects in the scope."""
        return self.store.page(resource, scope, not_older_than=not_older_than)

    async def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        """The events after the version `since`, in batches. If `since` is empty, the watch begins with all objects."""
        watch = self.store.watch(resource, scope, since)
        more = Event()
        try:
            while True:
                while batch := watch.take():
                    yield batch
                more.clear()
                watch.wait(more.set)
                await more.wait()
        finally:
            watch.close()

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object."""
        return self.store.view(resource, self.store.get(resource, key))

    async def create(self, resource: Resource, body: Body) -> Any:
        """Create an object."""
        return self.store.view(resource, self.store.create(resource, body))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Merge-patch an object, or its status alone."""
        return self.store.view(resource, self.store.patch(resource, key, body, uid=uid, version=version, status=status))

    async def replace_status(self, resource: Resource, document: Body) -> Any:
        """Replace the status of an object. Other parts of the document have no effect."""
        return self.store.view(resource, self.store.replace_status(resource, document))

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> Any:
        """Delete an object. Returns the object if it still exists because of a grace period or a finalizer."""
        remaining = self.store.delete(resource, key, uid=uid, grace=grace, propagation=propagation)
        return None if remaining is None else self.store.view(resource, remaining)

    async def bind(self, key: Key, node: str, *, uid: str = "", version: str = "") -> Any:
        """Put a pod on a node, as the binding subresource of an API server does."""
        return self.store.view(PODS, self.store.bind(key, node, uid=uid, version=version))
