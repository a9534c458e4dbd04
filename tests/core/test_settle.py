# SPDX-License-Identifier: Apache-2.0
"""What has ended: over for good, or to be tried again."""

import pytest
from passes import ON_EXIT, lived, look, on, view

from trainwright.core.budget import EndedReplica
from trainwright.core.outcomes import RoleTally, SettledJob, settle, tallies
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import ContainerStatus
from trainwright.model.job import Job, Lifecycle, Restart, RestartScope
from trainwright.model.ledger import KEPT_FAILURES, Failure, Ledger, RoleLedger
from trainwright.model.plan import State
from trainwright.testing.factories import NOW, container, job, later, node, pod, role

EXIT = Cause(CauseKind.EXIT, code=1, container="main", reason="Error", node="node-1")
LOST = Cause(CauseKind.NODE_LOST, node="node-1")


def failure(index: int, cause: Cause = EXIT, attempt: int = 0, seconds: float = 0) -> Failure:
    return Failure("worker", index, f"job-worker-{index}", attempt, later(seconds), cause)


def finals(settled: SettledJob) -> list[tuple[int, State]]:
    return [(seen.index, seen.state) for seen in settled.view.roles[0].replicas if seen.final]


def test_nothing_ended_changes_nothing() -> None:
    before = view(job(role(replicas=2), ledger=lived(RoleLedger("worker", reached=2))), pod(0), pod(1, "Pending"))

    settled = settle(before)

    assert settled.view is before
    assert SettledJob(before, {"worker": RoleTally(2)}) == settled


def test_what_is_over_for_good_is_remembered_and_counted() -> None:
    given = job(role(replicas=5), ledger=lived(RoleLedger("worker", succeeded="4", reached=5)))
    pods = (pod(0, "Succeeded"), pod(1, "Failed", code=1), pod(2), pod(3, "Succeeded"))

    settled = settle(view(given, *pods, now=later(0.9)))

    assert (RoleLedger("worker", succeeded="0,3-4", failed="1", reached=5),) == settled.view.ledger.roles
    assert (failure(1),) == settled.view.ledger.failures
    assert {"worker": RoleTally(5, frozenset({0, 3, 4}), frozenset({1}))} == settled.tallies
    assert finals(settled) == [(0, State.SUCCEEDED), (1, State.FAILED), (3, State.SUCCEEDED), (4, State.SUCCEEDED)]
    assert (settled.retries, settled.refused, settled.overspent) == ((), None, False)


def test_each_role_remembers_its_own() -> None:
    given = job(role("chief"), role("worker"), ledger=lived(RoleLedger("chief"), RoleLedger("worker")))

    settled = settle(view(given, pod(0, "Succeeded"), pod(0, role="chief")))

    assert (RoleLedger("chief"), RoleLedger("worker", succeeded="0")) == settled.view.ledger.roles
    ends = [(group.name, group.replicas[0].final) for group in settled.view.roles]
    assert ends == [("chief", False), ("worker", True)]
    assert settled.view.ledger.failures == ()


def test_what_is_remembered_already_is_not_counted_again() -> None:
    ledger = lived(RoleLedger("worker", failed="0"), failures=(failure(0),))

    settled = settle(view(job(ledger=ledger), pod(0, "Failed", code=1)))

    assert settled.view.ledger is ledger


def test_what_may_be_tried_again_has_not_failed() -> None:
    given = job(role(replicas=2, restart=ON_EXIT), ledger=lived(RoleLedger("worker", reached=2)))
    before = view(given, pod(0, "Failed", code=1), pod(1))

    settled = settle(before)

    assert settled.view is before
    assert (EndedReplica(given.roles[0], before.roles[0].replicas[0], EXIT),) == settled.retries
    assert {"worker": RoleTally(2)} == settled.tallies


def test_a_lost_node_ends_a_replica() -> None:
    settled = settle(view(job(ledger=lived()), pod(), nodes={"node-1": node(ready=False)}, now=later(60)))

    assert (RoleLedger("worker", failed="0", reached=1),) == settled.view.ledger.roles
    assert (failure(0, LOST, seconds=60),) == settled.view.ledger.failures
    assert finals(settled) == [(0, State.LOST)]


@pytest.mark.parametrize(
    "phase", [pytest.param("Pending", id="a pod that cannot start"), pytest.param("Running", id="a pod that runs")]
)
def test_what_has_not_ended_is_not_settled(phase: str) -> None:
    one = pod(0, phase, containers=(container(waiting="ImagePullBackOff"),))
    settled = settle(view(job(role(restart=ON_EXIT), ledger=lived()), one))

    assert settled.retries == ()
    assert finals(settled) == []


def test_only_the_latest_failures_are_kept() -> None:
    old = tuple(failure(index, attempt=7, seconds=-9) for index in range(KEPT_FAILURES))
    given = job(role(replicas=3), ledger=lived(RoleLedger("worker"), failures=old))

    settled = settle(view(given, *(pod(index, "Failed", code=1) for index in range(3))))

    assert KEPT_FAILURES == 8
    assert (*old[3:], failure(0), failure(1), failure(2)) == settled.view.ledger.failures


def deletable(scope: RestartScope, reached: int = 2, restart: Restart | None = None) -> Job:
    policy = restart or on(CauseKind.DELETED, scope=scope)
    return job(role(replicas=3, restart=policy), ledger=lived(RoleLedger("worker", reached=reached)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(deletable(RestartScope.ROLE), [1], id="its role restarts with it"),
        pytest.param(deletable(RestartScope.JOB), [1], id="the job restarts with it"),
        pytest.param(deletable(RestartScope.POD), [], id="a pod alone is simply made again"),
        pytest.param(
            deletable(RestartScope.ROLE, restart=on(CauseKind.EXIT, scope=RestartScope.ROLE)),
            [],
            id="not by this policy",
        ),
        pytest.param(deletable(RestartScope.ROLE, reached=1), [], id="it has never existed"),
        pytest.param(deletable(RestartScope.ROLE, reached=3), [1, 2], id="every one that is gone"),
    ],
)
def test_a_replica_that_was_taken_away_takes_its_scope_along(given: Job, expected: list[int]) -> None:
    settled = settle(view(given, pod(0)))

    assert [(index, Cause(CauseKind.DELETED)) for index in expected] == [
        (one.replica.index, one.cause) for one in settled.retries
    ]


@pytest.mark.parametrize(
    ("counted", "restarts", "expected"),
    [
        pytest.param(True, 2, [0], id="its own restarts must be kept"),
        pytest.param(True, 0, [], id="it has none"),
        pytest.param(False, 2, [], id="they do not count"),
    ],
)
def test_a_pod_on_its_way_out_is_replaced_at_once_where_its_own_restarts_must_be_kept(
    counted: bool, restarts: int, expected: list[int]
) -> None:
    one = job(role(), ledger=lived(), lifecycle=Lifecycle(counts_in_place=counted))

    settled = settle(view(one, pod(deleting=NOW, containers=(ContainerStatus("main", restart_count=restarts),))))

    assert [(index, Cause(CauseKind.DELETED)) for index in expected] == [
        (retry.replica.index, retry.cause) for retry in settled.retries
    ]
    assert finals(settled) == []


@pytest.mark.parametrize("limit", [None, 0])
def test_a_pod_on_its_way_out_takes_no_scope_along_unless_its_policy_says_so(limit: int | None) -> None:
    one = job(
        role(replicas=2, restart=on(CauseKind.EXIT, limit=limit, scope=RestartScope.ROLE)),
        ledger=lived(RoleLedger("worker", reached=2)),
        lifecycle=Lifecycle(counts_in_place=True),
    )

    plan = look(one, pod(0, deleting=NOW, containers=(ContainerStatus("main", restart_count=1),)), pod(1))

    assert (plan.status.ledger.roles[0].epoch, plan.status.ledger.outcome) == (0, None)


def test_a_replica_that_finished_was_not_taken_away() -> None:
    given = job(
        role(replicas=2, restart=on(CauseKind.DELETED, scope=RestartScope.ROLE)),
        ledger=lived(RoleLedger("worker", reached=2, succeeded="1")),
    )

    assert settle(view(given, pod(0))).retries == ()


def test_a_pod_that_is_still_on_its_way_out_was_not_taken_away_yet() -> None:
    assert settle(view(deletable(RestartScope.ROLE), pod(0), pod(1, deleting=NOW))).retries == ()


@pytest.mark.parametrize(
    ("limit", "restarts", "retried", "refused", "overspent"),
    [
        pytest.param(None, 9, [0, 1], None, False, id="no limit"),
        pytest.param(4, 2, [0, 1], None, False, id="within"),
        pytest.param(3, 2, [0], 1, True, id="the second is refused"),
        pytest.param(2, 2, [], 0, True, id="both, the first is named"),
    ],
)
def test_the_jobs_own_budget_refuses(
    limit: int | None, restarts: int, retried: list[int], refused: int | None, overspent: bool
) -> None:
    given = job(
        role(replicas=2, restart=ON_EXIT),
        ledger=lived(RoleLedger("worker", restarts={"Exit": restarts})),
        lifecycle=Lifecycle(backoff_limit=limit),
    )

    settled = settle(view(given, pod(0, "Failed", code=1), pod(1, "Failed", code=1)))

    assert retried == [one.replica.index for one in settled.retries]
    assert refused == (settled.refused.replica.index if settled.refused else None)
    assert overspent is settled.overspent


def test_tallies_are_of_the_jobs_roles_with_or_without_a_book() -> None:
    given = job(role("a", 2), role("b", 3), ledger=Ledger(roles=(RoleLedger("b", failed="1"), RoleLedger("c"))))

    assert tallies(given) == {"a": RoleTally(2), "b": RoleTally(3, frozenset(), frozenset({1}))}


def test_a_replica_that_is_no_longer_wanted_is_not_tallied() -> None:
    given = job(role(replicas=2), ledger=lived(RoleLedger("worker", succeeded="2-3", failed="4", reached=5)))

    assert settle(view(given, pod(0), pod(1, "Pending"))).tallies == {"worker": RoleTally(2)}
