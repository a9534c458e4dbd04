# SPDX-License-Identifier: Apache-2.0
"""Cause → policy → budget → back-off → scope → new attempt."""

from datetime import datetime

import pytest
from msgspec.structs import replace
from passes import ON_EXIT, emitted, lived, look, names, on, undone, view

from trainwright.core.attempts import budget_used
from trainwright.core.budget import EndedReplica, restarts_counted
from trainwright.core.outcomes import settle
from trainwright.core.restart import apply_restarts, restart_delay
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import ContainerStatus, Pod
from trainwright.model.event import Emit, EventReason
from trainwright.model.job import Elastic, Lifecycle, RestartScope
from trainwright.model.ledger import KEPT_FAILURES, Failure, Hold, Phase, RoleLedger
from trainwright.model.plan import Delete, ReplicaState, State, Write
from trainwright.model.rule import NEVER
from trainwright.model.units import parse_counts
from trainwright.testing.factories import NOW, container, job, later, node, pod, role

EXIT = Cause(CauseKind.EXIT, code=1, container="main", reason="Error", node="node-1")


def failed(index: int = 0, attempt: int = 0, **more: object) -> Pod:
    return pod(index, "Failed", attempt=attempt, code=1, **more)


@pytest.mark.parametrize(
    ("tries", "expected"),
    [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0), (4, 16.0), (5, 32.0), (6, 60.0), (7, 60.0), (16, 60.0), (10**6, 60.0)],
)
@pytest.mark.parametrize("scope", list(RestartScope))
def test_the_delay_is_a_second_doubling_to_a_minute(scope: RestartScope, tries: int, expected: float) -> None:
    worker = role(restart=on(CauseKind.EXIT, scope=scope))
    epoch, restarts = (3, 99) if scope is RestartScope.POD else (tries, tries)
    entry = RoleLedger("worker", epoch, restarts={"Exit": restarts - restarts // 2, "Evicted": restarts // 2})
    retry = EndedReplica(worker, ReplicaState(0, epoch + tries, State.FAILED), EXIT)

    assert expected == restart_delay(entry, retry, NOW)


@pytest.mark.parametrize(
    ("born", "expected"),
    [
        pytest.param(None, 60.0, id="nobody knows since when it ran"),
        pytest.param(later(-599.999), 60.0, id="it ran for a little less than ten minutes"),
        pytest.param(later(-600), 1.0, id="it ran for ten minutes"),
        pytest.param(later(-9999), 1.0, id="it ran for longer"),
    ],
)
def test_a_replica_that_lasted_is_forgiven(born: datetime | None, expected: float) -> None:
    retry = EndedReplica(role(restart=ON_EXIT), ReplicaState(0, 9, State.FAILED, failed(attempt=9, started=born)), EXIT)

    assert expected == restart_delay(RoleLedger("worker"), retry, NOW)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [(RestartScope.POD, 0.0), (RestartScope.ROLE, 60.0), (RestartScope.JOB, 60.0)],
    ids=["pod", "role", "job"],
)
def test_a_pod_that_somebody_removed_did_nothing_wrong(scope: RestartScope, expected: float) -> None:
    retry = EndedReplica(
        role(restart=on(CauseKind.DELETED, scope=scope)), ReplicaState(0, 9, State.STOPPING), Cause(CauseKind.DELETED)
    )

    assert expected == restart_delay(RoleLedger("worker", restarts={"Exit": 9}), retry, NOW)


def test_a_pod_that_somebody_removed_is_made_again_as_soon_as_its_name_is_free() -> None:
    one = job(role(restart=ON_EXIT), ledger=lived(), lifecycle=Lifecycle(counts_in_place=True))
    going = pod(deleting=later(30), containers=(ContainerStatus("main", restart_count=2),))

    plan = look(one, going)

    assert plan.status.ledger.roles == (
        undone(
            RoleLedger("worker", retries="0:1", restarts={"Deleted": 1, "InPlace": 2}, reached=1),
            "0",
            CauseKind.DELETED,
        ),
    )
    assert (plan.creates, plan.deletes, plan.wake) == ((), (), None)
    assert names(look(replace(one, ledger=plan.status.ledger))) == {"creates": ["Pod job-worker-0"], "deletes": []}


def test_a_pass_without_restarts_is_left_as_it_is() -> None:
    settled = settle(view(job(ledger=lived()), pod()))

    assert apply_restarts(settled) is settled.view


def test_a_failed_pod_is_counted_and_tried_again_after_its_back_off() -> None:
    ledger = lived(RoleLedger("worker", reached=2))
    given = job(role(replicas=2, restart=ON_EXIT), ledger=ledger)
    pods = (failed(0), pod(1))

    plan = look(given, *pods, now=later(10))

    assert (
        undone(
            RoleLedger("worker", retries="0:1", restarts={"Exit": 1}, reached=2, holds=(Hold(later(11), "0"),)), "0"
        ),
    ) == plan.status.ledger.roles
    assert (Failure("worker", 0, "job-worker-0", 0, later(10), EXIT),) == plan.status.ledger.failures
    assert (plan.write, plan.status.ledger.phase) == (Write.NOW, Phase.RESTARTING)
    assert (
        ReplicaState(0, 1, State.WAITING, old=pods[0]),
        ReplicaState(1, 0, State.RUNNING, pods[1]),
    ) == plan.status.roles[0].replicas
    assert emitted(plan) == (
        Emit(EventReason.RESTARTING, "restarting after job-worker-0: container main exited with code 1", warning=True),
    )
    # The pod stays until then, for its log.
    assert (plan.deletes, plan.creates, plan.wake) == ((), (), later(11))


def test_after_the_back_off_the_old_pod_goes_and_only_then_the_new_one_comes() -> None:
    entry = RoleLedger("worker", retries="0:1", restarts={"Exit": 1}, reached=1, holds=(Hold(later(11), "0"),))
    given = job(role(restart=ON_EXIT), ledger=lived(entry, phase=Phase.RESTARTING))

    before = look(given, failed(), now=later(10.9))
    gone = look(given, now=later(10.9))
    after = look(given, failed(), now=later(11))
    then = look(given, now=later(11))

    assert (before.deletes, before.creates, before.wake) == ((), (), later(11))
    assert (gone.deletes, gone.creates, gone.wake) == ((), (), later(11))
    assert (Delete("Pod", "job-worker-0", "job-worker-0-0", "attempt 0 has been replaced by 1"),) == after.deletes
    assert (after.creates, after.wake) == ((), None)
    assert (after.write, after.status.ledger.roles[0].holds) == (Write.LATER, ())
    assert names(then) == {"creates": ["Pod job-worker-0"], "deletes": []}
    assert then.creates[0].body["metadata"]["labels"]["trainwright.dev/attempt"] == "1"


def two_roles(scope: RestartScope) -> tuple[RoleLedger, ...]:
    """The ledger entries after `worker` 1 of two failed, beside a `chief` of one, with this scope."""
    given = job(
        role(replicas=2, restart=on(CauseKind.EXIT, scope=scope)),
        role("chief"),
        ledger=lived(
            RoleLedger("worker", 1, "0:2", {"Exit": 2}, reached=2),
            RoleLedger("chief", 5, "0:1", succeeded="0", reached=1),
        ),
    )
    settled = settle(view(given, pod(0, attempt=3), failed(1, 1), pod(0, role="chief", attempt=6)))
    return apply_restarts(settled).ledger.roles


@pytest.mark.parametrize(
    ("scope", "worker", "chief"),
    [
        pytest.param(
            RestartScope.POD,
            undone(RoleLedger("worker", 1, "0:2,1:1", {"Exit": 3}, reached=2, holds=(Hold(later(1), "1"),)), "1"),
            RoleLedger("chief", 5, "0:1", succeeded="0", reached=1),
            id="the pod alone",
        ),
        pytest.param(
            RestartScope.ROLE,
            undone(RoleLedger("worker", 4, "", {"Exit": 3}, holds=(Hold(later(4), "0-1"),)), "0-1", together=True),
            RoleLedger("chief", 5, "0:1", succeeded="0", reached=1),
            id="its whole role",
        ),
        pytest.param(
            RestartScope.JOB,
            undone(RoleLedger("worker", 4, "", {"Exit": 3}, holds=(Hold(later(4), "0-1"),)), "0-1", together=True),
            RoleLedger("chief", 7, holds=(Hold(later(4), "0"),)),
            id="the whole job, also what had finished",
        ),
    ],
)
def test_the_scope_of_a_restart(scope: RestartScope, worker: RoleLedger, chief: RoleLedger) -> None:
    assert (worker, chief) == two_roles(scope)


def test_live_peers_of_a_restarted_role_go_at_once() -> None:
    given = job(
        role(replicas=3, restart=on(CauseKind.EXIT, scope=RestartScope.ROLE)),
        ledger=lived(RoleLedger("worker", reached=3)),
    )

    plan = look(given, failed(0), pod(1), pod(2, deleting=later(5)))

    assert (Delete("Pod", "job-worker-1", "job-worker-1-0", "attempt 0 has been replaced by 1"),) == plan.deletes
    assert plan.creates == ()


def test_replicas_that_fail_together_are_each_tried_again() -> None:
    given = job(role(replicas=3, restart=ON_EXIT), ledger=lived(RoleLedger("worker", retries="2:3", reached=3)))

    plan = look(given, failed(0), pod(1), failed(2, 3))

    assert plan.status.ledger.roles == (
        undone(
            RoleLedger(
                "worker",
                retries="0:1,2:4",
                restarts={"Exit": 2},
                reached=3,
                holds=(Hold(later(1), "0"), Hold(later(8), "2")),
            ),
            "0,2",
        ),
    )
    assert [one.index for one in plan.status.ledger.failures] == [0, 2]
    assert plan.wake == later(1)


def test_a_role_that_fails_together_restarts_once() -> None:
    given = job(
        role(replicas=2, restart=on(CauseKind.EXIT, scope=RestartScope.ROLE)),
        ledger=lived(RoleLedger("worker", reached=2)),
    )

    plan = look(given, failed(0), failed(1))

    assert plan.status.ledger.roles == (
        undone(RoleLedger("worker", 1, restarts={"Exit": 1}, holds=(Hold(later(1), "0-1"),)), "0-1", together=True),
    )
    assert [one.index for one in plan.status.ledger.failures] == [0, 1]


def test_a_success_in_the_same_pass_is_forgotten_where_the_scope_reaches_it() -> None:
    given = job(
        role(replicas=2, restart=on(CauseKind.EXIT, scope=RestartScope.ROLE)),
        ledger=lived(RoleLedger("worker", reached=2)),
    )

    plan = look(given, failed(0), pod(1, "Succeeded"))

    assert plan.status.ledger.roles == (
        undone(RoleLedger("worker", 1, restarts={"Exit": 1}, holds=(Hold(later(1), "0-1"),)), "0-1", together=True),
    )


def test_a_completed_replica_is_run_again_where_asked() -> None:
    given = job(role(restart=on(CauseKind.COMPLETED)), ledger=lived())

    plan = look(given, pod(phase="Succeeded"))

    assert plan.status.ledger.roles == (
        undone(
            RoleLedger("worker", retries="0:1", restarts={"Completed": 1}, reached=1, holds=(Hold(later(1), "0"),)),
            "0",
            CauseKind.COMPLETED,
        ),
    )
    assert plan.status.ledger.failures == ()
    assert plan.status.ledger.outcome is None


def test_the_event_of_a_restart_names_no_older_failure() -> None:
    old = Failure("worker", 1, "job-worker-1", 0, later(-999), EXIT)
    given = job(
        role(replicas=2, restart=on(CauseKind.COMPLETED)),
        ledger=lived(RoleLedger("worker", reached=2), failures=(old,)),
    )

    plan = look(given, pod(0, "Succeeded"), pod(1))

    assert emitted(plan) == (Emit(EventReason.RESTARTING, "restarting what had completed, as its policy says"),)


def test_the_event_of_a_restart_names_what_is_restarted() -> None:
    one = job(
        role(replicas=2, restart=on(CauseKind.EXIT, codes=((1, 1),))),
        success=NEVER,
        failure=NEVER,
        ledger=lived(RoleLedger("worker", reached=2)),
    )

    plan = look(one, pod(0, "Failed", code=2), failed(1))

    assert emitted(plan) == (
        Emit(EventReason.RESTARTING, "restarting after job-worker-1: container main exited with code 1", warning=True),
    )


def test_the_role_that_caused_a_restart_of_the_job_pays_for_it() -> None:
    given = job(
        role("chief", restart=on(CauseKind.EXIT, scope=RestartScope.JOB)),
        role("worker", 2, restart=on(CauseKind.EXIT, limit=0)),
        ledger=lived(RoleLedger("chief", reached=1), RoleLedger("worker", reached=2)),
    )

    plan = look(given, failed(role="chief"), failed(1), pod(0))

    assert plan.status.ledger.roles == (
        undone(RoleLedger("chief", 1, restarts={"Exit": 1}, holds=(Hold(later(1), "0"),)), "0", together=True),
        RoleLedger("worker", 1, holds=(Hold(later(1), "0-1"),)),
    )
    assert plan.status.ledger.outcome is None


def test_a_restart_of_the_job_can_count_on_every_role_it_takes_along() -> None:
    one = job(
        role("chief", restart=on(CauseKind.EXIT, scope=RestartScope.JOB, shared=True)),
        role("worker", 2),
        ledger=lived(RoleLedger("chief", reached=1), RoleLedger("worker", restarts={"Exit": 2}, reached=2)),
    )

    plan = look(one, failed(role="chief"), pod(0), pod(1))

    assert [entry.restarts for entry in plan.status.ledger.roles] == [{"Exit": 1}, {"Exit": 3}]


def test_a_restart_that_is_free_for_its_role_uses_no_budget_of_another_role() -> None:
    """A role that is sized automatically survives lost nodes for free; so do the roles that restart with it."""
    both = on(CauseKind.EXIT, CauseKind.NODE_LOST, scope=RestartScope.JOB, shared=True, limit=1)
    roles = (role("server", restart=both), role("trainer", restart=both, elastic=Elastic(1, 1, auto=True)))
    one = job(*roles, ledger=lived(RoleLedger("server", reached=1), RoleLedger("trainer", reached=1)))
    lost = {"node-1": node(), "lost": node("lost", ready=False, since=later(-9999))}

    plan = look(one, pod(role="server"), pod(role="trainer", node="lost"), nodes=lost)

    server, trainer = plan.status.ledger.roles
    assert (server.epoch, trainer.epoch) == (1, 1)
    assert (sum(server.restarts.values()), sum(trainer.restarts.values())) == (1, 1)
    assert [budget_used(entry, part.uncounted) for entry, part in zip((server, trainer), roles, strict=True)] == [0, 0]
    assert (server.made(), restarts_counted(one, plan.status.ledger, ())) == (0, 0)


def test_a_restart_of_a_role_counts_on_no_other() -> None:
    one = job(
        role("chief", restart=on(CauseKind.EXIT, scope=RestartScope.ROLE, shared=True)),
        role("worker"),
        ledger=lived(RoleLedger("chief", reached=1), RoleLedger("worker", reached=1)),
    )

    plan = look(one, failed(role="chief"), pod())

    assert [entry.restarts for entry in plan.status.ledger.roles] == [{"Exit": 1}, {}]


def test_the_kubelets_own_restarts_in_other_roles_are_kept_where_the_job_restarts() -> None:
    one = job(
        role("chief", restart=on(CauseKind.EXIT, scope=RestartScope.JOB)),
        role("worker", 2),
        ledger=lived(RoleLedger("chief", reached=1), RoleLedger("worker", reached=2)),
        lifecycle=Lifecycle(counts_in_place=True),
    )
    thrice = (ContainerStatus("main", restart_count=3),)

    plan = look(one, failed(role="chief"), pod(0, containers=thrice), pod(1, containers=thrice))

    assert [entry.restarts for entry in plan.status.ledger.roles] == [{"Exit": 1}, {"InPlace": 6}]


TWICE = (ContainerStatus("main", restart_count=2, state=container(exit_code=1, reason="Error").state),)


@pytest.mark.parametrize(
    ("counted", "restarts"),
    [
        pytest.param(True, {"Exit": 1, "InPlace": 2}, id="counted"),
        pytest.param(False, {"Exit": 1}, id="not counted"),
    ],
)
def test_the_kubelets_own_restarts_are_kept_when_their_pod_goes(counted: bool, restarts: dict[str, int]) -> None:
    given = job(
        role(replicas=2, restart=ON_EXIT),
        ledger=lived(RoleLedger("worker", reached=2)),
        lifecycle=Lifecycle(counts_in_place=counted),
    )
    other = pod(1, containers=(ContainerStatus("main", restart_count=5),))

    plan = look(given, pod(0, "Failed", containers=TWICE), other)

    assert restarts == plan.status.ledger.roles[0].restarts


def test_a_pod_that_is_gone_has_no_restarts_of_its_own_to_keep() -> None:
    given = job(
        role(replicas=2, restart=on(CauseKind.DELETED, scope=RestartScope.ROLE)),
        ledger=lived(RoleLedger("worker", reached=2)),
        lifecycle=Lifecycle(counts_in_place=True),
    )

    plan = look(given, pod(0))

    assert plan.status.ledger.roles == (
        undone(
            RoleLedger("worker", 1, restarts={"Deleted": 1}, holds=(Hold(later(1), "0-1"),)),
            "0-1",
            CauseKind.DELETED,
            together=True,
        ),
    )
    assert plan.status.ledger.failures == (Failure("worker", 1, "job-worker-1", 0, NOW, Cause(CauseKind.DELETED)),)


@pytest.mark.parametrize("scope", [RestartScope.ROLE, RestartScope.JOB])
def test_the_kubelets_own_restarts_are_kept_of_every_pod_that_goes(scope: RestartScope) -> None:
    given = job(
        role(replicas=2, restart=on(CauseKind.EXIT, scope=scope)),
        ledger=lived(RoleLedger("worker", reached=2)),
        lifecycle=Lifecycle(counts_in_place=True, backoff_limit=100),
    )

    plan = look(
        given, pod(0, "Failed", containers=TWICE), pod(1, containers=(ContainerStatus("main", restart_count=5),))
    )

    assert plan.status.ledger.roles[0].restarts == {"Exit": 1, "InPlace": 7}


# -- many at once ------------------------------------------------------------------------------------------------------


def test_two_thousand_that_fail_together_are_counted_and_held_as_one_group() -> None:
    given = job(role(replicas=2000, restart=ON_EXIT), ledger=lived(RoleLedger("worker", 3, reached=2000)))

    plan = look(given, *(failed(index, 3) for index in range(2000)))

    (entry,) = plan.status.ledger.roles
    assert (entry.restarts, entry.holds, entry.epoch) == ({"Exit": 2000}, (Hold(later(1), "0-1999"),), 3)
    assert parse_counts(entry.retries) == dict.fromkeys(range(2000), 1)
    assert [one.index for one in plan.status.ledger.failures] == list(range(2000 - KEPT_FAILURES, 2000))
    assert (plan.creates, plan.deletes, plan.wake) == ((), (), later(1))


def test_replicas_of_one_role_are_held_by_their_delay_and_counted_by_their_cause() -> None:
    restart = on(CauseKind.EXIT, CauseKind.EVICTED)
    given = job(
        role(replicas=5, restart=restart),
        ledger=lived(RoleLedger("worker", retries="1:2,3:2", restarts={"Exit": 4}, reached=5)),
    )
    pods = (failed(0), failed(1, 2), pod(2, "Failed", reason="Evicted"), failed(3, 2), pod(4))

    plan = look(given, *pods)

    assert plan.status.ledger.roles == (
        undone(
            undone(
                RoleLedger(
                    "worker",
                    retries="0:1,1:3,2:1,3:3",
                    restarts={"Exit": 7, "Evicted": 1},
                    reached=5,
                    holds=(Hold(later(1), "0,2"), Hold(later(4), "1,3")),
                ),
                "0-1,3",
            ),
            "2",
            CauseKind.EVICTED,
        ),
    )


def test_the_kubelets_own_restarts_are_kept_of_each_of_many() -> None:
    given = job(
        role(replicas=3, restart=ON_EXIT),
        ledger=lived(RoleLedger("worker", reached=3)),
        lifecycle=Lifecycle(counts_in_place=True),
    )

    plan = look(given, *(pod(index, "Failed", containers=TWICE) for index in (0, 2)), pod(1))

    assert plan.status.ledger.roles[0].restarts == {"Exit": 2, "InPlace": 4}


CHIEF = role("chief", restart=on(CauseKind.EXIT, scope=RestartScope.JOB))
WORKER = role("worker", 2, restart=ON_EXIT)


def test_single_replicas_before_a_restart_of_the_job_in_one_pass() -> None:
    given = job(WORKER, CHIEF, ledger=lived(RoleLedger("worker", reached=2), RoleLedger("chief", reached=1)))

    plan = look(given, failed(0), pod(1), failed(role="chief"))

    # The worker pays for its own failure, and then starts anew with all the others: people see one restart, the job's.
    assert plan.status.ledger.roles == (
        RoleLedger("worker", 2, restarts={"Exit": 1}, holds=(Hold(later(1), "0-1"),), hidden={"Exit": 1}),
        undone(RoleLedger("chief", 1, restarts={"Exit": 1}, holds=(Hold(later(1), "0"),)), "0", together=True),
    )
    assert [one.pod for one in plan.status.ledger.failures] == ["job-worker-0", "job-chief-0"]


def test_single_replicas_after_a_restart_of_the_job_in_one_pass() -> None:
    given = job(CHIEF, WORKER, ledger=lived(RoleLedger("chief", reached=1), RoleLedger("worker", reached=2)))

    plan = look(given, failed(0), pod(1), failed(role="chief"))

    # The job takes the worker along, which pays nothing.
    assert plan.status.ledger.roles == (
        undone(RoleLedger("chief", 1, restarts={"Exit": 1}, holds=(Hold(later(1), "0"),)), "0", together=True),
        RoleLedger("worker", 1, holds=(Hold(later(1), "0-1"),)),
    )
    assert [one.pod for one in plan.status.ledger.failures] == ["job-chief-0", "job-worker-0"]


def test_single_replicas_beside_a_restart_of_another_role() -> None:
    chief = role("chief", 2, restart=on(CauseKind.EXIT, scope=RestartScope.ROLE))
    entries = (RoleLedger("chief", reached=2), RoleLedger("worker", reached=2))

    for roles, ledger in (((chief, WORKER), entries), ((WORKER, chief), entries[::-1])):
        plan = look(
            job(*roles, ledger=lived(*ledger)), failed(0), pod(1), failed(1, role="chief"), pod(0, role="chief")
        )

        assert {entry.name: entry for entry in plan.status.ledger.roles} == {
            "chief": undone(
                RoleLedger("chief", 1, restarts={"Exit": 1}, holds=(Hold(later(1), "0-1"),)), "0-1", together=True
            ),
            "worker": undone(
                RoleLedger("worker", retries="0:1", restarts={"Exit": 1}, reached=2, holds=(Hold(later(1), "0"),)), "0"
            ),
        }
        assert [entry.name for entry in plan.status.ledger.roles] == [one.name for one in roles]


def test_a_pod_that_goes_alone_and_with_its_job_in_one_pass_is_counted_once() -> None:
    given = job(
        role("chief", restart=on(CauseKind.EXIT)),
        role("worker", restart=on(CauseKind.EXIT, scope=RestartScope.JOB)),
        ledger=lived(RoleLedger("chief", reached=1), RoleLedger("worker", reached=1)),
        lifecycle=Lifecycle(counts_in_place=True, backoff_limit=100),
    )

    plan = look(given, pod(0, "Failed", role="chief", containers=TWICE), pod(0, "Failed", containers=TWICE))

    assert [entry.restarts for entry in plan.status.ledger.roles] == [
        {"Exit": 1, "InPlace": 2},
        {"Exit": 1, "InPlace": 2},
    ]
