# SPDX-License-Identifier: Apache-2.0
"""`trainwright logs` on the state folder that an earlier version wrote: its logs have no times."""

import os
import shutil
from pathlib import Path

import pytest

from trainwright.cli.main import run

STATE = Path(__file__).parents[1] / "stored" / "data" / "state"
#: When the earlier version wrote the logs.
WRITTEN = 1_794_897_000.0


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STATE, tmp_path / "state", symlinks=True)
    for path in (tmp_path / "state").rglob("*.log"):
        os.utime(path, (WRITTEN, WRITTEN))
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("job", "names"),
    [
        ("generic", ["worker-0", "worker-0#1", "worker-1"]),
        ("paddle", ["worker-0", "worker-0#1", "worker-1"]),
        ("tensor", ["Worker-0", "Worker-0#1", "Worker-1"]),
        ("elastic", ["trainer-0", "trainer-0#1", "trainer-1", "trainer-1#1"]),
    ],
)
def test_attempts_come_replica_by_replica(job: str, names: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["logs", job]) == 0
    assert capfd.readouterr() == ("".join(f"{name} | started\n" for name in names), "")
    assert run(["logs", "--previous", job, names[0]]) == 0
    assert capfd.readouterr() == ("started\n", "")


@pytest.mark.parametrize(
    ("since", "out"), [("2026-11-17T06:29:00Z", "started\nstarted\n"), ("2026-11-17T06:31:00Z", "")]
)
def test_the_last_write_bounds_the_times(since: str, out: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["logs", "generic", "worker-0", "--since", since]) == 0
    found = capfd.readouterr()
    assert found.out == out
    note = "an earlier version wrote the logs of run 20261117-062951-6520, without the times of lines"
    assert found.err.startswith(note)
    assert ("no line of default/generic was written since" in found.err) == (not out)
