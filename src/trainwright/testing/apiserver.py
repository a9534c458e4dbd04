# SPDX-License-Identifier: Apache-2.0
"""The API server of the simulated world: what exists, in which version, and the watch events that tell of changes.

It is a `Cluster` for the operator's executor. None of its verbs waits for anything, so whoever awaits them needs no
event loop.
"""

from collections.abc import AsyncGenerator, Callable
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.errors import AlreadyExistsError, ConflictError, NotFoundError
from trainwright.model.child import Extra, Pod, Service
from trainwright.model.job import Body, Job
from trainwright.model.meta import KIND, Key
from trainwright.runtime.ports import EVERYTHING, ListPage, Propagation, Resource, Selection, WatchEvent, WatchEventType

#: Seconds that a pod has to end when it is deleted.
GRACE = 30
Child = Pod | Service | Extra
#: Kind and name.
Address = tuple[str, str]


class DiedError(Exception):
    """The operator was killed between two writes."""


class Note(Struct, frozen=True):
    """A watch event that has not been delivered yet; `child` is the object as it was, where it is gone."""

    address: Address
    what: WatchEventType
    version: int
    child: Child


class ApiServer:
    """The children of one job. `now` is the world's clock, `job` the job as it is stored."""

    def __init__(self, now: Callable[[], datetime], job: Callable[[], Job]) -> None:
        self._now, self._job = now, job
        self.truth: dict[Address, Child] = {}
        self.notes: list[Note] = []
        self.version = 1
        self.made = 0
        #: By UID: what objects were made from, with the data that ConfigMaps were given since.
        self.bodies_of: dict[str, Body] = {}
        #: The same by kind and name, of the object that was last made.
        self.bodies: dict[Address, Body] = {}
        self.writes: list[str] = []
        #: The operator dies when so many writes have been made.
        self.dies_at: int | None = None
        #: Called when the operator writes the job itself: its finalizers, or its deletion.
        self.finalized: Callable[[Body], None] = lambda _: None
        self.removed: Callable[[], None] = lambda: None

    def put(self, address: Address, child: Child | None) -> Child | None:
        """An object changes, appears or goes; the watch will tell of it. The object in its new version."""
        before = self.truth.pop(address, None)
        if before is not None and child is not None and before.metadata.uid != child.metadata.uid:
            self.truth[address] = before
            self.put(address, None)
            before = None
        gone = child is None
        child = child if child is not None else before
        if child is None:
            return None
        self.version += 1
        child = replace(child, metadata=replace(child.metadata, resource_version=str(self.version)))
        what = (
            WatchEventType.DELETED if gone else WatchEventType.MODIFIED if before is not None else WatchEventType.ADDED
        )
        self.notes.append(Note(address, what, self.version, child))
        if gone:
            return None
        self.truth[address] = child
        return child

    def remove(self, address: Address, grace: int) -> Child | None:
        """Somebody deletes an object. A pod that a node holds stays until its kubelet is done with it: what is left."""
        child = self.truth[address]
        if not isinstance(child, Pod) or not grace or not child.spec.node_name:
            return self.put(address, None)
        if child.metadata.deletion_timestamp is not None:
            return child
        when = self._now() + timedelta(seconds=grace)
        meta = replace(child.metadata, deletion_timestamp=when, deletion_grace_period_seconds=grace)
        return self.put(address, replace(child, metadata=meta))

    def note_write(self, what: str) -> None:
        """A write arrives. Raises DiedError if the operator dies before it is made."""
        if self.dies_at is not None and len(self.writes) >= self.dies_at:
            raise DiedError
        self.writes.append(what)

    # -- the operator's requests ---------------------------------------------------------------------------------

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:  # noqa: ARG002
        """Everything of a resource."""
        return self.page(resource)

    def page(self, resource: Resource) -> ListPage:
        """Everything of a resource that the operator's informers select."""
        mine = [child for (kind, _), child in self.truth.items() if kind == resource.kind and _of(child, resource)]
        found = [child for child in mine if selected(child)]
        return ListPage(tuple(found), str(self.version))

    def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        """The world delivers watch events itself, one by one."""
        raise NotImplementedError

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object."""
        return self._there(resource, key)

    async def create(self, resource: Resource, body: Body) -> Any:
        """Make an object."""
        meta = body["metadata"]
        address = (resource.kind, meta["name"])
        self.note_write(f"create {resource.kind} {meta['name']}")
        if address in self.truth:
            raise AlreadyExistsError(f'{resource.plural} "{meta["name"]}" already exists')
        self.made += 1
        uid = f"uid-{self.made}"
        self.bodies_of[uid] = self.bodies[address] = deepcopy(body)
        named = {**meta, "uid": uid, "creationTimestamp": self._now().isoformat()}
        return self.put(address, msgspec.convert({**body, "metadata": named}, resource.type))

    async def patch(
        self,
        resource: Resource,
        key: Key,
        body: Body,
        *,
        uid: str = "",
        version: str = "",  # noqa: ARG002 - nobody else writes what the operator patches
        status: bool = False,  # noqa: ARG002 - the world stores the job's status itself
    ) -> Any:
        """Merge-patch the metadata of an object, and the data of a ConfigMap."""
        self.note_write(f"patch {resource.kind} {key.name}")
        if uid == self._job().uid:
            self.finalized(body)
            return {"metadata": {"name": key.name, "namespace": key.namespace, "uid": uid}}
        child = self._there(resource, key, uid)
        made = self.bodies_of.get(child.metadata.uid)
        if made is not None and "data" in made:
            made["data"] = made["data"] | body.get("data", {})
        whole = msgspec.to_builtins(child)
        whole["metadata"] |= body.get("metadata", {})
        return self.put((resource.kind, key.name), msgspec.convert(whole, type(child)))

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,  # noqa: ARG002 - everything that the job owns goes with it
    ) -> Any:
        """Delete an object, or the job with all its children."""
        if uid == self._job().uid:
            self.note_write("delete job")
            for address in list(self.truth):
                self.put(address, None)
            self.removed()
            return None
        self.note_write(f"delete {resource.kind} {key.name}")
        self._there(resource, key, uid)
        return self.remove((resource.kind, key.name), GRACE if grace is None else grace)

    def _there(self, resource: Resource, key: Key, uid: str = "") -> Child:
        child = self.truth.get((resource.kind, key.name))
        if child is None or not _of(child, resource):
            raise NotFoundError(f'{resource.plural} "{key.name}" not found')
        if uid and child.metadata.uid != uid:
            raise ConflictError(f'{resource.plural} "{key.name}" has another UID')
        return child


def selected(child: Child) -> bool:
    """Whether the operator's informers select an object."""
    return KIND in (child.metadata.labels or {})


def _of(child: Child, resource: Resource) -> bool:
    """Whether an object is of that API: several gang schedulers have a PodGroup."""
    return not isinstance(child, Extra) or child.api_version == resource.api_version
