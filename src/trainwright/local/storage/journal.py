# SPDX-License-Identifier: Apache-2.0
"""Makes the writes of a store durable, and keeps clients from seeing a write that is not durable yet.

The store changes its objects in memory and gives each change to the journal. A writer thread commits the changes
(`journal_writer`). The event loop learns of each commit by one callback, which answers the clients that wait for a
version (`wait`) and shows the new entries to watches (`WriteLog.publish`).

If the disk is full, nothing is lost and nothing is confirmed: clients get an UnavailableError after some seconds, the
writer goes on trying, and the pods run on.
"""

import asyncio
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

import msgspec

from trainwright.errors import EngineError, InvalidError, UnavailableError
from trainwright.local.storage.history import StoredObject, WriteLog
from trainwright.local.storage.journal_file import JournalContent, JournalFile, JournalRow, disk_bytes
from trainwright.local.storage.journal_writer import JournalWriter, Trouble
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import Clock

#: A client waits at most this many seconds for the disk.
WAIT_SECONDS = 10.0
#: At the end, the writer has this many seconds to commit what waits.
CLOSE_SECONDS = 5.0
_POLL_SECONDS = 0.002
_encode = msgspec.json.Encoder().encode
#: So many specs are remembered as JSON.
_MAX_SPECS = 512


#: A client that waits: the version, the time until which it waits, and what ends the wait.
_Waiter = tuple[int, float, "Future[None]"]


class SpecEncoder:
    """Encodes objects as JSON. It remembers the JSON of specs, because most writes change only the status of an object.

    A body that shares its spec with an earlier body has the same dict there: bodies are never changed.
    """

    def __init__(self) -> None:
        self._specs: dict[int, tuple[object, msgspec.Raw]] = {}

    def encode(self, body: Body) -> bytes:
        """The object as JSON."""
        spec = body.get("spec")
        if not spec:
            return _encode(body)
        known = self._specs.get(id(spec))
        if known is None or known[0] is not spec:
            if len(self._specs) >= _MAX_SPECS:
                self._specs.clear()
            known = self._specs[id(spec)] = spec, msgspec.Raw(_encode(spec))
        return _encode({**body, "spec": known[1]})


class StoreJournal:
    """The journal of one store. All methods are for the thread of the event loop.

    `notify` gets a text when commits begin to fail, and when they succeed again.
    """

    def __init__(
        self,
        file: JournalFile,
        content: JournalContent,
        clock: Clock,
        *,
        wait_seconds: float = WAIT_SECONDS,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.path, self._file, self._wait_seconds, self._notify = file.path, file, wait_seconds, notify
        self._loop: AbstractEventLoop | None = None
        self._rows: list[JournalRow] = []
        self._encoder = SpecEncoder()
        self._holds = 0
        self._unpublished: set[WriteLog] = set()
        self._waiters: deque[_Waiter] = deque()
        self._timer: TimerHandle | None = None
        self._closed = self._stuck = False
        self._notified: Trouble | None = None
        #: All versions up to this one are durable and visible.
        self.durable = self._last = content.version
        self._writer = JournalWriter(file, content, clock, self._call_loop)

    # -- from the store -----------------------------------------------------------------------------------------------

    def changed(self, log: WriteLog, resource: str, key: Key, record: StoredObject, replaced: int) -> None:
        """Add an object to the current group. It replaces the row of the version `replaced`; 0: it is new.

        Raises InvalidError if JSON cannot contain the object.
        """
        try:
            body = self._encoder.encode(record.body) if replaced else _encode(record.body)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidError(f"the object cannot be stored: {error}") from None
        self._rows.append(JournalRow(record.version, resource, key.namespace, key.name, body, replaced))
        self._last = record.version
        self._unpublished.add(log)

    def removed(self, log: WriteLog, resource: str, key: Key, version: int, replaced: int) -> None:
        """Add the removal of an object to the current group."""
        self._rows.append(JournalRow(version, resource, key.namespace, key.name, None, replaced))
        self._last = version
        self._unpublished.add(log)

    def end_group(self) -> None:
        """Give the current group to the writer: one write and all its effects are committed together."""
        rows = self._rows
        if rows and not self._holds:
            if self._loop is None:
                with suppress(RuntimeError):
                    self._loop = asyncio.get_running_loop()
            self._rows = []
            self._writer.put(rows)

    def hold(self) -> None:
        """Keep the current group open until `release`, because a later write belongs to it."""
        self._holds += 1

    def release(self) -> None:
        """End one `hold`."""
        self._holds -= 1
        self.end_group()

    # -- for clients --------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> Trouble | None:
        """Why commits fail at the moment, and since when; None if they do not fail."""
        return self._writer.trouble

    @property
    def disk_bytes(self) -> int:
        """The size of the file with its log."""
        return disk_bytes(self.path)

    @property
    def commits(self) -> int:
        """The number of commits so far."""
        return self._writer.commits

    def check(self) -> None:
        """Raise UnavailableError if commits have failed for so long that a new write would only use up memory."""
        if self._closed or self._stuck:
            raise self._unavailable()

    async def wait(self, version: int) -> None:
        """Return when this version is durable. Raises UnavailableError if that takes too long."""
        if version <= self.durable:
            return
        loop = self._loop = asyncio.get_running_loop()
        if version <= self._writer.durable:
            self._update()
            return
        if self._closed or self._stuck:
            raise self._unavailable()
        done: Future[None] = loop.create_future()
        self._waiters.append((version, monotonic() + self._wait_seconds, done))
        if self._timer is None:
            self._timer = loop.call_later(self._wait_seconds, self._expire)
        await done

    def flush(self, timeout: float = WAIT_SECONDS) -> None:
        """Block until everything is durable. For callers without an event loop."""
        self.end_group()
        end = monotonic() + timeout
        while self._writer.durable < self._last:
            if monotonic() > end:
                raise self._unavailable()
            sleep(_POLL_SECONDS)
        self._update()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Commit everything, and close the file. Raises EngineError if that is not possible.

        This call blocks: a caller with an event loop uses a thread.
        """
        if self._closed:
            return
        self._closed = True
        self._holds = 0
        self.end_group()
        ended = self._writer.stop(timeout)
        self._file.release()
        trouble = self._writer.trouble
        if not ended or self._writer.unwritten:
            reason = trouble.text if trouble is not None else f"{self.path}: the disk does not answer"
            raise EngineError(f"{reason}: the last changes are not stored; no client has got a confirmation of them")

    # -- after a commit -----------------------------------------------------------------------------------------------

    def _call_loop(self) -> None:
        """Called in the writer's thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._update)

    def _update(self) -> None:
        """Show what is durable now to watches, and answer the clients that wait for it."""
        version = self._writer.durable
        if version > self.durable:
            self.durable, self._stuck = version, False
            self._unpublished = {log for log in self._unpublished if log.publish(version)}
            waiters = self._waiters
            while waiters and waiters[0][0] <= version:
                done = waiters.popleft()[2]
                if not done.done():
                    done.set_result(None)
        if self._writer.trouble is not self._notified:
            self._report()

    def _report(self) -> None:
        before, self._notified = self._notified, self._writer.trouble
        if self._notified is None:
            self._notify(f"{self.path}: the state is stored again")
        elif before is None:
            self._notify(f"{self._notified.text}: nothing is confirmed until the state can be stored; the pods run on")

    def _expire(self) -> None:
        """Answer the clients that have waited too long."""
        self._timer, now = None, monotonic()
        for _, deadline, done in self._waiters:
            if done.done():
                continue
            if deadline > now and self._loop is not None:
                self._timer = self._loop.call_later(deadline - now, self._expire)
                break
            self._stuck = True
            done.set_exception(self._unavailable())

    def _unavailable(self) -> UnavailableError:
        trouble = self._writer.trouble
        if self._closed:
            return UnavailableError(f"{self.path}: the engine is ending")
        if trouble is None:
            text = f"{self.path}: the disk has not confirmed the write within {self._wait_seconds:g} s"
        else:
            text = f"{trouble.text} (since {trouble.since:%H:%M:%S} UTC)"
        advice = "pods that run go on; changes are stored and confirmed when the disk accepts writes again"
        return UnavailableError(f"{text}; {advice}", retry_after=1)
