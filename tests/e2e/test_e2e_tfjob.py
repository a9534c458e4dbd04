# SPDX-License-Identifier: Apache-2.0
"""TFJobs on this machine: the examples that need nothing but Python, and the commands that reach a live one."""

import re

import msgspec
import yaml
from e2e_jobs import Body
from e2e_workspace import EXAMPLES, Workspace, until

pytest_plugins = ["e2e_fixtures"]

TFJOB = EXAMPLES / "tfjob"


def status(workspace: Workspace, name: str) -> Body:
    """The final status of a job."""
    found: Body = yaml.safe_load((workspace.folder_of(name) / "status.yaml").read_text())
    return found


def conditions(body: Body) -> list[str]:
    return [one["type"] for one in body["status"]["conditions"] if one["status"] == "True"]


def test_workers_find_each_other_by_tf_config(workspace: Workspace) -> None:
    done = workspace.run("run", str(TFJOB / "simple.yaml"))

    assert (done.code, done.err) == (0, ""), done.said
    assert "Worker-0 | worker 0 had 10.0, the average of 2 is 15.0" in done.out
    assert "Worker-1 | worker 1 had 20.0, the average of 2 is 15.0" in done.out
    named = '"worker": ["simple-worker-0.default.svc:2222", "simple-worker-1.default.svc:2222"]'
    assert (named in done.out) is (workspace.runtime == "sandbox")
    body = status(workspace, "simple")
    assert conditions(body) == ["Created", "Succeeded"]
    assert body["status"]["replicaStatuses"] == {"Worker": {"succeeded": 2}}
    assert workspace.left() == []


def test_a_manifest_of_the_first_version_runs_unchanged(workspace: Workspace) -> None:
    done = workspace.run("run", str(TFJOB / "alpha.yaml"))

    assert done.code == 0, done.said
    assert re.search(r"^ *[\d.]+s  PS-0  Stopped", done.out, re.M)
    body = status(workspace, "alpha")
    assert body["apiVersion"] == "kubeflow.org/v1"
    assert body["spec"]["trainwright"] == {"defaults": "v1alpha2"}
    assert body["status"]["tfReplicaStatuses"] == body["status"]["replicaStatuses"]


def test_dynamic_workers_come_and_go(workspace: Workspace) -> None:
    done = workspace.run("run", str(TFJOB / "dynamic.yaml"))

    assert done.code == 0, done.said
    assert "Worker-0 | two have called" in done.out
    assert "dynamic succeeded after" in done.out


def tfjob(**workers: object) -> Body:
    words = ["sh", "-c", "echo up; exec sleep 60"]
    container = {"name": "tensorflow", "image": "busybox", "command": words}
    worker = {"replicas": 2, "restartPolicy": "ExitCode", "template": {"spec": {"containers": [container]}}}
    spec = {"tfReplicaSpecs": {"Worker": worker | workers}, "runPolicy": {"cleanPodPolicy": "All"}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "e2e"}, "spec": spec}


def test_a_job_of_which_only_some_run_says_so_at_once(process: Workspace) -> None:
    job = tfjob()
    chief, worker = (msgspec.json.decode(msgspec.json.encode(job["spec"]["tfReplicaSpecs"]["Worker"])) for _ in "12")
    prepare = {"name": "prepare", "image": "busybox", "command": ["sleep", "600"]}
    worker["template"]["spec"]["initContainers"] = [prepare]
    job["spec"]["tfReplicaSpecs"] = {"Chief": chief | {"replicas": 1}, "Worker": worker | {"replicas": 1}}
    run = process.start("run", job)
    run.until("e2e  Running  1 of 2 running")
    process.run("delete", "e2e")

    told = re.search(r"^ *([\d.]+)s  e2e  Running  1 of 2", run.end().out, re.M)
    assert told is not None
    assert float(told[1]) < 40  # while the other prepares itself


def test_a_live_job_is_scaled_suspended_resumed_and_read(process: Workspace) -> None:
    run = process.start("run", tfjob())
    run.until("Worker-1 | up")

    assert "worker: 3 replicas" in process.run("scale", "e2e", "worker=3").out
    run.until("Worker-2 | up")
    assert process.run("logs", "e2e", "worker-2").out == "up\n"
    assert re.search(r"^default +e2e +TFJob +Running +3/3", process.run("get", "e2e").out, re.M)
    assert "is suspended" in process.run("suspend", "e2e").out
    until(lambda: "Suspended" in process.run("get", "e2e").out)
    assert "is resumed" in process.run("resume", "e2e").out
    until(lambda: re.search(r"Running +3/3", process.run("get", "e2e").out))
    process.run("delete", "e2e")
    assert run.end().code == 1
