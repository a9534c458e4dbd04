# SPDX-License-Identifier: Apache-2.0
"""Jobs of Kubeflow v1 on a real control plane: their lives, `kubectl scale`, and the autoscaler of a PyTorchJob."""

import pytest
from cluster_client import until
from cluster_kubeflow import KINDS, METRICS, KubeflowJobs, kubeflow_job
from cluster_operator import Operator
from cluster_paddlejobs import PaddleJobs, paddlejob, role
from cluster_plane import ControlPlane

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")
each = pytest.mark.parametrize("plural", KINDS)
SCALED = ["pytorchjobs", "jaxjobs", "paddlejobs"]
ELASTIC = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3, "metrics": METRICS}}


@pytest.fixture
def space(namespace: str, nodes: object, operator: Operator) -> str:
    """A namespace in which the operator works."""
    return namespace


@each
def test_a_job_runs_and_succeeds(plane: ControlPlane, space: str, plural: str) -> None:
    jobs = KubeflowJobs(plane, space, plural)
    jobs.make(kubeflow_job(plural, "demo", runs="0.5"))
    status = jobs.until("demo", "Created", "Running=False", "Succeeded")

    assert status["completionTime"]
    assert sorted(jobs.children("demo")) == sorted(jobs.children("demo", "services"))
    assert jobs.kubectl("get", jobs.plural, "demo").splitlines()[1].split()[1] == "Succeeded"


def test_both_kinds_of_paddlejobs_live_side_by_side(plane: ControlPlane, space: str) -> None:
    jobs, others = KubeflowJobs(plane, space, "paddlejobs"), PaddleJobs(plane, space)
    jobs.make(kubeflow_job("paddlejobs", "kubeflow", runs="0.5"))
    others.make(paddlejob("paddle", worker=role(2, runs="0.5")))

    jobs.until("kubeflow", "Created", "Running=False", "Succeeded")
    others.until("paddle", "Completed")
    assert jobs.kubectl("get", jobs.plural, "-o", "name").split() == ["paddlejob.kubeflow.org/kubeflow"]


@pytest.mark.parametrize("plural", SCALED)
def test_kubectl_scales_the_workers(plane: ControlPlane, space: str, plural: str) -> None:
    jobs = KubeflowJobs(plane, space, plural)
    jobs.make(kubeflow_job(plural, "demo", Worker=2))
    until(lambda: jobs.running("demo") == ["worker-0", "worker-1"], "two workers run")

    for count in (3, 1):
        assert jobs.kubectl("scale", f"{jobs.plural}/demo", f"--replicas={count}").endswith("demo scaled\n")
        until(lambda: len(jobs.running("demo")) == count, f"{count} run")  # noqa: B023 - called at once
    scale = ("get", f"{jobs.plural}/demo", "--subresource=scale", "-o")
    until(lambda: jobs.kubectl(*scale, "jsonpath={.status.replicas}") == "1", "the scale counts the running workers")
    selector = jobs.kubectl(*scale, "jsonpath={.status.selector}")
    assert jobs.kubectl("get", "pods", "-l", selector, "-o", "name").split() == ["pod/demo-worker-0"]


def test_an_autoscaler_follows_its_job(plane: ControlPlane, space: str) -> None:
    jobs = KubeflowJobs(plane, space, "pytorchjobs")
    jobs.make(kubeflow_job("pytorchjobs", "demo", ELASTIC, Worker=1))
    until(lambda: jobs.autoscaler("demo").get("maxReplicas") == 3, "it is there")
    assert jobs.autoscaler("demo")["scaleTargetRef"] == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": "demo",
    }

    jobs.edit("demo", elasticPolicy={"maxReplicas": 5})
    until(lambda: jobs.autoscaler("demo").get("maxReplicas") == 5, "it follows an edit")
    plane.call("DELETE", f"{jobs.autoscalers}/demo")
    until(lambda: bool(jobs.autoscaler("demo")), "it comes back")
    jobs.edit("demo", runPolicy={"suspend": True})
    until(lambda: not jobs.autoscaler("demo"), "a suspended job has none")
    jobs.edit("demo", runPolicy={"suspend": False})
    until(lambda: bool(jobs.autoscaler("demo")), "a resumed job has one")
    jobs.edit("demo", elasticPolicy={"metrics": None})
    until(lambda: not jobs.autoscaler("demo"), "a job without metrics has none")


def test_an_autoscaler_goes_when_its_job_ends(plane: ControlPlane, space: str) -> None:
    jobs = KubeflowJobs(plane, space, "pytorchjobs")
    mark = plane.mark()
    jobs.make(kubeflow_job("pytorchjobs", "demo", ELASTIC, runs="1", Worker=1))
    jobs.until("demo", "Created", "Running=False", "Succeeded")
    until(lambda: not jobs.autoscaler("demo"), "it is removed")

    calls = plane.audit(mark).where(user="operator", resource="horizontalpodautoscalers.autoscaling", namespace=space)
    assert [call.verb for call in calls] == ["create", "delete"]


def test_a_real_autoscaler_scales_a_job(plane: ControlPlane, space: str) -> None:
    """It knows no metrics here, but keeps the bounds."""
    jobs = KubeflowJobs(plane, space, "pytorchjobs")
    policy = ELASTIC["elasticPolicy"] | {"minReplicas": 2}
    jobs.make(kubeflow_job("pytorchjobs", "demo", {"elasticPolicy": policy}, Worker=1))

    until(lambda: jobs.running("demo") == ["worker-0", "worker-1"], f"it has two workers: {jobs.find('demo')}")
    assert jobs.find("demo")["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2


def test_workers_of_a_pytorchjob_have_an_init_container(plane: ControlPlane, space: str) -> None:
    jobs = KubeflowJobs(plane, space, "pytorchjobs")
    jobs.make(kubeflow_job("pytorchjobs", "demo"))
    until(lambda: jobs.running("demo") == ["master-0", "worker-0"], "both run")

    names = {
        name: [one["name"] for one in pod["spec"].get("initContainers") or ()]
        for name, pod in jobs.children("demo").items()
    }
    assert names == {"master-0": [], "worker-0": ["init-pytorch"]}
