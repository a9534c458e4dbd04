# SPDX-License-Identifier: Apache-2.0
"""Garbage collection beyond the contract: deep, wide and circular trees of owners, collected within the write."""

from typing import Any

import pytest
from store_objects import JOB, body, key, names, owner, pod, store

from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.ports import NODES, PODS, SECRETS, Propagation, Selection

BACKGROUND, FOREGROUND, ORPHAN = Propagation.BACKGROUND, Propagation.FOREGROUND, Propagation.ORPHAN


def family(items: Store, size: int, *, blocks: bool = True) -> dict[str, Any]:
    """A job with `size` dependents."""
    made = items.create(JOB, body("job", JOB))
    for number in range(size):
        items.create(SECRETS, body(f"s-{number}", ownerReferences=[owner(made, blocks=blocks)]))
    return made


@pytest.mark.parametrize("propagation", [BACKGROUND, FOREGROUND])
@pytest.mark.parametrize("blocks", [True, False], ids=["blocking", "free"])
def test_a_wide_family_goes_within_the_call(propagation: Propagation, *, blocks: bool) -> None:
    items = store()
    family(items, 2000, blocks=blocks)
    assert items.delete(JOB, key("job"), propagation=propagation) is None
    assert (names(items), names(items, JOB)) == ([], [])


@pytest.mark.parametrize("propagation", [BACKGROUND, FOREGROUND])
def test_a_deep_family_goes_without_recursion(propagation: Propagation) -> None:
    items = store()
    last = items.create(SECRETS, body("s-0"))
    for number in range(1, 2000):
        last = items.create(SECRETS, body(f"s-{number}", ownerReferences=[owner(last, blocks=True)]))
    items.delete(SECRETS, key("s-0"), propagation=propagation)
    assert names(items) == []


def test_a_wide_family_is_orphaned_within_the_call() -> None:
    items = store()
    family(items, 500)
    assert items.delete(JOB, key("job"), propagation=ORPHAN) is None
    left = items.list(SECRETS)[0]
    assert len(left) == 500
    assert not any("ownerReferences" in item["metadata"] for item in left)


@pytest.mark.parametrize("propagation", [BACKGROUND, FOREGROUND])
def test_a_circle_of_owners_does_not_wait_for_itself(propagation: Propagation) -> None:
    items = store()
    one = items.create(SECRETS, body("one"))
    two = items.create(SECRETS, body("two", ownerReferences=[owner(one, blocks=True)]))
    items.patch(SECRETS, key("one"), {"metadata": {"ownerReferences": [owner(two, blocks=True)]}})
    items.delete(SECRETS, key("one"), propagation=propagation)
    assert names(items) == []


def test_dependents_go_from_the_leaves_up() -> None:
    items = store()
    top = items.create(JOB, body("job", JOB))
    middle = items.create(SECRETS, body("middle", ownerReferences=[owner(top, blocks=True)]))
    items.create(PODS, pod("leaf", node="n", ownerReferences=[owner(middle, blocks=True)]))
    left = items.delete(JOB, key("job"), propagation=FOREGROUND)
    assert left is not None
    assert items.get(SECRETS, key("middle"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    items.delete(PODS, key("leaf"), grace=0)
    assert (names(items), names(items, JOB)) == ([], [])


def test_what_is_made_for_an_owner_on_its_way_out_goes_too() -> None:
    items = store()
    made = items.create(JOB, body("job", JOB))
    items.create(PODS, pod("slow", node="n", ownerReferences=[owner(made, blocks=True)]))
    items.delete(JOB, key("job"), propagation=FOREGROUND)
    items.create(SECRETS, body("late", ownerReferences=[owner(made)]))
    assert names(items) == []
    assert names(items, JOB) == ["job"]


def test_what_is_made_for_an_owner_that_only_lingers_stays() -> None:
    items = store()
    made = items.create(JOB, body("job", JOB, finalizers=["example.com/f"]))
    items.delete(JOB, key("job"))
    items.create(SECRETS, body("last-words", ownerReferences=[owner(made)]))
    assert names(items) == ["last-words"]
    items.patch(JOB, key("job"), {"metadata": {"finalizers": None}})
    assert names(items) == []


def test_a_new_object_without_its_owner_is_answered_and_gone() -> None:
    items = store()
    watch = items.watch(SECRETS, Selection(), items.version)
    made = items.create(SECRETS, body("late", ownerReferences=[{"uid": "nobody"}]))
    assert made["metadata"]["name"] == "late"
    assert [change.what.value for change in watch.take()] == ["ADDED", "DELETED"]


def test_an_owner_in_another_namespace_is_none_and_one_in_no_namespace_is_one() -> None:
    items = store()
    node = items.create(NODES, body("n", NODES))
    elsewhere = items.create(SECRETS, body("s", namespace="elsewhere"))
    items.create(SECRETS, body("of-node", ownerReferences=[owner(node)]))
    items.create(SECRETS, body("of-stranger", ownerReferences=[owner(elsewhere)]))
    assert names(items) == ["of-node", "s"]
    items.delete(NODES, Key("", "n"))
    assert names(items) == ["s"]


def test_a_change_of_mind_lets_an_owner_go_at_once() -> None:
    items = store()
    made = items.create(JOB, body("job", JOB))
    items.create(PODS, pod("slow", node="n", ownerReferences=[owner(made, blocks=True)]))
    assert items.delete(JOB, key("job"), propagation=FOREGROUND) is not None
    assert items.delete(JOB, key("job"), propagation=BACKGROUND) is None
    assert "deletionTimestamp" in items.get(PODS, key("slow"))["metadata"]


def test_an_owner_waits_for_the_blocking_part_of_its_family_only() -> None:
    items = store()
    made = items.create(JOB, body("job", JOB))
    for name, blocks in (("free", False), ("one", True), ("two", True)):
        items.create(PODS, pod(name, node="n", ownerReferences=[owner(made, blocks=blocks)]))
    items.delete(JOB, key("job"), propagation=FOREGROUND)
    items.delete(PODS, key("one"), grace=0)
    assert names(items, JOB) == ["job"]
    items.delete(PODS, key("two"), grace=0)
    assert (names(items, JOB), names(items, PODS)) == ([], ["free"])


def test_an_owner_that_is_named_twice_is_one() -> None:
    items = store()
    made = items.create(JOB, body("job", JOB))
    twice = [owner(made, blocks=True), owner(made, blocks=True)]
    items.create(PODS, pod("a", node="n", ownerReferences=twice))
    items.delete(JOB, key("job"), propagation=FOREGROUND)
    items.delete(PODS, key("a"), grace=0)
    assert (names(items, JOB), names(items, PODS)) == ([], [])


def test_an_owner_that_is_released_waits_no_longer() -> None:
    items = store()
    made = items.create(JOB, body("job", JOB))
    items.create(PODS, pod("slow", node="n", ownerReferences=[owner(made, blocks=True)]))
    items.delete(JOB, key("job"), propagation=FOREGROUND)
    items.patch(PODS, key("slow"), {"metadata": {"ownerReferences": [owner(made)]}})
    assert names(items, JOB) == []


def test_nothing_of_the_gone_is_kept_in_the_index() -> None:
    items = store()
    family(items, 10)
    items.delete(JOB, key("job"))
    index = items._tables._collector
    assert (index._places, index._dependents) == ({}, {})
