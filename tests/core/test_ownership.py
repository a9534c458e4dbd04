# SPDX-License-Identifier: Apache-2.0
"""Whose a child is: by UID, never by name alone."""

from typing import Any

import pytest
from msgspec.structs import replace
from passes import Grouped, group, lived, look, names

from trainwright.core.observe import is_ours, owned_by, ownership_patch
from trainwright.model.child import Extra, Observed, Service
from trainwright.model.job import CleanPods, CleanUp, Job, Lifecycle
from trainwright.model.ledger import Outcome, Phase, Reason, RoleLedger
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE, Meta, Owner
from trainwright.model.plan import Patch
from trainwright.model.rule import Result
from trainwright.testing.factories import NOW, OWNER, UID, job, pod, role, service

OTHER = Owner("apps/v1", "ReplicaSet", "other", "other", controller=True)
FRIEND = Owner("v1", "ConfigMap", "friend", "friend")
OURS = {
    "apiVersion": "example.com/v1",
    "kind": "Example",
    "name": "job",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": True,
}
FRIENDS = {"apiVersion": "v1", "kind": "ConfigMap", "name": "friend", "uid": "friend"}
LABELS = {KIND: "example", JOB_UID: UID, ROLE: "worker", INDEX: "0", ATTEMPT: "0"}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in LABELS.items() if name not in names}


def patched(why: str, *owners: dict[str, Any]) -> Patch:
    return Patch("Pod", "job-worker-0", "job-worker-0-0", {"metadata": {"ownerReferences": list(owners)}}, why)


ADOPTED = "adopted: it carries this job's UID and nobody controls it"
RELEASED = "released: its labels no longer name a replica of this job"


@pytest.mark.parametrize(
    ("labels", "owners", "ours", "expected"),
    [
        pytest.param(LABELS, (OWNER,), True, None, id="ours"),
        pytest.param(LABELS, (FRIEND, OWNER), True, None, id="ours, with another owner"),
        pytest.param(without(ATTEMPT), (OWNER,), True, None, id="ours, without an attempt"),
        pytest.param(LABELS, (), False, patched(ADOPTED, OURS), id="an orphan"),
        pytest.param(LABELS, None, False, patched(ADOPTED, OURS), id="an orphan, null"),
        pytest.param(LABELS, (FRIEND,), False, patched(ADOPTED, FRIENDS, OURS), id="an orphan with a friend"),
        pytest.param(LABELS, (OTHER,), False, None, id="controlled by somebody else"),
        pytest.param(LABELS, (OTHER, FRIEND), False, None, id="controlled by somebody else, two owners"),
        pytest.param(without(JOB_UID), (), False, None, id="an orphan without the UID"),
        pytest.param(LABELS | {JOB_UID: "old"}, (), False, None, id="an orphan of an earlier job of this name"),
        pytest.param(without(ROLE), (), False, None, id="an orphan without a role"),
        pytest.param(without(INDEX), (), False, None, id="an orphan without an index"),
        pytest.param(without(ATTEMPT), (), False, None, id="an orphan without an attempt"),
        pytest.param(None, (), False, None, id="an orphan without labels"),
        pytest.param(without(ROLE), (OWNER,), False, patched(RELEASED), id="ours, its role taken away"),
        pytest.param(without(INDEX), (OWNER,), False, patched(RELEASED), id="ours, its index taken away"),
        pytest.param(without(JOB_UID), (OWNER,), False, patched(RELEASED), id="ours, its UID taken away"),
        pytest.param(LABELS | {JOB_UID: "x"}, (OWNER,), False, patched(RELEASED), id="ours, given to another job"),
        pytest.param(
            {KIND: "example"}, (FRIEND, OWNER), False, patched(RELEASED, FRIENDS), id="ours, all labels but one taken"
        ),
        pytest.param(without(ROLE, KIND), (OWNER,), False, None, id="controlled by us, never labelled as a kind's"),
        pytest.param({}, (OWNER,), False, None, id="controlled by us, never labelled"),
        pytest.param(None, (FRIEND, OWNER), False, None, id="controlled by us, never labelled, null"),
        pytest.param(without(ROLE), (OTHER,), False, None, id="labelled like ours, controlled by somebody else"),
        pytest.param({}, (OTHER,), False, None, id="somebody else's"),
        pytest.param(
            LABELS,
            (Owner(OWNER.api_version, OWNER.kind, "job", "earlier", controller=True),),
            False,
            None,
            id="namesake's",
        ),
    ],
)
def test_a_pod_is_ours_or_to_adopt_or_to_release_or_foreign(
    labels: dict[str, str] | None, owners: tuple[Owner, ...] | None, ours: bool, expected: Patch | None
) -> None:
    one = pod(labels=labels, owners=owners)

    assert ours is is_ours(job(), one)
    if not ours:
        assert expected == ownership_patch(job(), one)


def test_a_pod_that_names_this_job_as_a_mere_owner_is_not_ours() -> None:
    assert not is_ours(job(), pod(owners=(replace(OWNER, controller=None),)))


def test_adopting_a_pod_that_names_this_job_as_a_mere_owner_leaves_one_reference() -> None:
    assert patched(ADOPTED, OURS) == ownership_patch(job(), pod(owners=(replace(OWNER, controller=None),)))


def test_a_pod_on_its_way_out_is_neither_adopted_nor_released() -> None:
    assert ownership_patch(job(), pod(owners=(), deleting=NOW)) is None
    assert ownership_patch(job(), pod(labels=without(ROLE), deleting=NOW)) is None


def test_a_job_on_its_way_out_adopts_and_releases_nothing() -> None:
    assert ownership_patch(job(deleting=True), pod(owners=())) is None
    assert ownership_patch(job(deleting=True), pod(labels=without(ROLE))) is None


@pytest.mark.parametrize(
    ("labels", "owners", "why"),
    [
        pytest.param(LABELS, (), ADOPTED, id="adopts"),
        pytest.param({KIND: "example"}, (OWNER,), RELEASED, id="releases"),
        pytest.param({}, (OWNER,), None, id="leaves what was never labelled alone"),
        pytest.param(LABELS, (OTHER,), None, id="leaves foreign pods alone"),
    ],
)
def test_a_pass_claims_and_concludes_nothing_from_what_is_not_yet_ours(
    labels: dict[str, str], owners: tuple[Owner, ...], why: str | None
) -> None:
    plan = look(job(), pod(phase="Succeeded", labels=labels, owners=owners))

    assert [why] * (why is not None) == [patch.why for patch in plan.patches]
    assert plan.status.roles[0].replicas[0].pod is None
    assert plan.deletes == ()
    assert plan.creates == ()
    assert plan.status.ledger.outcome is None


@pytest.mark.parametrize(
    ("labels", "name", "adopted"),
    [
        pytest.param(LABELS, "job-worker-0", True, id="the replica's own"),
        pytest.param(LABELS, "job-worker-1", False, id="another replica's"),
        pytest.param(LABELS, "job-worker-00", False, id="almost"),
        pytest.param(LABELS, "hand-made", False, id="any"),
        pytest.param(LABELS | {INDEX: "12"}, "job-worker-12", True, id="the index decides"),
        pytest.param(LABELS | {ROLE: "Chief"}, "job-chief-0", True, id="the role in lower case"),
        pytest.param(LABELS | {ROLE: "Chief"}, "job-worker-0", False, id="another role's"),
        pytest.param(LABELS | {ROLE: "gone"}, "job-gone-0", False, id="a role that the job does not have"),
        pytest.param(LABELS | {INDEX: "00"}, "job-worker-00", False, id="an index that is not spelled so"),
        pytest.param(LABELS | {INDEX: "x"}, "job-worker-x", False, id="an index that is none"),
        pytest.param(LABELS | {INDEX: "1" * 8}, "job-worker-" + "1" * 8, False, id="an index that nobody has"),
        pytest.param(LABELS | {INDEX: "1" * 7}, "job-worker-" + "1" * 7, True, id="the longest index"),
    ],
)
def test_only_a_pod_that_bears_its_replicas_name_is_adopted(labels: dict[str, str], name: str, adopted: bool) -> None:
    patch = ownership_patch(job(role(), role("Chief")), pod(labels=labels, name=name, owners=()))

    assert [ADOPTED] * adopted == ([] if patch is None else [patch.why])


# -- services and extras -----------------------------------------------------------------------------------------------

MERE = replace(OWNER, controller=None)
OWNERS = [
    pytest.param(None, False, id="nobody's, null"),
    pytest.param((), False, id="nobody's"),
    pytest.param((OTHER,), False, id="somebody else's"),
    pytest.param((MERE,), False, id="ours, but not as its controller"),
    pytest.param((OTHER, MERE), False, id="somebody else's, with us as an owner"),
    pytest.param((replace(OWNER, uid="earlier"),), False, id="namesake's"),
    pytest.param((OWNER,), True, id="ours"),
    pytest.param((FRIEND, OWNER), True, id="ours, with another owner first"),
]


def of(owners: tuple[Owner, ...] | None, name: str = "job-worker-0") -> Service:
    return Service(Meta(name, "default", f"uid-{name}", owner_references=owners))


def extra(owners: tuple[Owner, ...] | None, name: str = "job") -> Extra:
    return group("old", name=name, owner_references=owners)


@pytest.mark.parametrize(("owners", "ours"), OWNERS)
def test_services_and_extras_are_ours_where_we_control_them(owners: tuple[Owner, ...] | None, ours: bool) -> None:
    kept_service, kept_extra = service("kept"), group(name="kept")
    pods = (pod(), pod(1, owners=()))
    one = Observed(pods, (of(owners), kept_service), (extra(owners), kept_extra), nodes={})

    expected = one if ours else Observed(pods, (kept_service,), (kept_extra,), nodes={})

    assert expected == owned_by(job(), one)


def test_where_everything_is_ours_nothing_is_copied() -> None:
    one = Observed((), (service("a"),), (group(),))

    assert owned_by(job(), one) is one


@pytest.mark.parametrize("foreign", ["service", "extra"])
def test_one_that_is_foreign_among_what_is_ours_is_ignored_alone(foreign: str) -> None:
    services = (service("a"), *((of((OTHER,)),) if foreign == "service" else ()))
    extras = (group(), *((extra((OTHER,), "x"),) if foreign == "extra" else ()))

    assert Observed((), (service("a"),), (group(),)) == owned_by(job(), Observed((), services, extras))


OVER = Outcome(Result.SUCCEEDED, Reason.RULE, NOW)
BOOK = RoleLedger("worker", reached=1)


@pytest.mark.parametrize(
    ("given", "creates"),
    [
        pytest.param(job(role(service=True), ledger=lived()), ["PodGroup job", "Service job-worker-0"], id="live"),
        pytest.param(job(role(service=True), lifecycle=Lifecycle(suspended=True), ledger=lived()), [], id="suspended"),
        pytest.param(
            job(
                role(service=True),
                lifecycle=Lifecycle(clean=CleanUp(succeeded=CleanPods.ALL)),
                ledger=lived(BOOK, phase=Phase.SUCCEEDED, outcome=OVER),
            ),
            [],
            id="cleaned up",
        ),
    ],
)
@pytest.mark.parametrize("owners", [None, (OTHER,)], ids=["nobody's", "somebody else's"])
def test_a_service_or_extra_that_is_not_ours_is_never_touched_nor_taken_for_ours(
    given: Job, creates: list[str], owners: tuple[Owner, ...] | None
) -> None:
    services = (of(owners), of(owners, "surplus"))
    extras = (extra(owners), extra(owners, "surplus"))
    wanted = replace(given, dialect=Grouped(2))

    plan = look(wanted, pod(), services=services, extras=extras)
    mere = look(wanted, pod())

    # As if they were not there: what is wanted is asked for, and whoever answers says that the name is taken.
    assert mere == plan
    assert creates == names(plan)["creates"]
    assert plan.patches == ()
    assert {one.kind for one in plan.deletes} <= {"Pod"}
