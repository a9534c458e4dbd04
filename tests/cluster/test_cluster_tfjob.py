# SPDX-License-Identifier: Apache-2.0
"""TFJobs under the operator on a real control plane, seen with kubectl: the first of the original's scenarios."""

from typing import Any

import pytest
from cluster_client import until
from cluster_jobs import Jobs
from cluster_plane import ControlPlane
from cluster_tfjobs import TFJobs, replicas, tfjob

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")
Body = dict[str, Any]


def found(jobs: Jobs, name: str) -> Body:
    return jobs.plane.call("GET", f"/apis/kubeflow.org/v1/namespaces/{jobs.namespace}/tfjobs/{name}")


def conditions(jobs: Jobs, name: str) -> list[str]:
    said = (found(jobs, name).get("status") or {}).get("conditions") or ()
    return [one["type"] if one["status"] == "True" else f"{one['type']}={one['status']}" for one in said]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_job_succeeds_within_its_budget_of_writes_and_kubectl_can_wait_for_it(
    plane: ControlPlane, jobs: Jobs, workers: int
) -> None:
    mark = plane.mark()
    jobs.apply(tfjob("demo", Worker=replicas(workers, runs="0.3")))
    jobs.kubectl("wait", "--for=condition=Succeeded", "tfjob/demo", "--timeout=100s")

    head, row = jobs.kubectl("get", "tfjobs").splitlines()
    assert (head.split(), row.split()[:2]) == (["NAME", "STATE", "AGE", "REASON"], ["demo", "Succeeded"])
    assert conditions(jobs, "demo") == ["Created", "Running=False", "Succeeded"]
    calls = plane.audit(mark).where(user="operator", namespace=jobs.namespace)
    assert len(calls.writes) <= 2 * workers + 3, calls.writes.tally()
    assert (calls.refused, calls.reads) == ((), ())


def test_a_retryable_exit_is_tried_again_and_a_permanent_one_fails(jobs: Jobs) -> None:
    jobs.apply(
        tfjob("again", Worker=replicas(1, "ExitCode", exit="137,0", runs="0.2")),
        tfjob("never", Worker=replicas(1, "ExitCode", exit="1", runs="0.2")),
    )
    jobs.kubectl("wait", "--for=condition=Succeeded", "tfjob/again", "--timeout=100s")
    jobs.kubectl("wait", "--for=condition=Failed", "tfjob/never", "--timeout=100s")

    said = {one["type"]: one["message"] for one in found(jobs, "never")["status"]["conditions"]}
    assert said["Failed"] == 'job "never" is failing because "Worker" replica(s) failed.'
    events = jobs.kubectl("get", "events", "-o", "jsonpath={range .items[*]}{.reason}{'\\n'}{end}").split()
    reasons = ("TFJobRestarting", "TFJobSucceeded", "TFJobFailed", "ExitedWithCode")
    assert [events.count(reason) for reason in reasons] == [1, 1, 1, 2]


def test_suspended_and_resumed(jobs: Jobs) -> None:
    jobs.apply(tfjob("demo", Chief=replicas(1, runs="forever"), Worker=replicas(1, runs="forever")))
    jobs.kubectl("wait", "--for=condition=Running", "tfjob/demo", "--timeout=100s")
    started = found(jobs, "demo")["status"]["startTime"]
    change = '{"spec":{"runPolicy":{"suspend":%s}}}'

    jobs.kubectl("patch", "tfjob", "demo", "--type=merge", "-p", change % "true")
    until(lambda: conditions(jobs, "demo") == ["Created", "Running=False", "Suspended"], "it is suspended")
    mine = ("-l", "training.kubeflow.org/job-name=demo", "-o", "name")
    until(lambda: jobs.kubectl("get", "pods,services", *mine) == "", "nothing is left")
    assert found(jobs, "demo")["status"]["startTime"] == started
    jobs.kubectl("patch", "tfjob", "demo", "--type=merge", "-p", change % "false")
    until(lambda: conditions(jobs, "demo") == ["Created", "Suspended=False", "Running"], "it runs again")

    assert found(jobs, "demo")["status"]["startTime"] >= started


def test_a_job_of_the_old_version_is_told_its_counts_under_the_old_name(jobs: Jobs) -> None:
    jobs.apply(tfjob("demo", "v1alpha2", Worker=replicas(2, runs="0.3")))
    jobs.kubectl("wait", "--for=condition=Succeeded", "tfjob/demo", "--timeout=100s")

    status = found(jobs, "demo")["status"]
    assert status["tfReplicaStatuses"] == status["replicaStatuses"] == {"Worker": {"succeeded": 2}}


def test_a_job_of_another_controller_is_not_touched(plane: ControlPlane, jobs: Jobs) -> None:
    mark = plane.mark()
    policy = {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}
    jobs.apply(tfjob("theirs", spec=policy, Worker=replicas(1)), tfjob("ours", Worker=replicas(1, runs="0.1")))
    jobs.kubectl("wait", "--for=condition=Succeeded", "tfjob/ours", "--timeout=100s")

    calls = plane.audit(mark).where(user="operator", namespace=jobs.namespace)
    assert not [call for call in calls.writes if "theirs" in str(call)]
    assert "status" not in found(jobs, "theirs")


def test_what_a_job_waits_for_is_told_with_it_once(plane: ControlPlane, jobs: Jobs) -> None:
    """trainer#1598: a job that does not start looks like any other; its pods know why."""
    nowhere = {"nodeSelector": {"test.trainwright.dev/planet": "mars"}}
    jobs.apply(tfjob("demo", Chief=replicas(1, runs="forever"), Worker=replicas(2, pod=nowhere)))
    tfjobs = TFJobs(plane, jobs.namespace)
    until(lambda: "Unschedulable" in dict(tfjobs.events("demo")), "it is told why workers wait")

    until(lambda: conditions(jobs, "demo") == ["Created", "Running"], "both are stored, within five seconds")
    ((reason, message),) = tfjobs.events("demo")
    assert (reason, message[:44]) == ("Unschedulable", "Error pod demo-worker-0 condition message: 0")
