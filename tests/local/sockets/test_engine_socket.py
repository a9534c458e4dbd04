# SPDX-License-Identifier: Apache-2.0
"""The engine's socket: its permissions, its answers, and the errors of waiting clients when the engine ends."""

import asyncio
import json
import re
import stat
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from store_objects import JOB, Clock, body, key, pod, store

from patience import PATIENCE
from trainwright.errors import (
    ApiError,
    EngineError,
    GoneError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from trainwright.jsonlines import ENGINE_PROTOCOL, encode, hello
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.client import RemoteCluster
from trainwright.local.sockets.server import Verb, serve
from trainwright.local.storage.store import Store
from trainwright.runtime.ports import PODS, SECRETS, Selection
from trainwright.unix_sockets import connect


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the engine's socket."""
    return tmp_path / "run" / "engine.sock"


@pytest.fixture
def local() -> LocalCluster:
    """The cluster that the engine serves."""
    return LocalCluster(store())


async def _fail(_: dict[str, Any]) -> None:
    raise TooManyRequestsError("not so fast", retry_after=1.5)


async def _break(_: dict[str, Any]) -> None:
    raise ZeroDivisionError("oh")


async def _engine(_: dict[str, Any]) -> None:
    raise EngineError("no room")


async def _echo(request: dict[str, Any]) -> Any:
    await asyncio.sleep(request.get("delay", 0))
    return request


VERBS = {
    name: Verb(dict[str, Any], answer)
    for name, answer in {"fail": _fail, "break": _break, "engine": _engine, "echo": _echo}.items()
}
_HELLO = encode({"id": 0, "verb": "hello", **hello(ENGINE_PROTOCOL)})


@pytest.fixture
async def remote(path: Path, local: LocalCluster) -> AsyncIterator[RemoteCluster]:
    """A connected client."""
    async with serve(path, local, VERBS), RemoteCluster(path) as cluster:
        yield cluster


async def _spoken(path: Path, *lines: bytes) -> list[dict[str, Any]]:
    """Send these lines and return one reply for each."""
    reader, writer = await asyncio.open_unix_connection(sock=connect(path))
    writer.write(_HELLO + b"".join(line + b"\n" for line in lines))
    assert json.loads(await asyncio.wait_for(reader.readline(), PATIENCE))["result"] == hello(ENGINE_PROTOCOL)
    answers = [json.loads(await asyncio.wait_for(reader.readline(), PATIENCE)) for _ in lines]
    writer.close()
    await writer.wait_closed()
    return answers


# -- the file ----------------------------------------------------------------------------------------------------------


async def test_nobody_else_can_open_it_and_it_goes_with_the_engine(path: Path, local: LocalCluster) -> None:
    async with serve(path, local):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


@pytest.mark.parametrize("length", [90, 108, 150, 240], ids=lambda length: f"{length} bytes")
async def test_a_path_may_be_long(tmp_path: Path, local: LocalCluster, length: int) -> None:
    folder = tmp_path
    while len(str(folder)) < length:
        folder /= "f" * min(50, length - len(str(folder)))
    async with serve(folder / "engine.sock", local), RemoteCluster(folder / "engine.sock") as cluster:
        assert (await cluster.list(SECRETS)).items == ()
    assert list(folder.iterdir()) == []


async def test_a_socket_that_nobody_listens_at_is_replaced(path: Path, local: LocalCluster) -> None:
    path.parent.mkdir()
    path.touch()
    async with serve(path, local), RemoteCluster(path) as cluster:
        assert (await cluster.list(SECRETS)).items == ()


async def test_a_socket_that_somebody_listens_at_is_not(path: Path, local: LocalCluster, remote: RemoteCluster) -> None:
    with pytest.raises(EngineError, match="another engine listens there already"):
        async with serve(path, local):
            pass
    assert (await remote.list(SECRETS)).items == ()


async def test_a_place_where_no_socket_can_be_is_named(tmp_path: Path, local: LocalCluster) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match=f"{tmp_path}/file/engine.sock: cannot listen there: .+"):
        async with serve(tmp_path / "file" / "engine.sock", local):
            pass


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_answers_come_as_they_are_ready(remote: RemoteCluster) -> None:
    order: list[str] = []

    async def ask(name: str, delay: float) -> None:
        assert (await remote.call("echo", {"name": name, "delay": delay}))["name"] == name
        order.append(name)

    await asyncio.gather(ask("slow", 0.1), ask("quick", 0))
    assert order == ["quick", "slow"]


async def test_requests_are_begun_in_the_order_they_were_sent(remote: RemoteCluster) -> None:
    await remote.create(SECRETS, body("a"))
    writes = [remote.patch(SECRETS, key("a"), {"data": {"n": str(number)}}) for number in range(200)]
    answers = await asyncio.gather(*writes)
    assert [answer["data"]["n"] for answer in answers] == [str(number) for number in range(200)]
    versions = [int(answer["metadata"]["resourceVersion"]) for answer in answers]
    assert versions == sorted(versions)


async def test_a_large_object_goes_both_ways(remote: RemoteCluster) -> None:
    large = "x" * 3_000_000 + "\n é"
    await remote.create(SECRETS, {**body("a"), "data": {"x": large}})
    assert (await remote.get(SECRETS, key("a")))["data"]["x"] == large


async def test_a_pod_is_bound_over_the_socket(remote: RemoteCluster, local: LocalCluster) -> None:
    await remote.create(PODS, pod("a"))
    assert (await remote.bind(key("a"), "n")).spec.node_name == "n"
    assert (await local.bind(key("a"), "n")).spec.node_name == "n"


@pytest.mark.parametrize(
    ("verb", "kind", "message", "retry"),
    [
        ("fail", TooManyRequestsError, "not so fast", 1.5),
        ("engine", ApiError, "no room", None),
        ("ecko", NotFoundError, "there is no verb 'ecko'; did you mean `echo`?", None),
    ],
)
async def test_an_error_arrives_as_it_was_raised(
    remote: RemoteCluster, verb: str, kind: type[ApiError], message: str, retry: float | None
) -> None:
    with pytest.raises(ApiError) as error:
        await remote.call(verb, {})
    assert (type(error.value), str(error.value), error.value.retry_after) == (kind, message, retry)


async def test_a_verb_that_breaks_is_reported_and_ends_nothing_else(remote: RemoteCluster) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    with pytest.raises(ApiError, match="the engine failed: ZeroDivisionError"):
        await remote.call("break", {})
    assert [type(error) for error in reported] == [ZeroDivisionError]
    assert (await remote.list(SECRETS)).items == ()


@pytest.mark.parametrize(
    ("says", "kind", "message"),
    [
        ({"resource": "pod", "name": "a"}, NotFoundError, "there is no resource 'pod'; did you mean `pods`?"),
        ({"resource": 1, "name": "a"}, InvalidError, "the request cannot be read: Expected `str`, got `int`"),
        ({"resource": "pods", "name": 1}, InvalidError, "the request cannot be read"),
        ({}, InvalidError, "Object missing required field `.+`"),
    ],
    ids=["resource", "type", "name", "nothing"],
)
async def test_a_request_that_makes_no_sense_says_why(
    remote: RemoteCluster, says: dict[str, Any], kind: type[ApiError], message: str
) -> None:
    with pytest.raises(kind, match=message.replace("?", r"\?")):
        await remote.call("get", says)


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"[]",
        b'{"id": 1}',
        b'{"verb": "list"}',
        b'{"id": [1], "verb": "watch"}',
        b'{"id": 1, "verb": []}',
        b"",
    ],
    ids=repr,
)
async def test_what_is_no_request_is_answered_and_the_next_one_too(
    path: Path, local: LocalCluster, line: bytes
) -> None:
    async with serve(path, local):
        answers = await _spoken(path, line, b'{"id": 7, "verb": "list", "resource": "pods"}')
    assert answers[0]["id"] is None
    assert answers[0]["error"]["reason"] == "Invalid"
    assert answers[1] == {"id": 7, "result": {"items": [], "version": "1"}}


async def test_a_request_however_deeply_nested_is_answered(path: Path, local: LocalCluster) -> None:
    request = b'{"id": 1, "verb": "patch", "resource": "secrets", "namespace": "default", "name": "a", "body": %s}'
    async with serve(path, local):
        await local.create(SECRETS, body("a"))
        for depth in (100, 900, 960, 980, 990, 1000, 5000):
            (answer,) = await _spoken(path, request % (b'{"a":' * depth + b"1" + b"}" * depth))
            assert "result" in answer or answer["error"]["reason"] == "Invalid"
        assert "result" not in answer


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "who"),
    [
        ({"verb": "hello", "protocol": ENGINE_PROTOCOL + 1, "version": "9.9"}, r"of version 9\.9 \(protocol 2\)"),
        ({"verb": "create", "resource": "secrets", "body": body("a")}, "of an older version"),
    ],
    ids=["newer", "older"],
)
async def test_a_client_of_another_version_is_told_so_and_does_nothing(
    path: Path, local: LocalCluster, first: dict[str, Any], who: str
) -> None:
    create = encode({"id": 2, "verb": "create", "resource": "secrets", "body": body("b")})
    async with serve(path, local):
        reader, writer = await asyncio.open_unix_connection(sock=connect(path))
        writer.write(encode({"id": 1, **first}) + create)
        answer = json.loads(await asyncio.wait_for(reader.readline(), 5))
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await writer.wait_closed()
    assert answer["id"] == 1
    assert re.match(f"this process is {who}, the engine of version", answer["error"]["message"])
    assert (await local.list(SECRETS)).items == ()


async def test_an_engine_of_another_version_is_told_apart(
    path: Path, local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.local.sockets.client.ENGINE_PROTOCOL", 9)
    async with serve(path, local), RemoteCluster(path) as remote:
        for _ in range(2):
            with pytest.raises(
                EngineError, match=r"this process is of version .+ \(protocol 9\), the engine of version"
            ):
                await remote.list(SECRETS)


async def test_an_engine_that_does_not_know_of_versions_is_older(path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert json.loads(await reader.readline())["verb"] == "hello"
        error = {"reason": "NotFound", "message": "there is no verb 'hello'"}
        writer.write(encode({"id": 0, "error": error}))
        await reader.read()
        writer.close()

    path.parent.mkdir()
    async with await asyncio.start_unix_server(answer, path), RemoteCluster(path) as remote:
        with pytest.raises(EngineError, match=f"the engine at {path} is of an older version, this process of version"):
            await remote.list(SECRETS)


# -- watches and the end -----------------------------------------------------------------------------------------------


async def test_a_watch_that_is_left_is_stopped_at_the_other_side(remote: RemoteCluster, local: LocalCluster) -> None:
    async with aclosing(remote.watch(SECRETS, since="1")) as batches:
        await remote.create(SECRETS, body("a"))
        await anext(batches)
    await remote.call("echo", {})
    waiting = local.store._tables.of(SECRETS).log.waiting
    assert waiting == []


async def test_a_reader_that_is_far_behind_must_list_again(remote: RemoteCluster, local: LocalCluster) -> None:
    await remote.create(SECRETS, body("a"))
    async with aclosing(remote.watch(SECRETS, since="1")) as batches:
        await anext(batches)
        for number in range(1100):
            await remote.patch(SECRETS, key("a"), {"data": {"n": str(number)}})
        with pytest.raises(GoneError, match="fell behind"):
            async for _ in batches:
                pass


async def test_when_the_engine_ends_everything_that_waits_is_told(path: Path, local: LocalCluster) -> None:
    async with RemoteCluster(path) as remote:
        async with serve(path, local, VERBS):
            watch = remote.watch(SECRETS, since=(await remote.list(SECRETS)).version)
            waits = [asyncio.create_task(anext(watch)), asyncio.create_task(remote.call("echo", {"delay": 60}))]
            await asyncio.sleep(0.02)
        for task in waits:
            with pytest.raises(UnavailableError, match="is gone"):
                await asyncio.wait_for(task, PATIENCE)
        with pytest.raises(UnavailableError, match=f"no engine answers at {path}: .+"):
            await remote.list(SECRETS)
        async with serve(path, local):
            assert (await remote.list(SECRETS)).items == ()


async def test_an_engine_that_was_never_there_is_named(path: Path) -> None:
    async with RemoteCluster(path) as remote:
        with pytest.raises(UnavailableError, match=f"no engine answers at {path}: No such file"):
            await remote.list(SECRETS)
        with pytest.raises(UnavailableError, match="no engine answers"):
            await anext(remote.watch(SECRETS, since="1"))


async def test_a_call_that_is_given_up_harms_no_other(remote: RemoteCluster) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(remote.call("echo", {"delay": 0.5}), 0.01)
    assert (await remote.call("echo", {"name": "next", "delay": 0.6}))["name"] == "next"


async def test_nothing_is_left_when_both_have_ended(path: Path, local: LocalCluster) -> None:
    before = asyncio.all_tasks()
    async with serve(path, local, VERBS), RemoteCluster(path) as remote:
        await remote.create(JOB, body("a", JOB))
        async with aclosing(remote.watch(JOB, Selection(), since="")) as batches:
            await anext(batches)
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before


async def _unread_watch(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start a watch on a connection that is never read."""
    reader, writer = await asyncio.open_unix_connection(sock=connect(path), limit=1 << 20)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(_HELLO + b'{"id": 1, "verb": "watch", "resource": "secrets"}\n')
    return reader, writer


async def _make_changes(cluster: LocalCluster, times: int) -> None:
    """Make `times` changes of 20 KB each, with time to send each of them."""
    await cluster.create(SECRETS, body("a"))
    for number in range(times):
        await cluster.patch(SECRETS, key("a"), {"data": {"x": str(number) + "y" * 20_000}})
        await asyncio.sleep(0)


async def test_for_a_reader_that_does_not_read_nothing_piles_up(path: Path) -> None:
    cluster = LocalCluster(store(history=16))
    async with serve(path, cluster):
        reader, writer = await _unread_watch(path)
        await asyncio.sleep(0.01)
        await _make_changes(cluster, 300)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        lines = [json.loads(await asyncio.wait_for(reader.readline(), PATIENCE))]
        while "error" not in lines[-1]:
            lines.append(json.loads(await asyncio.wait_for(reader.readline(), PATIENCE)))
        writer.close()
        await writer.wait_closed()
    assert lines[-1]["error"]["reason"] == "Expired"
    assert len(lines) < 150


async def test_a_reader_that_does_not_read_keeps_no_engine_from_its_end(path: Path, local: LocalCluster) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    async with serve(path, local):
        _, writer = await _unread_watch(path)
        await asyncio.sleep(0.01)
        await _make_changes(local, 300)
    # Only the client's end of the connection is left, which is also in this process.
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    writer.close()
    await writer.wait_closed()


async def test_a_watch_ends_with_its_connection(path: Path, local: LocalCluster) -> None:
    waiting = local.store._tables.of(SECRETS).log
    async with serve(path, local), RemoteCluster(path) as remote:
        async with RemoteCluster(path) as other:
            watch = asyncio.create_task(anext(other.watch(SECRETS, since="1")))
            while not waiting.waiting:
                await asyncio.sleep(0.001)
        with pytest.raises(UnavailableError):
            await watch
        async with asyncio.timeout(5):
            while waiting.waiting:
                await remote.call("list", {"resource": "secrets"})


async def test_a_line_that_is_too_long_ends_the_connection_with_a_word(
    path: Path, local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.local.sockets.server._MAX_REQUEST_BYTES", 1000)
    async with serve(path, local):
        reader, writer = await asyncio.open_unix_connection(sock=connect(path))
        writer.write(b"x" * 2000)
        answer = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE))
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
        await writer.wait_closed()
    assert answer == {"id": None, "error": {"reason": "Invalid", "message": "a message of more than 1,000 bytes"}}


async def test_a_store_of_many_is_listed_whole(path: Path) -> None:
    many = Store(Clock())
    for number in range(3000):
        many.create(SECRETS, {**body(f"s-{number:04}"), "data": {"x": "y" * 500}})
    async with serve(path, LocalCluster(many)), RemoteCluster(path) as remote:
        page = await remote.list(SECRETS)
    assert page.items == many.list(SECRETS)[0]
