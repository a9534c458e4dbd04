# SPDX-License-Identifier: Apache-2.0
"""What deleting an object does to it: how long it may stay, and what must come first. Called by `tables`.

As with an API server: only pods get a grace period, and only those that a node has; finalizers keep anything.

Garbage collection by ownerReferences. `tables` tells it of every write, and deletes and patches what it finds.

An index leads from an owner's UID to its dependents; a queue of objects to look at replaces recursion, so that neither
deep nor wide families hurt. It runs within the write that gave it work: what an API server does soon, this does now.
"""

from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from trainwright.local.storage.metadata import stamp
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import Propagation

#: Finalizers that the collector sees to.
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_GUARDS = {Propagation.FOREGROUND: FOREGROUND, Propagation.ORPHAN: ORPHAN}
_ENDED = ("Succeeded", "Failed")
_GRACE = 30


def doom(body: Body, now: datetime, grace: int | None, propagation: Propagation) -> Body | None:
    """The metadata that a deletion leaves: None if the object goes at once, the very same if nothing changes."""
    metadata, seconds, finalizers = body["metadata"], _seconds(body, grace), _finalizers(body["metadata"], propagation)
    if not finalizers and not seconds:
        return None
    had = metadata.get("deletionGracePeriodSeconds")
    after = metadata if had is not None and had <= seconds else {**metadata, **_dates(metadata, now, seconds)}
    return after if finalizers == (metadata.get("finalizers") or []) else {**after, "finalizers": finalizers}


def over(metadata: Body) -> bool:
    """Whether nothing keeps an object that is being deleted."""
    kept = metadata.get("deletionGracePeriodSeconds") or metadata.get("finalizers")
    return "deletionTimestamp" in metadata and not kept


def awaits(metadata: Body) -> bool:
    """Whether an object is being deleted from the leaves up: its dependents go first."""
    return "deletionTimestamp" in metadata and FOREGROUND in (metadata.get("finalizers") or ())


def _seconds(body: Body, grace: int | None) -> int:
    """How long an object may still run; what was said once can be shortened, not lengthened."""
    had = body["metadata"].get("deletionGracePeriodSeconds")
    grace = 1 if grace is not None and grace < 0 else grace
    if had is not None:
        return int(had if grace is None else min(had, grace))
    spec = body.get("spec") or {}
    if body["kind"] != "Pod" or not spec.get("nodeName") or (body.get("status") or {}).get("phase") in _ENDED:
        return 0
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds")
    return _GRACE if grace is None else grace


def _finalizers(metadata: Body, propagation: Propagation) -> list[str]:
    others = [one for one in metadata.get("finalizers") or () if one not in (FOREGROUND, ORPHAN)]
    guard = _GUARDS.get(propagation)
    return [*others, guard] if guard else others


def _dates(metadata: Body, now: datetime, seconds: int) -> Body:
    """When the object is to be gone. Being told so is a new generation; a shorter grace counts from the first."""
    changed: Body = {"deletionGracePeriodSeconds": seconds}
    if "deletionTimestamp" in metadata:
        due = datetime.fromisoformat(metadata["deletionTimestamp"])
        now = due - timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    else:
        changed["generation"] = metadata["generation"] + 1
    changed["deletionTimestamp"] = stamp(now + timedelta(seconds=seconds))
    return changed


class ObjectPlace(NamedTuple):
    """Where an object is."""

    resource: str
    key: Key


class CollectedObjects(Protocol):
    """What the collector asks of the store."""

    def find(self, ref: ObjectPlace) -> Body | None:
        """The object, if it is there."""
        ...

    def amend(self, ref: ObjectPlace, metadata: Body) -> None:
        """Give an object other metadata."""
        ...

    def dismiss(self, ref: ObjectPlace, propagation: Propagation) -> None:
        """Delete an object, in its own time."""
        ...


class _Dependents:
    """The objects that name one owner; True: it must wait for this one."""

    __slots__ = ("blocking", "refs")

    def __init__(self) -> None:
        self.refs: dict[ObjectPlace, bool] = {}
        self.blocking = 0


class Collector:
    """The index of owners, and the work it finds."""

    def __init__(self, objects: CollectedObjects) -> None:
        self._objects = objects
        self._places: dict[str, ObjectPlace] = {}
        self._dependents: dict[str, _Dependents] = {}
        self._queue: deque[ObjectPlace] = deque()
        self._owners: deque[str] = deque()
        self._busy = False

    def added(self, ref: ObjectPlace, metadata: Body) -> None:
        """An object is new."""
        self._places[metadata["uid"]] = ref
        if metadata.get("ownerReferences"):
            self._adopt(ref, metadata["ownerReferences"])

    def changed(self, ref: ObjectPlace, before: Body, after: Body) -> None:
        """An object's references, or its finalizers, are others now."""
        old, new = before.get("ownerReferences"), after.get("ownerReferences")
        if old is not new:
            self._release(ref, old or ())
            self._adopt(ref, new or ())
        if "deletionTimestamp" in after:
            self._owners.append(after["uid"])

    def removed(self, ref: ObjectPlace, metadata: Body) -> None:
        """An object is gone: whoever it owned is looked at, and whoever waited for it."""
        del self._places[metadata["uid"]]
        dependents = self._dependents.get(metadata["uid"])
        if dependents is not None:
            self._queue.extend(dependents.refs)
        if metadata.get("ownerReferences"):
            self._release(ref, metadata["ownerReferences"])

    def run(self) -> None:
        """Do all there is to do, and what follows from it."""
        if self._busy or not (self._queue or self._owners):
            return
        self._busy = True
        try:
            while self._queue or self._owners:
                if self._queue:
                    self._examine(self._queue.popleft())
                else:
                    self._advance(self._owners.popleft())
        finally:
            self._busy = False

    def _adopt(self, ref: ObjectPlace, owners: Iterable[Body]) -> None:
        for owner in owners:
            family = self._dependents.get(owner["uid"])
            if family is None:
                family = self._dependents[owner["uid"]] = _Dependents()
            if ref not in family.refs:
                family.refs[ref] = blocks = bool(owner.get("blockOwnerDeletion"))
                family.blocking += blocks
        if any(not self._solid(owner["uid"], ref) for owner in owners):
            self._queue.append(ref)

    def _release(self, ref: ObjectPlace, owners: Iterable[Body]) -> None:
        for owner in owners:
            family = self._dependents.get(owner["uid"])
            if family is None or ref not in family.refs:
                continue
            family.blocking -= family.refs.pop(ref)
            if not family.refs:
                del self._dependents[owner["uid"]]
            if owner["uid"] in self._places:
                self._owners.append(owner["uid"])

    def _solid(self, uid: str, ref: ObjectPlace) -> bool:
        """Whether that owner is there to stay: a namespaced one elsewhere is none."""
        place = self._places.get(uid)
        if place is None or (place.key.namespace and place.key.namespace != ref.key.namespace):
            return False
        owner = self._objects.find(place)
        return owner is not None and not awaits(owner["metadata"])

    def _examine(self, ref: ObjectPlace) -> None:
        """An object whose owners may be gone: keep it for the others, or let it go."""
        body = self._objects.find(ref)
        owners = body["metadata"].get("ownerReferences") if body is not None else None
        if body is None or not owners:
            return
        solid = [owner for owner in owners if self._solid(owner["uid"], ref)]
        if solid and len(solid) < len(owners):
            self._objects.amend(ref, _with(body["metadata"], "ownerReferences", solid))
        elif not solid and "deletionTimestamp" not in body["metadata"]:
            self._objects.dismiss(ref, self._propagation(body["metadata"], owners))

    def _propagation(self, metadata: Body, owners: list[Body]) -> Propagation:
        """A part of a family that goes from the leaves up goes that way itself; else as its finalizers say."""
        finalizers = metadata.get("finalizers") or ()
        if ORPHAN in finalizers:
            return Propagation.ORPHAN
        awaited = any(owner["uid"] in self._places for owner in owners) and self._has_family(metadata["uid"])
        return Propagation.FOREGROUND if awaited or FOREGROUND in finalizers else Propagation.BACKGROUND

    def _has_family(self, uid: str) -> bool:
        """Whether it owns anything to wait for; what waits itself would wait for ever in a circle of owners."""
        family = self._dependents.get(uid)
        bodies = [self._objects.find(ref) for ref in family.refs] if family is not None else []
        return bool(bodies) and not any(body is not None and awaits(body["metadata"]) for body in bodies)

    def _advance(self, uid: str) -> None:
        """An owner that is being deleted and may wait for its dependents."""
        ref = self._places.get(uid)
        body = self._objects.find(ref) if ref is not None else None
        if ref is None or body is None or "deletionTimestamp" not in body["metadata"]:
            return
        finalizers = body["metadata"].get("finalizers") or ()
        if ORPHAN in finalizers:
            self._orphan(uid)
            self._finish(ref, ORPHAN)
        elif FOREGROUND in finalizers:
            family = self._dependents.get(uid)
            if family is None or not family.blocking:
                self._finish(ref, FOREGROUND)

    def begin(self, uid: str) -> None:
        """A foreground deletion has begun: its dependents go first."""
        family = self._dependents.get(uid)
        if family is not None:
            self._queue.extend([ref for ref, blocks in family.refs.items() if blocks])

    def _orphan(self, uid: str) -> None:
        family = self._dependents.get(uid)
        for ref in [*family.refs] if family is not None else ():
            body = self._objects.find(ref)
            if body is not None:
                metadata = body["metadata"]
                others = [owner for owner in metadata["ownerReferences"] if owner["uid"] != uid]
                self._objects.amend(ref, _with(metadata, "ownerReferences", others))

    def _finish(self, ref: ObjectPlace, finalizer: str) -> None:
        body = self._objects.find(ref)
        if body is not None:
            metadata = body["metadata"]
            rest = [one for one in metadata["finalizers"] if one != finalizer]
            self._objects.amend(ref, _with(metadata, "finalizers", rest))


def _with(metadata: Body, name: str, values: list[Any]) -> Body:
    """The metadata with that list, or without one if it is empty, as an API server writes it."""
    rest = {key: value for key, value in metadata.items() if key != name}
    return {**rest, name: values} if values else rest
