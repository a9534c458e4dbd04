# SPDX-License-Identifier: Apache-2.0
"""The blocking client of an engine: its verbs, its quick import, and its errors if no engine answers."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from store_objects import SPACE, body, pod, store

from trainwright.errors import ConflictError, EngineError, NotFoundError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.local.sockets.server import Verb, serve
from trainwright.runtime.ports import PODS

A = (SPACE, "a")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[tuple[Path, LocalCluster]]:
    """A listening engine."""
    cluster, path, held = LocalCluster(store()), tmp_path / "engine.sock", asyncio.Event()

    async def hold(_: dict[str, Any]) -> str:
        await held.wait()
        return "held"

    async def release(_: dict[str, Any]) -> str:
        held.set()
        return "released"

    async with serve(path, cluster, {"hold": Verb(dict[str, Any], hold), "release": Verb(dict[str, Any], release)}):
        yield path, cluster


async def call_in_thread(path: Path, work: Callable[[BlockingClient], Any], timeout: float = 5) -> Any:
    """Call the function in a thread, since the engine uses this one."""

    def call() -> Any:
        with BlockingClient(path, timeout=timeout) as client:
            return work(client)

    return await asyncio.to_thread(call)


async def test_the_verbs_of_the_store(engine: tuple[Path, LocalCluster]) -> None:
    def work(client: BlockingClient) -> None:
        made = client.call("create", {"resource": "pods", "body": pod("a", node="n")})
        assert client.get("pods", A) == made
        stated = client.patch("pods", A, {"status": {"phase": "Running"}}, status=True)
        assert stated["status"] == {"phase": "Running"}
        assert client.list("pods", namespace=SPACE, fields="status.phase=Running") == ([stated], "3")
        assert client.list("pods", labels="x")[0] == []
        left = client.delete("pods", A, uid=made["metadata"]["uid"], grace=7)
        assert left is not None
        assert left["metadata"]["deletionGracePeriodSeconds"] == 7
        assert client.delete("pods", A, grace=0, propagation="Background") is None
        assert client.call("release", {}) == "released"

    await call_in_thread(engine[0], work)


async def test_what_is_not_said_takes_its_default(engine: tuple[Path, LocalCluster]) -> None:
    await engine[1].create(PODS, pod("a", node="n"))
    left = await call_in_thread(engine[0], lambda client: client.delete("pods", A, uid=None, grace=None))
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_an_error_is_raised_as_in_the_engine_and_the_client_goes_on(
    engine: tuple[Path, LocalCluster],
) -> None:
    def work(client: BlockingClient) -> None:
        with pytest.raises(NotFoundError, match='secrets "a"'):
            client.get("secrets", A)
        client.call("create", {"resource": "secrets", "body": body("a")})
        with pytest.raises(ConflictError, match="has been modified"):
            client.patch("secrets", A, {"data": {"x": "y"}}, version="1")
        with pytest.raises(NotFoundError, match="did you mean `secrets`"):
            client.list("secret")

    await call_in_thread(engine[0], work)


async def test_an_engine_that_does_not_answer_in_time_is_not_waited_for(engine: tuple[Path, LocalCluster]) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        await call_in_thread(engine[0], lambda client: client.call("hold", {}), timeout=0.02)


async def test_a_late_answer_is_not_taken_for_the_next(engine: tuple[Path, LocalCluster]) -> None:
    def work(client: BlockingClient) -> Any:
        with pytest.raises(UnavailableError):
            client.call("hold", {})
        return [client.call("release", {}), client.list("secrets")[0]]

    assert await call_in_thread(engine[0], work, timeout=2) == ["released", []]


async def test_an_engine_that_ends_is_noticed(tmp_path: Path) -> None:
    async with serve(tmp_path / "engine.sock", LocalCluster(store())):
        client = await asyncio.to_thread(BlockingClient, tmp_path / "engine.sock")
        assert (await asyncio.to_thread(client.list, "secrets"))[0] == []
    with client, pytest.raises(UnavailableError, match="is gone"):
        await asyncio.to_thread(client.list, "secrets")


async def test_an_engine_of_another_version_is_told_apart(
    engine: tuple[Path, LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.local.sockets.blocking.ENGINE_PROTOCOL", 9)
    with pytest.raises(EngineError, match=r"this process is of version .+ \(protocol 9\), the engine of version"):
        await call_in_thread(engine[0], lambda client: client.list("secrets"))


def test_nobody_in_is_said_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=f"no engine answers at {tmp_path}/engine.sock: No such file"):
        BlockingClient(tmp_path / "engine.sock")


def test_it_needs_neither_asyncio_nor_msgspec() -> None:
    code = (
        "import sys, trainwright.local.sockets.blocking; print({'asyncio', 'msgspec', 'tempfile'} & sys.modules.keys())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
