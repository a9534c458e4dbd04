# SPDX-License-Identifier: Apache-2.0
"""The thread that writes changes into the journal file. Each commit contains everything that waits (group commit).

A commit waits for the disk, without the GIL. To need the GIL rarely, the writer writes all rows of a commit with one
statement: a busy event loop would otherwise delay each of many statements by Python's switch interval.

After an error (most often a full disk) the writer keeps the rows and tries again after a pause. The order of the rows
never differs from the order of the writes, so what is in the file is always the state after some write.
"""

import gc
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import cache
from itertools import chain
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

from msgspec import Struct

from trainwright.local.storage import journal_file
from trainwright.local.storage.journal_file import JournalContent, JournalFile, JournalRow, ReplacedRow
from trainwright.runtime.ports import Clock

#: The pauses in seconds after failed commits.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
#: Tidying waits until there was no write for this many seconds, so that it delays no write …
_IDLE_SECONDS = 1.0
#: … but a checkpoint follows at the latest when the commits since the last one have this many bytes,
_CHECKPOINT_BYTES = 64 << 20
#: and replaced rows are deleted at the latest when there are this many.
_MAX_REPLACED = 32_768
#: One transaction deletes at most this many rows, so that the next commit waits only for some milliseconds.
_MAX_DELETED = 1024
#: One statement writes at most this many rows.
_MAX_ROWS = 512
_COLUMNS = 5
#: Python's switch interval in seconds while a writer exists. After a commit, the writer waits for the GIL for this time
#: if the event loop is busy; Python's default of 5 ms is longer than most commits.
_SWITCH_SECONDS = 0.0002
#: Python looks for cycles after this many new containers (default: 700) while a writer exists. The objects of a store
#: have no cycles, and one second of writes makes a million containers.
_GC_THRESHOLD = 50_000
_ItemT = TypeVar("_ItemT")


#: The rows of one write and of everything that the write caused: they are committed together.
Group = list[JournalRow]


class Trouble(Struct, frozen=True):
    """Why nothing is committed at the moment, and since when."""

    text: str
    since: datetime


class JournalWriter:
    """The writer thread of one file. The thread calls `changed` after each commit and each change of `trouble`."""

    def __init__(self, file: JournalFile, content: JournalContent, clock: Clock, changed: Callable[[], None]) -> None:
        self._file, self._clock, self._changed = file, clock, changed
        self._connection = file.connect()
        limit = self._connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        self._sizes = _statement_sizes(min(_MAX_ROWS, limit // _COLUMNS))
        #: An empty group asks the thread to end.
        self._groups: SimpleQueue[Group] = SimpleQueue()
        #: Commit a group soon.
        self.put = self._groups.put
        self._stopping = Event()
        self._replaced, self._log_bytes = content.replaced, 0
        #: The version of the last commit. Read by the event loop.
        self.durable = content.version
        self.trouble: Trouble | None = None
        #: The number of rows that `stop` could not commit.
        self.unwritten = 0
        self.commits = 0
        self._python_settings = sys.getswitchinterval(), gc.get_threshold()
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        gc.set_threshold(max(gc.get_threshold()[0], _GC_THRESHOLD), *gc.get_threshold()[1:])
        self._thread = Thread(target=self._run, name="journal-writer", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Commit what waits, end the thread and close the file. Returns False if the thread has not ended in time."""
        self._groups.put([])
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._stopping.set()  # ends the pause between two tries
            self._thread.join(_LONGEST_PAUSE_SECONDS)
        sys.setswitchinterval(self._python_settings[0])
        gc.set_threshold(*self._python_settings[1])
        return not self._thread.is_alive()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        ended = False
        while not ended:
            rows, ended = self._take()
            if rows and not self._committed(rows):
                break  # `stop` gave up; nothing later may be committed without these rows
            self._tidy(ended or not rows)
        try:
            self._connection.close()
        except sqlite3.Error as error:
            self._set_trouble(error)

    def _take(self) -> tuple[list[JournalRow], bool]:
        """The rows of all groups that wait. Waits for the first group, but not forever if there is something to tidy.

        The second value is True after `stop`.
        """
        is_tidy = not self._log_bytes and len(self._replaced) <= journal_file.MAX_HISTORY
        try:
            first = self._groups.get(timeout=None if is_tidy else _IDLE_SECONDS)
        except Empty:
            return [], False
        groups = [first, *self._waiting_groups()]
        return list(chain.from_iterable(groups)), not all(groups)

    def _waiting_groups(self) -> list[Group]:
        """All groups that wait at this moment. No other thread takes groups, so none of them is missing."""
        take = self._groups.get_nowait
        return [take() for _ in range(self._groups.qsize())]

    def _committed(self, rows: list[JournalRow]) -> bool:
        """Commit. Tries until it succeeds, or until `stop` gives up, which returns False."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._tried(rows):
            if self._stopping.wait(pause):
                self.unwritten = len(rows) + sum(map(len, self._waiting_groups()))
                return False
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            self._checkpoint()  # if it succeeds, the log begins at its start again and needs no more space
        self.durable, self.trouble = rows[-1].version, None
        self.commits += 1
        self._changed()
        for row in rows:
            if row.replaced:
                self._replaced.append(ReplacedRow(row.replaced, row.version))
            if row.body is None:
                self._replaced.append(ReplacedRow(row.version, row.version))
        return True

    def _tried(self, rows: list[JournalRow]) -> bool:
        try:
            self._write(rows)
        except Exception as error:
            self._set_trouble(error)
            return False
        return True

    def _set_trouble(self, error: Exception) -> None:
        text = "the disk is full" if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" else str(error)
        since = self._clock.now() if self.trouble is None else self.trouble.since
        self.trouble = Trouble(f"{self._file.path}: {text}", since)
        self._changed()

    def _write(self, rows: list[JournalRow]) -> None:
        execute, most = self._connection.execute, self._sizes[-1]
        if self._connection.in_transaction:  # after an error
            execute("ROLLBACK")
        if len(rows) <= most:
            self._insert(rows)  # one statement is a transaction
        else:
            execute("BEGIN IMMEDIATE")
            for start in range(0, len(rows), most):
                self._insert(rows[start : start + most])
            execute("COMMIT")

    def _insert(self, rows: list[JournalRow]) -> None:
        padded = self._padded(rows)
        columns = [(row.version, row.resource, row.namespace, row.name, row.body) for row in padded]
        self._connection.execute(_insert_statement(len(padded)), [*chain.from_iterable(columns)])
        self._log_bytes += sum([len(row.body or b"") for row in rows]) + 4096

    def _padded(self, items: list[_ItemT]) -> list[_ItemT]:
        """Repeat the last item, which changes nothing, so that few different statements must be prepared."""
        size = next(size for size in self._sizes if size >= len(items))
        return items + items[-1:] * (size - len(items))

    # -- between commits ----------------------------------------------------------------------------------------------

    def _tidy(self, is_idle: bool) -> None:
        """Delete replaced rows and make a checkpoint, if it is time. Failures are no problem: both are tried again."""
        most = journal_file.MAX_HISTORY if is_idle else max(journal_file.MAX_HISTORY, _MAX_REPLACED)
        while len(self._replaced) > most and self._delete_replaced() and self._groups.empty():
            pass
        if self._log_bytes >= _CHECKPOINT_BYTES or (is_idle and self._log_bytes):
            self._checkpoint()

    def _delete_replaced(self) -> bool:
        """Delete the oldest replaced rows, but keep the history. The row of a removal never goes before older rows."""
        count = min(_MAX_DELETED, len(self._replaced) - journal_file.MAX_HISTORY)
        part, self._replaced = self._replaced[:count], self._replaced[count:]
        versions, floor = [row.version for row in part], max([row.by for row in part])
        execute = self._connection.execute
        try:
            execute("BEGIN IMMEDIATE")
            execute("UPDATE state SET version = max(version, ?), floor = max(floor, ?)", (max(versions), floor))
            execute("DELETE FROM journal WHERE version IN (SELECT value FROM json_each(?))", (str(versions),))
            execute("COMMIT")
        except sqlite3.Error:
            self._replaced = part + self._replaced
            with suppress(sqlite3.Error):
                execute("ROLLBACK")
            return False
        self._log_bytes += 4096
        return True

    def _checkpoint(self) -> None:
        """Copy the pages of SQLite's log into the file, and begin the log anew."""
        self._log_bytes = 0
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


def _statement_sizes(largest: int) -> tuple[int, ...]:
    """1 to 8, and then four numbers from each power of two to the next one."""
    sizes = [*range(1, 9)]
    while sizes[-1] < largest:
        sizes += [sizes[-1] * quarter // 4 for quarter in (5, 6, 7, 8)]
    return (*(size for size in sizes if size < largest), largest)


@cache
def _insert_statement(rows: int) -> str:
    return "REPLACE INTO journal VALUES " + ",".join(["(?,?,?,?,?)"] * rows)  # noqa: S608
