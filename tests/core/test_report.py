# SPDX-License-Identifier: Apache-2.0
"""Closing a pass: stored now, later or not at all; what people are told."""

from typing import Any

import pytest
from msgspec.structs import replace
from passes import emitted, lived, look, view

from trainwright.core.report import StepActions, make_plan
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Pod, Refusal
from trainwright.model.event import Emit, EventReason
from trainwright.model.job import Gang, Job, Lifecycle
from trainwright.model.ledger import Failure, Hold, Ledger, Outcome, Phase, Reason, RoleLedger, Times
from trainwright.model.plan import Create, Delete, Patch, Plan, Status, Write
from trainwright.model.rule import Result
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, OWNER, job, later, pod, role

BOOK = RoleLedger("worker", reached=1)
STORED = lived(BOOK)
FAILURE = Failure("worker", 0, "job-worker-0", 0, NOW, Cause(CauseKind.EVICTED))


def closed(after: Ledger, before: Ledger = STORED, actions: StepActions | None = None, **more: Any) -> Plan:
    site = more.pop("site", None)
    return make_plan(view(job(ledger=before, **more), pod(), site=site).with_ledger(after), actions or StepActions())


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(STORED, Write.NOT, id="the same"),
        pytest.param(lived(BOOK), Write.NOT, id="equal"),
        pytest.param(lived(replace(BOOK, succeeded="0")), Write.LATER, id="success, which the pod shows as well"),
        pytest.param(lived(replace(BOOK, reached=2)), Write.LATER, id="what was reached"),
        pytest.param(lived(replace(BOOK, holds=(Hold(NOW, "0"),))), Write.LATER, id="a hold alone"),
        pytest.param(lived(BOOK, generation=2), Write.LATER, id="the generation"),
        pytest.param(lived(replace(BOOK, failed="0")), Write.NOW, id="failure"),
        pytest.param(lived(replace(BOOK, retries="0:1")), Write.NOW, id="an attempt"),
        pytest.param(lived(replace(BOOK, epoch=1)), Write.NOW, id="an epoch"),
        pytest.param(lived(replace(BOOK, restarts={"Exit": 1})), Write.NOW, id="a count"),
        pytest.param(lived(BOOK, RoleLedger("chief")), Write.NOW, id="a role"),
        pytest.param(lived(BOOK, phase=Phase.RESTARTING), Write.NOW, id="the phase"),
        pytest.param(lived(BOOK, times=Times(NOW, NOW, NOW, NOW)), Write.NOW, id="a time"),
        pytest.param(lived(BOOK, resumes=1), Write.NOW, id="a resumption"),
        pytest.param(lived(BOOK, failures=(FAILURE,)), Write.NOW, id="a failure's words"),
        pytest.param(lived(BOOK, ports={"a": 1}), Write.NOW, id="a port"),
        pytest.param(
            lived(replace(BOOK, succeeded="0", failed="1"), generation=2), Write.NOW, id="something urgent among others"
        ),
    ],
)
def test_durable_facts_are_stored_at_once_and_the_rest_rides_along(after: Ledger, expected: Write) -> None:
    assert expected is closed(after).write


def test_a_success_that_was_stored_may_be_forgotten_later() -> None:
    assert closed(STORED, lived(replace(BOOK, succeeded="0", reached=5))).write is Write.LATER


def test_a_pass_hands_over_everything_it_was_given() -> None:
    actions = StepActions(
        (Delete("Pod", "a", "1", "x"),),
        (Create({"metadata": {"name": "b"}}),),
        (Patch("Pod", "c", "3", {}, "x"),),
        NOW,
        cleaning=True,
        remove_job=True,
    )
    seen = view(job(ledger=STORED, invalid="bad"), pod(), refusals=(Refusal("d", "Forbidden", "quota"),))

    assert Plan(
        Status(STORED, seen.roles, {"d": "Forbidden: quota"}, cleaning=True, invalid="bad"),
        Write.NOT,
        actions.patches,
        actions.deletes,
        actions.creates,
        (),
        NOW,
        remove_job=True,
    ) == make_plan(seen, actions)


def test_claims_go_before_other_patches() -> None:
    orphan = pod(1, owners=())
    seen = view(job(ledger=STORED), pod(), orphan)
    other = Patch("PodGroup", "c", "3", {}, "x")

    assert (*seen.ownership_patches, other) == make_plan(seen, StepActions(patches=(other,))).patches
    assert len(seen.ownership_patches) == 1


SUCCESS = Outcome(Result.SUCCEEDED, Reason.RULE, NOW, message="well done")
FAILED = Outcome(Result.FAILED, Reason.RULE, NOW, message="too bad")
UNRUN = lived(BOOK, times=Times(NOW, NOW), phase=Phase.PENDING)
RESTARTED = lived(replace(BOOK, restarts={"Exit": 1, "Evicted": 1}), failures=(FAILURE,))
ONCE = lived(replace(BOOK, restarts={"Exit": 1}), failures=(replace(FAILURE, index=1, pod="job-worker-1"),))
TWICE = replace(RESTARTED, failures=(*ONCE.failures, FAILURE))
AGAIN = Emit(EventReason.RESTARTING, "restarting after job-worker-0: evicted by its node", warning=True)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(UNRUN, STORED, (Emit(EventReason.RUNNING, "job is running."),), id="it runs"),
        pytest.param(STORED, lived(phase=Phase.RESTARTING), (), id="a phase alone says nothing"),
        pytest.param(lived(phase=Phase.RESTARTING), STORED, (), id="it runs again, which is no news"),
        pytest.param(STORED, RESTARTED, (AGAIN,), id="restarts"),
        pytest.param(ONCE, TWICE, (AGAIN,), id="one more restart"),
        pytest.param(RESTARTED, replace(RESTARTED, resumes=0, ports={"a": 1}), (), id="no more restarts than before"),
        pytest.param(
            ONCE,
            replace(ONCE, roles=(replace(BOOK, restarts={"Exit": 1, "Completed": 1}),)),
            (Emit(EventReason.RESTARTING, "restarting what had completed, as its policy says"),),
            id="a restart without a failure",
        ),
        pytest.param(
            STORED,
            lived(phase=Phase.SUSPENDED),
            (Emit(EventReason.SUSPENDED, "job is suspended."),),
            id="it is suspended",
        ),
        pytest.param(
            lived(phase=Phase.SUSPENDED), lived(phase=Phase.SUSPENDED, ports={"a": 1}), (), id="it is still suspended"
        ),
        pytest.param(
            lived(phase=Phase.SUSPENDED),
            lived(phase=Phase.RESUMING, resumes=1),
            (Emit(EventReason.RESUMED, "job is resumed."),),
            id="it is resumed",
        ),
        pytest.param(STORED, lived(outcome=SUCCESS), (Emit(EventReason.SUCCEEDED, "well done"),), id="it succeeded"),
        pytest.param(
            STORED, lived(outcome=FAILED), (Emit(EventReason.FAILED, "too bad", warning=True),), id="it failed"
        ),
        pytest.param(lived(outcome=FAILED), lived(outcome=FAILED, ports={"a": 1}), (), id="it had failed before"),
        pytest.param(
            lived(BOOK, phase=Phase.RESUMING, times=Times(NOW, NOW)),
            lived(BOOK, RoleLedger("chief", restarts={"Exit": 1}), failures=(FAILURE,), outcome=FAILED),
            (Emit(EventReason.RUNNING, "job is running."), AGAIN, Emit(EventReason.FAILED, "too bad", warning=True)),
            id="several, in the order they happened",
        ),
    ],
)
def test_what_people_are_told(before: Ledger, after: Ledger, expected: tuple[Emit, ...]) -> None:
    assert expected == emitted(closed(after, before))


@pytest.mark.parametrize(
    ("before", "gangs", "told"),
    [
        pytest.param(Ledger(), frozenset[str](), True, id="a new job whose gang API is missing"),
        pytest.param(Ledger(), frozenset({"gang/v1"}), False, id="the API is there"),
        pytest.param(UNRUN, frozenset[str](), False, id="told already"),
    ],
)
def test_a_missing_gang_api_is_told_once(before: Ledger, gangs: frozenset[str], told: bool) -> None:
    missing = Emit(EventReason.GANG_MISSING, "gang/v1 is not installed: pods start one by one", warning=True)

    plan = closed(replace(UNRUN, ports={"a": 1}), before, gang=Gang("gang/v1"), site=Site(gangs=gangs))

    assert (missing,) * told == emitted(plan)


@pytest.mark.parametrize(("before", "told"), [(Ledger(), True), (UNRUN, False)], ids=["a new job", "told already"])
def test_remarks_are_told_once(before: Ledger, told: bool) -> None:
    plan = closed(replace(UNRUN, ports={"a": 1}), before, remarks=(("Odd", "it is odd"), ("Long", "it is long")))
    remarks = [Emit(EventReason.REMARK, f"it is {word.lower()}", warning=True, reason=word) for word in ("Odd", "Long")]

    assert tuple(remarks) * told == emitted(plan)


OTHER = {"spec": {"containers": [], "schedulerName": "mine"}}


@pytest.mark.parametrize(
    ("scheduler", "before", "told"),
    [
        pytest.param("theirs", Ledger(), True, id="not the gang's"),
        pytest.param("theirs", UNRUN, False, id="told already"),
        pytest.param("mine", Ledger(), False, id="the gang's"),
        pytest.param("", Ledger(), False, id="a kind that sees to it itself"),
    ],
)
def test_another_scheduler_than_the_gangs_is_told_once(scheduler: str, before: Ledger, told: bool) -> None:
    text = "pods that theirs does not place are not held back for their gang: ps asks for mine"
    roles = (role(), replace(role("ps"), template=OTHER), replace(role("odd"), template={}))
    given = job(*roles, ledger=before, gang=Gang("gang/v1", scheduler=scheduler))
    seen = view(given, pod(), site=Site(gangs=frozenset({"gang/v1"})))

    plan = make_plan(seen.with_ledger(replace(UNRUN, ports={"a": 1})), StepActions())

    assert (Emit(EventReason.OTHER_SCHEDULER, text, warning=True),) * told == emitted(plan)


def test_a_job_without_a_gang_misses_no_api() -> None:
    assert closed(UNRUN, Ledger()).events == ()


def test_refusals_are_shown_by_name() -> None:
    plan = look(
        job(ledger=lived()), pod(), refusals=(Refusal("a", "Forbidden", "quota"), Refusal("b", "Invalid", "name"))
    )

    assert plan.status.refused == {"a": "Forbidden: quota", "b": "Invalid: name"}
    assert plan.write is Write.NOT


TAKEN = "AlreadyExists: a pod that is not this job's has its name"
FOREIGN = (replace(OWNER, uid="other"),)


@pytest.mark.parametrize(
    ("pods", "refusals", "expected"),
    [
        pytest.param((pod(0),), (), {}, id="nobody's name is taken"),
        pytest.param((pod(0), pod(1, owners=FOREIGN)), (), {"job-worker-1": TAKEN}, id="one is"),
        pytest.param(
            (pod(1, owners=FOREIGN), pod(0, owners=FOREIGN)),
            (),
            {"job-worker-0": TAKEN, "job-worker-1": TAKEN},
            id="two are",
        ),
        pytest.param((pod(0), pod(2, owners=FOREIGN)), (), {}, id="a name that no replica bears"),
        pytest.param(
            (pod(0), pod(1, name="x"), pod(1, owners=FOREIGN, uid="y")), (), {}, id="a replica that has its pod"
        ),
        pytest.param(
            (pod(0), pod(1, owners=FOREIGN)),
            (Refusal("job", "Forbidden", "quota"), Refusal("job-worker-1", "AlreadyExists", "somebody's")),
            {"job": "Forbidden: quota", "job-worker-1": TAKEN},
            id="beside what the engine was told",
        ),
    ],
)
def test_names_that_foreign_pods_bear_are_shown(
    pods: tuple[Pod, ...], refusals: tuple[Refusal, ...], expected: dict[str, str]
) -> None:
    plan = look(job(role(replicas=2), ledger=lived(RoleLedger("worker", reached=2))), *pods, refusals=refusals)

    assert expected == plan.status.refused
    assert list(expected) == list(plan.status.refused)


def test_a_replica_that_is_done_has_no_need_of_its_name() -> None:
    ledger = lived(RoleLedger("worker", succeeded="1", reached=2))

    assert look(job(role(replicas=2), ledger=ledger), pod(0), pod(1, owners=FOREIGN)).status.refused == {}


def test_a_wake_alone_is_an_empty_plan() -> None:
    assert closed(STORED, actions=StepActions(wake=later(1))).empty


def test_nothing_is_told_without_a_status_to_speak_of() -> None:
    seen = view(job(ledger=Ledger(), gang=Gang("gang/v1")), pod())

    plan = make_plan(seen.with_ledger(seen.stored), StepActions())

    assert (plan.write, plan.events) == (Write.NOT, ())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param(job(ledger=lived(phase=Phase.PENDING)), True, id="a live job"),
        pytest.param(job(ledger=lived(), deleting=True), False, id="one that is being deleted"),
        pytest.param(
            job(ledger=lived(phase=Phase.SUSPENDED), lifecycle=Lifecycle(suspended=True)), False, id="suspended"
        ),
        pytest.param(
            job(ledger=lived(phase=Phase.FAILED, outcome=Outcome(Result.FAILED, Reason.RULE, NOW))), False, id="ended"
        ),
    ],
)
def test_a_name_that_is_taken_is_told_where_it_is_wanted(given: Job, told: bool) -> None:
    plan = look(given, pod(owners=(), labels={}))

    text = "AlreadyExists: a pod that is not this job's has its name"
    assert plan.status.refused == ({"job-worker-0": text} if told else {})


def test_a_name_whose_pod_is_being_adopted_is_not_taken() -> None:
    plan = look(job(ledger=lived(phase=Phase.PENDING)), pod(owners=()))

    assert (plan.status.refused, [patch.name for patch in plan.patches]) == ({}, ["job-worker-0"])
