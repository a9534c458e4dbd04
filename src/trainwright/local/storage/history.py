# SPDX-License-Identifier: Apache-2.0
"""What happened to the objects of one resource, and the cursors that read it. `store` appends, `Watch` takes.

One bounded log serves all watchers of a resource: a write appends one entry and wakes whoever waits, whatever their
number. A watcher that falls out of the log must list again (GoneError). A decoded object is kept beside its version,
so that ten watchers, the list and the answer to the write decode it once.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from trainwright.errors import GoneError, InvalidError
from trainwright.local.storage.selectors import Test
from trainwright.model.job import Body
from trainwright.runtime.ports import Resource, WatchEvent, WatchEventType

#: So many entries are looked at in one go, so that no batch keeps a loop busy for long.
_BATCH = 1024
#: A watch that passed over so many entries without telling any says how far it has come.
_SILENCE = 512
_ADDED, _MODIFIED, _DELETED, _BOOKMARK = (
    WatchEventType.ADDED,
    WatchEventType.MODIFIED,
    WatchEventType.DELETED,
    WatchEventType.BOOKMARK,
)


def _nothing() -> None:
    """What a watch that does not wait would be called back with."""


class StoredObject(Struct, gc=False):
    """One version of one object, and how it was last decoded."""

    body: Body
    version: int
    text: str
    type: Any = dict
    view: Any = None

    def decoded(self, resource: Resource) -> Any:
        """The object as the resource is read."""
        if resource.type is dict:
            return self.body
        if self.type is not resource.type:
            self.type, self.view = resource.type, resource.decode(self.body)
        return self.view


class HistoryEntry(Struct, frozen=True, gc=False):
    """One write: what it was, what it left, and what was there before."""

    what: WatchEventType
    after: StoredObject
    before: StoredObject | None = None


class WriteLog:
    """The last writes to one resource, and who waits for the next."""

    def __init__(self, limit: int) -> None:
        self._limit, self._most = limit, limit + limit // 4 + 1
        self.entries: list[HistoryEntry] = []
        #: How many entries were dropped, and the version of the last of them.
        self.dropped, self.floor = 0, 0
        self.waiting: list[Callable[[], None]] = []

    def append(self, entry: HistoryEntry) -> None:
        """Remember a write and wake whoever waits for one."""
        entries = self.entries
        entries.append(entry)
        if len(entries) >= self._most:
            surplus = len(entries) - self._limit
            self.dropped, self.floor = self.dropped + surplus, entries[surplus - 1].after.version
            del entries[:surplus]
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            for wake in waiting:
                wake()

    def after(self, version: int) -> int:
        """The number of the first entry past that version; GoneError if it is no longer known what happened since."""
        if version < self.floor:
            raise GoneError(f"too old resource version: {version} ({self.floor} is the oldest known); list again")
        return self.dropped + bisect_right(self.entries, version, key=lambda entry: entry.after.version)


class Watch:
    """A cursor in a log. `take` gives what is there; `wait` calls back once when there is more."""

    def __init__(
        self, log: WriteLog, resource: Resource, test: Test | None, since: int, first: Iterable[StoredObject] = ()
    ) -> None:
        self._log, self._resource, self._test, self._since = log, resource, test, since
        self._next, self._silence = log.after(since), 0
        self._wake: Callable[[], None] = _nothing
        self._first = tuple([WatchEvent(_ADDED, record.text, record.decoded(resource)) for record in first])

    def take(self) -> tuple[WatchEvent, ...]:
        """What happened since the last call, in order; nothing if nothing did. GoneError: too slow, list again."""
        if self._first:
            first, self._first = self._first, ()
            return first
        log = self._log
        start = self._next - log.dropped
        if start == len(log.entries):
            return ()
        if start < 0:
            raise GoneError("the watch fell behind what is remembered; list again")
        entries = log.entries[start : start + _BATCH]
        self._next += len(entries)
        if entries[0].after.version <= self._since:
            entries = [entry for entry in entries if entry.after.version > self._since]
        return self._plain(entries) if self._test is None else self._filtered(entries)

    def wait(self, wake: Callable[[], None]) -> None:
        """Call back, once, at the next write; at once if there is one already."""
        if self._first or self._next - self._log.dropped < len(self._log.entries):
            wake()
        else:
            self._wake = wake
            self._log.waiting.append(wake)

    def close(self) -> None:
        """Wait no longer."""
        if self._wake in self._log.waiting:
            self._log.waiting.remove(self._wake)

    def bookmark(self) -> WatchEvent:
        """How far the watch has come: a version to resume from, although nothing of it concerned the selector."""
        seen = self._next - self._log.dropped - 1
        version = self._log.entries[seen].after.version if seen >= 0 else self._log.floor
        return WatchEvent(_BOOKMARK, str(max(version, self._since)))

    def _plain(self, entries: list[HistoryEntry]) -> tuple[WatchEvent, ...]:
        resource = self._resource
        return tuple([WatchEvent(entry.what, entry.after.text, entry.after.decoded(resource)) for entry in entries])

    def _filtered(self, entries: list[HistoryEntry]) -> tuple[WatchEvent, ...]:
        told = tuple([change for entry in entries if (change := self._told(entry)) is not None])
        self._silence = 0 if told else self._silence + len(entries)
        if self._silence < _SILENCE:
            return told
        self._silence = 0
        return (self.bookmark(),)

    def _told(self, entry: HistoryEntry) -> WatchEvent | None:
        """What a write is to this watch: an object that begins to match is new to it, one that ceases to is gone."""
        assert self._test is not None  # noqa: S101 - only filtered watches come here
        after, before, resource = entry.after, entry.before, self._resource
        was = before is not None and self._test(before.body)
        if entry.what is not _DELETED and self._test(after.body):
            return WatchEvent(_MODIFIED if was else _ADDED, after.text, after.decoded(resource))
        if before is None or not was:
            return None
        if entry.what is _DELETED:
            return WatchEvent(_DELETED, after.text, after.decoded(resource))
        # As an API server has it: the last state that matched, at the version that ended it.
        metadata = before.body["metadata"] | {"resourceVersion": after.text}
        return WatchEvent(_DELETED, after.text, resource.decode(before.body | {"metadata": metadata}))


def parse(version: str) -> int:
    """A resourceVersion as the number that it is here."""
    if not version.isdecimal() or len(version) > 20:
        raise InvalidError(f"resource version {version!r}: expected a number, as a list or an object has it")
    return int(version)
