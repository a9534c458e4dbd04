# SPDX-License-Identifier: Apache-2.0
"""What only a PyTorchJob has: workers that wait for their master, the autoscaler, and who decides the job."""

from typing import Any

import pytest
from kubeflow_driver import Driver, condition, conditions, counts, manifest, policy
from msgspec.structs import replace

from trainwright.kinds.gangs import T9K_API
from trainwright.model.job import Body
from trainwright.model.site import LEADER, Site, WaitRules

#: One machine: no images, and no autoscaler.
LOCAL = Site(waiting=None, has_autoscaler=False)
METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]
ELASTIC = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3, "metrics": METRICS}}
HPA = "HorizontalPodAutoscaler"


def made(spec: Body | None = None, site: Site | None = None, **types: Any) -> Driver:
    driver = Driver(manifest("pytorchjob", spec, **types), site=site or Site())
    driver.go()
    return driver


# -- workers wait for their master -----------------------------------------------------------------------------------


def test_on_a_cluster_an_init_container_of_each_worker_waits_for_the_name_of_the_master() -> None:
    own = {"name": "mine", "image": "x"}
    document = manifest("pytorchjob", Master=1, Worker=2)
    for one in document["spec"]["pytorchReplicaSpecs"].values():
        one["template"]["spec"]["initContainers"] = [own]
    driver = Driver(document)
    driver.go()
    master, worker = (driver.body("Pod", name)["spec"]["initContainers"] for name in ("master-0", "worker-1"))

    assert driver.names() == ["master-0", "worker-0", "worker-1"]
    assert master == [own]
    assert worker[0] == own
    added = worker[1]
    script = added.pop("command")
    assert added == {
        "name": "init-pytorch",
        "image": "alpine:3.10",
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": {"cpu": "50m", "memory": "10Mi"}, "limits": {"cpu": "100m", "memory": "20Mi"}},
    }
    assert script[:2] == ["sh", "-c"]
    assert "nslookup demo-master-0" in script[2]


def test_workers_without_a_master_have_no_init_container() -> None:
    assert "initContainers" not in made(Worker=2).body("Pod", "worker-1")["spec"]


def test_image_and_tries_are_settings_of_the_operator() -> None:
    driver = made(site=Site(waiting=WaitRules("registry.example/tools", 7)))
    (added,) = driver.body("Pod", "worker-0")["spec"]["initContainers"]

    assert added["image"] == "registry.example/tools"
    assert "-ge 7 " in added["command"][2]


def test_a_template_replaces_the_container() -> None:
    given = {"name": "wait", "image": "x", "command": ["ping", LEADER], "env": [{"name": "M", "value": f"at {LEADER}"}]}
    driver = made(site=Site(waiting=WaitRules(containers=(given,))))

    assert driver.body("Pod", "worker-0")["spec"]["initContainers"] == [
        {
            "name": "wait",
            "image": "x",
            "command": ["ping", "demo-master-0"],
            "env": [{"name": "M", "value": "at demo-master-0"}],
        }
    ]


def test_on_one_machine_workers_are_created_when_the_master_runs() -> None:
    driver = made(site=LOCAL)
    assert driver.names() == ["master-0"]
    assert driver.names("Service") == ["master-0", "worker-0"]

    driver.start_all("master-0")
    assert driver.names() == ["master-0", "worker-0"]
    assert "initContainers" not in driver.body("Pod", "worker-0")["spec"]
    assert conditions(driver.start_all()) == ["Created", "Running"]


def test_on_one_machine_a_worker_that_restarts_waits_for_a_master_that_restarts() -> None:
    driver = made(site=LOCAL)
    driver.start_all("master-0")
    driver.start_all()
    for name in ("master-0", "worker-0"):
        driver.evict(f"demo-{name}")
    driver.go()
    driver.pass_by(60)
    assert driver.names() == ["master-0"]

    driver.start_all("master-0")
    assert driver.names() == ["master-0", "worker-0"]


def test_the_pods_of_a_gang_are_created_together_because_its_scheduler_waits_for_all() -> None:
    driver = made(policy(schedulingPolicy={}), replace(LOCAL, gangs=frozenset({T9K_API})))

    assert driver.names("PodGroup") == ["demo"]
    assert driver.names() == ["master-0", "worker-0"]


# -- the autoscaler ----------------------------------------------------------------------------------------------------


def autoscaler(driver: Driver) -> Body:
    return driver.bodies[HPA, "demo"]


def test_a_job_with_metrics_has_an_autoscaler() -> None:
    driver = made(ELASTIC, Worker=2)
    body = autoscaler(driver)

    assert (body["apiVersion"], body["metadata"]["name"]) == ("autoscaling/v2", "demo")
    assert body["metadata"]["ownerReferences"][0]["kind"] == "PyTorchJob"
    assert body["spec"] == {
        "scaleTargetRef": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "demo"},
        "minReplicas": 1,
        "maxReplicas": 3,
        "metrics": METRICS,
    }


def test_bounds_that_are_not_given_are_the_number_of_workers() -> None:
    spec = autoscaler(made({"elasticPolicy": {"metrics": METRICS}}, Worker=2))["spec"]

    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 2)


@pytest.mark.parametrize("spec", [{}, {"elasticPolicy": {"minReplicas": 1}}], ids=["plain", "without metrics"])
def test_other_jobs_have_none(spec: Body) -> None:
    assert made(spec, Worker=2).names(HPA) == []


def test_one_machine_has_no_autoscaler() -> None:
    assert made(ELASTIC, LOCAL, Worker=2).names(HPA) == []


def test_the_autoscaler_follows_an_edit_and_goes_with_its_metrics() -> None:
    """The original leaves the autoscaler of a job whose metrics are removed, and it goes on scaling."""
    driver = made(ELASTIC, Worker=2)
    driver.edited(elasticPolicy=ELASTIC["elasticPolicy"] | {"maxReplicas": 9})
    assert autoscaler(driver)["spec"]["maxReplicas"] == 9

    driver.edited(elasticPolicy={"minReplicas": 1, "maxReplicas": 9})
    assert driver.names(HPA) == []


def test_a_suspended_job_has_no_autoscaler() -> None:
    driver = made(ELASTIC, Worker=2)
    driver.edited(runPolicy={"suspend": True})
    assert driver.names(HPA) == []

    driver.edited(runPolicy={"suspend": False})
    assert driver.names(HPA) == ["demo"]


@pytest.mark.parametrize("code", [0, 1])
def test_the_autoscaler_goes_when_the_job_ends(code: int) -> None:
    """The original leaves it until somebody deletes the job."""
    driver = Driver(manifest("pytorchjob", ELASTIC, "Never", Worker=2)).running()
    status = driver.end("worker-0", code=code)

    assert conditions(status)[-1] == ("Failed" if code else "Succeeded")
    assert driver.names(HPA) == []


def test_scaling_creates_and_removes_the_highest_indexes_and_leaves_running_pods_alone() -> None:
    driver = Driver(manifest("pytorchjob", ELASTIC, Worker=2)).running()
    driver.scale("Worker", 3)
    assert driver.names() == ["worker-0", "worker-1", "worker-2"]

    driver.start_all()
    driver.scale("Worker", 1)
    assert driver.names() == driver.names("Service") == ["worker-0"]


# -- who decides -------------------------------------------------------------------------------------------------------


def test_one_worker_of_an_elastic_job_is_enough() -> None:
    driver = Driver(manifest("pytorchjob", {"elasticPolicy": {}}, Worker=3)).running()
    assert condition(driver.status, "Running")[1] == "PyTorchJob lab/demo is running."
    status = driver.end("worker-1")

    assert conditions(status) == ["Created", "Running=False", "Succeeded"]
    assert condition(status, "Succeeded")[1] == "PyTorchJob lab/demo successfully completed."
    assert counts(status) == {"Worker": "0/3/0"}


def test_every_worker_of_a_job_without_a_master_must_succeed_unless_it_is_elastic() -> None:
    driver = Driver(manifest("pytorchjob", Worker=2)).running()

    assert conditions(driver.end("worker-1")) == ["Created", "Running"]
    assert conditions(driver.end("worker-0"))[-1] == "Succeeded"


@pytest.mark.parametrize("spec", [{}, {"elasticPolicy": {}}], ids=["plain", "elastic"])
def test_the_master_decides_if_there_is_one(spec: Body) -> None:
    driver = Driver(manifest("pytorchjob", spec, Master=1, Worker=2)).running()
    assert conditions(driver.end("worker-0")) == ["Created", "Running"]

    status = driver.end("master-0")
    assert condition(status, "Succeeded")[1] == "PyTorchJob demo is successfully completed."
    assert counts(status) == {"Master": "0/1/0", "Worker": "0/2/0"}


def test_a_paddlejob_succeeds_with_all_of_its_masters() -> None:
    driver = Driver(manifest("paddlejob", Master=2, Worker=1)).running()
    assert condition(driver.status, "Running")[1] == "PaddleJob demo is running."
    assert conditions(driver.end("master-0", "worker-0")) == ["Created", "Running"]

    status = driver.end("master-1")
    assert condition(status, "Succeeded")[1] == "PaddleJob demo is successfully completed."
