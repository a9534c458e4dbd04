# SPDX-License-Identifier: Apache-2.0
"""What every engine tells of what happens: in order, from any version it remembers, as the selector sees it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest
from contract_objects import GENERICJOBS, HERE, ONE, PODS_WHOLE, TWO, job, key, names, pod, secret, told, version

from trainwright.errors import ApiError, GoneError
from trainwright.model.child import Pod
from trainwright.runtime.ports import PODS, SECRETS, Cluster, Selection, WatchEvent, WatchEventType

pytest_plugins = ("contract_engines",)


async def _life_of_a_secret(cluster: Cluster) -> str:
    """Made, changed, deleted; the version before."""
    begin = (await cluster.list(SECRETS, HERE)).version
    await cluster.create(SECRETS, secret("a"))
    await cluster.patch(SECRETS, key("a"), {"data": {"a": TWO}})
    await cluster.delete(SECRETS, key("a"))
    return begin


def _what(changes: list[WatchEvent]) -> list[tuple[str, str]]:
    return [(change.what.value, change.item["metadata"]["name"]) for change in changes]


async def test_everything_is_told_in_order(cluster: Cluster) -> None:
    changes = await told(cluster, SECRETS, await _life_of_a_secret(cluster), 3)
    assert _what(changes) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert [change.item["data"]["a"] for change in changes] == [ONE, TWO, TWO]
    versions = [int(change.version) for change in changes]
    assert versions == sorted(set(versions))
    assert [version(change.item) for change in changes] == [change.version for change in changes]


async def test_a_watch_goes_on_from_any_version(cluster: Cluster) -> None:
    changes = await told(cluster, SECRETS, await _life_of_a_secret(cluster), 3)
    assert await told(cluster, SECRETS, changes[0].version, 2) == changes[1:]
    assert await told(cluster, SECRETS, changes[1].version, 1) == changes[2:]


async def test_a_watch_tells_what_happens_while_it_waits(cluster: Cluster) -> None:
    begin = (await cluster.list(SECRETS, HERE)).version
    watch = asyncio.create_task(told(cluster, SECRETS, begin, 2))
    for name in ("a", "b"):
        await asyncio.sleep(0.01)
        await cluster.create(SECRETS, secret(name))
    assert _what(await watch) == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_watch_tells_nothing_of_other_resources(cluster: Cluster) -> None:
    begin = (await cluster.list(SECRETS, HERE)).version
    await cluster.create(PODS_WHOLE, pod("a"))
    await cluster.create(SECRETS, secret("b"))
    assert _what(await told(cluster, SECRETS, begin, 1)) == [("ADDED", "b")]


async def test_a_write_that_changes_nothing_is_not_told(cluster: Cluster) -> None:
    made = await cluster.create(SECRETS, secret("a"))
    await cluster.patch(SECRETS, key("a"), {"data": {"a": ONE}})
    await cluster.create(SECRETS, secret("b"))
    assert _what(await told(cluster, SECRETS, version(made), 1)) == [("ADDED", "b")]


async def test_a_watch_without_a_version_begins_with_what_is_there(cluster: Cluster) -> None:
    for name in ("a", "b"):
        await cluster.create(SECRETS, secret(name))
    await cluster.patch(SECRETS, key("a"), {"data": {"a": TWO}})
    changes = await told(cluster, SECRETS, "", 2)
    assert sorted(_what(changes)) == [("ADDED", "a"), ("ADDED", "b")]


async def test_an_object_that_begins_to_match_is_added_and_one_that_ceases_to_is_deleted(cluster: Cluster) -> None:
    begin = (await cluster.list(SECRETS, HERE)).version
    await cluster.create(SECRETS, secret("a", labels={"x": "no"}))
    await cluster.patch(SECRETS, key("a"), {"metadata": {"labels": {"x": "yes"}}})
    await cluster.patch(SECRETS, key("a"), {"data": {"a": TWO}})
    left = await cluster.patch(SECRETS, key("a"), {"metadata": {"labels": {"x": "no"}}})
    await cluster.delete(SECRETS, key("a"))
    await cluster.create(SECRETS, secret("b", labels={"x": "yes"}))
    changes = await told(cluster, SECRETS, begin, 4, labels="x=yes")
    assert _what(changes) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]
    # The last state that matched, at the version that ended it.
    gone = changes[2]
    assert gone.version == version(gone.item) == version(left)
    assert gone.item["metadata"]["labels"] == {"x": "yes"}


async def test_a_watch_by_field_follows_an_object_that_moves(cluster: Cluster) -> None:
    begin = (await cluster.list(PODS, HERE)).version
    await cluster.create(PODS, pod("a"))
    await cluster.patch(PODS, key("a"), {"status": {"phase": "Running"}}, status=True)
    await cluster.patch(PODS, key("a"), {"status": {"phase": "Succeeded"}}, status=True)
    changes = await told(cluster, PODS, begin, 2, fields="status.phase=Running")
    assert [change.what for change in changes] == [WatchEventType.ADDED, WatchEventType.DELETED]
    assert all(isinstance(change.item, Pod) for change in changes)


async def test_what_is_forgotten_must_be_listed_again(cluster: Cluster, forget: Callable[[], Awaitable[str]]) -> None:
    begin = await forget()
    with pytest.raises(GoneError, match=r"list again|too old"):
        await told(cluster, GENERICJOBS, begin, 1)
    assert await names(cluster, GENERICJOBS) == ["filler"]


async def test_a_list_can_always_be_gone_on_from(cluster: Cluster, forget: Callable[[], Awaitable[str]]) -> None:
    await forget()
    page = await cluster.list(GENERICJOBS, HERE)
    await cluster.create(GENERICJOBS, job("new"))
    assert _what(await told(cluster, GENERICJOBS, page.version, 1)) == [("ADDED", "new")]


async def test_many_watches_are_told_the_same(cluster: Cluster) -> None:
    begin = (await cluster.list(SECRETS, HERE)).version
    watches = [asyncio.create_task(told(cluster, SECRETS, begin, 20)) for _ in range(8)]
    for number in range(20):
        await cluster.create(SECRETS, secret(f"m-{number}"))
    first, *others = await asyncio.gather(*watches)
    assert [change.version for change in first] == sorted([change.version for change in first], key=int)
    assert all(changes == first for changes in others)


async def test_a_watch_can_be_left_and_the_rest_goes_on(cluster: Cluster) -> None:
    begin = (await cluster.list(SECRETS, HERE)).version
    async with aclosing(cluster.watch(SECRETS, since=begin)) as batches:
        await cluster.create(SECRETS, secret("a"))
        await anext(batches)
    waiting = asyncio.create_task(told(cluster, SECRETS, (await cluster.list(SECRETS, HERE)).version, 1))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert _what(await told(cluster, SECRETS, begin, 1)) == [("ADDED", "a")]


@pytest.mark.parametrize(
    ("scope", "since"), [(Selection(labels="a in b"), "1"), (Selection(), "yesterday")], ids=["selector", "version"]
)
async def test_a_watch_that_cannot_be_read_is_refused(cluster: Cluster, scope: Selection, since: str) -> None:
    async with asyncio.timeout(5), aclosing(cluster.watch(SECRETS, scope, since=since)) as batches:
        with pytest.raises(ApiError):
            await anext(batches)
