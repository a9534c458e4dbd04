# SPDX-License-Identifier: Apache-2.0
"""Keeps the objects of the embedded engine in memory. It has the verbs of an API server, but not its wire format.

One counter gives every write its version. Every write ends in `Tables`, which updates the objects, the log for watches
and the index of owners together. Bodies are shared and never changed: a write makes a new body, which shares unchanged
parts with the old body, and a write that changes nothing makes no new version. Nothing here waits, and nothing here
is thread-safe.

`Store.open` makes a store with a journal, which survives the end of the process. Its methods return before a write is
durable; `LocalCluster` waits for the journal before it answers.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trainwright.errors import AlreadyExistsError, ConflictError, InvalidError, UnavailableError
from trainwright.local.storage import metadata as rules
from trainwright.local.storage.history import StoredObject, Watch, parse
from trainwright.local.storage.metadata import merge
from trainwright.local.storage.selectors import compiled
from trainwright.local.storage.tables import Hook, Table, Tables
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import (
    EVERYTHING,
    JOBS,
    PODS,
    Clock,
    ListPage,
    Propagation,
    Resource,
    Selection,
)

if TYPE_CHECKING:
    from trainwright.local.storage.journal import StoreJournal

#: The status of a new object. A status that its creator sends is ignored.
_INITIAL_STATUS: dict[str, Body] = {
    PODS.id: {"status": {"phase": "Pending"}},
    **{job.id: {} for job in JOBS.values()},
}


class Store:
    """All objects. Callers must not change bodies that they give to the store or get from it."""

    def __init__(self, clock: Clock, *, history: int = 8192) -> None:
        self._tables = Tables(clock, history)

    @classmethod
    def open(cls, clock: Clock, path: Path, *, history: int = 8192, **options: Any) -> Self:
        """A store whose objects are kept in the file `path`. The options are those of `StoreJournal`.

        Raises EngineError if the file cannot be used; the file is unchanged then.
        """
        # `trainwright run` has no journal, and the import of sqlite3 takes 6 ms.
        from trainwright.local.storage.journal import StoreJournal  # noqa: PLC0415
        from trainwright.local.storage.journal_file import JournalFile  # noqa: PLC0415

        store, file = cls(clock, history=history), JournalFile(path)
        try:
            content = file.load()
            store._tables.restore(content)
            store._tables.attach(StoreJournal(file, content, clock, **options))
        except InvalidError as error:
            file.release()
            raise file.corrupt(str(error)) from None
        except BaseException:
            file.release()
            raise
        return store

    def close(self) -> None:
        """Commit everything and close the journal. Blocks for some seconds if the disk is full; then EngineError."""
        if self.journal is not None:
            self.journal.close()

    @property
    def journal(self) -> "StoreJournal | None":
        """What makes the writes durable; None for a store that exists only in memory."""
        return self._tables.journal

    @property
    def version(self) -> str:
        """The version of the last write."""
        return str(self._tables.version)

    @property
    def last_version(self) -> int:
        """The version of the last write, as a number."""
        return self._tables.version

    def admit(self, resource: Resource, hook: Hook, *, has_effects: bool = False) -> None:
        """Call the hook for every new object and for every change, except if only the status changes.

        `has_effects`: the hook changes something else, for example it reserves an address, so a dry run skips it.
        """
        table = self._tables.of(resource)
        (table.effects if has_effects else table.hooks).append(hook)

    def convert(self, resource: Resource, conversion: Callable[[Body], Body]) -> None:
        """Convert each new object of the resource to the stored API version. Clients can send any served version."""
        self._tables.of(resource).conversion = conversion

    def now(self) -> datetime:
        """The time of a write that would be made now."""
        return self._tables.clock.now()

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, key: Key) -> Body:
        """One object. Raises NotFoundError if it does not exist."""
        return self._tables.of(resource).require(key).body

    def keys(self, resource: Resource) -> AbstractSet[Key]:
        """The keys of all objects of a resource, as a view that changes with the store."""
        return self._tables.of(resource).objects.keys()

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

    def create(self, resource: Resource, body: Body, *, dry_run: bool = False) -> Body:
        """Create an object. The body contains the namespace, and the name or a `generateName`.

        `dry_run`: check everything, store nothing, and return the object as it would be stored.
        """
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
        if dry_run:
            table.check(StoredObject(body, 0, ""))
            return body
        for effect in table.effects:
            body = effect(None, body)
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

    def replace(self, resource: Resource, key: Key, document: Body, *, uid: str = "", dry_run: bool = False) -> Body:
        """Replace an object except its status and the fields that only the store writes.

        ConflictError: the object has another UID, or another version than the document states.
        """
        table, before = self._expect(resource, key, document, uid, "")
        part = rules.writable(table.resource, before.body, document)
        fixed = {name: value for name, value in before.body["metadata"].items() if name in rules.FIXED_FIELDS}
        rest: Body = {name: before.body[name] for name in ("apiVersion", "kind", "status") if name in before.body}
        after: Body = {**part, **rest, "metadata": {**(part.get("metadata") or {}), **fixed}}
        if rules.same(before.body, after):
            return before.body
        return self._update_spec(table, key, before, after, dry_run=dry_run)

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

    def _update_spec(self, table: Table, key: Key, before: StoredObject, after: Body, *, dry_run: bool = False) -> Body:
        if after is before.body:
            return after
        asked = after
        for hook in table.hooks if dry_run else (*table.hooks, *table.effects):
            after = hook(before.body, after)
        if after is not asked and rules.same(before.body, after):
            return before.body  # what the client removed are defaults, which the hooks have added again
        metadata = dict(after["metadata"])
        rules.check(metadata)
        rules.check_finalizers(before.body["metadata"], metadata)
        if "generation" in metadata and rules.spec_changed(before.body, after):
            metadata["generation"] += 1
        if dry_run:
            table.check(StoredObject(after, 0, ""))
            return {**after, "metadata": metadata}
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
