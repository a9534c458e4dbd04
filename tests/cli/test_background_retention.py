# SPDX-License-Identifier: Apache-2.0
"""Which log files of one job are removed, on real files."""

import os
from pathlib import Path

import pytest

from trainwright.cli.background.retention import LogFileSize, _log_files, surplus_logs


def _file(name: str, size: int, changed: float, *, newest: bool = False) -> LogFileSize:
    return LogFileSize(name, size, changed, newest)


@pytest.mark.parametrize(
    ("limit", "removed"),
    [(100, []), (99, ["old"]), (60, ["old"]), (59, ["old", "older attempt"]), (0, ["old", "older attempt"])],
)
def test_the_oldest_logs_go_first_and_the_newest_attempt_stays(limit: int, removed: list[str]) -> None:
    files = [_file("now", 10, 1.0, newest=True), _file("older attempt", 50, 3.0), _file("old", 40, 2.0)]
    assert surplus_logs(files, limit) == removed


def test_attempts_are_told_apart_by_the_names_of_the_files(tmp_path: Path) -> None:
    pod = tmp_path / "demo-worker-0"
    pod.mkdir()
    for place, name in enumerate(
        ("u1-main-0.log", "u1-main-0.log.1", "u1-main-0.times", "u1-main-1.log", "u1-side-0.log")
    ):
        (pod / name).write_bytes(b"x" * 10)
        os.utime(pod / name, (place, place))
    found = {Path(one.path).name: one.newest for one in _log_files(tmp_path)}
    assert found == {
        "u1-main-0.log": False,
        "u1-main-0.log.1": False,
        "u1-main-0.times": False,
        "u1-main-1.log": True,
        "u1-side-0.log": True,
    }
