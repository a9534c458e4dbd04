# SPDX-License-Identifier: Apache-2.0
"""The records of the background engine: nothing is lost or mixed up if a client, the engine or the disk fails."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
from e2e_jobs import beside, container, job, role, worker
from e2e_workspace import FinishedCommand, Workspace, until

from trainwright.cli.state import is_live
from trainwright.jsonlines import ENGINE_PROTOCOL, encode, hello
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.unix_sockets import connect

pytest_plugins = ["e2e_fixtures"]


def _ok(done: FinishedCommand) -> FinishedCommand:
    assert done.code == 0, done.said
    return done


def _status(work: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_ok(work.run("status", "-o", "json")).out)
    return found


def _socket(work: Workspace) -> Path:
    return work.state / ".engine" / "engine.sock"


def _kill_engine(work: Workspace) -> None:
    os.kill(work.pid("up --foreground"), signal.SIGKILL)
    until(lambda: not is_live(work.state / ".engine" / "lock"))


def test_a_client_that_goes_away_does_not_take_the_variables_of_its_job_with_it(process: Workspace) -> None:
    _ok(process.run("up"))
    submission = {"cwd": str(process.work), "passed": {"PATH": process.env["PATH"]}, "env": {"TOKEN": "given"}}
    for number in range(20):
        body = worker('echo "$TOKEN in $PWD"', name=f"job-{number}")
        body["metadata"]["namespace"] = "default"
        sock = connect(_socket(process))
        sock.sendall(encode({"id": 1, "verb": "hello", **hello(ENGINE_PROTOCOL)}))
        sock.sendall(encode({"id": 2, "verb": "submit", "job": body, "submission": submission}))
        sock.close()
    until(lambda: set(_status(process)["jobs"]) <= {"Succeeded"})
    folders = list((process.state / "default").iterdir())
    for folder in folders:
        assert f"given in {process.work}" in process.run("logs", folder.name).out
    _ok(process.run("down"))


def test_a_job_that_was_deleted_just_before_a_kill_has_a_final_record(process: Workspace) -> None:
    _ok(process.run("up"))
    _ok(process.run("submit", "--env", "TOKEN=x", worker("echo begun; sleep 1000")))
    until(lambda: "begun" in process.run("logs", "e2e").out)
    folder = process.folder_of()
    kept = {name: (folder / name).read_bytes() for name in ("run.json", "manifest.yaml", "submission.json")}
    _ok(process.run("delete", "e2e"))
    _ok(process.run("down"))
    for name in ("status.yaml", "status.json"):  # as if the engine had been killed before it wrote them
        (folder / name).unlink()
    for name, content in kept.items():
        (folder / name).write_bytes(content)
    (folder.parent / "20260101-000000-abc").mkdir()  # as if it had been killed between the folder and the job
    _ok(process.run("up"))
    assert "Deleted" in process.run("get", "-a").out
    assert process.run("wait", "e2e").code == 1
    assert not (folder / "submission.json").exists()
    assert not (folder.parent / "20260101-000000-abc").exists()
    _ok(process.run("submit", worker("true")))
    assert process.run("wait", "e2e").code == 0, "the name is free"
    _ok(process.run("down"))


def test_a_record_that_cannot_be_written_does_not_end_the_engine(process: Workspace) -> None:
    _ok(process.run("up"))
    pid = _status(process)["pid"]
    (process.state / "default").write_text("in the way")
    _ok(process.run("submit", worker("echo said")))
    until(lambda: _status(process)["problems"])
    assert _status(process)["pid"] == pid
    (process.state / "default").unlink()
    until(lambda: not _status(process)["problems"])
    assert process.run("wait", "e2e").code == 0
    assert "said" in process.run("logs", "e2e").out
    _ok(process.run("down"))


def test_keys_that_a_file_no_longer_has_are_removed(process: Workspace) -> None:
    _ok(process.run("up"))
    body = job(role("worker", container("sh", "-c", "env", envFrom=[{"configMapRef": {"name": "conf"}}])))
    for data in ({"ONE": "1", "TWO": "2"}, {"ONE": "9"}):
        _ok(process.run("submit", process.write(beside("ConfigMap", "conf", data=data), body)))
        assert process.run("wait", "e2e").code == 0
    lines = process.run("logs", "e2e").out.splitlines()
    assert any(line.endswith("ONE=9") for line in lines)
    assert not any("TWO=" in line for line in lines)
    _ok(process.run("down"))


def test_events_of_an_earlier_job_of_the_name_stay_in_its_own_record(process: Workspace) -> None:
    _ok(process.run("up"))
    _ok(process.run("submit", worker("exit 7")))
    assert process.run("wait", "e2e").code == 1
    first = process.folder_of()
    until(lambda: "code 7" in process.run("events", "e2e").out)
    _ok(process.run("submit", worker("sleep 1000")))
    until(lambda: process.folder_of() != first and "1/1" in process.run("get").out)
    _kill_engine(process)
    _ok(process.run("up"))
    assert "code 7" not in process.run("events", "e2e").out
    assert "code 7" in (first / "events.jsonl").read_text()
    _ok(process.run("down", "--end"))


def test_the_record_of_a_job_does_not_end_before_it_says_how(process: Workspace) -> None:
    _ok(process.run("up"))
    _ok(process.run("submit", worker("exit 3")))
    until(lambda: list(process.folder_of().glob("status.yaml")))
    info = msgspec.json.decode((process.folder_of() / "run.json").read_bytes())
    assert info["endings"][0]["outcome"] == "Failed"
    with BlockingClient(_socket(process)) as client:
        assert client.list("genericjobs.batch.tensorstack.dev", fields="status.trainwright.phase!=Failed")[0] == []
    _ok(process.run("down"))
