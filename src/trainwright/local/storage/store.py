# SPDX-License-Identifier: Apache-2.0
"""Where every write of the store ends: a version from the one counter, a record in a table, an entry in its log.

`store` decides what is written; this keeps objects, history and the index of owners in step, and does what the
collector asks for.

The objects of the embedded engine, in memory: the verbs of an API server, without its wire. `cluster` wraps it.

One counter gives every write its version (`tables`); each resource has a log that watches read (`history`). Bodies are
shared, never copied deep and never edited: a write makes new dicts along the changed path, and one that changes nothing
is none. Nothing here waits, and nothing here is safe to be called from two threads.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import ValidationError, convert

from trainwright.errors import AlreadyExistsError, ConflictError, InvalidError, NotFoundError, UnavailableError
from trainwright.local.storage import metadata as rules
from trainwright.local.storage.collector import Collector, ObjectPlace, awaits, doom, over
from trainwright.local.storage.history import HistoryEntry, StoredObject, Watch, WriteLog, parse
from trainwright.local.storage.metadata import merge, plain, settle
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

#: What is asked of new and of changed objects: gives them back, perhaps completed, or raises InvalidError.
Hook = Callable[[Body | None, Body], Body]
_ADDED, _MODIFIED, _DELETED = WatchEventType.ADDED, WatchEventType.MODIFIED, WatchEventType.DELETED


class _Anything(Wire, frozen=True, gc=False):
    """What many objects have."""

    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class Table:
    """The objects of one resource, what happened to them, and who is asked about them."""

    __slots__ = ("conversion", "hooks", "id", "log", "objects", "resource")

    def __init__(self, resource: Resource, history: int) -> None:
        self.id = resource.id
        self.resource = BY_ID.get(self.id, resource)
        self.objects: dict[Key, StoredObject] = {}
        self.log = WriteLog(history)
        self.hooks: list[Hook] = []
        self.conversion: Callable[[Body], Body] = lambda body: body

    def at(self, key: Key) -> StoredObject:
        """The object of that name; NotFoundError."""
        record = self.objects.get(key)
        if record is None:
            raise NotFoundError(f"{self.named(key)} not found")
        return record

    def check(self, record: StoredObject) -> None:
        """InvalidError if whoever reads the object could not: the decoded view is kept for them."""
        try:
            if self.resource.type is dict:
                convert(record.body, _Anything)
            else:
                record.decoded(self.resource)
        except ValidationError as error:
            raise InvalidError(plain(error)) from None

    def named(self, key: Key) -> str:
        """What an error calls an object."""
        where = f' in namespace "{key.namespace}"' if key.namespace else ""
        return f'{self.id} "{key.name}"{where}'


class Tables:
    """All tables and their one counter."""

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
        """Write a body with this metadata, which is ours to complete; an object that was only kept by it goes."""
        version = self.version + 1
        text = metadata["resourceVersion"] = str(version)
        record = StoredObject({**body, "metadata": metadata}, version, text)
        table.check(record)
        self.version = version
        if before is None:
            table.objects[key] = record
            table.log.append(HistoryEntry(_ADDED, record))
            self._collector.added(ObjectPlace(table.id, key), metadata)
        elif "deletionTimestamp" in metadata and over(metadata):
            self._drop(table, key, before, record)
        else:
            self._change(table, key, before, record)
        self._collector.run()
        return record.body

    def delete(self, table: Table, key: Key, grace: int | None, propagation: Propagation) -> None:
        """Let an object go: at once, or as soon as nothing keeps it."""
        record = table.objects[key]
        metadata = doom(record.body, self.clock.now(), grace, propagation)
        if metadata is None:
            self.version = version = self.version + 1
            last = {**record.body, "metadata": {**record.body["metadata"], "resourceVersion": str(version)}}
            self._drop(table, key, record, StoredObject(last, version, str(version)))
        elif metadata is not record.body["metadata"]:
            self._change_doomed(table, key, record, dict(metadata))
        self._collector.run()

    def _change_doomed(self, table: Table, key: Key, before: StoredObject, metadata: Body) -> None:
        if awaits(metadata):
            self._collector.begin(metadata["uid"])
        self.put(table, key, before, before.body, metadata)

    def _change(self, table: Table, key: Key, before: StoredObject, after: StoredObject) -> None:
        table.objects[key] = after
        table.log.append(HistoryEntry(_MODIFIED, after, before))
        old, new = before.body["metadata"], after.body["metadata"]
        if "deletionTimestamp" in new or old.get("ownerReferences") is not new.get("ownerReferences"):
            self._collector.changed(ObjectPlace(table.id, key), old, new)

    def _drop(self, table: Table, key: Key, before: StoredObject, last: StoredObject) -> None:
        del table.objects[key]
        table.log.append(HistoryEntry(_DELETED, last, before))
        self._collector.removed(ObjectPlace(table.id, key), before.body["metadata"])

    # -- what the collector asks --------------------------------------------------------------------------------------

    def find(self, ref: ObjectPlace) -> Body | None:
        """The object, if it is there."""
        record = self._tables[ref.resource].objects.get(ref.key)
        return record.body if record is not None else None

    def amend(self, ref: ObjectPlace, metadata: Body) -> None:
        """Give an object other metadata."""
        table = self._tables[ref.resource]
        before = table.objects[ref.key]
        self.put(table, ref.key, before, before.body, metadata)

    def dismiss(self, ref: ObjectPlace, propagation: Propagation) -> None:
        """Delete an object, in its own time."""
        self.delete(self._tables[ref.resource], ref.key, None, propagation)


#: What a new object's status is, whatever its maker says.
_FRESH: dict[str, Body] = {PODS.id: {"status": {"phase": "Pending"}}, **{job.id: {} for job in JOBS.values()}}


class Store:
    """Every object there is. Bodies that go in or come out must not be edited any more."""

    def __init__(self, clock: Clock, *, history: int = 8192) -> None:
        self._tables = Tables(clock, history)

    @property
    def version(self) -> str:
        """The version of the last write."""
        return str(self._tables.version)

    def admit(self, resource: Resource, hook: Hook) -> None:
        """Ask the hook about every new object, and every change that is not of the status alone."""
        self._tables.of(resource).hooks.append(hook)

    def convert(self, resource: Resource, conversion: Callable[[Body], Body]) -> None:
        """Have every whole object that comes in turned into what is stored: it may be of another served version."""
        self._tables.of(resource).conversion = conversion

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, key: Key) -> Body:
        """One object."""
        return self._tables.of(resource).at(key).body

    def list(self, resource: Resource, scope: Selection = EVERYTHING) -> tuple[tuple[Body, ...], str]:
        """The whole objects of a scope in the order of their names, and the version a watch goes on from."""
        return tuple([record.body for record in self._select(resource, scope)]), self.version

    def page(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """The same, decoded as the resource says."""
        if not_older_than and parse(not_older_than) > self._tables.version:
            message = f"too large resource version: {not_older_than}, the newest is {self.version}"
            raise UnavailableError(message, retry_after=1)
        return ListPage(tuple([record.decoded(resource) for record in self._select(resource, scope)]), self.version)

    def view(self, resource: Resource, key: Key, body: Body) -> Any:
        """An object of the store as the resource is read; decoded once for all who ask."""
        record = self._tables.of(resource).objects.get(key)
        return record.decoded(resource) if record is not None and record.body is body else resource.decode(body)

    def watch(self, resource: Resource, scope: Selection = EVERYTHING, since: str = "") -> Watch:
        """A cursor to what happens after that version; with none (or 0) it begins with all that is there, as added."""
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
        """Make an object; the body names it and its namespace, or gives the beginning of a name."""
        table = self._tables.of(resource)
        body = rules.born(table.resource, table.conversion(body), self._tables.clock.now())
        key = rules.key_of(body)
        if key in table.objects:
            raise AlreadyExistsError(f"{table.named(key)} already exists")
        fresh = _FRESH.get(table.id)
        if fresh is not None:
            body.pop("status", None)
            body.update(fresh)
        for hook in table.hooks:
            body = hook(None, body)
        rules.check(body["metadata"])
        return self._tables.put(table, key, None, body, dict(body["metadata"]))

    def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Body:
        """Merge-patch an object without its status, or its status alone; ConflictError if it is another by now."""
        table, before = self._expect(resource, key, body, uid, version)
        if status:
            part = {"status": body["status"]} if "status" in body else {}
            return self._update(table, key, before, merge(before.body, part))
        part = rules.writable(table.resource, before.body, body)
        return self._respecify(table, key, before, merge(before.body, part))

    def replace(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Body:
        """Put a whole object in the place of the old one, without its status, or its status alone."""
        named = uid or (body.get("metadata") or {}).get("uid") or ""
        table, before = self._expect(resource, key, body, named, version)
        body = table.conversion(body)
        if status:
            after = {**before.body, "status": body.get("status", {})}
            return self._update(table, key, before, settle(before.body, after))
        after = rules.replaced(before.body, rules.writable(table.resource, before.body, body))
        return self._respecify(table, key, before, settle(before.body, after))

    def bind(
        self,
        key: Key,
        node: str,
        *,
        uid: str = "",
        version: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> Body:
        """Put a pod on a node, with a Binding's annotations; ConflictError if it is elsewhere or on its way out."""
        table, before = self._expect(PODS, key, {}, uid, version)
        body = before.body
        placed = (body.get("spec") or {}).get("nodeName")
        if placed == node:
            return body
        if "deletionTimestamp" in body["metadata"]:
            raise ConflictError(f"{table.named(key)} is being deleted and cannot be put on a node")
        if placed:
            raise ConflictError(f'{table.named(key)} is already on node "{placed}"')
        # Where a pod runs is not part of what is wanted of it: its generation stays.
        return self._update(table, key, before, _bound(body, node, rules.stamp(self._tables.clock.now()), annotations))

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
        """Delete an object. Returns it as it now is if it lingers, None once it is gone."""
        table, record = self._expect(resource, key, {}, uid, version)
        self._tables.delete(table, key, grace, propagation)
        left = table.objects.get(key)
        return left.body if left and left.body["metadata"]["uid"] == record.body["metadata"]["uid"] else None

    def _expect(self, resource: Resource, key: Key, body: Body, uid: str, version: str) -> tuple[Table, StoredObject]:
        """The object that a write is about, if it is the one the writer means."""
        table = self._tables.of(resource)
        record = table.at(key)
        metadata = body.get("metadata")
        stated = (metadata.get("resourceVersion") or "") if isinstance(metadata, dict) else ""
        if uid or version or stated:
            rules.check_version(table.named(key), record.body["metadata"], uid, version)
            rules.check_version(table.named(key), record.body["metadata"], "", stated)
        return table, record

    def _update(self, table: Table, key: Key, before: StoredObject, after: Body) -> Body:
        return after if after is before.body else self._tables.put(table, key, before, after, dict(after["metadata"]))

    def _respecify(self, table: Table, key: Key, before: StoredObject, after: Body) -> Body:
        if after is before.body:
            return after
        for hook in table.hooks:
            after = hook(before.body, after)
        metadata = dict(after["metadata"])
        rules.check(metadata)
        rules.check_finalizers(before.body["metadata"], metadata)
        if rules.respecified(before.body, after):
            metadata["generation"] += 1
        return self._tables.put(table, key, before, after, metadata)


def _bound(body: Body, node: str, now: str, annotations: Mapping[str, str] | None) -> Body:
    """A pod on a node, and its condition that says so."""
    spec, status, meta = body.get("spec") or {}, body.get("status") or {}, body["metadata"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    others = [one for one in status.get("conditions") or () if one.get("type") != "PodScheduled"]
    if annotations:
        meta = {**meta, "annotations": {**(meta.get("annotations") or {}), **annotations}}
    spec, status = {**spec, "nodeName": node}, {**status, "conditions": [*others, scheduled]}
    return {**body, "metadata": meta, "spec": spec, "status": status}
