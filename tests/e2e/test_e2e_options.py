# SPDX-License-Identifier: Apache-2.0
"""The options of `run`, several jobs in one run, and what is kept."""

import json
import re

import pytest
from e2e_jobs import beside, job, role, shell, worker
from e2e_workspace import Workspace

pytest_plugins = ["e2e_fixtures"]

CONTAINER = "spec.replicaSpecs[worker].template.spec.containers[main]"


def test_standard_input_is_a_file(process: Workspace) -> None:
    text = json.dumps(worker("echo hello"))

    assert "worker-0 | hello" in process.run("run", "-", given=text).out


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_status_that_was_copied_from_a_cluster_says_nothing_here(process: Workspace, phase: str) -> None:
    """`kubectl get -o yaml` prints it. An API server ignores the status of a new object, and so does a run."""
    done = process.run("run", worker("echo hello") | {"status": {"phase": phase, "aggregate": {"running": 1}}})

    assert done.code == 0, done.said
    assert "worker-0 | hello" in done.out


def test_a_namespace_is_for_objects_that_name_none(process: Workspace) -> None:
    other = job(role("worker", shell("echo $A", envFrom=[{"configMapRef": {"name": "settings"}}])))
    settings = beside("ConfigMap", "settings", data={"A": "from the same namespace"})
    done = process.run("run", "-n", "mine", process.write(settings, other))

    assert done.code == 0, done.said
    assert "worker-0 | from the same namespace" in done.out
    assert (process.folder_of("e2e", "mine") / "status.yaml").exists()
    other["metadata"]["namespace"] = "lab"
    refused = process.run("run", "-n", "mine", process.write(settings, other))
    assert (refused.code, refused.out) == (2, "")
    assert "document 2 is for namespace 'lab', not 'mine'" in refused.err


def test_fields_can_be_set(process: Workspace) -> None:
    changes = {
        "spec.replicaSpecs[0].replicas": "3",
        f"{CONTAINER}.command[2]": "echo $WORD $(rank)",
        f"{CONTAINER}.env": '[{"name": "WORD", "value": "set"}]',
        'metadata.labels["a.b/c"]': "x",
    }
    options = [word for path, value in changes.items() for word in ("--set", f"{path}={value}")]
    done = process.run("run", *options, worker("false"))

    assert done.code == 0, done.said
    assert sorted(re.findall(r"\| (set \d)", done.out)) == ["set 0", "set 1", "set 2"]


BAD = {
    "spec.replicaSpecs[wroker].replicas=2": r"wroker.*(did you mean .?worker|worker)",
    "spec.replicaSpecs[worker].replica=2": r"unknown field; did you mean `replicas`",
    "spec.replicaSpecs[worker].replicas=two": r"expected .*found",
    "spec.replicaSpecs[worker].replicas": r"PATH=VALUE|=",
}


@pytest.mark.parametrize("change", BAD)
def test_a_change_that_makes_no_sense_is_refused(process: Workspace, change: str) -> None:
    done = process.run("run", "--set", change, worker("true"))

    assert (done.code, done.out) == (2, "")
    assert re.search(BAD[change], done.err), done.err
    assert "Traceback" not in done.err
    assert not process.state.exists()


@pytest.mark.parametrize("options", ["--timeout -1", "--nodes 0", "-n A_b"])
def test_an_option_that_makes_no_sense_is_refused(process: Workspace, options: str) -> None:
    done = process.run("run", *options.split(), worker("true"))

    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err


def test_several_jobs_run_side_by_side_and_one_failure_is_the_outcome(process: Workspace) -> None:
    meet = f"touch {process.work}/%s; until [ -e {process.work}/%s ]; do sleep 0.05; done; echo met"
    one, two = worker(meet % ("one", "two"), name="one"), worker(meet % ("two", "one"), name="two")
    bad = worker("echo bad luck; exit 5", name="bad")
    done = process.run("run", process.write(one, bad), process.write(two))

    assert done.code == 1, done.said
    assert "one/worker-0 | met" in done.out
    assert "two/worker-0 | met" in done.out
    end = done.out[done.out.index("\n\n") :]
    assert re.search(r"^one succeeded after", end, re.M)
    assert re.search(r"^two succeeded after", end, re.M)
    assert re.search(r"^bad failed after .*: worker-0 failed", end, re.M)
    assert "    | bad luck" in end
    for name in ("one", "two", "bad"):
        assert process.run("logs", name).out.strip() in ("met", "bad luck")
    for path in process.work.iterdir():
        path.unlink()


def test_a_timeout_says_what_was_still_waited_for(process: Workspace) -> None:
    half = {"requests": {"cpu": "0.6"}}
    total = 20  # more than any machine of ours has room for
    many = job(role("worker", shell("exec sleep 600", resources=half), replicas=total))
    done = process.run("run", "--timeout", "3s", many)

    assert done.code == 124, done.said
    assert "e2e timed out after" in done.out
    assert re.search(r"cpu: needs 0\.6, .*free", done.out), done.out


def test_the_last_runs_are_kept_and_can_be_read(process: Workspace) -> None:
    for number in range(6):
        done = process.run("run", "--no-logs", worker(f"echo run {number}"))
        assert done.code == 0
        assert f"run {number}" not in done.out

    kept = sorted(path.name for path in (process.state / "default/e2e").glob("2*"))
    assert len(kept) == 5
    assert process.run("logs", "e2e").out == "run 5\n"
    assert process.run("logs", "--run", kept[0], "e2e").out == "run 1\n"


def test_what_has_no_meaning_here_is_skipped_and_said(process: Workspace) -> None:
    other = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    done = process.run("run", process.write(other, worker("true")))

    assert done.code == 0
    assert re.search(r"notice: skipped, .*Service", done.out)
