# SPDX-License-Identifier: Apache-2.0
"""TFJob's run policy in the internal model: backoffLimit, cleanPodPolicy, deadline, time to live, suspension."""

import pytest
from scenario import (
    OPEN,
    RESTARTING,
    SUCCEEDED,
    Step,
    Verdict,
    again,
    both,
    crashes,
    edits,
    exits,
    failed,
    fails,
    in_place,
    pods,
    preempted,
    rest,
    run,
    services,
    tell,
    terminating,
    verdict,
    waits,
)
from tfjob_policy import TFJob, compiled

from trainwright.testing import factories

WORKERS = {"Worker": (3, "Never")}
CHIEF = {"Chief": (1, "Never"), "Worker": (2, "Never")}


# -- backoffLimit --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "steps", "expected"),
    [
        pytest.param(None, [in_place("worker-0", 1000)], OPEN, id="unlimited"),
        pytest.param(0, [], OPEN, id="0, no restart"),
        pytest.param(0, [in_place("worker-0", 1)], Verdict("Failed", "BackoffLimit"), id="0, one in place"),
        pytest.param(3, [in_place("worker-0", 2)], OPEN, id="3, two in place"),
        pytest.param(3, [in_place("worker-0", 3)], Verdict("Failed", "BackoffLimit"), id="3, three in place"),
        pytest.param(
            3,
            [in_place("worker-0", 2), in_place("worker-1", 1)],
            Verdict("Failed", "BackoffLimit"),
            id="3, over all replicas",
        ),
        # trainer#2045, #2342: pods made anew by the operator were never counted.
        pytest.param(0, [fails("worker-1")], failed("Worker 1 Exit", "BackoffLimit"), id="0, one made anew"),
        pytest.param(3, [fails("worker-1"), again, fails("worker-1")], RESTARTING, id="3, two made anew"),
        pytest.param(
            3,
            [fails("worker-1"), again, fails("worker-1"), again, fails("worker-0")],
            failed("Worker 0 Exit", "BackoffLimit"),
            id="3, three made anew",
        ),
        pytest.param(
            3,
            [in_place("worker-1", 1), preempted("worker-1"), again, in_place("worker-0", 1)],
            Verdict("Failed", "BackoffLimit"),
            id="3, mixed, and what a replaced pod had used is kept",
        ),
    ],
)
def test_backoff_limit(limit: int | None, steps: list[Step], expected: Verdict) -> None:
    world = tell(compiled(TFJob({"Worker": (2, "OnFailure")}, backoff_limit=limit)), run, *steps)

    assert verdict(world) == expected


def test_backoff_limit_outlives_a_deleted_pod() -> None:
    job = compiled(TFJob({"Worker": (2, "OnFailure")}, backoff_limit=3))
    world = tell(job, run, in_place("worker-1", 2), terminating("worker-1"), run, in_place("worker-1", 1))

    assert verdict(world) == Verdict("Failed", "BackoffLimit")


# -- clean-up, deadline, time to live, suspension ------------------------------------------------------------------

SCRIPTS: dict[str, list[Step]] = {
    "succeeded": [exits("worker-1"), exits("worker-0")],
    "failed": [exits("worker-1"), fails("worker-2")],
    "deadline": [exits("worker-1"), waits(100)],
    "backoff": [exits("worker-1"), in_place("worker-0", 5)],
}


@pytest.mark.parametrize(
    ("policy", "end", "left"),
    [
        ("None", "succeeded", ["worker-0", "worker-1", "worker-2"]),
        ("None", "failed", ["worker-0", "worker-1", "worker-2"]),
        ("None", "deadline", ["worker-0", "worker-1", "worker-2"]),
        ("None", "backoff", ["worker-0", "worker-1", "worker-2"]),
        ("Running", "succeeded", ["worker-0", "worker-1"]),
        ("Running", "failed", ["worker-1", "worker-2"]),
        ("Running", "deadline", ["worker-1"]),
        ("Running", "backoff", ["worker-1"]),
        ("All", "succeeded", []),
        ("All", "failed", []),
        ("All", "deadline", []),
        ("All", "backoff", []),
    ],
)
def test_clean_pod_policy_after_each_end(policy: str, end: str, left: list[str]) -> None:
    """Services go with their pods; with None nothing goes, also when the budget is used up (trainer#3419)."""
    job = TFJob(WORKERS, clean_pod_policy=policy, active_deadline=100, backoff_limit=5)
    world = tell(compiled(job), run, *SCRIPTS[end])

    assert world.job.ledger.outcome is not None
    assert pods(world) == left
    assert services(world) == left


ENDS: dict[str, list[Step]] = {
    "succeeded": [exits("chief-0")],
    "failed": [fails("chief-0")],
    "backoff": [in_place("worker-0", 5)],
    "deadline": [waits(100)],
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("policy", ["None", "Running", "All"])
def test_no_pod_is_restarted_in_place_after_the_end(policy: str, end: str) -> None:
    """Whatever the policy keeps; a pod that simply runs stays where it says so, and so does its service."""
    roles = {"Chief": (1, "Never"), "Worker": (2, "OnFailure")}
    job = compiled(TFJob(roles, clean_pod_policy=policy, active_deadline=100, backoff_limit=5))
    world = tell(job, run, crashes("worker-1"), *ENDS[end])

    kept = {"None": ["chief-0", "worker-0"], "Running": ["chief-0"] if end in ("succeeded", "failed") else []}
    assert world.job.ledger.outcome is not None
    assert pods(world) == kept.get(policy, [])
    assert services(world) == (["chief-0", "worker-0", "worker-1"] if policy == "None" else kept.get(policy, []))


def test_a_kept_pod_that_fails_later_is_not_restarted_either() -> None:
    roles = {"Chief": (1, "Never"), "Worker": (2, "OnFailure")}
    world = tell(compiled(TFJob(roles)), run, exits("chief-0"), waits(1000))
    kept = pods(world)
    crashes("worker-0")(world)
    rest(world)

    assert (kept, pods(world)) == (["chief-0", "worker-0", "worker-1"], ["chief-0", "worker-1"])


def test_running_also_removes_pods_that_are_pending() -> None:
    world = tell(compiled(TFJob(WORKERS, clean_pod_policy="Running")), exits("worker-0"))

    assert pods(world) == ["worker-0"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([waits(99)], OPEN, id="not yet"),
        pytest.param([waits(100)], Verdict("Failed", "Deadline"), id="at the second"),
        pytest.param([both(waits(100), exits("worker-0"))], SUCCEEDED, id="done in time, seen late"),
    ],
)
def test_active_deadline_counts_from_acceptance(steps: list[Step], expected: Verdict) -> None:
    world = tell(compiled(TFJob(WORKERS, active_deadline=100)), run, *steps)

    assert verdict(world) == expected


def test_the_deadline_wakes_the_operator_by_itself() -> None:
    """trainer#3358: it was noticed only at the next unrelated event."""
    world = tell(compiled(TFJob(WORKERS, active_deadline=100)), run)

    assert world.look().wake == factories.later(100)


def test_a_deadline_of_0_is_already_past() -> None:
    world = tell(compiled(TFJob(WORKERS, active_deadline=0)))

    assert verdict(world) == Verdict("Failed", "Deadline")
    assert pods(world) == []


@pytest.mark.parametrize(
    ("ttl", "seconds", "gone"), [(None, 10**6, False), (10, 9, False), (10, 10, True), (0, 0, True)]
)
def test_time_to_live_counts_from_the_end(ttl: int | None, seconds: int, gone: bool) -> None:
    world = tell(compiled(TFJob(WORKERS, ttl=ttl)), run, waits(1000), exits("worker-0"), waits(seconds))

    assert world.gone is gone


def test_created_suspended_makes_nothing() -> None:
    world = tell(compiled(TFJob(CHIEF, suspend=True, ttl=10)))

    assert (verdict(world), pods(world), services(world)) == (Verdict("Suspended"), [], [])


SUSPENDED: list[Step] = [run, exits("worker-1"), waits(90), edits(suspended=True), waits(1000)]


def test_suspension_removes_everything_whatever_the_clean_pod_policy() -> None:
    world = tell(compiled(TFJob(CHIEF, active_deadline=100)), *SUSPENDED)

    assert (verdict(world), pods(world), services(world)) == (Verdict("Suspended"), [], [])


def test_resuming_makes_all_anew_and_the_deadline_starts_again() -> None:
    job = compiled(TFJob(CHIEF, active_deadline=100))
    world = tell(job, *SUSPENDED, edits(suspended=False), run, waits(99))

    assert verdict(world) == OPEN
    assert pods(world) == ["chief-0#1", "worker-0#1", "worker-1#1"]
    assert world.job.ledger.times.started == factories.later(1090)
