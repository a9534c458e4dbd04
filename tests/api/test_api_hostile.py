# SPDX-License-Identifier: Apache-2.0
"""Clients that are slow, greedy or wrong: they get an error or are cut off, and others are answered all the same."""

import asyncio
import gc
import json
import ssl
import tracemalloc
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from api_server import CONFIG_MAPS, MERGE, TABLE, ServedStore, config_map, served

from trainwright.api import budgets, connections, handlers, server
from trainwright.runtime.ports import PODS

_PODS = "/api/v1/namespaces/default/pods"
_AUTHORIZED = "Authorization: Bearer admin\r\n"


async def _raw(api: ServedStore, text: str | bytes, *, host: str = "127.0.0.1") -> tuple[int, bytes]:
    """Send bytes as they are. Returns the code and the rest of the answer; code 0: the server closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    data = text if isinstance(text, bytes) else text.replace("HOST", host).encode("latin-1")
    writer.write(data)
    try:
        line = await asyncio.wait_for(reader.readline(), 5)
        code = int(line.split()[1]) if line else 0
        rest = await asyncio.wait_for(reader.read(100_000), 5) if line else b""
    except ConnectionError:
        code, rest = 0, b""
    writer.close()
    return code, rest


def _request(path: str, *, method: str = "GET", headers: str = _AUTHORIZED) -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n{headers}\r\n"


@pytest.mark.parametrize("role", ["", "nobody", "admin ", "admin\x00"])
async def test_without_a_valid_token_only_the_health_is_answered(api: ServedStore, role: str) -> None:
    code, _ = await _raw(api, _request("/api/v1/pods", headers=f"Authorization: Bearer {role}\r\n" if role else ""))
    assert code in (400, 401) or role.strip() == "admin"
    assert (await api.ask("GET", "/healthz", role="")).code == 200
    assert (await api.ask("GET", "/api", role="")).code == 401
    assert (await api.ask("GET", "/api/v1/namespaces/default/pods", role="")).body["reason"] == "Unauthorized"


@pytest.mark.parametrize(
    ("role", "method", "path", "code"),
    [
        ("viewer", "GET", CONFIG_MAPS, 200),
        ("viewer", "GET", "/api/v1/namespaces/default/secrets", 403),
        ("viewer", "GET", "/api/v1/secrets", 403),
        ("viewer", "DELETE", CONFIG_MAPS, 403),
        ("viewer", "GET", "/api/v1/namespaces/default/secrets/x?watch=true", 403),
        ("user", "GET", "/api/v1/namespaces/default/secrets", 200),
        ("user", "DELETE", "/api/v1/nodes/a", 403),
        ("user", "DELETE", "/api/v1/namespaces/default", 403),
        ("admin", "DELETE", "/api/v1/nodes/a", 404),
    ],
)
async def test_roles(api: ServedStore, role: str, method: str, path: str, code: int) -> None:
    assert (await api.ask(method, path, role=role)).code == code


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/default/configmaps/../secrets",
        "/api/v1/namespaces/default/configmaps/%2e%2e/secrets",
        "/api/v1/namespaces/default/configmaps%2Fx",
        "/api/v1/namespaces//configmaps",
        "/api/v1/namespaces/default/configmaps/a/b/c",
        "/api/v1/namespaces/default/configmaps/%00",
        "//api/v1//pods/x/",
        "/apis/../api/v1/pods/x",
        "/api/v1/nothing",
        "/api/v2/pods",
        "/etc/passwd",
        "/api/v1/namespaces/default/pods/x/proxy",
        "/%ff%fe",
    ],
)
async def test_tricks_with_paths_find_nothing(api: ServedStore, path: str) -> None:
    code, rest = await _raw(api, _request(path))
    assert code in (400, 404, 405), rest


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("GARBAGE\r\n\r\n", (400, 0)),
        ("GET / HTTP/9.9\r\n\r\n", (400, 505, 0)),
        (_request("/api", headers=f"{_AUTHORIZED}X: {'x' * 100_000}\r\n"), (400, 431)),
        (_request("/" + "a" * 100_000), (400, 414)),
        (
            _request("/api", headers=_AUTHORIZED + "".join(f"X-{n}: {'y' * 500}\r\n" for n in range(2000))),
            (400, 431, 0),
        ),
        (_request(CONFIG_MAPS, method="POST", headers=f"{_AUTHORIZED}Content-Length: -5\r\n"), (400,)),
        (
            _request(CONFIG_MAPS, method="POST", headers=f"{_AUTHORIZED}Content-Length: 5\r\nContent-Length: 6\r\n"),
            (400,),
        ),
        (
            _request(
                CONFIG_MAPS, method="POST", headers=f"{_AUTHORIZED}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"
            ),
            (400,),
        ),
        (_request("/api", headers=f"{_AUTHORIZED}Upgrade: websocket\r\nConnection: upgrade\r\n"), (200, 400)),
    ],
)
async def test_requests_that_are_no_http(api: ServedStore, text: str, codes: tuple[int, ...]) -> None:
    code, rest = await _raw(api, text)
    assert code in codes, (code, rest[:200])
    assert (await api.ask("GET", "/version")).code == 200


@pytest.mark.parametrize(
    ("host", "code"),
    [("127.0.0.1", 200), ("localhost:1234", 200), ("[::1]:80", 200), ("evil.example.com", 403), ("", 403)],
)
async def test_a_foreign_host_name_is_refused(api: ServedStore, host: str, code: int) -> None:
    assert (await _raw(api, _request("/version"), host=host))[0] == code


async def test_a_slow_head_is_cut_off(api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_HEAD_SECONDS", 0.3)
    async with AsyncExitStack() as stack:
        pairs = [await asyncio.open_connection("127.0.0.1", api.server.port) for _ in range(50)]
        for _, writer in pairs:
            stack.callback(writer.close)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert (await api.ask("GET", "/version")).code == 200
        ends = [await asyncio.wait_for(reader.read(), 5) for reader, _ in pairs]
        assert ends == [b""] * 50


async def test_a_slow_head_of_a_later_request_is_cut_off(api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_HEAD_SECONDS", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    request = f"GET /version HTTP/1.1\r\nHost: localhost\r\n{_AUTHORIZED}\r\n".encode()
    for _ in range(2):  # a client that waits between two requests keeps its connection
        writer.write(request)
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}")
        await asyncio.sleep(0.5)
    writer.write(request[:20])
    async with asyncio.timeout(5):
        while await reader.read(1000):
            pass
    writer.close()


async def test_a_slow_body_is_cut_off(api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BODY_SECONDS", 0.3)
    head = _request(CONFIG_MAPS, method="POST", headers=f"{_AUTHORIZED}Content-Length: 100000\r\n")
    code, rest = await _raw(api, head + "{")
    assert (code, b"did not arrive" in rest) == (400, True)


async def test_a_large_body_without_a_length_is_refused_before_it_is_in_memory(api: ServedStore) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    head = _request(CONFIG_MAPS, method="POST", headers=f"{_AUTHORIZED}Transfer-Encoding: chunked\r\n")
    writer.write(head.replace("HOST", "localhost").encode())
    part, sent = b"10000\r\n" + b"x" * 0x10000 + b"\r\n", 0
    try:
        while sent < 100 << 20 and not reader._buffer:  # type: ignore[attr-defined]
            writer.write(part)
            sent += len(part)
            await asyncio.wait_for(writer.drain(), 5)
            await asyncio.sleep(0)
        line = await asyncio.wait_for(reader.readline(), 5)
    except ConnectionError:
        line = b""
    writer.close()
    assert b"413" in line or line == b""
    assert sent < 32 << 20, "the server stopped reading early"


async def _silent(api: ServedStore, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connections whose clients send nothing. The server has accepted all of them."""
    pairs = [await asyncio.open_connection("127.0.0.1", api.server.port) for _ in range(count)]
    assert (await api.ask("GET", "/version")).code == 200, "the queue of the listener is served in order"
    return pairs


async def _are_closed(pairs: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Wait until the server has closed these connections."""
    for reader, _ in pairs:
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""


@pytest.mark.parametrize("tls", [False, True])
async def test_the_number_of_connections_is_limited_before_tls_begins(tmp_path: Path, tls: bool) -> None:
    async with served(tmp_path, tls=tls) as api, api.watch(f"{CONFIG_MAPS}?watch=true") as watch:
        api.server._connections.limit = 20
        pairs = await _silent(api, 60)
        await _are_closed(pairs[:50])  # the oldest ones; a quarter of the limit remains
        assert len(api.server._connections._open) <= 20
        files = [one.get_extra_info("socket").fileno() for _, one in pairs[-4:]]
        assert all(not reader.at_eof() for reader, _ in pairs[-4:]), files
        await api.make(CONFIG_MAPS, config_map("seen"))
        assert await watch.names(1) == [("ADDED", "seen")], "a client with a token keeps its connection"
        for _, writer in pairs:
            writer.close()


async def test_tls_must_begin_in_time(tls_api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_HANDSHAKE_SECONDS", 0.3)
    pairs = await _silent(tls_api, 20)
    pairs[0][1].write(b"\x16\x03\x01")  # the beginning of a handshake
    await _are_closed(pairs)
    assert not tls_api.server._connections._unproven
    assert (await tls_api.ask("GET", "/version")).code == 200
    for _, writer in pairs:
        writer.close()


async def test_others_cannot_use_up_the_connections_of_the_admin(api: ServedStore) -> None:
    api.server._connections.limit = 5
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(api.watch(f"{CONFIG_MAPS}?watch=true", role="viewer"))
        assert (await api.ask("GET", CONFIG_MAPS, role="viewer")).code == 429
        assert (await api.ask("GET", CONFIG_MAPS)).code == 200


async def test_a_client_has_a_budget_of_requests(api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_BURST", 5.0)
    monkeypatch.setattr(budgets, "_RATE", 0.001)
    answers = [await api.ask("GET", "/version", role="viewer") for _ in range(6)]
    assert [one.code for one in answers] == [200] * 5 + [429]
    assert answers[-1].headers["Retry-After"] == "1"
    assert (await api.ask("GET", "/version", role="user")).code == 200, "others have their own budget"


async def test_guesses_of_tokens_have_a_small_budget(api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_ANONYMOUS_RATE", 0.001)  # a slow machine must not fill the budget up again
    codes = [(await api.ask("GET", "/version", role=f"guess-{number}")).code for number in range(150)]
    assert (codes[0], codes[-1]) == (401, 429)
    assert (await api.ask("GET", "/version")).code == 200


async def test_an_error_of_ours_is_an_answer_and_no_traceback(
    api: ServedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api.store, "create", lambda *_, **__: 1 / 0)
    answer = await api.ask("POST", CONFIG_MAPS, config_map("a"))
    assert (answer.code, answer.reason) == (500, "InternalError")
    assert "Traceback" not in json.dumps(answer.body)
    assert "a request failed" in caplog.text


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("tolerations", "x", "spec.tolerations"),
        ("affinity", 7, "spec.affinity"),
        ("schedulingGates", 5, "spec.schedulingGates"),
        ("nodeSelector", ["a"], "spec.nodeSelector"),
        ("containers", [{"name": "a", "image": "b", "resources": "x"}], "spec.containers[0].resources"),
        ("containers", [{"name": "a", "image": "b", "env": {"a": "b"}}], "spec.containers[0].env"),
        ("volumes", [7], "spec.volumes[0]"),
    ],
)
async def test_a_pod_of_the_wrong_shape_is_refused(api: ServedStore, field: str, value: object, path: str) -> None:
    spec = {"containers": [{"name": "main", "image": "x"}], field: value}
    answer = await api.ask("POST", _PODS, {"metadata": {"name": "evil"}, "spec": spec}, role="user")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert path in answer.body["message"]


async def test_a_pod_without_an_image_can_be_labelled(api: ServedStore) -> None:
    meta = {"name": "own", "namespace": "default"}
    api.store.create(PODS.whole(), {"metadata": meta, "spec": {"containers": [{"name": "main"}]}})
    answer = await api.ask("PATCH", f"{_PODS}/own", {"metadata": {"labels": {"a": "b"}}}, kind=MERGE)
    assert (answer.code, answer.body["metadata"]["labels"]) == (200, {"a": "b"})


async def _unread_lists(
    api: ServedStore, count: int, accept: str = ""
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Clients that ask for a list of 18 MB, read the head of the answer and then nothing more."""
    for number in range(200):
        await api.make(CONFIG_MAPS, config_map(f"m{number}", large="x" * 90_000))
    tls = ssl.create_default_context() if api.server.url.startswith("https") else None
    if tls is not None:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    to = {"host": "127.0.0.1", "port": api.server.port, "limit": 1024, "ssl": tls}
    pairs = [await asyncio.open_connection(**to) for _ in range(count)]  # type: ignore[arg-type]
    headers = _AUTHORIZED + (f"Accept: {accept}\r\n" if accept else "")
    for _, writer in pairs:
        writer.write(
            _request(f"{CONFIG_MAPS}?includeObject=Object", headers=headers).replace("HOST", "localhost").encode()
        )
    for reader, writer in pairs:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
    return pairs


@pytest.mark.parametrize("accept", ["", TABLE])
@pytest.mark.parametrize("tls", [False, True])
async def test_a_client_that_does_not_read_a_list_costs_little_memory(tmp_path: Path, tls: bool, accept: str) -> None:
    tracemalloc.start()
    async with served(tmp_path, tls=tls) as api:
        pairs = await _unread_lists(api, 5, accept)
        await api.make(CONFIG_MAPS, config_map("written"))  # lists do not block writes
        await asyncio.sleep(0.3)
        before, _ = tracemalloc.get_traced_memory()
        for _, writer in pairs:
            writer.transport.abort()
        while len(api.server._connections._open) > 1:  # that of `api.make`
            await asyncio.sleep(0.01)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert before - after < 10 << 20, "five whole lists have 90 MB"


@pytest.mark.parametrize("tls", [False, True])
async def test_a_client_that_does_not_read_a_list_is_cut_off(
    tmp_path: Path, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "_PART_SECONDS", 0.3)
    async with served(tmp_path, tls=tls) as api:
        pairs = await _unread_lists(api, 3)
        async with asyncio.timeout(10):
            while len(api.server._connections._open) > 1:
                await asyncio.sleep(0.01)
        assert (await api.ask("GET", "/version")).code == 200
        for _, writer in pairs:
            writer.transport.abort()


async def test_others_cannot_use_up_the_watches_of_the_admin(api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "MAX_WATCHES", 5)
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(api.watch(f"{CONFIG_MAPS}?watch=true", role="viewer"))
        assert (await api.ask("GET", f"{CONFIG_MAPS}?watch=true", role="viewer")).code == 429
        await stack.enter_async_context(api.watch(f"{CONFIG_MAPS}?watch=true"))
        assert (await api.ask("GET", f"{CONFIG_MAPS}?watch=true")).code == 429


async def test_ten_thousand_watches(api: ServedStore) -> None:
    """With the limits of a real engine, most watches are refused. The others and the admin's requests work."""
    request = _request(f"{CONFIG_MAPS}?watch=true", headers="Authorization: Bearer viewer\r\n")
    codes: Counter[int] = Counter()
    kept: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open_one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
        writer.write(request.replace("HOST", "localhost").encode())
        try:
            code = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
        except (ConnectionError, asyncio.IncompleteReadError):
            code = 0
        codes[code] += 1
        if code == 200:
            kept.append((reader, writer))
        else:
            writer.close()

    for _ in range(100):
        await asyncio.gather(*(open_one() for _ in range(100)))
    assert {*codes} <= {0, 200, 429}, codes
    assert (codes.total(), codes[200], len(api.server._handlers.watches)) == (10_000, 400, 400)
    async with api.watch(f"{CONFIG_MAPS}?watch=true") as watch:
        await api.make(CONFIG_MAPS, config_map("seen"))
        assert await watch.names(1) == [("ADDED", "seen")]
    for reader, writer in kept:
        assert b'"seen"' in await asyncio.wait_for(reader.readuntil(b"\n\r\n"), 10)
        writer.close()
    async with asyncio.timeout(10):
        while len(api.server._handlers.watches) or len(api.server._connections._open) > 1:
            await asyncio.sleep(0.01)
