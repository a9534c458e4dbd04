# SPDX-License-Identifier: Apache-2.0
"""The tables of the store: objects in memory by resource, with the log for watches and the index of owners.

Every write ends in `Tables`, which updates all of these together and, if there is a journal, gives it each change. A
write and everything that the garbage collector does because of it are one group of the journal.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import ValidationError, convert

from trainwright.errors import InvalidError, NotFoundError
from trainwright.local.storage.collector import (
    Collector,
    ObjectRef,
    deleted_body,
    deleted_metadata,
    may_be_removed,
    waits_for_dependents,
)
from trainwright.local.storage.history import HistoryEntry, StoredObject, WriteLog
from trainwright.local.storage.metadata import check, key_of, readable
from trainwright.model.job import Body
from trainwright.model.meta import Key, Wire
from trainwright.runtime.ports import BY_ID, Clock, Propagation, Resource, WatchEventType

if TYPE_CHECKING:
    from trainwright.local.storage.journal import StoreJournal
    from trainwright.local.storage.journal_file import JournalContent, JournalRow

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

    __slots__ = ("conversion", "effects", "hooks", "id", "log", "objects", "resource")

    def __init__(self, resource: Resource, log: WriteLog) -> None:
        self.id = resource.id
        self.resource = BY_ID.get(self.id, resource)
        self.objects: dict[Key, StoredObject] = {}
        self.log = log
        self.hooks: list[Hook] = []
        #: The hooks that also change something else; they follow the others.
        self.effects: list[Hook] = []
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
        #: What makes writes durable. Watches cannot begin before the version that an earlier engine has reached.
        self.journal: StoreJournal | None = None
        self._is_durable, self._floor = False, 0
        self._collector = Collector(self)

    def of(self, resource: Resource) -> Table:
        """The table of a resource."""
        table = self._tables.get(resource.id)
        if table is None:
            log = WriteLog(self._history, floor=self._floor, holds=self._is_durable)
            table = self._tables[resource.id] = Table(resource, log)
        return table

    def restore(self, content: "JournalContent") -> None:
        """Load the objects of an earlier engine, before anything is written. Raises InvalidError if one is damaged."""
        self._is_durable, self.version, self._floor = True, content.version, content.floor
        restored: list[tuple[ObjectRef, Body]] = []
        for row in content.rows:
            try:
                table, key, record = self._restored(row)
                table.check(record)
            except (msgspec.DecodeError, InvalidError, KeyError, TypeError) as error:
                message = f"version {row.version} of {row.resource} {row.namespace}/{row.name} cannot be read: {error}"
                raise InvalidError(message) from None
            table.objects[key] = record
            restored.append((ObjectRef(table.id, key), record.body["metadata"]))
        self._collector.restore(restored)
        self._restore_history(content)

    def _restore_history(self, content: "JournalContent") -> None:
        """Load the last writes of an earlier engine, so that watches continue. Damaged history is left out."""
        known = {record.version: record for table in self._tables.values() for record in table.objects.values()}
        entries: dict[str, list[HistoryEntry]] = {}
        try:
            for row, before in content.recent:
                old = known.get(before.version) if before is not None else None
                if before is not None and old is None:
                    old = known[before.version] = self._restored(before)[2]
                after = known.get(row.version)
                if after is None:
                    after = known[row.version] = _last_of(old, row) if row.body is None else self._restored(row)[2]
                what = _DELETED if row.body is None else _ADDED if old is None else _MODIFIED
                entries.setdefault(row.resource, []).append(HistoryEntry(what, after, old))
        except (msgspec.DecodeError, InvalidError, KeyError, TypeError):
            self._floor, entries = content.version, {}
        for table in self._tables.values():
            table.log.floor = self._floor
            table.log.restore(entries.get(table.id, []))

    def attach(self, journal: "StoreJournal") -> None:
        """Use the journal from now on, and finish the garbage collection that an earlier engine has begun."""
        self.journal = journal
        self._collect()

    def _restored(self, row: "JournalRow") -> tuple[Table, Key, StoredObject]:
        body: Body = msgspec.json.decode(row.body or b"", type=dict[str, Any])
        metadata, key = body["metadata"], Key(row.namespace, row.name)
        check(metadata)
        version = metadata["resourceVersion"]
        if (key_of(body), version) != (key, str(row.version)) or not metadata["uid"]:
            raise InvalidError(f"it is {key_of(body)} at version {version}; expected {key} at version {row.version}")
        return self.of(_resource_of(row, body)), key, StoredObject(body, row.version, version)

    def put(self, table: Table, key: Key, before: StoredObject | None, body: Body, metadata: Body) -> Body:
        """Write a body with this metadata. The method changes the dict `metadata`.

        If the object is being deleted and has neither a grace period nor a finalizer, it is removed.
        """
        version = self.version + 1
        text = metadata["resourceVersion"] = str(version)
        record = StoredObject({**body, "metadata": metadata}, version, text)
        table.check(record)
        is_removed = before is not None and "deletionTimestamp" in metadata and may_be_removed(record.body)
        if self.journal is not None and not is_removed:
            self.journal.changed(table.log, table.id, key, record, 0 if before is None else before.version)
        self.version = version
        if before is None:
            table.objects[key] = record
            table.log.append(HistoryEntry(_ADDED, record))
            self._collector.added(ObjectRef(table.id, key), metadata)
        elif is_removed:
            self._remove(table, key, before, record)
        else:
            self._change(table, key, before, record)
        self._collect()
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
            self.put(table, key, record, deleted_body(record.body), dict(metadata))
        self._collect()

    def _collect(self) -> None:
        """Collect garbage. At the end of a write, give the journal everything that the write has changed."""
        try:
            self._collector.run()
        finally:
            if self.journal is not None and not self._collector.running:
                self.journal.end_group()

    def _change(self, table: Table, key: Key, before: StoredObject, after: StoredObject) -> None:
        table.objects[key] = after
        table.log.append(HistoryEntry(_MODIFIED, after, before))
        old, new = before.body["metadata"], after.body["metadata"]
        if "deletionTimestamp" in new or old.get("ownerReferences") is not new.get("ownerReferences"):
            self._collector.changed(ObjectRef(table.id, key), old, new)

    def _remove(self, table: Table, key: Key, before: StoredObject, last: StoredObject) -> None:
        del table.objects[key]
        if self.journal is not None:
            self.journal.removed(table.log, table.id, key, last.version, before.version)
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


def _last_of(before: StoredObject | None, row: "JournalRow") -> StoredObject:
    """A removed object as watches see it: its last state, with the version of its removal."""
    if before is None:
        raise InvalidError(f"version {row.version} removes an object that is not there")
    metadata = {**before.body["metadata"], "resourceVersion": str(row.version)}
    return StoredObject({**before.body, "metadata": metadata}, row.version, str(row.version))


def _resource_of(row: "JournalRow", body: Body) -> Resource:
    """The resource of a stored object, also if this engine does not know it."""
    known = BY_ID.get(row.resource)
    if known is not None:
        return known
    plural, _, group = row.resource.partition(".")
    return Resource(group, body["apiVersion"].rpartition("/")[2], plural, body["kind"], namespaced=bool(row.namespace))
