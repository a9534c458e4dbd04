# SPDX-License-Identifier: Apache-2.0
"""Pods whose containers cannot be made, in roles that replace such pods: again and again, for a while, then no more."""

from datetime import datetime
from typing import Any

import pytest
from passes import lived, look, names, on, waiting

from trainwright.core import classify
from trainwright.core.classify import CREATE_ERRORS
from trainwright.model.cause import CauseKind
from trainwright.model.child import Pod
from trainwright.model.job import Job, Restart, RestartScope
from trainwright.model.ledger import RoleLedger, StuckPeriod
from trainwright.model.plan import Plan, State, Write
from trainwright.model.rule import NEVER
from trainwright.model.site import CreationRules, Site
from trainwright.testing.factories import NOW, container, job, later, pod, role
from trainwright.testing.world import World

#: Replaced after a minute, for five minutes.
WAIT, FAIL = (Site(creating=CreationRules(300, 60, fail)) for fail in (False, True))
BOOK = RoleLedger("worker", reached=1)


def stuck(index: int = 0, started: datetime | None = NOW, reason: str = "ErrImagePull", **more: Any) -> Pod:
    return pod(index, "Pending", started=started, containers=(container(waiting=reason),), **more)


def given(entry: RoleLedger = BOOK, **more: Any) -> Job:
    more.setdefault("recreates_pods", True)
    return job(role(replicas=more.pop("replicas", 1), **more), ledger=waiting(entry))


def spells(plan: Plan) -> tuple[StuckPeriod, ...]:
    return plan.status.ledger.roles[0].stuck


# -- one pod ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", sorted(CREATE_ERRORS))
def test_a_stuck_pod_is_replaced_after_a_while_whatever_the_policy_says(reason: str) -> None:
    early, late = (look(given(restart=Restart()), stuck(reason=reason), site=WAIT, now=later(n)) for n in (59.9, 60))

    assert (early.deletes, early.wake) == ((), later(60))
    assert names(late)["deletes"] == ["Pod job-worker-0"]
    assert late.status.ledger.roles[0].restarts == {"CreateError": 1}
    assert late.status.ledger.failures[0].cause.reason == reason
    assert late.events[0].warning


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(stuck(reason="ContainerCreating"), id="it is only being made"),
        pytest.param(stuck(reason="CrashLoopBackOff"), id="it was made"),
        pytest.param(pod(phase="Pending", started=NOW), id="nothing is known of it"),
    ],
)
def test_others_are_waited_for(one: Pod) -> None:
    plan = look(given(), one, site=FAIL, now=later(9999))

    assert (plan.deletes, plan.wake, spells(plan)) == ((), None, ())
    assert plan.status.ledger.outcome is None


def test_roles_that_do_not_replace_such_pods_wait_for_them() -> None:
    plan = look(given(recreates_pods=False), stuck(), site=WAIT, now=later(9999))

    assert (plan.deletes, plan.wake, spells(plan)) == ((), None, ())


def test_where_it_began_is_not_known_its_birth_counts() -> None:
    one = stuck(started=None, born=later(-10))

    assert look(given(), one, site=WAIT, now=later(49.9)).deletes == ()
    assert len(look(given(), one, site=WAIT, now=later(50)).deletes) == 1


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        pytest.param(RestartScope.POD, ["job-worker-0"], id="itself"),
        pytest.param(RestartScope.ROLE, ["job-worker-0", "job-worker-1"], id="its role"),
        pytest.param(RestartScope.JOB, ["job-worker-0", "job-worker-1", "job-ps-0"], id="the job"),
    ],
)
def test_it_takes_its_scope_along(scope: RestartScope, expected: list[str]) -> None:
    entries = (RoleLedger("worker", reached=2), RoleLedger("ps", reached=1))
    one = job(role(replicas=2, recreates_pods=True, restart=Restart(scope=scope)), role("ps"), ledger=waiting(*entries))

    plan = look(one, stuck(), pod(1), pod(role="ps"), site=WAIT, now=later(60))

    assert [delete.name for delete in plan.deletes] == expected


@pytest.mark.parametrize("scope", RestartScope)
def test_it_costs_of_the_limit_and_beyond_that_it_is_only_waited_for(scope: RestartScope) -> None:
    policy = Restart(limit=1, scope=scope)
    spent = RoleLedger("worker", reached=1, restarts={"CreateError": 1})

    assert len(look(given(restart=policy), stuck(), site=WAIT, now=later(60)).deletes) == 1
    plan = look(given(spent, restart=policy), stuck(), site=WAIT, now=later(60))
    assert plan.deletes == ()
    assert plan.status.ledger.outcome is None
    assert plan.status.roles[0].replicas[0].state is State.STARTING


# -- the while in which it is tried ----------------------------------------------------------------------------------

SINCE = RoleLedger("worker", epoch=3, reached=1, stuck=(StuckPeriod(NOW, "0"),))


def test_since_when_is_noted_and_need_not_be_stored_at_once() -> None:
    plan = look(given(RoleLedger("worker", reached=3), replicas=3), stuck(0), pod(1), stuck(2), site=WAIT, now=later(9))

    assert spells(plan) == (StuckPeriod(NOW, "0,2"),)
    assert plan.write is Write.LATER


def test_the_while_goes_on_over_all_its_pods() -> None:
    one = stuck(started=later(241), attempt=3)

    assert len(look(given(SINCE), one, site=WAIT, now=later(300)).deletes) == 0
    # Its minute would be over with the five: it is not replaced any more.
    plan = look(given(SINCE), one, site=WAIT, now=later(301))
    assert (plan.deletes, plan.wake, spells(plan)) == ((), None, SINCE.stuck)
    assert plan.status.ledger.outcome is None


@pytest.mark.parametrize(
    ("site", "seconds", "failed"),
    [
        pytest.param(WAIT, 1e6, False, id="waited for"),
        pytest.param(FAIL, 300.9, False, id="within the while"),
        pytest.param(FAIL, 301, True, id="after it"),
    ],
)
def test_after_it_the_replica_fails_where_the_operator_says_so(site: Site, seconds: float, failed: bool) -> None:
    one = stuck(started=later(250), attempt=3)

    plan = look(given(SINCE), one, site=site, now=later(seconds))

    assert (plan.status.ledger.outcome is not None) is failed
    if not failed:
        assert (plan.wake == later(301)) is (site is FAIL)
    else:
        assert plan.status.ledger.outcome is not None
        failure = plan.status.ledger.outcome.failure
        assert failure is not None
        assert failure.cause.why is CauseKind.CREATE_ERROR


def test_a_policy_may_try_it_again_even_then() -> None:
    plan = look(given(SINCE, restart=on(CauseKind.CREATE_ERROR)), stuck(attempt=3), site=FAIL, now=later(300))

    assert plan.status.ledger.outcome is None
    assert len(plan.deletes) == 1


def test_without_a_while_it_fails_at_the_first_sight_of_it() -> None:
    plan = look(given(), stuck(), site=Site(creating=CreationRules(0, 60, True)))

    assert plan.status.ledger.outcome is not None


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(pod(attempt=3), (), id="it runs"),
        pytest.param(pod(phase="Pending", attempt=3), SINCE.stuck, id="the next one is on its way"),
        pytest.param(pod(phase="Pending", attempt=2, deleting=later(99)), SINCE.stuck, id="the last one goes"),
        pytest.param(stuck(started=later(70), attempt=3), SINCE.stuck, id="the next one is stuck as well"),
        pytest.param(pod(phase="Failed", code=1, attempt=3), (), id="it was made, and failed for good"),
    ],
)
def test_when_that_is_forgotten(one: Pod, expected: tuple[StuckPeriod, ...]) -> None:
    plan = look(given(SINCE, restart=Restart()), one, site=WAIT, now=later(80))

    assert plan.status.ledger.outcome is not None or spells(plan) == expected


def test_one_that_failed_for_good_is_forgotten_while_others_go_on() -> None:
    entry = RoleLedger("worker", reached=2, stuck=(StuckPeriod(NOW, "0-1"),))
    one = job(role(replicas=2, recreates_pods=True), ledger=waiting(entry), success=NEVER, failure=NEVER)

    assert spells(look(one, pod(0, "Failed", code=1), stuck(1), site=WAIT, now=later(9))) == (StuckPeriod(NOW, "1"),)


def test_a_replica_that_is_no_longer_wanted_is_forgotten() -> None:
    entry = RoleLedger("worker", reached=2, stuck=(StuckPeriod(NOW, "0-1"),))

    assert spells(look(given(entry), stuck(0), stuck(1), site=WAIT, now=later(9))) == (StuckPeriod(NOW, "0"),)


def test_many_that_are_stuck_since_different_times_are_remembered_in_few_words() -> None:
    many = classify.MAX_STUCK_PERIODS + 5
    pods = [stuck(i, started=later(i)) for i in range(many)]

    plan = look(given(RoleLedger("worker", reached=many), replicas=many), *pods, site=WAIT, now=later(50))

    assert len(spells(plan)) == classify.MAX_STUCK_PERIODS
    assert spells(plan)[-1] == StuckPeriod(later(31), "31-36")
    assert spells(plan)[0] == StuckPeriod(NOW, "0")


def test_a_suspension_forgets_it() -> None:
    life = job().lifecycle
    one = job(role(recreates_pods=True), ledger=lived(SINCE), lifecycle=type(life)(suspended=True))

    assert spells(look(one, stuck(attempt=3), site=WAIT, now=later(9))) == ()


def test_it_works_more_than_once_and_comes_to_an_end() -> None:
    """A bad image, from the first pod to the end: five minutes of tries, then the job fails."""
    world = World(given(RoleLedger("worker")), site=FAIL)
    born = []
    for _ in range(100):
        world.reap()
        world.catch_up()
        world.step()
        if world.job.ledger.outcome is not None:
            break
        for name, one in world.pods().items():
            if not one.spec.node_name:
                born.append(world.clock)
                world.bind(name)
                waits = container(waiting="ImagePullBackOff")
                world.change(name, start_time=world.clock, container_statuses=(waits,))
        world.wait(10)

    assert world.job.ledger.outcome is not None
    assert (world.clock - born[0]).total_seconds() == 310
    assert len(born) >= 4
    assert world.job.ledger.roles[0].restarts == {"CreateError": len(born) - 1}
