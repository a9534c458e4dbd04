# SPDX-License-Identifier: Apache-2.0
"""A `Cluster` on a store, for the controller, the scheduler and the agents in the same process.

`watch` waits for the next write to the watched resource. If the store has no journal, the other methods return at once.
If it has one, they return when everything that their answer shows is durable, so that no client ever sees a write that
a crash could undo. Writes that change nothing wait too, and so do errors: `AlreadyExists` shows an object as well.
"""

from asyncio import Event
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from trainwright.errors import NotFoundError
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import EVERYTHING, PODS, ListPage, Propagation, Resource, Selection, WatchEvent

ResultT = TypeVar("ResultT")


class LocalCluster:
    """A `Cluster` that uses a store in the same process."""

    def __init__(self, store: Store) -> None:
        self.store, self._journal = store, store.journal

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """The objects in the scope."""
        try:
            return self.store.page(resource, scope, not_older_than=not_older_than)
        finally:
            if self._journal is not None:
                await self._journal.wait(self.store.last_version)

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
        journal = self._journal
        if journal is None:
            return self.store.view(resource, self.store.get(resource, key))
        try:
            body = self.store.get(resource, key)
        except NotFoundError:
            await journal.wait(self.store.last_version)
            raise
        item = self.store.view(resource, body)
        await journal.wait(int(body["metadata"]["resourceVersion"]))
        return item

    async def create(self, resource: Resource, body: Body) -> Any:
        """Create an object."""
        self._check_journal()
        try:
            return self.store.view(resource, self.store.create(resource, body))
        finally:
            if self._journal is not None:
                await self._journal.wait(self.store.last_version)

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Merge-patch an object, or its status alone."""
        self._check_journal()
        try:
            changed = self.store.patch(resource, key, body, uid=uid, version=version, status=status)
            return self.store.view(resource, changed)
        finally:
            if self._journal is not None:
                await self._journal.wait(self.store.last_version)

    async def replace_status(self, resource: Resource, document: Body) -> Any:
        """Replace the status of an object. Other parts of the document have no effect."""
        self._check_journal()
        try:
            return self.store.view(resource, self.store.replace_status(resource, document))
        finally:
            if self._journal is not None:
                await self._journal.wait(self.store.last_version)

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
        self._check_journal()
        try:
            remaining = self.store.delete(resource, key, uid=uid, grace=grace, propagation=propagation)
            return None if remaining is None else self.store.view(resource, remaining)
        finally:
            if self._journal is not None:
                await self._journal.wait(self.store.last_version)

    async def bind(self, key: Key, node: str, *, uid: str = "", version: str = "", resource: Resource = PODS) -> Any:
        """Put a pod on a node, as the binding subresource of an API server does."""
        self._check_journal()
        try:
            return self.store.view(resource, self.store.bind(key, node, uid=uid, version=version))
        finally:
            if self._journal is not None:
                await self._journal.wait(self.store.last_version)

    @property
    def durable_version(self) -> int:
        """The version of the last write that clients may see."""
        return self.store.last_version if self._journal is None else self._journal.durable

    async def durably(self, change: Callable[[], ResultT]) -> ResultT:
        """Make several changes of the store as one step. Return when all that the answer shows is durable."""
        self._check_journal()
        try:
            return change()
        finally:
            if self._journal is not None:
                await self._journal.wait(self.store.last_version)

    def _check_journal(self) -> None:
        """Raise UnavailableError if the disk has accepted no write for a long time."""
        if self._journal is not None:
            self._journal.check()
