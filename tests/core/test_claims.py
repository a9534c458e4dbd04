# SPDX-License-Identifier: Apache-2.0
"""Whose a pod is: by UID, never by name."""

from typing import Any

import pytest
from msgspec.structs import replace
from passes import look

from trainwright.core.claims import claim, mine
from trainwright.model.action import Patch
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE, Owner
from trainwright.testing.factories import NOW, OWNER, UID, job, pod

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
        pytest.param(None, (FRIEND, OWNER), False, patched(RELEASED, FRIENDS), id="ours, all labels taken away"),
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

    assert ours is mine(job(), one)
    if not ours:
        assert expected == claim(job(), one)


def test_a_pod_that_names_this_job_as_a_mere_owner_is_not_ours() -> None:
    assert not mine(job(), pod(owners=(replace(OWNER, controller=None),)))


def test_adopting_a_pod_that_names_this_job_as_a_mere_owner_leaves_one_reference() -> None:
    assert patched(ADOPTED, OURS) == claim(job(), pod(owners=(replace(OWNER, controller=None),)))


def test_a_pod_on_its_way_out_is_neither_adopted_nor_released() -> None:
    assert claim(job(), pod(owners=(), deleting=NOW)) is None
    assert claim(job(), pod(labels={}, deleting=NOW)) is None


def test_a_job_on_its_way_out_adopts_and_releases_nothing() -> None:
    assert claim(job(deleting=True), pod(owners=())) is None
    assert claim(job(deleting=True), pod(labels={})) is None


@pytest.mark.parametrize(
    ("labels", "owners", "why"),
    [
        pytest.param(LABELS, (), ADOPTED, id="adopts"),
        pytest.param({}, (OWNER,), RELEASED, id="releases"),
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
