# SPDX-License-Identifier: Apache-2.0
"""Behaviour of the store beyond the contract of all engines: PUT, binding, admission, shared bodies, and its errors."""

import re
from typing import Any

import pytest
from store_objects import JOB, SPACE, Clock, body, key, names, pod, store

from trainwright.errors import ConflictError, InvalidError, NotFoundError
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, NODES, PODS, SECRETS, Selection, WatchEventType


def test_times_are_in_seconds_and_uids_are_uuids() -> None:
    items = store()
    made = [items.create(SECRETS, body(f"s-{number}"))["metadata"] for number in range(50)]
    assert made[0]["creationTimestamp"] == "2026-11-15T12:00:00Z"
    form = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}")
    assert all(form.fullmatch(metadata["uid"]) for metadata in made)
    assert len({metadata["uid"] for metadata in made}) == 50


def test_all_resources_share_one_counter() -> None:
    items = store()
    versions = [
        items.create(SECRETS, body("a")),
        items.create(CONFIG_MAPS, body("a", CONFIG_MAPS)),
        items.create(NODES, body("n", NODES)),
    ]
    assert [made["metadata"]["resourceVersion"] for made in versions] == ["2", "3", "4"]
    assert items.version == "4"


def test_api_version_and_kind_are_filled_in() -> None:
    made = store().create(JOB, body("a", JOB))
    assert (made["apiVersion"], made["kind"]) == (JOB.api_version, JOB.kind)


@pytest.mark.parametrize(
    ("resource", "given", "message"),
    [
        pytest.param(SECRETS, {**body("a"), "kind": "Pod"}, "kind: 'Pod'; expected 'Secret'", id="kind"),
        pytest.param(SECRETS, {**body("a"), "apiVersion": "v2"}, "apiVersion: 'v2'; expected 'v1'", id="apiVersion"),
        pytest.param(SECRETS, {"metadata": {"name": "a"}}, "metadata.namespace: None; expected the name", id="none"),
        pytest.param(SECRETS, {}, "metadata.name: None; expected lower-case", id="no metadata"),
        pytest.param(SECRETS, {"metadata": ["a"]}, "metadata.name: None", id="metadata of another shape"),
        pytest.param(SECRETS, body("a", namespace="A B"), "metadata.namespace: 'A B'", id="not a namespace"),
        pytest.param(NODES, body("a", namespace=SPACE), "metadata.namespace: .* expected none", id="one too many"),
        pytest.param(SECRETS, body("a", labels={"x": 1}), "metadata.labels.*: expected `str`, got `int`", id="label"),
        pytest.param(SECRETS, body("a", finalizers="x"), "metadata.finalizers: expected `array", id="finalizers"),
        pytest.param(SECRETS, body("a", ownerReferences=5), "ownerReferences: expected `array", id="owners"),
        pytest.param(SECRETS, body("a", ownerReferences=[{}]), r"ownerReferences\[0\]\.uid: missing", id="owner"),
        pytest.param(JOB, {**body("a", JOB), "spec": 1}, "spec: expected `object", id="spec"),
        pytest.param(CONFIG_MAPS, {**body("a"), "data": {"x": 1}}, "data.*: expected `str`, got `int`", id="data"),
        pytest.param(PODS, {**pod("a"), "spec": {"nodeName": 1}}, "spec.nodeName: expected `str`", id="a pod's field"),
    ],
)
def test_what_nobody_could_read_is_refused_with_its_path(resource: Any, given: dict[str, Any], message: str) -> None:
    items = store()
    with pytest.raises(InvalidError, match=message):
        items.create(resource, given)
    assert (items.version, names(items, resource)) == ("1", [])


def test_a_patch_that_would_make_it_unreadable_changes_nothing() -> None:
    items = store()
    made = items.create(PODS, pod("a"))
    with pytest.raises(InvalidError, match=r"status\.phase: expected `str`"):
        items.patch(PODS, key("a"), {"status": {"phase": 1}}, status=True)
    with pytest.raises(InvalidError, match="status: expected `object`"):
        items.patch(PODS, key("a"), {"status": "x"}, status=True)
    wrongs: tuple[Any, ...] = (7, "held", [{}])
    for wrong in wrongs:
        with pytest.raises(InvalidError, match="finalizers"):
            items.patch(PODS, key("a"), {"metadata": {"finalizers": wrong}})
    assert items.get(PODS, key("a")) is made
    assert items.version == made["metadata"]["resourceVersion"]


@pytest.mark.parametrize("part", [{"kind": "Pod"}, {"apiVersion": "v2"}, {"metadata": {"namespace": "b"}}], ids=str)
def test_what_an_object_is_cannot_be_patched(part: dict[str, Any]) -> None:
    items = store()
    made = items.create(SECRETS, body("a"))
    with pytest.raises(InvalidError, match=r"kind|apiVersion|namespace"):
        items.patch(SECRETS, key("a"), part)
    same = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a", "namespace": SPACE, "generation": 9}}
    assert items.patch(SECRETS, key("a"), same) is made


def test_other_kinds_may_come_with_a_status() -> None:
    items = store()
    claim = items.create(CLAIMS, {**body("a"), "status": {"phase": "Bound"}})
    assert claim["status"] == {"phase": "Bound"}
    assert items.patch(CLAIMS, key("a"), {"status": {"phase": "Lost"}}) is claim
    assert items.patch(CLAIMS, key("a"), {"status": {"phase": "Lost"}}, status=True)["status"] == {"phase": "Lost"}


def test_what_does_not_change_is_shared() -> None:
    items = store()
    made = items.create(PODS, pod("a", labels={"x": "y"}))
    stated = items.patch(PODS, key("a"), {"status": {"phase": "Running"}}, status=True)
    labelled = items.patch(PODS, key("a"), {"metadata": {"labels": {"z": "y"}}})
    assert made["spec"] is stated["spec"] is labelled["spec"]
    assert made["metadata"]["labels"] is stated["metadata"]["labels"]
    assert stated["status"] is labelled["status"]
    assert (made["status"], made["metadata"]["labels"]) == ({"phase": "Pending"}, {"x": "y"})


def test_a_node_is_addressed_without_a_namespace() -> None:
    items = store()
    made = items.create(NODES, body("n", NODES))
    assert items.get(NODES, Key("", "n")) is made


def test_what_is_missing_is_named_with_its_place() -> None:
    with pytest.raises(NotFoundError, match=r'^pods "a" in namespace "default" not found$'):
        store().get(PODS, key("a"))
    with pytest.raises(NotFoundError, match=r'^nodes "n" not found$'):
        store().get(NODES, Key("", "n"))


# -- binding -----------------------------------------------------------------------------------------------------------


def test_a_pod_is_bound_in_one_write() -> None:
    items = store()
    made = items.create(PODS, pod("a"))
    other = {"type": "Other", "status": "True"}
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    items.patch(PODS, key("a"), {"status": {"conditions": [waits, other]}}, status=True)
    watch = items.watch(PODS.whole(), Selection(fields="spec.nodeName=n"), items.version)
    bound = items.bind(key("a"), "n", uid=made["metadata"]["uid"], version=items.version)
    assert bound["spec"]["nodeName"] == "n"
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-15T12:00:00Z"}
    assert bound["status"] == {"phase": "Pending", "conditions": [other, scheduled]}
    assert [(change.what, change.item) for change in watch.take()] == [(WatchEventType.ADDED, bound)]


def test_a_pod_is_bound_once() -> None:
    items = store()
    items.create(PODS, pod("a"))
    bound = items.bind(key("a"), "n")
    assert items.bind(key("a"), "n") is bound
    with pytest.raises(ConflictError, match='already on node "n"'):
        items.bind(key("a"), "m")


def test_a_pod_that_is_being_deleted_or_another_is_not_bound() -> None:
    items = store()
    made = items.create(PODS, pod("a", finalizers=["example.com/f"]))
    with pytest.raises(ConflictError, match="UID"):
        items.bind(key("a"), "n", uid="other")
    items.delete(PODS, key("a"), uid=made["metadata"]["uid"])
    with pytest.raises(ConflictError, match="being deleted"):
        items.bind(key("a"), "n")


# -- admission ---------------------------------------------------------------------------------------------------------


def test_hooks_complete_new_objects_and_changes_but_not_a_status() -> None:
    items = store()
    asked: list[tuple[bool, str]] = []

    def hook(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
        asked.append((before is None, after["metadata"]["uid"]))
        return {**after, "spec": {**after.get("spec", {}), "seen": len(asked)}}

    items.admit(JOB, hook)
    made = items.create(JOB, body("a", JOB))
    patched = items.patch(JOB, key("a"), {"spec": {"x": 1}})
    items.patch(JOB, key("a"), {"status": {"x": 1}}, status=True)
    items.patch(JOB, key("a"), {"spec": {"x": 1}})
    assert [made["spec"], patched["spec"]] == [{"seen": 1}, {"x": 1, "seen": 2}]
    uid = made["metadata"]["uid"]
    assert asked == [(True, uid), (False, uid)]


def test_a_hook_that_refuses_leaves_everything_as_it_was() -> None:
    items = store()

    def refuse(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
        if after.get("spec"):
            raise InvalidError("spec: not today")
        return after

    items.admit(JOB, refuse)
    made = items.create(JOB, body("a", JOB))
    with pytest.raises(InvalidError, match="not today"):
        items.create(JOB, {**body("b", JOB), "spec": {"x": 1}})
    with pytest.raises(InvalidError, match="not today"):
        items.patch(JOB, key("a"), {"spec": {"x": 1}})
    assert (items.list(JOB)[0], items.version) == ((made,), made["metadata"]["resourceVersion"])


# -- deletion ----------------------------------------------------------------------------------------------------------


def test_the_grace_period_counts_from_the_deletion() -> None:
    clock = Clock()
    items = Store(clock)
    items.create(PODS, pod("a", node="n"))
    first = items.delete(PODS, key("a"), grace=20)
    clock.later(4)
    second = items.delete(PODS, key("a"), grace=10)
    assert first is not None
    assert second is not None
    assert first["metadata"]["deletionTimestamp"] == "2026-11-15T12:00:20Z"
    assert second["metadata"]["deletionTimestamp"] == "2026-11-15T12:00:10Z"


def test_a_negative_grace_is_the_shortest() -> None:
    items = store()
    items.create(PODS, pod("a", node="n"))
    left = items.delete(PODS, key("a"), grace=-5)
    assert left is not None
    assert left["metadata"]["deletionGracePeriodSeconds"] == 1


def test_a_deletion_can_be_of_one_version_only() -> None:
    items = store()
    made = items.create(SECRETS, body("a"))
    items.patch(SECRETS, key("a"), {"data": {"a": "b"}})
    with pytest.raises(ConflictError, match="has been modified"):
        items.delete(SECRETS, key("a"), version=made["metadata"]["resourceVersion"])
    assert items.delete(SECRETS, key("a"), version=items.version) is None


def test_the_last_finalizer_takes_the_object_with_it_in_one_event() -> None:
    items = store()
    items.create(SECRETS, body("a", finalizers=["example.com/f"]))
    items.delete(SECRETS, key("a"))
    watch = items.watch(SECRETS, Selection(), items.version)
    items.patch(SECRETS, key("a"), {"metadata": {"finalizers": None, "labels": {"last": "word"}}})
    (gone,) = watch.take()
    assert (gone.what, gone.version) == (WatchEventType.DELETED, items.version)
    assert gone.item["metadata"]["labels"] == {"last": "word"}
