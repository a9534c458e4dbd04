# SPDX-License-Identifier: Apache-2.0
"""Bad input of `trainwright simulate`: the option, what was found, what was expected, and the nearest name."""

import json
from pathlib import Path

import pytest
from simulated import Simulated, generic, tensorflow

from trainwright.cli.main import run

REPLICA = "expected REPLICA@TIME, such as worker-0@20s"
TIME = "expected a time such as 30s, 5m or 1h30m"


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulated:
    return Simulated(tmp_path, capsys)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        (
            "--fail",
            "wroker-1=137@30s",
            "the job has no replica 'wroker-1'; it has PS-0, Worker-0, Worker-1; did you mean `Worker-1`?",
        ),
        (
            "--fail",
            "wrkr=137@30s",
            "the job has no replica 'wrkr'; it has PS-0, Worker-0, Worker-1; did you mean `Worker`?",
        ),
        ("--fail", "worker-2=137@30s", "the job has no replica 'worker-2'; it has Worker-0 to Worker-1"),
        ("--fail", "ps-1=137@30s", "the job has no replica 'ps-1'; it has PS-0"),
        ("--fail", "x-1=1@1s", "the job has no replica 'x-1'; it has PS-0, Worker-0, Worker-1"),
        ("--fail", "worker-1", "expected REPLICA=CODE@TIME, such as worker-1=137@30s"),
        ("--fail", "worker-1=137", "expected REPLICA=CODE@TIME, such as worker-1=137@30s"),
        ("--fail", "worker-1=256@3s", "expected an exit code from 1 to 255 or `oom`, found '256'"),
        ("--fail", "worker-1=0@3s", "expected an exit code from 1 to 255 or `oom`, found '0'"),
        ("--fail", "worker-1=²@3s", "expected an exit code from 1 to 255 or `oom`, found '²'"),
        ("--fail", "worker-1=1@soon", f"{TIME}, found 'soon'"),
        ("--fail", "worker-1=1@-3", f"{TIME}, found '-3'"),
        ("--evict", "worker-0", REPLICA),
        (
            "--evict",
            "wroker-0@3s",
            "the job has no replica 'wroker-0'; it has PS-0, Worker-0, Worker-1; did you mean `Worker-0`?",
        ),
        ("--preempt", "@3s", REPLICA),
        ("--delete", "worker-0@", f"{TIME}, found ''"),
        ("--lose-node", "4@3s", "expected a node from 1 to 3 (see --nodes), found '4'"),
        ("--lose-node", "0@3s", "expected a node from 1 to 3 (see --nodes), found '0'"),
        ("--lose-node", "1", "expected NODE@TIME or NODE@TIME+TIME, such as 1@60s+30s"),
        ("--lose-node", "1@3s+later", f"{TIME}, found 'later'"),
        ("--suspend", "9999d", f"{TIME}, found '9999d'"),
        ("--duration", "wroker=3s", "the job has no role 'wroker'; it has PS, Worker; did you mean `Worker`?"),
        ("--duration", "worker=long", f"{TIME}, or `never`, found 'long'"),
        ("--job", "dmo", "the file has no such job; it has demo; did you mean `demo`?"),
    ],
)
def test_an_option(simulate: Simulated, option: str, value: str, error: str) -> None:
    assert simulate(tensorflow(), option, value) == (2, "", f"trainwright: {option} {value}: {error}\n")


def test_a_manifest_with_an_error(simulate: Simulated) -> None:
    code, out, err = simulate(generic(-1))

    assert (code, out) == (2, "")
    assert "spec.replicaSpecs[0].replicas" in err
    assert err.endswith("trainwright: nothing was simulated: the input has 1 error\n")


def test_a_job_of_another_controller(simulate: Simulated) -> None:
    notes = simulate.json(tensorflow(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}))["notes"]

    assert notes[-1].startswith("The manifest names another controller: Trainwright creates nothing")


def test_set_changes_the_manifest(simulate: Simulated) -> None:
    assert simulate.json(generic(), "--set", "spec.replicaSpecs[worker].replicas=5")["roles"][0]["replicas"] == 5
    assert simulate(generic(), "--set", "spec.replicaSpec[0].replicas=5")[0] == 2


def test_the_namespace(simulate: Simulated) -> None:
    assert simulate.json(generic(), "-n", "lab")["namespace"] == "lab"
    assert simulate(generic(), "-n", "Lab!")[0] == 2


def test_a_file_with_several_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [generic() | {"metadata": {"name": name}} for name in ("one", "two")]
    file = tmp_path / "jobs.yaml"
    file.write_text("\n---\n".join(json.dumps(job) for job in jobs))

    assert run(["simulate", str(file)]) == 2
    assert capsys.readouterr().err == "trainwright: the file has 2 jobs: one, two; choose one with --job\n"
    assert run(["simulate", str(file), "--job", "two"]) == 0
    assert capsys.readouterr().out.startswith("GenericJob default/two")


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "nowhere.yaml"]) == 2
    assert "no such file" in capsys.readouterr().err
