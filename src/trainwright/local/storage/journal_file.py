# SPDX-License-Identifier: Apache-2.0
"""The SQLite file that keeps the objects of a store: its identity, its lock, its schema, and how it is opened.

The table `journal` has one row per write. The state is the last row of each object; a row without a body says that the
object was removed. A write only appends a row. Rows that a later row has replaced are deleted later, many at once; the
last ones are kept as the history of writes, so that a watch can continue after a restart. A file that this engine
cannot use is refused before anything is written, so that it stays as it is.
"""

import fcntl
import os
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

import trainwright
from trainwright.errors import EngineError

#: "TWst" as a number: the file belongs to a store of Trainwright.
APPLICATION_ID = 0x54577374
_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100

#: The statements that create schema 1, followed by the statements from each schema to the next one. A new file is made
#: with the same statements, so that every step is used.
#:
#: `state.version` is the highest version of the deleted rows, so that no version is used twice. `state.engine` is the
#: version of Trainwright that has opened the file last. `state.floor`: of each write after this version, the row is
#: there, and also the row that it has replaced.
_STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE journal (version INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL,"
        " name TEXT NOT NULL, body BLOB)",
        "CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)",
        "INSERT INTO state (id, version) VALUES (1, 1)",
    ),
    ("ALTER TABLE state ADD COLUMN engine TEXT NOT NULL DEFAULT ''",),
    (
        "ALTER TABLE state ADD COLUMN floor INTEGER NOT NULL DEFAULT 0",
        "UPDATE state SET floor = max(version, (SELECT coalesce(max(version), 0) FROM journal))",
    ),
)
SCHEMA = len(_STEPS)
#: So many of the last writes are kept, so that watches can continue after a restart.
MAX_HISTORY = 2048

#: The settings of the connection that writes. The engine is the only user of the file, so the connection keeps its
#: lock and needs no shared memory (`-shm`). The writer thread makes the checkpoints.
_SETTINGS = (
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA secure_delete = OFF",
    "PRAGMA cache_size = -4096",
    "PRAGMA temp_store = MEMORY",
)


class JournalRow(Struct, frozen=True, gc=False):
    """One write: the object as JSON after the write; None if the write has removed the object.

    `replaced` is no column. It is the version of the row that this row replaces; 0: the object is new, or is loaded.
    Each write makes one row, and a struct takes a quarter of the time of a named tuple.
    """

    version: int
    resource: str
    namespace: str
    name: str
    body: bytes | None
    replaced: int = 0


class ReplacedRow(NamedTuple):
    """The version of a row that is not the last one of its object, and of the row that has replaced it.

    The row of a removal is replaced by itself, because nothing of the object remains.
    """

    version: int
    by: int


class JournalContent(NamedTuple):
    """The last row of each object that exists, all other rows, and the highest version ever used.

    `recent` are the writes after the version `floor`, oldest first, each with the row that it has replaced.
    """

    rows: list[JournalRow]
    replaced: list[ReplacedRow]
    recent: list[tuple[JournalRow, JournalRow | None]]
    floor: int
    version: int


class JournalFile:
    """The file at `path`, locked for this process until `release`. The constructor creates a missing file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(path)
        except OSError as error:
            raise EngineError(f"{path}: cannot be opened: {error.strerror or error}") from None
        try:
            if not path.exists():
                _create(path)
        except BaseException as error:
            self.release()
            if isinstance(error, OSError | sqlite3.Error):
                raise EngineError(f"{path}: cannot be created: {error}") from None
            raise

    def release(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def load(self) -> JournalContent:
        """What the file contains. Writes nothing. Raises EngineError if the file is refused."""
        self._check_header()
        try:
            with closing(_connect_read_only(self.path)) as connection:
                return self._checked_content(connection)
        except (sqlite3.Error, TypeError) as error:  # TypeError: a column has a value of another type
            raise self.corrupt(str(error)) from None

    def connect(self) -> sqlite3.Connection:
        """The connection for the writer, after `load`. Migrates an older schema."""
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=256)
        try:
            for setting in _SETTINGS:
                connection.execute(setting).fetchall()
            self._prepare(connection)
        except sqlite3.Error as error:
            connection.close()
            raise EngineError(f"{self.path}: cannot be opened for writing: {error}") from None
        return connection

    def corrupt(self, found: str) -> EngineError:
        """The error for a damaged file."""
        advice = "restore it from a backup, or move it away with its `-wal` file to begin with no jobs"
        return EngineError(f"{self.path}: the file is damaged: {found}; it is left as it is: {advice}")

    def _check_header(self) -> None:
        """Refuse a file of another program, or of a newer engine, without the help of SQLite."""
        try:
            with self.path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
        except OSError as error:
            raise EngineError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
            found = "it is empty" if not header else f"it begins with {header[:16]!r}"
            raise self._foreign(f"{found}; expected an SQLite file")
        application = int.from_bytes(header[68:72], "big")
        if application != APPLICATION_ID:
            raise self._foreign(f"its application_id is {application:#x}; expected {APPLICATION_ID:#x}")

    def _foreign(self, found: str) -> EngineError:
        advice = "move it away, or choose another state folder"
        return EngineError(f"{self.path}: this is no state of Trainwright: {found}; it is left as it is: {advice}")

    def _checked_content(self, connection: sqlite3.Connection) -> JournalContent:
        schema = _schema_of(connection)
        if schema > SCHEMA:
            raise self._newer(connection, schema)
        problems = [text for (text,) in connection.execute("PRAGMA quick_check(3)")]
        if problems != ["ok"]:
            raise self.corrupt("; ".join(problems))
        if schema == SCHEMA:
            return _content(connection)
        # Try the migration on a copy in memory first: if it fails, the file stays as it is.
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            connection.backup(copy)
            migrate(copy)
            return _content(copy)

    def _newer(self, connection: sqlite3.Connection, schema: int) -> EngineError:
        engine = ""
        with suppress(sqlite3.Error):
            engine = connection.execute("SELECT engine FROM state").fetchone()[0]
        writer = f"Trainwright {engine}" if engine else "a newer Trainwright"
        return EngineError(
            f"{self.path}: its schema is {schema}, but Trainwright {trainwright.__version__} knows schemas up to"
            f" {SCHEMA}: {writer} has written it; use that version, or move the file away with its `-wal` file"
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Migrate, and store the version of this engine if another version has opened the file last."""
        if _schema_of(connection) < SCHEMA:
            migrate(connection)
        version = trainwright.__version__
        if connection.execute("SELECT engine FROM state").fetchone() != (version,):
            connection.execute("UPDATE state SET engine = ?", (version,))
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        # Take SQLite's own lock too, which keeps other programs from changing the file.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema to the newest one, in one transaction. An empty file has schema 0."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in _STEPS[_schema_of(connection) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _schema_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _content(connection: sqlite3.Connection) -> JournalContent:
    version, floor = connection.execute("SELECT version, floor FROM state").fetchone()
    last: dict[tuple[str, str, str], JournalRow] = {}
    replaced: list[ReplacedRow] = []
    recent: deque[tuple[JournalRow, JournalRow | None]] = deque()
    query = "SELECT version, resource, namespace, name, body FROM journal ORDER BY version"
    for columns in connection.execute(query):
        row = JournalRow(*columns)
        key, version = columns[1:4], max(version, row.version)
        before = last.pop(key, None)
        if before is not None:
            replaced.append(ReplacedRow(before.version, row.version))
        if row.body is None:
            replaced.append(ReplacedRow(row.version, row.version))
        else:
            last[key] = row
        if row.version > floor:
            recent.append((row, before))
        if len(recent) > MAX_HISTORY:
            floor = recent.popleft()[0].version
    return JournalContent([*last.values()], replaced, [*recent], floor, version)


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes neither the file nor its write-ahead log."""
    log, index = path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
    has_log = log.exists() and log.stat().st_size > 0
    uri = f"{path.absolute().as_uri()}?mode=ro" + ("" if has_log else "&immutable=1")
    index_exists = index.exists()
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except BaseException:
        connection.close()
        raise
    finally:
        if not index_exists:  # SQLite makes the index of the log as a file; the open connection keeps it until its end
            index.unlink(missing_ok=True)
    return connection


def _locked(path: Path) -> int:
    """A file descriptor of the lock file. The kernel releases the lock when this process ends."""
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        advice = "use that engine, or end it with `trainwright down`"
        raise EngineError(f"{path}: another engine (process {holder}) has it open; {advice}") from None
    except BaseException:
        os.close(lock)
        raise
    with suppress(OSError):  # The process ID is only for messages; a full disk must not prevent a start.
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _create(path: Path) -> None:
    """Make an empty file with the schema. It gets its name when it is complete, so a crash leaves no half-made file."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > 0:
        raise EngineError(
            f"{path}: the file is missing, but its log {log.name} exists; put it back, or move the log away"
        )
    new = path.with_name(f"{path.name}.new")
    for left in _with_companions(new):
        left.unlink(missing_ok=True)
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        migrate(connection)
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    new.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _with_companions(path: Path) -> tuple[Path, ...]:
    return path, *(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))


def disk_bytes(path: Path) -> int:
    """The size of the file and its write-ahead log."""
    return sum(_sizes(_with_companions(path)))


def _sizes(paths: tuple[Path, ...]) -> Iterator[int]:
    for path in paths:
        with suppress(OSError):
            yield path.stat().st_size
