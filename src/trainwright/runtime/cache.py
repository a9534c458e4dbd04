# SPDX-License-Identifier: Apache-2.0
"""The objects of one resource as far as we know them, by key and by job. `informer` and our own writes feed it.

Read-your-writes: what a write answered enters at once if it is newer than what is here (resourceVersion as a number),
and what we have deleted is not revived by an older event. So a watch that lags behind delays an action, and never
repeats one: no other bookkeeping of expectations is needed.
"""

from typing import Any

from trainwright.model.meta import JOB_UID, Key, Meta
from trainwright.runtime.ports import Change, Happened, Page, Resource


class Cache:
    """One resource. Methods that take something in return the UIDs of the jobs whose view has changed."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.synced = False
        #: The newest version that a write of ours has made: a list must not be older.
        self.newest = 0
        self._items: dict[Key, tuple[Meta, Any]] = {}
        self._by_job: dict[str, dict[Key, Any]] = {}
        self._sorted: dict[str, tuple[Any, ...]] = {}
        self._buried: set[str] = set()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> Any:
        """The object, or None."""
        found = self._items.get(key)
        return found[1] if found is not None else None

    def of(self, uid: str) -> tuple[Any, ...]:
        """The children of a job, in the order of their names."""
        found = self._sorted.get(uid)
        if found is None:
            children = self._by_job.get(uid, {})
            found = self._sorted[uid] = tuple([children[key] for key in sorted(children)])
        return found

    def keys(self) -> tuple[Key, ...]:
        """The keys of everything."""
        return tuple(self._items)

    def items(self) -> tuple[Any, ...]:
        """Everything."""
        return tuple(item for _, item in self._items.values())

    # -- from the watch ------------------------------------------------------------------------------------------

    def replace(self, page: Page) -> set[str]:
        """A list: everything that is not in it is gone, unless we have written it since."""
        touched: set[str] = set()
        listed = set()
        for item in page.items:
            meta = self.resource.meta(item)
            listed.add(_key(meta))
            touched |= self._take(meta, item)
        at = int(page.version or 0)
        for key in [key for key in self._items if key not in listed]:
            meta, _ = self._items[key]
            if int(meta.resource_version or 0) <= at:
                touched |= self._remove(key)
        if at >= self.newest:
            self._buried.clear()
        self.synced = True
        return touched

    def apply(self, change: Change) -> set[str]:
        """One event of the watch."""
        meta = self.resource.meta(change.item)
        if change.what is not Happened.DELETED:
            return self._take(meta, change.item)
        self._buried.discard(meta.uid)
        known = self._items.get(_key(meta))
        return self._remove(_key(meta)) if known is not None and known[0].uid == meta.uid else set()

    # -- from our own writes -------------------------------------------------------------------------------------

    def learn(self, item: Any) -> set[str]:
        """What a write of ours was answered with."""
        meta = self.resource.meta(item)
        self.newest = max(self.newest, int(meta.resource_version or 0))
        return self._take(meta, item)

    def bury(self, key: Key, uid: str) -> set[str]:
        """A delete of ours has removed it."""
        self._buried.add(uid)
        known = self._items.get(key)
        return self._remove(key) if known is not None and known[0].uid == uid else set()

    # ------------------------------------------------------------------------------------------------------------

    def _take(self, meta: Meta, item: Any) -> set[str]:
        if meta.uid in self._buried:
            return set()
        key = _key(meta)
        known = self._items.get(key)
        if known is not None and int(known[0].resource_version or 0) >= int(meta.resource_version or 0):
            return set()
        before = _job(known[0]) if known is not None else ""
        self._items[key] = (meta, item)
        uid = _job(meta)
        if before and before != uid:
            self._unlink(before, key)
        if uid:
            self._by_job.setdefault(uid, {})[key] = item
            self._sorted.pop(uid, None)
        return {one for one in (before, uid) if one}

    def _remove(self, key: Key) -> set[str]:
        meta, _ = self._items.pop(key)
        uid = _job(meta)
        if not uid:
            return set()
        self._unlink(uid, key)
        return {uid}

    def _unlink(self, uid: str, key: Key) -> None:
        children = self._by_job[uid]
        del children[key]
        self._sorted.pop(uid, None)
        if not children:
            del self._by_job[uid]


def _key(meta: Meta) -> Key:
    return Key(meta.namespace, meta.name)


def _job(meta: Meta) -> str:
    return (meta.labels or {}).get(JOB_UID, "")
