# SPDX-License-Identifier: Apache-2.0
"""What deleting an object does to it: how long it may stay, and what must come first. Called by `tables`.

As with an API server: only pods get a grace period, and only those that a node has; finalizers keep anything.
"""

from datetime import datetime, timedelta

from trainwright.local.storage.metadata import stamp
from trainwright.model.job import Body
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
