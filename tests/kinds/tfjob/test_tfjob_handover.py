# SPDX-License-Identifier: Apache-2.0
"""Jobs that are, or were, another controller's: what that one has said of them stays, whatever we think of them."""

from typing import Any

import pytest
from tfjob_driver import Driver, conditions, counts, manifest, policy

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.job import Body
from trainwright.model.ledger import Phase

#: What the original leaves behind.
SAID: Body = {
    "conditions": [
        {"type": "Created", "status": "True", "reason": "TFJobCreated"},
        {"type": "Running", "status": "False", "reason": "TFJobRunning"},
        {"type": "Succeeded", "status": "True", "reason": "TFJobSucceeded"},
    ],
    "replicaStatuses": {"Worker": {"succeeded": 2}, "PS": {}},
    "startTime": "2026-01-01T00:00:00Z",
    "completionTime": "2026-01-01T00:10:00Z",
}
FITS: dict[str, Any] = {"Worker": 2, "PS": 1}
#: The original runs it; we would not.
UNFIT: dict[str, Any] = {"Worker": 2, "PS": 1, "Helper": 1}


@pytest.mark.parametrize("types", [FITS, UNFIT], ids=["valid", "invalid"])
def test_a_job_that_ended_elsewhere_keeps_all_that_was_said_of_it(types: dict[str, Any]) -> None:
    driver = Driver(manifest(**types) | {"status": SAID})
    status = driver.go()

    assert conditions(status) == ["Created", "Running=False(TFJobRunning)", "Succeeded"]
    assert counts(status) == {"Worker": "0/2/0", "PS": "0/0/0"}
    assert {key: status[key] for key in SAID} == SAID
    assert (driver.truth, driver.told) == ({}, [])


def test_so_does_one_of_another_kind() -> None:
    job = load(GENERICJOB, {"metadata": {"name": "demo"}, "spec": {}, "status": {"phase": "Succeeded"}}).job

    assert job.invalid
    assert job.ledger.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "example.com/another"])
def test_what_is_wrong_with_a_job_is_its_managers_to_say(manager: str) -> None:
    driver = Driver(manifest(spec=policy(managedBy=manager), Helper=1))

    assert driver.load().errors
    assert driver.go() == {}
    assert (driver.truth, driver.told) == ({}, [])


@pytest.mark.parametrize("given", [None, [], {"managedBy": 7}, {"managedBy": "kubeflow.org/training-operator"}])
def test_a_broken_job_that_names_no_other_manager_is_ours(given: Any) -> None:
    driver = Driver(manifest(spec={"runPolicy": given}, Helper=1))

    assert conditions(driver.go()) == ["Created", "Failed"]


def test_an_edit_of_a_job_that_has_ended_is_not_judged() -> None:
    driver = Driver(manifest(version="v1alpha2", Worker=1)).running()
    status = driver.end("worker-0")

    assert driver.edited(tfReplicaSpecs={"Helper": 1}) == status
