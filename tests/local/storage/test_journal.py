# SPDX-License-Identifier: Apache-2.0
"""The journal: a later store has the same objects, versions and owners, and continues what the first one began."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_writes import State, state_of, steps, writes
from store_objects import JOB, SPACE, Clock, body, key, names, owner, pod

from trainwright.errors import GoneError, InvalidError, UnavailableError
from trainwright.local.addresses import Addresses
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage import journal, journal_file
from trainwright.local.storage.journal_file import JournalFile
from trainwright.local.storage.store import Store
from trainwright.node.network.pools import PortPool, loopback
from trainwright.runtime.ports import ADDRESSES, PODS, SECRETS, Propagation, WatchEventType


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "state.db"


def opened(path: Path) -> Store:
    return Store.open(Clock(), path)


def reopened(items: Store) -> Store:
    """Close a store, and open its file again."""
    assert items.journal is not None
    items.close()
    return opened(items.journal.path)


def rows(path: Path) -> State:
    """What the file has."""
    file = JournalFile(path)
    content = file.load()
    file.release()
    return content.version, frozenset((row.resource, row.name, row.version) for row in content.rows)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), parts=st.lists(st.integers(1, 25), min_size=1, max_size=4))
def test_a_later_store_is_the_same_store(seed: int, parts: list[int], tmp_path: Path) -> None:
    path = tmp_path / f"{seed}-{'-'.join(map(str, parts))}.db"
    path.unlink(missing_ok=True)
    items, other, source = opened(path), Store(Clock()), writes(seed)
    for part in parts:
        for _ in range(part):
            write = next(source)
            for store in (items, other):
                for _ in steps(store, write):
                    pass
        before = [items.list(resource)[0] for resource in (JOB, PODS, SECRETS)]
        items = reopened(items)
        assert [items.list(resource)[0] for resource in (JOB, PODS, SECRETS)] == before
        # A store that was never closed, and has made the same writes, has the same names and versions.
        assert state_of(items) == state_of(other)
    items.close()


def test_changes_of_specs_and_statuses_are_stored_with_more_objects_than_remembered_specs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_MAX_SPECS", 3)
    items = opened(path)
    for name in "abcde":
        items.create(PODS, pod(name))
    for number in range(12):
        for name in "abcde":
            items.patch(PODS, key(name), {"status": {"message": f"{name} {number}"}}, status=True)
        items.patch(PODS, key("abcde"[number % 5]), {"spec": {"hostname": f"h{number}"}})
    before = items.list(PODS.whole())[0]
    items = reopened(items)
    assert items.list(PODS.whole())[0] == before
    items.close()


def test_no_version_is_used_twice(path: Path) -> None:
    items = opened(path)
    items.create(SECRETS, body("a"))
    items.delete(SECRETS, key("a"))
    last = items.last_version
    items = reopened(items)
    assert items.last_version == last
    assert int(items.create(SECRETS, body("b"))["metadata"]["resourceVersion"]) == last + 1
    items.close()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history of two replaced rows, so that others are deleted."""
    monkeypatch.setattr(journal_file, "MAX_HISTORY", 2)


@pytest.mark.usefixtures("few")
def test_replaced_rows_are_deleted_except_the_last_ones(path: Path) -> None:
    items = opened(path)
    for name in "abc":
        items.create(SECRETS, body(name))
        for number in range(40):
            items.patch(SECRETS, key(name), {"data": {"a": str(number)}})
    items.delete(SECRETS, key("c"))
    before = state_of(items)
    items.close()
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, body IS NULL FROM journal ORDER BY version").fetchall()
        assert rows == [("a", 0), ("b", 0), ("c", 0), ("c", 1)]
    items = opened(path)
    assert state_of(items) == before
    assert [one["data"] for one in items.list(SECRETS)[0]] == [{"a": "39"}, {"a": "39"}]
    items.close()


def test_replaced_rows_that_a_crash_has_left_are_ignored_and_deleted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "MAX_HISTORY", 0)
    items = opened(path)
    items.create(SECRETS, body("a"))
    items.create(SECRETS, body("b"))
    before = state_of(items)
    items.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        old = "INSERT INTO journal SELECT version - 10, resource, namespace, name, 'an old body' FROM journal"
        connection.execute("UPDATE journal SET version = version + 100, body = replace(body, '\"2\"', '\"102\"')")
        connection.execute("UPDATE journal SET body = replace(body, '\"3\"', '\"103\"')")
        connection.execute(old)
        connection.execute(
            "INSERT INTO journal SELECT version + 20, resource, namespace, 'c', body FROM journal LIMIT 1"
        )
        connection.execute(
            "INSERT INTO journal SELECT version + 90, resource, namespace, 'c', NULL FROM journal LIMIT 1"
        )
    items = opened(path)
    assert names(items) == ["a", "b"]
    assert (items.last_version, before[0]) == (182, 3)
    items.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version, name FROM journal").fetchall() == [(102, "a"), (103, "b")]


def _history(items: Store, since: str) -> list[tuple[str, str, str, str]]:
    """What a watch sees: type, name, version, and the value of each object."""
    changes = items.watch(SECRETS, since=since).take()
    return [
        (one.what.value, one.item["metadata"]["name"], one.version, (one.item.get("data") or {}).get("a", ""))
        for one in changes
    ]


def test_a_watch_continues_with_a_later_store(path: Path) -> None:
    items = opened(path)
    versions = [items.version]
    items.create(SECRETS, body("a"))
    for value in ("MQ==", "Mg=="):
        versions.append(items.version)
        items.patch(SECRETS, key("a"), {"data": {"a": value}})
    items.create(SECRETS, body("b"))
    items.delete(SECRETS, key("a"))
    items.create(SECRETS, body("a"))
    versions.append(items.version)
    assert items.journal is not None
    items.journal.flush()
    seen = [_history(items, since) for since in versions]
    assert [what for what, *_ in seen[0]] == ["ADDED", "MODIFIED", "MODIFIED", "ADDED", "DELETED", "ADDED"]
    items = reopened(items)
    assert [_history(items, since) for since in versions] == seen
    items.close()


@pytest.mark.usefixtures("few")
def test_a_watch_before_the_kept_history_must_list_again(path: Path) -> None:
    items = opened(path)
    versions = []
    for number in range(6):
        versions.append(items.version)
        items.create(SECRETS, body(f"s{number}")) if number < 2 else items.patch(
            SECRETS, key("s0"), {"data": {"a": "MQ==" if number % 2 else "Mg=="}}
        )
    items = reopened(items)
    for version in versions[:4]:
        with pytest.raises(GoneError, match="list again"):
            items.watch(SECRETS, since=version)
    assert [what for what, *_ in _history(items, versions[4])] == ["MODIFIED", "MODIFIED"]
    items.close()


def test_history_that_cannot_be_read_is_left_out(path: Path) -> None:
    items = opened(path)
    old = items.version
    items.create(SECRETS, body("a"))
    items.patch(SECRETS, key("a"), {"data": {"a": "MQ=="}})
    last = items.version
    items.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE journal SET body = 'x' WHERE version = (SELECT min(version) FROM journal)")
    items = opened(path)
    with pytest.raises(GoneError, match="list again"):
        items.watch(SECRETS, since=old)
    watch = items.watch(SECRETS, since=last)
    items.create(SECRETS, body("b"))
    assert items.journal is not None
    items.journal.flush()
    assert [change.item["metadata"]["name"] for change in watch.take()] == ["b"]
    items.close()


@pytest.mark.parametrize("propagation", [*Propagation])
def test_owners_are_known_again(path: Path, propagation: Propagation) -> None:
    items = opened(path)
    made = items.create(JOB, body("job", JOB))
    for number in range(5):
        items.create(SECRETS, body(f"s-{number}", ownerReferences=[owner(made, blocks=True)]))
    items = reopened(items)
    assert items.delete(JOB, key("job"), propagation=propagation) is None
    assert len(names(items)) == (5 if propagation is Propagation.ORPHAN else 0)
    items = reopened(items)
    assert len(names(items)) == (5 if propagation is Propagation.ORPHAN else 0)
    items.close()


def test_garbage_collection_that_was_interrupted_continues(path: Path) -> None:
    """The owner is gone, but its dependents are there: as if the first engine had stopped in the middle."""
    items = opened(path)
    made = items.create(JOB, body("job", JOB))
    other = items.create(JOB, body("other", JOB))
    for number in range(3):
        items.create(SECRETS, body(f"s-{number}", ownerReferences=[owner(made)]))
    items.create(PODS, pod("pod", ownerReferences=[owner(other, blocks=True)], finalizers=["example.com/held"]))
    assert items.delete(JOB, key("other"), propagation=Propagation.FOREGROUND) is not None
    items.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM journal WHERE name = 'job'")
        connection.execute("DELETE FROM journal WHERE name = 'pod'")
    items = opened(path)
    assert (names(items), names(items, JOB), names(items, PODS)) == ([], [], [])
    items = reopened(items)
    assert (names(items), names(items, JOB)) == ([], [])
    items.close()


def test_a_write_and_its_garbage_are_one_transaction(path: Path) -> None:
    items = opened(path)
    assert items.journal is not None
    made = items.create(JOB, body("job", JOB))
    for number in range(2000):
        items.create(SECRETS, body(f"s-{number}", ownerReferences=[owner(made)]))
    items.journal.flush()
    before = items.journal.commits
    items.delete(JOB, key("job"))
    items.journal.flush()
    assert items.journal.commits == before + 1
    items.close()


def test_what_json_cannot_contain_is_refused_before_anything_changes(path: Path) -> None:
    items = opened(path)
    with pytest.raises(InvalidError, match="cannot be stored"):
        items.create(SECRETS, {**body("a"), "data": {"a": object()}})
    assert names(items) == []
    assert items.create(SECRETS, body("a"))["metadata"]["resourceVersion"] == items.version
    items.close()


async def test_a_pod_is_never_stored_without_its_address(path: Path) -> None:
    """A later engine must not give the address of a running pod to another pod."""
    items = opened(path)
    Addresses(items, loopback("127.77.0.0/16"), PortPool([range(20000, 20100)])).install()
    cluster = LocalCluster(items)
    journal = items.journal
    assert journal is not None
    for number in range(10):
        await cluster.create(PODS, pod(f"p-{number}"))
        assert len(items.list(ADDRESSES)[0]) == journal.commits == number + 1
        assert journal.durable == items.last_version
    items.close()
    _, found = rows(path)
    assert len([one for one in found if one[0] == ADDRESSES.id]) == 10


def test_each_commit_waits_for_the_disk(path: Path) -> None:
    items = opened(path)
    assert items.journal is not None
    items.journal.flush()
    connection = items.journal._writer._connection
    settings = ("synchronous", "journal_mode", "fullfsync", "locking_mode")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    items.close()
    assert found == [2, "wal", 1, "exclusive"]


async def test_no_answer_shows_a_write_that_is_not_durable(path: Path) -> None:
    """The group is held back, as if the disk were slow. Reads, errors, empty writes and watches wait for it."""
    items = opened(path)
    journal, cluster = items.journal, LocalCluster(items)
    assert journal is not None
    await cluster.create(SECRETS, body("old"))
    before = items.version
    journal.hold()
    items.create(SECRETS, body("new"))
    watch, whole = items.watch(SECRETS, since=before), items.watch(SECRETS)
    calls: list[Any] = [
        cluster.get(SECRETS, key("new")),
        cluster.list(SECRETS),
        cluster.create(SECRETS, body("new")),
        cluster.patch(SECRETS, key("new"), {}),
        cluster.create(SECRETS, body("third")),
    ]
    tasks = [asyncio.create_task(call) for call in calls]
    assert (await cluster.get(SECRETS, key("old")))["metadata"]["name"] == "old"
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in tasks)
    assert (watch.take(), whole.take()) == ((), ())
    journal.release()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["dict", "ListPage", "AlreadyExistsError", "dict", "dict"]
    assert [change.item["metadata"]["name"] for change in watch.take()] == ["new", "third"]
    assert [change.item["metadata"]["name"] for change in whole.take()] == ["new", "old"]
    assert [change.item["metadata"]["name"] for change in whole.take()] == ["third"]
    items.close()


async def test_a_removed_object_stays_visible_until_its_removal_is_durable(path: Path) -> None:
    items = opened(path)
    journal, cluster = items.journal, LocalCluster(items)
    assert journal is not None
    await cluster.create(SECRETS, body("a"))
    since = items.version
    journal.hold()
    items.delete(SECRETS, key("a"))
    missing = asyncio.create_task(cluster.get(SECRETS, key("a")))
    async with aclosing(cluster.watch(SECRETS, since=since)) as batches:
        change = asyncio.create_task(anext(batches))
        await asyncio.sleep(0.1)
        assert not missing.done()
        assert not change.done()
        journal.release()
        assert (await change)[0].what is WatchEventType.DELETED
    with pytest.raises(Exception, match="not found"):
        await missing
    items.close()


async def test_many_writers_share_commits(path: Path) -> None:
    items = opened(path)
    cluster = LocalCluster(items)
    made = await asyncio.gather(*[cluster.create(SECRETS, body(f"s-{number}")) for number in range(500)])
    assert items.journal is not None
    assert items.journal.commits < 250
    assert [one["metadata"]["name"] for one in made] == [f"s-{number}" for number in range(500)]
    items.close()
    assert len(rows(path)[1]) == 500


async def test_a_closed_store_confirms_nothing(path: Path) -> None:
    items = opened(path)
    items.close()
    items.close()
    with pytest.raises(UnavailableError, match="ending"):
        await LocalCluster(items).create(SECRETS, body("a"))


def test_close_commits_what_waits(path: Path) -> None:
    items = opened(path)
    for number in range(3000):
        items.create(SECRETS, body(f"s-{number}", labels={"x": "y" * 100}))
    items.close()
    assert len(rows(path)[1]) == 3000
    assert sorted(one.name for one in path.parent.iterdir()) == ["state.db", "state.db.lock"]


def test_the_state_is_private(path: Path) -> None:
    items = opened(path)
    items.create(SECRETS, body("a"))
    modes = {one.name: one.stat().st_mode & 0o777 for one in path.parent.iterdir()}
    items.close()
    assert set(modes.values()) == {0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_store_in_memory_does_not_import_sqlite() -> None:
    code = "import sys, trainwright.local.engine; print('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_namespace_is_part_of_the_key(path: Path) -> None:
    items = opened(path)
    items.create(SECRETS, body("a"))
    items.create(SECRETS, {"metadata": {"name": "a", "namespace": "other"}})
    items = reopened(items)
    found = items.list(SECRETS)[0]
    assert [one["metadata"]["namespace"] for one in found] == [SPACE, "other"]
    items.close()
