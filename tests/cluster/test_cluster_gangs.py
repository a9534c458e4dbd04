# SPDX-License-Identifier: Apache-2.0
"""TFJobs as gangs on a real control plane that has the pod groups of three schedulers, and none of the schedulers.

The test says what a scheduler would; fake nodes take every pod, whomever it asks for.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_client import until
from cluster_gangs import Groups, install
from cluster_nodes import fake_nodes
from cluster_operator import Operator, grant, started
from cluster_plane import ControlPlane
from cluster_pods import Script
from cluster_tfjobs import TFJobs, replicas, tfjob

from trainwright.crd.rbac import RBAC
from trainwright.kinds.gangs import PLUGINS_API, T9K_API, VOLCANO_API

pytest_plugins = ("cluster_fixtures",)
POD = {"resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}}
#: Seconds in which nothing must happen.
CALM = 4.0


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with (
        ControlPlane(tmp_path_factory.mktemp("gangs"), first=install, scheduler=False) as plane,
        fake_nodes(plane, 2, script=Script(runs=None), binds=True),
    ):
        yield plane
        assert plane.audit().where(user="operator", denied=True) == ()


@contextmanager
def operator(plane: ControlPlane, namespace: str, log: Path, *words: str) -> Iterator[Operator]:
    """One of this namespace, alone."""
    grant(plane, namespace, "operator", {"kind": "User", "name": "operator", "apiGroup": RBAC})
    alone = ("--no-leader-elect", f"--namespace={namespace}")
    with started(plane.kubeconfig("operator"), log, *alone, *words) as process:
        yield process
        assert process.end() == 0
    assert "Traceback" not in log.read_text()


def written(plane: ControlPlane, since: int, namespace: str) -> list[str]:
    calls = plane.audit(since).where(user="operator", namespace=namespace).writes
    return [f"{call.verb} {call.resource} {call.code}" for call in calls]


def with_needs(count: int) -> dict[str, object]:
    one = replicas(count)
    one["template"]["spec"]["containers"][0] |= POD
    return one


def test_pods_of_a_volcano_job_wait_for_their_groups_turn(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    jobs, groups = TFJobs(plane, namespace), Groups(plane, VOLCANO_API, namespace)
    policy = {
        "runPolicy": {"schedulingPolicy": {"queue": "research", "priorityClass": "high"}, "cleanPodPolicy": "All"}
    }
    with operator(plane, namespace, tmp_path / "log"):
        jobs.make(tfjob("demo", spec=policy, PS=with_needs(1), Worker=with_needs(2)))
        group = groups.until("demo")
        assert group["spec"] == {
            "minMember": 3,
            "queue": "research",
            "priorityClassName": "high",
            "minResources": {"cpu": "1.5", "memory": "3221225472"},
        }
        assert group["metadata"]["ownerReferences"][0]["uid"] == jobs.find("demo")["metadata"]["uid"]
        jobs.until("demo", "Created")
        groups.phase("demo", "Pending")

        # Nothing is made, and nothing is written, however long that takes.
        time.sleep(1)
        mark = plane.mark()
        time.sleep(CALM)
        assert written(plane, mark, namespace) == []
        assert jobs.children("demo") == {}

        plane.call("PATCH", f"{groups.path}/demo", {"spec": {"queue": "moved"}})
        groups.phase("demo", "Inqueue")
        jobs.until("demo", "Created", "Running")
        pods = jobs.children("demo")
        assert set(pods) == {"ps-0", "worker-0", "worker-1"}
        assert {pod["spec"]["schedulerName"] for pod in pods.values()} == {"volcano"}
        notes = pods["worker-1"]["metadata"]["annotations"]
        assert notes == {"scheduling.k8s.io/group-name": "demo", "volcano.sh/task-spec": "worker"}

        jobs.edit("demo", tfReplicaSpecs={"Worker": {"replicas": 3}})
        until(lambda: groups.find("demo")["spec"]["minMember"] == 4, "it grows with its job")
        assert groups.find("demo")["spec"]["queue"] == "moved"

        jobs.edit("demo", runPolicy={"suspend": True})
        groups.until("demo", there=False)
        jobs.edit("demo", runPolicy={"suspend": False})
        assert groups.until("demo")["spec"]["queue"] == "research"
        groups.phase("demo", "Running")
        jobs.until("demo", "Created", "Suspended=False", "Running")

        plane.call("PATCH", f"{jobs.core}/pods/demo-worker-0/status", _over())
        groups.until("demo", there=False)
    told = [reason for reason, _ in jobs.events("demo")]
    assert told == ["TFJobSuspended", "TFJobResumed", "TFJobSucceeded"]
    calls = [call for call in written(plane, 0, namespace) if "podgroups" in call]
    made = "podgroups.scheduling.volcano.sh"
    assert calls == [f"{verb} {made} {201 if verb == 'create' else 200}" for verb in
                     ("create", "patch", "delete", "create", "delete")]  # fmt: skip


def _over() -> dict[str, object]:
    """What a kubelet says of a pod that has done its work."""
    state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    return {"status": {"phase": "Succeeded", "containerStatuses": [{"name": "tensorflow", "state": state}]}}


def test_where_the_operator_is_told_a_scheduler_every_job_is_its_gang(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    jobs, groups = TFJobs(plane, namespace), Groups(plane, PLUGINS_API, namespace)
    with operator(plane, namespace, tmp_path / "log", "--gang-scheduler-name=together"):
        jobs.make(tfjob("demo", Worker=replicas(2, runs="0.5")))
        jobs.until("demo", "Created", "Running=False", "Succeeded")
        groups.until("demo", there=False)

    pods = jobs.children("demo")
    assert {pod["spec"]["schedulerName"] for pod in pods.values()} == {"together"}
    assert {pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for pod in pods.values()} == {"demo"}
    calls = [call for call in written(plane, 0, namespace) if "podgroups" in call]
    assert calls == [
        f"{verb} podgroups.scheduling.x-k8s.io {code}" for verb, code in (("create", 201), ("delete", 200))
    ]


def test_a_group_of_the_scheduler_before_goes_and_pods_stay(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """The operator is told another scheduler while a job runs."""
    jobs, policy = TFJobs(plane, namespace), {"runPolicy": {"schedulingPolicy": {"queue": "research"}}}
    old, new = Groups(plane, VOLCANO_API, namespace), Groups(plane, T9K_API, namespace)
    with operator(plane, namespace, tmp_path / "log"):
        jobs.make(tfjob("demo", spec=policy, Worker=replicas(2)))
        old.until("demo")
        old.phase("demo", "Running")
        jobs.until("demo", "Created", "Running")
    before = {name: pod["metadata"]["uid"] for name, pod in jobs.children("demo").items()}
    with operator(plane, namespace, tmp_path / "log", "--gang-scheduler-name=t9k-scheduler"):
        assert new.until("demo")["spec"]["minMember"] == 2
        old.until("demo", there=False)

    assert {name: pod["metadata"]["uid"] for name, pod in jobs.children("demo").items()} == before


def test_another_scheduler_in_a_template_is_told_of_once(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    jobs = TFJobs(plane, namespace)
    with operator(plane, namespace, tmp_path / "log", "--gang-scheduler-name=together"):
        jobs.make(tfjob("demo", Worker=replicas(1, pod={"schedulerName": "mine"})))
        jobs.until("demo", "Created", "Running")

    text = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
    assert jobs.events("demo").count(("SetPodTemplateSchedulerName", text)) == 1
    assert jobs.children("demo")["worker-0"]["spec"]["schedulerName"] == "mine"


def test_a_scheduler_whose_pod_groups_are_not_installed_is_told_in_a_line(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Of an API server that has some, but not these."""
    plane.kubectl("delete", "crd", "podgroups.scheduling.volcano.sh", "--wait")
    grant(plane, namespace, "operator", {"kind": "User", "name": "operator", "apiGroup": RBAC})
    log = tmp_path / "log"
    with started(plane.kubeconfig("operator"), log, "--no-leader-elect", "--gang-scheduler-name=volcano") as process:
        until(lambda: not process.alive, "it ends")
        assert process.end() == 2

    (line,) = [line for line in log.read_text().splitlines() if line.startswith("trainwright: ")]
    assert "--gang-scheduler-name volcano: it needs PodGroups of scheduling.volcano.sh/v1beta1" in line
    assert "found t9k-scheduler (scheduler.tensorstack.dev/v1beta1)" in line
