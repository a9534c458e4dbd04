# SPDX-License-Identifier: Apache-2.0
"""Measures ways to commit 64 objects of 2 KB, alone and beside a busy thread. See docs/decisions/0011.

Run: python bench/journal_alternatives.py [--quick] [--folder FOLDER]

The busy thread stands for the event loop of an engine: it holds the GIL, and a writer gets the GIL back only after the
switch interval of Python (5 ms, and the 0.2 ms that the journal sets).
"""

import os
import platform
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

from trainwright.local.storage.journal_file import _SETTINGS

QUICK = "--quick" in sys.argv
COMMITS = 10 if QUICK else 300
BATCH, OBJECTS = 64, 2000
BODY = os.urandom(1000).hex().encode()
Commit = Callable[[int], None]
#: The numbers of all commits.
NUMBERS = count()


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file with the settings of the journal, an empty log and a table of 2,000 objects."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        for setting in _SETTINGS:
            connection.execute(setting).fetchall()
        connection.execute("CREATE TABLE log (version INTEGER PRIMARY KEY, name TEXT, body BLOB)")
        connection.execute("CREATE TABLE objects (id INTEGER PRIMARY KEY, name TEXT, version INTEGER, body BLOB)")
        rows = [(number, f"job-worker-{number}", 0, BODY) for number in range(OBJECTS)]
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO objects VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        yield connection


def append_many(connection: sqlite3.Connection) -> Commit:
    """Append one row per object, with one statement each."""

    def commit(number: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        rows = [(number * BATCH + place, f"job-worker-{place}", BODY) for place in range(BATCH)]
        connection.executemany("INSERT INTO log VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")

    return commit


def append_once(connection: sqlite3.Connection) -> Commit:
    """Append one row per object, all with one statement: what the journal does."""
    statement = "INSERT INTO log VALUES " + ",".join(["(?, ?, ?)"] * BATCH)  # noqa: S608

    def commit(number: int) -> None:
        rows = [(number * BATCH + place, f"job-worker-{place}", BODY) for place in range(BATCH)]
        connection.execute(statement, [value for row in rows for value in row])

    return commit


def append_blob(connection: sqlite3.Connection) -> Commit:
    """Append one row per commit."""

    def commit(number: int) -> None:
        connection.execute("INSERT INTO log VALUES (?, '', ?)", (number, b"\n".join([BODY] * BATCH)))

    return commit


def replace_once(connection: sqlite3.Connection) -> Commit:
    """Replace the rows of the objects, all with one statement."""
    statement = "REPLACE INTO objects VALUES " + ",".join(["(?, ?, ?, ?)"] * BATCH)  # noqa: S608
    dice = random.Random(1)  # noqa: S311 - the same objects in every run

    def commit(number: int) -> None:
        places = dice.sample(range(OBJECTS), BATCH)
        connection.execute(
            statement, [value for place in places for value in (place, f"job-worker-{place}", number, BODY)]
        )

    return commit


def replace_many(connection: sqlite3.Connection) -> Commit:
    """Replace the rows of the objects, with one statement each."""
    dice = random.Random(1)  # noqa: S311 - the same objects in every run

    def commit(number: int) -> None:
        rows = [(place, f"job-worker-{place}", number, BODY) for place in dice.sample(range(OBJECTS), BATCH)]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("REPLACE INTO objects VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")

    return commit


def plain_file(path: Path) -> Iterator[Commit]:
    """Append to a plain file, without SQLite."""
    with path.open("wb", buffering=0) as file:

        def commit(_number: int) -> None:
            file.write(b"\n".join([BODY] * BATCH))
            os.fdatasync(file.fileno())

        yield commit


@contextmanager
def busy_thread(interval: float | None) -> Iterator[None]:
    """Run a thread that always needs the GIL, with this switch interval; None: no thread."""
    if interval is None:
        yield
        return
    stop, before = Event(), sys.getswitchinterval()
    thread = Thread(target=lambda: [sum(range(50)) for _ in iter(stop.is_set, True)])
    sys.setswitchinterval(interval)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


def median_ms(commit: Commit, interval: float | None) -> float:
    """Return the median time of a commit in milliseconds."""
    times = []
    with busy_thread(interval):
        for _ in range(COMMITS):
            began = perf_counter()
            commit(next(NUMBERS))
            times.append(perf_counter() - began)
    return statistics.median(times) * 1e3


def measure(folder: Path) -> None:
    """Print one line for each way."""
    print(f"{BATCH} objects of {len(BODY):,} B; medians of {COMMITS} commits: alone; beside a busy thread")
    for make in (append_many, append_once, append_blob, replace_many, replace_once):
        path = folder / f"{make.__name__}.db"
        with opened(path) as connection:
            commit = make(connection)
            alone = median_ms(commit, None)
            size = path.with_name(f"{path.name}-wal").stat().st_size / COMMITS / BATCH
            row(make.__name__, alone, median_ms(commit, 0.005), median_ms(commit, 0.0002), size)
    for commit in plain_file(folder / "plain"):
        row("plain_file", median_ms(commit, None), median_ms(commit, 0.005), median_ms(commit, 0.0002), len(BODY))


def row(what: str, alone: float, slow: float, fast: float, size: float) -> None:
    """Print one line."""
    times = f"{alone:7.2f} ms; switch interval 5 ms: {slow:7.2f} ms, 0.2 ms: {fast:7.2f} ms"
    print(f"{what:13} {times}; {size:6,.0f} B per object in the log", flush=True)


if __name__ == "__main__":
    where = sys.argv[sys.argv.index("--folder") + 1] if "--folder" in sys.argv else None
    print(f"{datetime.now(UTC):%Y-%m-%d}: SQLite {sqlite3.sqlite_version}, Python {platform.python_version()}")  # noqa: TID251
    scratch = Path(tempfile.mkdtemp(prefix="journal-", dir=where))
    try:
        measure(scratch)
    finally:
        shutil.rmtree(scratch)
