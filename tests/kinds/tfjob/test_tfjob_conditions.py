# SPDX-License-Identifier: Apache-2.0
"""Conditions: types, reasons, messages and their order, which people see; counts and times; events, each once."""

from typing import Any

import pytest
from tfjob_driver import Driver, condition, conditions, container, counts, manifest, policy, replicas

from trainwright.kinds.tfjob.conditions import put
from trainwright.kinds.tfjob.wire import JobCondition
from trainwright.model.units import rfc3339
from trainwright.testing.factories import later

RESTARTABLE: dict[str, Any] = {"Worker": replicas(2, restartPolicy="OnFailure")}


def said(kind: str, status: str = "True", reason: str = "", time: str = "t", **more: Any) -> JobCondition:
    return JobCondition(
        kind, status, reason or f"TFJob{kind}", last_update_time=time, last_transition_time=time, **more
    )


def shown(conditions: tuple[JobCondition, ...]) -> list[str]:
    return [one.type if one.status == "True" else f"{one.type}={one.status}" for one in conditions]


# -- the algorithm -------------------------------------------------------------------------------------------------

CREATED, RUNNING, RESTARTING = said("Created"), said("Running"), said("Restarting")
SUCCEEDED, FAILED, SUSPENDED = said("Succeeded"), said("Failed"), said("Suspended")


@pytest.mark.parametrize(
    ("puts", "expected"),
    [
        ([CREATED, RUNNING], ["Created", "Running"]),
        ([CREATED, RUNNING, RESTARTING], ["Created", "Restarting"]),
        ([CREATED, RUNNING, RESTARTING, RUNNING], ["Created", "Running"]),
        ([CREATED, RUNNING, RESTARTING, RUNNING, FAILED], ["Created", "Running=False", "Failed"]),
        ([CREATED, RUNNING, SUCCEEDED], ["Created", "Running=False", "Succeeded"]),
        ([CREATED, SUCCEEDED], ["Created", "Succeeded"]),
        ([CREATED, FAILED, RUNNING, SUCCEEDED], ["Created", "Failed"]),
        ([CREATED, RUNNING, SUSPENDED, RUNNING], ["Created", "Running", "Suspended"]),
        ([CREATED, SUSPENDED, said("Suspended", "False", "TFJobResumed")], ["Created", "Suspended=False"]),
    ],
)
def test_a_condition_is_put_where_the_original_puts_it(puts: list[JobCondition], expected: list[str]) -> None:
    conditions: tuple[JobCondition, ...] = ()
    for one in puts:
        conditions = put(conditions, one)

    assert shown(conditions) == expected


def test_the_same_status_and_reason_change_nothing_not_even_the_message() -> None:
    before = (CREATED, said("Restarting", message="PS"))

    assert put(before, said("Restarting", time="later", message="Worker")) == before


def test_another_reason_keeps_the_time_of_the_transition() -> None:
    (after,) = put((said("Running", "False", "A"),), said("Running", "False", "B", "later"))

    assert (after.reason, after.last_transition_time, after.last_update_time) == ("B", "t", "later")


def test_the_end_flips_running_in_its_place_and_leaves_its_words_and_times() -> None:
    running = said("Running", message="TFJob lab/demo is running.")

    assert put((running,), said("Succeeded", time="later"))[0] == said("Running", "False", message=running.message)


# -- sequences -----------------------------------------------------------------------------------------------------


def test_the_usual_life() -> None:
    driver = Driver(manifest(Worker=2, PS=1))
    driver.step()
    assert conditions(driver.status) == ["Created"]
    assert condition(driver.status, "Created") == ("True", "TFJobCreated", "TFJob demo is created.")
    assert driver.status["startTime"] == rfc3339(later(0))
    assert "completionTime" not in driver.status

    driver.pass_by(5)
    assert conditions(driver.start_all()) == ["Created", "Running"]
    assert condition(driver.status, "Running") == ("True", "TFJobRunning", "TFJob lab/demo is running.")

    driver.wait(60)
    driver.end("worker-0")
    assert conditions(driver.status) == ["Created", "Running=False(TFJobRunning)", "Succeeded"]
    assert condition(driver.status, "Running")[2] == "TFJob lab/demo is running."
    assert condition(driver.status, "Succeeded") == (
        "True",
        "TFJobSucceeded",
        "TFJob lab/demo successfully completed.",
    )
    assert driver.status["completionTime"] == rfc3339(later(65))
    assert driver.said() == [
        ("TFJobRunning", "TFJob lab/demo is running."),
        ("TFJobSucceeded", "TFJob lab/demo successfully completed."),
    ]
    assert {emit.source for emit in driver.told} == {"tfjob-controller"}


def test_a_fast_job() -> None:
    driver = Driver(manifest(Worker=1))
    driver.go()

    assert conditions(driver.end("worker-0")) == ["Created", "Succeeded"]


def test_chief_mode_runs_when_the_chief_does() -> None:
    driver = Driver(manifest(Chief=1, Worker=2))
    driver.go()

    assert conditions(driver.start_all("worker-0", "worker-1")) == ["Created"]
    assert conditions(driver.start_all("chief-0")) == ["Created", "Running"]


def test_one_worker_is_enough_to_run() -> None:
    driver = Driver(manifest(Worker=2, PS=1))
    driver.go()

    assert conditions(driver.start_all("ps-0")) == ["Created"]
    assert conditions(driver.start_all("worker-1")) == ["Created", "Running"]


def test_a_restart() -> None:
    driver = Driver(manifest(**RESTARTABLE)).running()

    status = driver.end("worker-1", code=137)
    assert conditions(status) == ["Created", "Restarting"]
    assert condition(status, "Restarting") == (
        "True",
        "TFJobRestarting",
        "job demo is restarting because Worker replica(s) failed.",
    )
    assert counts(status) == {"Worker": "1/0/1"}

    driver.pass_by(1)
    status = driver.pass_by(1)
    assert conditions(status) == ["Created", "Running"]
    assert counts(driver.start_all()) == {"Worker": "2/0/0"}
    assert driver.said()[1:] == [("TFJobRestarting", "job demo is restarting because Worker replica(s) failed.")]
    assert [emit.warning for emit in driver.told] == [False, True]


def test_a_lone_worker_that_restarts_runs_again_only_when_it_does() -> None:
    driver = Driver(manifest(Worker=replicas(1, restartPolicy="ExitCode"))).running()

    assert conditions(driver.end("worker-0", code=130)) == ["Created", "Restarting"]
    assert conditions(driver.pass_by(60)) == ["Created", "Restarting"]
    assert conditions(driver.start_all()) == ["Created", "Running"]


def test_a_restarting_condition_lasts_no_longer_than_the_failed_pod_and_its_time_stands_still() -> None:
    driver = Driver(manifest(**RESTARTABLE)).running()
    first = driver.end("worker-1", code=1)
    driver.wait(0.5)

    assert driver.go()["conditions"] == first["conditions"]


@pytest.mark.parametrize(
    ("policy_", "code", "message"),
    [
        ("Never", 1, "TFJob lab/demo has failed because 2 Worker replica(s) failed."),
        ("ExitCode", 1, 'job "demo" is failing because "Worker" replica(s) failed.'),
        ("ExitCode", 127, 'job "demo" is failing because "Worker" replica(s) failed.'),
    ],
)
def test_a_failure(policy_: str, code: int, message: str) -> None:
    driver = Driver(manifest(Worker=replicas(3, restartPolicy=policy_), PS=1)).running()
    status = driver.end("worker-1", "worker-2", code=code)

    assert conditions(status) == ["Created", "Running=False(TFJobRunning)", "Failed"]
    assert condition(status, "Failed") == ("True", "TFJobFailed", message)
    assert counts(status) == {"PS": "1/0/0", "Worker": "1/0/2"}
    assert status["completionTime"] == rfc3339(later(0))
    assert driver.said()[1:] == [("TFJobFailed", message)]


def test_reaching_the_backoff_limit() -> None:
    driver = Driver(manifest(spec=policy(backoffLimit=1), **RESTARTABLE)).running()
    status = driver.restarted_in_place("worker-0", 1)

    message = "Job demo has failed because it has reached the specified backoff limit"
    assert condition(status, "Failed") == ("True", "TFJobFailed", message)
    assert driver.said()[-1] == ("TFJobFailed", message)


def test_the_deadline() -> None:
    driver = Driver(manifest(spec=policy(activeDeadlineSeconds=60), Worker=1)).running()
    status = driver.pass_by(60)

    message = "Job demo has failed because it was active longer than specified deadline"
    assert conditions(status) == ["Created", "Running=False(TFJobRunning)", "Failed"]
    assert condition(status, "Failed") == ("True", "TFJobFailed", message)


def test_a_chief_that_succeeded_beside_a_failure_has_succeeded() -> None:
    """The original ends such a job with Succeeded and Failed both true."""
    driver = Driver(manifest(Chief=1, Worker=1)).running()
    driver.exit("demo-worker-0", 1)

    assert conditions(driver.end("chief-0")) == ["Created", "Running=False(TFJobRunning)", "Succeeded"]


# -- suspension ----------------------------------------------------------------------------------------------------

SUSPEND: dict[str, Any] = {"Chief": 1, "Worker": 1}


def test_created_suspended() -> None:
    driver = Driver(manifest(spec=policy(suspend=True, ttlSecondsAfterFinished=10), **SUSPEND))
    status = driver.go()

    assert conditions(status) == ["Created", "Suspended"]
    assert condition(status, "Suspended") == ("True", "TFJobSuspended", "TFJob demo is suspended.")
    assert "startTime" not in status
    assert (driver.names(), driver.names("Service")) == ([], [])
    assert driver.said() == [("TFJobSuspended", "TFJob demo is suspended.")]


def test_suspended_and_resumed() -> None:
    driver = Driver(manifest(**SUSPEND)).running()
    driver.wait(10)

    status = driver.suspend()
    assert conditions(status) == ["Created", "Running=False(TFJobSuspended)", "Suspended"]
    assert condition(status, "Running")[2] == "TFJob demo is suspended."
    assert (driver.names(), driver.names("Service")) == ([], [])
    assert counts(status) == {"Chief": "0/0/0", "Worker": "0/0/0"}
    assert status["startTime"] == rfc3339(later(0))
    assert driver.pass_by(1000) == status

    status = driver.suspend(False)
    assert conditions(status) == ["Created", "Running=False(TFJobSuspended)", "Suspended=False(TFJobResumed)"]
    assert condition(status, "Suspended")[2] == "TFJob demo is resumed."
    assert driver.names() == driver.names("Service") == ["chief-0", "worker-0"]
    assert status["startTime"] == rfc3339(later(1010))

    assert conditions(driver.start_all()) == ["Created", "Suspended=False(TFJobResumed)", "Running"]
    assert [reason for reason, _ in driver.said()] == [
        "TFJobRunning",
        "TFJobSuspended",
        "TFJobResumed",
        "TFJobRunning",
    ]


def test_a_suspension_keeps_what_was_counted_of_the_others() -> None:
    driver = Driver(manifest(Worker=2, PS=1)).running()
    driver.end("worker-1")

    assert counts(driver.suspend()) == {"PS": "0/0/0", "Worker": "0/1/0"}
    assert driver.suspend(False)["replicaStatuses"] == {"PS": {}, "Worker": {}}


# "What is kept although it surprises" in docs/compatibility.md.


def test_who_was_stopped_by_success_counts_as_succeeded() -> None:
    driver = Driver(manifest(Worker=3, PS=1)).running()
    status = driver.end("worker-0")

    assert conditions(status)[-1] == "Succeeded"
    assert counts(status) == {"PS": "0/1/0", "Worker": "0/3/0"}


@pytest.mark.parametrize("clean", ["None", "Running", "All"])
def test_who_ran_when_the_job_failed_stays_counted_as_active(clean: str) -> None:
    driver = Driver(manifest(spec=policy(cleanPodPolicy=clean), Worker=3, PS=1)).running()
    driver.end("worker-1", code=1)

    assert counts(driver.pass_by(60)) == {"PS": "1/0/0", "Worker": "2/0/1"}


def test_a_restart_in_flight_stays_true_beside_the_end() -> None:
    driver = Driver(manifest(Chief=1, Worker=replicas(2, restartPolicy="ExitCode"))).running()
    driver.end("worker-1", code=137)
    status = driver.end("chief-0")

    assert conditions(status) == ["Created", "Restarting", "Succeeded"]
    assert conditions(driver.pass_by(60)) == ["Created", "Restarting", "Succeeded"]


def test_managed_by_another_controller_is_not_touched() -> None:
    driver = Driver(manifest(spec=policy(managedBy="kueue.x-k8s.io/multikueue", suspend=True), **SUSPEND))
    driver.go()
    driver.suspend(False)

    assert "status" not in driver.document
    assert (driver.truth, driver.writes) == ({}, [])


def test_what_another_controller_said_is_not_touched_either() -> None:
    document = manifest(spec=policy(managedBy="kueue.x-k8s.io/multikueue"), **SUSPEND)
    document["status"] = {"conditions": [{"type": "Odd", "status": "True"}], "startTime": "2026-01-01T00:00:00Z"}
    driver = Driver(document)
    driver.go()

    assert driver.document["status"] == document["status"] == driver.rendered
    assert driver.load().job.unmanaged


def test_managed_by_the_training_operator_is_ours() -> None:
    driver = Driver(manifest(spec=policy(managedBy="kubeflow.org/training-operator"), Worker=1))
    driver.go()

    assert driver.names() == ["worker-0"]


# -- counts and times ----------------------------------------------------------------------------------------------


def test_zeros_are_not_written() -> None:
    driver = Driver(manifest(Worker=1, PS=1))
    driver.go()

    assert driver.status["replicaStatuses"] == {"PS": {}, "Worker": {}}
    assert driver.start_all()["replicaStatuses"] == {"PS": {"active": 1}, "Worker": {"active": 1}}


@pytest.mark.parametrize("clean", ["None", "All"])
def test_who_still_ran_at_success_counts_as_succeeded_whatever_becomes_of_his_pod(clean: str) -> None:
    driver = Driver(manifest(spec=policy(cleanPodPolicy=clean), Chief=1, Worker=2)).running()
    driver.end("chief-0")

    assert counts(driver.status) == {"Chief": "0/1/0", "Worker": "0/2/0"}
    assert counts(driver.pass_by(100)) == {"Chief": "0/1/0", "Worker": "0/2/0"}


def test_a_failed_job_keeps_its_last_counts() -> None:
    driver = Driver(manifest(spec=policy(cleanPodPolicy="All"), Worker=3)).running()
    driver.end("worker-2", code=1)

    assert counts(driver.pass_by(100)) == {"Worker": "2/0/1"}
    assert driver.names() == []


def test_the_time_of_the_last_reconciliation_rides_along_and_causes_no_write() -> None:
    driver = Driver(manifest(Worker=1)).running()
    first = driver.status["lastReconcileTime"]

    assert driver.pass_by(300)["lastReconcileTime"] == first
    assert driver.end("worker-0")["lastReconcileTime"] == rfc3339(later(300))


def test_two_writes_at_once_are_enough_for_a_life() -> None:
    driver = Driver(manifest(Worker=4, PS=2)).running()
    driver.end("worker-0")
    driver.pass_by(1000)

    assert driver.status_writes() == 2


def test_the_old_name_of_the_counts_is_for_jobs_of_the_old_version() -> None:
    old = Driver(manifest(version="v1alpha2", Worker=replicas(2, restartPolicy="Never"))).running()
    new = Driver(manifest(Worker=2)).running()

    assert old.status["tfReplicaStatuses"] == old.status["replicaStatuses"] == {"Worker": {"active": 2}}
    assert "tfReplicaStatuses" not in new.status


# -- what got in although it cannot be run ---------------------------------------------------------------------------


def test_a_job_that_cannot_be_run_says_why() -> None:
    driver = Driver(manifest(Wroker=1))
    status = driver.go()

    assert conditions(status) == ["Created", "Failed"]
    _, reason, message = condition(status, "Failed")
    assert reason == "TFJobFailedValidation"
    assert message.startswith("TFJob failed validation because spec.tfReplicaSpecs.Wroker: 'Wroker' is not a type of")
    assert driver.said() == [("TFJobFailedValidation", message)]


def test_an_edit_that_cannot_be_applied_is_told_and_the_job_goes_on() -> None:
    driver = Driver(manifest(Worker=2)).running()
    before = driver.status
    status = driver.edited(tfReplicaSpecs={"Worker": replicas(2, pod={"containers": [container("tensorflw")]})})

    assert conditions(status) == ["Invalid", "Created", "Running"]
    assert "no container is called 'tensorflow'" in condition(status, "Invalid")[2]
    assert driver.names() == ["worker-0", "worker-1"]
    mended = driver.edited(tfReplicaSpecs={"Worker": replicas(2)})
    assert conditions(mended) == conditions(before)
    assert conditions(driver.end("worker-0")) == ["Created", "Running=False(TFJobRunning)", "Succeeded"]


@pytest.mark.parametrize(("kind", "phase"), [("Succeeded", "Succeeded"), ("Failed", "Failed")])
def test_a_job_that_ended_under_the_original_stays_ended(kind: str, phase: str) -> None:
    document = manifest(Worker=2)
    ended = [
        {"type": "Created", "status": "True", "reason": "TFJobCreated"},
        {"type": kind, "status": "True", "reason": f"TFJob{kind}", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]
    document["status"] = {"conditions": ended, "replicaStatuses": {"Worker": {"succeeded": 2}}}
    driver = Driver(document)
    status = driver.go()

    assert driver.names() == []
    assert status["conditions"] == ended
    assert status["trainwright"]["phase"] == phase
    assert status["completionTime"] == "2026-01-01T00:00:00Z"


def test_what_the_original_tells_of_a_template_is_told_once() -> None:
    driver = Driver(manifest(Worker=replicas(2, pod={"restartPolicy": "OnFailure"})))
    driver.go()
    driver.start_all()

    assert driver.said()[0] == (
        "SetPodTemplateRestartPolicy",
        "Restart policy in pod template will be overwritten by restart policy in replica spec",
    )
    assert [reason for reason, _ in driver.said()].count("SetPodTemplateRestartPolicy") == 1
