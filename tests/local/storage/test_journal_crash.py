# SPDX-License-Identifier: Apache-2.0
"""Crashes: what was confirmed is in the file, and the file has the state after some write, never between two.

A process makes random writes, families of owners and their garbage collection included, and prints every version that
is durable. It is killed, or its files are copied and damaged behind the last confirmed write, as a power failure does.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest
from journal_writes import State, states

from patience import PATIENCE
from trainwright.local.storage.journal_file import JournalFile

_LOG_HEADER, _FRAME_HEADER = 32, 24


@contextmanager
def writing(path: Path, seed: int, checkpoint_bytes: int = 1 << 30) -> Iterator[subprocess.Popen[str]]:
    """A process that makes the writes of the seed."""
    command = [sys.executable, "-m", "journal_writes", str(path), str(seed), str(checkpoint_bytes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def confirmed(process: subprocess.Popen[str], count: int) -> int:
    """The version of the `count`-th answer."""
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(count)][-1]


def rest(process: subprocess.Popen[str]) -> list[int]:
    """All answers that the process could print before its end."""
    assert process.stdout is not None
    return [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]


def stored(path: Path) -> State:
    """The state in the file, before a store continues anything."""
    file = JournalFile(path)
    try:
        content = file.load()
    finally:
        file.release()
    return content.version, frozenset((row.resource, row.name, row.version) for row in content.rows)


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_process_leaves_every_confirmed_write_and_nothing_half_done(seed: int, tmp_path: Path) -> None:
    random = Random(seed)  # noqa: S311 - the same seed gives the same test
    path = tmp_path / "state.db"
    with writing(path, seed, checkpoint_bytes=random.choice([10_000, 100_000, 1 << 30])) as process:
        last = confirmed(process, 1 + random.randrange(600))
        sleep(random.random() * 0.1)
        process.kill()
        last = max([last, *rest(process)])
    found = stored(path)
    assert found[0] >= last
    assert found == states(seed, found[0])[found[0]]


def log_end(log: bytes) -> int:
    """The end of the last commit in a write-ahead log."""
    size = int.from_bytes(log[8:12], "big") + _FRAME_HEADER
    end = _LOG_HEADER
    for start in range(_LOG_HEADER, len(log) - size + 1, size):
        pages = int.from_bytes(log[start + 4 : start + 8], "big")
        if log[start + 8 : start + 16] != log[16:24]:
            break
        end = start + size if pages else end
    return end


def damaged(log: bytes, safe: int, random: Random) -> bytes:
    """The log with a damage behind the safe part: cut off, or bytes changed, or a page of another write."""
    place = random.randrange(safe, len(log))
    length = random.choice([1, 16, 512, 4096, 20000])
    match random.randrange(4):
        case 0:
            return log[:place]
        case 1:
            return log[:place] + random.randbytes(min(length, len(log) - place)) + log[place + length :]
        case 2:
            return log[:place] + bytes(min(length, len(log) - place)) + log[place + length :]
        case _:
            earlier = log[place - 4120 : place - 4120 + length]
            return log[:place] + earlier + log[place + len(earlier) :]


@pytest.mark.parametrize("seed", range(100, 103))
def test_a_torn_log_keeps_every_confirmed_write_and_a_whole_prefix_of_the_rest(seed: int, tmp_path: Path) -> None:
    random = Random(seed)  # noqa: S311 - the same seed gives the same test
    path, log = tmp_path / "state.db", tmp_path / "state.db-wal"
    with writing(path, seed) as process:
        last = confirmed(process, 20 + random.randrange(60))
        safe, content, end = log_end(log.read_bytes()), b"", monotonic() + PATIENCE
        while len(content) < safe + 400_000 and monotonic() < end:  # read while the process writes
            content = log.read_bytes()
        base = path.read_bytes()
    found = []
    for number in range(40):
        copy = tmp_path / f"{number}" / "state.db"
        copy.parent.mkdir()
        copy.write_bytes(base)
        copy.with_name("state.db-wal").write_bytes(damaged(content, safe, random))
        found.append(stored(copy))
        shutil.rmtree(copy.parent)
    versions = [version for version, _ in found]
    known = states(seed, max(versions))
    assert min(versions) >= last
    assert found == [known[version] for version in versions]
    assert len(set(versions)) > 3, "the damages have hit different writes"
