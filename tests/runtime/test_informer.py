# SPDX-License-Identifier: Apache-2.0
"""List, watch, go on: against the real store, over a wire that breaks when told to."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
from runtime_rig import VIRTUAL, Call, LoopClock, Wire

from trainwright.errors import ApiError, GoneError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import JOB_UID, KIND, Key
from trainwright.runtime.cache import Cache
from trainwright.runtime.informer import Informer
from trainwright.runtime.ports import EVERYTHING, PODS, Resource, Selection, WatchEvent
from trainwright.runtime.telemetry import Telemetry

pytestmark = VIRTUAL


class Stand:
    """A store, a wire to it, and one informer of pods with what it told."""

    def __init__(self, history: int = 8192, cluster: Wire | None = None) -> None:
        self.store = Store(LoopClock(), history=history)
        self.wire = cluster or Wire(LocalCluster(self.store))
        self.cache = Cache(PODS)
        self.told: list[tuple[set[str], set[str]]] = []
        self.telemetry = Telemetry()
        self.informer = Informer(self.wire, self.cache, Selection(labels=KIND), self.listen, self.telemetry)

    def listen(self, jobs: set[str], keys: set[Key]) -> None:
        self.told.append((jobs, {key.name for key in keys}))

    def make(self, name: str, **labels: str) -> None:
        marks = {KIND: "genericjob", JOB_UID: "job"} | labels
        metadata = {"name": name, "namespace": "default", "labels": marks}
        self.store.create(PODS, {"metadata": metadata, "spec": {}})

    def touch(self, name: str, phase: str = "Running") -> None:
        self.store.patch(PODS, Key("default", name), {"status": {"phase": phase}}, status=True)

    def remove(self, name: str) -> None:
        self.store.delete(PODS, Key("default", name))

    def names(self) -> set[str]:
        return {one.metadata.name for one in self.cache.items()}

    def times(self, verb: str) -> list[float]:
        return [call.at for call in self.wire.calls if call.verb == verb]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.informer.run())
        await asyncio.sleep(0.001)
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def refusing(verb: str, error: ApiError, times: int = 10**6) -> Callable[[Call], Awaitable[None]]:
    """What a wire does before a request: refuse this verb so many times."""
    left = [times]

    async def before(call: Call) -> None:
        if call.verb == verb and left[0]:
            left[0] -= 1
            raise error

    return before


async def test_it_lists_then_follows() -> None:
    stand = Stand()
    stand.make("a")
    async with stand.running():
        assert stand.informer.synced.is_set()
        assert stand.told == [({"job"}, {"a"})]
        stand.make("b", **{JOB_UID: "other"})
        stand.touch("a")
        stand.remove("a")
        await asyncio.sleep(0.001)
    assert stand.told[1:] == [({"job", "other"}, {"a", "b"})]
    assert stand.names() == {"b"}
    assert stand.wire.made("list", "watch") == ["list pods", "watch pods"]
    assert stand.telemetry.lists == {"pods": 1}
    assert stand.telemetry.watch_events == {"pods": 3}


async def test_it_sees_only_its_scope_and_what_leaves_it_is_gone() -> None:
    stand = Stand()
    stand.make("a")
    stand.store.create(PODS, {"metadata": {"name": "x", "namespace": "default"}, "spec": {}})
    async with stand.running():
        assert stand.names() == {"a"}
        stand.store.patch(PODS, Key("default", "a"), {"metadata": {"labels": {KIND: None}}})
        await asyncio.sleep(0.001)
        assert stand.names() == set()
        assert stand.told[-1] == ({"job"}, {"a"})


async def test_our_own_write_that_comes_back_is_told_to_nobody() -> None:
    stand = Stand()
    stand.make("a")
    async with stand.running():
        stand.told.clear()
        stand.touch("a")
        stand.cache.add_written(await stand.wire.get(PODS, Key("default", "a")))
        await asyncio.sleep(0.001)
        assert stand.told == []


# -- when the wire breaks --------------------------------------------------------------------------------------------


async def test_a_watch_that_breaks_goes_on_where_it_was() -> None:
    stand = Stand()
    cut = asyncio.Event()

    async def before(call: Call) -> None:
        if call.verb == "watch" and len(stand.times("watch")) == 2:
            await cut.wait()

    stand.wire.before = before
    stand.wire.inner = Breaking(stand.store, after=1)
    async with stand.running():
        stand.make("a")
        await asyncio.sleep(1)
        stand.make("b")
        stand.remove("a")
        cut.set()
        await asyncio.sleep(1)
        assert stand.names() == {"b"}
    assert len(stand.times("list")) == 1


BROKEN = UnavailableError("gone away")


class Breaking(LocalCluster):
    """Each of its watches breaks after so many batches: with an error, or as if that were all."""

    def __init__(self, store: Store, after: int, error: ApiError | None = BROKEN) -> None:
        super().__init__(store)
        self.after, self.error = after, error

    async def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        left = self.after
        if left:
            async for batch in super().watch(resource, scope, since=since):
                yield batch
                left -= 1
                if not left:
                    break
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [UnavailableError("no"), None], ids=["broken", "ended"])
async def test_nothing_is_lost_by_watches_that_end_after_every_batch(error: ApiError | None) -> None:
    stand = Stand()
    stand.wire.inner = Breaking(stand.store, 1, error)
    async with stand.running():
        for number in range(20):
            stand.make(f"p{number}")
            await asyncio.sleep(0.5)
        assert len(stand.names()) == 20
    assert len(stand.times("list")) == 1


async def test_a_forgotten_version_leads_to_a_new_list() -> None:
    stand = Stand(history=4)
    stand.make("old")
    hold = asyncio.Event()

    async def before(call: Call) -> None:
        if call.verb == "watch":
            await hold.wait()

    stand.wire.before = before
    async with stand.running():
        stand.remove("old")
        for number in range(20):
            stand.make(f"p{number}")
        hold.set()
        await asyncio.sleep(1)
        assert stand.names() == {f"p{number}" for number in range(20)}
        assert stand.told[-1] == ({"job"}, {"old", *stand.names()})
    assert len(stand.times("list")) == 2


async def test_a_new_list_tells_only_of_what_has_changed() -> None:
    stand = Stand()
    for name in ("same", "other", "gone"):
        stand.make(name)
    stand.wire.before = refusing("watch", GoneError("too old"), 1)
    async with stand.running():
        stand.touch("other")
        stand.remove("gone")
        await asyncio.sleep(5)
    assert stand.told == [({"job"}, {"same", "other", "gone"}), ({"job"}, {"other", "gone"})]


async def test_a_list_is_never_older_than_what_we_have_written_or_been_told() -> None:
    stand = Stand()
    async with stand.running():
        stand.make("told")
        await asyncio.sleep(0.001)
        told = stand.store.version
        stand.make("ours")
        stand.cache.add_written(await stand.wire.get(PODS, Key("default", "ours")))
        ours = stand.store.version
    assert stand.cache.newest_version == int(ours) > int(told)
    stand.informer._list_watch.relist()
    async with stand.running():
        pass
    assert [call.version for call in stand.wire.calls if call.verb == "list"] == ["", ours]


def rates(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        pytest.param("list", UnavailableError("no"), id="no list"),
        pytest.param("watch", UnavailableError("no"), id="no watch"),
        pytest.param("watch", GoneError("too old"), id="always forgotten"),
        pytest.param("list", ApiError("broken"), id="a broken server"),
    ],
)
async def test_a_server_that_refuses_is_asked_ever_more_rarely_up_to_a_limit(verb: str, error: ApiError) -> None:
    stand = Stand()
    stand.wire.before = refusing(verb, error)
    async with stand.running():
        await asyncio.sleep(600)
    gaps = rates(stand.times(verb))
    assert 0.1 <= gaps[0] <= 0.3
    for place, gap in enumerate(gaps):
        pause = min(0.2 * 2**place, 30)
        assert pause * 0.5 <= gap <= pause * 1.5 + 0.001
    assert len(gaps) > 10


async def test_after_good_news_the_pauses_are_short_again() -> None:
    stand = Stand()
    stand.wire.before = refusing("watch", UnavailableError("no"), 8)
    async with stand.running():
        await asyncio.sleep(200)
        assert len(stand.times("watch")) == 9
        stand.wire.inner = Breaking(stand.store, 1)
        stand.make("a")
        await asyncio.sleep(0.1)
        stand.wire.before = refusing("watch", UnavailableError("no"), 1)
        stand.make("b")
        await asyncio.sleep(5)
        assert stand.names() == {"a", "b"}


async def test_a_server_that_ends_every_watch_at_once_is_asked_ever_more_rarely_too() -> None:
    stand = Stand()
    stand.wire.inner = Breaking(stand.store, 0, None)
    async with stand.running():
        await asyncio.sleep(600)
    assert 15 <= len(stand.times("watch")) <= 60


async def test_a_watch_that_ends_after_a_long_silence_goes_on_at_once() -> None:
    stand = Stand()

    async def before(call: Call) -> None:
        if call.verb == "watch":
            await asyncio.sleep(300)
            raise UnavailableError("timed out")

    stand.wire.before = before
    async with stand.running():
        await asyncio.sleep(1500)
    assert all(gap <= 300.31 for gap in rates(stand.times("watch")))


async def test_bookmarks_move_the_watch_on_and_tell_nobody() -> None:
    stand = Stand()
    async with stand.running():
        stand.told.clear()
        for number in range(600):
            stand.store.create(PODS, {"metadata": {"name": f"x{number}", "namespace": "default"}, "spec": {}})
        await asyncio.sleep(0.001)
        assert stand.informer._list_watch._version == stand.store.version
        assert stand.told == []
