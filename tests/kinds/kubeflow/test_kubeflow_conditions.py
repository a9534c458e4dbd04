# SPDX-License-Identifier: Apache-2.0
"""The status of each kind of Kubeflow v1: conditions with the original controllers' texts, counts, and events."""

import pytest
from kubeflow_driver import FRAMEWORKS, PAIRS, Driver, condition, conditions, counts, manifest, policy

each = pytest.mark.parametrize("kind", FRAMEWORKS)
NAMES = {kind: value.name for kind, (value, _) in FRAMEWORKS.items()}
#: By kind: what a job is called in its Running and Succeeded texts, and the text of success.
DONE = {
    "jaxjob": ("lab/demo", "successfully completed."),
    "xgboostjob": ("demo", "is successfully completed."),
    "pytorchjob": ("demo", "is successfully completed."),
    "paddlejob": ("lab/demo", "successfully completed."),
}


def ready(kind: str, restart: str = "", **run_policy: object) -> Driver:
    return Driver(manifest(kind, policy(**run_policy), restart)).running()


@each
def test_a_job_that_runs_and_succeeds(kind: str) -> None:
    driver, name, (job, done) = ready(kind), NAMES[kind], DONE[kind]
    assert condition(driver.status, "Created") == (f"{name}Created", f"{name} demo is created.")
    assert condition(driver.status, "Running") == (f"{name}Running", f"{name} {job} is running.")
    assert counts(driver.status) == {role: f"{size}/0/0" for role, size in PAIRS[kind].items()}

    status = driver.end(*driver.names())

    assert conditions(status) == ["Created", "Running=False", "Succeeded"]
    assert condition(status, "Succeeded") == (f"{name}Succeeded", f"{name} {job} {done}")
    assert counts(status) == {role: f"0/{size}/0" for role, size in PAIRS[kind].items()}
    assert driver.said()[-1] == (f"{name}Succeeded", f"{name} {job} {done}")


@each
def test_a_worker_that_fails_and_may_not_be_restarted(kind: str) -> None:
    driver = ready(kind, "Never")
    status = driver.end("worker-0", code=1)

    message = f"{NAMES[kind]} demo is failed because 1 Worker replica(s) failed."
    assert conditions(status) == ["Created", "Running=False", "Failed"]
    assert condition(status, "Failed") == (f"{NAMES[kind]}Failed", message)
    assert driver.said()[-1] == (f"{NAMES[kind]}Failed", message)


@each
def test_an_exit_code_that_is_permanent(kind: str) -> None:
    status = ready(kind, "ExitCode").end("worker-0", code=1)

    assert conditions(status) == ["Created", "Running=False", "Failed"]
    message = 'job "demo" is failing because "Worker" replica(s) failed.'
    assert condition(status, "Failed") == (f"{NAMES[kind]}Failed", message)


@each
def test_an_exit_code_after_which_a_replica_is_restarted(kind: str) -> None:
    driver = ready(kind, "ExitCode")
    status = driver.end("worker-0", code=137)
    assert conditions(status) == ["Created", "Restarting"]
    message = "job demo is restarting because Worker replica(s) failed."
    assert condition(status, "Restarting") == (f"{NAMES[kind]}Restarting", message)

    driver.pass_by(60)
    assert conditions(driver.start_all()) == ["Created", "Running"]


@each
def test_limits(kind: str) -> None:
    driver = ready(kind, "ExitCode", backoffLimit=1)
    reason, message = condition(driver.end("worker-0", code=137), "Failed")
    assert (reason, message) == (
        f"{NAMES[kind]}Failed",
        "Job demo has failed because it has reached the specified backoff limit",
    )

    driver = ready(kind, activeDeadlineSeconds=10)
    assert condition(driver.pass_by(11), "Failed")[1] == (
        "Job demo has failed because it was active longer than specified deadline"
    )


@each
def test_suspended_and_resumed(kind: str) -> None:
    driver, name = ready(kind), NAMES[kind]
    status = driver.edited(runPolicy={"suspend": True})
    assert condition(status, "Suspended") == (f"{name}Suspended", f"{name} demo is suspended.")
    assert condition(status, "Running") == (f"{name}Suspended", f"{name} demo is suspended.")
    assert driver.names() == []

    driver.edited(runPolicy={"suspend": False})
    status = driver.start_all()
    assert condition(status, "Suspended") == (f"{name}Resumed", f"{name} demo is resumed.")
    assert conditions(status) == ["Created", "Suspended=False", "Running"]


@each
def test_an_invalid_job_says_why(kind: str) -> None:
    document = manifest(kind)
    document["metadata"]["name"] = "Demo"
    driver = Driver(document)
    reason, message = condition(driver.go(), "Failed")

    assert reason == f"{NAMES[kind]}FailedValidation"
    assert message.startswith(f"{NAMES[kind]} failed validation because metadata.name: ")


def test_a_running_worker_is_enough_for_a_jaxjob_but_an_xgboostjob_runs_with_its_master() -> None:
    jax, xgboost = Driver(manifest("jaxjob")), Driver(manifest("xgboostjob"))
    for driver in (jax, xgboost):
        driver.go()
        driver.start_all("worker-0")

    assert conditions(jax.status) == ["Created", "Running"]
    assert conditions(xgboost.status) == ["Created"]
    assert conditions(xgboost.start_all("master-0")) == ["Created", "Running"]


def test_every_worker_of_a_jaxjob_must_succeed() -> None:
    driver = ready("jaxjob")

    assert conditions(driver.end("worker-0")) == ["Created", "Running"]
    assert conditions(driver.end("worker-1"))[-1] == "Succeeded"


def test_the_master_of_an_xgboostjob_decides_and_running_workers_count_as_succeeded() -> None:
    driver = ready("xgboostjob")
    status = driver.end("master-0")

    assert conditions(status)[-1] == "Succeeded"
    assert counts(status) == {"Master": "0/1/0", "Worker": "0/1/0"}


def test_workers_alone_do_not_make_an_xgboostjob_succeed() -> None:
    assert conditions(ready("xgboostjob").end("worker-0")) == ["Created", "Running"]


def test_an_xgboostjob_that_never_ran_has_running_in_its_conditions_as_in_the_original() -> None:
    driver = Driver(manifest("xgboostjob"))
    driver.go()

    assert conditions(driver.end("worker-0", code=1)) == ["Created", "Running=False", "Failed"]


def test_a_jaxjob_that_never_ran_has_not() -> None:
    driver = Driver(manifest("jaxjob"))
    driver.go()

    assert conditions(driver.end("worker-0", code=1)) == ["Created", "Failed"]


def test_the_selector_is_in_the_status_of_kinds_that_can_be_scaled() -> None:
    jax, xgboost = (ready(kind).status["replicaStatuses"]["Worker"] for kind in ("jaxjob", "xgboostjob"))

    assert jax["selector"] == (
        "training.kubeflow.org/job-name=demo,training.kubeflow.org/operator-name=jaxjob-controller"
        ",training.kubeflow.org/replica-type=worker"
    )
    assert "selector" not in xgboost
