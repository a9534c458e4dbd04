# SPDX-License-Identifier: Apache-2.0
"""This version reads what an earlier version has stored: jobs in the middle of their life, and the state folder.

`data` was written by commit 96481c6 (2026-11-17): one run with a job of every kind, each of which had restarted a
replica when `get -o json` read it and SIGKILL ended the run, and a run that succeeded. Leave these files as they are;
add new files when the format gets a new field. Only its links between folders were made
relative, so that they hold in every copy.
"""

import json
import shutil
from copy import deepcopy
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from driving import KindDriver
from trainwright.cli.main import run
from trainwright.kinds.base import load, stored
from trainwright.kinds.registry import find
from trainwright.model.job import Body

DATA = Path(__file__).parent / "data"
JOBS = sorted(DATA.glob("*.json"))


def driver(document: Body) -> KindDriver:
    """The stored job in a world in which all its pods are lost."""
    kind = find(document["apiVersion"], document["kind"])
    assert kind is not None

    class StoredJob(KindDriver):
        unique_conditions = False

    StoredJob.kind = kind
    return StoredJob(document)


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_the_state_of_a_job_is_read_and_written_unchanged(file: Path) -> None:
    document = json.loads(file.read_text())
    job = driver(document)
    ledger = load(job.kind, stored(job.kind, document)).job.ledger

    assert msgspec.json.decode(msgspec.json.encode(ledger)) == document["status"]["trainwright"]


#: The pods that replace the lost ones; `#1` is the second attempt. The restart of each stored job is still counted.
PODS = {
    "elastic": ["trainer-0#1", "trainer-1#1"],
    "generic": ["worker-0#1", "worker-1"],
    "paddle": ["worker-0#1", "worker-1#1"],
    "tensor": ["worker-0#1", "worker-1"],
}


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_a_job_continues_where_it_was(file: Path) -> None:
    before = json.loads(file.read_text())["status"]
    job = driver(json.loads(file.read_text()))

    job.go()
    after = job.pass_by(2)

    assert [name.removeprefix(f"{file.stem}-") for name in job.names(attempts=True)] == PODS[file.stem]
    assert after["trainwright"]["times"]["accepted"] == before["trainwright"]["times"]["accepted"]
    assert after.get("startTime") == before.get("startTime")
    for old, new in zip(before["trainwright"]["roles"], after["trainwright"]["roles"], strict=True):
        assert new.get("restarts", {}).get("Exit") == old.get("restarts", {}).get("Exit")


# -- verdict and history, which the version that wrote `data` did not know -------------------------------------------


def running(file: Path) -> KindDriver:
    """The stored job whose new pods run. Its ledger is as an older version has it."""
    job = driver(json.loads(file.read_text()))
    job.clock = datetime.fromisoformat(job.document["status"]["trainwright"]["times"]["accepted"]) + timedelta(hours=1)
    job.go()
    job.pass_by(2)
    job.start_all()
    for name in ("verdict", "history"):
        job.document["status"]["trainwright"].pop(name, None)
    return job


def accounted(ledger: Body) -> tuple[int, int]:
    """The milliseconds of the history since it began, and the sum of its productive and lost time."""
    history = ledger["history"]
    wall = datetime.fromisoformat(history["until"]) - datetime.fromisoformat(history["begun"])
    return wall // timedelta(milliseconds=1), history.get("productive", 0) + sum(history.get("lost", {}).values())


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_a_running_job_without_a_history_is_left_as_it_is(file: Path) -> None:
    job = running(file)
    before, pods = deepcopy(job.document["status"]), job.names(attempts=True)

    after = job.pass_by(3600)

    assert (after, job.names(attempts=True)) == (before, pods)


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_the_history_of_an_older_job_begins_with_its_next_restart(file: Path) -> None:
    job = running(file)
    job.pass_by(3600)
    failed = next(iter(job.pods()))

    job.exit(failed, 101)  # every kind restarts after this code, or not at all
    ledger = job.go()["trainwright"]

    assert ledger["verdict"]["pod"] == failed
    assert ledger["verdict"]["class"] == "ProgramError"
    assert job.clock - datetime.fromisoformat(ledger["history"]["begun"]) < timedelta(milliseconds=1)
    job.pass_by(60)
    job.start_all()
    wall, counted = accounted(job.pass_by(60)["trainwright"])
    assert wall == counted < 3600_000


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_a_class_of_a_newer_version_is_read_as_none_and_the_job_goes_on(file: Path) -> None:
    job = running(file)
    verdict = {"decision": "Restart", "at": "2026-11-17T06:30:00Z", "class": "Newer", "message": "m", "newer": 1}
    attempt = {"number": 1, "start": "2026-11-17T06:30:00Z", "cause": "Newer"}
    job.document["status"]["trainwright"] |= {"verdict": verdict, "history": {"attempts": [attempt]}, "newer": {}}

    read = load(job.kind, job.document)

    assert (read.job.unreadable, read.job.invalid) == (False, "")
    assert read.job.ledger.verdict is not None
    assert (read.job.ledger.verdict.failure_class, read.job.ledger.verdict.message) == ("", "m")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    shutil.copytree(DATA / "state", folder, symlinks=True)
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(folder))
    return folder


@pytest.mark.usefixtures("state")
def test_the_runs_of_the_state_folder_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["get", "-a"]) == 0

    rows = {line.split()[1]: line.split()[2:4] for line in capfd.readouterr().out.splitlines()[1:]}
    assert rows["kept"] == ["TFJob", "Succeeded"]
    assert set(rows) == {"kept", "generic", "tensor", "paddle", "elastic"}


@pytest.mark.usefixtures("state")
def test_a_run_that_succeeded_is_shown_with_its_replicas_and_logs(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["get", "kept", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["status"]["trainwright"]["outcome"]["result"] == "Succeeded"
    assert run(["logs", "kept", "--run", "20261117-062926-4781"]) == 0
    assert capfd.readouterr().out == "Worker-0 | attempt\nWorker-1 | attempt\n"


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("job", ["generic", "tensor", "paddle", "elastic"])
def test_a_run_that_was_killed_is_shown_with_the_logs_of_every_attempt(
    job: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["get", job]) == 0
    assert "was killed" in capfd.readouterr().out
    assert run(["logs", job]) == 0
    assert capfd.readouterr().out.count("started") == (4 if job == "elastic" else 3)
