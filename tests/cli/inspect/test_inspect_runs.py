# SPDX-License-Identifier: Apache-2.0
"""`explain`, `describe`, `events` and `history` of real runs: live, ended, killed, and older kept runs."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from run_command import CommandRunner, demo, wait, worker

from trainwright.cli.logs.select import highest_restarts
from trainwright.cli.record import COMPACT, EVENTS, RecordedPod
from trainwright.model.job import Body

COMMANDS = ("explain", "describe", "events", "history")
IMPORT = "python3 -c 'import no_such_module'"


@pytest.fixture
def runner(tmp_path: Path) -> CommandRunner:
    return CommandRunner(tmp_path)


def said(runner: CommandRunner, *args: str) -> list[str]:
    """The lines of a command that must succeed."""
    done = runner.call(*args)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def data(runner: CommandRunner, *args: str) -> Any:
    return json.loads("\n".join(said(runner, *args, "-o", "json")))


def retried(*lines: str, limit: int = 1) -> Body:
    return worker(*lines, restartPolicy={"policy": "OnFailure", "limit": limit})


@pytest.fixture
def failed(runner: CommandRunner) -> CommandRunner:
    """A run whose worker failed twice, the second time for good."""
    assert runner.run(demo(retried("echo start", IMPORT))).returncode == 1
    return runner


# -- a run that has ended --------------------------------------------------------------------------------------------


def test_the_first_line_names_the_cause_that_the_log_shows(failed: CommandRunner) -> None:
    lines = said(failed, "explain", "demo")

    assert lines[0] == (
        "demo failed: worker-0 could not import a Python module on node node-0: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert lines[1] == "  What decided: worker 0 failed for good; the only allowed restart of worker-0 was used."
    assert lines[2] == "  worker-0 (pod demo-worker-0, attempt 1): container main exited with code 1."
    assert "  It was restarted once, after a failure." in lines
    assert lines[-1].startswith("What to do: ")


def test_the_explanation_as_json(failed: CommandRunner) -> None:
    found = data(failed, "explain", "demo")

    assert found["situation"] == "Failed"
    assert found["class"] == "ImportError"
    assert found["quote"] == {
        "replica": "worker-0",
        "pod": "demo-worker-0",
        "attempt": 1,
        "container": "main",
        "line": "ModuleNotFoundError: No module named 'no_such_module'",
    }
    assert found["restarts"] == 1
    assert found["verdict"]["decision"] == "Failed"
    assert found["time"]["wall"] == pytest.approx(found["time"]["productive"] + sum(found["time"]["lost"].values()))


def test_the_history_has_every_attempt_and_exact_sums(failed: CommandRunner) -> None:
    found = data(failed, "history", "demo")

    assert found["total"] == 2
    assert [one["number"] for one in found["attempts"]] == [1, 2]
    assert [one["cause"] for one in found["attempts"]] == ["ProgramError", "ProgramError"]
    assert [one.get("scope", "") for one in found["attempts"]] == ["Pod", ""]
    assert found["wall"] == pytest.approx(found["productive"] + sum(found["lost"].values()))
    assert 0 <= found["goodput"] <= 1

    lines = said(failed, "history", "demo")
    assert lines[0].split() == ["ATTEMPT", "START", "DURATION", "LOST", "CAUSE", "REPLICA", "RESTARTED", "NODES"]
    assert lines[1].split()[4:] == ["ProgramError", "worker-0", "Pod", "node-0"]
    assert lines[4].startswith("total: ")


def test_events_are_ordered_and_can_be_reduced_to_warnings(failed: CommandRunner) -> None:
    found = data(failed, "events", "demo")["events"]
    assert [one["time"] for one in found] == sorted(one["time"] for one in found)
    assert {one["object"] for one in found} == {"GenericJob/demo"}
    assert found[-1]["reason"] == "Failed"

    lines = said(failed, "events", "demo", "--warnings")
    assert lines[0].split() == ["TIME", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"]
    assert {line.split()[1] for line in lines[1:]} == {"Warning"}


def test_the_description_has_everything(failed: CommandRunner) -> None:
    found = data(failed, "describe", "demo")
    assert found["headline"] == data(failed, "explain", "demo")["headline"]
    assert (found["phase"], found["step"]) == ("Failed", "Failed")
    assert found["roles"][0]["states"] == {"Failed": 1}
    (replica,) = found["replicas"]
    assert (replica["name"], replica["state"], replica["node"]) == ("worker-0", "Failed", "node-0")
    assert (replica["attempt"], replica["restarts"]) == (1, 1)
    assert replica["reason"] == "container main exited with code 1"
    budget = {"owner": "Replica", "name": "worker-0", "used": 1, "limit": 1, "window": 0.0, "refill": 0.0}
    assert found["budgets"] == [budget]
    assert found["history"]["total"] == 2
    assert found["events"]

    text = "\n".join(said(failed, "describe", "demo"))
    for title in ("Name:", "Roles:", "Replicas:", "Restart budgets:", "Verdict:", "History:", "Events:"):
        assert f"\n{title}" in text


def test_success_is_explained_with_the_restarts_that_happened(runner: CommandRunner, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    once = retried(f"test -e {mark} && exit 0", f"touch {mark}", "exit 3")
    assert runner.run(demo(once)).returncode == 0

    lines = said(runner, "explain", "demo")

    assert lines[0] == "demo succeeded: every replica that counts has succeeded"
    assert "  It was restarted once, after a failure." in lines


def test_replicas_of_an_ended_run_have_their_last_known_state(runner: CommandRunner, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    server = worker("sleep 60", kind="server")
    once = retried(f"test -e {mark} && exit 0", f"touch {mark}", "exit 3")
    assert runner.run(demo(once, server, successRules=[{"worker": [0]}])).returncode == 0

    found = data(runner, "describe", "demo")

    shown = [(one["name"], one["state"], one["node"], one.get("attempt", 0)) for one in found["replicas"]]
    assert shown == [("worker-0", "Succeeded", "node-0", 1), ("server-0", "Stopped", "node-0", 0)]
    assert [one.get("restarts", 0) for one in found["replicas"]] == [1, 0]
    assert [one["states"] for one in found["roles"]] == [{"Succeeded": 1}, {"Stopped": 1}]


def test_a_replica_that_restarted_inside_its_pod_shows_it_after_the_end(tmp_path: Path) -> None:
    pod = RecordedPod("default/demo", "worker-0", "demo-worker-0", "0123456789", ("main", "side"))
    (tmp_path / "logs/demo-worker-0").mkdir(parents=True)
    for name in ("01234567-main-0.log", "01234567-main-1.log.1", "01234567-side-2.log", "76543210-main-9.log"):
        (tmp_path / "logs/demo-worker-0" / name).touch()

    never_started = RecordedPod("default/demo", "worker-1", "demo-worker-1", "abcdefghij", ("main",))
    assert highest_restarts(tmp_path, [pod, never_started]) == {"0123456789": 3}


def test_a_run_of_an_older_version_has_only_the_status_in_yaml(failed: CommandRunner) -> None:
    expected = data(failed, "explain", "demo")
    (failed.latest() / COMPACT).unlink()

    assert data(failed, "explain", "demo") == expected


def test_an_older_run_is_chosen_by_its_id(failed: CommandRunner) -> None:
    first = failed.latest().name
    wait(lambda: failed.run(demo(worker("exit 0"))).returncode == 0)

    assert said(failed, "explain", "demo")[0].startswith("demo succeeded")
    assert said(failed, "explain", "demo", "--run", first)[0].startswith("demo failed: worker-0 could not import")
    assert data(failed, "history", "demo", "--run", first)["total"] == 2

    wrong = failed.call("explain", "demo", "--run", first[:-1])
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert f"did you mean `{first}`?" in wrong.stderr


def test_a_wrong_name_gets_the_nearest_one(failed: CommandRunner) -> None:
    for command in COMMANDS:
        wrong = failed.call(command, "demi")

        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert wrong.stderr == "trainwright: there is no job 'demi'; did you mean `default/demo`?\n"


def test_options_that_exclude_each_other(runner: CommandRunner) -> None:
    wrong = runner.call("explain", "demo", "--run", "x", "--context", "y")

    assert wrong.returncode == 2
    assert "--run names a run on this machine" in wrong.stderr


def test_a_run_that_ended_before_its_job_says_why(runner: CommandRunner) -> None:
    done = runner.run(demo(worker("sleep 60")), args=("--timeout", "1s"))
    assert done.returncode == 124

    assert said(runner, "explain", "demo")[0] == "demo did not end: --timeout passed"
    found = data(runner, "describe", "demo")
    assert (found["phase"], found["replicas"][0]["state"]) == ("TimedOut", "Stopped")


# -- a killed run ----------------------------------------------------------------------------------------------------


def test_a_killed_run_tells_what_is_known(runner: CommandRunner) -> None:
    with runner.live(demo(worker("echo up", "sleep 60"))) as live:
        live.until("demo  Running")
        wait(lambda: last_event(runner) != "")
        kill(live.process)

    assert said(runner, "explain", "demo")[:2] == [
        "demo did not end: its run was killed",
        "  The last event about it: " + last_event(runner),
    ]
    found = data(runner, "describe", "demo")
    assert found["phase"] == "Lost"
    assert [one["state"] for one in found["replicas"]] == ["Unknown"]
    assert found["gaps"]
    history = runner.call("history", "demo")
    assert (history.returncode, history.stdout) == (0, "demo has no recorded attempts\n")
    assert "the run was killed" in history.stderr


def last_event(runner: CommandRunner) -> str:
    """The last event that the run has recorded; empty: none."""
    file = runner.latest() / EVENTS
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    last = json.loads(lines[-1]) if lines else {}
    return f"{last['lastTimestamp']} {last['reason']}: {last['message']}" if last else ""


def kill(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


# -- a live run ------------------------------------------------------------------------------------------------------


def test_a_live_job_that_runs_and_then_is_deleted(runner: CommandRunner) -> None:
    other = demo(worker("sleep 60"), name="other")
    manifest = (demo(worker("sleep 60", replicas=2)), other)
    with runner.live(*manifest) as live:
        live.until("demo  Running")

        assert said(runner, "explain", "demo")[0].endswith(": 2 of 2 replicas run")
        found = data(runner, "describe", "demo")
        assert found["place"].endswith(", live")
        assert [one["state"] for one in found["replicas"]] == ["Running", "Running"]
        assert data(runner, "history", "demo")["attempts"][0].get("end") is None
        assert data(runner, "events", "demo")["events"][0]["reason"] == "Running"

        assert runner.call("delete", "demo").returncode == 0
        assert said(runner, "explain", "demo")[0] == "demo was deleted before it ended"


def test_a_live_job_without_room_names_the_missing_amount_and_the_node(runner: CommandRunner) -> None:
    wide: dict[str, Any] = worker("sleep 60", replicas=2)
    resources = {"requests": {"cpu": f"{os.cpu_count() or 1}"}}
    wide["template"]["spec"]["containers"][0]["resources"] = resources
    with runner.live(demo(wide)) as live:
        live.until("Unschedulable")

        first, *_, last = said(runner, "explain", "demo")
        found = data(runner, "explain", "demo")

    assert first.startswith("demo waits: worker-1 has no place: 0/1 nodes are available: node-0: cpu: needs ")
    assert last == "What to do: free or add resources, or request less"
    assert found["obstacles"][0]["class"] == "Unschedulable"
    assert found["obstacles"][0]["replicas"] == ["worker-1"]


def test_a_live_job_that_restarts_names_the_failure(runner: CommandRunner) -> None:
    with runner.live(demo(retried("sleep 0.3", "echo 'ValueError: bad'", "exit 3", limit=100))) as live:
        live.until("restart 2")
        failure = "worker-0 exited with code 3 on node node-0: ValueError: bad"
        wait(lambda: said(runner, "explain", "demo")[0] == f"demo restarts after a failure: {failure}")


def test_a_suspended_job(runner: CommandRunner) -> None:
    with runner.live(demo(worker("sleep 60"))) as live:
        live.until("demo  Running")
        assert runner.call("suspend", "demo").returncode == 0

        assert said(runner, "explain", "demo")[0] == "demo is suspended: it has no pods until it is resumed"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_has_examples_and_exit_codes(runner: CommandRunner, command: str) -> None:
    text = "\n".join(said(runner, command, "--help"))

    assert f"trainwright {command} demo" in text
    assert "Exit codes:" in text
    assert max(map(len, text.splitlines())) <= 80
    assert all(option in text for option in ("--namespace", "--run", "--context", "--kubeconfig", "--output"))
