# SPDX-License-Identifier: Apache-2.0
"""The edges of a job's life: accepted, suspended, resumed, ended and cleaned up, deleted."""

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace
from passes import Grouped, bare, emitted, group, lived, look, names, view, waiting

from trainwright.core import lifecycle
from trainwright.core.render import digest
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import ContainerStatus, Observed, Pod, Service
from trainwright.model.event import Emit, EventReason
from trainwright.model.job import Body, CleanPods, CleanUp, Deadline, Job, Lifecycle, RequestedEnd
from trainwright.model.ledger import Failure, Hold, Ledger, Outcome, Phase, Reason, RoleLedger, Times
from trainwright.model.meta import Meta
from trainwright.model.plan import Delete, Plan, State, Status, Write
from trainwright.model.rule import NEVER, Result
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, OWNER, PlainDialect, container, job, later, node, pod, role, service

SUSPEND = Lifecycle(suspended=True)

# -- accepted ----------------------------------------------------------------------------------------------------------


def test_a_new_job_is_accepted_and_starts() -> None:
    plan = look(job(role(replicas=2), generation=3), now=later(0.8))

    times = Times(accepted=later(0.8), started=later(0.8))
    assert Ledger(Phase.PENDING, 3, (RoleLedger("worker"),), times=times) == bare(plan.status.ledger)
    assert (plan.write, plan.events, plan.wake) == (Write.ACCEPTED, (), None)
    assert names(plan) == {"creates": ["Pod job-worker-0", "Pod job-worker-1"], "deletes": []}


def test_a_job_whose_status_was_lost_finds_itself_running() -> None:
    plan = look(job(), pod(), now=later(5))

    assert bare(plan.status.ledger) == Ledger(
        Phase.RUNNING,
        roles=(RoleLedger("worker", reached=1),),
        times=Times(accepted=NOW, started=NOW, running=later(5)),
    )
    assert plan.creates == ()


# -- the ledger moves on -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "replicas", "pods", "expected"),
    [
        pytest.param(RoleLedger("worker"), 2, (pod(0),), RoleLedger("worker"), id="not all are there"),
        pytest.param(
            RoleLedger("worker"), 2, (pod(0), pod(1, "Pending")), RoleLedger("worker", reached=2), id="all are there"
        ),
        pytest.param(
            RoleLedger("worker", succeeded="1"),
            2,
            (pod(0),),
            RoleLedger("worker", succeeded="1", reached=2),
            id="or done",
        ),
        pytest.param(RoleLedger("worker", reached=2), 2, (pod(0),), RoleLedger("worker", reached=2), id="one is gone"),
        pytest.param(RoleLedger("worker", reached=5), 2, (pod(0),), RoleLedger("worker", reached=2), id="it shrank"),
        pytest.param(RoleLedger("worker", reached=2), 3, (pod(0),), RoleLedger("worker", reached=2), id="it grew"),
        pytest.param(
            RoleLedger("worker", succeeded="1,5", reached=2),
            2,
            (),
            RoleLedger("worker", succeeded="1", reached=2),
            id="one succeeded that is no longer wanted",
        ),
        pytest.param(
            RoleLedger("worker", failed="1,5", reached=2),
            2,
            (),
            RoleLedger("worker", failed="1", reached=2),
            id="one failed that is no longer wanted",
        ),
        pytest.param(
            RoleLedger("worker", holds=(Hold(NOW, "0"), Hold(later(1), "1"))),
            2,
            (),
            RoleLedger("worker", holds=(Hold(later(1), "1"),)),
            id="a hold is over",
        ),
    ],
)
def test_what_has_been_reached(entry: RoleLedger, replicas: int, pods: tuple[Pod, ...], expected: RoleLedger) -> None:
    given = job(role(replicas=replicas), success=NEVER, failure=NEVER, ledger=waiting(entry))

    assert (expected,) == look(given, *pods).status.ledger.roles


def test_each_role_reaches_its_own_size() -> None:
    given = job(role("chief"), role("worker", 2), ledger=waiting(RoleLedger("chief"), RoleLedger("worker")))

    plan = look(given, pod(0, "Pending"), pod(1, "Pending"))

    assert (RoleLedger("chief"), RoleLedger("worker", reached=2)) == plan.status.ledger.roles


def test_a_new_generation_is_noted_with_the_next_write() -> None:
    plan = look(job(generation=7, ledger=lived(generation=6)), pod())

    assert lived(generation=7) == plan.status.ledger
    assert plan.write is Write.LATER


def test_the_first_run_as_a_whole_is_noted_once() -> None:
    first = look(job(ledger=waiting()), pod(), now=later(3.2))
    again = look(job(ledger=lived(phase=Phase.RESTARTING)), pod(), now=later(9))

    assert (first.status.ledger.phase, first.status.ledger.times) == (Phase.RUNNING, Times(NOW, NOW, later(3.2)))
    assert emitted(first) == (Emit(EventReason.RUNNING, "job is running."),)
    assert (again.status.ledger.phase, again.status.ledger.times) == (Phase.RUNNING, Times(NOW, NOW, NOW))
    assert again.events == ()


def test_a_job_without_anything_new_keeps_its_ledger_as_it_is() -> None:
    given = job(ledger=lived())

    assert look(given, pod()).status.ledger is given.ledger


# -- suspended and resumed ---------------------------------------------------------------------------------------------


def suspended(**more: Any) -> Job:
    return job(role(replicas=2, service=True), lifecycle=SUSPEND, **more)


def test_a_suspended_job_loses_its_children_and_forgets_what_had_finished() -> None:
    entry = RoleLedger("worker", 1, "0:2", {"Exit": 2}, "1", "", 2, (Hold(later(9), "0"),))
    given = replace(suspended(ledger=lived(entry, ports={"a": 1}, generation=3)), generation=4)
    pods = (pod(0, attempt=3), pod(1, "Succeeded", attempt=1))

    plan = look(given, *pods, now=later(50.5), services=(service("job-worker-0"),), extras=(group(),))

    assert bare(plan.status.ledger) == Ledger(
        Phase.SUSPENDED, 4, (RoleLedger("worker", 4, restarts={"Exit": 2}),), times=Times(accepted=NOW), ports={"a": 1}
    )
    why = "the job is suspended"
    assert plan.deletes == (
        Delete("Pod", "job-worker-0", "job-worker-0-3", why),
        Delete("Pod", "job-worker-1", "job-worker-1-1", why),
        Delete("Service", "job-worker-0", "service-job-worker-0", why),
        Delete("PodGroup", "job", "uid-job", why, api="gang/v1"),
    )
    assert (plan.creates, plan.write, plan.wake) == ((), Write.NOW, None)
    assert emitted(plan) == (Emit(EventReason.SUSPENDED, "job is suspended."),)
    assert plan.status.cleaning
    assert plan.status.roles[0].count(State.WAITING) == 2


def test_suspending_keeps_what_the_kubelet_counted() -> None:
    lifecycle = Lifecycle(suspended=True, counts_in_place=True)
    given = job(role(replicas=2), lifecycle=lifecycle, ledger=lived(RoleLedger("worker", reached=2)))
    twice, once = (ContainerStatus("main", restart_count=count) for count in (2, 1))

    plan = look(given, pod(0, containers=(twice,)), pod(1, containers=(once,)))

    assert plan.status.ledger.roles == (RoleLedger("worker", 1, restarts={"InPlace": 3}),)


def test_what_a_kind_keeps_stays_while_suspended() -> None:
    plan = look(replace(suspended(ledger=lived()), dialect=Grouped(2)), extras=(group(), group(name="other")))

    assert names(plan) == {"creates": [], "deletes": ["PodGroup other"]}


def test_a_job_born_suspended_makes_nothing() -> None:
    plan = look(suspended(), now=later(0.4))

    times = Times(accepted=later(0.4))
    assert bare(plan.status.ledger) == Ledger(Phase.SUSPENDED, roles=(RoleLedger("worker", 1),), times=times)
    assert names(plan) == {"creates": [], "deletes": []}
    assert not plan.status.cleaning


def test_a_job_that_is_suspended_stays_so() -> None:
    ledger = Ledger(Phase.SUSPENDED, roles=(RoleLedger("worker", 4),), times=Times(accepted=NOW), resumes=2)

    plan = look(suspended(ledger=ledger), now=later(99))

    assert plan.status.ledger is ledger
    assert plan.empty


def test_a_pod_that_turns_up_while_suspended_goes() -> None:
    ledger = Ledger(Phase.SUSPENDED, roles=(RoleLedger("worker", 4),), times=Times(accepted=NOW))

    plan = look(suspended(ledger=ledger), pod(0, attempt=4), pod(1, attempt=2, deleting=later(3)))

    assert plan.deletes == (Delete("Pod", "job-worker-0", "job-worker-0-4", "the job is suspended"),)
    assert (plan.write, plan.status.cleaning) == (Write.NOT, True)


def test_services_and_extras_on_their_way_out_are_waited_for() -> None:
    going = Service(Meta("s", "default", "u", owner_references=(OWNER,), deletion_timestamp=NOW))

    assert look(suspended(), services=(going,), extras=(group(deletion_timestamp=NOW),)).deletes == ()


def test_pods_of_a_suspended_job_on_a_silent_node_are_looked_at_again() -> None:
    nodes = {"node-1": node(ready=False)}

    plan = look(suspended(ledger=lived()), pod(), nodes=nodes)
    lost = look(suspended(ledger=lived()), pod(), nodes=nodes, now=later(60))

    assert plan.wake == later(60)
    assert lost.deletes == (Delete("Pod", "job-worker-0", "job-worker-0-0", "the job is suspended", force=True),)


def test_a_resumed_job_starts_anew_above_its_old_attempts() -> None:
    ledger = Ledger(
        Phase.SUSPENDED, roles=(RoleLedger("worker", 4),), times=Times(later(-50), later(-40), later(-30)), resumes=1
    )
    given = job(ledger=ledger, lifecycle=Lifecycle(deadline=Deadline(60)))

    plan = look(given, now=later(0.9))

    assert bare(plan.status.ledger) == Ledger(
        Phase.RESUMING, roles=(RoleLedger("worker", 4),), times=Times(later(-50), later(0.9)), resumes=2
    )
    assert emitted(plan) == (Emit(EventReason.RESUMED, "job is resumed."),)
    assert plan.creates[0].body["metadata"]["labels"]["trainwright.dev/attempt"] == "4"
    assert (plan.write, plan.wake) == (Write.NOW, later(60.9))


def test_a_resumed_job_waits_for_old_pods_to_go() -> None:
    ledger = Ledger(Phase.SUSPENDED, roles=(RoleLedger("worker", 4),), times=Times(accepted=NOW))

    plan = look(job(ledger=ledger), pod(attempt=3, deleting=later(9)))

    assert (plan.creates, plan.deletes) == ((), ())
    assert plan.status.ledger.phase is Phase.RESUMING


def test_a_resumed_job_runs_anew_and_says_so() -> None:
    ledger = Ledger(Phase.RESUMING, roles=(RoleLedger("worker", 4),), times=Times(NOW, later(5)), resumes=1)

    plan = look(job(ledger=ledger), pod(attempt=4), now=later(8))

    assert (plan.status.ledger.phase, plan.status.ledger.times) == (Phase.RUNNING, Times(NOW, later(5), later(8)))
    assert emitted(plan) == (Emit(EventReason.RUNNING, "job is running."),)


def test_resuming_is_for_suspended_jobs_that_are_no_longer_asked_to_be() -> None:
    still = view(suspended(ledger=Ledger(Phase.SUSPENDED, roles=(RoleLedger("worker", 1),))))
    live = view(job(ledger=lived()))

    assert lifecycle.begin(still) is still
    assert lifecycle.begin(live) is live


def test_an_end_from_outside_reaches_a_suspended_job() -> None:
    both = Lifecycle(suspended=True, ending=RequestedEnd("Preempted", "make room"), clean=CleanUp(ended=CleanPods.ALL))
    given = job(lifecycle=both, ledger=lived())

    plan = look(given, pod(), now=later(7))

    assert plan.status.ledger.outcome == Outcome(
        Result.FAILED, Reason.EXTERNAL, later(7), message="make room", word="Preempted"
    )
    assert plan.status.ledger.phase is Phase.FAILED
    assert names(plan) == {"creates": [], "deletes": ["Pod job-worker-0"]}


CLEAN = CleanUp(succeeded=CleanPods.ALL)


def test_a_job_whose_work_is_done_when_it_is_to_be_suspended_has_succeeded() -> None:
    given = job(
        role(replicas=2),
        lifecycle=Lifecycle(suspended=True, clean=CLEAN),
        ledger=lived(RoleLedger("worker", succeeded="0", reached=2)),
    )

    plan = look(given, pod(1, "Succeeded"), now=later(7.5))

    assert bare(plan.status.ledger) == lived(
        RoleLedger("worker", succeeded="0-1", reached=2),
        phase=Phase.SUCCEEDED,
        outcome=Outcome(Result.SUCCEEDED, Reason.RULE, later(7.5), message="every replica that counts has succeeded"),
        times=Times(NOW, NOW, NOW, later(7.5)),
    )
    assert names(plan) == {"creates": [], "deletes": ["Pod job-worker-1"]}
    assert emitted(plan) == (Emit(EventReason.SUCCEEDED, "every replica that counts has succeeded"),)
    assert plan.write is Write.NOW


@pytest.mark.parametrize(
    ("phase", "pods"),
    [
        pytest.param(Phase.RUNNING, (pod(0, "Succeeded"), pod(1)), id="one still runs"),
        pytest.param(Phase.RUNNING, (pod(0), pod(1)), id="all still run"),
        pytest.param(Phase.RUNNING, (pod(0, "Succeeded"), pod(1, "Failed", code=1)), id="one failed"),
        pytest.param(Phase.RUNNING, (), id="all are gone"),
        pytest.param(Phase.SUSPENDED, (pod(0, "Succeeded"), pod(1, "Succeeded")), id="suspended before"),
    ],
)
def test_a_job_whose_work_is_not_done_when_it_is_to_be_suspended_is(phase: Phase, pods: tuple[Pod, ...]) -> None:
    given = job(role(replicas=2), lifecycle=SUSPEND, ledger=lived(RoleLedger("worker", reached=2), phase=phase))

    plan = look(given, *pods)

    assert (plan.status.ledger.phase, plan.status.ledger.outcome) == (Phase.SUSPENDED, None)
    assert (plan.status.ledger.failures, plan.status.ledger.roles[0].restarts) == ((), {})
    assert len(plan.deletes) == len(pods)


@pytest.mark.parametrize(
    ("phase", "reason"), [(Phase.RUNNING, Reason.RULE), (Phase.SUSPENDED, Reason.EXTERNAL)], ids=["begins", "before"]
)
def test_success_comes_before_an_end_from_outside_where_a_suspension_begins(phase: Phase, reason: Reason) -> None:
    both = Lifecycle(suspended=True, ending=RequestedEnd("Preempted", "make room"))

    plan = look(job(lifecycle=both, ledger=lived(phase=phase)), pod(phase="Succeeded"))

    assert plan.status.ledger.outcome is not None
    assert plan.status.ledger.outcome.reason is reason


# -- ended -------------------------------------------------------------------------------------------------------------

SUCCESS = Outcome(Result.SUCCEEDED, Reason.RULE, NOW, message="well done")
FAILURE = Outcome(Result.FAILED, Reason.RULE, NOW, message="too bad")
BOOK = RoleLedger("worker", 1, succeeded="0", reached=3)


def over(outcome: Outcome = SUCCESS, *, entry: RoleLedger = BOOK, **more: Any) -> Job:
    phase = Phase.SUCCEEDED if outcome.result is Result.SUCCEEDED else Phase.FAILED
    ledger = lived(entry, phase=phase, outcome=outcome, times=Times(NOW, NOW, NOW, NOW))
    return job(role(replicas=3, service=True), ledger=ledger, lifecycle=Lifecycle(**more))


PODS = (
    pod(0, "Succeeded", attempt=1),
    pod(1, "Running", attempt=1),
    pod(2, "Pending", attempt=1, deleting=later(9)),
    pod(0, "Failed", attempt=0, name="job-old-3"),
    pod(0, "Running", attempt=0, name="job-old-4"),
)
SERVICES = (*(service(f"job-worker-{index}") for index in range(3)), *(service(f"job-old-{i}") for i in (3, 4, 5)))


def cleaned(clean: CleanPods) -> Plan:
    return look(over(clean=CleanUp(succeeded=clean)), *PODS, services=SERVICES, extras=(group(digest({})),))


def test_cleaning_nothing_takes_only_live_leftovers_and_what_belongs_to_the_job() -> None:
    plan = cleaned(CleanPods.NONE)

    assert names(plan) == {"creates": [], "deletes": ["Pod job-old-4", "PodGroup job"]}
    assert {"the job has succeeded"} == {one.why for one in plan.deletes}


CRASHED = replace(container(waiting="CrashLoopBackOff"), restart_count=4)


@pytest.mark.parametrize("outcome", [SUCCESS, FAILURE], ids=["succeeded", "failed"])
def test_no_policy_keeps_a_pod_that_its_kubelet_would_restart(outcome: Outcome) -> None:
    """Its service stays where services stay: kept pods may still ask for the name."""
    again = pod(1, attempt=1, policy="OnFailure", containers=(CRASHED,))
    plan = look(over(outcome), pod(0, "Succeeded", attempt=1), again, services=SERVICES)

    assert names(plan)["deletes"] == ["Pod job-worker-1"]
    assert plan.status.cleaning


def test_a_pod_that_simply_runs_stays_however_often_it_was_restarted() -> None:
    runs = pod(1, attempt=1, policy="OnFailure", containers=(replace(container(), restart_count=4),))

    assert look(over(FAILURE), runs).empty


def test_cleaning_the_unfinished_takes_live_pods_and_services_without_one() -> None:
    assert names(cleaned(CleanPods.UNFINISHED)) == {
        "creates": [],
        "deletes": [
            "Pod job-worker-1",
            "Pod job-old-4",
            "Service job-worker-1",
            "Service job-worker-2",
            "Service job-old-4",
            "Service job-old-5",
            "PodGroup job",
        ],
    }


def test_cleaning_all_takes_everything() -> None:
    assert names(cleaned(CleanPods.ALL)) == {
        "creates": [],
        "deletes": [
            "Pod job-worker-0",
            "Pod job-worker-1",
            "Pod job-old-3",
            "Pod job-old-4",
            *(f"Service {one.metadata.name}" for one in SERVICES),
            "PodGroup job",
        ],
    }


@pytest.mark.parametrize("clean", list(CleanPods))
def test_what_belongs_to_the_job_stays_where_its_kind_says_so(clean: CleanPods) -> None:
    ended = replace(over(clean=CleanUp(succeeded=clean)), dialect=Grouped(3))
    others = (group(), group(name="other"), group(kind="ConfigMap"), group(name="x", deletion_timestamp=NOW))

    plan = look(ended, extras=others)

    assert names(plan) == {"creates": [], "deletes": ["PodGroup other", "ConfigMap job"]}
    assert plan.patches == ()


class Until(PlainDialect, frozen=True):
    """A dialect whose config map lives as long as its job does, if the site says so."""

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:
        ended = job.ledger.outcome is not None and len(observed.extras) == 1 and site.domain == "here"
        return () if ended else ({"apiVersion": "v1", "kind": "ConfigMap"},)


def test_a_kind_is_told_of_the_end_when_it_says_what_stays() -> None:
    ended = replace(over(), dialect=Until())

    assert names(look(ended, extras=(group(kind="ConfigMap"),)))["deletes"] == []
    assert names(look(ended, extras=(group(kind="ConfigMap"),), site=Site("here")))["deletes"] == ["ConfigMap job"]


def test_a_job_whose_node_was_lost_may_have_a_clean_up_of_its_own() -> None:
    lost = Failure("worker", 0, "job-worker-0", 1, NOW, Cause(CauseKind.NODE_LOST, node="node-1"))
    exit_ = replace(lost, cause=Cause(CauseKind.EXIT, code=1))
    clean = CleanUp(failed=CleanPods.NONE, lost=CleanPods.ALL)
    one = pod(0, "Failed", attempt=1)

    def cleaned_up(outcome: Outcome, clean: CleanUp) -> bool:
        return bool(look(over(outcome, clean=clean), one).deletes)

    assert cleaned_up(replace(FAILURE, failure=lost), clean)
    assert not cleaned_up(replace(FAILURE, failure=exit_), clean)
    assert not cleaned_up(FAILURE, clean)
    assert not cleaned_up(replace(FAILURE, failure=lost), CleanUp(failed=CleanPods.ALL, lost=CleanPods.NONE))
    assert cleaned_up(replace(FAILURE, failure=lost), CleanUp(failed=CleanPods.ALL))
    assert not cleaned_up(replace(FAILURE, failure=lost, reason=Reason.DEADLINE), clean)


@pytest.mark.parametrize("clean", list(CleanPods))
def test_a_finished_job_is_cleaned_up_without_another_word(clean: CleanPods) -> None:
    plan = cleaned(clean)

    assert plan.status.cleaning
    assert (plan.write, plan.events, plan.wake, plan.remove_job) == (Write.NOT, (), None, False)
    assert plan.status.ledger.outcome == SUCCESS


@pytest.mark.parametrize(
    ("clean", "pods", "expected"),
    [
        pytest.param(CleanPods.NONE, (pod(1, attempt=1),), False, id="what stays is not waited for"),
        pytest.param(CleanPods.UNFINISHED, (pod(0, "Succeeded", attempt=1),), False, id="what had finished stays"),
        pytest.param(CleanPods.UNFINISHED, (pod(1, attempt=1, deleting=NOW),), True, id="on its way out"),
        pytest.param(
            CleanPods.UNFINISHED, (pod(1, "Failed", attempt=1, deleting=NOW),), True, id="on its way out, and has ended"
        ),
        pytest.param(CleanPods.NONE, (pod(1, attempt=1, deleting=NOW),), True, id="somebody deletes what would stay"),
        pytest.param(CleanPods.ALL, (pod(0, "Succeeded", attempt=1),), True, id="all must go"),
        pytest.param(CleanPods.ALL, (), False, id="all are gone"),
    ],
)
def test_a_job_is_cleaning_while_pods_that_must_go_are_there(
    clean: CleanPods, pods: tuple[Pod, ...], expected: bool
) -> None:
    assert expected is look(over(clean=CleanUp(succeeded=clean)), *pods).status.cleaning


@pytest.mark.parametrize(
    ("outcome", "level"),
    [
        pytest.param(SUCCESS, "succeeded", id="succeeded"),
        pytest.param(FAILURE, "failed", id="failed"),
        pytest.param(replace(FAILURE, reason=Reason.UNREACHABLE), "failed", id="out of reach"),
        pytest.param(replace(FAILURE, reason=Reason.BACKOFF_LIMIT), "failed", id="budget"),
        pytest.param(replace(FAILURE, reason=Reason.INVALID), "failed", id="invalid"),
        pytest.param(replace(FAILURE, reason=Reason.DEADLINE), "ended", id="deadline"),
        pytest.param(replace(FAILURE, reason=Reason.START_DEADLINE), "ended", id="start deadline"),
        pytest.param(replace(FAILURE, reason=Reason.EXTERNAL), "ended", id="somebody asked"),
        pytest.param(replace(SUCCESS, reason=Reason.EXTERNAL), "ended", id="somebody asked for success"),
    ],
)
def test_each_kind_of_end_has_its_own_clean_up(outcome: Outcome, level: str) -> None:
    clean = CleanUp(**{level: CleanPods.ALL})
    others = CleanUp(**{name: CleanPods.ALL for name in ("succeeded", "failed", "ended") if name != level})
    entry = replace(BOOK, succeeded="", epoch=0)
    why = "the job has succeeded" if outcome.result is Result.SUCCEEDED else "the job has failed"

    plan = look(over(outcome, entry=entry, clean=clean), pod())

    assert plan.deletes == (Delete("Pod", "job-worker-0", "job-worker-0-0", why),)
    assert look(over(outcome, entry=entry, clean=others), pod()).deletes == ()


def test_a_job_that_has_just_ended_is_cleaned_up_in_the_same_pass() -> None:
    given = job(
        role(replicas=2),
        success=job().success,
        ledger=lived(RoleLedger("worker", succeeded="0", reached=2)),
        lifecycle=Lifecycle(clean=CleanUp(succeeded=CleanPods.ALL), ttl=30),
    )

    plan = look(given, pod(0, "Succeeded"), pod(1, "Succeeded"), now=later(4.7))

    assert plan.status.ledger.times == Times(NOW, NOW, NOW, later(4.7))
    assert plan.status.ledger.phase is Phase.SUCCEEDED
    assert names(plan) == {"creates": [], "deletes": ["Pod job-worker-0", "Pod job-worker-1"]}
    assert (plan.write, plan.wake) == (Write.NOW, later(34.7))
    assert emitted(plan) == (Emit(EventReason.SUCCEEDED, "every replica that counts has succeeded"),)


@pytest.mark.parametrize(
    ("ttl", "seconds", "wake", "remove"),
    [
        pytest.param(None, 1e9, None, False, id="for ever"),
        pytest.param(30, 0, later(30), False, id="just ended"),
        pytest.param(30, 29.999, later(30), False, id="a moment before"),
        pytest.param(30, 30, None, True, id="in its second"),
        pytest.param(30, 1e6, None, True, id="long after"),
        pytest.param(0, 0, None, True, id="at once"),
    ],
)
def test_a_finished_job_lives_out_its_time(
    ttl: float | None, seconds: float, wake: datetime | None, remove: bool
) -> None:
    plan = look(over(ttl=ttl), now=later(seconds))

    assert (wake, remove) == (plan.wake, plan.remove_job)


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        pytest.param(None, later(60), id="a node in doubt"),
        pytest.param(90.0, later(60), id="before the time to live"),
        pytest.param(30.0, later(30), id="after the time to live"),
    ],
)
def test_pods_to_clean_up_on_a_silent_node_are_looked_at_again(ttl: float | None, expected: datetime) -> None:
    given = over(clean=CleanUp(succeeded=CleanPods.UNFINISHED), ttl=ttl)

    assert look(given, pod(1, attempt=1), nodes={"node-1": node(ready=False)}).wake == expected


def test_a_pod_that_stays_has_no_need_of_its_node() -> None:
    assert look(over(), pod(1, attempt=1), nodes={"node-1": node(ready=False)}).wake is None


def test_a_pod_to_clean_up_on_a_lost_node_goes_by_force() -> None:
    given = over(clean=CleanUp(succeeded=CleanPods.ALL))

    plan = look(given, pod(1, attempt=1), nodes={"node-1": node(ready=False)}, now=later(60))

    assert plan.deletes == (Delete("Pod", "job-worker-1", "job-worker-1-1", "the job has succeeded", force=True),)


def test_a_pod_to_clean_up_on_a_node_that_nobody_knows_goes_as_any_other() -> None:
    given = over(clean=CleanUp(succeeded=CleanPods.ALL))

    plan = look(given, pod(1, attempt=1), nodes={}, now=later(1e6))

    assert plan.deletes == (Delete("Pod", "job-worker-1", "job-worker-1-1", "the job has succeeded"),)
    assert plan.wake is None


@pytest.mark.parametrize("phase", ["Running", "Failed", "Succeeded"])
def test_finished_is_final_whatever_the_pods_do(phase: str) -> None:
    given = over(FAILURE)

    plan = look(given, *(pod(index, phase, attempt=1, code=1) for index in range(3)), now=later(99))

    assert (plan.status.ledger.outcome, plan.write) == (FAILURE, Write.NOT)
    assert plan.creates == ()


def test_a_finished_job_is_neither_suspended_nor_invalid_any_more() -> None:
    given = replace(over(), lifecycle=SUSPEND, invalid="bad")

    plan = look(given, pod(1, attempt=1))

    assert (plan.status.ledger, plan.write, plan.deletes) == (given.ledger, Write.NOT, ())


# -- invalid -----------------------------------------------------------------------------------------------------------


def test_a_new_job_that_cannot_be_run_fails_with_its_problems() -> None:
    text = "spec.x: is not known"
    given = job(invalid=text, lifecycle=Lifecycle(suspended=True, ttl=60))

    plan = look(given, now=later(2.5))

    outcome = Outcome(Result.FAILED, Reason.INVALID, later(2.5), message=text)
    assert bare(plan.status.ledger) == Ledger(
        Phase.FAILED, roles=(RoleLedger("worker"),), outcome=outcome, times=Times(ended=later(2.5))
    )
    assert plan.status.invalid == text
    assert emitted(plan) == (Emit(EventReason.FAILED, text, warning=True),)
    assert (plan.creates, plan.write, plan.wake) == ((), Write.NOW, later(62.5))


def test_what_is_wrong_is_cut_to_what_a_status_has_room_for() -> None:
    plan = look(job(invalid="x" * 5000))

    assert plan.status.ledger.outcome is not None
    assert plan.status.ledger.outcome.message == "x" * 4095 + "…"


def test_a_job_that_runs_is_left_as_it_is_until_its_edit_is_mended() -> None:
    ledger = lived(RoleLedger("worker", reached=3))
    given = job(role("other"), invalid="bad", ledger=ledger, lifecycle=SUSPEND, generation=9)

    plan = look(given, pod(0), pod(1, "Failed", code=1))

    assert Plan(Status(ledger, plan.status.roles, invalid="bad")) == plan


@pytest.mark.parametrize(
    "ledger",
    [
        pytest.param(Ledger(), id="new"),
        pytest.param(lived(), id="running"),
        pytest.param(lived(phase=Phase.SUSPENDED), id="suspended"),
        pytest.param(lived(phase=Phase.SUCCEEDED, outcome=SUCCESS), id="succeeded"),
    ],
)
def test_a_job_whose_state_cannot_be_read_is_left_alone(ledger: Ledger) -> None:
    life = Lifecycle(suspended=True, ttl=0, clean=CleanUp(CleanPods.ALL, CleanPods.ALL, CleanPods.ALL))
    given = job(role(service=True), ledger=ledger, invalid="status: bad", unreadable=True, lifecycle=life)

    plan = look(
        given,
        pod(0, "Failed", code=1),
        pod(3),
        services=(service("job-worker-0"), service("s")),
        extras=(group(),),
        now=later(99),
    )

    assert plan.empty
    assert Plan(Status(ledger, plan.status.roles, invalid="status: bad")) == plan
    assert plan.status.ledger is ledger


def test_only_what_cannot_be_read_keeps_a_new_job_from_failing_as_invalid() -> None:
    phases = [look(job(invalid="bad", unreadable=flag)).status.ledger.phase for flag in (True, False)]

    assert phases == [Phase.NEW, Phase.FAILED]


# -- deleted -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(job(deleting=True), id="new"),
        pytest.param(job(deleting=True, ledger=lived(RoleLedger("gone"))), id="running"),
        pytest.param(job(deleting=True, ledger=lived(), lifecycle=SUSPEND), id="to be suspended"),
        pytest.param(job(deleting=True, invalid="bad"), id="invalid"),
        pytest.param(replace(over(clean=CleanUp(succeeded=CleanPods.ALL), ttl=0), deleting=True), id="finished"),
    ],
)
def test_a_job_that_is_being_deleted_does_nothing_more(given: Job) -> None:
    plan = look(given, pod(0, "Failed", code=1), pod(7, owners=()), services=(service("s"),), now=later(9), site=Site())

    assert Plan(Status(given.ledger, plan.status.roles, invalid=given.invalid)) == plan


@pytest.mark.parametrize("given", [{"unreadable": True}, {"ledger": lived()}], ids=["unreadable", "an edit"])
def test_a_job_that_cannot_be_read_adopts_and_releases_nothing(given: dict[str, Any]) -> None:
    plan = look(job(invalid="bad", **given), pod(owners=()), pod(1, labels={"trainwright.dev/kind": "example"}))

    assert plan.empty
