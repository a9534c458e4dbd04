# SPDX-License-Identifier: Apache-2.0
"""`trainwright logs` and `get` on what past runs left: order, attempts, containers, rotation, earlier runs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from run_objects import job, status

from trainwright.cli.main import run
from trainwright.cli.record import REPLICAS, RecordedPod, RunInfo, RunRecord
from trainwright.cli.show.news import JobEnding
from trainwright.cli.state import NameLocks
from trainwright.model.meta import Key

NOW = datetime(2026, 11, 15, 20, 0, 0, tzinfo=UTC)
DEMO = Key("default", "demo")


class Past:
    """A run that is over."""

    def __init__(self, state: Path, days: int = 0) -> None:
        with NameLocks(state, [DEMO], NOW + timedelta(days=days)) as claim:
            self.folder = claim.folder
        self.record = RunRecord(self.folder)

    def log(self, replica: str, *texts: str, attempt: int = 0, container: str = "main", also: str = "") -> None:
        """A pod with logs, one for each start of a container."""
        uid = f"{attempt:08d}-{replica}"
        names = (also, container) if also else (container,)
        self.record.append(REPLICAS, RecordedPod(str(DEMO), replica, f"demo-{replica}", uid, names, attempt))
        self.record.flush()
        for number, text in enumerate(texts):
            self.write(replica, f"{uid[:8]}-{container}-{number}.log", text)

    def write(self, replica: str, name: str, text: str) -> None:
        file = self.folder / "logs" / f"demo-{replica}" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(tmp_path))
    return tmp_path


def printed(capfd: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(["logs", *args]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out


def test_replicas_come_role_by_role_in_order(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    past = Past(state)
    for name in ("worker-10", "ps-0", "worker-2"):
        past.log(name, f"{name} speaks\n")

    assert printed(capfd, "demo").splitlines() == [
        "worker-2 | worker-2 speaks",
        "worker-10 | worker-10 speaks",
        "ps-0 | ps-0 speaks",
    ]


def test_attempts_and_restarts_come_in_order(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    past = Past(state)
    past.log("worker-0", "second try\n", attempt=1)
    past.log("worker-0", "first try\n", "first try, restarted\n")

    assert printed(capfd, "demo") == "first try\nfirst try, restarted\nsecond try\n"
    assert printed(capfd, "--tail", "2", "demo") == "first try, restarted\nsecond try\n"


def test_one_alone_comes_byte_for_byte(state: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    past = Past(state)
    past.log("worker-0", "")
    data = b"\x1b[31mred\x00\xff\r\nno end"
    (past.folder / "logs/demo-worker-0/00000000-main-0.log").write_bytes(data)

    assert run(["logs", "demo"]) == 0
    assert capfdbinary.readouterr().out == data


def test_what_was_rotated_away_comes_first(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    past = Past(state)
    past.log("worker-0", "newest\n")
    past.write("worker-0", "00000000-main-0.log.1", "newer\n")
    past.write("worker-0", "00000000-main-0.log.2", "oldest\n")

    assert printed(capfd, "demo") == "oldest\nnewer\nnewest\n"
    assert printed(capfd, "demo", "--tail", "2") == "newer\nnewest\n"


def test_containers_are_told_apart(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    past = Past(state)
    past.log("worker-0", "main\n", also="side-0")
    past.write("worker-0", "00000000-side-0-0.log", "side\n")

    assert printed(capfd, "demo") == "worker-0/side-0 | side\nworker-0/main | main\n"
    assert printed(capfd, "-c", "main", "demo") == "main\n"


def test_earlier_runs(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = Past(state), Past(state, days=1)
    first.log("worker-0", "first\n")
    second.log("worker-0", "second\n")

    assert printed(capfd, "demo") == "second\n"
    assert printed(capfd, "--run", first.folder.name, "demo") == "first\n"
    assert run(["logs", "--run", "20261115", "demo"]) == 2
    assert (
        f"has no run '20261115'; these runs are kept: {first.folder.name}, {second.folder.name}"
        in capfd.readouterr().err
    )


def test_nothing_was_started(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Past(state)

    assert run(["logs", "demo"]) == 2
    assert "default/demo has no logs yet: none of its replicas was started" in capfd.readouterr().err


def test_following_what_is_over_ends_at_once(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Past(state).log("worker-0", "hello\n")

    assert printed(capfd, "-f", "demo") == "hello\n"


def test_get_shows_how_it_ended(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    past = Past(state)
    ledger = {"roles": [{"name": "worker", "succeeded": "0", "restarts": {"Exit": 3}}]}
    outcome = {"result": "Failed", "reason": "Rule", "at": "2026-11-15T20:00:00Z"}
    end = JobEnding("default", "demo", "Failed", 1, 2.0, 3, "worker-1 failed", last_lines=("oops",), replica="worker-1")
    facts = RunInfo((str(DEMO),), 1, "2026-11-15T20:00:00Z", "process", "2026-11-15T20:00:02Z", (end,))
    past.record.close([job(status=status("Failed", outcome=outcome, **ledger))], facts)

    assert run(["get", "demo"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[1].split()[:-1] == ["default", "demo", "GenericJob", "Failed", "1/2", "3"]
    assert lines[3:] == [
        "demo failed after 2.0s, 3 restarts: worker-1 failed",
        "  replica: worker-1 (pod )",
        "  last lines of worker-1:",
        "    | oops",
        f"logs and final status: {past.folder}",
    ]


def test_get_lists_only_what_lives_unless_asked(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Past(state)

    assert run(["get"]) == 0
    assert capfd.readouterr() == ("", "no job is running here; `trainwright get -a` lists the jobs that have ended\n")
    assert run(["get", "-a"]) == 0
    assert "Lost" in capfd.readouterr().out
