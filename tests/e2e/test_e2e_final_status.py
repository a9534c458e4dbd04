# SPDX-License-Identifier: Apache-2.0
"""The status that a run leaves is the one that a cluster stores after the clean-up policy has run.

What the end of the run itself terminates is told apart from that.
"""

import signal
from typing import Any

import pytest
import yaml
from e2e_jobs import Body, job, role, shell, worker
from e2e_workspace import FinishedCommand, Workspace

pytest_plugins = ["e2e_fixtures"]

#: In the folder that all replicas share: whoever decides waits until the others are where they should be.
WAIT = "until [ -e up ] && [ -e early ]; do sleep 0.05; done; sleep 1"
RUNS = "touch up; exec sleep 60"
DEAF = "trap '' TERM; touch up; while :; do sleep 0.1; done"


def kept(workspace: Workspace, name: str = "e2e") -> Body:
    """The job as it is kept. The end of the run has not touched the object."""
    body: Body = yaml.safe_load((workspace.folder_of(name) / "status.yaml").read_text())
    assert "deletionTimestamp" not in body["metadata"]
    assert body["metadata"]["generation"] == 1
    return body


def end_of(done: FinishedCommand) -> Body:
    (found,) = (item for item in done.items if item["type"] == "end")
    return found


# -- GenericJob --------------------------------------------------------------------------------------------------------


def generic(policy: str, code: int = 0, runs: str = RUNS) -> Body:
    """`main` decides with that code; `early` has ended before, `other` still runs."""
    roles = (
        role("main", shell(f"{WAIT}; exit {code}")),
        role("early", shell("touch early")),
        role("other", shell(runs)),
    )
    return job(*roles, cleanUpPolicy=policy, successRules=[{"main": [0]}], failureRules=[{"main": [0]}])


def phases(status: Body) -> dict[str, str]:
    return {task["type"]: task["replicas"][0]["phase"] for task in status["tasks"]}


KEPT = {
    "None": {"early": "Succeeded", "other": "Running"},
    "Unfinished": {"early": "Succeeded", "other": "Deleted"},
    "All": {"early": "Deleted", "other": "Deleted"},
}


@pytest.mark.parametrize("code", [0, 3], ids=["succeeded", "failed"])
@pytest.mark.parametrize("policy", KEPT)
def test_a_genericjob_is_left_as_its_clean_up_policy_says(workspace: Workspace, policy: str, code: int) -> None:
    done = workspace.run("run", "-o", "json", generic(policy, code))

    assert done.code == bool(code), done.said
    end = "Failed" if code else "Succeeded"
    main = "Deleted" if policy == "All" else end
    expected = {"main": main, **KEPT[policy]}
    status = kept(workspace)["status"]
    assert (status["phase"], phases(status)) == (end, expected)
    counts = {key: number for key, number in status["aggregate"].items() if number}
    assert counts == {phase.lower(): list(expected.values()).count(phase) for phase in expected.values()}
    assert end_of(done).get("terminated", []) == (["other-0"] if policy == "None" else [])
    shown = yaml.safe_load(workspace.run("get", "-o", "yaml", "e2e").out)
    assert shown["status"] == status


def test_people_are_told_what_the_end_of_the_run_terminates(process: Workspace) -> None:
    line = "the end of the run ended 1 replica that the job's clean-up policy keeps: other-0"
    done = process.run("run", generic("None"))

    assert done.code == 0, done.said
    assert (
        f"e2e succeeded after {done.out.partition('e2e succeeded after ')[2].splitlines()[0]}\n  {line}\n" in done.out
    )
    assert line in process.run("get", "e2e").out
    assert line.removesuffix("other-0") not in process.run("run", generic("Unfinished")).out


def test_a_pod_that_outstays_its_grace_is_killed_and_the_status_is_final_all_the_same(workspace: Workspace) -> None:
    done = workspace.run("run", "--grace", "1", generic("Unfinished", runs=DEAF))

    assert done.code == 0, done.said
    assert "killed, because they had not ended after 1s: other-0" in done.out
    assert phases(kept(workspace)["status"])["other"] == "Deleted"


def test_a_run_that_is_interrupted_leaves_the_job_as_it_was(workspace: Workspace) -> None:
    run = workspace.start("run", "-o", "json", worker("echo ready; exec sleep 60", replicas=2))
    run.until('"phase":"Running","replicas":2')
    run.signal(signal.SIGINT)
    done = run.end()

    assert done.code == 130, done.said
    status = kept(workspace)["status"]
    assert (status["phase"], status["aggregate"]["running"]) == ("Running", 2)
    assert end_of(done)["terminated"] == ["worker-0", "worker-1"]


# -- the other kinds ---------------------------------------------------------------------------------------------------


def template(name: str, script: str, **spec: Any) -> Body:
    return {"spec": {"terminationGracePeriodSeconds": 2, "containers": [shell(script, name=name)], **spec}}


def of_kind(api: str, kind: str, **spec: Any) -> Body:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "e2e"}, "spec": spec}


def paddlejob(policy: str) -> Body:
    """Worker 1 fails, worker 0 still runs."""
    script = f'if [ "$PADDLE_TRAINER_ID" = 0 ]; then touch early; {RUNS}; fi; {WAIT}; exit 3'
    part = {"replicas": 2, "template": template("paddle", script, restartPolicy="Never")}
    return of_kind("batch.paddlepaddle.org/v1", "PaddleJob", worker=part, cleanPodPolicy=policy)


@pytest.mark.parametrize(("policy", "left"), [("Never", ["e2e-worker-1"]), ("Always", [])])
def test_a_paddlejob_refers_to_the_pods_that_are_kept(workspace: Workspace, policy: str, left: list[str]) -> None:
    done = workspace.run("run", "-o", "json", paddlejob(policy))

    assert done.code == 1, done.said
    status = kept(workspace)["status"]
    assert (status["phase"], status["observedGeneration"]) == ("Failed", 1)
    worker = status["worker"]
    assert [ref["name"] for ref in worker.get("refs") or ()] == left
    assert (worker.get("failed", 0), worker.get("running", 0)) == (1, 0)
    assert "terminated" not in end_of(done)


def tfjob(chief: str, worker: str, restarts: str = "Never", **policy: Any) -> Body:
    specs = {
        "Chief": {"replicas": 1, "restartPolicy": "Never", "template": template("tensorflow", chief)},
        "Worker": {"replicas": 2, "restartPolicy": restarts, "template": template("tensorflow", worker)},
    }
    return of_kind("kubeflow.org/v1", "TFJob", tfReplicaSpecs=specs, runPolicy=policy)


@pytest.mark.parametrize(("policy", "ended"), [("None", ["Worker-0", "Worker-1"]), ("Running", []), ("All", [])])
def test_a_tfjob_tells_which_workers_the_run_ended(workspace: Workspace, policy: str, ended: list[str]) -> None:
    done = workspace.run("run", "-o", "json", tfjob(f"touch early; {WAIT}", RUNS, cleanPodPolicy=policy))

    assert done.code == 0, done.said
    status = kept(workspace)["status"]
    assert status["replicaStatuses"] == {"Chief": {"succeeded": 1}, "Worker": {"succeeded": 2}}
    assert end_of(done).get("terminated", []) == ended


def test_a_tfjob_that_used_up_its_restarts_restarts_nothing_more(workspace: Workspace) -> None:
    """Its policy keeps all pods, but none of them would ever rest."""
    done = workspace.run("run", "-o", "json", tfjob(RUNS, "exit 1", "OnFailure", cleanPodPolicy="None", backoffLimit=1))

    assert done.code == 1, done.said
    gone = {item["replica"] for item in done.items if item["type"] == "replica" and item["phase"] == "Stopped"}
    assert {"Worker-0", "Worker-1"} & gone
    assert "Chief-0" in end_of(done)["terminated"]
    assert kept(workspace)["status"]["conditions"][-1]["type"] == "Failed"


@pytest.mark.parametrize(
    ("policy", "ended", "counts"),
    [("None", ["server-0"], {"active": 1}), ("All", [], {})],
)
def test_an_aitrainingjob_says_its_last_word_before_the_run_ends_its_pods(
    workspace: Workspace, policy: str, ended: list[str], counts: Body
) -> None:
    specs = {
        "server": {"replicas": 1, "completePolicy": "None", "template": template("aitj-main", RUNS)},
        "trainer": {"replicas": 1, "template": template("aitj-main", f"touch early; {WAIT}")},
    }
    more = {"completePolicy": "Any", "cleanPodPolicy": policy}
    done = workspace.run(
        "run", "-o", "json", of_kind("elasticdeeplearning.ai/v1", "AITrainingJob", replicaSpecs=specs, **more)
    )

    assert done.code == 0, done.said
    status = kept(workspace)["status"]
    assert status["phase"] == "Succeed"
    assert {key: number for key, number in status["replicaStatuses"]["server"].items() if number} == counts
    assert end_of(done).get("terminated", []) == ended
