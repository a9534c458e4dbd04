# SPDX-License-Identifier: Apache-2.0
"""Whether an ended replica may be tried again."""

from typing import Any

import pytest
from msgspec.structs import replace
from passes import lived, on, view

from trainwright.core.budget import (
    EndedReplica,
    RestartCascade,
    is_overspent,
    most_restarted,
    pod_in_place_restarts,
    split_ended,
    within_backoff_limit,
)
from trainwright.core.outcomes import settle
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import ContainerState, ContainerStatus, Pod, Terminated, Waiting
from trainwright.model.job import Job, Lifecycle, Restart, RestartScope, Role
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.plan import ReplicaState, State
from trainwright.testing.factories import job, pod, role


def ended(of: Role, index: int = 0, why: CauseKind = CauseKind.EXIT, **more: Any) -> EndedReplica:
    return EndedReplica(of, ReplicaState(index, 0, State.FAILED), Cause(why, **more))


def chosen(ledger: Ledger, *ends: EndedReplica) -> tuple[list[int], list[int]]:
    """The positions of those to be tried again, and of those that are over."""
    retries, finals = split_ended(ledger, list(ends))
    assert len(retries) + len(finals) == len(ends)
    return [ends.index(one) for one in retries], [ends.index(one) for one in finals]


def spent(**by_cause: int) -> Ledger:
    return Ledger(roles=(RoleLedger("worker", restarts=by_cause),))


@pytest.mark.parametrize(
    ("restart", "cause", "again"),
    [
        pytest.param(Restart(), Cause(CauseKind.EXIT, code=1), False, id="no policy answers nothing"),
        pytest.param(on(CauseKind.EXIT), Cause(CauseKind.EXIT, code=1), True, id="this cause"),
        pytest.param(on(CauseKind.EXIT), Cause(CauseKind.EVICTED), False, id="another cause"),
        pytest.param(on(CauseKind.EXIT), Cause(CauseKind.COMPLETED), False, id="success is no failure"),
        pytest.param(on(CauseKind.COMPLETED), Cause(CauseKind.COMPLETED), True, id="success too, where asked"),
        pytest.param(on(CauseKind.EXIT, codes=((130, 130),)), Cause(CauseKind.EXIT, code=130), True, id="this code"),
        pytest.param(
            on(CauseKind.EXIT, codes=((130, 130),)), Cause(CauseKind.EXIT, code=131), False, id="another code"
        ),
        pytest.param(
            on(CauseKind.EXIT, codes=((128, 255),)), Cause(CauseKind.EXIT, code=128), True, id="the first of a range"
        ),
        pytest.param(
            on(CauseKind.EXIT, codes=((128, 255),)), Cause(CauseKind.EXIT, code=255), True, id="the last of a range"
        ),
        pytest.param(
            on(CauseKind.EXIT, codes=((128, 255),)), Cause(CauseKind.EXIT, code=127), False, id="below a range"
        ),
        pytest.param(
            on(CauseKind.EXIT, codes=((128, 254),)), Cause(CauseKind.EXIT, code=255), False, id="above a range"
        ),
        pytest.param(
            on(CauseKind.EXIT, codes=((1, 1), (3, 3))), Cause(CauseKind.EXIT, code=3), True, id="the second range"
        ),
        pytest.param(on(CauseKind.EXIT, codes=()), Cause(CauseKind.EXIT, code=1), False, id="no code at all"),
        pytest.param(
            on(CauseKind.EXIT, codes=((0, 255),)), Cause(CauseKind.EXIT), False, id="a code that is not known"
        ),
        pytest.param(
            on(CauseKind.EVICTED, codes=()), Cause(CauseKind.EVICTED), True, id="codes are asked of exits only"
        ),
        pytest.param(on(CauseKind.EXIT, limit=0), Cause(CauseKind.EXIT, code=1), False, id="no budget"),
        pytest.param(
            on(CauseKind.NODE_LOST), Cause(CauseKind.DISRUPTED, reason="NodeShutdown"), True, id="went with its node"
        ),
        pytest.param(
            on(CauseKind.DISRUPTED), Cause(CauseKind.DISRUPTED, reason="NodeShutdown"), True, id="and was disrupted"
        ),
        pytest.param(
            on(CauseKind.NODE_LOST), Cause(CauseKind.DISRUPTED, reason="Preempting"), False, id="disrupted otherwise"
        ),
        pytest.param(
            on(CauseKind.NODE_LOST), Cause(CauseKind.EVICTED, reason="NodeShutdown"), False, id="only of disruptions"
        ),
    ],
)
def test_a_policy_answers_its_causes_and_codes(restart: Restart, cause: Cause, again: bool) -> None:
    one = EndedReplica(role(restart=restart), ReplicaState(0, 0, State.FAILED), cause)

    assert (([one], []) if again else ([], [one])) == split_ended(Ledger(), [one])


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("container", ["main", "init", ""])
def test_codes_are_asked_of_the_containers_that_count(container: str, beside: bool) -> None:
    again = beside and container != "main"
    of = role(
        restart=on(CauseKind.EXIT, codes=((128, 255),), retries_other_containers=beside),
        main_containers=frozenset({"main"}),
    )
    one = EndedReplica(of, ReplicaState(0, 0, State.FAILED), Cause(CauseKind.EXIT, code=1, container=container))

    assert (([one], []) if again else ([], [one])) == split_ended(Ledger(), [one])


FREE = frozenset({CauseKind.DISRUPTED})


@pytest.mark.parametrize(
    ("restart", "ledger", "causes", "expected"),
    [
        pytest.param(on(CauseKind.EXIT, limit=2), spent(Exit=1), [CauseKind.EXIT], ([0], []), id="the last one"),
        pytest.param(on(CauseKind.EXIT, limit=2), spent(Exit=2), [CauseKind.EXIT], ([], [0]), id="one too many"),
        pytest.param(
            on(CauseKind.EXIT, limit=2), spent(Evicted=2), [CauseKind.EXIT], ([], [0]), id="all causes share it"
        ),
        pytest.param(
            on(CauseKind.EXIT, limit=2), spent(), [CauseKind.EXIT] * 3, ([0, 1], [2]), id="it runs out in index order"
        ),
        pytest.param(
            on(CauseKind.EXIT, limit=2, scope=RestartScope.ROLE),
            spent(Exit=1),
            [CauseKind.EXIT] * 3,
            ([0, 1, 2], []),
            id="a role costs once",
        ),
        pytest.param(
            on(CauseKind.EXIT, limit=2, scope=RestartScope.ROLE),
            spent(Exit=2),
            [CauseKind.EXIT] * 2,
            ([], [0, 1]),
            id="a role, used up",
        ),
        pytest.param(
            on(CauseKind.EXIT, limit=1, scope=RestartScope.ROLE),
            spent(),
            [CauseKind.EVICTED, CauseKind.EXIT, CauseKind.EVICTED],
            ([1], [0, 2]),
            id="a scope takes along only what its policy answers",
        ),
        pytest.param(
            on(CauseKind.EXIT, CauseKind.DISRUPTED, limit=1, free=FREE),
            spent(Exit=1, Disrupted=9),
            [CauseKind.DISRUPTED, CauseKind.EXIT],
            ([0], [1]),
            id="what is free is beside the budget",
        ),
        pytest.param(
            on(CauseKind.EXIT, CauseKind.DISRUPTED, limit=1, free=FREE),
            spent(Disrupted=9),
            [CauseKind.DISRUPTED, CauseKind.EXIT, CauseKind.EXIT],
            ([0, 1], [2]),
            id="what was free was beside the budget",
        ),
    ],
)
def test_a_roles_budget(
    restart: Restart, ledger: Ledger, causes: list[CauseKind], expected: tuple[list[int], list[int]]
) -> None:
    worker = role(replicas=3, restart=restart)

    assert expected == chosen(ledger, *(ended(worker, index, why) for index, why in enumerate(causes)))


def test_a_pod_that_somebody_removed_is_made_again_whatever_the_policy_and_costs_a_pod_nothing() -> None:
    worker = role(replicas=2, restart=on(CauseKind.EXIT, limit=1))

    assert chosen(spent(Deleted=9), ended(worker, 0, CauseKind.DELETED), ended(worker, 1)) == ([0, 1], [])
    assert chosen(spent(Exit=1), ended(worker, 0, CauseKind.DELETED), ended(worker, 1)) == ([0], [1])


@pytest.mark.parametrize("scope", [RestartScope.ROLE, RestartScope.JOB])
def test_a_scope_that_restarts_because_somebody_removed_a_pod_pays_for_it(scope: RestartScope) -> None:
    worker = role(restart=on(CauseKind.DELETED, limit=1, scope=scope))

    assert chosen(spent(), ended(worker, 0, CauseKind.DELETED)) == ([0], [])
    assert chosen(spent(Deleted=1), ended(worker, 0, CauseKind.DELETED)) == ([], [0])


def test_each_role_has_a_budget_of_its_own() -> None:
    worker, chief = role(restart=on(CauseKind.EXIT, limit=1)), role("chief", restart=on(CauseKind.EXIT, limit=1))

    assert chosen(spent(Exit=1), ended(worker), ended(chief)) == ([1], [0])


def test_a_restart_of_the_whole_job_takes_other_roles_along_beside_their_budget() -> None:
    chief = role("chief", restart=on(CauseKind.EXIT, scope=RestartScope.JOB))
    worker = role(restart=on(CauseKind.EXIT, limit=0))

    assert chosen(Ledger(), ended(chief), ended(worker)) == ([0, 1], [])


@pytest.mark.parametrize(
    ("scope", "same", "other"),
    [
        pytest.param(RestartScope.POD, False, False, id="pod"),
        pytest.param(RestartScope.ROLE, True, False, id="role"),
        pytest.param(RestartScope.JOB, True, True, id="job"),
    ],
)
def test_what_a_restart_takes_along(scope: RestartScope, same: bool, other: bool) -> None:
    worker = role(restart=on(CauseKind.EXIT, scope=scope))

    along = RestartCascade()
    assert worker not in along

    along.add(ended(worker))

    assert (same, other) == (worker in along, role("chief") in along)


def test_what_restarts_take_along_only_grows() -> None:
    worker, chief, ps = (
        role(name, restart=on(CauseKind.EXIT, scope=scope))
        for name, scope in (("worker", RestartScope.ROLE), ("chief", RestartScope.JOB), ("ps", RestartScope.POD))
    )
    along = RestartCascade()
    steps = []
    for one in (ps, worker, ps, chief, ps):
        along.add(ended(one))
        steps.append((worker in along, chief in along, ps in along))

    assert steps == [
        (False, False, False),
        (True, False, False),
        (True, False, False),
        (True, True, True),
        (True, True, True),
    ]


def test_a_removal_that_the_policy_does_not_answer_takes_nothing_along() -> None:
    worker = role(restart=on(CauseKind.EXIT, scope=RestartScope.JOB))
    along = RestartCascade()

    along.add(ended(worker, why=CauseKind.DELETED))

    assert worker not in along


def test_what_is_over_takes_nothing_along() -> None:
    chief = role("chief", restart=on(CauseKind.EXIT, scope=RestartScope.JOB, limit=0))
    worker = role(restart=on(CauseKind.EXIT, limit=0))

    assert chosen(Ledger(), ended(chief), ended(worker)) == ([], [0, 1])


def limited(
    limit: int | None, by_cause: dict[str, int] | None = None, *, restart: Restart | None = None, in_place: bool = False
) -> Job:
    entries = (RoleLedger("worker", restarts=by_cause or {}), RoleLedger("chief", restarts={"Exit": 1}))
    return job(
        role(replicas=3, restart=restart or on(CauseKind.EXIT)),
        role("chief"),
        lifecycle=Lifecycle(backoff_limit=limit, counts_in_place=in_place),
        ledger=lived(*entries),
    )


RESTARTED = ContainerStatus("main", restart_count=2)


@pytest.mark.parametrize(
    ("limit", "by_cause", "many", "allowed"),
    [
        pytest.param(None, {"Exit": 99}, 3, 3, id="no limit"),
        pytest.param(1, {}, 0, 0, id="no restart"),
        pytest.param(4, {}, 3, 3, id="room for all: 1 + 3"),
        pytest.param(3, {}, 3, 2, id="room for two: 1 + 2"),
        pytest.param(1, {}, 2, 0, id="another role has used it up"),
        pytest.param(3, {"Exit": 1, "Evicted": 1}, 1, 0, id="all roles and causes share it"),
        pytest.param(0, {}, 1, 0, id="overspent already"),
    ],
)
def test_the_jobs_own_budget(limit: int | None, by_cause: dict[str, int], many: int, allowed: int) -> None:
    given = limited(limit, by_cause)
    retries = [ended(given.roles[0], index) for index in range(many)]

    expected = tuple(retries[:allowed]), (retries[allowed] if allowed < many else None)

    assert expected == within_backoff_limit(view(given), retries)


def test_a_whole_scope_costs_the_job_once() -> None:
    given = limited(2, restart=on(CauseKind.EXIT, scope=RestartScope.ROLE))
    retries = [ended(given.roles[0], index) for index in range(3)]

    assert (tuple(retries), None) == within_backoff_limit(view(given), retries)


def test_what_is_free_costs_the_job_nothing() -> None:
    given = limited(2, {"Disrupted": 5}, restart=on(CauseKind.EXIT, CauseKind.DISRUPTED, free=FREE))
    retries = [
        ended(given.roles[0], 0, CauseKind.DISRUPTED),
        ended(given.roles[0], 1),
        ended(given.roles[0], 2, CauseKind.DISRUPTED),
    ]

    assert (tuple(retries), None) == within_backoff_limit(view(given), retries)


@pytest.mark.parametrize(
    ("limit", "counted", "expected"),
    [
        pytest.param(3, True, False, id="at the limit: 1 made, 2 in place"),
        pytest.param(2, True, True, id="above it"),
        pytest.param(2, False, False, id="not counted"),
        pytest.param(None, True, False, id="no limit"),
    ],
)
def test_restarts_inside_pods_can_exceed_the_jobs_budget_alone(
    limit: int | None, counted: bool, expected: bool
) -> None:
    given = limited(limit, in_place=counted)

    assert expected is is_overspent(view(given, pod(containers=(RESTARTED,))))


def test_restarts_inside_pods_leave_less_room_for_others() -> None:
    given = limited(3, in_place=True)
    retries = [ended(given.roles[0], 1)]
    pods = (pod(containers=(RESTARTED,)),)

    assert ((), retries[0]) == within_backoff_limit(view(given, *pods), retries)
    assert (tuple(retries), None) == within_backoff_limit(
        view(replace(given, lifecycle=Lifecycle(backoff_limit=3)), *pods), retries
    )


def test_where_kubelets_overspend_the_worst_of_them_is_named() -> None:
    given = limited(2, in_place=True)
    ends = [ContainerState(terminated=Terminated(code, reason="Error")) for code in (3, 9)]
    mild = ContainerStatus("main", restart_count=1, last_state=ends[0])
    bad = ContainerStatus("main", restart_count=5, state=ContainerState(waiting=Waiting("CrashLoopBackOff")))
    pods = [pod(0, "Running", containers=(mild,)), pod(1, "Running", containers=(replace(bad, last_state=ends[1]),))]
    found = most_restarted(view(given, *pods))

    assert found is not None
    assert (found.replica.index, found.cause.code, found.cause.container) == (1, 9, "main")
    assert settle(view(given, *pods)).refused == found
    assert most_restarted(view(given, pod(0, "Running", containers=(bad,)))) is None
    assert most_restarted(view(given)) is None


@pytest.mark.parametrize(("limit", "allowed"), [(None, None), (0, 0), (1, 0), (3, 2)])
def test_a_limit_may_be_what_already_fails(limit: int | None, allowed: int | None) -> None:
    assert Lifecycle(backoff_limit=limit, fails_at_limit=True).restarts_allowed == allowed
    assert Lifecycle(backoff_limit=limit).restarts_allowed == limit


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(pod(), 0, id="nothing known"),
        pytest.param(pod(containers=(RESTARTED,)), 2, id="one container"),
        pytest.param(
            pod(inits=(RESTARTED,), containers=(RESTARTED, replace(RESTARTED, restart_count=3))), 7, id="all of them"
        ),
    ],
)
def test_restarts_in_place_are_those_of_all_containers(one: Pod, expected: int) -> None:
    assert expected == pod_in_place_restarts(one)
