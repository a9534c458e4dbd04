# SPDX-License-Identifier: Apache-2.0
"""Measures the journal of the store: durable writes/s compared with bare SQLite, and 10,000 kept jobs. See README.md.

Run: python bench/journal.py [--quick] [--folder FOLDER]

The floors append the same bytes to a table of another file with the same settings, and do nothing else. The first is a
bare group commit: as many writers hand their bytes over to a thread and wait for its commit. The second has no writers:
one thread appends batches of the same sizes as fast as it can.

FOLDER is on the disk to measure; the default is the folder for temporary files.
"""

import asyncio
import gc
import json
import os
import pickle
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import msgspec
from msgspec.structs import astuple

import trainwright
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.local.sockets.server import serve
from trainwright.local.storage import journal_file, journal_writer
from trainwright.local.storage.journal_file import JournalRow, disk_bytes
from trainwright.local.storage.journal_writer import JournalWriter
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.ports import JOBS, PODS, SERVICES, WallClock

QUICK = "--quick" in sys.argv
WRITERS = (8, 32) if QUICK else (4, 8, 16, 32, 64, 128)
WRITES = 512 if QUICK else 51_200
ROUNDS = 1 if QUICK else 7
KEPT_JOBS = (100, 1000) if QUICK else (1000, 10000)
JOB = JOBS["genericjob"]
POD = PODS.whole()
TIME = "2026-11-15T12:00:00Z"
Body = dict[str, Any]
Batches = list[list[JournalRow]]
BareBatches = list[list[tuple[Any, ...]]]


# -- durable writes ---------------------------------------------------------------------------------------------------


def pod(index: int) -> Body:
    """Return a pod of about 2 KB of JSON."""
    env = [{"name": f"VARIABLE_{i}", "value": f"value {i} of pod {index}"} for i in range(22)]
    container = {"name": "main", "image": "python:3.12-slim", "command": ["python", "/train.py"], "env": env}
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "8"}}
    labels = {f"example.com/label-{i}": f"value-{i}" for i in range(8)}
    metadata = {"name": f"job-worker-{index}", "namespace": "default", "labels": labels}
    return {"metadata": metadata, "spec": {"containers": [{**container, "resources": resources}]}}


def status(number: int) -> Body:
    """Return the status that a node agent writes."""
    state = {"running": {"startedAt": TIME}}
    container = {"name": "main", "ready": True, "restartCount": number, "started": True, "state": state}
    return {"status": {"phase": "Running", "podIP": "10.1.0.1", "containerStatuses": [container]}}


Write = Callable[[LocalCluster, int, int], Awaitable[None]]


async def patches(cluster: LocalCluster, writer: int, count: int) -> None:
    """Change one pod again and again."""
    key = Key("default", f"job-worker-{writer}")
    for number in range(count):
        await cluster.patch(POD, key, status(number + 1), status=True)


async def creates(cluster: LocalCluster, writer: int, count: int) -> None:
    """Create the replicas of one role: as in a real job, their pods share everything except the name."""
    body = pod(writer)
    for number in range(count):
        name = f"{body['metadata']['name']}-{number}"
        await cluster.create(POD, {**body, "metadata": {**body["metadata"], "name": name}})


WORK: dict[str, Write] = {"patch": patches, "create": creates}


async def measured(path: Path, write: Write, writers: int) -> tuple[float, float, Batches]:
    """Return the seconds and the CPU seconds of all writers, and what was committed."""
    store = Store.open(WallClock(), path)
    cluster = LocalCluster(store)
    await asyncio.gather(*[cluster.create(POD, pod(index)) for index in range(writers)])
    batches = _recorded()
    gc.collect()
    began, cpu = perf_counter(), process_time()
    await asyncio.gather(*[write(cluster, writer, WRITES // writers) for writer in range(writers)])
    seconds, used = perf_counter() - began, process_time() - cpu
    store.close()
    return seconds, used, batches


_write = JournalWriter._write


def _recorded() -> Batches:
    """Return a list that gets the rows of each later commit."""
    batches: Batches = []

    def write(writer: JournalWriter, rows: list[JournalRow]) -> None:
        batches.append(rows)
        _write(writer, rows)

    JournalWriter._write = write  # type: ignore[method-assign, assignment]
    return batches


def bare(path: Path, batches: BareBatches) -> float:
    """Return the seconds of bare SQLite for the same batches, with checkpoints after as many bytes."""
    log = BareLog(path)
    gc.collect()
    began = perf_counter()
    for batch in batches:
        log.commit(batch)
        log.checkpoint_if_due()
    seconds = perf_counter() - began
    log.close()
    return seconds


class BareLog:
    """A table to which batches of rows are appended, with the settings and the checkpoints of the journal.

    Without checkpoints, the write-ahead log would grow without a limit.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self.close, self._size = self._connection.close, 0
        for setting in journal_file._SETTINGS:
            self._connection.execute(setting).fetchall()
        self._connection.execute(
            "CREATE TABLE log (version INTEGER PRIMARY KEY, resource TEXT, namespace TEXT, name TEXT, body BLOB)"
        )

    def commit(self, batch: list[tuple[Any, ...]]) -> None:
        """Return when all rows are durable."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", batch)
        self._connection.execute("COMMIT")
        self._size += sum([len(row[4] or b"") for row in batch]) + 4096

    def checkpoint_if_due(self) -> None:
        """Make a checkpoint after as many bytes as the journal."""
        if self._size >= journal_writer._CHECKPOINT_BYTES:
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
            self._size = 0


class GroupCommit:
    """A bare group commit: writers hand over rows, and a thread commits everything that waits, and then answers."""

    def __init__(self, path: Path) -> None:
        self._path, self._loop = path, asyncio.get_running_loop()
        self._pending: list[tuple[Any, asyncio.Future[None]]] = []
        self._more = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    async def write(self, row: Any) -> None:
        """Return when the row is durable."""
        done = self._loop.create_future()
        with self._more:
            self._pending.append((row, done))
            self._more.notify()
        await done

    def close(self) -> None:
        """End the thread."""
        with self._more:
            self._over = True
            self._more.notify()
        self._thread.join()

    def _run(self) -> None:
        log = BareLog(self._path)
        while True:
            with self._more:
                while not self._pending and not self._over:
                    self._more.wait()
                batch, self._pending = self._pending, []
            if not batch:
                break
            log.commit([row for row, _ in batch])
            self._loop.call_soon_threadsafe(_answer, [done for _, done in batch])
            log.checkpoint_if_due()
        log.close()


def _answer(waiting: "list[asyncio.Future[None]]") -> None:
    for one in waiting:
        one.set_result(None)


async def waited(path: Path, batches: BareBatches, writers: int) -> float:
    """Return the seconds of a bare group commit of the same rows, for as many writers, each of which waits."""
    rows = [row for batch in batches for row in batch]
    commits = GroupCommit(path)

    async def write(writer: int) -> None:
        for row in rows[writer::writers]:
            await commits.write(row)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(journal_writer._SWITCH_SECONDS)  # as the journal does
    gc.collect()
    began = perf_counter()
    await asyncio.gather(*[write(writer) for writer in range(writers)])
    seconds = perf_counter() - began
    commits.close()
    sys.setswitchinterval(interval)
    return seconds


def durable_writes(folder: Path) -> None:
    """Measure patches and creates, in turn with bare SQLite: a group commit with waiting writers, and batches alone.

    Each measurement has its own process, so that none begins with the memory that another has left in pieces.
    """
    print(f"each writer waits for its write; medians of {ROUNDS} rounds (smallest to largest)")
    for writers in WRITERS:
        for name in WORK:
            rounds = []
            for number in range(ROUNDS):
                place = folder / f"{name}-{writers}-{number}"
                place.mkdir()
                own, floor = (_in_new_process(part, name, str(writers), str(place)) for part in ("--own", "--floors"))
                rounds.append((own["rate"], own["cpu"], own["size"], floor["waited"], floor["alone"]))
                shutil.rmtree(place)
            _print_rounds(f"{writers:3} writers, {name}", rounds)


def _print_rounds(title: str, rounds: list[tuple[float, float, float, float, float]]) -> None:
    rates, cpus, sizes, floors, loops = zip(*rounds, strict=True)
    middle = statistics.median
    ratios = [rate / floor for rate, floor in zip(rates, floors, strict=True)]
    loop_ratios = [rate / loop for rate, loop in zip(rates, loops, strict=True)]
    print(
        f"{title:20} {middle(rates):8,.0f} durable writes/s ({min(rates):,.0f} to {max(rates):,.0f}),"
        f" {middle(cpus):.0f} µs CPU, {middle(sizes):.0f} per commit;"
        f" bare group commit {middle(floors):,.0f}/s, ratio {middle(ratios):.2f}"
        f" ({min(ratios):.2f} to {max(ratios):.2f}); batches without writers {middle(loops):,.0f}/s,"
        f" ratio {middle(loop_ratios):.2f} ({min(loop_ratios):.2f} to {max(loop_ratios):.2f})",
        flush=True,
    )


def _in_new_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, *arguments, *(["--quick"] if QUICK else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    found: dict[str, float] = json.loads(done.stdout)
    return found


def own_round(name: str, writers: int, folder: Path) -> dict[str, float]:
    """Measure the journal once, and keep what was committed for the floors."""
    seconds, cpu, batches = asyncio.run(measured(folder / "own.db", WORK[name], writers))
    (folder / "batches").write_bytes(pickle.dumps([[astuple(row)[:5] for row in batch] for batch in batches]))
    count = sum(map(len, batches))
    return {"rate": count / seconds, "cpu": cpu / count * 1e6, "size": count / len(batches)}


def floor_round(writers: int, folder: Path) -> dict[str, float]:
    """Measure both floors once."""
    batches = pickle.loads((folder / "batches").read_bytes())  # noqa: S301 - written by `own_round`
    count = sum(map(len, batches))
    waits = asyncio.run(waited(folder / "waited.db", batches, writers))
    return {"waited": count / waits, "alone": count / bare(folder / "bare.db", batches)}


# -- kept jobs --------------------------------------------------------------------------------------------------------


def job(index: int) -> tuple[Body, Body]:
    """Return a job, and its status after its end: 4 KB of JSON together."""
    env = [{"name": f"VARIABLE_{i}", "value": f"value {i} of job {index}"} for i in range(12)]
    container = {"name": "main", "image": "python:3.12-slim", "command": ["python", "/train.py"], "env": env}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"replicaSpecs": [{"type": "worker", "replicas": 2, "template": template}]}
    reasons = ("Created", "Running", "Completed")
    conditions = [
        {"type": one, "status": "True", "lastTransitionTime": TIME, "message": f"job {one}"} for one in reasons
    ]
    verdict = {"result": "Succeeded", "at": TIME, "class": "Success", "text": f"all replicas of job-{index} succeeded"}
    attempts = [{"number": 1, "started": TIME, "ended": TIME, "productive": 3600.5, "lost": 0}]
    roles = [{"name": "worker", "succeeded": "0-1", "reached": 2, "size": 2, "restarts": {}}]
    outcome = {"result": "Succeeded", "reason": "Rule", "at": TIME, "rule": "all replicas of worker succeed"}
    times = {"accepted": TIME, "started": TIME, "running": TIME, "ended": TIME}
    ledger = {"phase": "Succeeded", "times": times, "roles": roles, "outcome": outcome, "verdict": verdict}
    status = {"phase": "Succeeded", "conditions": conditions, "trainwright": {**ledger, "history": attempts}}
    return {"metadata": {"name": f"job-{index}", "namespace": "default"}, "spec": spec}, {"status": status}


def keep(path: Path, count: int) -> None:
    """Run this number of jobs with two pods and one service each. The jobs and the services are kept."""
    store = Store.open(WallClock(), path)
    for index in range(count):
        body, ended = job(index)
        made = store.create(JOB, body)["metadata"]
        owner = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": made["name"], "uid": made["uid"]}
        references = [{**owner, "controller": True, "blockOwnerDeletion": True}]
        key = Key("default", made["name"])
        for number in range(2):
            name = f"job-{index}-worker-{number}"
            body = pod(index)
            store.create(PODS, {**body, "metadata": {**body["metadata"], "name": name, "ownerReferences": references}})
            store.delete(PODS, Key("default", name))
        metadata = {"name": f"job-{index}", "namespace": "default", "ownerReferences": references}
        store.create(SERVICES, {"metadata": metadata, "spec": {"clusterIP": "None", "selector": {"job": made["name"]}}})
        store.patch(JOB, key, ended, status=True)
    store.close()


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def serve_kept(path: Path) -> dict[str, float]:
    """Open the file in this process, and list all jobs here and from another process."""
    before, began = resident(), perf_counter()
    store = Store.open(WallClock(), path)
    opened, cluster = perf_counter() - began, LocalCluster(store)
    gc.collect()
    memory, began = resident() - before, perf_counter()
    page = await cluster.list(JOB)
    listed = perf_counter() - began
    socket = path.parent / "engine.sock"
    async with serve(socket, cluster):
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--list", str(socket), stdout=asyncio.subprocess.PIPE
        )
        remote = float((await process.communicate())[0])
    store.close()
    return {"jobs": len(page.items), "open": opened, "memory": memory, "list": listed, "remote": remote}


def kept_jobs(folder: Path) -> None:
    """Measure the memory and the times of stores with many finished jobs, each in a new process."""
    print("\nkept jobs: each is a job and a service; its two pods are deleted")
    for count in KEPT_JOBS:
        path = folder / f"kept-{count}" / "state.db"
        keep(path, count)
        size = disk_bytes(path)
        command = [sys.executable, __file__, "--kept", str(path)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        got = json.loads(answer.stdout)
        assert got["jobs"] == count
        print(
            f"{count:7,} jobs: {got['memory'] / count / 1024:5.1f} KiB of memory and {size / count / 1024:.1f} KiB of"
            f" disk per job; open {got['open']:.3f} s; list {got['list'] * 1e3:.1f} ms,"
            f" by another process {got['remote'] * 1e3:.0f} ms",
            flush=True,
        )


def list_jobs(socket: Path) -> float:
    """Return the seconds to connect to an engine and to list its jobs."""
    began = perf_counter()
    with BlockingClient(socket) as client:
        client.list(JOB.id)
    return perf_counter() - began


def main() -> None:
    """Print all figures."""
    where = sys.argv[sys.argv.index("--folder") + 1] if "--folder" in sys.argv else None
    versions = f"trainwright {trainwright.__version__}, SQLite {sqlite3.sqlite_version}, msgspec {msgspec.__version__}"
    print(f"{datetime.now(UTC):%Y-%m-%d}: {versions}, Python {platform.python_version()}")  # noqa: TID251
    folder = Path(tempfile.mkdtemp(prefix="journal-", dir=where))
    try:
        durable_writes(folder)
        kept_jobs(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if "--own" in sys.argv:
        print(json.dumps(own_round(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))))
    elif "--floors" in sys.argv:
        print(json.dumps(floor_round(int(sys.argv[3]), Path(sys.argv[4]))))
    elif "--list" in sys.argv:
        print(list_jobs(Path(sys.argv[-1])))
    elif "--kept" in sys.argv:
        print(json.dumps(asyncio.run(serve_kept(Path(sys.argv[-1])))))
    else:
        main()
