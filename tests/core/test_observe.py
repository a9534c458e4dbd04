# SPDX-License-Identifier: Apache-2.0
"""From children to replicas by role and index, stale pods, and what the ledger records of them."""

from typing import Any

import pytest
from passes import lived, look, view

from trainwright.core.classify import classify_pod
from trainwright.core.observe import StalePod
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Pod
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, ROLE
from trainwright.model.plan import ReplicaState, RoleState, State
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, OWNER, UID, container, job, later, node, pod, role

EXIT = Cause(CauseKind.EXIT, code=1, container="main", reason="Error", node="node-1")


def labelled(index: str, attempt: str | None = "0", kind: str = "worker", **more: Any) -> Pod:
    """A pod of ours whose labels say this, word for word."""
    labels = {JOB_UID: UID, ROLE: kind, INDEX: index} | ({} if attempt is None else {ATTEMPT: attempt})
    return pod(labels=labels, **more)


def test_replicas_are_in_document_order_and_by_index() -> None:
    two = job(role("worker", 2), role("chief", 1))
    pods = (pod(1), pod(0, role="chief", phase="Pending"), pod(0, phase="Succeeded"))

    seen = view(two, *pods)

    assert seen.roles == (
        RoleState(
            "worker",
            (
                ReplicaState(0, 0, State.SUCCEEDED, pods[2], Cause(CauseKind.COMPLETED)),
                ReplicaState(1, 0, State.RUNNING, pods[0]),
            ),
            running=1,
        ),
        RoleState("chief", (ReplicaState(0, 0, State.STARTING, pods[1]),)),
    )
    assert seen.stale_pods == ()
    assert seen.ownership_patches == ()


def test_a_replica_without_a_pod_waits() -> None:
    assert view(job(role(replicas=2))).roles == (
        RoleState("worker", (ReplicaState(0, 0, State.WAITING), ReplicaState(1, 0, State.WAITING))),
    )


def test_the_ledger_gets_one_book_per_role_in_the_jobs_order() -> None:
    stored = Ledger(roles=(RoleLedger("gone", 4), RoleLedger("worker", 2)))

    seen = view(job(role("chief"), role("worker"), ledger=stored))

    assert (RoleLedger("chief"), RoleLedger("worker", 2)) == seen.ledger.roles
    assert seen.stored is stored


def test_a_ledger_that_fits_is_left_as_it_is() -> None:
    stored = Ledger(roles=(RoleLedger("worker", 2),))

    assert view(job(ledger=stored)).ledger is stored


def test_a_pod_below_its_replicas_attempt_is_left_over_whatever_its_phase() -> None:
    stored = Ledger(roles=(RoleLedger("worker", 1, "1:2"),))
    pods = tuple(pod(index, phase, attempt=1) for index, phase in enumerate(("Running", "Succeeded")))

    seen = view(job(role(replicas=2), ledger=stored), *pods)

    assert (ReplicaState(0, 1, State.RUNNING, pods[0]), ReplicaState(1, 3, State.WAITING, old=pods[1])) == seen.roles[
        0
    ].replicas
    assert (StalePod(pods[1], "worker", 1, "attempt 1 has been replaced by 3"),) == seen.stale_pods


def test_a_pod_that_runs_is_stale_all_the_same_where_its_index_was_retried() -> None:
    stored = Ledger(roles=(RoleLedger("worker", 1, "0:1"),))
    one = pod(attempt=1)

    seen = view(job(ledger=stored), one)

    assert seen.roles == (RoleState("worker", (ReplicaState(0, 2, State.WAITING, old=one),)),)
    assert (StalePod(one, "worker", 0, "attempt 1 has been replaced by 2"),) == seen.stale_pods


@pytest.mark.parametrize(
    ("entry", "state"),
    [
        pytest.param(RoleLedger("worker", succeeded="0"), State.SUCCEEDED, id="succeeded"),
        pytest.param(RoleLedger("worker", failed="0"), State.FAILED, id="failed"),
    ],
)
def test_a_pod_that_still_runs_changes_nothing_of_what_is_remembered(entry: RoleLedger, state: State) -> None:
    one = pod()

    seen = view(job(ledger=Ledger(roles=(entry,))), one)

    assert (RoleState("worker", (ReplicaState(0, 0, state, one, final=True),)),) == seen.roles


def test_pods_above_the_stored_attempt_are_believed() -> None:
    stored = Ledger(roles=(RoleLedger("worker", 1, "1:2"),))
    pods = (pod(0, attempt=5), pod(1, attempt=3), pod(2, attempt=2))

    seen = view(job(role(replicas=3), ledger=stored), *pods)

    assert [(one.attempt, one.state) for one in seen.roles[0].replicas] == [
        (5, State.RUNNING),
        (3, State.RUNNING),
        (2, State.RUNNING),
    ]
    assert (RoleLedger("worker", 1, "0:4,1:2,2:1"),) == seen.ledger.roles
    assert seen.stale_pods == ()


def test_a_lost_status_is_learnt_again_at_once_and_nothing_is_made_twice() -> None:
    plan = look(job(role(replicas=2)), pod(0, attempt=2), pod(1, attempt=0))

    assert plan.status.ledger.roles == (RoleLedger("worker", retries="0:2", reached=2),)
    assert (plan.creates, plan.deletes) == ((), ())


@pytest.mark.parametrize(
    ("succeeded", "failed", "expected"),
    [
        pytest.param("0", "", State.SUCCEEDED, id="succeeded"),
        pytest.param("", "0", State.FAILED, id="failed"),
        pytest.param("0", "0", State.SUCCEEDED, id="both cannot be, and success stands"),
    ],
)
def test_what_has_ended_is_remembered_without_its_pod(succeeded: str, failed: str, expected: State) -> None:
    stored = Ledger(roles=(RoleLedger("worker", 1, succeeded=succeeded, failed=failed),))

    seen = view(job(role(replicas=2), ledger=stored))

    assert (ReplicaState(0, 1, expected, final=True), ReplicaState(1, 1, State.WAITING)) == seen.roles[0].replicas


def test_what_has_ended_is_remembered_with_its_pod_and_cause() -> None:
    stored = Ledger(roles=(RoleLedger("worker", succeeded="0", failed="1"),))
    pods = (pod(0, "Succeeded"), pod(1, "Failed", code=1))

    seen = view(job(role(replicas=2), ledger=stored), *pods)

    assert seen.roles[0].replicas == (
        ReplicaState(0, 0, State.SUCCEEDED, pods[0], Cause(CauseKind.COMPLETED), final=True),
        ReplicaState(1, 0, State.FAILED, pods[1], EXIT, final=True),
    )


@pytest.mark.parametrize(
    ("one", "index", "why"),
    [
        pytest.param(pod(0, role="chief"), 0, "the job has no role chief", id="a role that is gone"),
        pytest.param(pod(1), 1, "worker has 1 replica", id="an index beyond the last"),
        pytest.param(labelled("-1"), -1, "worker has 1 replica", id="an index below 0"),
        pytest.param(labelled("x"), -1, "worker has 1 replica", id="an index that is none"),
        pytest.param(labelled(""), -1, "worker has 1 replica", id="an empty index"),
        pytest.param(labelled("\u0660"), -1, "worker has 1 replica", id="an index in another script"),
        pytest.param(labelled("999999999"), 999_999_999, "worker has 1 replica", id="an index of nine digits"),
        pytest.param(labelled("1000000000"), -1, "worker has 1 replica", id="an index of ten digits"),
        pytest.param(labelled("0", "x"), 0, "attempt -1 has been replaced by 0", id="an attempt that is none"),
    ],
)
def test_a_pod_that_is_no_wanted_replica_is_left_over(one: Pod, index: int, why: str) -> None:
    seen = view(job(), one)

    assert (StalePod(one, one.metadata.labels[ROLE] if one.metadata.labels else "", index, why),) == seen.stale_pods
    (replica,) = seen.roles[0].replicas
    assert (replica.attempt, replica.state, replica.pod) == (0, State.WAITING, None)


def test_a_pod_without_an_attempt_is_of_the_first() -> None:
    one = labelled("0", None)

    assert (ReplicaState(0, 0, State.RUNNING, one),) == view(job(), one).roles[0].replicas


def test_what_has_ended_is_remembered_beside_a_pod_of_an_older_attempt() -> None:
    stored = Ledger(roles=(RoleLedger("worker", 1, succeeded="0", failed="1"),))
    pods = (pod(0), pod(1))

    seen = view(job(role(replicas=2), ledger=stored), *pods)

    assert seen.roles[0].replicas == (
        ReplicaState(0, 1, State.SUCCEEDED, final=True, old=pods[0]),
        ReplicaState(1, 1, State.FAILED, final=True, old=pods[1]),
    )


def test_a_replica_that_is_no_longer_wanted_leaves_an_attempt_above_its_pod() -> None:
    stored = Ledger(roles=(RoleLedger("worker", 1, "1:4"),))

    seen = view(job(role(replicas=0), ledger=stored), pod(0, attempt=1), pod(1, attempt=2), labelled("x", "1"))

    assert (RoleLedger("worker", 1, "0:1,1:4"),) == seen.ledger.roles
    assert len(seen.stale_pods) == 3


def test_surplus_pods_are_listed_by_index() -> None:
    pods = tuple(pod(index) for index in (3, 0, 2))

    assert [
        StalePod(pods[2], "worker", 2, "worker has 1 replica"),
        StalePod(pods[0], "worker", 3, "worker has 1 replica"),
    ] == list(view(job(), *pods).stale_pods)


def test_every_kind_of_leftover_is_found_in_one_pass() -> None:
    pods = (pod(0), pod(1, attempt=1), pod(0, role="gone"), pod(2), pod(1, name="b"))

    seen = view(job(role(replicas=2), ledger=Ledger(roles=(RoleLedger("worker", 1),))), *pods)

    assert seen.stale_pods == (
        StalePod(pods[2], "gone", 0, "the job has no role gone"),
        StalePod(pods[4], "worker", 1, "there is another pod for worker 1"),
        StalePod(pods[3], "worker", 2, "worker has 2 replicas"),
        StalePod(pods[0], "worker", 0, "attempt 0 has been replaced by 1"),
    )


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        pytest.param(0, 1, 1, id="the later has the higher attempt"),
        pytest.param(1, 0, 0, id="the earlier has the higher attempt"),
        pytest.param(1, 1, 1, id="the larger UID, where they are equal"),
    ],
)
def test_of_two_pods_for_one_replica_the_highest_attempt_stays(first: int, second: int, stays: int) -> None:
    pods = (pod(attempt=first, name="a"), pod(attempt=second, name="b"))

    seen = view(job(), *pods)

    assert seen.roles[0].replicas[0].pod is pods[stays]
    assert (StalePod(pods[1 - stays], "worker", 0, "there is another pod for worker 0"),) == seen.stale_pods


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["listed in order", "listed the other way round"])
def test_of_two_pods_of_one_attempt_the_same_one_stays_however_they_are_listed(order: tuple[int, int]) -> None:
    pods = (pod(name="b", uid="uid-1"), pod(name="a", uid="uid-2"))

    seen = view(job(), *(pods[place] for place in order))

    assert seen.roles[0].replicas[0].pod is pods[1]
    assert (StalePod(pods[0], "worker", 0, "there is another pod for worker 0"),) == seen.stale_pods


def test_the_attempt_comes_before_the_uid() -> None:
    pods = (pod(attempt=1, uid="uid-1"), pod(attempt=0, uid="uid-2"))

    assert view(job(), *pods).roles[0].replicas[0].pod is pods[0]


def test_a_pod_of_ours_counts_under_any_name() -> None:
    plan = look(job(), pod(name="hand-made"))

    assert plan.status.roles[0].count(State.RUNNING) == 1
    assert plan.creates == ()


def test_foreign_pods_are_neither_seen_nor_touched() -> None:
    foreign = pod(uid="x", owners=(type(OWNER)("v1", "X", "x", "x", controller=True),))

    seen = view(job(), foreign)

    assert (seen.roles[0].replicas, seen.stale_pods, seen.ownership_patches) == (
        (ReplicaState(0, 0, State.WAITING),),
        (),
        (),
    )
    assert seen.foreign_pods == ("job-worker-0",)


def test_pods_that_are_not_ours_or_not_yet_are_noted_by_name_in_order() -> None:
    other = type(OWNER)("v1", "X", "x", "x", controller=True)
    pods = (pod(2, owners=(other,)), pod(0), pod(1, owners=()), pod(name="a", labels={}))

    seen = view(job(role(replicas=3)), *pods)

    assert seen.foreign_pods == ("job-worker-2", "job-worker-1", "a")
    assert [patch.name for patch in seen.ownership_patches] == ["job-worker-1"]
    assert view(job(), pod()).foreign_pods == ()


def test_silent_nodes_are_noted_once_for_the_pass() -> None:
    one = job(role(replicas=2))

    nodes = {"node-1": node(), "node-2": node("node-2", ready=False)}

    assert view(one, pod(0), pod(1, node="node-2"), nodes=nodes).unhealthy_nodes.keys() == {"node-2"}
    assert view(one, pod(0), pod(1, node="node-3"), nodes=nodes).unhealthy_nodes == {}
    assert view(one, pod(0)).unhealthy_nodes == {}


@pytest.mark.parametrize(
    ("phases", "running", "calm"),
    [
        pytest.param(("Running", "Running"), 2, True, id="all run"),
        pytest.param(("Running", "Succeeded"), 1, False, id="one has ended"),
        pytest.param(("Pending", "Pending"), 0, False, id="none runs"),
    ],
)
@pytest.mark.parametrize("retries", ["", "0:1"])
def test_a_role_is_calm_while_every_replica_runs(
    phases: tuple[str, ...], running: int, calm: bool, retries: str
) -> None:
    one = job(role(replicas=2), ledger=Ledger(roles=(RoleLedger("worker", retries=retries),)))
    pods = (pod(index, phase, attempt=1 if retries and not index else 0) for index, phase in enumerate(phases))

    (seen,) = view(one, *pods).roles

    assert (running, calm) == (seen.running, seen.all_running)
    assert seen.count(State.RUNNING) == running


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(pod(deleting=NOW), id="being deleted"),
        pytest.param(pod(containers=(container(exit_code=0),)), id="its main container ended"),
        pytest.param(pod(node="node-2"), id="its node is lost"),
        pytest.param(pod(phase="Pending"), id="pending"),
    ],
)
def test_the_short_way_for_pods_that_run_is_no_other_way(one: Pod) -> None:
    worker = role(main_containers=frozenset({"main"}))
    nodes = {"node-1": node(), "node-2": node("node-2", ready=False)}

    looked = view(job(worker), one, nodes=nodes, now=later(60))
    seen = looked.roles[0].replicas[0]

    assert (seen.state, seen.cause) == classify_pod(
        one, worker, looked.unhealthy_nodes.get(one.spec.node_name), Site(), later(60)
    )
    assert seen.state is not State.RUNNING


def test_looking_again_keeps_what_was_stored() -> None:
    first = view(job(ledger=lived()), pod())
    raised = first.with_ledger(lived(RoleLedger("worker", 1)))

    again = raised.reobserve()

    assert again.stored is first.stored
    assert (ReplicaState(0, 1, State.WAITING, old=first.observed.pods[0]),) == again.roles[0].replicas
    assert [one.why for one in again.stale_pods] == ["attempt 0 has been replaced by 1"]


def test_remembering_the_same_is_the_same_pass() -> None:
    seen = view(job(ledger=lived()))

    assert seen.with_ledger(seen.ledger) is seen
