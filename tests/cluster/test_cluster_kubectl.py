# SPDX-License-Identifier: Apache-2.0
"""Jobs as people handle them on a cluster: apply, get, describe, explain, wait, edit, pause, scale, delete."""

import json
import os
import stat
from pathlib import Path

import pytest
from cluster_client import run, until
from cluster_jobs import Jobs, job, role
from cluster_plane import ControlPlane

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")


def test_a_job_is_applied_waited_for_and_described(jobs: Jobs) -> None:
    jobs.apply(job("well", role(replicas=2, runs="1")))
    said = jobs.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "gj/well", "--timeout=100s")
    assert "condition met" in said

    assert jobs.kubectl("get", "gj").splitlines()[1].split()[:2] == ["well", "Succeeded"]
    until(lambda: " 0 2 0 " in " ".join(jobs.kubectl("get", "gj", "-o", "wide").split()), "the counts are told")
    described = " ".join(jobs.kubectl("describe", "gj", "well").split())
    assert "Message: The job has finished successfully." in described
    events = described.partition("Events:")[2]
    assert "Normal Running" in events
    assert "Normal Succeeded" in events
    assert "every replica that counts has succeeded" in events
    assert "Warning" not in events


def test_a_failed_job_says_which_pod_failed_and_how(jobs: Jobs) -> None:
    jobs.apply(job("bad", role(limit=1, exit="3")))
    jobs.until("bad", "Failed")

    def told() -> list[str]:
        """That it ran is told only if somebody looked in between."""
        return [said for said in jobs.events("bad") if not said.startswith("Running ")]

    until(lambda: len(told()) == 2, f"restarted and failed: {jobs.events('bad')}")
    restarting, failed = told()
    assert restarting.startswith("Restarting restarting after bad-worker-0: ")
    assert failed.startswith("Failed worker ")
    assert failed.endswith("container main exited with code 3")
    assert "exited with error code 3" in jobs.condition("bad")
    assert jobs.condition("bad", "Failed")


def test_get_yaml_shows_nothing_that_nobody_asked_for(jobs: Jobs) -> None:
    jobs.apply(job("plain"))
    jobs.until("plain", "Succeeded")

    found = json.loads(jobs.kubectl("get", "gj", "plain", "-o", "json"))
    assert found["metadata"].keys() <= {
        "annotations",
        "creationTimestamp",
        "generation",
        "name",
        "namespace",
        "resourceVersion",
        "uid",
    }
    assert list(found["metadata"]["annotations"]) == ["kubectl.kubernetes.io/last-applied-configuration"]
    assert found["metadata"]["generation"] == 1
    assert found["status"].keys() == {"aggregate", "conditions", "phase", "tasks", "trainwright"}
    pod = next(iter(jobs.pods().values()))
    assert list(pod["metadata"].get("annotations", {})) == []
    assert "finalizers" not in pod["metadata"]


@pytest.mark.parametrize("path", ["gj", "gj.spec", "gj.spec.replicaSpecs", "gj.spec.replicaSpecs.restartPolicy"])
def test_every_field_is_explained(plane: ControlPlane, path: str) -> None:
    said = plane.kubectl("explain", path).stdout

    assert "<no description>" not in said, said


@pytest.mark.parametrize(
    ("cascade", "left"),
    [("background", 0), ("foreground", 0), ("orphan", 2)],
)
def test_a_deleted_job_takes_its_children_along_unless_told_not_to(jobs: Jobs, cascade: str, left: int) -> None:
    jobs.apply(job("gone", role(replicas=2, runs="forever"), service={"ports": [{"port": 80}]}))
    jobs.until("gone", "Running")
    before = {name: one["metadata"]["uid"] for name, one in jobs.pods().items()}
    services = f"/api/v1/namespaces/{jobs.namespace}/services"

    jobs.kubectl("delete", "gj", "gone", f"--cascade={cascade}", "--timeout=100s")

    assert jobs.find("gone") == {}
    until(lambda: len(jobs.plane.call("GET", services)["items"]) == left, "the services")
    jobs.until_pods(left)
    assert {name: one["metadata"]["uid"] for name, one in jobs.pods().items()} == (before if left else {})


def test_what_an_orphaned_pod_means_for_a_new_job_of_the_name(jobs: Jobs) -> None:
    """It is somebody's now: the new job says so, and goes on when it is gone."""
    body = job("again", role(replicas=2, runs="forever"))
    jobs.apply(body)
    jobs.until("again", "Running")
    jobs.kubectl("delete", "gj", "again", "--cascade=orphan")

    jobs.apply(body)
    jobs.until_told("again", 'pods "again-worker-0" already exists, and is not this job\'s: no controller owns it')
    jobs.kubectl("delete", "pod", "--all", "--now")
    jobs.until("again", "Running")
    assert jobs.condition("again") == ""


def test_a_job_that_is_deleted_and_made_again_at_once_starts_anew(jobs: Jobs) -> None:
    body = job("anew", role(replicas=3, runs="forever", stops="1"))
    for _ in range(2):
        jobs.make(body)
        jobs.until("anew", "Running")
        old = {one["metadata"]["uid"] for one in jobs.pods().values()}
        jobs.plane.call("DELETE", f"{jobs.path}/anew")
    jobs.make(body)

    jobs.until("anew", "Running")
    assert old.isdisjoint({one["metadata"]["uid"] for one in jobs.pods().values()})
    assert [event for event in jobs.events("anew") if "FailedCreate" in event] == []


def test_a_job_that_is_deleted_while_its_pods_are_made_leaves_nothing(jobs: Jobs) -> None:
    for number in range(5):
        jobs.make(job(f"brief-{number}", role(replicas=50, runs="forever"), service={"ports": [{"port": 80}]}))
        until(lambda number=number: len(jobs.pods(f"brief-{number}")) > number * 5, "some are made")  # type: ignore[misc]
        jobs.plane.call("DELETE", f"{jobs.path}/brief-{number}")

    jobs.until_pods(0)
    services = f"/api/v1/namespaces/{jobs.namespace}/services"
    until(lambda: not jobs.plane.call("GET", services)["items"], "the services are gone")


def test_edit_scales_up_and_down(jobs: Jobs, tmp_path: Path) -> None:
    """With an editor, as people do."""
    jobs.apply(job("size", role(replicas=2, runs="forever")))
    jobs.until("size", "Running")
    before = {name: one["metadata"]["uid"] for name, one in jobs.pods().items()}

    for replicas in (4, 1):
        script = tmp_path / "editor"
        script.write_text(f'#!/bin/sh\nexec sed -i "s/^  - replicas: .*/  - replicas: {replicas}/" "$1"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        ours = [f"--kubeconfig={jobs.plane.kubeconfig()}", "-n", jobs.namespace]
        run(
            [
                "env",
                f"KUBE_EDITOR={script}",
                f"HOME={tmp_path}",
                f"PATH={os.environ['PATH']}",
                jobs.plane.binaries["kubectl"],
                *ours,
                "edit",
                "gj",
                "size",
            ]
        )
        jobs.until_pods(replicas, phase="Running")
        jobs.until("size", "Running")

    assert jobs.pods()["size-worker-0"]["metadata"]["uid"] == before["size-worker-0"]
    assert jobs.status("size")["tasks"][0].get("restartCount", 0) == 0


def test_pause_and_resume(jobs: Jobs) -> None:
    resume = {"resumeSpecs": [{"type": "worker", "args": ["again"]}]}
    jobs.apply(job("nap", role(replicas=2, runs="forever"), runMode={"pause": {"enabled": False, **resume}}))
    jobs.until("nap", "Running")

    def pause(so: bool) -> None:
        patch = json.dumps({"spec": {"runMode": {"pause": {"enabled": so}}}})
        jobs.kubectl("patch", "gj", "nap", "--type=merge", "-p", patch)

    pause(True)
    jobs.until("nap", "Paused")
    jobs.until_pods(0)
    pause(False)
    jobs.until("nap", "Running")

    assert [one["spec"]["containers"][0]["args"] for one in jobs.pods().values()] == [["again"]] * 2
    assert [event.split()[0] for event in jobs.events("nap")] == ["Running", "Suspended", "Resumed", "Running"]


def test_an_edit_that_cannot_be_applied_is_told_and_harms_nothing(jobs: Jobs) -> None:
    """Templates are open in the schema, so the server takes it."""
    jobs.apply(job("edited", role(replicas=1, runs="forever")))
    jobs.until("edited", "Running")
    uid = jobs.pods()["edited-worker-0"]["metadata"]["uid"]
    bad, good = role(replicas=2, runs="forever"), role(replicas=2, runs="forever")
    bad["template"]["spec"]["containers"][0]["command"] = "true"

    jobs.apply(job("edited", bad))
    jobs.until_told("edited", "spec.replicaSpecs[0].template.spec.containers[0].command: expected")
    assert jobs.phase("edited") == "Running"
    assert {name: one["metadata"]["uid"] for name, one in jobs.pods().items()} == {"edited-worker-0": uid}

    jobs.apply(job("edited", good))
    jobs.until_pods(2, phase="Running")
    until(lambda: not jobs.condition("edited"), "it is mended")
    assert jobs.pods()["edited-worker-0"]["metadata"]["uid"] == uid
