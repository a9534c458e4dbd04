# SPDX-License-Identifier: Apache-2.0
"""Restart budgets that refill by productive time."""

import msgspec
import pytest
from msgspec.structs import replace
from passes import on
from test_history import settle, start

from trainwright.model.cause import CauseKind
from trainwright.model.job import OUTSIDE_BUDGET, PROGRAM_BUDGET, Job, Lifecycle, RestartRate
from trainwright.model.ledger import Ledger, Phase, Reason, SpentBudget
from trainwright.model.rule import NEVER
from trainwright.testing.factories import job, role
from trainwright.testing.world import World

CAUSES = on(CauseKind.EXIT, CauseKind.NODE_LOST, CauseKind.DISRUPTED)


def world(given: Job | None = None, **rates: RestartRate) -> World:
    return World(replace(given or job(role(restart=CAUSES)), restart_rates=rates), nodes=("a", "b"))


def fail(one: World, *, after: float, code: int = 1) -> None:
    start(one)
    one.wait(after)
    one.exit("job-worker-0", code)
    settle(one)
    one.wait(61)


def test_a_job_that_fails_at_once_uses_its_budget_up() -> None:
    one = world(program=RestartRate(2, 3600))
    for _ in range(3):
        assert one.job.ledger.outcome is None
        fail(one, after=1)

    outcome = one.job.ledger.outcome
    assert outcome is not None
    assert (outcome.reason, one.job.ledger.phase) == (Reason.BACKOFF_LIMIT, Phase.FAILED)
    assert (
        outcome.message
        == "the restart budget for causes of the program, trainwright.dev/restart-budget: 2/1h, is used up"
    )
    assert one.job.ledger.verdict is not None
    assert one.job.ledger.verdict.failure_class == "ProgramError"


def test_the_budget_is_named_that_refuses_the_second_restart_of_a_pass() -> None:
    one = world(job(role(replicas=2, restart=CAUSES)), program=RestartRate(1, 3600, "1/60m"))
    one.settle(place="a")
    one.exit("job-worker-0", 1)
    one.exit("job-worker-1", 1)
    one.settle(place="a")

    outcome = one.job.ledger.outcome
    assert outcome is not None
    assert "trainwright.dev/restart-budget: 1/60m, is used up" in outcome.message


def test_productive_time_pays_restarts_back() -> None:
    one = world(program=RestartRate(2, 3600))
    for _ in range(20):
        fail(one, after=1800)

    assert one.job.ledger.outcome is None


def test_lost_time_pays_nothing_back() -> None:
    one = world(program=RestartRate(1, 60))
    fail(one, after=0)
    one.wait(100_000)
    fail(one, after=0)

    assert one.job.ledger.phase is Phase.FAILED


@pytest.mark.parametrize(
    ("rates", "ends"), [({PROGRAM_BUDGET: 1}, False), ({OUTSIDE_BUDGET: 1}, True), ({OUTSIDE_BUDGET: 2}, False)]
)
def test_causes_outside_the_program_have_a_budget_of_their_own(rates: dict[str, int], ends: bool) -> None:
    one = world(None, **{name: RestartRate(count, 3600) for name, count in rates.items()})
    for _ in range(2):
        start(one)
        one.evict("job-worker-0")
        settle(one)
        one.wait(61)

    assert (one.job.ledger.phase is Phase.FAILED) == ends


LIMITED = {
    "of the job": job(role(restart=CAUSES), lifecycle=Lifecycle(backoff_limit=5)),
    "of each role": job(role(restart=replace(CAUSES, limit=5))),
}


@pytest.mark.parametrize("limit", LIMITED)
def test_a_limit_of_the_kind_takes_precedence(limit: str) -> None:
    one = world(LIMITED[limit], program=RestartRate(1, 3600))
    for _ in range(4):
        fail(one, after=1)
    start(one)
    for _ in range(3):
        restart_in_place(one)

    assert one.job.ledger.outcome is None
    assert not one.job.ledger.budgets


def test_restarts_by_kubelets_use_the_budget_too() -> None:
    one = world(program=RestartRate(1, 3600))
    start(one)
    for expected in (Phase.RUNNING, Phase.FAILED):
        one.crash("job-worker-0")
        one.restart("job-worker-0")
        settle(one)
        assert one.job.ledger.phase is expected


def restart_in_place(one: World) -> None:
    one.crash("job-worker-0")
    one.restart("job-worker-0")
    settle(one)


def test_a_job_that_gets_its_budget_while_it_runs_is_not_charged_for_earlier_restarts() -> None:
    one = world()
    start(one)
    for _ in range(8):
        restart_in_place(one)
    assert not one.job.ledger.budgets
    one.edit(restart_rates={PROGRAM_BUDGET: RestartRate(1, 3600)})
    settle(one)
    assert one.job.ledger.budgets == {PROGRAM_BUDGET: SpentBudget(0, 0, 8)}
    for expected in (Phase.RUNNING, Phase.FAILED):
        restart_in_place(one)
        assert one.job.ledger.phase is expected


def test_a_lower_budget_ends_a_job_only_after_another_restart() -> None:
    one = world(program=RestartRate(10, 3600))
    start(one)
    for _ in range(5):
        restart_in_place(one)
    one.edit(restart_rates={PROGRAM_BUDGET: RestartRate(3, 3600)})
    settle(one)
    assert one.job.ledger.outcome is None
    restart_in_place(one)
    assert one.job.ledger.phase is Phase.FAILED


def test_a_long_text_of_the_budget_fits_into_the_status() -> None:
    one = world(program=RestartRate(0, 3600, "0/" + "1" * 5000))
    fail(one, after=1)

    ledger = msgspec.json.decode(msgspec.json.encode(one.job.ledger), type=Ledger)
    assert ledger.phase is Phase.FAILED


def test_restarts_after_success_use_no_budget() -> None:
    one = world(job(role(restart=on(CauseKind.COMPLETED, CauseKind.EXIT)), success=NEVER), program=RestartRate(1, 3600))
    for _ in range(3):
        fail(one, after=1, code=0)

    assert one.job.ledger.outcome is None
    assert one.job.ledger.budgets[PROGRAM_BUDGET].spent == 0


def test_a_kill_neither_loses_nor_doubles_a_charge() -> None:
    for writes in range(6):
        one = world(program=RestartRate(1, 3600))
        start(one)
        one.exit("job-worker-0", 1)
        one.catch_up()
        one.step(dies_after=writes)
        settle(one)

        assert one.job.ledger.budgets[PROGRAM_BUDGET].spent == 1000
