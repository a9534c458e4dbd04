# SPDX-License-Identifier: Apache-2.0
"""The table of transitions is complete: each of them occurs here, and no other one occurs in `test_worlds`."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from trainwright.core.observe import TRANSITIONS
from trainwright.model.cause import CauseKind
from trainwright.model.job import Lifecycle, RequestedEnd, Restart
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.rule import Atom, Result
from trainwright.testing.factories import job, role
from trainwright.testing.world import World

Script = Callable[[World], None]


def fresh(*, suspended: bool = False) -> World:
    """Two workers; the first one decides."""
    return World(
        job(
            role(replicas=2, restart=Restart(frozenset({CauseKind.EXIT}), limit=9)),
            success=Atom("worker", (0,), Result.SUCCEEDED),
            lifecycle=Lifecycle(suspended=suspended),
        )
    )


def settle(world: World) -> None:
    world.settle()


def suspend(world: World, *, suspended: bool = True) -> None:
    world.edit(lifecycle=replace(world.job.lifecycle, suspended=suspended))
    world.settle()


def resume(world: World) -> None:
    suspend(world, suspended=False)


def run(world: World) -> None:
    for name, pod in world.pods().items():
        if pod.status.phase == "Pending":
            world.start(name)
    world.settle()


def replace_one(world: World) -> None:
    world.exit("job-worker-1", 1)
    world.settle()


def succeed(world: World) -> None:
    if "job-worker-0" in world.pods():
        world.exit("job-worker-0")
        world.settle()
    else:
        ask(world, succeeded=True)


def ask(world: World, *, succeeded: bool = False) -> None:
    world.edit(lifecycle=replace(world.job.lifecycle, ending=RequestedEnd("Preempted", succeeded=succeeded)))
    world.settle()


def lose_status(world: World) -> None:
    """Only pods tell what has happened."""
    world.job = replace(world.job, ledger=Ledger())
    world.version += 1
    world.catch_up()


def arrive(phase: Phase) -> World:
    """A world in which the job is in that phase."""
    world = fresh(suspended=phase in (Phase.SUSPENDED, Phase.RESUMING))
    if phase is not Phase.NEW:
        world.settle()
    for step in {Phase.RUNNING: (run,), Phase.RESTARTING: (run, replace_one), Phase.RESUMING: (resume,)}.get(phase, ()):
        step(world)
    assert world.job.ledger.phase is phase
    return world


STEPS: dict[Phase, Script] = {
    Phase.PENDING: settle,
    Phase.RUNNING: run,
    Phase.RESTARTING: replace_one,
    Phase.SUSPENDED: suspend,
    Phase.RESUMING: resume,
    Phase.SUCCEEDED: succeed,
    Phase.FAILED: ask,
}
PAIRS = [(before, after) for before, moves in TRANSITIONS.items() for after in moves]


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{b.value or 'new'}-{a.value}" for b, a in PAIRS])
def test_each_move_of_the_table_can_be_seen(before: Phase, after: Phase) -> None:
    if before is Phase.NEW and after in (Phase.RUNNING, Phase.SUCCEEDED):
        world = arrive(Phase.RUNNING)
        if after is Phase.SUCCEEDED:
            world.exit("job-worker-0")
        lose_status(world)
        world.step()
    else:
        world = arrive(before)
        STEPS[after](world)

    seen = [before]
    for plan in world.plans:
        phase = plan.status.ledger.phase
        if phase is not seen[-1] and phase in (after, before):
            seen.append(phase)
    assert world.job.ledger.phase is after
    assert seen[-1] is after


def test_the_ends_are_final() -> None:
    assert {phase for phase, moves in TRANSITIONS.items() if not moves} == {Phase.SUCCEEDED, Phase.FAILED}
    assert TRANSITIONS.keys() == set(Phase)
