# SPDX-License-Identifier: Apache-2.0
"""Deletion and garbage collection: how long a deleted object stays, and which objects are deleted with their owner.

As in an API server, only pods on a node have a grace period, but every object stays while it has finalizers. An index
maps an owner's UID to its dependents. The collector uses queues instead of recursion, so that deep trees of owners are
no problem. An API server collects garbage some time after a write; this collector collects it during the write.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from trainwright.local.storage.metadata import timestamp
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import Propagation

if TYPE_CHECKING:
    from trainwright.local.storage.tables import Tables

#: The finalizers that the collector itself adds and removes.
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_FINALIZERS = {Propagation.FOREGROUND: FOREGROUND, Propagation.ORPHAN: ORPHAN}
_ENDED_PHASES = ("Succeeded", "Failed")
_DEFAULT_GRACE_SECONDS = 30


def deleted_metadata(body: Body, now: datetime, grace: int | None, propagation: Propagation) -> Body | None:
    """The metadata after a delete request. None: the object is removed at once; the same dict: nothing changes."""
    metadata = body["metadata"]
    if _spec_finalizers(body):
        return metadata if "deletionTimestamp" in metadata else {**metadata, "deletionTimestamp": timestamp(now)}
    seconds, finalizers = _grace_seconds(body, grace), _finalizers(metadata, propagation)
    if not finalizers and not seconds:
        return None
    had = metadata.get("deletionGracePeriodSeconds")
    after = metadata if had is not None and had <= seconds else {**metadata, **_deletion_times(metadata, now, seconds)}
    return after if finalizers == (metadata.get("finalizers") or []) else {**after, "finalizers": finalizers}


def may_be_removed(body: Body) -> bool:
    """Whether an object is being deleted and has neither a grace period nor a finalizer."""
    metadata = body["metadata"]
    if "deletionTimestamp" not in metadata:
        return False
    return not (metadata.get("deletionGracePeriodSeconds") or metadata.get("finalizers") or _spec_finalizers(body))


def deleted_body(body: Body) -> Body:
    """The body of an object that is being deleted: the phase of a namespace changes."""
    return {**body, "status": {"phase": "Terminating"}} if body["kind"] == "Namespace" else body


def _spec_finalizers(body: Body) -> list[str]:
    """The finalizers in the spec of a namespace: the namespace stays until everything in it is deleted."""
    return (body.get("spec") or {}).get("finalizers") or [] if body["kind"] == "Namespace" else []


def waits_for_dependents(metadata: Body) -> bool:
    """Whether an object is being deleted in the foreground, which means that its dependents are removed first."""
    return "deletionTimestamp" in metadata and FOREGROUND in (metadata.get("finalizers") or ())


def _grace_seconds(body: Body, grace: int | None) -> int:
    """The grace period in seconds. A later delete request can shorten the period but cannot extend it."""
    had = body["metadata"].get("deletionGracePeriodSeconds")
    grace = 1 if grace is not None and grace < 0 else grace
    if had is not None:
        return int(had if grace is None else min(had, grace))
    spec = body.get("spec") or {}
    if body["kind"] != "Pod" or not spec.get("nodeName") or (body.get("status") or {}).get("phase") in _ENDED_PHASES:
        return 0
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds")
    return _DEFAULT_GRACE_SECONDS if grace is None else grace


def _finalizers(metadata: Body, propagation: Propagation) -> list[str]:
    others = [one for one in metadata.get("finalizers") or () if one not in (FOREGROUND, ORPHAN)]
    added = _FINALIZERS.get(propagation)
    return [*others, added] if added else others


def _deletion_times(metadata: Body, now: datetime, seconds: int) -> Body:
    """The fields with the time of the removal. Only the first delete request raises the generation."""
    changed: Body = {"deletionGracePeriodSeconds": seconds}
    if "deletionTimestamp" in metadata:
        due = datetime.fromisoformat(metadata["deletionTimestamp"])
        now = due - timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    elif "generation" in metadata:
        changed["generation"] = metadata["generation"] + 1
    changed["deletionTimestamp"] = timestamp(now + timedelta(seconds=seconds))
    return changed


class ObjectRef(NamedTuple):
    """The table and the key of an object."""

    resource: str
    key: Key


class _Dependents:
    """The objects that belong to one owner. The value in `refs` is True if the object blocks a foreground deletion."""

    __slots__ = ("blocking", "refs")

    def __init__(self) -> None:
        self.refs: dict[ObjectRef, bool] = {}
        self.blocking = 0


_NO_DEPENDENTS = _Dependents()


class Collector:
    """The index of owners, and the queues of objects to examine."""

    def __init__(self, tables: "Tables") -> None:
        self._tables = tables
        self._places: dict[str, ObjectRef] = {}
        #: The dependents by UID of the owner.
        self._dependents: defaultdict[str, _Dependents] = defaultdict(_Dependents)
        self._unchecked: deque[ObjectRef] = deque()
        self._deleting: deque[str] = deque()
        #: Whether `run` is examining objects, and its writes belong to the write that has called it.
        self.running = False

    def restore(self, objects: Iterable[tuple[ObjectRef, Body]]) -> None:
        """Register all objects of an earlier engine, and queue what that engine has not finished."""
        objects = tuple(objects)
        for ref, metadata in objects:
            self._places[metadata["uid"]] = ref
        for ref, metadata in objects:
            if metadata.get("ownerReferences"):
                self._adopt(ref, metadata["ownerReferences"])
        for _, metadata in objects:
            if "deletionTimestamp" in metadata:
                self._deleting.append(metadata["uid"])

    def added(self, ref: ObjectRef, metadata: Body) -> None:
        """Register a new object."""
        self._places[metadata["uid"]] = ref
        if metadata.get("ownerReferences"):
            self._adopt(ref, metadata["ownerReferences"])

    def changed(self, ref: ObjectRef, before: Body, after: Body) -> None:
        """Register changed owner references, or a change of an object that is being deleted."""
        old, new = before.get("ownerReferences"), after.get("ownerReferences")
        if old is not new:
            self._release(ref, old or ())
            self._adopt(ref, new or ())
        if "deletionTimestamp" in after:
            self._deleting.append(after["uid"])

    def removed(self, ref: ObjectRef, metadata: Body) -> None:
        """Register a removed object. Its dependents, and owners that wait for it, will be examined."""
        del self._places[metadata["uid"]]
        self._unchecked.extend(self._dependents_of(metadata["uid"]).refs)
        if metadata.get("ownerReferences"):
            self._release(ref, metadata["ownerReferences"])

    def run(self) -> None:
        """Examine all queued objects, including objects that are queued while this method runs."""
        if self.running or not (self._unchecked or self._deleting):
            return
        self.running = True
        try:
            while self._unchecked or self._deleting:
                if self._unchecked:
                    self._check_owners(self._unchecked.popleft())
                else:
                    self._continue_deletion(self._deleting.popleft())
        finally:
            self.running = False

    def _dependents_of(self, uid: str) -> _Dependents:
        return self._dependents.get(uid, _NO_DEPENDENTS)

    def _adopt(self, ref: ObjectRef, owners: Iterable[Body]) -> None:
        for owner in owners:
            dependents = self._dependents[owner["uid"]]
            if ref not in dependents.refs:
                dependents.refs[ref] = blocks = bool(owner.get("blockOwnerDeletion"))
                dependents.blocking += blocks
        if any(not self._is_live(owner["uid"], ref) for owner in owners):
            self._unchecked.append(ref)

    def _release(self, ref: ObjectRef, owners: Iterable[Body]) -> None:
        for owner in owners:
            dependents = self._dependents_of(owner["uid"])
            if ref not in dependents.refs:
                continue
            dependents.blocking -= dependents.refs.pop(ref)
            if not dependents.refs:
                del self._dependents[owner["uid"]]
            if owner["uid"] in self._places:
                self._deleting.append(owner["uid"])

    def _is_live(self, uid: str, ref: ObjectRef) -> bool:
        """Whether an owner exists, has the namespace of `ref` or none, and is not being deleted in the foreground."""
        place = self._places.get(uid)
        if place is None or (place.key.namespace and place.key.namespace != ref.key.namespace):
            return False
        return not waits_for_dependents(self._tables.metadata(place))

    def _check_owners(self, ref: ObjectRef) -> None:
        """Delete an object if none of its owners is live. If some are live, remove the references to the others."""
        metadata = self._tables.metadata(ref)
        owners = metadata.get("ownerReferences")
        if not owners:
            return
        live = [owner for owner in owners if self._is_live(owner["uid"], ref)]
        if live and len(live) < len(owners):
            self._set_list(ref, "ownerReferences", live)
        elif not live and "deletionTimestamp" not in metadata:
            self._tables.delete_dependent(ref, self._propagation(metadata, owners))

    def _propagation(self, metadata: Body, owners: list[Body]) -> Propagation:
        """How to delete an object that has no live owner.

        The finalizer ORPHAN or FOREGROUND of the object decides. If the object has neither, the deletion is in the
        foreground if an owner still exists (it waits for the object) and the object has dependents to wait for.
        Otherwise, the deletion is in the background.
        """
        finalizers = metadata.get("finalizers") or ()
        if ORPHAN in finalizers:
            return Propagation.ORPHAN
        in_foreground = any(owner["uid"] in self._places for owner in owners) and self._has_dependents(metadata["uid"])
        return Propagation.FOREGROUND if in_foreground or FOREGROUND in finalizers else Propagation.BACKGROUND

    def _has_dependents(self, uid: str) -> bool:
        """Whether an object has dependents to wait for. False if one of them waits too: it may wait for this object."""
        refs = self._dependents_of(uid).refs
        return bool(refs) and not any(waits_for_dependents(self._tables.metadata(ref)) for ref in refs)

    def _continue_deletion(self, uid: str) -> None:
        """Remove our finalizer from an owner that is being deleted, if the finalizer is no longer needed.

        ORPHAN: first remove the owner from all its dependents. FOREGROUND: only if no dependent blocks the deletion.
        """
        ref = self._places.get(uid)
        if ref is None or "deletionTimestamp" not in self._tables.metadata(ref):
            return
        finalizers = self._tables.metadata(ref).get("finalizers") or ()
        if ORPHAN in finalizers:
            for dependent in [*self._dependents_of(uid).refs]:
                owners = self._tables.metadata(dependent)["ownerReferences"]
                self._set_list(dependent, "ownerReferences", [owner for owner in owners if owner["uid"] != uid])
            self._set_list(ref, "finalizers", [one for one in finalizers if one != ORPHAN])
        elif FOREGROUND in finalizers and not self._dependents_of(uid).blocking:
            self._set_list(ref, "finalizers", [one for one in finalizers if one != FOREGROUND])

    def queue_blocking_dependents(self, uid: str) -> None:
        """Queue the dependents that block a foreground deletion of this owner."""
        self._unchecked.extend([ref for ref, blocks in self._dependents_of(uid).refs.items() if blocks])

    def _set_list(self, ref: ObjectRef, name: str, values: list[Any]) -> None:
        """Write a list into the metadata. As in an API server, an empty list is left out."""
        rest = {key: value for key, value in self._tables.metadata(ref).items() if key != name}
        self._tables.set_metadata(ref, {**rest, name: values} if values else rest)
