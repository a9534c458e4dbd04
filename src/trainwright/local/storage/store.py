# SPDX-License-Identifier: Apache-2.0
"""Keeps the objects of the embedded engine in memory. It has the verbs of an API server, but not its wire format.

One counter gives every write its version. Every write ends in `Tables`, which updates the objects, the log for watches
and the index of owners together. Bodies are shared and never changed: a write makes a new body, which shares unchanged
parts with the old body, and a write that changes nothing makes no new version. Nothing here waits, and nothing here
is thread-safe.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import ValidationError, convert

from trainwright.errors import AlreadyExistsError, ConflictError, InvalidError, NotFoundError, UnavailableError
from trainwright.local.storage import metadata as rules
from trainwright.local.storage.collector import (
    Collector,
    ObjectRef,
    deleted_metadata,
    may_be_removed,
    waits_for_dependents,
)
from trainwright.local.storage.history import HistoryEntry, StoredObject, Watch, WriteLog, parse
from trainwright.local.storage.metadata import merge, readable
from trainwright.local.storage.selectors import compiled
from trainwright.model.job import Body
from trainwright.model.meta import Key, Wire
from trainwright.runtime.ports import (
    BY_ID,
    EVERYTHING,
    JOBS,
    PODS,
    Clock,
    ListPage,
    Propagation,
    Resource,
    Selection,
    WatchEventType,
)

#: An admission hook gets the stored object (None if the object is new) and the object to store. It returns the object
#: to store, perhaps with added defaults, or raises InvalidError.
Hook = Callable[[Body | None, Body], Body]
_ADDED, _MODIFIED, _DELETED = WatchEventType.ADDED, WatchEventType.MODIFIED, WatchEventType.DELETED


class _SpecAndStatus(Wire, frozen=True, gc=False):
    """The fields that are checked in objects of a resource that has no Python type of its own."""

    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class Table:
    """The objects of one resource, the log of its writes, and its admission hooks."""

    __slots__ = ("conversion", "hooks", "id", "log", "objects", "resource")

    def __init__(self, resource: Resource, history: int) -> None:
        self.id = resource.id
        self.resource = BY_ID.get(self.id, resource)
        self.objects: dict[Key, StoredObject] = {}
        self.log = WriteLog(history)
        self.hooks: list[Hook] = []
        self.conversion: Callable[[Body], Body] = lambda body: body

    def require(self, key: Key) -> StoredObject:
        """The object with this key. Raises NotFoundError if it does not exist."""
        record = self.objects.get(key)
        if record is None:
            raise NotFoundError(f"{self.display_name(key)} not found")
        return record

    def check(self, record: StoredObject) -> None:
        """Raise InvalidError if readers could not decode the object. The decoded object is kept for readers."""
        try:
            if self.resource.type is dict:
                convert(record.body, _SpecAndStatus)
            else:
                record.decoded(self.resource)
        except ValidationError as error:
            raise InvalidError(readable(error)) from None

    def display_name(self, key: Key) -> str:
        """The object's name for error messages."""
        where = f' in namespace "{key.namespace}"' if key.namespace else ""
        return f'{self.id} "{key.name}"{where}'


class Tables:
    """All tables, and the counter of versions that they share."""

    def __init__(self, clock: Clock, history: int) -> None:
        self.clock, self._history = clock, history
        self._tables: dict[str, Table] = {}
        self.version = 1
        self._collector = Collector(self)

    def of(self, resource: Resource) -> Table:
        """The table of a resource."""
        table = self._tables.get(resource.id)
        if table is None:
            table = self._tables[resource.id] = Table(resource, self._history)
        return table

    def put(self, table: Table, key: Key, before: StoredObject | None, body: Body, metadata: Body) -> Body:
        """Write a body with this metadata. The method changes the dict `metadata`.

        If the object is being deleted and has neither a grace period nor a finalizer, it is removed.
        """
        version = self.version + 1
        text = metadata["resourceVersion"] = str(version)
        record = StoredObject({**body, "metadata": metadata}, version, text)
        table.check(record)
        self.version = version
        if before is None:
            table.objects[key] = record
            table.log.append(HistoryEntry(_ADDED, record))
            self._collector.added(ObjectRef(table.id, key), metadata)
        elif "deletionTimestamp" in metadata and may_be_removed(metadata):
            self._remove(table, key, before, record)
        else:
            self._change(table, key, before, record)
        self._collector.run()
        return record.body

    def delete(self, table: Table, key: Key, grace: int | None, propagation: Propagation) -> None:
        """Remove an object at once, or mark it as being deleted if it has a grace period or a finalizer."""
        record = table.objects[key]
        metadata = deleted_metadata(record.body, self.clock.now(), grace, propagation)
        if metadata is None:
            self.version = version = self.version + 1
            last = {**record.body, "metadata": {**record.body["metadata"], "resourceVersion": str(version)}}
            self._remove(table, key, record, StoredObject(last, version, str(version)))
        elif metadata is not record.body["metadata"]:
            if waits_for_dependents(metadata):
                self._collector.queue_blocking_dependents(metadata["uid"])
            self.put(table, key, record, record.body, dict(metadata))
        self._collector.run()

    def _change(self, table: Table, key: Key, before: StoredObject, after: StoredObject) -> None:
        table.objects[key] = after
        table.log.append(HistoryEntry(_MODIFIED, after, before))
        old, new = before.body["metadata"], after.body["metadata"]
        if "deletionTimestamp" in new or old.get("ownerReferences") is not new.get("ownerReferences"):
            self._collector.changed(ObjectRef(table.id, key), old, new)

    def _remove(self, table: Table, key: Key, before: StoredObject, last: StoredObject) -> None:
        del table.objects[key]
        table.log.append(HistoryEntry(_DELETED, last, before))
        self._collector.removed(ObjectRef(table.id, key), before.body["metadata"])

    # -- used by the garbage collector --------------------------------------------------------------------------------

    def metadata(self, ref: ObjectRef) -> Body:
        """The metadata of an object; empty if it does not exist."""
        record = self._tables[ref.resource].objects.get(ref.key)
        return record.body["metadata"] if record is not None else {}

    def set_metadata(self, ref: ObjectRef, metadata: Body) -> None:
        """Replace the metadata of an object."""
        table = self._tables[ref.resource]
        before = table.objects[ref.key]
        self.put(table, ref.key, before, before.body, metadata)

    def delete_dependent(self, ref: ObjectRef, propagation: Propagation) -> None:
        """Delete an object with the grace period of its spec."""
        self.delete(self._tables[ref.resource], ref.key, None, propagation)


#: The status of a new object. A status that its creator sends is ignored.
_INITIAL_STATUS: dict[str, Body] = {PODS.id: {"status": {"phase": "Pending"}}, **{job.id: {} for job in JOBS.values()}}


class Store:
    """All objects. Callers must not change bodies that they give to the store or get from it."""

    def __init__(self, clock: Clock, *, history: int = 8192) -> None:
        self._tables = Tables(clock, history)

    @property
    def version(self) -> str:
        """The version of the last write."""
        return str(self._tables.version)

    def admit(self, resource: Resource, hook: Hook) -> None:
        """Call the hook for every new object and for every change, except if only the status changes."""
        self._tables.of(resource).hooks.append(hook)

    def convert(self, resource: Resource, conversion: Callable[[Body], Body]) -> None:
        """Convert each new object of the resource to the stored API version. Clients can send any served version."""
        self._tables.of(resource).conversion = conversion

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, key: Key) -> Body:
        """One object. Raises NotFoundError if it does not exist."""
        return self._tables.of(resource).require(key).body

    def list(self, resource: Resource, scope: Selection = EVERYTHING) -> tuple[tuple[Body, ...], str]:
        """The whole objects of a scope, sorted by name, and the version from which a watch continues."""
        return tuple([record.body for record in self._select(resource, scope)]), self.version

    def page(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """The decoded objects of a scope. Raises UnavailableError if `not_older_than` is newer than the last write."""
        if not_older_than and parse(not_older_than) > self._tables.version:
            message = f"too large resource version: {not_older_than}, the newest is {self.version}"
            raise UnavailableError(message, retry_after=1)
        return ListPage(tuple([record.decoded(resource) for record in self._select(resource, scope)]), self.version)

    def view(self, resource: Resource, body: Body) -> Any:
        """The object, decoded as the type of the resource. A stored object is decoded once for all callers."""
        if resource.type is dict:
            return body
        record = self._tables.of(resource).objects.get(rules.key_of(body))
        return record.decoded(resource) if record is not None and record.body is body else resource.decode(body)

    def watch(self, resource: Resource, scope: Selection = EVERYTHING, since: str = "") -> Watch:
        """A cursor that reads the changes after `since`. Without a version (or with 0) it begins with all objects."""
        log, test, version = self._tables.of(resource).log, compiled(scope), parse(since or "0")
        if version:
            return Watch(log, resource, test, version)
        return Watch(log, resource, test, self._tables.version, self._select(resource, scope))

    def _select(self, resource: Resource, scope: Selection) -> tuple[StoredObject, ...]:
        test, objects = compiled(scope), self._tables.of(resource).objects
        keys = sorted(objects) if test is None else sorted([key for key in objects if test(objects[key].body)])
        return tuple([objects[key] for key in keys])

    # -- writing ------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, body: Body) -> Body:
        """Create an object. The body contains the namespace, and the name or a `generateName`."""
        table = self._tables.of(resource)
        body = rules.new_object(table.resource, table.conversion(body), self._tables.clock.now())
        key = rules.key_of(body)
        if key in table.objects:
            raise AlreadyExistsError(f"{table.display_name(key)} already exists")
        initial = _INITIAL_STATUS.get(table.id)
        if initial is not None:
            body.pop("status", None)
            body.update(initial)
        for hook in table.hooks:
            body = hook(None, body)
        rules.check(body["metadata"])
        return self._tables.put(table, key, None, body, dict(body["metadata"]))

    def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Body:
        """Merge-patch an object except its status, or only its status. ConflictError: it has another UID or version."""
        table, before = self._expect(resource, key, body, uid, version)
        if status:
            part = {"status": body["status"]} if "status" in body else {}
            return self._update(table, key, before, merge(before.body, part))
        part = rules.writable(table.resource, before.body, body)
        return self._update_spec(table, key, before, merge(before.body, part))

    def replace_status(self, resource: Resource, document: Body) -> Body:
        """Replace the status of an object. ConflictError: it has another UID or version than the document."""
        metadata = document["metadata"]
        key = rules.key_of(document)
        table, before = self._expect(resource, key, {}, metadata["uid"], metadata["resourceVersion"])
        if rules.same(before.body.get("status"), document.get("status")):
            return before.body
        after = {name: part for name, part in before.body.items() if name != "status"}
        return self._update(
            table, key, before, after | ({"status": document["status"]} if "status" in document else {})
        )

    def bind(
        self,
        key: Key,
        node: str,
        *,
        uid: str = "",
        version: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> Body:
        """Put a pod on a node and add annotations. ConflictError: the pod has another node or is being deleted."""
        table, before = self._expect(PODS, key, {}, uid, version)
        body = before.body
        current = (body.get("spec") or {}).get("nodeName")
        if current == node:
            return body
        if "deletionTimestamp" in body["metadata"]:
            raise ConflictError(f"{table.display_name(key)} is being deleted and cannot be put on a node")
        if current:
            raise ConflictError(f'{table.display_name(key)} is already on node "{current}"')
        # The node of a pod is not part of the desired state, so the generation of the pod stays the same.
        return self._update(
            table, key, before, _bound(body, node, rules.timestamp(self._tables.clock.now()), annotations)
        )

    def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        version: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> Body | None:
        """Delete an object. Returns the object if it still exists (grace period, finalizer), None if it is removed."""
        table, record = self._expect(resource, key, {}, uid, version)
        self._tables.delete(table, key, grace, propagation)
        left = table.objects.get(key)
        return left.body if left and left.body["metadata"]["uid"] == record.body["metadata"]["uid"] else None

    def _expect(self, resource: Resource, key: Key, body: Body, uid: str, version: str) -> tuple[Table, StoredObject]:
        """The table and the object for a write, after a check of the UID and the versions that the writer expects."""
        table = self._tables.of(resource)
        record = table.require(key)
        metadata = body.get("metadata")
        stated = (metadata.get("resourceVersion") or "") if isinstance(metadata, dict) else ""
        if uid or version or stated:
            rules.check_version(table.display_name(key), record.body["metadata"], uid, version)
            rules.check_version(table.display_name(key), record.body["metadata"], "", stated)
        return table, record

    def _update(self, table: Table, key: Key, before: StoredObject, after: Body) -> Body:
        return after if after is before.body else self._tables.put(table, key, before, after, dict(after["metadata"]))

    def _update_spec(self, table: Table, key: Key, before: StoredObject, after: Body) -> Body:
        if after is before.body:
            return after
        for hook in table.hooks:
            after = hook(before.body, after)
        metadata = dict(after["metadata"])
        rules.check(metadata)
        rules.check_finalizers(before.body["metadata"], metadata)
        if rules.spec_changed(before.body, after):
            metadata["generation"] += 1
        return self._tables.put(table, key, before, after, metadata)


def _bound(body: Body, node: str, now: str, annotations: Mapping[str, str] | None) -> Body:
    """The pod with its node and the condition PodScheduled."""
    spec, status, meta = body.get("spec") or {}, body.get("status") or {}, body["metadata"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    others = [one for one in status.get("conditions") or () if one.get("type") != "PodScheduled"]
    if annotations:
        meta = {**meta, "annotations": {**(meta.get("annotations") or {}), **annotations}}
    spec, status = {**spec, "nodeName": node}, {**status, "conditions": [*others, scheduled]}
    return {**body, "metadata": meta, "spec": spec, "status": status}
