# SPDX-License-Identifier: Apache-2.0
"""Where a job is."""

import pytest
from msgspec.structs import replace
from passes import lived, look, view

from trainwright.core.observe import FINAL_PHASES, TRANSITIONS, all_present, is_up, phase_of
from trainwright.model.ledger import Phase, RoleLedger
from trainwright.model.plan import ReplicaState, RoleState, State
from trainwright.testing.factories import NOW, job, later, node, pod, role

NEW, PENDING, RUNNING, RESTARTING = Phase.NEW, Phase.PENDING, Phase.RUNNING, Phase.RESTARTING
RESUMING, SUSPENDED = Phase.RESUMING, Phase.SUSPENDED


def test_the_moves_there_are() -> None:
    assert {before: set(moves) for before, moves in TRANSITIONS.items()} == {
        NEW: {PENDING, SUSPENDED, RUNNING, Phase.SUCCEEDED, Phase.FAILED},
        PENDING: {RUNNING, SUSPENDED, Phase.SUCCEEDED, Phase.FAILED},
        RUNNING: {RESTARTING, SUSPENDED, Phase.SUCCEEDED, Phase.FAILED},
        RESTARTING: {RUNNING, SUSPENDED, Phase.SUCCEEDED, Phase.FAILED},
        SUSPENDED: {RESUMING, Phase.SUCCEEDED, Phase.FAILED},
        RESUMING: {RUNNING, SUSPENDED, Phase.SUCCEEDED, Phase.FAILED},
        Phase.SUCCEEDED: set(),
        Phase.FAILED: set(),
    }


def test_the_ends_are_final() -> None:
    assert {Phase.SUCCEEDED, Phase.FAILED} == FINAL_PHASES


@pytest.mark.parametrize("state", list(State))
def test_a_replica_is_up_while_it_runs_and_once_it_is_done(state: State) -> None:
    assert (state is State.RUNNING) is is_up(ReplicaState(0, 0, state))
    assert is_up(ReplicaState(0, 0, state, final=True))


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        pytest.param((), True, id="none"),
        pytest.param((ReplicaState(0, 0, State.STARTING, pod()),), True, id="a pod"),
        pytest.param((ReplicaState(0, 0, State.SUCCEEDED, final=True),), True, id="done"),
        pytest.param(
            (ReplicaState(0, 0, State.STARTING, pod()), ReplicaState(1, 0, State.WAITING)), False, id="one is missing"
        ),
    ],
)
def test_a_role_is_present_when_nobody_is_missing(replicas: tuple[ReplicaState, ...], expected: bool) -> None:
    assert expected is all_present(RoleState("worker", replicas))


@pytest.mark.parametrize(
    ("before", "entry", "phases", "expected"),
    [
        pytest.param(PENDING, RoleLedger("worker"), (None, None), PENDING, id="nothing is there yet"),
        pytest.param(PENDING, RoleLedger("worker"), ("Running", "Pending"), PENDING, id="one runs"),
        pytest.param(PENDING, RoleLedger("worker"), ("Running", "Running"), RUNNING, id="all run"),
        pytest.param(PENDING, RoleLedger("worker", succeeded="0"), (None, "Running"), RUNNING, id="run or done"),
        pytest.param(
            PENDING, RoleLedger("worker", succeeded="0-1"), (None, None), PENDING, id="all done, none decided"
        ),
        pytest.param(
            RUNNING, RoleLedger("worker", succeeded="0-1"), (None, None), RUNNING, id="all done after they ran"
        ),
        pytest.param(
            RESTARTING, RoleLedger("worker", failed="0-1"), (None, None), RESTARTING, id="all failed in between"
        ),
        pytest.param(RESUMING, RoleLedger("worker"), ("Running", None), RESUMING, id="resuming"),
        pytest.param(RESUMING, RoleLedger("worker"), ("Running", "Running"), RUNNING, id="resumed"),
        pytest.param(RUNNING, RoleLedger("worker", reached=2), ("Running", None), RESTARTING, id="one is gone"),
        pytest.param(RUNNING, RoleLedger("worker", reached=2), ("Running", "Pending"), RESTARTING, id="one is back"),
        pytest.param(RUNNING, RoleLedger("worker", reached=1), ("Running", None), RUNNING, id="growth is no restart"),
        pytest.param(RUNNING, RoleLedger("worker", reached=1), (None, None), RESTARTING, id="growth and a loss"),
        pytest.param(
            RUNNING, RoleLedger("worker", retries="1:1", reached=2), ("Running", None), RESTARTING, id="a retry"
        ),
        pytest.param(RESTARTING, RoleLedger("worker", reached=2), ("Running", None), RESTARTING, id="still restarting"),
        pytest.param(RESTARTING, RoleLedger("worker", reached=1), ("Running", None), RESTARTING, id="until all run"),
        pytest.param(RESTARTING, RoleLedger("worker", reached=2), ("Running", "Running"), RUNNING, id="all run again"),
        pytest.param(
            RUNNING,
            RoleLedger("worker", reached=2, succeeded="0"),
            (None, "Running"),
            RUNNING,
            id="a finished one is gone",
        ),
    ],
)
def test_the_phase_of_a_live_job(
    before: Phase, entry: RoleLedger, phases: tuple[str | None, ...], expected: Phase
) -> None:
    pods = [pod(index, phase) for index, phase in enumerate(phases) if phase]

    assert expected is phase_of(view(job(role(replicas=2), ledger=lived(entry, phase=before)), *pods))


def test_a_pod_that_somebody_removes_is_being_replaced() -> None:
    assert phase_of(view(job(ledger=lived()), pod(deleting=NOW))) is RESTARTING


def test_a_replica_of_any_role_counts() -> None:
    given = job(role("chief"), role(), ledger=lived(RoleLedger("chief", reached=1), RoleLedger("worker", reached=1)))

    assert phase_of(view(given, pod(role="chief"))) is RESTARTING
    assert phase_of(view(given, pod())) is RESTARTING
    assert phase_of(view(given, pod(), pod(role="chief"))) is RUNNING


def test_a_role_that_is_new_is_growth_and_no_restart() -> None:
    one = job(role("chief"), role(), ledger=lived(RoleLedger("worker", reached=1)))

    assert phase_of(view(one, pod())) is RUNNING


def test_a_role_of_none_is_always_up() -> None:
    given = job(role("chief", 0), role(), ledger=lived(RoleLedger("chief"), RoleLedger("worker"), phase=PENDING))

    assert phase_of(view(given, pod())) is RUNNING


def test_growth_after_a_resume_is_no_restart() -> None:
    given = job(role(replicas=2), ledger=lived(RoleLedger("worker", 1, reached=1), resumes=1))

    assert look(given, pod(0, attempt=1)).status.ledger.phase is RUNNING


def test_a_job_of_no_replicas_does_not_run() -> None:
    plan = look(job(role(replicas=0)))

    assert (plan.status.ledger.phase, plan.events) == (PENDING, ())


def test_a_lost_node_is_a_restart_where_it_is_not_an_end() -> None:
    given = job(role(replicas=2), ledger=lived(RoleLedger("worker", reached=2)))
    seen = view(
        given,
        pod(0),
        pod(1, node="node-2"),
        nodes={"node-1": node(ready=False), "node-2": node("node-2")},
        now=later(60),
    )

    assert phase_of(seen) is RESTARTING


def test_growth_is_no_restart_in_the_pass_after_it_either() -> None:
    given = job(role(replicas=2), ledger=lived(RoleLedger("worker", reached=1)))
    first = look(given, pod(0), pod(1, "Pending"))
    second = look(replace(given, ledger=first.status.ledger), pod(0), pod(1, "Pending"))

    assert (first.status.ledger.phase, second.status.ledger.phase) == (Phase.RUNNING, Phase.RUNNING)
    is_up = look(replace(given, ledger=first.status.ledger), pod(0), pod(1)).status.ledger
    assert (is_up.phase, is_up.roles[0].reached) == (Phase.RUNNING, 2)
    assert look(replace(given, ledger=is_up), pod(0), pod(1, "Pending")).status.ledger.phase is Phase.RESTARTING
