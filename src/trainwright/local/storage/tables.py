# SPDX-License-Identifier: Apache-2.0
"""Where every write of the store ends: a version from the one counter, a record in a table, an entry in its log.

`store` decides what is written; this keeps objects, history and the index of owners in step, and does what the
collector asks for.
"""

from collections.abc import Callable
from typing import Any

from msgspec import ValidationError, convert

from trainwright.errors import InvalidError, NotFoundError
from trainwright.local.storage.collector import Collector, Ref
from trainwright.local.storage.deletion import awaits, doom, over
from trainwright.local.storage.history import Entry, Log, Record
from trainwright.local.storage.metadata import plain
from trainwright.model.job import Body
from trainwright.model.meta import Key, Wire
from trainwright.runtime.ports import Clock, Happened, Propagation, Resource
from trainwright.runtime.resources import BY_ID

#: What is asked of new and of changed objects: gives them back, perhaps completed, or raises InvalidError.
Hook = Callable[[Body | None, Body], Body]
_ADDED, _MODIFIED, _DELETED = Happened.ADDED, Happened.MODIFIED, Happened.DELETED


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
        self.objects: dict[Key, Record] = {}
        self.log = Log(history)
        self.hooks: list[Hook] = []
        self.conversion: Callable[[Body], Body] = lambda body: body

    def at(self, key: Key) -> Record:
        """The object of that name; NotFoundError."""
        record = self.objects.get(key)
        if record is None:
            raise NotFoundError(f"{self.named(key)} not found")
        return record

    def check(self, record: Record) -> None:
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

    def put(self, table: Table, key: Key, before: Record | None, body: Body, metadata: Body) -> Body:
        """Write a body with this metadata, which is ours to complete; an object that was only kept by it goes."""
        version = self.version + 1
        text = metadata["resourceVersion"] = str(version)
        record = Record({**body, "metadata": metadata}, version, text)
        table.check(record)
        self.version = version
        if before is None:
            table.objects[key] = record
            table.log.append(Entry(_ADDED, record))
            self._collector.added(Ref(table.id, key), metadata)
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
            self._drop(table, key, record, Record(last, version, str(version)))
        elif metadata is not record.body["metadata"]:
            self._change_doomed(table, key, record, dict(metadata))
        self._collector.run()

    def _change_doomed(self, table: Table, key: Key, before: Record, metadata: Body) -> None:
        if awaits(metadata):
            self._collector.begin(metadata["uid"])
        self.put(table, key, before, before.body, metadata)

    def _change(self, table: Table, key: Key, before: Record, after: Record) -> None:
        table.objects[key] = after
        table.log.append(Entry(_MODIFIED, after, before))
        old, new = before.body["metadata"], after.body["metadata"]
        if "deletionTimestamp" in new or old.get("ownerReferences") is not new.get("ownerReferences"):
            self._collector.changed(Ref(table.id, key), old, new)

    def _drop(self, table: Table, key: Key, before: Record, last: Record) -> None:
        del table.objects[key]
        table.log.append(Entry(_DELETED, last, before))
        self._collector.removed(Ref(table.id, key), before.body["metadata"])

    # -- what the collector asks --------------------------------------------------------------------------------------

    def find(self, ref: Ref) -> Body | None:
        """The object, if it is there."""
        record = self._tables[ref.resource].objects.get(ref.key)
        return record.body if record is not None else None

    def amend(self, ref: Ref, metadata: Body) -> None:
        """Give an object other metadata."""
        table = self._tables[ref.resource]
        before = table.objects[ref.key]
        self.put(table, ref.key, before, before.body, metadata)

    def dismiss(self, ref: Ref, propagation: Propagation) -> None:
        """Delete an object, in its own time."""
        self.delete(self._tables[ref.resource], ref.key, None, propagation)
