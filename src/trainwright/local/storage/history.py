# SPDX-License-Identifier: Apache-2.0
"""The log of the writes to one resource, and the cursors (`Watch`) that read the log.

All watchers of a resource share one log of limited length: a write appends only one entry and wakes the waiting
watchers. If the log has dropped an entry that a watcher has not read, the watcher must list again (GoneError). The
result of decoding an object is stored, so that it is decoded once for all watchers, lists and the answer to the write.

If the store has a journal, a write is appended at once but held: watchers see it after `publish`, when it is durable.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from trainwright.errors import GoneError, InvalidError
from trainwright.local.storage.selectors import Test
from trainwright.model.job import Body
from trainwright.runtime.ports import Resource, WatchEvent, WatchEventType

#: Maximum number of entries that one call of `take` examines, so that it does not block the event loop for long.
_BATCH_ENTRIES = 1024
#: After this many entries that do not match the selector of a watch, the watch returns a bookmark.
_BOOKMARK_ENTRIES = 512
_ADDED, _MODIFIED, _DELETED, _BOOKMARK = WatchEventType


class StoredObject(Struct, gc=False):
    """One version of one object, and the result of its last decoding."""

    body: Body
    version: int
    text: str
    type: Any = dict
    view: Any = None

    def decoded(self, resource: Resource) -> Any:
        """The object decoded to the type of the resource."""
        if resource.type is dict:
            return self.body
        if self.type is not resource.type:
            self.type, self.view = resource.type, resource.decode(self.body)
        return self.view


class HistoryEntry(Struct, frozen=True, gc=False):
    """One write: its type, the object after the write, and the object before the write."""

    what: WatchEventType
    after: StoredObject
    before: StoredObject | None = None


class WriteLog:
    """The last writes to one resource, and the callbacks for the next write.

    The log knows nothing of writes up to the version `floor`. With `holds`, entries are held until `publish`.
    """

    def __init__(self, limit: int, *, floor: int = 0, holds: bool = False) -> None:
        self._limit, self._trim_at, self._holds = limit, limit + limit // 4 + 1, holds
        self.entries: list[HistoryEntry] = []
        #: The number of dropped entries, and the version of the last dropped entry.
        self.dropped, self.floor = 0, floor
        #: The number of entries at the end that watchers must not see yet.
        self.held = 0
        self.waiting: list[Callable[[], None]] = []

    def restore(self, entries: list[HistoryEntry]) -> None:
        """Begin with the writes of an earlier engine. All of them are durable."""
        self.entries = entries[-self._limit :]
        if len(entries) > self._limit:
            self.floor = entries[-self._limit - 1].after.version

    def append(self, entry: HistoryEntry) -> None:
        """Append a write and, unless entries are held, wake the watchers that wait."""
        self.entries.append(entry)
        if self._holds:
            self.held += 1
        if len(self.entries) >= self._trim_at:
            self._trim()
        if self.waiting and not self._holds:
            self._wake()

    def publish(self, version: int) -> bool:
        """Show the entries up to this version to watchers. Returns whether later entries are still held."""
        entries, held = self.entries, self.held
        while held and entries[-held].after.version <= version:
            held -= 1
        if held < self.held:
            self.held = held
            self._wake()
        return held > 0

    def _trim(self) -> None:
        """Drop the oldest entries, but none that is held."""
        entries = self.entries
        surplus = len(entries) - max(self._limit, self.held)
        if surplus > 0:
            self.dropped, self.floor = self.dropped + surplus, entries[surplus - 1].after.version
            del entries[:surplus]

    def _wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for wake in waiting:
            wake()

    def after(self, version: int) -> int:
        """The number of the first entry after the version. Raises GoneError if later entries were dropped already."""
        if version < self.floor:
            raise GoneError(f"too old resource version: {version} ({self.floor} is the oldest known); list again")
        return self.dropped + bisect_right(self.entries, version, key=lambda entry: entry.after.version)


class Watch:
    """A cursor in a log. `take` returns the new events; `wait` registers a callback for the next event."""

    def __init__(
        self, log: WriteLog, resource: Resource, test: Test | None, since: int, first: Iterable[StoredObject] = ()
    ) -> None:
        self._log, self._resource, self._test, self._since = log, resource, test, since
        self._next, self._skipped = log.after(since), 0
        self._wake: Callable[[], None] | None = None
        self._first = tuple([WatchEvent(_ADDED, record.text, record.decoded(resource)) for record in first])

    def take(self) -> tuple[WatchEvent, ...]:
        """The events since the last call, oldest first. GoneError: the watch was too slow, so the caller must list."""
        log = self._log
        start, end = self._next - log.dropped, len(log.entries) - log.held
        if self._first and start <= end:
            first, self._first = self._first, ()
            return first
        if start >= end:
            return ()
        if start < 0:
            raise GoneError("the watch fell behind what is remembered; list again")
        entries = log.entries[start : min(start + _BATCH_ENTRIES, end)]
        self._next += len(entries)
        if entries[0].after.version <= self._since:
            entries = [entry for entry in entries if entry.after.version > self._since]
        if self._test is not None:
            return self._filtered(entries, self._test)
        resource = self._resource
        return tuple([WatchEvent(entry.what, entry.after.text, entry.after.decoded(resource)) for entry in entries])

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once at the next write, or immediately if there is a write that this watch has not read."""
        start, end = self._next - self._log.dropped, len(self._log.entries) - self._log.held
        if start < end or (self._first and start == end):
            wake()
        else:
            self._wake = wake
            self._log.waiting.append(wake)

    def close(self) -> None:
        """Remove the callback."""
        if self._wake is not None and self._wake in self._log.waiting:
            self._log.waiting.remove(self._wake)

    def _filtered(self, entries: list[HistoryEntry], test: Test) -> tuple[WatchEvent, ...]:
        events = tuple([change for entry in entries if (change := self._event(entry, test)) is not None])
        self._skipped = 0 if events else self._skipped + len(entries)
        if self._skipped < _BOOKMARK_ENTRIES:
            return events
        self._skipped = 0
        return (WatchEvent(_BOOKMARK, entries[-1].after.text),)

    def _event(self, entry: HistoryEntry, test: Test) -> WatchEvent | None:
        """The event for this watch. It is ADDED if the object begins to match, and DELETED if it no longer matches."""
        after, before, resource = entry.after, entry.before, self._resource
        matched = before is not None and test(before.body)
        if entry.what is not _DELETED and test(after.body):
            return WatchEvent(_MODIFIED if matched else _ADDED, after.text, after.decoded(resource))
        if before is None or not matched:
            return None
        if entry.what is _DELETED:
            return WatchEvent(_DELETED, after.text, after.decoded(resource))
        # As in an API server, return the last state that matched, but with the version of the current write.
        metadata = before.body["metadata"] | {"resourceVersion": after.text}
        return WatchEvent(_DELETED, after.text, resource.decode(before.body | {"metadata": metadata}))


def parse(version: str) -> int:
    """A resourceVersion as a number."""
    if not version.isdecimal() or len(version) > 20:
        raise InvalidError(f"resource version {version!r}: expected a number, as lists and objects have it")
    return int(version)
