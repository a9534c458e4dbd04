# SPDX-License-Identifier: Apache-2.0
"""A full disk: nothing is confirmed and nothing is lost. With space again, everything is confirmed in order."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import pytest
from store_objects import Clock, body, key

from patience import PATIENCE
from trainwright.errors import EngineError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.journal import StoreJournal
from trainwright.local.storage.journal_writer import Trouble
from trainwright.local.storage.store import Store
from trainwright.runtime.ports import CONFIG_MAPS, SECRETS

LARGE = "x" * 20_000


class Disk(Protocol):
    """A disk that can be full."""

    path: Path

    def fill(self, journal: StoreJournal) -> None: ...

    def free(self, journal: StoreJournal) -> None: ...


class SmallFileSystem:
    """A real file system of 2 MB; another file fills it."""

    def __init__(self, folder: Path) -> None:
        self.path, self._filler = folder / "state.db", folder / "filler"

    def fill(self, journal: StoreJournal) -> None:  # noqa: ARG002
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    continue

    def free(self, journal: StoreJournal) -> None:  # noqa: ARG002
        self._filler.unlink()


class LimitedPages:
    """A limit of SQLite: the file cannot grow. This needs no rights. The writer's connection must be idle."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.db"

    def fill(self, journal: StoreJournal) -> None:
        journal.flush()
        journal._writer._connection.execute("PRAGMA max_page_count = 1").fetchall()

    def free(self, journal: StoreJournal) -> None:
        journal._writer._connection.execute("PRAGMA max_page_count = 1000000").fetchall()


@pytest.fixture(params=["file system", "pages"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "pages":
        yield LimitedPages(tmp_path)
        return
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("only root can mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this container cannot mount a file system")
    try:
        yield SmallFileSystem(folder)
    finally:
        subprocess.run([umount, "-l", folder], check=True)


def opened(disk: Disk, **options: Any) -> tuple[Store, StoreJournal, LocalCluster]:
    items = Store.open(Clock(), disk.path, **options)
    assert items.journal is not None
    return items, items.journal, LocalCluster(items)


async def until(condition: Callable[[], object]) -> None:
    end = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < end
        await asyncio.sleep(0.01)


def large(name: str) -> dict[str, Any]:
    return {**body(name), "data": {"a": LARGE}}


async def test_everything_is_confirmed_in_order_when_there_is_space_again(disk: Disk) -> None:
    told: list[str] = []
    items, journal, cluster = opened(disk, notify=told.append)
    await cluster.create(SECRETS, body("before"))
    disk.fill(journal)
    watch, order = items.watch(SECRETS, since=items.version), []

    async def create(number: int) -> None:
        made = await cluster.create(SECRETS, large(f"s-{number}"))
        order.append(int(made["metadata"]["resourceVersion"]))

    tasks = [asyncio.create_task(create(number)) for number in range(20)]
    await until(lambda: journal.trouble)
    tasks += [asyncio.create_task(create(number)) for number in range(20, 40)]
    await asyncio.sleep(0.3)
    assert [journal.trouble] == [Trouble(f"{disk.path}: the disk is full", Clock().time)]
    assert not any(task.done() for task in tasks)
    assert watch.take() == ()
    # What was stored before can be read.
    assert (await cluster.get(SECRETS, key("before")))["metadata"]["name"] == "before"
    disk.free(journal)
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    assert len(order) == 40
    assert order == sorted(order)
    assert len(watch.take()) == 40
    assert journal.trouble is None
    assert [text.partition(": ")[2].partition(":")[0] for text in told] == [
        "the disk is full",
        "the state is stored again",
    ]
    items.close()
    items = Store.open(Clock(), disk.path)
    assert len(items.list(SECRETS)[0]) == 41
    items.close()


async def test_a_client_that_waits_too_long_gets_an_error(disk: Disk) -> None:
    items, journal, cluster = opened(disk, wait_seconds=0.3)
    await cluster.create(SECRETS, body("before"))
    disk.fill(journal)
    task = asyncio.create_task(cluster.create(SECRETS, large("a")))
    await until(lambda: journal.trouble)
    reads = [cluster.list(SECRETS), cluster.get(SECRETS, key("a"))]
    for waiting in (task, *reads):
        with pytest.raises(UnavailableError, match=r"the disk is full \(since 12:00:00 UTC\); pods that run go on"):
            await waiting
    # Later writes are refused at once, and change nothing: otherwise clients that repeat them would fill the memory.
    last = items.last_version
    with pytest.raises(UnavailableError, match="the disk is full"):
        await cluster.create(CONFIG_MAPS, body("b", CONFIG_MAPS))
    assert items.last_version == last
    assert (await cluster.get(SECRETS, key("before")))["metadata"]["name"] == "before"
    disk.free(journal)
    await until(lambda: journal.trouble is None and journal.durable == last)
    assert (await cluster.get(SECRETS, key("a")))["data"] == {"a": LARGE}
    await cluster.create(CONFIG_MAPS, body("b", CONFIG_MAPS))
    items.close()


async def test_a_store_that_is_closed_on_a_full_disk_says_so(disk: Disk) -> None:
    """Nothing later is stored without what came before."""
    items, journal, cluster = opened(disk)
    await cluster.create(SECRETS, body("before"))
    disk.fill(journal)
    for number in range(50):
        items.create(SECRETS, large(f"s-{number}"))
    await until(lambda: journal.trouble)
    items.create(CONFIG_MAPS, body("late", CONFIG_MAPS))
    with pytest.raises(EngineError, match="the disk is full: the last changes are not stored; no client"):
        await asyncio.to_thread(journal.close, 0.2)
    if isinstance(disk, SmallFileSystem):
        disk.free(journal)
    items = Store.open(Clock(), disk.path)
    assert [one["metadata"]["name"] for one in items.list(SECRETS)[0]] == ["before"]
    assert items.list(CONFIG_MAPS)[0] == ()
    items.close()
