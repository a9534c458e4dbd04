# SPDX-License-Identifier: Apache-2.0
"""The informer lists, watches and continues, on the real store, with requests that fail when a test says so."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
from runtime_rig import VIRTUAL, Call, LoopClock, RecordingCluster

from trainwright.errors import ApiError, GoneError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import JOB_UID, KIND, Key
from trainwright.runtime.cache import Cache
from trainwright.runtime.informer import Informer
from trainwright.runtime.ports import EVERYTHING, PODS, Resource, Selection, WatchEvent
from trainwright.runtime.telemetry import Telemetry

pytestmark = VIRTUAL


class InformerRig:
    """A store, recorded requests, and one informer of pods with the changes that it reported."""

    def __init__(self, history: int = 8192, cluster: RecordingCluster | None = None) -> None:
        self.store = Store(LoopClock(), history=history)
        self.wire = cluster or RecordingCluster(LocalCluster(self.store))
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
    """A hook for `RecordingCluster.before`: refuse this verb so many times."""
    left = [times]

    async def before(call: Call) -> None:
        if call.verb == verb and left[0]:
            left[0] -= 1
            raise error

    return before


async def test_it_lists_then_follows() -> None:
    rig = InformerRig()
    rig.make("a")
    async with rig.running():
        assert rig.informer.synced.is_set()
        assert rig.told == [({"job"}, {"a"})]
        rig.make("b", **{JOB_UID: "other"})
        rig.touch("a")
        rig.remove("a")
        await asyncio.sleep(0.001)
    assert rig.told[1:] == [({"job", "other"}, {"a", "b"})]
    assert rig.names() == {"b"}
    assert rig.wire.made("list", "watch") == ["list pods", "watch pods"]
    assert rig.telemetry.lists == {"pods": 1}
    assert rig.telemetry.watch_events == {"pods": 3}


async def test_it_sees_only_its_scope_and_what_leaves_it_is_gone() -> None:
    rig = InformerRig()
    rig.make("a")
    rig.store.create(PODS, {"metadata": {"name": "x", "namespace": "default"}, "spec": {}})
    async with rig.running():
        assert rig.names() == {"a"}
        rig.store.patch(PODS, Key("default", "a"), {"metadata": {"labels": {KIND: None}}})
        await asyncio.sleep(0.001)
        assert rig.names() == set()
        assert rig.told[-1] == ({"job"}, {"a"})


async def test_our_own_write_that_comes_back_is_told_to_nobody() -> None:
    rig = InformerRig()
    rig.make("a")
    async with rig.running():
        rig.told.clear()
        rig.touch("a")
        rig.cache.add_written(await rig.wire.get(PODS, Key("default", "a")))
        await asyncio.sleep(0.001)
        assert rig.told == []


# -- when the wire breaks --------------------------------------------------------------------------------------------


async def test_a_watch_that_breaks_goes_on_where_it_was() -> None:
    rig = InformerRig()
    cut = asyncio.Event()

    async def before(call: Call) -> None:
        if call.verb == "watch" and len(rig.times("watch")) == 2:
            await cut.wait()

    rig.wire.before = before
    rig.wire.inner = Breaking(rig.store, after=1)
    async with rig.running():
        rig.make("a")
        await asyncio.sleep(1)
        rig.make("b")
        rig.remove("a")
        cut.set()
        await asyncio.sleep(1)
        assert rig.names() == {"b"}
    assert len(rig.times("list")) == 1


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
    rig = InformerRig()
    rig.wire.inner = Breaking(rig.store, 1, error)
    async with rig.running():
        for number in range(20):
            rig.make(f"p{number}")
            await asyncio.sleep(0.5)
        assert len(rig.names()) == 20
    assert len(rig.times("list")) == 1


async def test_a_forgotten_version_leads_to_a_new_list() -> None:
    rig = InformerRig(history=4)
    rig.make("old")
    hold = asyncio.Event()

    async def before(call: Call) -> None:
        if call.verb == "watch":
            await hold.wait()

    rig.wire.before = before
    async with rig.running():
        rig.remove("old")
        for number in range(20):
            rig.make(f"p{number}")
        hold.set()
        await asyncio.sleep(1)
        assert rig.names() == {f"p{number}" for number in range(20)}
        assert rig.told[-1] == ({"job"}, {"old", *rig.names()})
    assert len(rig.times("list")) == 2


async def test_a_new_list_tells_only_of_what_has_changed() -> None:
    rig = InformerRig()
    for name in ("same", "other", "gone"):
        rig.make(name)
    rig.wire.before = refusing("watch", GoneError("too old"), 1)
    async with rig.running():
        rig.touch("other")
        rig.remove("gone")
        await asyncio.sleep(5)
    assert rig.told == [({"job"}, {"same", "other", "gone"}), ({"job"}, {"other", "gone"})]


async def test_a_list_is_never_older_than_what_we_have_written_or_been_told() -> None:
    rig = InformerRig()
    async with rig.running():
        rig.make("told")
        await asyncio.sleep(0.001)
        told = rig.store.version
        rig.make("ours")
        rig.cache.add_written(await rig.wire.get(PODS, Key("default", "ours")))
        ours = rig.store.version
    assert rig.cache.newest_version == int(ours) > int(told)
    rig.informer._list_watch.relist()
    async with rig.running():
        pass
    assert [call.version for call in rig.wire.calls if call.verb == "list"] == ["", ours]


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
    rig = InformerRig()
    rig.wire.before = refusing(verb, error)
    async with rig.running():
        await asyncio.sleep(600)
    gaps = rates(rig.times(verb))
    assert 0.1 <= gaps[0] <= 0.3
    for place, gap in enumerate(gaps):
        pause = min(0.2 * 2**place, 30)
        assert pause * 0.5 <= gap <= pause * 1.5 + 0.001
    assert len(gaps) > 10


async def test_after_good_news_the_pauses_are_short_again() -> None:
    rig = InformerRig()
    rig.wire.before = refusing("watch", UnavailableError("no"), 8)
    async with rig.running():
        await asyncio.sleep(200)
        assert len(rig.times("watch")) == 9
        rig.wire.inner = Breaking(rig.store, 1)
        rig.make("a")
        await asyncio.sleep(0.1)
        rig.wire.before = refusing("watch", UnavailableError("no"), 1)
        rig.make("b")
        await asyncio.sleep(5)
        assert rig.names() == {"a", "b"}


async def test_a_server_that_ends_every_watch_at_once_is_asked_ever_more_rarely_too() -> None:
    rig = InformerRig()
    rig.wire.inner = Breaking(rig.store, 0, None)
    async with rig.running():
        await asyncio.sleep(600)
    assert 15 <= len(rig.times("watch")) <= 60


async def test_a_watch_that_ends_after_a_long_silence_goes_on_at_once() -> None:
    rig = InformerRig()

    async def before(call: Call) -> None:
        if call.verb == "watch":
            await asyncio.sleep(300)
            raise UnavailableError("timed out")

    rig.wire.before = before
    async with rig.running():
        await asyncio.sleep(1500)
    assert all(gap <= 300.31 for gap in rates(rig.times("watch")))


async def test_bookmarks_move_the_watch_on_and_tell_nobody() -> None:
    rig = InformerRig()
    async with rig.running():
        rig.told.clear()
        for number in range(600):
            rig.store.create(PODS, {"metadata": {"name": f"x{number}", "namespace": "default"}, "spec": {}})
        await asyncio.sleep(0.001)
        assert rig.informer._list_watch._version == rig.store.version
        assert rig.told == []
