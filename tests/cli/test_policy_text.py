# SPDX-License-Identifier: Apache-2.0
"""Rules and policies of every kind in words, and who would decide."""

import pytest
from msgspec.structs import replace

from trainwright.cli.policy_text import Ranks, deciders, replicas, restarts, rules, when
from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Deadline, Lifecycle, Restart, RestartScope, Since
from trainwright.model.rule import NEVER, AllOf, AnyOf, Atom, Result, Rule, Which
from trainwright.testing import factories

CHIEF = Atom("Chief", Which.EVERY, Result.SUCCEEDED)
WORKER_0 = Atom("Worker", (0,), Result.SUCCEEDED)
SOME_WORKER = Atom("Worker", Which.SOME, Result.FAILED)
WORKERS = Atom("Worker", (0, 1, 3), Result.FAILED)
NOBODY = Atom("Evaluator", Which.EVERY, Result.SUCCEEDED)
STRANGER = Atom("Stranger", (0,), Result.SUCCEEDED)
BEYOND = Atom("Worker", (4,), Result.SUCCEEDED)

JOB = factories.job(factories.role("Chief"), factories.role("Worker", 4), factories.role("Evaluator", 0))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(CHIEF, "every Chief succeeds", id="every"),
        pytest.param(WORKER_0, "Worker 0 succeeds", id="one"),
        pytest.param(SOME_WORKER, "any Worker fails", id="some"),
        pytest.param(WORKERS, "Worker 0-1,3 fail", id="ranks"),
        pytest.param(NEVER, "never", id="never"),
        pytest.param(AllOf(()), "never", id="all of nothing"),
        pytest.param(AllOf((CHIEF, WORKER_0)), "every Chief and Worker 0 succeed", id="and"),
        pytest.param(AnyOf((CHIEF, WORKER_0)), "every Chief succeeds, or Worker 0 succeeds", id="or"),
        pytest.param(AnyOf((NEVER, WORKER_0)), "Worker 0 succeeds", id="never does not show"),
        pytest.param(
            AllOf((AnyOf((CHIEF, WORKER_0)), WORKER_0)),
            "(every Chief succeeds, or Worker 0 succeeds) and Worker 0 succeeds",
            id="nested",
        ),
        pytest.param(AnyOf((WORKER_0,) * 7), ", or ".join(["Worker 0 succeeds"] * 7), id="seven"),
        pytest.param(
            AnyOf((WORKER_0,) * 8),
            ", or ".join(["Worker 0 succeeds"] * 6) + ", or 2 other rules are fulfilled",
            id="eight",
        ),
    ],
)
def test_when(rule: Rule, expected: str) -> None:
    assert when(rule) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(CHIEF, {"Chief": (0,)}, id="every"),
        pytest.param(SOME_WORKER, {"Worker": (0,)}, id="some"),
        pytest.param(WORKERS, {"Worker": (0, 1, 3)}, id="ranks"),
        pytest.param(NEVER, None, id="never"),
        pytest.param(AllOf(()), None, id="all of nothing"),
        pytest.param(NOBODY, None, id="a role of nobody"),
        pytest.param(STRANGER, None, id="an unknown role"),
        pytest.param(BEYOND, None, id="a rank too high"),
        pytest.param(AnyOf((STRANGER, WORKER_0, CHIEF)), {"Worker": (0,)}, id="the first that can"),
        pytest.param(AllOf((CHIEF, WORKER_0)), {"Chief": (0,), "Worker": (0,)}, id="and"),
        pytest.param(AllOf((CHIEF, STRANGER)), None, id="and, one cannot"),
        pytest.param(AllOf((WORKERS, WORKER_0)), {"Worker": (0, 1, 3)}, id="and, of one role"),
    ],
)
def test_deciders(rule: Rule, expected: Ranks | None) -> None:
    assert deciders(rule, JOB) == expected


def test_replicas() -> None:
    assert replicas({"ps": (0,), "worker": (0, 1, 2, 5)}) == "ps 0 and worker 0-2,5"


FAILURE = frozenset({CauseKind.EXIT, CauseKind.EVICTED})
LOST = frozenset({CauseKind.NODE_LOST})


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Restart(), "never"),
        (Restart(LOST, free=LOST), "never, except after preemption or a lost node"),
        (Restart(FAILURE, limit=0), "never (limit 0)"),
        (Restart(FAILURE), "after a failure, without limit"),
        (Restart(FAILURE, limit=3), "after a failure, at most 3 in all"),
        (Restart(FAILURE, limit=3, per_replica=True), "after a failure, at most 3 of each replica"),
        (Restart(FAILURE | {CauseKind.COMPLETED}, limit=3), "after success or failure, at most 3 in all"),
        (Restart(FAILURE | LOST, free=LOST), "after a failure, without limit; preemption and lost nodes do not count"),
        (Restart(FAILURE, codes=((128, 255), (3, 3))), "after exit code 128-255, 3, without limit"),
        (Restart(FAILURE, codes=((128, 2**31 - 1),)), "after exit code 128 and above, without limit"),
        (
            Restart(FAILURE, codes=((128, 255), (3, 3)), scope=RestartScope.ROLE),
            "after exit code 128-255, 3, without limit",
        ),
        (Restart(FAILURE, scope=RestartScope.JOB), "after a failure, without limit, with the whole job"),
        (Restart(LOST, limit=1), "after the loss of its node, at most 1 in all"),
    ],
)
def test_restarts(rule: Restart, expected: str) -> None:
    text = restarts(factories.role(restart=rule))

    assert text == expected + (", all its replicas together" if rule.scope is RestartScope.ROLE else "")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (SOME_WORKER, "when any Worker fails"),
        (AnyOf((SOME_WORKER,)), "when any Worker fails"),
        (WORKERS, "when Worker 0-1,3 fail, or success is impossible"),
        (NEVER, "when success is impossible"),
    ],
)
def test_success_out_of_reach_is_said_where_a_failure_may_pass(failure: Rule, expected: str) -> None:
    assert rules(replace(JOB, success=CHIEF, failure=failure))["fails"] == expected


@pytest.mark.parametrize(
    ("success", "failure", "deadline", "succeeds", "fails"),
    [
        pytest.param(NEVER, NEVER, None, "you end it", "never", id="nothing decides"),
        pytest.param(AllOf(()), NEVER, None, "you end it", "never", id="all of nothing"),
        pytest.param(NOBODY, NEVER, None, "you end it", "never", id="a role of nobody"),
        pytest.param(NEVER, SOME_WORKER, None, "it fails or you end it", "when any Worker fails", id="failure decides"),
        pytest.param(
            AllOf((NEVER, CHIEF)),
            SOME_WORKER,
            Deadline(5, Since.STARTED),
            "it fails, its deadline passes or you end it",
            "when any Worker fails",
            id="a part that never is",
        ),
        pytest.param(
            AllOf((NEVER, CHIEF)),
            NEVER,
            None,
            "it fails or you end it",
            "when success is impossible",
            id="a part that can be missed",
        ),
    ],
)
def test_a_job_that_never_succeeds_says_what_happens_instead(
    success: Rule, failure: Rule, deadline: Deadline | None, succeeds: str, fails: str
) -> None:
    found = rules(replace(JOB, success=success, failure=failure, lifecycle=Lifecycle(deadline=deadline)))

    assert found["succeeds"] == (f"never: no replica can fulfil its success rule, so it runs until {succeeds}")
    assert found["fails"] == fails


def test_an_alternative_that_nobody_can_fulfil_is_left_out() -> None:
    job = replace(JOB, success=AnyOf((AllOf((NEVER, CHIEF)), NOBODY, WORKER_0)), failure=AnyOf((NEVER, SOME_WORKER)))

    assert (rules(job)["succeeds"], rules(job)["fails"]) == ("when Worker 0 succeeds", "when any Worker fails")


@pytest.mark.parametrize(
    ("limit", "at", "expected"),
    [
        (0, False, "fails with the first restart of any role (backoffLimit 0)"),
        (0, True, "fails with the first restart of any role (backoffLimit 0)"),
        (1, True, "fails with the first restart of any role (backoffLimit 1)"),
        (1, False, "fails beyond 1 restart of all roles together"),
    ],
)
def test_a_limit_that_the_first_restart_reaches(limit: int, at: bool, expected: str) -> None:
    life = Lifecycle(backoff_limit=limit, fails_at_limit=at)

    assert rules(factories.job(lifecycle=life))["limit"] == expected


def test_rules_of_a_job_with_everything() -> None:
    life = Lifecycle(
        clean=CleanUp(CleanPods.ALL, CleanPods.UNFINISHED, CleanPods.NONE),
        backoff_limit=4,
        deadline=Deadline(3600),
        start_deadline=60,
        ttl=90.5,
    )

    assert rules(factories.job(factories.role("a"), factories.role("b", 0), lifecycle=life)) == {
        "succeeds": "when every a succeeds",
        "fails": "when any a fails",
        "restarts a": "never",
        "clean-up": "after success: removes all pods; after failure: removes unfinished pods, keeps finished ones for "
        "their logs; after a deadline: keeps all pods",
        "limit": "fails beyond 4 restarts of all roles together",
        "deadline": "fails 3600 s after it was submitted",
        "start": "fails if not every pod runs within 60 s",
        "removed": "90.5 s after its end",
    }


def test_a_deadline_from_running() -> None:
    life = Lifecycle(deadline=Deadline(60, Since.RUNNING))

    assert rules(factories.job(lifecycle=life))["deadline"] == "fails 60 s after every pod ran"


@pytest.mark.parametrize(("at", "expected"), [(False, "beyond"), (True, "with")])
def test_a_limit_that_already_fails_is_worded_so(at: bool, expected: str) -> None:
    life = Lifecycle(backoff_limit=4, fails_at_limit=at)

    assert rules(factories.job(lifecycle=life))["limit"] == f"fails {expected} 4 restarts of all roles together"
