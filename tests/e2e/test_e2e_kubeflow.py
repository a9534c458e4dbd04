# SPDX-License-Identifier: Apache-2.0
"""Jobs of Kubeflow v1 on this machine: the examples that need only Python, and the commands for a live job."""

import re

import pytest
import yaml
from e2e_workspace import EXAMPLES, Workspace, until

from trainwright.model.job import Body

pytest_plugins = ["e2e_fixtures"]


def status(workspace: Workspace, name: str) -> Body:
    """The final status of a job."""
    found: Body = yaml.safe_load((workspace.folder_of(name) / "status.yaml").read_text())["status"]
    return found


def conditions(body: Body) -> list[str]:
    return [one["type"] for one in body["conditions"] if one["status"] == "True"]


def test_the_processes_of_a_jaxjob_find_their_coordinator(workspace: Workspace) -> None:
    done = workspace.run("run", str(EXAMPLES / "jaxjob" / "simple.yaml"))

    assert (done.code, done.err) == (0, ""), done.said
    for rank in range(3):
        assert f"Worker-{rank} | process {rank} of 3: the sum of all ranks is 3" in done.out
    body = status(workspace, "jax-simple")
    assert conditions(body) == ["Created", "Succeeded"]
    assert body["replicaStatuses"]["Worker"]["succeeded"] == 3
    assert workspace.left() == []


def test_the_workers_of_an_xgboostjob_find_their_master(workspace: Workspace) -> None:
    done = workspace.run("run", str(EXAMPLES / "xgboostjob" / "simple.yaml"))

    assert (done.code, done.err) == (0, ""), done.said
    assert "Master-0 | the tracker has seen the ranks [0, 1, 2]" in done.out
    body = status(workspace, "xgboost-simple")
    assert conditions(body) == ["Created", "Succeeded"]
    assert body["replicaStatuses"] == {"Master": {"succeeded": 1}, "Worker": {"succeeded": 2}}
    assert workspace.left() == []


def test_the_workers_of_a_pytorchjob_start_after_their_master_and_find_it(workspace: Workspace) -> None:
    done = workspace.run("run", str(EXAMPLES / "pytorchjob" / "simple.yaml"))

    assert (done.code, done.err) == (0, ""), done.said
    for name, rank in (("Master-0", 0), ("Worker-0", 1), ("Worker-1", 2)):
        assert f"{name} | rank {rank} of 3: the sum of all ranks is 3" in done.out
    order = [done.out.index(f"{name}  Running") for name in ("Master-0", "Worker-0", "Worker-1")]
    assert order[0] < min(order[1:])
    assert conditions(status(workspace, "pytorch-simple")) == ["Created", "Succeeded"]


def test_the_workers_of_an_elastic_pytorchjob_meet(process: Workspace) -> None:
    """Without names: the endpoint has the address that is reserved for worker 0."""
    done = process.run("run", str(EXAMPLES / "pytorchjob" / "elastic.yaml"))

    assert done.code == 0, done.said
    assert "the rendezvous has seen 1 other workers of 2 to 4" in done.out


def test_a_pytorchjob_with_metrics_is_warned_that_there_is_no_autoscaler(process: Workspace) -> None:
    job = yaml.safe_load((EXAMPLES / "pytorchjob" / "elastic.yaml").read_text())
    job["spec"]["elasticPolicy"]["metrics"] = [{"type": "Resource", "resource": {"name": "cpu"}}]
    done = process.run("run", job)

    assert done.code == 0, done.said
    assert done.said.count("there is no autoscaler here") == 1


@pytest.mark.parametrize("name", ["simple", "parameter-servers"])
def test_a_paddlejob_of_kubeflow(workspace: Workspace, name: str) -> None:
    done = workspace.run("run", str(EXAMPLES / "kubeflow-paddlejob" / f"{name}.yaml"))

    assert (done.code, done.err) == (0, ""), done.said


@pytest.mark.parametrize("kind", ["jaxjob", "xgboostjob", "pytorchjob", "paddlejob.kubeflow.org"])
def test_the_starter_of_a_kind_runs_and_a_past_run_is_described(workspace: Workspace, kind: str) -> None:
    assert workspace.run("init", kind).code == 0
    done = workspace.run("run", "job.yaml")

    assert done.code == 0, done.said
    described = workspace.run("describe", "train")
    assert (described.code, described.err) == (0, "")
    assert re.search("(JAX|XGBoost|PyTorch|Paddle)Job", described.out)
    assert workspace.run("explain", "train").code == 0


def test_a_live_job_is_listed_scaled_and_deleted(process: Workspace) -> None:
    command = ["sh", "-c", "echo up; exec sleep 60"]
    template = {"spec": {"containers": [{"name": "jax", "image": "x", "command": command}]}}
    spec = {"jaxReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "JAXJob", "metadata": {"name": "live"}, "spec": spec}
    run = process.start("run", job)
    run.until("Worker-1 | up")

    assert process.run("scale", "live", "worker=3").code == 0
    run.until("Worker-2 | up")
    until(lambda: re.search(r"^default +live +JAXJob +Running +3/3", process.run("get", "live").out, re.M))
    process.run("delete", "live")
    assert run.end().code == 1
