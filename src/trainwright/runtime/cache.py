# SPDX-License-Identifier: Apache-2.0
"""The objects of one resource as far as we know them, by key and by job. `informer` and our own writes feed it.

Read-your-writes: what a write answered enters at once if it is newer than what is here (resourceVersion as a number),
and what we have deleted is not revived by an older event. An answer that the watch has overtaken says nothing new, even
if its object is not here: then it has gone since. So a watch that lags behind delays an action, and never repeats one:
no other bookkeeping of expectations is needed.
"""

from typing import Any

from trainwright.model.meta import JOB_UID, Key, Meta
from trainwright.runtime.ports import ListPage, Resource, WatchEvent, WatchEventType

#: A job by its namespace and UID. Anybody can write a UID on a label, so what is in another namespace is never its.
Whose = tuple[str, str]


class Cache:
    """One resource. Methods that take something in return the UIDs of the jobs whose view has changed."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.synced = False
        #: How far lists and the watch have told everything, and the newest version that a write of ours has made.
        self._told = self._written = 0
        self._items: dict[Key, tuple[Meta, Any]] = {}
        self._by_job: dict[Whose, dict[Key, Any]] = {}
        self._sorted: dict[Whose, tuple[Any, ...]] = {}
        #: What we deleted last under a key and the watch has not told of yet: its UID, and the version we knew.
        self._buried: dict[Key, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._items)

    @property
    def newest(self) -> int:
        """The newest version that is known here: a list must not be older."""
        return max(self._told, self._written)

    def get(self, key: Key) -> Any:
        """The object, or None."""
        found = self._items.get(key)
        return found[1] if found is not None else None

    def of(self, whose: Whose) -> tuple[Any, ...]:
        """The children of a job, in the order of their names."""
        found = self._sorted.get(whose)
        if found is None:
            children = self._by_job.get(whose)
            if not children:
                return ()
            found = self._sorted[whose] = tuple([children[key] for key in sorted(children)])
        return found

    def jobs(self) -> tuple[Whose, ...]:
        """The jobs that have children here."""
        return tuple(self._by_job)

    def keys(self) -> tuple[Key, ...]:
        """The keys of everything."""
        return tuple(self._items)

    def items(self) -> tuple[Any, ...]:
        """Everything."""
        return tuple(item for _, item in self._items.values())

    # -- from the watch ------------------------------------------------------------------------------------------

    def replace(self, page: ListPage) -> set[str]:
        """A list: everything that is not in it is gone, unless we have written it since."""
        touched: set[str] = set()
        listed, uids = set(), set()
        for item in page.items:
            meta = self.resource.meta(item)
            listed.add(_key(meta))
            uids.add(meta.uid)
            touched |= self._take(meta, item)
        at = int(page.version or 0)
        for key in [key for key in self._items if key not in listed]:
            meta, _ = self._items[key]
            if int(meta.resource_version or 0) <= at:
                touched |= self._remove(key)
        # A list may be older than our deletes: what it still has will be told of once more, as deleted.
        self._buried = {key: grave for key, grave in self._buried.items() if grave[0] in uids}
        self._told = max(self._told, at)
        self.synced = True
        return touched

    def apply(self, change: WatchEvent) -> set[str]:
        """One event of the watch; those come in order, so one that was told before is old news."""
        version = int(change.version)
        if version <= self._told:
            return set()
        self._told = version
        meta = self.resource.meta(change.item)
        if change.what is not WatchEventType.DELETED:
            return self._take(meta, change.item)
        key = _key(meta)
        if key in self._buried and self._buried[key][0] == meta.uid:
            del self._buried[key]
        known = self._items.get(key)
        return self._remove(key) if known is not None and known[0].uid == meta.uid else set()

    # -- from our own writes -------------------------------------------------------------------------------------

    def learn(self, item: Any) -> set[str]:
        """What a write of ours was answered with."""
        meta = self.resource.meta(item)
        version = int(meta.resource_version or 0)
        self._written = max(self._written, version)
        return self._take(meta, item) if version > self._told else set()

    def bury(self, key: Key, uid: str) -> set[str]:
        """A delete of ours has removed it; if it is not here any more, the watch has told so already."""
        known = self._items.get(key)
        if known is None or known[0].uid != uid:
            return set()
        self._buried[key] = (uid, int(known[0].resource_version or 0))
        return self._remove(key)

    # ------------------------------------------------------------------------------------------------------------

    def _take(self, meta: Meta, item: Any) -> set[str]:
        key, version = _key(meta), int(meta.resource_version or 0)
        grave = self._buried.get(key)
        if grave is not None and (grave[0] == meta.uid or version <= grave[1]):
            return set()
        known = self._items.get(key)
        if known is not None and int(known[0].resource_version or 0) >= version:
            return set()
        before = _job(known[0]) if known is not None else ""
        self._items[key] = (meta, item)
        uid = _job(meta)
        if before and before != uid:
            self._unlink((key.namespace, before), key)
        if uid:
            whose = (key.namespace, uid)
            self._by_job.setdefault(whose, {})[key] = item
            self._sorted.pop(whose, None)
        return {one for one in (before, uid) if one}

    def _remove(self, key: Key) -> set[str]:
        meta, _ = self._items.pop(key)
        uid = _job(meta)
        if not uid:
            return set()
        self._unlink((key.namespace, uid), key)
        return {uid}

    def _unlink(self, whose: Whose, key: Key) -> None:
        children = self._by_job[whose]
        del children[key]
        self._sorted.pop(whose, None)
        if not children:
            del self._by_job[whose]


def _key(meta: Meta) -> Key:
    return Key(meta.namespace, meta.name)


def _job(meta: Meta) -> str:
    return (meta.labels or {}).get(JOB_UID, "")
