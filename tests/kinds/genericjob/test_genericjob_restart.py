# SPDX-License-Identifier: Apache-2.0
"""Restarts: policies, the limit of a replica, what is shown, old ledgers, back-off, disruptions, a killed operator."""

from typing import Any

import pytest
from genericjob_driver import Driver, aggregate, condition, manifest, phases, replicas, restart_count
from msgspec.structs import replace

from trainwright.model.child import ObjectCondition
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT
from trainwright.model.units import parse_counts, parse_row
from trainwright.testing.factories import later


def driver(limit: int = 0, policy: str = "OnFailure", **more: Any) -> Driver:
    """Four workers with that policy; the job goes on for as long as worker 3 may succeed."""
    spec = replicas(restartPolicy={"policy": policy, "limit": limit})
    return Driver(manifest(spec, successRules=[{"worker": [3]}], failureRules=[{"worker": [3]}]), **more).running()


@pytest.mark.parametrize(
    ("policy", "code", "restarted"),
    [
        ("Never", 0, False),
        ("Never", 1, False),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("OnFailure", 137, True),
        ("Always", 0, True),
        ("Always", 1, True),
    ],
)
def test_what_each_policy_restarts(policy: str, code: int, restarted: bool) -> None:
    job = driver(5, policy)
    before = job.pod("worker-0").metadata.uid
    job.fail_and_restart("worker-0", code)

    ended = "Succeeded" if code == 0 else "Failed"
    assert phases(job.status)["worker-0"] == ("Running" if restarted else ended)
    assert (job.pod("worker-0").metadata.uid != before) == restarted
    assert restart_count(job.status) == (1 if restarted else None)


def test_the_default_is_on_failure_with_limit_0_which_is_no_restart() -> None:
    job = Driver(manifest(successRules=[{"worker": [3]}], failureRules=[{"worker": [3]}])).running()
    job.fail_and_restart("worker-0")

    assert phases(job.status)["worker-0"] == "Failed"
    assert restart_count(job.status) is None


def test_always_with_limit_0_restarts_nothing_and_warns() -> None:
    job = driver(0, "Always")

    assert [str(problem) for problem in job.load().problems] == [
        "spec.replicaSpecs[0].restartPolicy.limit: policy Always with limit 0 never restarts anything: "
        "give the number of restarts"
    ]
    assert job.end("worker-3")["phase"] == "Succeeded"


def test_the_limit_is_that_of_each_replica_and_the_count_is_the_sum_of_the_type() -> None:
    job = driver(2)
    for name in ("worker-0", "worker-1", "worker-2", "worker-2", "worker-2"):
        job.fail_and_restart(name)

    assert phases(job.status) == {
        "worker-0": "Running",
        "worker-1": "Running",
        "worker-2": "Failed",
        "worker-3": "Running",
    }
    assert restart_count(job.status) == 4
    assert job.status["trainwright"]["roles"][0]["charged"] == "1x2,2"


def test_two_that_fail_at_once_are_both_restarted() -> None:
    job = Driver(manifest(replicas(count=2, restartPolicy={"policy": "OnFailure", "limit": 1}))).running()
    job.end("worker-0", "worker-1", code=1)

    assert phases(job.status) == {"worker-0": "Creating", "worker-1": "Creating"}
    job.settle()
    job.start_all()
    assert (job.status["phase"], restart_count(job.status)) == ("Running", 2)
    assert job.end("worker-1", code=1)["phase"] == "Failed"


def test_a_pause_keeps_what_each_replica_has_used() -> None:
    job = driver(1)
    job.fail_and_restart("worker-1")
    job.pause()
    job.go()
    job.pause(enabled=False)
    job.go()
    job.start_all()
    job.fail_and_restart("worker-0")
    job.fail_and_restart("worker-1")

    assert (phases(job.status)["worker-0"], phases(job.status)["worker-1"]) == ("Running", "Failed")


# -- what people see -------------------------------------------------------------------------------------------------


def test_a_restart_is_shown_once_its_pod_exists() -> None:
    """It is charged when it is decided, so a kill cannot lose it."""
    job = driver(2)
    job.end("worker-1", code=1)
    assert (restart_count(job.status), job.status["trainwright"]["roles"][0]["restarts"]) == (None, {"Exit": 1})

    job.settle()
    assert restart_count(job.status) == 1


def test_a_restart_that_never_happened_is_never_shown() -> None:
    job = driver(5)
    job.fail_and_restart("worker-1")
    job.end("worker-1", "worker-2", code=1)
    status = job.end("worker-3")

    assert (status["phase"], restart_count(status)) == ("Succeeded", 1)


def test_a_pause_during_the_back_off_is_no_restart() -> None:
    job = driver(5)
    job.end("worker-1", code=1)
    job.pause()
    job.go()
    job.reap()
    job.pause(enabled=False)
    job.go()
    status = job.start_all()

    assert (status["phase"], restart_count(status)) == ("Running", None)


# -- a ledger of the version before ----------------------------------------------------------------------------------

#: Which restarts the version before had counted, and on which replicas, as far as its ledger tells.
BEFORE: list[Any] = [
    pytest.param({"retries": "1:2", "restarts": {"Exit": 2}}, "0,2", id="retries tell all of it"),
    pytest.param(
        {"retries": "0:3,2:1", "restarts": {"Exit": 2, "Disrupted": 2}},
        "2",
        id="disruptions cost nothing; the lowest are charged",
    ),
    pytest.param({"epoch": 4, "restarts": {"Exit": 5}}, "2,1x3", id="before a pause: shared evenly"),
    pytest.param({"epoch": 2, "retries": "3:1", "restarts": {"Exit": 3}}, "1x2,0,1", id="before a pause, and after"),
    pytest.param({"retries": "0:1", "restarts": {"NodeLost": 1}}, "", id="nothing that counts"),
]


@pytest.mark.parametrize(("entry", "charged"), BEFORE)
def test_a_ledger_of_the_version_before_is_read(entry: Body, charged: str) -> None:
    """It knew the sum of the type: no count is lost, and none is charged twice."""
    job = driver(9)
    old = {"name": "worker", "reached": 4, **entry}
    job.document["status"]["trainwright"]["roles"] = [old]
    attempt = {index: old.get("epoch", 0) + tries for index, tries in parse_counts(old.get("retries", "")).items()}
    for rank in range(4):
        pod = job.pod(f"worker-{rank}")
        labels = (pod.metadata.labels or {}) | {ATTEMPT: str(attempt.get(rank, old.get("epoch", 0)))}
        job.truth["Pod", f"demo-worker-{rank}"] = replace(pod, metadata=replace(pod.metadata, labels=labels))
    job.restart_operator()
    status = job.go()

    (new,) = status["trainwright"]["roles"]
    assert new.get("charged", "") == charged
    counted = old["restarts"].get("Exit", 0)
    assert sum(parse_row(charged).values()) == counted
    assert restart_count(status) == (counted or None)


def test_what_the_version_before_has_used_up_is_used_up() -> None:
    job = driver(2)
    job.fail_and_restart("worker-1")
    job.fail_and_restart("worker-1")
    (entry,) = job.document["status"]["trainwright"]["roles"]
    for new in ("charged", "pending", "hidden", "inside"):
        entry.pop(new, None)
    job.fail_and_restart("worker-1")
    job.fail_and_restart("worker-2")

    assert (phases(job.status)["worker-1"], phases(job.status)["worker-2"]) == ("Failed", "Running")


def test_each_type_has_its_own_policy_and_limit() -> None:
    specs = (
        replicas("master", 1, restartPolicy={"policy": "Always", "limit": 1}),
        replicas("ps", 1, restartPolicy={"policy": "Never", "limit": 9}),
        replicas("worker", 1, restartPolicy={"policy": "OnFailure", "limit": 2}),
        replicas("judge", 1),
    )
    rules = [{"judge": [0]}]
    job = Driver(manifest(*specs, successRules=rules, failureRules=rules)).running()
    job.fail_and_restart("master-0", 0)
    job.fail_and_restart("worker-0")
    job.fail_and_restart("ps-0")
    job.fail_and_restart("worker-0")

    assert {task["type"]: task.get("restartCount") for task in job.status["tasks"]} == {
        "master": 1,
        "ps": None,
        "worker": 2,
        "judge": None,
    }
    assert phases(job.status) == {"master-0": "Running", "ps-0": "Failed", "worker-0": "Running", "judge-0": "Running"}


def test_a_replica_comes_back_under_its_name_as_the_next_attempt() -> None:
    job = driver(2)
    attempts = []
    for _ in range(2):
        job.fail_and_restart("worker-1")
        attempts.append(job.bodies["Pod", "demo-worker-1"]["metadata"]["labels"]["trainwright.dev/attempt"])

    assert attempts == ["1", "2"]
    assert job.names() == [f"demo-worker-{rank}" for rank in range(4)]


def test_the_back_off_doubles_from_1_to_60_seconds() -> None:
    job = driver(99)
    waits = []
    for _ in range(8):
        job.exit("demo-worker-0", 1)
        job.go()
        asked = job.clock
        wake = job.plans[-1].wake
        assert wake is not None
        waits.append((wake - asked).total_seconds())
        job.clock = wake
        job.go()
        job.reap()
        job.go()
        job.start_all()

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_each_replica_has_its_own_back_off() -> None:
    job = driver(99)
    job.fail_and_restart("worker-0")
    job.exit("demo-worker-1", 1)
    job.go()

    assert job.plans[-1].wake == later(1, job.clock)


def test_a_replica_that_ran_for_ten_minutes_waits_one_second_again() -> None:
    job = driver(99)
    for _ in range(4):
        job.fail_and_restart("worker-0")
    job.wait(600)
    job.end("worker-0", code=1)

    assert job.plans[-1].wake == later(1, job.clock)


def test_the_failed_pod_stays_until_its_back_off_is_over() -> None:
    """For its log. Meanwhile the replica is Creating."""
    job = driver(1)
    status = job.end("worker-0", code=1)
    assert job.names() == [f"demo-worker-{rank}" for rank in range(4)]
    assert job.pod("worker-0").status.phase == "Failed"
    assert status["aggregate"] == aggregate(creating=1, running=3)

    job.wait(1)
    job.go()
    job.reap()
    job.go()

    assert job.pod("worker-0").status.phase == "Pending"


def test_a_job_whose_restarts_are_used_up_fails_by_its_rule() -> None:
    spec = replicas(restartPolicy={"policy": "OnFailure", "limit": 2})
    job = Driver(manifest(spec, failureRules=[{"worker": [1]}])).running()
    seen = []
    for _ in range(3):
        job.fail_and_restart("worker-1", 9)
        seen.append((job.status["phase"], restart_count(job.status)))

    assert seen == [("Running", 1), ("Running", 2), ("Failed", 2)]
    assert condition(job.status, "Failed")[2] == 'The job is failed with rule: {"worker":[1]}'
    assert condition(job.status, "ReplicaFailure")[2] == "Pod[demo-worker-1] exited with error code 9"


def _deleted(job: Driver) -> None:
    job.delete(("Pod", "demo-worker-0"))
    job.go()
    job.exit("demo-worker-0", 143)
    job.go()
    job.reap()


def _lost(job: Driver) -> None:
    job.lose_node("node-1")
    job.wait(60)


DISRUPTIONS = {
    "preempted": lambda job: job.evict("demo-worker-0"),
    "drained": lambda job: job.change("demo-worker-0", phase="Failed", reason="NodeShutdown"),
    "deleted with grace": _deleted,
    "deleted at once": lambda job: job.vanish("demo-worker-0"),
    "node lost": _lost,
}


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
@pytest.mark.parametrize("disruption", DISRUPTIONS)
def test_a_disruption_is_repaired_under_every_policy_and_counts_for_nothing(disruption: str, policy: str) -> None:
    job = Driver(manifest(replicas(count=1, restartPolicy={"policy": policy, "limit": 0})), nodes=("node-1", "node-2"))
    job.running()
    before = job.pod("worker-0").metadata.uid
    DISRUPTIONS[disruption](job)
    job.settle()
    for name in job.names():
        job.start(name, "node-2")
    status = job.go()

    assert job.pod("worker-0").metadata.uid != before
    assert (status["phase"], restart_count(status)) == ("Running", None)
    assert condition(status, "ReplicaFailure") == ("False", "-", "All pods are running normally.")


def test_disruptions_are_counted_apart() -> None:
    job = driver(1)
    for _ in range(3):
        job.evict("demo-worker-0")
        job.settle()
        job.start_all()
    job.fail_and_restart("worker-0")

    assert job.status["trainwright"]["roles"][0]["restarts"] == {"Disrupted": 3, "Exit": 1}
    assert restart_count(job.status) == 1


@pytest.mark.parametrize(
    ("status", "counted"),
    [
        pytest.param({"reason": "Evicted"}, True, id="evicted for what it used itself"),
        pytest.param({"reason": "DeadlineExceeded"}, True, id="past a deadline of its own"),
        pytest.param({"reason": "UnexpectedAdmissionError"}, False, id="not admitted by its node"),
        pytest.param({"conditions": (ObjectCondition("DisruptionTarget", "False"),)}, True, id="no longer a target"),
        pytest.param({"conditions": (ObjectCondition("DisruptionTarget", "True"),)}, False, id="a target"),
        pytest.param({"reason": "Preempting"}, False, id="preempted by its node"),
    ],
)
def test_which_ends_without_an_exit_code_count(status: Any, counted: bool) -> None:
    job = driver(5)
    job.change("demo-worker-0", phase="Failed", **status)
    job.go()
    job.settle()

    assert restart_count(job.status) == (1 if counted else None)


def test_a_pod_that_finished_before_it_was_deleted_has_finished() -> None:
    job = driver(5)
    job.exit("demo-worker-3", 0)
    job.wait(1)
    job.delete(("Pod", "demo-worker-3"))

    assert job.go()["phase"] == "Succeeded"


def test_a_pod_that_saves_its_work_when_it_is_deleted_has_not_finished() -> None:
    job = driver(5)
    job.delete(("Pod", "demo-worker-3"))
    job.wait(5)
    job.exit("demo-worker-3", 0)

    job.settle()

    assert (job.status["phase"], job.status["aggregate"]) == ("Running", aggregate(creating=1, running=3))


@pytest.mark.parametrize("writes", range(6))
def test_a_killed_operator_neither_loses_nor_repeats_a_restart(writes: int) -> None:
    """Killed after so many writes of the pass that restarts, and of the pass that replaces."""
    job = driver(3)
    job.exit("demo-worker-0", 1)
    job.exit("demo-worker-1", 1)
    job.catch_up()
    job.step(dies_after=writes)
    job.wait(5)
    job.catch_up()
    job.step(dies_after=writes)
    job.settle()
    job.start_all()

    assert restart_count(job.status) == 2
    assert phases(job.status) == {f"worker-{rank}": "Running" for rank in range(4)}
    assert [job.bodies["Pod", f"demo-worker-{r}"]["metadata"]["labels"]["trainwright.dev/attempt"] for r in (0, 1)] == [
        "1",
        "1",
    ]


def test_a_raised_limit_helps_later_failures() -> None:
    spec = replicas(restartPolicy={"policy": "OnFailure", "limit": 1})
    rules = [{"worker": [3]}]
    job = Driver(manifest(spec, successRules=rules, failureRules=rules)).running()
    job.fail_and_restart("worker-0")
    job.edit(replicaSpecs=[spec | {"restartPolicy": {"policy": "OnFailure", "limit": 2}}])
    job.fail_and_restart("worker-0")

    assert (phases(job.status)["worker-0"], restart_count(job.status)) == ("Running", 2)
