# SPDX-License-Identifier: Apache-2.0
"""Counting restarts: decided, charged, shown; and what a ledger of an earlier version says of its replicas."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from passes import ON_EXIT, lived, look, on

from trainwright.core import attempts
from trainwright.model.cause import CauseKind
from trainwright.model.child import ContainerStatus, Pod
from trainwright.model.job import Job, Lifecycle, Restart, RestartScope, Role
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.plan import Write
from trainwright.model.units import format_counts, parse_row
from trainwright.testing.factories import container, job, later, pod, role
from trainwright.testing.world import World

EACH = Restart(
    frozenset({CauseKind.EXIT, CauseKind.DISRUPTED}), free=frozenset({CauseKind.DISRUPTED}), limit=1, per_replica=True
)


def failed(index: int = 0, attempt: int = 0, **more: object) -> Pod:
    return pod(index, "Failed", code=1, attempt=attempt, **more)


def book_of(world: World) -> RoleLedger:
    return world.job.ledger.roles[0]


def run(given: Job) -> World:
    """A job whose pods run."""
    world = World(given)
    world.step()
    start(world)
    return world


def start(world: World) -> None:
    for name, one in world.pods().items():
        if one.status.phase == "Pending":
            world.start(name)
    world.catch_up()
    world.step()


def fail(world: World, *names: str) -> RoleLedger:
    for name in names:
        world.exit(name, 1)
    world.catch_up()
    world.step()
    return book_of(world)


def come_back(world: World) -> RoleLedger:
    """The back-off passes, the old pods go, new ones are made and seen."""
    world.wait(60)
    for _ in range(3):
        world.reap()
        world.catch_up()
        world.step()
    return book_of(world)


# -- shown -------------------------------------------------------------------------------------------------------------


def test_a_restart_is_charged_when_it_is_decided_and_shown_when_its_pod_exists() -> None:
    world = run(job(role(replicas=2, restart=ON_EXIT)))

    entry = fail(world, "job-worker-0", "job-worker-1")
    assert (entry.restarts, entry.made()) == ({"Exit": 2}, 0)

    entry = come_back(world)
    assert (entry.restarts, entry.made(), entry.pending, entry.hidden) == ({"Exit": 2}, 2, (), {})


def test_what_is_shown_need_not_be_stored_at_once() -> None:
    world = run(job(role(restart=ON_EXIT)))
    fail(world, "job-worker-0")
    world.wait(1)
    for _ in range(2):
        world.step()
        world.reap()
        world.catch_up()
    assert book_of(world).pending

    assert world.look().write is Write.LATER
    assert world.look().status.ledger.roles[0].made() == 1


def test_each_of_several_is_shown_with_its_own_pod() -> None:
    world = run(job(role(replicas=2, restart=ON_EXIT)))
    fail(world, "job-worker-0")
    world.wait(0.5)
    fail(world, "job-worker-1")
    world.wait(0.5)
    for _ in range(3):
        world.step()
        world.reap()
        world.catch_up()

    entry = book_of(world)
    assert (entry.made(), [one.indexes for one in entry.pending]) == (1, ["1"])


@pytest.mark.parametrize("scope", [RestartScope.ROLE, RestartScope.JOB])
def test_a_restart_of_many_is_one_and_is_shown_with_the_first_of_their_pods(scope: RestartScope) -> None:
    world = run(job(role(replicas=3, restart=on(CauseKind.EXIT, scope=scope))))
    entry = fail(world, "job-worker-2")
    assert (entry.restarts, entry.made()) == ({"Exit": 1}, 0)

    # There is one pod of the new attempt, and not that of the replica which failed.
    ledger = replace(world.job.ledger, roles=(replace(entry, holds=()),))
    plan = look(replace(world.job, ledger=ledger), pod(0, attempt=1), now=world.clock)
    assert plan.status.ledger.roles[0].made() == 1


def test_a_restart_that_counts_on_every_role_is_shown_on_the_one_that_caused_it() -> None:
    shared = on(CauseKind.EXIT, scope=RestartScope.JOB, shared=True)
    world = run(job(role("chief", restart=shared), role("worker", 2, restart=shared)))
    fail(world, "job-worker-1")
    come_back(world)

    assert [(entry.restarts, entry.made()) for entry in world.job.ledger.roles] == [({"Exit": 1}, 0), ({"Exit": 1}, 1)]


def test_a_suspension_calls_restarts_off() -> None:
    world = run(job(role(restart=ON_EXIT)))
    fail(world, "job-worker-0")
    world.edit(lifecycle=Lifecycle(suspended=True))
    come_back(world)
    world.edit(lifecycle=Lifecycle())
    entry = come_back(world)

    assert (entry.restarts, entry.made(), entry.pending) == ({"Exit": 1}, 0, ())


def test_causes_may_be_left_out() -> None:
    entry = RoleLedger("worker", restarts={"Exit": 5, "Disrupted": 3}, hidden={"Exit": 1, "Disrupted": 1})

    assert (entry.made(), entry.made(frozenset({CauseKind.DISRUPTED}))) == (6, 4)


@pytest.mark.parametrize("counted", [True, False])
def test_restarts_inside_pods_are_kept_when_the_pods_are_replaced_and_when_the_job_ends(counted: bool) -> None:
    twice, end = (ContainerStatus("main", restart_count=2),), container(exit_code=1, reason="Error").state
    lifecycle = Lifecycle(counts_in_place=counted)
    one = job(role(replicas=2, restart=ON_EXIT), ledger=lived(RoleLedger("worker", reached=2)), lifecycle=lifecycle)

    plan = look(one, pod(0, "Failed", containers=(replace(twice[0], state=end),)), pod(1, containers=twice))
    (entry,) = plan.status.ledger.roles
    assert (entry.made() + entry.inside, entry.inside) == ((2, 0) if counted else (2, 2))

    after = replace(one, ledger=plan.status.ledger, success=job(role(replicas=2)).success)
    done = [pod(index, "Succeeded", attempt=1 - index, containers=twice) for index in range(2)]
    plan = look(after, *done, now=later(9))
    (entry,) = plan.status.ledger.roles
    assert plan.status.ledger.outcome is not None
    # Two of the first pod, one new pod, two of each pod at the end.
    assert entry.made() + entry.inside == 2 + 1 + 4


# -- charged -----------------------------------------------------------------------------------------------------------


def test_each_replica_has_its_own_budget() -> None:
    world = run(job(role(replicas=3, restart=EACH)))
    fail(world, "job-worker-0", "job-worker-1")
    entry = come_back(world)
    start(world)
    assert (entry.charged, entry.failed) == ("1x2", "")

    fail(world, "job-worker-1")
    outcome = world.job.ledger.outcome
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.index == 1


def test_what_is_free_is_charged_to_nobody() -> None:
    world = run(job(role(replicas=2, restart=EACH)))
    for _ in range(3):
        world.evict("job-worker-0")
        world.catch_up()
        world.step()
        entry = come_back(world)
        start(world)

    assert (entry.charged, entry.restarts) == ("", {"Disrupted": 3})


def test_of_a_job_that_has_ended_only_the_charges_of_the_deciding_replica_are_kept() -> None:
    entry = RoleLedger("worker", retries="0:1,2:1", restarts={"Exit": 2}, reached=3, charged="1,0,1")
    plan = look(job(role(replicas=3, restart=EACH), ledger=lived(entry)), pod(0, attempt=1), pod(1), failed(2, 1))

    assert plan.status.ledger.outcome is not None
    assert plan.status.ledger.roles[0].charged == "0x2,1"


# -- a ledger that knows only the sum ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "replicas", "expected"),
    [
        pytest.param(RoleLedger("worker", 0, "1:2", {"Exit": 2}), 3, "0,2", id="by their retries"),
        pytest.param(RoleLedger("worker", 0, "0:5,1:5", {"Exit": 7, "Disrupted": 3}), 2, "5,2", id="no more than all"),
        pytest.param(RoleLedger("worker", 9, "", {"Exit": 7}), 3, "3,2x2", id="the rest evenly"),
        pytest.param(RoleLedger("worker", 9, "2:1", {"Exit": 5}), 3, "2,1,2", id="retries first, then the rest"),
        pytest.param(RoleLedger("worker", 0, "", {"Exit": 1}), 0, "", id="of nobody"),
        pytest.param(RoleLedger("worker", 0, "1:1", {"Exit": 1}, charged="1"), 2, "1", id="known"),
        pytest.param(
            RoleLedger("worker", 0, "0:1,1:2", {"Exit": 3}, charged="1"), 2, "1,2", id="known in part: a downgrade"
        ),
        pytest.param(RoleLedger("worker", 0, "0:1", {"InPlace": 4, "Exit": 1}), 1, "1", id="not inside pods"),
    ],
)
def test_its_restarts_are_charged_to_its_replicas(entry: RoleLedger, replicas: int, expected: str) -> None:
    part = role(replicas=replicas, restart=EACH)

    new = attempts.attribute_charges(part, entry)

    assert new.charged == expected
    assert attempts.attribute_charges(part, new) is new


entries = st.builds(
    lambda retries, times, free, epoch: RoleLedger(
        "worker", epoch, format_counts(retries), {"Exit": times, "Disrupted": free}
    ),
    st.dictionaries(st.integers(0, 30), st.integers(0, 5)),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 5),
)


@given(entries, st.integers(1, 20))
def test_no_restart_is_lost_and_none_is_charged_twice(entry: RoleLedger, replicas: int) -> None:
    part: Role = role(replicas=replicas, restart=EACH)
    charged = parse_row(attempts.attribute_charges(part, entry).charged)

    assert sum(charged.values()) == attempts.budget_used(entry, part.uncounted)


def test_that_is_stored_along_with_what_comes_next() -> None:
    entry = RoleLedger("worker", 0, "0:1", {"Exit": 1}, reached=1)
    plan = look(job(role(restart=EACH), ledger=lived(entry)), pod(attempt=1))

    assert plan.status.ledger.roles[0].charged == "1"
    assert plan.write is Write.LATER


def test_a_job_that_has_ended_is_left_as_it_is() -> None:
    entry = RoleLedger("worker", 0, "0:1", {"Exit": 1}, failed="0", reached=1)
    ended = look(job(role(restart=EACH), ledger=lived(replace(entry, charged="1"))), failed(attempt=1)).status.ledger
    old = replace(ended, roles=(entry,))

    assert look(job(role(restart=EACH), ledger=old), failed(attempt=1)).status.ledger == old


def test_a_thousand_that_failed_in_turn_are_few_words() -> None:
    entry = RoleLedger("worker")
    for index in range(0, 1000, 2):
        entry = attempts.charge_replicas(attempts.decide_restarts(entry, CauseKind.EXIT, [index]), [index])
    stored = msgspec.json.encode(Ledger(roles=(entry,)))

    assert len(entry.charged) < 2000
    assert len(entry.pending) == 1
    assert len(stored) < 4500
