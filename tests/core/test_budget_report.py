# SPDX-License-Identifier: Apache-2.0
"""Every restart budget of a job, and how much of it is used."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from trainwright.core.budget_report import BudgetOwner, BudgetState, budget_states
from trainwright.model.cause import CauseKind
from trainwright.model.job import Job, Lifecycle, Restart, RestartRate
from trainwright.testing import factories
from trainwright.testing.world import World

EXITS = Restart(frozenset({CauseKind.EXIT, CauseKind.NODE_LOST}), free=frozenset({CauseKind.NODE_LOST}))


def after_failures(job: Job, *indexes: int) -> tuple[BudgetState, ...]:
    """The budgets after these replicas have failed, one after the other."""
    world = World(job)
    world.settle(place="node-1")
    for index in indexes:
        world.exit(f"job-worker-{index}", 1)
        world.settle(place="node-1")
    return budget_states(world.job, world.look().status, world.clock)


@pytest.mark.parametrize(
    ("restart", "lifecycle", "expected"),
    [
        pytest.param(EXITS, Lifecycle(), (), id="no limit"),
        pytest.param(
            replace(EXITS, limit=5), Lifecycle(), (BudgetState(BudgetOwner.ROLE, "worker", 3, 5),), id="of the role"
        ),
        pytest.param(
            replace(EXITS, limit=5, per_replica=True),
            Lifecycle(),
            (BudgetState(BudgetOwner.REPLICA, "worker-0", 1, 5), BudgetState(BudgetOwner.REPLICA, "worker-2", 2, 5)),
            id="of each replica",
        ),
        pytest.param(EXITS, Lifecycle(backoff_limit=9), (BudgetState(BudgetOwner.JOB, "job", 3, 9),), id="of the job"),
        pytest.param(
            EXITS,
            Lifecycle(backoff_limit=9, fails_at_limit=True),
            (BudgetState(BudgetOwner.JOB, "job", 3, 9),),
            id="the restart that reaches the limit fails",
        ),
    ],
)
def test_budgets(restart: Restart, lifecycle: Lifecycle, expected: tuple[BudgetState, ...]) -> None:
    job = factories.job(factories.role("worker", 3, restart=restart), lifecycle=lifecycle)

    assert after_failures(job, 0, 2, 2) == expected


def test_a_budget_that_refills() -> None:
    job = factories.job(factories.role("worker", 3, restart=EXITS), restart_rates={"program": RestartRate(4, 3600.0)})

    (found,) = after_failures(job, 0, 2, 2)
    assert (found.owner, found.name, found.used, found.limit) == (BudgetOwner.RATE, "program", 3, 4)
    assert found.window == 3600.0
    assert 890 < found.refill <= 900


def test_restarts_of_a_budget_that_refills_are_whole() -> None:
    rate = RestartRate(2, 3600.0)
    job = factories.job(factories.role("worker", 1, restart=EXITS), restart_rates={"program": rate})
    world = World(job)
    world.settle(place="node-1")
    world.exit("job-worker-0", 1)
    world.settle(place="node-1")

    def after(seconds: float) -> tuple[int, int]:
        (found,) = budget_states(world.job, world.look().status, world.clock + timedelta(seconds=seconds))
        return found.used, round(found.refill)

    assert (after(0), after(900), after(1800)) == ((1, 1800), (1, 900), (0, 0))


def test_a_budget_without_effect_is_left_out() -> None:
    rates = {"program": RestartRate(4, 3600.0), "outside": RestartRate(1, 60.0)}
    job = factories.job(
        factories.role("worker", 3, restart=EXITS), lifecycle=Lifecycle(backoff_limit=9), restart_rates=rates
    )

    assert [(one.owner, one.name) for one in after_failures(job, 0)] == [
        (BudgetOwner.JOB, "job"),
        (BudgetOwner.RATE, "outside"),
    ]


@pytest.mark.parametrize("keeps_pods", [True, False])
def test_an_ended_job_has_used_the_restarts_that_ended_it(*, keeps_pods: bool) -> None:
    """Restarts inside pods count too, also when the pods are gone."""
    life = Lifecycle(backoff_limit=2, fails_at_limit=True, counts_in_place=True)
    world = World(factories.job(factories.role("worker", 2, restart=EXITS), lifecycle=life))
    world.settle(place="node-1")
    for _ in range(2):
        world.crash("job-worker-1", 1)
        world.restart("job-worker-1")
        world.settle(place="node-1")
    outcome = world.job.ledger.outcome
    assert outcome is not None
    assert outcome.message == "the restart limit (backoffLimit) of 2 is reached: 2 restarts count against it"
    if not keeps_pods:
        world.vanish("job-worker-1")
        world.catch_up()

    assert budget_states(world.job, world.look().status, world.clock) == (BudgetState(BudgetOwner.JOB, "job", 2, 2),)
