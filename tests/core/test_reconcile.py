# SPDX-License-Identifier: Apache-2.0
"""Whole lives of jobs, pass by pass, through the one function that decides."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from passes import ON_EXIT, emitted, lived, look, names, on

from trainwright.core.reconcile import reconcile
from trainwright.model.cause import CauseKind
from trainwright.model.child import Observed, Pod, Service
from trainwright.model.event import Emit, EventReason
from trainwright.model.job import CleanPods, CleanUp, Deadline, Job, Lifecycle, RequestedEnd, RestartScope
from trainwright.model.ledger import Ledger, Phase, Reason, RoleLedger
from trainwright.model.meta import Meta, Owner
from trainwright.model.plan import Write
from trainwright.model.rule import Atom, Result
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, job, later, pod, role, service
from trainwright.testing.world import World


def told(world: World) -> list[EventReason]:
    return [event.event_reason for plan in world.plans for event in plan.events]


def lives(world: World, *, among: list[str] | None = None) -> None:
    """Every pod that waits runs."""
    for name, one in world.pods().items():
        if one.status.phase == "Pending" and (among is None or name in among):
            world.start(name)
    world.catch_up()


def test_a_plain_job_lives_with_two_events_and_two_urgent_writes_of_its_status() -> None:
    world = World(job(role(replicas=2, service=True)), defers=True)
    world.step()
    lives(world)
    world.step()
    for name in list(world.pods()):
        world.exit(name)
    world.catch_up()
    world.step()

    assert told(world) == [EventReason.RUNNING, EventReason.SUCCEEDED]
    assert [plan.write for plan in world.plans] == [Write.ACCEPTED, Write.NOW, Write.NOW]
    assert world.writes == [
        "create Service job-worker-0",
        "create Pod job-worker-0",
        "create Service job-worker-1",
        "create Pod job-worker-1",
        "status",
        "status",
    ]
    assert world.job.ledger.phase is Phase.SUCCEEDED
    assert world.look().empty


def test_a_success_before_the_others_rides_along_with_the_next_write() -> None:
    ledger = lived(RoleLedger("worker", reached=2))

    plan = look(job(role(replicas=2), ledger=ledger), pod(0, "Succeeded"), pod(1))

    assert lived(RoleLedger("worker", succeeded="0", reached=2)) == plan.status.ledger
    assert (plan.write, plan.events, plan.creates, plan.deletes) == (Write.LATER, (), (), ())


def test_success_is_judged_before_failure() -> None:
    one = job(role(replicas=2), success=Atom("worker", (0,), Result.SUCCEEDED), ledger=lived())

    outcome = look(one, pod(0, "Succeeded"), pod(1, "Failed", code=1)).status.ledger.outcome

    assert outcome is not None
    assert (outcome.result, outcome.reason) == (Result.SUCCEEDED, Reason.RULE)


EVERYTHING = Lifecycle(
    suspended=True,
    ending=RequestedEnd("Preempted"),
    deadline=Deadline(0),
    start_deadline=0,
    backoff_limit=0,
    clean=CleanUp(CleanPods.ALL, CleanPods.ALL, CleanPods.ALL),
    ttl=0,
)


def test_deletion_comes_before_everything_else() -> None:
    plan = look(job(deleting=True, invalid="bad", lifecycle=EVERYTHING), pod(phase="Succeeded"))

    assert (plan.status.ledger, plan.remove_job, plan.deletes) == (Ledger(), False, ())


def test_an_invalid_manifest_comes_before_what_it_asks_for() -> None:
    plan = look(job(invalid="bad", lifecycle=EVERYTHING))

    assert plan.status.ledger.outcome is not None
    assert plan.status.ledger.outcome.reason is Reason.INVALID


def test_an_edit_that_cannot_be_applied_comes_before_what_it_asks_for() -> None:
    plan = look(job(invalid="bad", lifecycle=EVERYTHING), pod(phase="Succeeded"))

    assert (plan.status.ledger.phase, plan.status.ledger.outcome) == (Phase.PENDING, None)
    assert (plan.write, plan.deletes, plan.creates, plan.remove_job) == (Write.NOW, (), (), False)


def test_a_suspended_job_is_not_judged_by_what_its_pods_did() -> None:
    ledger = lived(RoleLedger("worker"), phase=Phase.SUSPENDED)
    given = job(ledger=ledger, lifecycle=Lifecycle(suspended=True, deadline=Deadline(0)))

    for phase in ("Succeeded", "Failed"):
        plan = look(given, pod(phase=phase, code=0))

        assert (plan.status.ledger, plan.write) == (ledger, Write.NOT)
        assert names(plan) == {"creates": [], "deletes": ["Pod job-worker-0"]}


def test_a_job_that_is_being_suspended_is_judged_by_success_alone() -> None:
    given = job(ledger=lived(), lifecycle=Lifecycle(suspended=True, deadline=Deadline(0), backoff_limit=0))

    assert look(given, pod(phase="Succeeded")).status.ledger.phase is Phase.SUCCEEDED
    for one in (pod(), pod(phase="Failed", code=1), pod(phase="Pending")):
        plan = look(given, one)
        assert (plan.status.ledger.phase, plan.status.ledger.outcome) == (Phase.SUSPENDED, None)


def test_suspending_and_resuming_runs_everything_anew() -> None:
    world = World(job(role(replicas=2)))
    world.step()
    lives(world)
    world.exit("job-worker-0")
    world.catch_up()
    world.step()
    assert world.job.ledger.roles[0].succeeded == "0"

    world.edit(lifecycle=Lifecycle(suspended=True))
    world.settle()
    assert world.pods() == {}
    assert world.job.ledger.phase is Phase.SUSPENDED

    world.edit(lifecycle=Lifecycle())
    world.catch_up()
    world.step()
    lives(world)
    world.step()
    assert sorted(world.pods()) == ["job-worker-0", "job-worker-1"]
    assert (world.job.ledger.phase, world.job.ledger.resumes) == (Phase.RUNNING, 1)
    assert told(world) == [EventReason.RUNNING, EventReason.SUSPENDED, EventReason.RESUMED, EventReason.RUNNING]


def test_a_collected_pod_of_a_finished_replica_is_not_run_again() -> None:
    world = World(job(role(replicas=2)))
    world.step()
    lives(world)
    world.exit("job-worker-0")
    world.catch_up()
    world.step()
    world.vanish("job-worker-0")
    world.catch_up()

    assert world.step().creates == ()
    world.exit("job-worker-1")
    world.catch_up()
    world.step()
    assert world.job.ledger.phase is Phase.SUCCEEDED


def test_a_pod_that_somebody_deletes_is_made_again_under_the_same_attempt() -> None:
    world = World(job(role(replicas=2)))
    world.step()
    lives(world)
    world.step()
    world.delete(("Pod", "job-worker-1"))
    world.catch_up()
    world.step()
    assert world.job.ledger.phase is Phase.RESTARTING
    world.reap()
    world.catch_up()

    plan = world.step()

    assert names(plan) == {"creates": ["Pod job-worker-1"], "deletes": []}
    assert (plan.status.ledger.roles[0].restarts, plan.status.ledger.roles[0].retries) == ({}, "")


def test_restarts_up_to_the_limit_and_then_failure() -> None:
    world = World(job(role(restart=on(CauseKind.EXIT, limit=2))))
    for _ in range(3):
        world.settle()
        lives(world)
        world.step()
        world.exit("job-worker-0", 3)
        world.catch_up()
        world.step()

    ledger = world.job.ledger
    assert ledger.phase is Phase.FAILED
    assert (ledger.roles[0].restarts, ledger.roles[0].retries, ledger.roles[0].failed) == ({"Exit": 2}, "0:2", "0")
    assert [one.attempt for one in ledger.failures] == [0, 1, 2]
    assert world.server.made == 3
    assert told(world) == [EventReason.RUNNING, EventReason.RESTARTING, EventReason.RESTARTING, EventReason.FAILED]


def test_an_operator_that_dies_after_storing_a_restart_does_not_count_it_again() -> None:
    world = World(job(role(restart=ON_EXIT)))
    world.step()
    lives(world)
    world.step()
    world.exit("job-worker-0", 1)
    world.catch_up()

    world.step(dies_after=1)
    world.settle()

    assert world.job.ledger.roles[0].restarts == {"Exit": 1}
    assert (world.pods()["job-worker-0"].metadata.labels or {})["trainwright.dev/attempt"] == "1"


def test_an_operator_that_dies_before_storing_a_restart_decides_it_again() -> None:
    world = World(job(role(restart=ON_EXIT)))
    world.step()
    lives(world)
    world.exit("job-worker-0", 1)
    world.catch_up()

    world.step(dies_after=0)
    assert world.job.ledger.roles[0].restarts == {}
    world.settle()

    assert world.job.ledger.roles[0].restarts == {"Exit": 1}


def test_a_status_that_is_wiped_is_found_again_on_the_pods() -> None:
    world = World(job(role(replicas=2, restart=on(CauseKind.EXIT, scope=RestartScope.ROLE))))
    world.step()
    lives(world)
    world.step()
    world.exit("job-worker-0", 1)
    world.catch_up()
    world.settle()
    lives(world)
    world.step()
    uids = {one.metadata.uid for one in world.pods().values()}

    world.edit(ledger=Ledger())
    world.settle()

    assert uids == {one.metadata.uid for one in world.pods().values()}
    assert world.job.ledger.phase is Phase.RUNNING
    assert world.job.ledger.roles == (RoleLedger("worker", retries="0-1:1", reached=2),)


def test_a_deadline_ends_a_job_in_its_second_and_not_before() -> None:
    world = World(job(lifecycle=Lifecycle(deadline=Deadline(60), clean=CleanUp(ended=CleanPods.UNFINISHED))))
    world.step()
    lives(world)
    assert world.step().wake == later(60)

    world.wait(60)
    plan = world.step()

    assert emitted(plan) == (Emit(EventReason.FAILED, "it was active longer than its deadline", warning=True),)
    assert names(plan) == {"creates": [], "deletes": ["Pod job-worker-0"]}


def test_a_job_is_removed_when_its_time_to_live_is_over() -> None:
    world = World(job(lifecycle=Lifecycle(ttl=30)))
    world.step()
    lives(world)
    world.step()
    world.exit("job-worker-0")

    plan = world.settle()

    assert plan.remove_job
    assert (world.clock, world.gone) == (later(30), True)


def test_an_invalid_job_lives_out_its_time_like_any_other() -> None:
    world = World(job(invalid="bad", lifecycle=Lifecycle(ttl=30)))
    assert world.step().wake == later(30)

    world.wait(30)

    assert world.step().remove_job


STRANGER = Owner("apps/v1", "ReplicaSet", "other", "other-uid", controller=True)
TAKEN = "already exists, and is not this job's: ReplicaSet other controls it; give the job another name"


def test_a_foreign_pod_of_our_name_is_reported_and_never_touched() -> None:
    world = World(job())
    world.put(("Pod", "job-worker-0"), pod(uid="foreign", labels={}, owners=(STRANGER,)))
    foreign = world.truth[("Pod", "job-worker-0")]

    world.step()
    plan = world.step()

    assert world.truth[("Pod", "job-worker-0")] is foreign
    assert plan.status.refused == {"job-worker-0": f'AlreadyExists: pods "job-worker-0" {TAKEN}'}
    assert plan.creates == ()


@pytest.mark.parametrize(
    ("owners", "whose"),
    [
        (None, "no controller owns it; remove it, or give the job another name"),
        ((STRANGER,), "ReplicaSet other controls it; give the job another name"),
    ],
    ids=["nobody's", "somebody else's"],
)
def test_a_foreign_service_of_our_name_is_reported_never_touched_and_asked_for_again(
    owners: tuple[Owner, ...] | None, whose: str
) -> None:
    world = World(job(role(service=True)))
    world.step()
    world.put(("Service", "job-worker-0"), Service(Meta("job-worker-0", "default", "foreign", owner_references=owners)))
    foreign = world.truth["Service", "job-worker-0"]
    world.catch_up()

    world.step()
    world.wait(29.999)
    early = world.look()
    world.wait(0.001)
    due = world.look()

    refused = {
        "job-worker-0": f'AlreadyExists: services "job-worker-0" already exists, and is not this job\'s: {whose}'
    }
    assert (early.status.refused, early.creates, early.wake) == (refused, (), later(30))
    assert (due.status.refused, due.wake) == (refused, None)
    assert names(due) == {"creates": ["Service job-worker-0"], "deletes": []}
    assert world.truth[("Service", "job-worker-0")] is foreign


PHASES = ("Pending", "Running", "Succeeded", "Failed")
PODS = st.lists(
    st.builds(
        lambda index, phase, attempt, going: pod(
            index, phase, attempt=attempt, uid=f"{index}-{attempt}", deleting=NOW if going else None
        ),
        st.integers(0, 3),
        st.sampled_from(PHASES),
        st.integers(0, 3),
        st.booleans(),
    ),
    unique_by=lambda one: one.metadata.name,
    max_size=4,
)
JOBS = st.builds(
    lambda size, scope, limit, suspended, phase: job(
        role(
            replicas=size, restart=on(CauseKind.EXIT, CauseKind.REJECTED, CauseKind.DELETED, limit=limit, scope=scope)
        ),
        lifecycle=Lifecycle(suspended=suspended),
        ledger=lived(RoleLedger("worker", 1, "0:1", reached=min(size, 2)), phase=phase),
    ),
    st.integers(0, 3),
    st.sampled_from(list(RestartScope)),
    st.none() | st.integers(0, 2),
    st.booleans(),
    st.sampled_from([Phase.PENDING, Phase.RUNNING, Phase.RESTARTING, Phase.RESUMING]),
)


@given(JOBS, PODS)
def test_whatever_the_world_a_pass_is_a_function_that_keeps_its_word(one: Job, pods: list[Pod]) -> None:
    observed = Observed(pods=tuple(pods))

    plan = reconcile(one, observed, Site(), NOW)

    # The same twice, and what it stores survives JSON.
    assert plan == reconcile(one, observed, Site(), NOW)
    stored = msgspec.json.decode(msgspec.json.encode(plan.status.ledger), type=Ledger)
    assert plan.status.ledger == stored
    # Over what it stored it stores nothing more, and wants the same.
    second = reconcile(replace(one, ledger=stored), observed, Site(), NOW)
    assert (second.write, second.events) == (Write.NOT, ())
    assert (plan.deletes, plan.creates) == (second.deletes, second.creates)
    # Nothing is made twice, or under a name that is taken.
    made = [create.name for create in plan.creates]
    assert len(set(made)) == len(made)
    assert not set(made) & {other.metadata.name for other in pods}
    # Attempts never fall.
    stored_attempts = {0: 2, 1: 1, 2: 1}
    assert all(seen.attempt >= stored_attempts[seen.index] for seen in plan.status.roles[0].replicas)


def test_a_job_that_another_controller_looks_after_is_not_touched() -> None:
    loose = pod(0, owners=(), uid="loose")
    plan = reconcile(
        job(role(replicas=2, service=True), unmanaged=True, deleting=False, invalid="odd"),
        Observed(pods=(loose, pod(5)), services=(service("job-worker-9"),)),
        Site(),
        NOW,
    )

    assert plan.empty
    assert (plan.events, plan.wake, plan.status.ledger) == ((), None, Ledger())


@pytest.mark.parametrize("more", [{}, {"invalid": "odd"}, {"deleting": True}], ids=["fit", "unfit", "being deleted"])
def test_an_unfinished_job_of_another_controller_is_not_touched_but_told_of(more: dict[str, Any]) -> None:
    loose = pod(0, owners=(), uid="loose")
    theirs = job(role(replicas=2, service=True), foreign="training-operator.v1", **more)
    other = Service(Meta("job-worker-9", "default", "s"))
    plan = reconcile(theirs, Observed(pods=(loose,), services=(other,)), Site(), NOW)

    assert plan.empty
    assert plan.untouched
    assert (plan.deletes, plan.creates, plan.wake, plan.status.ledger) == ((), (), None, Ledger())
    for emit in emitted(plan):
        assert (emit.event_reason, emit.warning, emit.once) == (EventReason.FOREIGN, True, True)
        assert emit.message.startswith("training-operator.v1 wrote the status of this unfinished job")
        whom = f"{theirs.kind}.{theirs.owner.api_version.partition('/')[0]} job -n {theirs.key.namespace}"
        assert f"`kubectl annotate {whom} trainwright.dev/adopt=true`" in emit.message
    assert len(plan.events) == ("deleting" not in more)


@pytest.mark.parametrize(
    "child", [{"pods": (pod(0),)}, {"services": (service("job-worker-0"),)}], ids=["pod", "service"]
)
def test_a_job_with_children_of_ours_is_ours_although_its_status_was_overwritten(child: dict[str, Any]) -> None:
    lost = job(role(replicas=2, service=True), foreign="kubectl-replace")
    plan = reconcile(lost, Observed(**child), Site(), NOW)

    assert not plan.untouched
    assert plan.status.ledger.phase is Phase.PENDING
    assert plan.creates
