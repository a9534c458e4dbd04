# SPDX-License-Identifier: Apache-2.0
"""The times beside a log: what they say, how they rotate, and how little space they need."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
from supervised import supervised

from trainwright.node.supervisor import log_times
from trainwright.node.supervisor.log_times import MARK, LogTimes, times_path
from trainwright.node.supervisor.logs import ContainerLog

SECOND = 1_000_000_000


def marks(log: Path) -> list[tuple[int, int]]:
    return list(MARK.iter_unpack(Path(times_path(str(log))).read_bytes()))


def test_each_write_has_its_time_and_the_log_stays_as_it_was(tmp_path: Path) -> None:
    before = time.time_ns()
    with supervised(tmp_path) as one:
        name = one.shell("echo one; sleep 0.2; echo two; sleep 0.2; printf thr; sleep 0.2; echo ee")
        one.ended(name)
        log = one.log(name)
    assert log.read_bytes() == b"one\ntwo\nthree\n"
    found = marks(log)
    assert [offset for offset, _ in found] == [0, 4, 8, 11]
    assert before < found[0][1]
    assert found[-1][1] < time.time_ns()
    assert all(later - earlier > SECOND / 10 for (_, earlier), (_, later) in pairwise(found))


def test_the_times_rotate_with_the_log_and_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    log = ContainerLog(str(tmp_path / "x.log"), (8, 3), lambda _: None)
    for number in range(1, 9):
        now[0] = number * SECOND
        log.write(b"abc\n")
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "x.log",
        "x.log.1",
        "x.log.2",
        "x.times",
        "x.times.1",
        "x.times.2",
    ]
    assert [marks(tmp_path / name) for name in ("x.log.2", "x.log.1", "x.log")] == [
        [(0, 3 * SECOND), (4, 4 * SECOND)],
        [(0, 5 * SECOND), (4, 6 * SECOND)],
        [(0, 7 * SECOND), (4, 8 * SECOND)],
    ]


def test_a_log_of_one_file_keeps_no_old_times(tmp_path: Path) -> None:
    log = ContainerLog(str(tmp_path / "x.log"), (4, 1), lambda _: None)
    log.write(b"abc\ndef\n")
    log.close()
    assert [offset for offset, _ in marks(tmp_path / "x.log")] == [0]


def test_a_file_without_times_gets_no_others(tmp_path: Path) -> None:
    for name in ("x.log", "x.log.1", "x.times.1"):
        (tmp_path / name).touch()
    log_times.move(str(tmp_path / "x.log"), str(tmp_path / "x.log.1"))
    assert [path.name for path in tmp_path.iterdir()] == ["x.log.1"]


def test_stamped_logs_have_no_times(tmp_path: Path) -> None:
    log = ContainerLog(str(tmp_path / "x.log"), (100, 1), lambda _: None, stamps=True)
    log.write(b"abc\n")
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["x.log"]


@pytest.mark.parametrize(
    ("size", "pause", "limit"),
    [(60, 10_000, 32_000), (1, SECOND // 500, 64 * 1024 + 200_000 // 4 + 16), (1, SECOND, 200_000 * 16)],
    ids=["fast", "tiny pieces", "slow"],
)
def test_the_times_need_little_space(tmp_path: Path, size: int, pause: int, limit: int) -> None:
    log = str(tmp_path / "x.log")
    times = LogTimes(log)
    for number in range(200_000):
        times.mark(number * size, number * pause + SECOND)
    times.close()
    assert limit * 0.9 < Path(times_path(log)).stat().st_size <= limit


def test_a_clock_that_goes_back_is_written_as_it_is(tmp_path: Path) -> None:
    times = LogTimes(str(tmp_path / "x.log"))
    for offset, now in ((0, 5), (4, 3), (8, 3), (12, 9)):
        times.mark(offset, now * SECOND)
    times.close()
    assert [now // SECOND for _, now in marks(tmp_path / "x.log")] == [5, 3, 9]


def test_times_that_cannot_be_written_cost_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "x.times").mkdir()
    losses: list[str] = []
    log = ContainerLog(str(tmp_path / "x.log"), (100, 2), losses.append)
    log.write(b"abc\n")
    log.close()
    assert (tmp_path / "x.log").read_bytes() == b"abc\n"
    assert losses == []
