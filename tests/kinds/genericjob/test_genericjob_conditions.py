# SPDX-License-Identifier: Apache-2.0
"""Phase and conditions: exact types, reasons, messages, order and times, through every course a job can take."""

from typing import Any

import pytest
from genericjob_driver import Driver, condition, conditions, manifest, replicas

from trainwright.model.child import ObjectCondition
from trainwright.model.meta import ADOPT, Owner
from trainwright.model.units import rfc3339
from trainwright.testing import factories
from trainwright.testing.factories import NOW, later

NORMAL = "All pods are running normally."
DONE = "The job has finished successfully."
RULE = 'The job is failed with rule: {"worker":[0]}'
PAUSED = "The job is paused."

INITIALIZED = ("Initialized", "True", "-", "The job has been initialized successfully.")
RUNNING = ("Running", "True", "-", NORMAL)
WELL = ("ReplicaFailure", "False", "-", NORMAL)
WAITING = ("Running", "False", "Pending", "The job is waiting for its replicas to run.")
RESTARTING = ("Running", "True", "-", "Some pods are being restarted.")
RESUMED = ("Paused", "False", "Resumed", "The job has been resumed.")


def in_pod(what: str, name: str = "worker-0") -> tuple[str, str, str, str]:
    return ("ReplicaFailure", "True", "ErrorInPod", f"Pod[demo-{name}] {what}")


def times(status: Any) -> dict[str, str]:
    return {one["type"]: one["lastTransitionTime"] for one in status["conditions"]}


def driver(limit: int = 0, **spec: Any) -> Driver:
    rules: dict[str, Any] = {"successRules": [{"worker": [0]}], "failureRules": [{"worker": [0]}]} | spec
    return Driver(manifest(replicas(restartPolicy={"limit": limit}), **rules))


def test_just_created() -> None:
    job = driver()
    job.step()

    assert job.status["phase"] == "Pending"
    assert conditions(job.status) == [
        ("Initialized", "False", "Pending", "The job is being initialized."),
        WAITING,
        WELL,
    ]


def test_pods_made_but_not_running() -> None:
    job = driver()

    assert conditions(job.go()) == [INITIALIZED, WAITING, WELL]
    assert job.status["phase"] == "Pending"


def test_pending_until_the_last_replica_runs() -> None:
    job = driver()
    job.go()
    for rank in range(3):
        job.start(f"demo-worker-{rank}")
    assert job.go()["phase"] == "Pending"

    job.start("demo-worker-3")

    assert job.go()["phase"] == "Running"


def test_a_normal_run() -> None:
    assert conditions(driver().running().status) == [INITIALIZED, RUNNING, WELL]


def test_failed_by_rule() -> None:
    job = driver().running()
    status = job.end("worker-0", code=127)

    assert status["phase"] == "Failed"
    assert conditions(status) == [
        INITIALIZED,
        ("Running", "False", "Failed", RULE),
        ("Failed", "True", "Failed", RULE),
        ("Completed", "True", "Failed", RULE),
        in_pod("exited with error code 127"),
    ]


def test_succeeded() -> None:
    status = driver().running().end("worker-0")

    assert status["phase"] == "Succeeded"
    assert conditions(status) == [
        INITIALIZED,
        ("Running", "False", "Succeeded", DONE),
        ("Failed", "False", "Succeeded", DONE),
        ("Completed", "True", "Succeeded", DONE),
        ("ReplicaFailure", "False", "Finished", "The job has finished successfully"),
    ]


def test_succeeded_although_a_replica_had_failed() -> None:
    job = driver().running()
    job.end("worker-2", code=5)

    assert conditions(job.end("worker-0"))[-1] == in_pod("exited with error code 5", "worker-2")


def test_paused() -> None:
    job = driver().running()
    job.pause()
    status = job.go()

    assert status["phase"] == "Paused"
    assert conditions(status) == [
        INITIALIZED,
        ("Running", "False", "Paused", PAUSED),
        WELL,
        ("Paused", "True", "Paused", PAUSED),
    ]


def test_created_paused() -> None:
    status = driver(runMode={"pause": {"enabled": True}}).go()

    assert status["phase"] == "Paused"
    assert conditions(status) == [
        ("Initialized", "False", "Pending", "The job is being initialized."),
        ("Running", "False", "Paused", PAUSED),
        WELL,
        ("Paused", "True", "Paused", PAUSED),
    ]


def test_resumed() -> None:
    job = driver().running()
    job.pause()
    job.go()
    job.reap()
    job.pause(enabled=False)
    status = job.go()

    assert status["phase"] == "Resuming"
    assert conditions(status) == [
        INITIALIZED,
        ("Running", "False", "Resuming", "The job is being resumed."),
        WELL,
        RESUMED,
    ]

    status = job.start_all()

    assert status["phase"] == "Running"
    assert conditions(status) == [INITIALIZED, RUNNING, WELL, RESUMED]


def test_resumed_and_succeeded() -> None:
    job = driver().running()
    job.pause()
    job.go()
    job.reap()
    job.pause(enabled=False)
    job.go()
    job.start_all()
    status = job.end("worker-0")

    assert conditions(status)[-2:] == [
        ("ReplicaFailure", "False", "Finished", "The job has finished successfully"),
        RESUMED,
    ]


def test_a_restart_from_failure_to_running_again() -> None:
    job = driver(limit=1).running()
    seen = [conditions(job.end("worker-0", code=3))]
    job.wait(1)
    job.go()
    job.reap()
    seen.append(conditions(job.go()))
    seen.append(conditions(job.start_all()))

    failed = in_pod("exited with error code 3")
    assert seen == [
        [INITIALIZED, RESTARTING, failed],
        [INITIALIZED, RESTARTING, failed],
        [INITIALIZED, RUNNING, WELL],
    ]
    assert job.status["phase"] == "Running"


def test_the_first_replica_with_an_error_is_named() -> None:
    job = driver(limit=9).running()
    status = job.end("worker-3", "worker-1", code=4)

    assert conditions(status)[-1] == in_pod("exited with error code 4", "worker-1")


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"])
def test_a_container_that_cannot_be_created(reason: str) -> None:
    job = driver()
    job.go()
    job.bind("demo-worker-0")
    status = job.containers("demo-worker-0", factories.container(waiting=reason, message="back-off 10s"))

    assert conditions(status) == [INITIALIZED, WAITING, in_pod(f"cannot be created: {reason}")]
    assert (status["phase"], status["tasks"][0]["replicas"][0]["phase"]) == ("Pending", "Pending")

    assert conditions(job.start_all()) == [INITIALIZED, RUNNING, WELL]
    assert job.writes.count("create Pod demo-worker-0") == 1


def test_the_retry_count_of_an_image_pull_causes_no_writes() -> None:
    job = driver()
    job.go()
    statuses = [
        job.containers("demo-worker-0", factories.container(waiting="ImagePullBackOff", message=f"back-off {seconds}s"))
        for seconds in (10, 20, 40)
    ]

    assert statuses[0] == statuses[1] == statuses[2]


def test_waiting_as_such_is_no_error() -> None:
    job = driver()
    job.go()
    status = job.containers("demo-worker-0", factories.container(waiting="ContainerCreating"))

    assert conditions(status) == [INITIALIZED, WAITING, WELL]


def test_an_init_container_that_fails() -> None:
    job = driver()
    job.go()
    status_of = factories.container("init", exit_code=12, reason="Error")
    job.change("demo-worker-0", phase="Failed", init_container_statuses=(status_of,))
    status = job.go()

    assert status["phase"] == "Failed"
    assert conditions(status)[-1] == in_pod("exited with error code 12")


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        pytest.param(
            {"reason": "Evicted", "message": "low on memory"},
            "evicted by its node (Evicted: low on memory)",
            id="evicted",
        ),
        pytest.param(
            {"conditions": (ObjectCondition("DisruptionTarget", "True", "PreemptionByScheduler", "for a better one"),)},
            "disrupted (PreemptionByScheduler: for a better one)",
            id="preempted",
        ),
        pytest.param(
            {"reason": "DeadlineExceeded", "message": "too long"},
            "failed before any container ran (DeadlineExceeded: too long)",
            id="rejected",
        ),
        pytest.param({}, "failed before any container ran", id="without a word"),
    ],
)
def test_other_errors_in_words(ended: Any, words: str) -> None:
    job = driver(limit=9).running()
    job.change("demo-worker-0", phase="Failed", container_statuses=None, **ended)

    assert conditions(job.go())[-1] == in_pod(words)


def test_a_lost_node() -> None:
    job = Driver(manifest(), nodes=("node-1", "node-2")).running()
    job.lose_node("node-1")
    job.wait(60)

    assert conditions(job.go())[1:] == [RESTARTING, in_pod("node node-1 is lost")]


def test_a_name_that_is_taken() -> None:
    job = driver()
    stranger = Owner("apps/v1", "ReplicaSet", "other", "other-uid", controller=True)
    job.truth["Pod", "demo-worker-2"] = factories.pod(name="demo-worker-2", owners=(stranger,), labels={})

    why = "and is not this job's: ReplicaSet other controls it; give the job another name"
    message = f'demo-worker-2 could not be created: AlreadyExists: pods "demo-worker-2" already exists, {why}'
    assert conditions(job.go())[-1] == ("ReplicaFailure", "True", "ErrorInPod", message)
    assert job.status["aggregate"]["creating"] == 4
    assert job.pods()["demo-worker-2"].metadata.controller == stranger


def test_what_became_of_a_failed_replica_is_still_told_after_the_clean_up() -> None:
    job = driver(cleanUpPolicy="All").running()
    before = conditions(job.end("worker-0", code=7))
    job.reap()
    job.wait(100)

    assert job.names() == []
    assert conditions(job.go()) == before
    assert before[-1] == in_pod("exited with error code 7")


def test_trouble_at_the_end_is_still_told_after_the_clean_up() -> None:
    """Nothing but the condition itself remembers it."""
    job = driver(cleanUpPolicy="All")
    job.go()
    job.containers("demo-worker-2", factories.container(waiting="ImagePullBackOff"))
    job.start("demo-worker-0")
    before = conditions(job.end("worker-0"))
    job.reap()

    assert before[-1] == in_pod("cannot be created: ImagePullBackOff", "worker-2")
    assert (conditions(job.go()), job.names()) == (before, [])


def test_times_move_only_with_the_status() -> None:
    """Initialized keeps its time; what changes at the end has the time of the end; nothing moves afterwards."""
    job = driver()
    job.go()
    job.wait(10)
    job.start_all()
    at = [rfc3339(later(seconds)) for seconds in (0, 10, 30, 32)]
    assert times(job.status) == {"Initialized": at[0], "Running": at[1], "ReplicaFailure": at[0]}

    job.wait(20)
    job.end("worker-1", code=1)
    job.wait(2)
    status = job.end("worker-0", code=1)
    expected = {
        "Initialized": at[0],
        "Running": at[3],
        "Failed": at[3],
        "Completed": at[3],
        "ReplicaFailure": at[2],
    }
    assert times(status) == expected

    job.wait(1000)
    job.end("worker-2")

    assert times(job.status) == expected


def test_a_message_may_change_without_its_time() -> None:
    job = driver(limit=2).running()
    job.wait(5)
    job.end("worker-1", code=1)

    assert condition(job.status, "Running") == ("True", "-", "Some pods are being restarted.")
    assert times(job.status)["Running"] == rfc3339(NOW)


def test_times_of_pause_and_resume() -> None:
    job = driver().running()
    job.wait(10)
    job.pause()
    job.go()
    job.reap()
    assert times(job.go()) == {
        "Initialized": rfc3339(NOW),
        "Running": rfc3339(later(10)),
        "ReplicaFailure": rfc3339(NOW),
        "Paused": rfc3339(later(10)),
    }

    job.wait(10)
    job.pause(enabled=False)
    job.go()
    job.wait(10)

    assert times(job.start_all()) == {
        "Initialized": rfc3339(NOW),
        "Running": rfc3339(later(30)),
        "ReplicaFailure": rfc3339(NOW),
        "Paused": rfc3339(later(20)),
    }


def test_the_phase_is_unknown_when_no_replica_can_be_reached() -> None:
    job = driver().running()
    for rank in range(3):
        job.change(f"demo-worker-{rank}", phase="Unknown")
    assert job.go()["phase"] == "Running"

    job.change("demo-worker-3", phase="Unknown")
    assert job.go()["phase"] == "Unknown"

    job.change("demo-worker-1", phase="Running")
    assert job.go()["phase"] == "Running"


@pytest.mark.parametrize("resumes", [False, True], ids=["pending", "resuming"])
def test_the_phase_is_unknown_before_all_have_run_too(resumes: bool) -> None:
    job = driver(runMode={"pause": {"enabled": resumes}})
    job.go()
    job.pause(enabled=False)
    assert job.go()["phase"] == ("Resuming" if resumes else "Pending")
    for rank in range(4):
        job.change(f"demo-worker-{rank}", phase="Unknown")

    assert job.go()["phase"] == "Unknown"


def test_a_condition_of_the_original_is_not_left_as_it_was() -> None:
    """It said that the job is paused; the job is handed over to us, and it runs."""
    job = driver()
    job.document["metadata"]["annotations"] = {ADOPT: "true"}
    job.document["status"] = {"conditions": [{"type": "Paused", "status": "True"}]}

    assert conditions(job.go())[-1] == RESUMED


def test_unknown_replicas_do_not_hide_the_end() -> None:
    job = driver().running()
    for rank in range(1, 4):
        job.change(f"demo-worker-{rank}", phase="Unknown")
    job.end("worker-0")

    assert job.status["phase"] == "Succeeded"


def test_a_pause_forgets_old_errors() -> None:
    job = driver(limit=5).running()
    job.fail_and_restart("worker-1", 3)
    assert conditions(job.status) == [INITIALIZED, RUNNING, WELL]

    job.pause()
    status = job.go()

    assert condition(status, "ReplicaFailure") == ("False", "-", NORMAL)


def test_a_replica_in_back_off_has_been_made() -> None:
    """It fails before anybody has seen all pods at once, and the job succeeds while its back-off lasts."""
    job = Driver(manifest(replicas(count=2, restartPolicy={"limit": 5}), successRules=[{"worker": [0]}]))
    job.step()
    for name in job.names():
        job.start(name)
    status = job.end("worker-1", code=1)
    assert conditions(status)[0] == INITIALIZED

    status = job.end("worker-0")
    assert (status["phase"], conditions(status)[0]) == ("Succeeded", INITIALIZED)


def test_a_replica_that_was_never_made_has_not_been_made_by_a_pause() -> None:
    """A pause raises the attempts of replicas that have had no pod."""
    job = Driver(manifest(replicas(count=2)))
    job.pause()
    job.go()
    job.pause(enabled=False)
    job.catch_up()
    job.step()

    assert conditions(job.status)[0] == ("Initialized", "False", "Pending", "The job is being initialized.")
