# SPDX-License-Identifier: Apache-2.0
"""The command line's door to the engine: blocking, quick to open, clear when nobody is in."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from store_objects import SPACE, body, key, pod, store

from trainwright.errors import ConflictError, EngineError, NotFoundError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.local.sockets.server import Verb, serve
from trainwright.runtime.ports import PODS, SECRETS

A = (SPACE, "a")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[tuple[Path, LocalCluster]]:
    """An engine that listens."""
    cluster, path, held = LocalCluster(store()), tmp_path / "engine.sock", asyncio.Event()

    async def hold(_: dict[str, Any]) -> str:
        await held.wait()
        return "held"

    async def release(_: dict[str, Any]) -> str:
        held.set()
        return "released"

    async with serve(path, cluster, {"hold": Verb(dict[str, Any], hold), "release": Verb(dict[str, Any], release)}):
        yield path, cluster


async def through(path: Path, work: Callable[[BlockingClient], Any], timeout: float = 5) -> Any:
    """Do it in a thread: the engine has this one."""

    def opened() -> Any:
        with BlockingClient(path, timeout=timeout) as portal:
            return work(portal)

    return await asyncio.to_thread(opened)


async def test_the_verbs_of_the_store(engine: tuple[Path, LocalCluster]) -> None:
    def work(portal: BlockingClient) -> None:
        made = portal.create("pods", pod("a", node="n"))
        assert portal.get("pods", A) == made
        stated = portal.patch("pods", A, {"status": {"phase": "Running"}}, status=True)
        assert stated["status"] == {"phase": "Running"}
        assert portal.list("pods", namespace=SPACE, fields="status.phase=Running") == ([stated], "3")
        assert portal.list("pods", labels="x")[0] == []
        left = portal.delete("pods", A, uid=made["metadata"]["uid"], grace=7)
        assert left is not None
        assert left["metadata"]["deletionGracePeriodSeconds"] == 7
        assert portal.delete("pods", A, grace=0, propagation="Background") is None
        assert portal.call("release", {}) == "released"

    await through(engine[0], work)


async def test_what_is_not_said_takes_its_default(engine: tuple[Path, LocalCluster]) -> None:
    await engine[1].create(PODS, pod("a", node="n"))
    left = await through(engine[0], lambda portal: portal.delete("pods", A, uid=None, grace=None))
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_an_error_is_raised_as_the_engine_has_it_and_the_portal_goes_on(
    engine: tuple[Path, LocalCluster],
) -> None:
    def work(portal: BlockingClient) -> None:
        with pytest.raises(NotFoundError, match='secrets "a"'):
            portal.get("secrets", A)
        portal.create("secrets", body("a"))
        with pytest.raises(ConflictError, match="has been modified"):
            portal.patch("secrets", A, {"data": {"x": "y"}}, version="1")
        with pytest.raises(NotFoundError, match="did you mean `secrets`"):
            portal.list("secret")

    await through(engine[0], work)


async def test_a_watch_is_an_iterator_and_other_calls_go_on_beside_it(engine: tuple[Path, LocalCluster]) -> None:
    await engine[1].create(SECRETS, body("a"))

    def work(portal: BlockingClient) -> list[tuple[str, str]]:
        seen = []
        for what, version, item in portal.watch("secrets", namespace=SPACE):
            seen.append((what, item["metadata"]["name"]))
            assert version == item["metadata"]["resourceVersion"]
            if len(seen) == 1:
                portal.patch("secrets", A, {"data": {"x": "y"}})
                portal.delete("secrets", A)
            if what == "DELETED":
                break
        return seen

    seen = await through(engine[0], work)
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_bookmarks_are_not_news(engine: tuple[Path, LocalCluster]) -> None:
    await engine[1].create(SECRETS, body("a"))
    for number in range(600):
        await engine[1].patch(SECRETS, key("a"), {"data": {"n": str(number)}})
    await engine[1].create(SECRETS, body("b", labels={"x": "y"}))
    first = await through(engine[0], lambda portal: next(portal.watch("secrets", since="2", labels="x")))
    assert (first[0], first[2]["metadata"]["name"]) == ("ADDED", "b")


async def test_a_watch_with_nothing_to_tell_can_be_limited(engine: tuple[Path, LocalCluster]) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        await through(engine[0], lambda portal: next(portal.watch("secrets", timeout=0.02)))


async def test_an_engine_that_does_not_answer_in_time_is_not_waited_for(engine: tuple[Path, LocalCluster]) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        await through(engine[0], lambda portal: portal.call("hold", {}), timeout=0.02)


async def test_a_late_answer_is_not_taken_for_the_next(engine: tuple[Path, LocalCluster]) -> None:
    def work(portal: BlockingClient) -> Any:
        with pytest.raises(UnavailableError):
            portal.call("hold", {})
        return [portal.call("release", {}), portal.create("secrets", body("a"))["metadata"]["name"]]

    assert await through(engine[0], work, timeout=2) == ["released", "a"]


async def test_an_engine_that_ends_is_noticed(tmp_path: Path) -> None:
    async with serve(tmp_path / "engine.sock", LocalCluster(store())):
        portal = await asyncio.to_thread(BlockingClient, tmp_path / "engine.sock")
        assert (await asyncio.to_thread(portal.list, "secrets"))[0] == []
    with portal, pytest.raises(UnavailableError, match="is gone"):
        await asyncio.to_thread(portal.list, "secrets")


async def test_an_engine_of_another_version_is_told_apart(
    engine: tuple[Path, LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.local.sockets.blocking.ENGINE_PROTOCOL", 9)
    with pytest.raises(EngineError, match=r"this process is of version .+ \(protocol 9\), the engine of version"):
        await through(engine[0], lambda portal: portal.list("secrets"))


def test_nobody_in_is_said_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=f"no engine answers at {tmp_path}/engine.sock: No such file"):
        BlockingClient(tmp_path / "engine.sock")


def test_it_needs_neither_asyncio_nor_msgspec() -> None:
    code = (
        "import sys, trainwright.local.sockets.blocking; print({'asyncio', 'msgspec', 'tempfile'} & sys.modules.keys())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
