# SPDX-License-Identifier: Apache-2.0
"""The journal file: what is refused, and left as it is; the lock; and the migration of an older schema."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from journal_writes import state_of
from store_objects import JOB, Clock, body, key, names, owner

import trainwright
from trainwright.errors import EngineError
from trainwright.local.storage import journal_file
from trainwright.local.storage.journal_file import APPLICATION_ID, SCHEMA
from trainwright.local.storage.store import Store
from trainwright.runtime.ports import SECRETS

_CHILD = """
import os, sys
from pathlib import Path
from store_objects import Clock, body
from trainwright.local.storage.store import Store
from trainwright.runtime.ports import SECRETS
items = Store.open(Clock(), Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    items.create(SECRETS, {**body(f"s-{number}"), "data": {"a": "x" * 3000}})
items.journal.flush()
print("ready", flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def child(path: Path, count: int = 0) -> subprocess.Popen[str]:
    """Another process that has the file open; when its input ends, it kills itself."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", _CHILD, str(path), str(count)]
    process = subprocess.Popen(command, **pipes, text=True, env=environment)  # type: ignore[call-overload]
    assert process.stdout.readline() == "ready\n"
    return process  # type: ignore[no-any-return]


def filled(path: Path) -> None:
    """A file with forty objects, which another process has written and not closed: they are in the log."""
    with child(path, 40):
        pass
    assert path.with_name("state.db-wal").stat().st_size > 100_000


def closed(path: Path) -> None:
    """The same, but closed: all objects are in the file itself."""
    filled(path)
    Store.open(Clock(), path).close()
    assert not path.with_name("state.db-wal").exists()


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def changed(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def schema_1(path: Path) -> None:
    """A file as the first schema had it."""
    document = (
        '{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"default","uid":"u-1","generation":1,'
    )
    document += '"creationTimestamp":"2026-11-15T12:00:00Z","resourceVersion":"7"},"data":{"a":"MQ=="}}'
    sql(
        path,
        f"PRAGMA application_id = {APPLICATION_ID}",
        "CREATE TABLE journal (version INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL,"
        " name TEXT NOT NULL, body BLOB)",
        "CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)",
        "INSERT INTO state VALUES (1, 9)",
        f"INSERT INTO journal VALUES (7, 'secrets', 'default', 'a', CAST('{document}' AS BLOB))",  # noqa: S608
        "PRAGMA user_version = 1",
        "PRAGMA journal_mode = WAL",
    )


def files(path: Path) -> dict[str, bytes]:
    """The content of the file and everything beside it except the lock."""
    return {one.name: one.read_bytes() for one in path.parent.iterdir() if not one.name.endswith(".lock")}


def undecodable(path: Path) -> None:
    closed(path)
    sql(path, "UPDATE journal SET body = CAST('{\"metadata\":' AS BLOB) WHERE name = 's-7'")


def of_schema_1(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        schema_1(path)
        sql(path, *statements)

    return make


def made(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        closed(path)
        sql(path, *statements)

    return make


def garbled(place: int, data: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        closed(path)
        changed(path, place, data)

    return make


def cut(path: Path) -> None:
    closed(path)
    os.truncate(path, path.stat().st_size // 2)


def without_file(path: Path) -> None:
    filled(path)
    path.unlink()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "text": (
        lambda path: path.write_text("jobs: []\n" * 20),
        r"no state of Trainwright: it begins with b'jobs: .*SQLite",
    ),
    "empty": (lambda path: path.touch(), "no state of Trainwright: it is empty"),
    "short": (lambda path: path.write_bytes(b"SQLite format 3\0"), "no state of Trainwright"),
    "another program": (lambda path: sql(path, "CREATE TABLE t (a)"), "application_id is 0x0; expected 0x54577374"),
    "newer": (
        made(f"PRAGMA user_version = {SCHEMA + 1}", "UPDATE state SET engine = '9.1'"),
        rf"its schema is {SCHEMA + 1}, but Trainwright .* up to {SCHEMA}: Trainwright 9\.1 has written it; use that",
    ),
    "newer, other tables": (
        made(f"PRAGMA user_version = {SCHEMA + 7}", "DROP TABLE state"),
        "a newer Trainwright has written it",
    ),
    "damaged pages": (garbled(4096 * 6, bytes(range(256)) * 32), "is damaged: .*move it away"),
    "damaged header": (garbled(16, b"\xff\xff"), "is damaged"),
    "cut off": (cut, "is damaged"),
    "half an object": (undecodable, r"is damaged: version 9 of secrets default/s-7 cannot be read: .*truncated"),
    "no metadata": (made("UPDATE journal SET body = CAST('{}' AS BLOB)"), "is damaged: version 2 of .*'metadata'"),
    "wrong version": (
        made("UPDATE journal SET version = version + 100"),
        "at version 2; expected default/s-0 at version 102",
    ),
    "wrong name": (
        made("UPDATE journal SET name = 'b' WHERE name = 's-3'"),
        "it is default/s-3 .*expected default/b",
    ),
    "number as body": (made("UPDATE journal SET body = 5"), "is damaged"),
    "no state": (made("DELETE FROM state"), "is damaged"),
    "no table": (made("DROP TABLE journal"), "is damaged: no such table"),
    "not an object of its type": (
        made('UPDATE journal SET body = CAST(replace(body, \'"data":{\', \'"spec":4,"data":{\') AS BLOB)'),
        "is damaged: version .*spec",
    ),
    "older and damaged": (of_schema_1("UPDATE journal SET body = 'x'"), "is damaged: version 7"),
    "older and without its table": (of_schema_1("DROP TABLE state"), "is damaged"),
    "only a log": (without_file, "is missing, but its log"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_used_is_refused_and_left_as_it_is(case: str, path: Path) -> None:
    make, expected = REFUSED[case]
    make(path)
    before = files(path)
    for _ in range(2):
        with pytest.raises(EngineError, match=expected) as caught:
            Store.open(Clock(), path)
        assert str(caught.value).startswith(f"{path}: ")
        assert files(path) == before


@pytest.mark.parametrize(
    ("statement", "expected"),
    [(f"PRAGMA user_version = {SCHEMA + 1}", "its schema is"), ("UPDATE journal SET body = 'x'", "is damaged")],
)
def test_a_refused_file_keeps_its_log(statement: str, expected: str, path: Path, tmp_path: Path) -> None:
    """The reason for the refusal is only in the log. When SQLite closes a file, it copies the log into the file."""
    closed(path)
    copy = tmp_path / "copy" / "state.db"
    copy.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    before = files(copy)
    assert len(before["state.db-wal"]) > 0
    with pytest.raises(EngineError, match=expected):
        Store.open(Clock(), copy)
    assert files(copy) == before


def test_another_process_has_the_file_open(path: Path) -> None:
    with child(path, 3) as process:
        before = files(path)
        expected = rf"{re.escape(str(path))}: another engine \(process {process.pid}\) has it open; use that engine"
        with pytest.raises(EngineError, match=expected):
            Store.open(Clock(), path)
        assert files(path) == before
    items = Store.open(Clock(), path)
    assert names(items) == ["s-0", "s-1", "s-2"]
    with pytest.raises(EngineError, match="another engine"):
        Store.open(Clock(), path)
    items.close()
    Store.open(Clock(), path).close()


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match=r"file/state\.db: cannot be opened: File exists"):
        Store.open(Clock(), tmp_path / "file" / "state.db")


def test_a_file_that_was_left_half_made_is_made_again(path: Path) -> None:
    path.with_name("state.db.new").write_bytes(b"half")
    Store.open(Clock(), path).close()
    assert sorted(files(path)) == ["state.db"]


def test_an_older_schema_is_migrated(path: Path) -> None:
    schema_1(path)
    items = Store.open(Clock(), path)
    assert items.get(SECRETS, key("a"))["data"] == {"a": "MQ=="}
    assert items.last_version == 9
    made = items.create(JOB, body("job", JOB))
    items.create(SECRETS, body("b", ownerReferences=[owner(made)]))
    items.patch(SECRETS, key("a"), {"data": {"a": "Mg=="}})
    before = state_of(items)
    items.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
        assert connection.execute("SELECT engine FROM state").fetchone() == (trainwright.__version__,)
    items = Store.open(Clock(), path)
    assert state_of(items) == before
    items.close()


def test_every_schema_leads_to_the_newest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer schema that this test invents: all steps are made in order, and a new file has them all."""
    with monkeypatch.context() as patched:
        step = ("CREATE TABLE invented (a)", "INSERT INTO invented SELECT version FROM state")
        patched.setattr(journal_file, "_STEPS", (*journal_file._STEPS, step))
        patched.setattr(journal_file, "SCHEMA", SCHEMA + 1)
        schema_1(path)
        Store.open(Clock(), path).close()
        Store.open(Clock(), path.with_name("new.db")).close()
        for one, version in ((path, 9), (path.with_name("new.db"), 1)):
            with closing(sqlite3.connect(one)) as connection:
                assert connection.execute("SELECT a FROM invented").fetchall() == [(version,)]
    with pytest.raises(EngineError, match=f"its schema is {SCHEMA + 1}"):
        Store.open(Clock(), path)


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema_1(path)
    before = files(path)
    monkeypatch.setattr(journal_file, "_STEPS", (*journal_file._STEPS, ("CREATE TABLE x (a)", "nonsense")))
    monkeypatch.setattr(journal_file, "SCHEMA", SCHEMA + 1)
    with pytest.raises(EngineError, match="is damaged"):
        Store.open(Clock(), path)
    assert files(path) == before
