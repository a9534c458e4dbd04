# SPDX-License-Identifier: Apache-2.0
"""The API server of the simulated world: its objects, their versions, and the watch events that are not delivered yet.

It implements `Cluster` for the operator's executor. Its methods never wait, so they run without an event loop.
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

#: The grace period of a deleted pod, in seconds.
GRACE = 30
Child = Pod | Service | Extra
#: Kind and name of an object.
Address = tuple[str, str]


class DiedError(Exception):
    """The operator was killed between two writes."""


class Note(Struct, frozen=True):
    """A watch event that is not delivered yet. If the object was deleted, `child` is its last state."""

    address: Address
    what: WatchEventType
    version: int
    child: Child


class ApiServer:
    """Stores the children of one job. `now` returns the time of the world, `job` returns the stored job."""

    def __init__(self, now: Callable[[], datetime], job: Callable[[], Job]) -> None:
        self._now, self._job = now, job
        self.truth: dict[Address, Child] = {}
        self.notes: list[Note] = []
        self.version = 1
        self.made = 0
        #: The bodies with which objects were created, by UID. Patches of a ConfigMap update its data here.
        self.bodies_of: dict[str, Body] = {}
        #: The same bodies by kind and name. If several objects had the same name, this is the body of the last object.
        self.bodies: dict[Address, Body] = {}
        self.writes: list[str] = []
        #: The operator is killed when `writes` has this length; None: never.
        self.dies_at: int | None = None
        #: `finalized` is called when the operator patches the finalizers of the job, `removed` when it deletes the job.
        self.finalized: Callable[[Body], None] = lambda _: None
        self.removed: Callable[[], None] = lambda: None

    def put(self, address: Address, child: Child | None) -> Child | None:
        """Create, change or (with None) remove an object, and queue the event. Returns the stored object or None."""
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
        """Delete an object, return None. With a grace period: mark a pod on a node as being deleted, return the pod."""
        child = self.truth[address]
        if not isinstance(child, Pod) or not grace or not child.spec.node_name:
            return self.put(address, None)
        if child.metadata.deletion_timestamp is not None:
            return child
        when = self._now() + timedelta(seconds=grace)
        meta = replace(child.metadata, deletion_timestamp=when, deletion_grace_period_seconds=grace)
        return self.put(address, replace(child, metadata=meta))

    def note_write(self, what: str) -> None:
        """Record a write. Raises DiedError if the operator is killed before this write."""
        if self.dies_at is not None and len(self.writes) >= self.dies_at:
            raise DiedError
        self.writes.append(what)

    # -- the operator's requests ---------------------------------------------------------------------------------

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:  # noqa: ARG002
        """The same objects as `page`; the scope has no effect."""
        return self.page(resource)

    def page(self, resource: Resource) -> ListPage:
        """Those objects of a resource that the operator's informers select."""
        mine = [child for (kind, _), child in self.truth.items() if kind == resource.kind and _has_api(child, resource)]
        return ListPage(tuple(filter(selected, mine)), str(self.version))

    def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        """Not implemented: the world delivers watch events one by one."""
        raise NotImplementedError

    async def get(self, resource: Resource, key: Key) -> Any:
        """Return one object."""
        return self._existing(resource, key)

    async def create(self, resource: Resource, body: Body) -> Any:
        """Create an object."""
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
        version: str = "",  # noqa: ARG002 - only the operator writes these fields
        status: bool = False,  # noqa: ARG002 - the world stores the status of the job
    ) -> Any:
        """Merge-patch the metadata of an object, the data of a ConfigMap, and the fields of a spec."""
        self.note_write(f"patch {resource.kind} {key.name}")
        if uid == self._job().uid:
            self.finalized(body)
            return {"metadata": {"name": key.name, "namespace": key.namespace, "uid": uid}}
        child = self._existing(resource, key, uid)
        made = self.bodies_of.get(child.metadata.uid)
        for part in ("data", "spec"):
            if made is not None and part in made and part in body:
                made[part] = made[part] | body[part]
        whole = msgspec.to_builtins(child)
        whole["metadata"] |= body.get("metadata", {})
        return self.put((resource.kind, key.name), msgspec.convert(whole, type(child)))

    async def replace_status(self, resource: Resource, document: Body) -> Any:
        """Not implemented: the world stores the status of the job."""
        raise NotImplementedError

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,  # noqa: ARG002 - deleting the job deletes its children
    ) -> Any:
        """Delete an object, or the job with all its children."""
        if uid == self._job().uid:
            self.note_write("delete job")
            for address in list(self.truth):
                self.put(address, None)
            self.removed()
            return None
        self.note_write(f"delete {resource.kind} {key.name}")
        self._existing(resource, key, uid)
        return self.remove((resource.kind, key.name), GRACE if grace is None else grace)

    def _existing(self, resource: Resource, key: Key, uid: str = "") -> Child:
        child = self.truth.get((resource.kind, key.name))
        if child is None or not _has_api(child, resource):
            raise NotFoundError(f'{resource.plural} "{key.name}" not found')
        if uid and child.metadata.uid != uid:
            raise ConflictError(f'{resource.plural} "{key.name}" has another UID')
        return child


def selected(child: Child) -> bool:
    """Whether the operator's informers select an object."""
    return KIND in (child.metadata.labels or {})


def _has_api(child: Child, resource: Resource) -> bool:
    """Whether an extra has the API version of the resource: several gang schedulers have a kind named PodGroup."""
    return not isinstance(child, Extra) or child.api_version == resource.api_version
