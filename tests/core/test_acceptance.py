# SPDX-License-Identifier: Apache-2.0
"""Which acceptances may be stored after the children are created, and what pods prove if no acceptance is stored."""

from typing import Any

import pytest
from msgspec.structs import replace
from passes import ON_EXIT, Grouped, bare, look, names

from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import load
from trainwright.kinds.registry import KINDS
from trainwright.model.child import Observed, Pod, Refusal
from trainwright.model.job import Body, Deadline, Elastic, Job, Lifecycle, RequestedEnd, RestartScope
from trainwright.model.ledger import Ledger, Phase, Reason, RoleLedger, Times
from trainwright.model.meta import ADOPT, Owner
from trainwright.model.plan import Plan, Write
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, job, later, pod, role, service

# -- jobs of the internal model ----------------------------------------------------------------------------------------

SUSPENDED = Lifecycle(suspended=True)
SAME_HOST = Site(names_resolve=False)


@pytest.mark.parametrize(
    ("given", "site", "expected"),
    [
        pytest.param(job(), Site(), Write.ACCEPTED, id="plain"),
        pytest.param(job(role(replicas=3, service=True), role("ps", 2)), Site(), Write.ACCEPTED, id="two roles"),
        pytest.param(job(dialect=Grouped()), Site(), Write.ACCEPTED, id="a pod group"),
        pytest.param(job(lifecycle=Lifecycle(deadline=Deadline(9))), Site(), Write.ACCEPTED, id="a deadline"),
        pytest.param(job(role(elastic=Elastic(1, 4))), Site(), Write.ACCEPTED, id="bounds of a size"),
        pytest.param(job(role(elastic=Elastic(1, 4, auto=True))), Site(), Write.ACCEPTED, id="sized automatically"),
        pytest.param(job(role(ports=2)), Site(), Write.ACCEPTED, id="ports of its own network"),
        pytest.param(job(role(ports=2)), SAME_HOST, Write.NOW, id="ports of the machine"),
        pytest.param(job(role(ports=2, uses_host_ports=True)), Site(), Write.NOW, id="host ports"),
        pytest.param(job(role(gate="job")), Site(), Write.NOW, id="a gate"),
        pytest.param(job(role(), role("ps", gate="job")), Site(), Write.NOW, id="a gate of one role"),
        pytest.param(job(role(resize=RestartScope.ROLE)), Site(), Write.NOW, id="a size in the environment"),
        pytest.param(job(role(size_key="/np")), Site(), Write.NOW, id="an announced size"),
        pytest.param(job(handed_over=True), Site(), Write.NOW, id="handed over"),
        pytest.param(job(invalid="bad"), Site(), Write.NOW, id="invalid"),
        pytest.param(job(lifecycle=SUSPENDED), Site(), Write.NOW, id="suspended"),
        pytest.param(job(lifecycle=Lifecycle(ending=RequestedEnd("Preempted"))), Site(), Write.NOW, id="ended"),
        pytest.param(job(ledger=Ledger(generation=1)), Site(), Write.NOW, id="a ledger that is not empty"),
    ],
)
def test_only_a_plain_acceptance_may_be_stored_later(given: Job, site: Site, expected: Write) -> None:
    assert look(given, site=site).write is expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((pod(0, "Pending"),), Write.ACCEPTED, id="one has been created"),
        pytest.param((pod(0, "Pending"), pod(1, "Pending")), Write.ACCEPTED, id="all have been created"),
        pytest.param((pod(0), pod(1, "Pending")), Write.ACCEPTED, id="one runs"),
        pytest.param((pod(0, "Succeeded"), pod(1, "Pending")), Write.ACCEPTED, id="one has succeeded"),
        pytest.param((pod(0), pod(1)), Write.NOW, id="all run"),
        pytest.param((pod(0, "Failed", code=1), pod(1)), Write.NOW, id="one has failed"),
        pytest.param((pod(0, "Succeeded"), pod(1, "Succeeded")), Write.NOW, id="all have succeeded"),
        pytest.param((pod(0, "Pending", attempt=1),), Write.NOW, id="one of a later attempt: a status was lost"),
        pytest.param((pod(0, "Pending"), pod(5, "Pending")), Write.NOW, id="one is surplus"),
    ],
)
def test_pods_of_a_job_without_a_ledger(pods: tuple[Pod, ...], expected: Write) -> None:
    given = job(role(replicas=2, restart=ON_EXIT))

    assert look(given, *pods).write is expected


def test_a_refusal_does_not_make_the_ledger_urgent() -> None:
    """A refusal is not in the ledger. That it is reported at once is up to the publisher."""
    refused = (Refusal("job-worker-0", "Forbidden", "quota", later(1)),)

    plan = look(job(), refusals=refused)

    assert (plan.write, plan.status.refused) == (Write.ACCEPTED, {"job-worker-0": "Forbidden: quota"})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, Write.NOT, id="nothing"),
        pytest.param({"generation": 7}, Write.LATER, id="an edit"),
        pytest.param({"roles": (role(replicas=3),)}, Write.NOT, id="it grows"),
        pytest.param({"lifecycle": SUSPENDED}, Write.NOW, id="suspended"),
    ],
)
def test_the_passes_after_an_acceptance_that_is_not_stored(change: dict[str, Any], expected: Write) -> None:
    """The engine keeps the ledger of the first pass in memory and gives it to the next pass."""
    given = job(role(replicas=2))
    accepted = look(given).status.ledger

    assert look(replace(given, ledger=accepted, **change), pod(0, "Pending"), now=later(1)).write is expected


# -- jobs of each kind -------------------------------------------------------------------------------------------------


def template(container: str, **spec: Any) -> Body:
    return {"spec": {"containers": [{"name": container, "image": "x"}], **spec}}


def genericjob(**spec: Any) -> Body:
    return {"replicaSpecs": [{"type": "worker", "replicas": 2, "template": template("main")}], **spec}


def tfjob(**policy: Any) -> Body:
    roles = {name: {"replicas": 2, "template": template("tensorflow")} for name in ("Worker", "PS")}
    return {"tfReplicaSpecs": roles, "runPolicy": policy}


def paddlejob(**spec: Any) -> Body:
    return {"worker": {"replicas": 2, "template": template("paddle")}, **spec}


def aitrainingjob(**more: Any) -> Body:
    return {"replicaSpecs": {"trainer": {"replicas": 2, "template": template("aitj-main"), **more}}}


def loaded(name: str, spec: Body, status: Body | None = None, **annotations: str) -> Job:
    kind = next(one for one in KINDS if one.name == name)
    metadata = {"name": "train", "namespace": "default", "uid": "u", "annotations": annotations}
    document = {"apiVersion": kind.api_version, "kind": name, "metadata": metadata, "spec": spec}
    return load(kind, document | ({"status": status} if status else {})).job


def accepted(given: Job, site: Site | None = None) -> Plan:
    return reconcile(given, Observed(), site or Site(), NOW)


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        pytest.param("GenericJob", genericjob(), Write.ACCEPTED, id="GenericJob"),
        pytest.param(
            "GenericJob", genericjob(service={"ports": [{"name": "a", "port": 1}]}), Write.ACCEPTED, id="with services"
        ),
        pytest.param(
            "GenericJob", genericjob(runMode={"pause": {"enabled": True}}), Write.NOW, id="GenericJob, paused"
        ),
        pytest.param("GenericJob", {"replicaSpecs": []}, Write.NOW, id="GenericJob, invalid"),
        pytest.param("TFJob", tfjob(), Write.ACCEPTED, id="TFJob"),
        pytest.param("TFJob", tfjob(activeDeadlineSeconds=9), Write.ACCEPTED, id="TFJob with a deadline"),
        pytest.param("TFJob", tfjob(suspend=True), Write.NOW, id="TFJob, suspended"),
        pytest.param("TFJob", {"tfReplicaSpecs": {}}, Write.NOW, id="TFJob, invalid"),
        pytest.param("PaddleJob", paddlejob(), Write.NOW, id="PaddleJob: a gate"),
        pytest.param("PaddleJob", paddlejob(intranet="Service"), Write.NOW, id="PaddleJob: a gate, with services"),
        pytest.param("PaddleJob", paddlejob(intranet="Host"), Write.NOW, id="PaddleJob: ports"),
        pytest.param("PaddleJob", paddlejob(elastic=1), Write.NOW, id="PaddleJob: an announced size"),
        pytest.param("AITrainingJob", aitrainingjob(), Write.NOW, id="AITrainingJob: a size"),
        pytest.param(
            "AITrainingJob", aitrainingjob(edlPolicy="Never"), Write.NOW, id="AITrainingJob without edl: a size"
        ),
    ],
)
def test_the_acceptance_of_each_kind(kind: str, spec: Body, expected: Write) -> None:
    plan = accepted(loaded(kind, spec))

    assert plan.write is expected


def test_a_job_that_another_controller_has_handed_over_is_stored_first() -> None:
    """Its children may have names that our children need, so nothing proves that it was accepted."""
    status = {"conditions": [{"type": "Created", "status": "True", "reason": "x", "message": "x"}]}
    given = loaded("TFJob", tfjob(), status, **{ADOPT: "true"})

    assert given.handed_over
    assert accepted(given).write is Write.NOW


# -- the time of an acceptance that is not stored ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((), later(60), id="no pod"),
        pytest.param((pod(0, "Pending", born=later(5)),), later(5), id="one pod"),
        pytest.param((pod(0, "Pending", born=later(7)), pod(1, "Pending", born=later(5))), later(5), id="the earliest"),
        pytest.param(
            (pod(0, "Pending", born=later(7)), pod(9, "Pending", born=later(5))), later(5), id="a surplus pod"
        ),
        pytest.param((pod(0, "Pending", born=later(99)),), later(60), id="a clock that was set back"),
        pytest.param((pod(0, "Pending", born=None), pod(1, "Pending", born=later(5))), later(5), id="one has no time"),
        pytest.param((pod(0, "Pending", born=None),), later(60), id="no pod has a time"),
        pytest.param((pod(0, "Pending", born=later(5), owners=()),), later(60), id="a pod that is not ours yet"),
    ],
)
def test_a_job_was_accepted_when_its_first_pod_was_created(pods: tuple[Pod, ...], expected: object) -> None:
    plan = look(job(role(replicas=2)), *pods, now=later(60))

    times = plan.status.ledger.times
    assert (times.accepted, times.started, times.running) == (expected, expected, None)


def test_the_deadline_counts_from_the_first_pod() -> None:
    given = job(lifecycle=Lifecycle(deadline=Deadline(30)))
    waits = pod(0, "Pending", born=later(10))

    assert look(given, waits, now=later(39)).wake == later(40)
    outcome = look(given, waits, now=later(40)).status.ledger.outcome
    assert outcome is not None
    assert outcome.reason is Reason.DEADLINE


def test_a_stored_acceptance_keeps_its_time() -> None:
    ledger = Ledger(Phase.PENDING, roles=(RoleLedger("worker"),), times=Times(later(3), later(3)))

    plan = look(job(ledger=ledger), pod(0, "Pending", born=NOW), now=later(60))

    assert plan.status.ledger.times == Times(later(3), later(3))


# -- an edit that cannot be applied, and no ledger ---------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_a_job_with_pods_does_not_fail_because_of_an_edit(phase: str) -> None:
    plan = look(
        job(invalid="bad"), pod(0, phase, born=later(5), **({"code": 1} if phase == "Failed" else {})), now=later(9)
    )

    assert bare(plan.status.ledger) == Ledger(
        Phase.PENDING, roles=(RoleLedger("worker"),), times=Times(later(5), later(5))
    )
    assert (plan.status.invalid, plan.write) == ("bad", Write.NOW)
    assert names(plan) == {"creates": [], "deletes": []}
    assert plan.patches == ()


def test_a_job_whose_roles_cannot_be_read_keeps_its_pods() -> None:
    """A manifest that cannot be read has no roles, so that all pods of the job are surplus."""
    given = replace(job(invalid="bad"), roles=())

    plan = look(given, pod(0), pod(1), now=later(9))

    assert (plan.status.ledger.phase, plan.status.ledger.outcome) == (Phase.PENDING, None)
    assert names(plan) == {"creates": [], "deletes": []}


def test_after_the_edit_is_fixed_the_job_goes_on_as_if_nothing_had_happened() -> None:
    given = job(role(replicas=2, restart=ON_EXIT))
    pods = (pod(0, born=later(5)), pod(1, "Pending", born=later(5)))
    during = look(replace(given, roles=(), invalid="bad"), *pods, now=later(9)).status.ledger

    plan = look(replace(given, ledger=during), *pods, now=later(20))

    assert names(plan) == {"creates": [], "deletes": []}
    assert bare(plan.status.ledger) == Ledger(
        Phase.PENDING, roles=(RoleLedger("worker", reached=2),), times=Times(later(5), later(5))
    )


def test_a_job_that_has_no_children_was_not_accepted() -> None:
    plan = look(job(role(service=True), invalid="bad"))

    assert plan.status.ledger.outcome is not None
    assert plan.status.ledger.outcome.reason is Reason.INVALID


def test_a_service_proves_the_acceptance_too() -> None:
    """The operator creates services before pods, and can be killed in between."""
    plan = look(job(role(service=True), invalid="bad"), services=(service("job-worker-0"),))

    assert (plan.status.ledger.phase, plan.status.ledger.outcome) == (Phase.PENDING, None)


def test_a_pod_of_another_job_proves_nothing() -> None:
    other = Owner("apps/v1", "ReplicaSet", "other", "other-uid", controller=True)

    plan = look(job(invalid="bad"), pod(0, owners=(other,)), now=later(9))

    assert plan.status.ledger.phase is Phase.FAILED
