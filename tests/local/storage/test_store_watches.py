# SPDX-License-Identifier: Apache-2.0
"""Watches: with any version and any selector, the events lead from the first list to the current list."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_objects import SPACE, body, key, pod, store

from trainwright.errors import GoneError, InvalidError
from trainwright.local.storage.history import Watch
from trainwright.local.storage.store import Store
from trainwright.runtime.ports import CONFIG_MAPS, PODS, SECRETS, Selection, WatchEvent, WatchEventType

Items = dict[str, dict[str, Any]]
NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES, st.sampled_from(["yes", "no", ""])),
    st.tuples(st.just("label"), NAMES, st.sampled_from(["yes", "no", ""])),
    st.tuples(st.just("data"), NAMES, st.sampled_from(["1", "2"])),
    st.tuples(st.just("hold"), NAMES, st.just("")),
    st.tuples(st.just("delete"), NAMES, st.just("")),
)
SCOPES = st.sampled_from(
    [Selection(), Selection(labels="x=yes"), Selection(labels="x!=yes"), Selection(namespace=SPACE, labels="x")]
)


def step(items: Store, what: str, name: str, value: str) -> None:
    """Make one write, if it is valid."""
    there = name in {item["metadata"]["name"] for item in items.list(SECRETS)[0]}
    match what:
        case "create" if not there:
            items.create(SECRETS, body(name, labels={"x": value} if value else {}))
        case "label" if there:
            items.patch(SECRETS, key(name), {"metadata": {"labels": {"x": value or None}}})
        case "data" if there:
            items.patch(SECRETS, key(name), {"data": {"a": value}})
        case "hold" if there and "deletionTimestamp" not in items.get(SECRETS, key(name))["metadata"]:
            items.patch(SECRETS, key(name), {"metadata": {"finalizers": ["example.com/held"]}})
        case "delete" if there:
            if items.delete(SECRETS, key(name)) is not None:
                items.patch(SECRETS, key(name), {"metadata": {"finalizers": None}})


def listed(items: Store, scope: Selection) -> Items:
    return {item["metadata"]["name"]: item for item in items.list(SECRETS, scope)[0]}


def applied(seen: Items, changes: tuple[WatchEvent, ...]) -> Items:
    """Apply these events to a list. Each event must change it."""
    seen = dict(seen)
    for change in changes:
        if change.what is WatchEventType.BOOKMARK:
            continue
        name = change.item["metadata"]["name"]
        assert (name in seen) == (change.what is not WatchEventType.ADDED)
        if change.what is WatchEventType.DELETED:
            del seen[name]
        else:
            seen[name] = change.item
    return seen


def drained(watch: Watch) -> tuple[WatchEvent, ...]:
    changes: tuple[WatchEvent, ...] = ()
    while batch := watch.take():
        changes += batch
    return changes


@settings(deadline=None)
@given(st.lists(STEPS, max_size=30), SCOPES)
def test_a_watch_from_any_version_leads_to_the_list(steps: list[tuple[str, str, str]], scope: Selection) -> None:
    items = store()
    known = {items.version: listed(items, scope)}
    for one in steps:
        step(items, *one)
        known[items.version] = listed(items, scope)
    for version, then in known.items():
        changes = drained(items.watch(SECRETS, scope, version))
        assert applied(then, changes) == listed(items, scope)
        assert all(int(change.version) > int(version) for change in changes)


@settings(deadline=None)
@given(st.lists(st.none() | STEPS, max_size=40), SCOPES)
def test_a_watch_that_is_read_now_and_then_follows_or_says_that_it_cannot(
    steps: list[tuple[str, str, str] | None], scope: Selection
) -> None:
    items = store(history=4)
    watch, seen = items.watch(SECRETS, scope, items.version), listed(items, scope)
    for one in [*steps, None]:
        if one is not None:
            step(items, *one)
            continue
        try:
            seen = applied(seen, drained(watch))
        except GoneError:
            watch, seen = items.watch(SECRETS, scope, items.version), listed(items, scope)
        assert seen == listed(items, scope)


@given(st.lists(STEPS, max_size=20), SCOPES)
def test_a_watch_without_a_version_begins_with_the_list(steps: list[tuple[str, str, str]], scope: Selection) -> None:
    items = store()
    watches = []
    for one in steps:
        step(items, *one)
        watches += [items.watch(SECRETS, scope, since) for since in ("", "0")]
    assert all(applied({}, drained(watch)) == listed(items, scope) for watch in watches)


def changed(items: Store, times: int) -> None:
    for _ in range(times):
        items.patch(SECRETS, key("a"), {"data": {"version": items.version}})


def test_history_is_bounded_and_says_so() -> None:
    items = store(history=10)
    begin = items.version
    items.create(SECRETS, body("a"))
    changed(items, 9)
    assert len(items.watch(SECRETS, Selection(), begin).take()) == 10
    changed(items, 100)
    with pytest.raises(GoneError, match=r"too old resource version: 1 .* list again"):
        items.watch(SECRETS, Selection(), begin)
    assert len(drained(items.watch(SECRETS, Selection(), str(int(items.version) - 10)))) == 10


def test_what_is_remembered_is_known_to_the_version() -> None:
    items = store(history=10)
    items.create(SECRETS, body("a"))
    changed(items, 100)
    newest = int(items.version)
    told: dict[int, int] = {}
    for since in range(1, newest + 1):
        try:
            told[since] = len(drained(items.watch(SECRETS, Selection(), str(since))))
        except GoneError:
            assert not told
    assert told == {since: newest - since for since in range(newest - max(told.values()), newest + 1)}
    assert 10 <= max(told.values()) < 15


def test_one_resource_does_not_use_up_the_memory_of_another() -> None:
    items = store(history=10)
    begin = items.version
    items.create(CONFIG_MAPS, body("quiet", CONFIG_MAPS))
    items.create(SECRETS, body("a"))
    changed(items, 100)
    assert [change.item.metadata.name for change in items.watch(CONFIG_MAPS, Selection(), begin).take()] == ["quiet"]


def test_a_watch_that_falls_behind_is_told() -> None:
    items = store(history=10)
    items.create(SECRETS, body("a"))
    watch = items.watch(SECRETS, Selection(), items.version)
    changed(items, 50)
    with pytest.raises(GoneError, match="fell behind"):
        watch.take()


def test_a_watch_of_the_future_begins_there() -> None:
    items = store()
    items.create(SECRETS, body("a"))
    watch = items.watch(SECRETS, Selection(), str(int(items.version) + 2))
    for _ in range(2):
        changed(items, 1)
        assert watch.take() == ()
    changed(items, 1)
    assert [change.version for change in watch.take()] == [items.version]


def test_a_watch_that_concerns_nothing_gives_bookmarks_to_go_on_from() -> None:
    items = store(history=600)
    items.create(SECRETS, body("a"))
    watch = items.watch(SECRETS, Selection(labels="x"), items.version)
    changed(items, 500)
    assert watch.take() == ()
    changed(items, 100)
    (mark,) = watch.take()
    assert (mark.what, mark.version, mark.item) == (WatchEventType.BOOKMARK, items.version, None)
    changed(items, 1)
    assert watch.take() == ()
    changed(items, 600)
    resumed = items.watch(SECRETS, Selection(labels="x"), mark.version)
    items.patch(SECRETS, key("a"), {"metadata": {"labels": {"x": "y"}}})
    assert [change.what for change in drained(resumed)] == [WatchEventType.ADDED]


def test_large_news_come_in_batches() -> None:
    items = store()
    items.create(SECRETS, body("a"))
    watch = items.watch(SECRETS, Selection(), items.version)
    changed(items, 1500)
    assert [len(watch.take()), len(watch.take()), len(watch.take())] == [1024, 476, 0]


def test_whoever_waits_is_woken_once_and_by_its_own_resource() -> None:
    items = store()
    woken: list[str] = []
    watch = items.watch(SECRETS, Selection(), items.version)
    watch.wait(lambda: woken.append("secrets"))
    items.create(CONFIG_MAPS, body("a", CONFIG_MAPS))
    assert woken == []
    items.create(SECRETS, body("a"))
    items.create(SECRETS, body("b"))
    assert woken == ["secrets"]
    watch.wait(lambda: woken.append("at once"))
    assert woken == ["secrets", "at once"]


def test_a_closed_watch_is_not_woken() -> None:
    items = store()
    woken: list[str] = []
    watches = [items.watch(SECRETS, Selection(), items.version) for _ in range(2)]
    for number, watch in enumerate(watches):
        watch.wait(lambda number=number: woken.append(str(number)))  # type: ignore[misc]
    watches[0].close()
    watches[0].close()
    items.create(SECRETS, body("a"))
    assert woken == ["1"]


def test_an_object_is_decoded_once_for_all() -> None:
    items = store()
    watches = [items.watch(PODS, scope, items.version) for scope in (Selection(), Selection(namespace=SPACE))]
    made = items.create(PODS, pod("a"))
    seen = [watch.take()[0].item for watch in watches]
    seen += [items.page(PODS).items[0], items.view(PODS, made)]
    assert all(item is seen[0] for item in seen)
    assert items.watch(PODS.whole()).take()[0].item is made


def test_an_older_version_is_not_taken_for_the_newest() -> None:
    items = store()
    made = items.create(PODS, pod("a"))
    items.patch(PODS, key("a"), {"status": {"phase": "Running"}}, status=True)
    assert items.view(PODS, made).status.phase == "Pending"
    items.delete(PODS, key("a"))
    assert items.view(PODS, made).metadata.name == "a"


def test_a_version_is_a_number() -> None:
    with pytest.raises(InvalidError, match="'soon': expected a number"):
        store().watch(SECRETS, Selection(), "soon")
    with pytest.raises(InvalidError, match="expected a number"):
        store().watch(SECRETS, Selection(), "9" * 5000)
