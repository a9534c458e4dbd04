# SPDX-License-Identifier: Apache-2.0
"""The background engine with real processes: jobs that outlive the command that submitted them."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from e2e_jobs import beside, container, job, role, shell, worker
from e2e_workspace import FinishedCommand, Workspace, until

pytest_plugins = ["e2e_fixtures"]
_FOREVER = "echo begun; sleep 1000"


def _ok(done: FinishedCommand) -> FinishedCommand:
    assert done.code == 0, done.said
    return done


def _status(work: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_ok(work.run("status", "-o", "json")).out)
    return found


def _up(work: Workspace, *words: str) -> int:
    _ok(work.run("up", *words))
    return int(_status(work)["pid"])


def _logged(work: Workspace, name: str = "e2e") -> str:
    return work.run("logs", name).out


def test_a_job_continues_after_its_submitter_has_gone_and_its_end_is_known(workspace: Workspace) -> None:
    pid = _up(workspace)
    done = _ok(workspace.run("submit", worker("echo hello from $PWD; exit 3")))
    assert "default/e2e submitted" in done.out
    assert workspace.run("wait", "e2e").code == 1
    shown = workspace.run("get", "e2e")
    assert "exit" in shown.out
    assert "3" in shown.out
    assert f"hello from {workspace.work}" in _logged(workspace)
    assert "exited with code 3" in workspace.run("explain", "e2e").out
    assert _status(workspace)["jobs"] == {"Failed": 1}
    assert _status(workspace)["pid"] == pid
    _ok(workspace.run("down"))
    assert workspace.run("status").code == 3
    # Without an engine, the record still answers.
    assert "hello from" in _logged(workspace)
    assert "exited with code 3" in workspace.run("explain", "e2e").out
    assert "Failed" in workspace.run("get", "-a").out


def test_the_commands_work_from_any_shell(process: Workspace) -> None:
    _up(process, "--nodes", "1")
    body = job(role("worker", shell("trap 'exit 0' TERM; echo begun; sleep 1000 & wait"), replicas=2))
    _ok(process.run("submit", body))
    _ok(process.run("wait", "--for", "running", "e2e"))
    until(lambda: _logged(process).count("begun") == 2)
    assert "2/2" in process.run("get").out
    assert process.run("exec", "e2e", "worker-1", "--", "sh", "-c", "echo $PPID > /dev/null; pwd").out.strip() == str(
        process.work
    )
    _ok(process.run("annotate", "e2e", "owner=lena"))
    assert "lena" in process.run("get", "-o", "json", "e2e").out
    assert "worker: 1 replica" in _ok(process.run("scale", "e2e", "worker=1")).out
    assert "is suspended" in _ok(process.run("suspend", "e2e")).out
    assert "is resumed" in _ok(process.run("resume", "e2e")).out
    usage = json.loads(
        until(lambda: (found := process.run("top", "-o", "json", "--interval", "0.1").out) != "[]\n" and found)
    )
    assert [one["replica"] for one in usage] == ["worker-0"]
    assert "worker-0" in process.run("describe", "e2e").out
    assert "deleted" in _ok(process.run("delete", "e2e")).out
    assert process.run("wait", "e2e").code == 1
    assert "Deleted" in process.run("get", "-a").out
    _ok(process.run("down"))


def test_attach_shows_the_job_until_its_end_and_ctrl_c_only_leaves(process: Workspace) -> None:
    _up(process)
    flag = process.work / "go"
    _ok(process.run("submit", worker(f"echo first; while [ ! -e {flag} ]; do sleep 0.05; done; echo last; exit 5")))
    until(lambda: "first" in _logged(process))
    left = process.start("attach", "e2e")
    left.until("first")
    left.signal(signal.SIGINT)
    done = left.end()
    assert done.code == 130, done.said
    assert "continues" in done.out
    seen = process.start("attach", "e2e")
    seen.until("first")
    flag.touch()
    done = seen.end()
    assert done.code == 1, done.said
    assert "last" in done.out
    assert "e2e failed" in done.out
    assert process.run("attach", "e2e").code == 1, "the job has ended: its ending is shown"
    _ok(process.run("down"))


def test_each_job_has_the_folder_and_the_variables_of_its_shell(process: Workspace) -> None:
    _up(process)
    other = process.folder / "other"
    other.mkdir()
    script = 'echo "$PWD $TOKEN $WORD"'
    for name, cwd, token in (("one", process.work, "first"), ("two", other, "second")):
        how = {"cwd": cwd, "env": process.env | {"TOKEN": token}}
        started = process.start("submit", "--env", "TOKEN", "--env", "WORD=w", worker(script, name=name), **how)
        assert started.end().code == 0
        assert process.run("wait", name).code == 0
        assert f"{cwd} {token} w" in _logged(process, name)
        # The variables may be secret, so the file with them goes with the job.
        assert not list(process.folder_of(name).glob("submission.json"))
    stored = (process.state / ".engine" / "store.db").read_bytes()
    assert b"second" not in stored, "variables of the shell are not among the objects"
    _ok(process.run("down"))


def test_a_name_is_used_once_and_a_finished_job_is_replaced(process: Workspace) -> None:
    _up(process)
    _ok(process.run("submit", worker(_FOREVER)))
    again = process.run("submit", worker("true"))
    assert (again.code, "already runs" in again.err) == (2, True), again.said
    private = process.run("run", worker("true"))
    assert (private.code, "background engine has an unfinished job" in private.err) == (2, True), private.said
    _ok(process.run("delete", "e2e"))
    _ok(process.run("submit", worker("echo second")))
    assert process.run("wait", "e2e").code == 0
    _ok(process.run("submit", worker("echo third")))
    assert process.run("wait", "e2e").code == 0
    assert "third" in _logged(process)
    every = process.run("logs", "--all-runs", "e2e").out
    assert "second" in every
    assert "third" in every
    _ok(process.run("delete", "e2e"))
    gone = process.run("delete", "e2e")
    assert gone.code == 2
    assert "is not stored any more" in gone.err
    assert "third" in _logged(process), "the logs are kept"
    _ok(process.run("submit", worker("true")))
    assert process.run("wait", "e2e").code == 0
    assert process.run("run", worker("true")).code == 0, "a private run may use the name of a finished job"
    assert "deleted" in _ok(process.run("delete", "e2e")).out
    assert _status(process)["jobs"] == {}
    _ok(process.run("down"))


def test_a_wrong_manifest_is_refused_and_nothing_is_kept(process: Workspace) -> None:
    _up(process)
    wrong = worker("true")
    wrong["spec"]["replicaSpecs"][0]["replica"] = 2
    done = process.run("submit", "--set", "spec.replicaSpecs[0].replicas=two", wrong)
    assert done.code == 2
    assert "nothing was" in done.err
    big = worker("true")
    big["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "5000"}}
    done = process.run("submit", big)
    assert (done.code, "cannot run" in done.err) == (2, True), done.said
    assert _status(process)["jobs"] == {}
    assert not list((process.state / ".engine" / "jobs").glob("*"))
    _ok(process.run("down"))


def test_a_secret_in_the_same_file_is_created_before_the_job(process: Workspace) -> None:
    _up(process)
    secret = beside("Secret", "key", stringData={"word": "sesame"})
    env = [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "key", "key": "word"}}}]
    body = job(role("worker", container("sh", "-c", "echo $WORD", env=env)))
    _ok(process.run("submit", process.write(secret, body)))
    assert process.run("wait", "e2e").code == 0
    assert "sesame" in _logged(process)
    _ok(process.run("down"))


def test_run_detach_hands_a_command_over(process: Workspace) -> None:
    _up(process)
    words = ("run", "--detach", "--name", "cmd", "--replicas", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    _ok(process.run(*words))
    assert process.run("wait", "cmd").code == 0
    assert "rank 1 of 2" in _logged(process, "cmd")
    refused = process.run("run", "--detach", "--nodes", "2", "--", "true")
    assert (refused.code, "--nodes has no effect with --detach" in refused.err) == (2, True)
    _ok(process.run("down"))


def test_down_asks_what_happens_to_unfinished_jobs(process: Workspace) -> None:
    _up(process)
    _ok(process.run("submit", worker(_FOREVER)))
    until(lambda: "begun" in _logged(process))
    refused = process.run("down")
    assert (refused.code, "--keep-running" in refused.err) == (2, True), refused.said
    assert process.run("down", "--grace", "1s").code == 2
    done = _ok(process.run("down", "--end"))
    assert "1 job ended" in done.out
    assert "Deleted" in process.run("get", "-a").out
    again = process.run("down")
    assert (again.code, "no engine runs" in again.err) == (2, True)


def test_a_resume_is_no_restart_also_without_an_engine(process: Workspace) -> None:
    _up(process)
    _ok(process.run("submit", worker(_FOREVER)))
    until(lambda: "begun" in _logged(process))
    _ok(process.run("suspend", "e2e"))
    _ok(process.run("resume", "e2e"))
    until(lambda: "Running" in process.run("get", "e2e").out and len(_recorded(process)) == 2)
    _ok(process.run("down", "--keep-running"))
    row = _ok(process.run("get")).out.splitlines()[1].split()
    assert row[3:6] == ["NoEngine", "?/1", "0"]
    _up(process)
    _ok(process.run("down", "--end"))


def _recorded(work: Workspace) -> set[str]:
    """The UIDs of the recorded pods that have a node."""
    lines = (work.folder_of() / "replicas.jsonl").read_text().splitlines()
    return {pod["uid"] for pod in map(json.loads, lines) if pod.get("node")}


def test_only_one_engine_runs_and_a_second_up_says_where(process: Workspace) -> None:
    pid = _up(process)
    again = process.run("up")
    assert (again.code, f"process {pid}" in again.err) == (2, True), again.said
    direct = process.run("up", "--foreground")
    assert (direct.code, "already" in direct.err) == (2, True), direct.said
    assert _status(process)["pid"] == pid
    _ok(process.run("down"))


def test_commands_without_an_engine_say_how_to_start_one(process: Workspace) -> None:
    for words in (["status"], ["submit", worker("true")]):
        done = process.run(*words)
        assert (done.code, "trainwright up" in done.err) == (3, True), done.said


def test_the_foreground_engine_ends_with_sigterm_and_keeps_its_jobs(process: Workspace) -> None:
    engine = process.start("up", "--foreground")
    engine.until("the engine is up")
    _ok(process.run("submit", worker(_FOREVER)))
    until(lambda: "begun" in _logged(process))
    engine.signal(signal.SIGTERM)
    assert engine.end().code == 0, engine.said
    assert process.pids("sleep 1000"), "the job runs on"
    assert "no engine runs" in process.run("get", "e2e").out
    assert "NoEngine" in process.run("get").out
    assert process.run("scale", "e2e", "worker=2").code == 3
    assert "no engine runs" in process.run("explain", "e2e").out
    _up(process)
    assert "1/1" in process.run("get").out
    _ok(process.run("down", "--end"))


def test_options_of_the_last_engine_are_used_again(process: Workspace) -> None:
    _up(process, "--gpus", "2", "--keep-jobs", "7")
    _ok(process.run("down"))
    _up(process)
    devices = {one["resource"]: one["total"] for one in _status(process)["devices"]}
    assert devices["nvidia.com/gpu"] == 2
    assert json.loads((process.state / ".engine" / "options.json").read_bytes())["keep-jobs"] == 7
    _ok(process.run("down"))


def test_the_unit_starts_this_installation(process: Workspace) -> None:
    done = _ok(process.run("up", "--print-unit", "--keep-jobs", "7", "--no-api"))
    lines = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
    assert lines["ExecStart"].endswith("-m trainwright up --foreground --runtime process --keep-jobs 7 --no-api")
    assert lines["KillMode"] == "process", "supervisors must outlive the engine"
    assert f"Environment=TRAINWRIGHT_STATE={process.state}" in done.out.splitlines()
    odd = process.run("up", "--print-unit", env={"TRAINWRIGHT_STATE": "/some place/100%"}).out
    assert 'Environment="TRAINWRIGHT_STATE=/some place/100%%"' in odd.splitlines()
    assert process.run("status").code == 3, "nothing was started"


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_that_cannot_be_written_is_an_error(process: Workspace) -> None:
    process.folder.joinpath("closed").mkdir(mode=0o500)
    done = process.run("up", env={"TRAINWRIGHT_STATE": str(process.folder / "closed" / "state")})
    assert (done.code, "cannot be used" in done.err) == (3, True), done.said


def _link(work: Workspace, name: str = "e2e") -> Path:
    return work.state / "default" / name


def test_old_finished_jobs_are_removed_with_their_logs(process: Workspace) -> None:
    _up(process)
    for name in ("one", "two", "three"):
        _ok(process.run("submit", worker("echo said", name=name)))
        assert process.run("wait", name).code == 0
    _ok(process.run("down"))
    _up(process, "--keep-jobs", "1")
    until(lambda: _status(process)["jobs"] == {"Succeeded": 1})
    assert not _link(process, "one").exists()
    assert "said" in _logged(process, "three")
    assert len(list((process.state / ".engine" / "jobs").iterdir())) == 1
    _ok(process.run("down"))
