# SPDX-License-Identifier: Apache-2.0
"""AITrainingJobs under the operator on a real control plane, as kubectl shows them: phases, restarts, ends, sizes."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cluster_aitrainingjobs import AITrainingJobs, aitrainingjob, replicas
from cluster_client import until
from cluster_jobs import Jobs
from cluster_plane import ControlPlane

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")
Body = dict[str, Any]
KEEP = {"cleanPodPolicy": "None"}
AGAIN = {"restartPolicy": "OnFailure"}


@pytest.fixture
def trainings(jobs: Jobs) -> AITrainingJobs:
    return AITrainingJobs(jobs)


@pytest.mark.parametrize(
    ("clean", "budget"), [("None", lambda pods: 2 * pods + 5), ("All", lambda pods: 4 * pods + 6)], ids=["kept", "All"]
)
@pytest.mark.parametrize("pods", [1, 4])
def test_a_job_succeeds_within_its_budget_of_writes(
    plane: ControlPlane, trainings: AITrainingJobs, clean: str, budget: Any, pods: int
) -> None:
    """The acceptance is stored at once, with the sizes of the roles: so three statuses."""
    mark = plane.mark()
    trainings.apply(aitrainingjob("demo", {"cleanPodPolicy": clean}, trainer=replicas(pods, runs="0.5")))
    trainings.kubectl("wait", "--for=jsonpath={.status.phase}=Succeed", "aitj/demo", "--timeout=100s")

    head, row = trainings.kubectl("get", "aitj").splitlines()
    assert (head.split(), row.split()[:3]) == (["NAME", "PHASE", "RESTARTS", "AGE", "REASON"], ["demo", "Succeed", "0"])
    status = trainings.status("demo")
    steps = [step for step in trainings.steps("demo") if step != "Creating"]
    assert steps == ["Pending", "Running", *(["Terminating"] if clean == "All" else []), "Succeed"]
    assert status["replicaStatuses"] == {"trainer": {"succeeded": pods}}
    assert {"startTime", "startRunningTime", "endTime"} <= set(status)
    until(lambda: len(trainings.events("demo")) == 2, f"two events: {trainings.events('demo')}")
    calls = plane.audit(mark).where(user="operator", namespace=trainings.namespace)
    assert len(calls.writes) <= budget(pods), calls.writes.tally()
    assert (calls.refused, calls.reads) == ((), ())
    left = trainings.kubectl("get", "pods,services", "-o", "name").split()
    assert len(left) == (2 * pods if clean == "None" else 0)


@pytest.mark.parametrize(
    ("scope", "renewed"),
    [("All", {"a-0", "a-1", "b-0"}), ("Replica", {"a-0", "a-1"}), ("Pod", {"a-1"})],
)
def test_a_restart_takes_its_scope_along(trainings: AITrainingJobs, scope: str, renewed: set[str]) -> None:
    one = replicas(2, spec=AGAIN | {"restartScope": scope}, runs="forever")
    trainings.apply(aitrainingjob("demo", a=one, b=replicas(1, runs="forever")))
    trainings.until("demo", "Running")
    before = trainings.uids("demo")
    failed = {"phase": "Failed", "containerStatuses": [_ended("aitj-main", 3)]}
    trainings.plane.call("PATCH", f"{trainings.pods_path}/demo-a-1/status", {"status": failed})
    until(lambda: trainings.steps("demo").count("Running") == 2, f"it runs again: {trainings.status('demo')}")

    after = trainings.uids("demo")
    assert {name for name in after if after[name] != before[name]} == renewed
    status = trainings.status("demo")
    assert status["RestartCount"] == ({"a": 1, "b": 1} if scope == "All" else {"a": 1})
    assert (status["restarts"], status["RestartReplicaName"]) == (1, "")
    steps = trainings.steps("demo")
    assert steps[steps.index("Running") :] == ["Running", "Terminating", "Restarting", "Running"]
    said = trainings.kubectl("describe", "aitj", "demo")
    assert "restart times is 1, pod demo-a-1: container aitj-main on node" in said
    assert "exitcode 3" in said
    pod = trainings.pods("demo")["demo-a-1"]
    assert pod["metadata"]["labels"]["RestartCount"] == "1"
    env = {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}
    assert env["TRAININGJOB_REPLICA_RESTARTCOUNT"] == "1"
    assert env["A_INSTANCES"] == f"demo-a-0.{trainings.namespace},demo-a-1.{trainings.namespace}"


def _ended(name: str, code: int) -> Body:
    state = {"terminated": {"exitCode": code, "reason": "Error"}}
    return {"name": name, "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def test_only_listed_exit_codes_are_tried_again_and_only_so_often(trainings: AITrainingJobs) -> None:
    policy = {"restartPolicy": "ExitCode", "restartLimit": 1}
    trainings.apply(
        aitrainingjob("listed", {"restartingExitCode": 137}, t=replicas(1, spec=policy, exit="137,0", runs="0.2")),
        aitrainingjob("other", {"restartingExitCode": ["137"]}, t=replicas(1, spec=policy, exit="1", runs="0.2")),
        aitrainingjob("often", {"restartingExitCode": "128, 137"}, t=replicas(1, spec=policy, exit="137", runs="0.2")),
    )

    assert trainings.until("listed", "Succeed")["restarts"] == 1
    assert trainings.until("other", "Failed")["restarts"] == 0
    assert trainings.until("often", "Failed")["RestartCount"] == {"t": 1}
    assert "exitcode 137; deleted pods" in trainings.message("often")


@pytest.mark.parametrize("clean", ["All", "None"])
@pytest.mark.parametrize("key", ["Preempted", "failed", "nodefailed"])
def test_an_annotation_ends_a_job_once_and_no_other_annotation_is_lost(
    trainings: AITrainingJobs, key: str, clean: str
) -> None:
    trainings.apply(aitrainingjob("demo", {"cleanPodPolicy": clean}, trainer=replicas(2, runs="forever", stops="0.5")))
    trainings.until("demo", "Running")
    word = {"failed": "Failed", "nodefailed": "NodeFail"}.get(key, key)
    others = [f"note-{place}=x" for place in range(8)]
    with ThreadPoolExecutor(4) as pool:
        done = [
            pool.submit(trainings.kubectl, "annotate", "aitj", "demo", note) for note in (*others, f"{key}=for team b")
        ]
        [one.result() for one in done]
    status = trainings.until("demo", word)

    assert trainings.message("demo") == "for team b; deleted pods"
    assert trainings.steps("demo")[-2:] == ["Terminating", word]
    assert "endTime" in status
    notes = trainings.find("demo")["metadata"]["annotations"]
    assert {*(note.split("=")[0] for note in others), key} <= set(notes)
    assert trainings.kubectl("get", "pods,services", "-o", "name") == ""
    told = f"TrainingJob{word} annotation {key} asked for this end: for team b"
    until(lambda: told in trainings.events("demo"), "it is told")
    trainings.kubectl("annotate", "aitj", "demo", "Succeed=too late", "more=y")
    trainings.kubectl("annotate", "aitj", "demo", f"{key}-")
    until(lambda: key not in trainings.find("demo")["metadata"]["annotations"], "it is taken back")
    assert trainings.status("demo") == status
    assert [one.split()[0] for one in trainings.events("demo")].count(f"TrainingJob{word}") == 1


def test_a_job_outlives_its_end_and_takes_its_pods_along_when_deleted(trainings: AITrainingJobs) -> None:
    trainings.apply(aitrainingjob("demo", KEEP, trainer=replicas(2, runs="0.2")))
    trainings.until("demo", "Succeed")
    assert len(trainings.pods("demo")) == 2

    trainings.kubectl("delete", "aitj", "demo", "--timeout=100s")
    until(lambda: trainings.pods("demo") == {}, "its pods are gone")


def test_why_a_container_cannot_be_created_is_in_describe(trainings: AITrainingJobs) -> None:
    trainings.apply(aitrainingjob("demo", trainer=replicas(1, waiting="ImagePullBackOff")))
    trainings.until_message("demo", "create container failed[aitj-main: ImagePullBackOff")

    assert trainings.status("demo")["phase"] == "Creating"
    assert "create container failed[aitj-main: ImagePullBackOff" in trainings.kubectl("describe", "aitj", "demo")


def test_why_a_pod_has_no_place_is_in_describe(trainings: AITrainingJobs) -> None:
    pod = {"nodeSelector": {"no": "such-node"}}
    trainings.apply(aitrainingjob("demo", trainer=replicas(1, pod, runs="forever")))
    trainings.until_message("demo", "nodes are available")

    assert trainings.status("demo")["phase"] == "Pending"
    assert "didn't match Pod's node affinity/selector" in trainings.kubectl("describe", "aitj", "demo")


def test_time_limit(trainings: AITrainingJobs) -> None:
    trainings.apply(aitrainingjob("demo", {"timeLimit": 1, **KEEP}, trainer=replicas(1, runs="forever")))

    trainings.until("demo", "Timeout")
    assert "for longer than 1 seconds; deleted pods" in trainings.message("demo")
    assert trainings.pods("demo") == {}


def test_a_live_job_is_scaled_within_its_bounds(trainings: AITrainingJobs) -> None:
    bounds = {"minReplicas": 1, "maxReplicas": 3}
    trainings.apply(aitrainingjob("demo", trainer=replicas(2, spec=bounds, runs="forever")))
    trainings.until("demo", "Running")
    patch = '{"spec":{"replicaSpecs":{"trainer":{"replicas":%d}}}}'

    said = trainings.kubectl("patch", "aitj", "demo", "--type=merge", "-p", patch % 4, check=False)
    assert "replicas may not be more than maxReplicas" in said
    trainings.kubectl("patch", "aitj", "demo", "--type=merge", "-p", patch % 3)
    until(lambda: trainings.steps("demo").count("Running") == 2, f"it runs again: {trainings.status('demo')}")

    pods = trainings.pods("demo")
    assert len(pods) == 3
    told = [{one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]} for pod in pods.values()]
    assert {env["TRAINER_INSTANCES_NUM"] for env in told} == {"3"}
    assert trainings.status("demo")["restarts"] == 0
    until(
        lambda: "TrainingJobScaled trainer is scaled from 2 to 3 replicas" in trainings.events("demo"),
        f"it is told: {trainings.events('demo')}",
    )


def test_never_refuses_another_size(trainings: AITrainingJobs) -> None:
    trainings.apply(aitrainingjob("demo", trainer=replicas(1, spec={"edlPolicy": "Never"}, runs="forever")))

    patch = '{"spec":{"replicaSpecs":{"trainer":{"replicas":2}}}}'
    said = trainings.kubectl("patch", "aitj", "demo", "--type=merge", "-p", patch, check=False)
    assert "replicas cannot be changed while edlPolicy is Never" in said


def test_suspended_and_resumed(trainings: AITrainingJobs) -> None:
    trainings.apply(aitrainingjob("demo", trainer=replicas(1, runs="forever")))
    trainings.until("demo", "Running")
    trainings.kubectl("patch", "aitj", "demo", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    trainings.until("demo", "Suspended")
    until(lambda: trainings.pods("demo") == {}, "nothing is left")
    trainings.kubectl("patch", "aitj", "demo", "--type=merge", "-p", '{"spec":{"suspend":false}}')

    trainings.until("demo", "Running")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"restartPolicy": "Sometimes"}, 'Unsupported value: "Sometimes"'),
        ({"minReplicas": 3, "maxReplicas": 2}, "minReplicas may not be more than maxReplicas"),
    ],
)
def test_what_the_server_itself_refuses(trainings: AITrainingJobs, spec: Body, text: str) -> None:
    body = json.dumps(aitrainingjob("demo", trainer=replicas(2, spec=spec)))

    assert text in trainings.kubectl("apply", "-f", "-", given=body, check=False)


def test_a_job_that_got_in_although_it_cannot_run_fails_and_says_why(trainings: AITrainingJobs) -> None:
    trainings.apply(aitrainingjob("demo", {"restartingExitCode": "137;128"}, trainer=replicas(1)))

    trainings.until("demo", "Failed")
    assert "spec.restartingExitCode: expected exit codes from 0 to 255" in trainings.message("demo")
    assert trainings.pods("demo") == {}
