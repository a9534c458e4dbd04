# SPDX-License-Identifier: Apache-2.0
"""Defects of the original controllers, each as a story in which it does not happen here."""

from typing import Any

import pytest
from kubeflow_driver import FRAMEWORKS, Driver, condition, conditions, manifest, policy

from trainwright.kinds.base import load
from trainwright.testing.factories import later

each = pytest.mark.parametrize("kind", FRAMEWORKS)


def ready(kind: str, restart: str = "", **run_policy: object) -> Driver:
    return Driver(manifest(kind, policy(**run_policy), restart)).running()


@each
def test_a_permanent_exit_code_sets_the_completion_time_so_the_time_to_live_works(kind: str) -> None:
    """The original took the restart branch as well, never set completionTime, and never removed the job."""
    driver = ready(kind, "ExitCode", ttlSecondsAfterFinished=100)
    status = driver.end("worker-0", code=1)

    assert status["completionTime"]
    assert driver.look().wake == later(100)
    assert not [reason for reason, _ in driver.said() if reason.endswith("Restarting")]
    driver.pass_by(101)
    assert driver.gone


@pytest.mark.parametrize("restart", ["OnFailure", "Always", "ExitCode"])
@each
def test_a_pod_that_is_evicted_is_replaced(kind: str, restart: str) -> None:
    """The original XGBoostJob failed under OnFailure and Always, in the pass that deleted the pod for its restart."""
    driver = ready(kind, restart)
    driver.evict("demo-worker-0")
    assert conditions(driver.go()) == ["Created", "Restarting"]

    driver.pass_by(60)
    assert conditions(driver.start_all()) == ["Created", "Running"]


@pytest.mark.parametrize("restart", ["Never", "OnFailure", "ExitCode"])
@each
def test_a_pod_that_is_being_deleted_neither_fails_nor_restarts_its_job(kind: str, restart: str) -> None:
    """The original counts a running pod that is being deleted as failed."""
    driver = ready(kind, restart)
    driver.delete(("Pod", "demo-worker-0"))
    driver.catch_up()
    driver.step()
    assert conditions(driver.status) == ["Created", "Running"]

    driver.go()
    driver.start_all()
    assert conditions(driver.status) == ["Created", "Running"]
    assert len(driver.names()) == 2


#: The kinds that a master decides.
led = pytest.mark.parametrize("kind", ["xgboostjob", "pytorchjob", "paddlejob"])


@pytest.mark.parametrize("order", [("Master", "Worker"), ("Worker", "Master")], ids=str)
@led
def test_a_master_that_succeeds_wins_over_a_worker_that_fails_at_the_same_time(
    kind: str, order: tuple[str, str]
) -> None:
    """In the original the order of a Go map decided, which is random."""
    types: dict[str, Any] = dict.fromkeys(order, 1)
    driver = Driver(manifest(kind, restart="Never", **types)).running()
    driver.exit("demo-worker-0", 1)
    driver.exit("demo-master-0", 0)

    assert conditions(driver.go())[-1] == "Succeeded"


@led
def test_a_master_without_replicas_is_one(kind: str) -> None:
    """Releases up to 1.7 accept such manifests; 1.8 and later refuse them."""
    driver = Driver(manifest(kind, Master=None, Worker=1))
    driver.go()

    assert driver.names() == ["master-0", "worker-0"]


def test_an_xgboostjob_with_zero_workers_creates_none() -> None:
    """The original creates and deletes worker 0 for ever."""
    driver = Driver(manifest("xgboostjob", Master=1, Worker=0)).running()

    assert driver.names() == driver.names("Service") == ["master-0"]
    assert conditions(driver.end("master-0"))[-1] == "Succeeded"


@each
def test_a_job_that_another_controller_manages_is_left_alone(kind: str) -> None:
    """The original JAXJob ignores managedBy, although MultiKueue relies on it."""
    driver = Driver(manifest(kind, policy(managedBy="kueue.x-k8s.io/multikueue")))

    assert driver.go() == {}
    assert driver.names() == []


@each
def test_managed_by_is_checked_and_cannot_be_changed(kind: str) -> None:
    """The original checks it in no JAXJob, and compares the new PyTorchJob with itself."""
    value = FRAMEWORKS[kind][0]
    wrong = load(value, manifest(kind, policy(managedBy="somebody"))).errors
    ours, other = (
        load(value, manifest(kind, policy(managedBy=manager))).wire
        for manager in ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")
    )

    assert [problem.path for problem in wrong] == ["spec.runPolicy.managedBy"]
    assert [problem.path for problem in value.check_edit(ours, other)] == ["spec.runPolicy.managedBy"]


@pytest.mark.parametrize("policy", [{"rdzvConf": []}, {"rdzvConf": None}, {"standalone": True}], ids=str)
def test_an_elastic_policy_that_crashes_the_original_or_torchrun(policy: dict[str, Any]) -> None:
    """The original slices an empty list of settings to -1, and writes a text for `standalone` that is no number."""
    driver = Driver(manifest("pytorchjob", {"elasticPolicy": policy}, Worker=1))
    driver.go()
    found = driver.env("worker-0")

    assert "PET_RDZV_CONF" not in found
    assert found.get("PET_STANDALONE") == ("1" if "standalone" in policy else None)


def test_workers_without_a_master_find_each_other() -> None:
    """The original gives them neither an address nor a rank."""
    driver = Driver(manifest("pytorchjob", Worker=3))
    driver.go()
    found = [driver.env(name) for name in driver.names()]

    assert [one["RANK"] for one in found] == [one["PET_NODE_RANK"] for one in found] == ["0", "1", "2"]
    assert {one["MASTER_ADDR"] for one in found} == {one["PET_MASTER_ADDR"] for one in found} == {"demo-worker-0"}


def test_an_elastic_paddlejob_without_workers_does_not_crash() -> None:
    driver = Driver(manifest("paddlejob", {"elasticPolicy": {}}, Master=1)).running()

    assert conditions(driver.end("master-0"))[-1] == "Succeeded"


@each
def test_a_replica_spec_that_is_null_is_an_error_and_no_crash(kind: str) -> None:
    """The original's webhook dereferences it."""
    document = manifest(kind)
    document["spec"][FRAMEWORKS[kind][1].field]["Worker"] = None
    driver = Driver(document)

    assert condition(driver.go(), "Failed")[0].endswith("FailedValidation")
