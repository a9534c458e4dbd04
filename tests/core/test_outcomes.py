# SPDX-License-Identifier: Apache-2.0
"""How a job ends, and what decided it; the first that answers wins."""

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace
from passes import ON_EXIT, emitted, lived, look, on, view, waiting

from trainwright.core.outcomes import decide, settle
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import ContainerStatus, Pod
from trainwright.model.event import Emit, EventReason
from trainwright.model.job import Deadline, Job, Lifecycle, RequestedEnd, Since
from trainwright.model.ledger import Failure, Ledger, Outcome, Phase, Reason, RoleLedger, Times
from trainwright.model.rule import NEVER, AllOf, AnyOf, Atom, Result, Which
from trainwright.testing.factories import NOW, job, later, pod, role

EXIT = Cause(CauseKind.EXIT, code=1, container="main", reason="Error", node="node-1")
FAILURE = Failure("worker", 0, "job-worker-0", 0, NOW, EXIT)
FAILED, SUCCEEDED = Result.FAILED, Result.SUCCEEDED


def outcome_of(given: Job, *pods: Pod, now: datetime = NOW) -> Outcome | None:
    return decide(settle(view(given, *pods, now=now)))


def test_nothing_ended_decides_nothing() -> None:
    assert outcome_of(job(ledger=lived()), pod()) is None


def test_rules_are_not_asked_before_something_has_ended() -> None:
    nobody = Atom("nobody", Which.EVERY, SUCCEEDED)

    assert outcome_of(job(success=nobody, ledger=lived()), pod()) is None


def test_success_keeps_the_rule_and_the_replica() -> None:
    given = job(role(replicas=2), success=AllOf((Atom("worker", (1,), SUCCEEDED),), "worker 1"), ledger=lived())

    assert Outcome(SUCCEEDED, Reason.RULE, later(0.7), "worker 1", "rule worker 1 fulfilled by worker 1") == outcome_of(
        given, pod(0), pod(1, "Succeeded"), now=later(0.7)
    )


def test_a_rule_without_words_is_one_of_the_rules() -> None:
    assert Outcome(SUCCEEDED, Reason.RULE, NOW, "", "every replica that counts has succeeded") == outcome_of(
        job(ledger=lived()), pod(phase="Succeeded")
    )


def test_a_rule_is_kept_as_far_as_a_ledger_has_room_for_it() -> None:
    one = job(success=AllOf((Atom("worker", (0,), SUCCEEDED),), "x" * 5000), ledger=lived())

    found = outcome_of(one, pod(phase="Succeeded"))

    assert found is not None
    assert found.rule == "x" * 4095 + "…"
    assert found.message == "rule " + "x" * 4090 + "…"


def test_failure_keeps_the_rule_the_replica_and_its_failure() -> None:
    given = job(failure=AnyOf((Atom("worker", Which.SOME, FAILED),), "any worker"), ledger=lived())

    assert Outcome(
        FAILED, Reason.RULE, NOW, "any worker", "rule any worker fulfilled by worker 0", failure=FAILURE
    ) == outcome_of(given, pod(phase="Failed", code=1))


def test_success_out_of_reach_is_failure() -> None:
    given = job(success=AllOf((Atom("worker", Which.EVERY, SUCCEEDED),), "all"), failure=NEVER, ledger=lived())

    assert Outcome(
        FAILED,
        Reason.UNREACHABLE,
        NOW,
        "",
        "no success rule can be fulfilled any more, since worker 0 failed",
        failure=FAILURE,
    ) == outcome_of(given, pod(phase="Failed", code=1))


def test_rules_that_stay_open_decide_nothing() -> None:
    given = job(role(replicas=2), success=NEVER, failure=NEVER, ledger=lived())

    assert outcome_of(given, pod(0, "Failed", code=1), pod(1, "Succeeded")) is None


def test_a_replica_that_may_be_tried_again_fails_no_job() -> None:
    assert outcome_of(job(role(restart=ON_EXIT), ledger=lived()), pod(phase="Failed", code=1)) is None


ENDING = RequestedEnd("Preempted", "make room")
LONG_AGO = Deadline(0)
EVERYTHING: dict[str, Any] = {"ending": ENDING, "deadline": LONG_AGO, "start_deadline": 0.0, "backoff_limit": 0}
IN_PLACE = (ContainerStatus("main", restart_count=1),)


@pytest.mark.parametrize(
    ("without", "pods", "expected"),
    [
        pytest.param((), (pod(0, "Succeeded"), pod(1, "Failed", code=1)), (SUCCEEDED, Reason.RULE), id="1 success"),
        pytest.param((), (pod(1, "Failed", code=1),), (FAILED, Reason.EXTERNAL), id="2 an end from outside"),
        pytest.param(("ending",), (pod(1, "Failed", code=1),), (FAILED, Reason.DEADLINE), id="3 the deadline"),
        pytest.param(
            ("ending", "deadline"),
            (pod(1, "Failed", code=1),),
            (FAILED, Reason.START_DEADLINE),
            id="4 the start deadline",
        ),
        pytest.param(
            ("ending", "deadline", "start_deadline"),
            (pod(0, "Failed", code=1), pod(1, "Failed", code=1), pod(2, containers=IN_PLACE)),
            (FAILED, Reason.RULE),
            id="5 a failure rule",
        ),
        pytest.param(
            ("ending", "deadline", "start_deadline"),
            (pod(0, "Failed", code=1), pod(2, containers=IN_PLACE)),
            (FAILED, Reason.UNREACHABLE),
            id="6 success out of reach",
        ),
        pytest.param(
            ("ending", "deadline", "start_deadline"),
            (pod(2, containers=IN_PLACE),),
            (FAILED, Reason.BACKOFF_LIMIT),
            id="7 the restart budget",
        ),
        pytest.param(("ending", "deadline", "start_deadline"), (pod(2),), None, id="nothing"),
    ],
)
def test_the_order_in_which_ends_are_judged(
    without: tuple[str, ...], pods: tuple[Pod, ...], expected: tuple[Result, Reason] | None
) -> None:
    left = {name: value for name, value in EVERYTHING.items() if name not in without}
    given = job(
        role(replicas=3),
        success=Atom("worker", (0,), SUCCEEDED),
        failure=Atom("worker", (1,), FAILED),
        lifecycle=Lifecycle(**left, counts_in_place=True),
        ledger=waiting(),
    )

    found = outcome_of(given, *pods)

    assert expected == (None if found is None else (found.result, found.reason))


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        pytest.param(
            RequestedEnd("Preempted", "make room"),
            Outcome(FAILED, Reason.EXTERNAL, later(0.3), message="make room", word="Preempted"),
            id="failed",
        ),
        pytest.param(
            RequestedEnd("Completed", succeeded=True),
            Outcome(SUCCEEDED, Reason.EXTERNAL, later(0.3), word="Completed"),
            id="succeeded",
        ),
    ],
)
def test_an_end_that_somebody_asked_for(ending: RequestedEnd, expected: Outcome) -> None:
    assert expected == outcome_of(job(lifecycle=Lifecycle(ending=ending), ledger=lived()), pod(), now=later(0.3))


TIMES = Times(later(-100), NOW, later(5))


@pytest.mark.parametrize(
    ("deadline", "phase", "times", "due"),
    [
        pytest.param(Deadline(10), Phase.RUNNING, TIMES, later(10), id="from its start"),
        pytest.param(Deadline(10), Phase.PENDING, Times(later(-100), NOW), later(10), id="also while it waits"),
        pytest.param(Deadline(10, Since.RUNNING), Phase.RUNNING, TIMES, later(15), id="from when it ran"),
        pytest.param(Deadline(10, Since.RUNNING), Phase.RESTARTING, TIMES, later(15), id="also while it restarts"),
        pytest.param(Deadline(10, Since.RUNNING), Phase.PENDING, Times(NOW, NOW), None, id="it has not run yet"),
        pytest.param(Deadline(10), Phase.PENDING, Times(NOW), None, id="it has not started yet"),
        pytest.param(Deadline(0.5), Phase.RUNNING, TIMES, later(0.5), id="half a second"),
        pytest.param(None, Phase.RUNNING, TIMES, None, id="none"),
    ],
)
def test_a_deadline_passes_in_its_own_second(
    deadline: Deadline | None, phase: Phase, times: Times, due: datetime | None
) -> None:
    given = job(lifecycle=Lifecycle(deadline=deadline), ledger=lived(phase=phase, times=times))
    one = pod(phase="Pending")

    if due is None:
        assert look(given, one).wake is None
        assert outcome_of(given, one, now=later(1e9)) is None
    else:
        just_before = later(-0.001, due)
        assert (outcome_of(given, one, now=just_before), look(given, one, now=just_before).wake) == (None, due)
        assert Outcome(FAILED, Reason.DEADLINE, due, message="it was active longer than its deadline") == outcome_of(
            given, one, now=due
        )


@pytest.mark.parametrize(
    ("seconds", "phase", "times", "due"),
    [
        pytest.param(10, Phase.PENDING, Times(later(-9), NOW), later(10), id="pending"),
        pytest.param(10, Phase.RESUMING, Times(later(-9), later(2)), later(12), id="from its resumption"),
        pytest.param(10, Phase.RUNNING, Times(NOW, NOW, NOW), None, id="it has started"),
        pytest.param(10, Phase.RESTARTING, Times(NOW, NOW, NOW), None, id="it had started once"),
        pytest.param(10, Phase.PENDING, Times(NOW), None, id="nobody knows since when"),
        pytest.param(None, Phase.PENDING, Times(NOW, NOW), None, id="none"),
    ],
)
def test_a_start_deadline_passes_in_its_own_second(
    seconds: float | None, phase: Phase, times: Times, due: datetime | None
) -> None:
    given = job(lifecycle=Lifecycle(start_deadline=seconds), ledger=lived(phase=phase, times=times))
    one = pod(phase="Pending")

    if due is None:
        assert look(given, one).wake is None
        assert outcome_of(given, one, now=later(1e9)) is None
    else:
        just_before = later(-0.001, due)
        assert (outcome_of(given, one, now=just_before), look(given, one, now=just_before).wake) == (None, due)
        expected = Outcome(FAILED, Reason.START_DEADLINE, due, message="not every replica had started in time")
        assert outcome_of(given, one, now=due) == expected


def test_the_earlier_of_two_deadlines_wakes() -> None:
    both = Lifecycle(deadline=Deadline(20), start_deadline=10)

    assert look(job(lifecycle=both, ledger=waiting()), pod(phase="Pending")).wake == later(10)


def budgeted(limit: int, **more: Any) -> Job:
    return job(
        role(replicas=2, restart=ON_EXIT),
        lifecycle=Lifecycle(backoff_limit=limit, **more),
        ledger=lived(RoleLedger("worker", restarts={"Exit": 1})),
    )


def test_the_restart_that_the_jobs_budget_refuses_fails_it() -> None:
    expected = Outcome(
        FAILED,
        Reason.BACKOFF_LIMIT,
        NOW,
        message="the restart limit (backoffLimit) of 1 is reached: 1 restart counts against it",
        failure=Failure("worker", 1, "job-worker-1", 0, NOW, EXIT),
    )

    assert expected == outcome_of(budgeted(1), pod(0), pod(1, "Failed", code=1))
    assert outcome_of(budgeted(2), pod(0), pod(1, "Failed", code=1)) is None


@pytest.mark.parametrize(
    ("limit", "made", "expected"),
    [
        (0, 0, "the restart limit (backoffLimit) is 0: no restart is made"),
        (1, 0, "the restart limit (backoffLimit) of 1 is reached: the first restart would reach it, so none was made"),
        (
            3,
            2,
            "the restart limit (backoffLimit) of 3 is reached: 2 restarts count against it, "
            "and one more would reach it",
        ),
    ],
)
def test_what_happened_at_the_limit_is_told(limit: int, made: int, expected: str) -> None:
    job = replace(
        budgeted(limit, fails_at_limit=True),
        ledger=lived(RoleLedger("worker", restarts={"Exit": made} if made else {})),
    )

    outcome = outcome_of(job, pod(0), pod(1, "Failed", code=1))

    assert outcome is not None
    assert outcome.message == expected


def test_restarts_in_place_alone_can_fail_it() -> None:
    pods = (pod(0), pod(1, containers=(ContainerStatus("main", restart_count=2),)))

    message = "the restart limit (backoffLimit) of 2 is reached: 3 restarts count against it"
    assert Outcome(FAILED, Reason.BACKOFF_LIMIT, NOW, message=message) == outcome_of(
        budgeted(2, counts_in_place=True), *pods
    )
    assert outcome_of(budgeted(3, counts_in_place=True), *pods) is None


def test_the_failure_shown_is_the_latest_of_that_replica() -> None:
    others = tuple(Failure("worker", index, "x", 0, later(-9), EXIT) for index in (1, 0))
    chief = Failure("chief", 0, "x", 0, later(-9), EXIT)
    ledger = lived(RoleLedger("worker", failed="0"), failures=(*others, chief))
    given = job(role(replicas=2), ledger=ledger)

    found = outcome_of(given, pod(1))

    assert found is not None
    assert found.failure is others[1]


def test_a_failure_that_was_not_kept_is_shown_from_its_pod() -> None:
    given = job(role("chief"), role(replicas=20), failure=Atom("worker", Which.SOME, FAILED), ledger=Ledger())

    found = outcome_of(given, *(pod(index, "Failed", code=1) for index in range(20)))

    assert found is not None
    assert found.failure == FAILURE


def test_a_failure_that_was_not_kept_and_whose_pod_is_gone_says_so() -> None:
    found = outcome_of(job(ledger=lived(RoleLedger("worker", 2, failed="0"))))

    assert found is not None
    assert Failure("worker", 0, "job-worker-0", 2, NOW, Cause(CauseKind.REJECTED)) == found.failure


def test_a_rule_on_nobody_fails_without_a_failure() -> None:
    given = job(success=Atom("nobody", Which.EVERY, SUCCEEDED), failure=NEVER, ledger=lived())

    found = outcome_of(given, pod(phase="Succeeded"))

    assert found is not None
    assert (found.result, found.reason, found.failure) == (FAILED, Reason.UNREACHABLE, None)


def test_a_rule_that_cannot_be_met_says_why() -> None:
    given = job(success=Atom("worker", (5,), SUCCEEDED), failure=NEVER, ledger=lived())

    found = outcome_of(given, pod(phase="Succeeded"))

    assert found is not None
    assert found.message == "no success rule can be fulfilled any more"


def test_what_was_decided_is_stored_and_told_with_its_reason() -> None:
    plan = look(job(ledger=lived()), pod(phase="Failed", code=1), now=later(8))

    outcome = plan.status.ledger.outcome
    assert outcome is not None
    assert (plan.status.ledger.phase, plan.status.ledger.times.ended) == (Phase.FAILED, later(8))
    assert emitted(plan) == (
        Emit(
            EventReason.FAILED,
            "worker 0 failed for good; job-worker-0: container main exited with code 1",
            warning=True,
        ),
    )


def test_what_somebody_said_is_cut_to_what_a_ledger_takes() -> None:
    given = job(lifecycle=Lifecycle(ending=RequestedEnd("Preempted", "x" * 5000)), ledger=lived())

    found = outcome_of(given, pod())

    assert found is not None
    assert found.message == "x" * 4095 + "…"


def test_an_end_is_judged_with_a_policy_that_answers_other_causes() -> None:
    given = job(role(restart=on(CauseKind.EVICTED)), ledger=lived())

    found = outcome_of(given, pod(phase="Failed", code=1))

    assert found is not None
    assert (found.result, found.failure) == (FAILED, FAILURE)
