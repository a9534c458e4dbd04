# SPDX-License-Identifier: Apache-2.0
"""Which connection a request uses: reuse, cancellation, time limits, streams that are left, and the end of a session.

The server is a raw one that counts its connections. It answers with the path of the request.
"""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from kube_server import access

from trainwright.errors import InvalidError, TooManyRequestsError, UnavailableError
from trainwright.kube.certificates import AuthHeaders
from trainwright.kube.codec import Request
from trainwright.kube.connection import ConnectError, Connection
from trainwright.kube.http import HttpClient, RequestPolicy
from trainwright.kube.session import ApiSession, DirectTransport

AUTH = AuthHeaders({})
SECONDS = 5.0, 5.0
Answering = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Answers each request with `answer`, which gets the path."""

    def __init__(self) -> None:
        self.connections = 0
        self.heads: list[str] = []
        self.answer: Answering = echo
        self.may_answer = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                if "Content-Length: " in head:
                    await reader.readexactly(int(head.partition("Content-Length: ")[2].partition("\r\n")[0]))
                await self.answer(head.split()[1], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def asked(self, count: int) -> None:
        """Wait until so many requests have arrived."""
        while len(self.heads) < count:
            await asyncio.sleep(0.001)

    async def when_told(self, path: str, writer: asyncio.StreamWriter) -> None:
        await self.may_answer.wait()
        await echo(path, writer)


async def echo(path: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path.encode()))


async def never(path: str, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def events(path: str, writer: asyncio.StreamWriter) -> None:
    """A stream that goes on."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
    await asyncio.sleep(60)


@asynccontextmanager
async def listening(host: str = "127.0.0.1") -> AsyncIterator[RawServer]:
    raw, tasks = RawServer(), set[asyncio.Task[Any]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await raw.serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, host, 0)
    port = server.sockets[0].getsockname()[1]
    raw.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        yield raw
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


@pytest.fixture
async def server() -> AsyncIterator[RawServer]:
    async with listening() as one:
        yield one


@pytest.fixture
async def session(server: RawServer) -> AsyncIterator[ApiSession]:
    one = ApiSession(access(server.url))
    yield one
    await one.close()
    assert open_sockets(one) == 0


@pytest.fixture
def transport(session: ApiSession) -> DirectTransport:
    one = session.transport(AUTH)
    assert isinstance(one, DirectTransport)
    return one


def open_sockets(session: ApiSession) -> int:
    return sum(sock.fileno() >= 0 for sock in session._sockets)


async def get(transport: DirectTransport, path: str = "/x", seconds: tuple[float, float] = SECONDS) -> str:
    answer = await transport.exchange(Request("get", "things", path), AUTH, seconds, None)
    return answer.body.decode()


@contextmanager
def no_reports() -> Iterator[None]:
    """The event loop reports no error that nobody has handled."""
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    yield
    gc.collect()
    assert reports == []


# -- reuse ------------------------------------------------------------------------------------------------------------


async def test_requests_one_after_the_other_share_a_connection(server: RawServer, transport: DirectTransport) -> None:
    assert [await get(transport, f"/{at}") for at in range(3)] == ["/0", "/1", "/2"]
    assert server.connections == 1


async def test_requests_at_the_same_time_do_not(server: RawServer, transport: DirectTransport) -> None:
    server.answer = server.when_told
    paths = [f"/{at}" for at in range(4)]
    for asked in (4, 8):
        server.may_answer.clear()
        answers = asyncio.gather(*[get(transport, path) for path in paths])
        await server.asked(asked)
        server.may_answer.set()
        assert await answers == paths
    assert server.connections == 4


@pytest.mark.parametrize("says_so", [True, False])
async def test_a_server_that_closes_after_each_answer(
    server: RawServer, transport: DirectTransport, says_so: bool
) -> None:
    async def close(path: str, writer: asyncio.StreamWriter) -> None:
        header = b"Connection: close\r\n" if says_so else b""
        writer.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: 2\r\n\r\nhi" % header)
        writer.close()

    server.answer = close
    for _ in range(3):
        assert await get(transport) == "hi"
        await asyncio.sleep(0 if says_so else 0.05)
    assert server.connections == 3


async def test_a_connection_that_cannot_be_used_again_is_closed_at_once(
    server: RawServer, session: ApiSession, transport: DirectTransport
) -> None:
    """The server says that it closes the connection, and then leaves this to us."""

    async def promise(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi")

    server.answer = promise
    assert await get(transport) == "hi"
    await asyncio.sleep(0)
    assert open_sockets(session) == 0


async def test_the_last_of_two_idle_connections_is_closed_by_the_server(
    server: RawServer, transport: DirectTransport
) -> None:
    writers = {}

    async def answer(path: str, writer: asyncio.StreamWriter) -> None:
        writers[path] = writer
        await server.when_told(path, writer)

    server.answer = answer
    first, last = (asyncio.create_task(get(transport, path)) for path in ("/first", "/last"))
    await server.asked(2)
    server.may_answer.set()
    await asyncio.gather(first, last)
    ((_, _), (idle, _)) = transport._idle
    next(writer for writer in writers.values() if is_peer(idle, writer)).close()
    while idle.usable:
        await asyncio.sleep(0.001)
    assert await get(transport, "/next") == "/next"
    assert server.connections == 2


def is_peer(connection: Connection, writer: asyncio.StreamWriter) -> bool:
    assert connection._transport is not None
    return bool(connection._transport.get_extra_info("sockname") == writer.get_extra_info("peername"))


async def test_a_connection_that_was_idle_for_long_is_closed(
    server: RawServer, session: ApiSession, transport: DirectTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    await get(transport)
    monkeypatch.setattr("trainwright.kube.session._IDLE_SECONDS", 0.0)
    await asyncio.sleep(0.01)
    await get(transport)
    assert server.connections == 2
    await asyncio.sleep(0.01)
    assert open_sockets(session) == 1


# -- requests that are given up ---------------------------------------------------------------------------------------


async def test_a_cancelled_request_never_gives_its_answer_to_another(
    server: RawServer, transport: DirectTransport
) -> None:
    """Cancelled after each number of turns of the event loop, from the connection to after the answer."""
    outcomes = set()
    for turns in range(40):
        doomed = asyncio.create_task(get(transport, f"/doomed/{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        outcomes.add(doomed.cancel())
        assert await get(transport, f"/{turns}") == f"/{turns}"
        assert await get(transport, f"/{turns}/again") == f"/{turns}/again"
        await asyncio.gather(doomed, return_exceptions=True)
    assert outcomes == {True, False}


async def test_the_answer_of_a_cancelled_request_arrives_late(server: RawServer, transport: DirectTransport) -> None:
    await get(transport)
    server.answer = server.when_told
    doomed = asyncio.create_task(get(transport, "/doomed"))
    await server.asked(2)
    doomed.cancel()
    other = asyncio.create_task(get(transport, "/other"))
    await server.asked(3)
    server.may_answer.set()
    assert await other == "/other"
    await asyncio.sleep(0.01)
    assert await get(transport, "/third") == "/third"
    assert server.connections == 2


async def test_neither_does_one_whose_time_is_over(server: RawServer, transport: DirectTransport) -> None:
    server.answer = server.when_told
    with pytest.raises(TimeoutError):
        await get(transport, "/late", (5.0, 0.05))
    server.may_answer.set()
    assert await get(transport, "/other") == "/other"
    assert server.connections == 2


async def test_the_time_includes_the_connection(
    server: RawServer, transport: DirectTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = never
    connect, left = transport._connect, []

    async def slow_connect(seconds: float) -> Connection:
        await asyncio.sleep(0.05)
        connection = await connect(seconds)
        for name in ("exchange", "open"):
            monkeypatch.setattr(connection, name, noted(getattr(connection, name)))
        return connection

    def noted(call: Callable[[bytes, float], Awaitable[Any]]) -> Callable[[bytes, float], Awaitable[Any]]:
        def noting(data: bytes, seconds: float) -> Awaitable[Any]:
            left.append(seconds)
            return call(data, seconds)

        return noting

    monkeypatch.setattr(transport, "_connect", slow_connect)
    with pytest.raises(TimeoutError):
        await get(transport, seconds=(1.0, 0.1))
    with pytest.raises(TimeoutError):
        async with transport.stream(Request("watch", "things", "/x"), AUTH, (1.0, 0.1)):
            pass
    assert len(left) == 2
    assert max(left) <= 0.05


async def test_no_connection_in_time(session: ApiSession, server: RawServer) -> None:
    """The server accepts the connection, but says nothing about TLS."""
    context = ssl.create_default_context()
    silent = DirectTransport(server.url.replace("http", "https"), "", [], context, session._new_socket)
    with pytest.raises(ConnectError) as caught:
        await get(silent, seconds=(0.05, 5.0))
    assert isinstance(caught.value.cause, TimeoutError)
    await asyncio.sleep(0)
    assert open_sockets(session) == 0


async def test_a_connection_that_is_ready_too_late_is_closed_by_the_event_loop(
    session: ApiSession, transport: DirectTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the loop would still watch the number of a closed socket, which the next socket gets."""
    loop, made = asyncio.get_running_loop(), []
    create = loop.create_connection

    async def late(*args: Any, **options: Any) -> None:
        made.append((await create(*args, **options))[0])
        raise TimeoutError

    monkeypatch.setattr(loop, "create_connection", late)
    with pytest.raises(ConnectError):
        await get(transport)
    assert made[0].is_closing()
    assert open_sockets(session) == 0


async def test_nothing_is_sent_if_the_last_check_fails(server: RawServer, transport: DirectTransport) -> None:
    """The check comes after the connection, which takes time; the connection can be used by the next request."""

    def check() -> None:
        assert len(transport._connections) == 1
        raise UnavailableError("no lease")

    with pytest.raises(UnavailableError, match="no lease"):
        await transport.exchange(Request("create", "things", "/x", b"{}"), AUTH, SECONDS, check)
    assert await get(transport, "/next") == "/next"
    assert (server.connections, len(server.heads)) == (1, 1)


# -- streams ----------------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_left_leaves_nothing(server: RawServer, session: ApiSession) -> None:
    server.answer = events
    others = asyncio.all_tasks()
    with no_reports():
        chunks = HttpClient(session).stream(Request("watch", "things", "/x"), 600.0)
        assert await anext(chunks) == b"x"
        served = asyncio.all_tasks() - others
        await chunks.aclose()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() - others - served == set()
        assert open_sockets(session) == 0


async def test_a_stream_that_has_ended_is_not_kept_until_its_time_is_over(
    server: RawServer, transport: DirectTransport
) -> None:
    async with transport.stream(Request("watch", "things", "/x"), AUTH, (5.0, 600.0)) as answer:
        assert [chunk async for chunk in answer.chunks()] == [b"/x"]
    del answer
    await asyncio.sleep(0.01)
    gc.collect()
    assert len(transport._connections) == 0


@pytest.mark.parametrize("order", ["break off last", "refuse last"])
async def test_a_stream_that_was_refused_keeps_no_connection(
    server: RawServer, session: ApiSession, order: str
) -> None:
    async def refuse(path: str, writer: asyncio.StreamWriter) -> None:
        server.answer = break_off if order == "break off last" else events
        writer.write(b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n")

    async def break_off(path: str, writer: asyncio.StreamWriter) -> None:
        server.answer = events if order == "break off last" else refuse
        writer.write(b"HTTP/1.1 503 Unavailable\r\nContent-Length: 9\r\n\r\n")

    server.answer = refuse if order == "break off last" else break_off
    client = HttpClient(session, RequestPolicy(timeout=0.5))
    chunks = client.stream(Request("watch", "things", "/x", idempotent=True), 600.0)
    assert await anext(chunks) == b"x"
    assert len(server.heads) == 3
    assert open_sockets(session) == 1
    await chunks.aclose()


async def test_a_stream_that_is_refused_for_good_leaves_nothing(server: RawServer, session: ApiSession) -> None:
    async def refuse(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\nRetry-After: 600\r\n\r\n")

    server.answer = refuse
    with pytest.raises(TooManyRequestsError) as caught:
        await anext(HttpClient(session).stream(Request("watch", "things", "/x"), 600.0))
    assert caught.value.retry_after == 600.0
    await asyncio.sleep(0)
    assert open_sockets(session) == 0


async def test_a_slow_reader_stops_a_fast_server(server: RawServer, transport: DirectTransport) -> None:
    sent = 0

    async def flood(path: str, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 64 << 20:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16
        writer.close()

    server.answer = flood
    async with transport.stream(Request("get", "things", "/x"), AUTH, SECONDS) as answer:
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 32 << 20
        assert sum([len(chunk) async for chunk in answer.chunks()]) == 64 << 20


# -- the end of a session ---------------------------------------------------------------------------------------------


async def test_the_end_interrupts_what_is_under_way(server: RawServer) -> None:
    server.answer = events
    session = ApiSession(access(server.url))
    policy = RequestPolicy(retry_seconds=0)
    with no_reports():
        chunks = HttpClient(session, policy).stream(Request("watch", "things", "/x"), 600.0)
        assert await anext(chunks) == b"x"
        server.answer = never
        post = asyncio.create_task(HttpClient(session, policy).send(Request("create", "things", "/x", b"{}")))
        await server.asked(2)
        assert open_sockets(session) == 2
        await session.close()
        assert open_sockets(session) == 0
        with pytest.raises(UnavailableError, match="the connection was closed"):
            await post
        with pytest.raises(UnavailableError, match="the connection was closed"):
            await anext(chunks)


async def test_a_connection_that_is_ready_after_the_end_is_closed(
    session: ApiSession, transport: DirectTransport, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, may_resolve = asyncio.get_running_loop(), asyncio.Event()
    resolve = loop.getaddrinfo

    async def slow_resolve(*args: Any, **options: Any) -> Any:
        await may_resolve.wait()
        return await resolve(*args, **options)

    monkeypatch.setattr(loop, "getaddrinfo", slow_resolve)
    request = asyncio.create_task(get(transport))
    await asyncio.sleep(0)
    await transport.close()
    may_resolve.set()
    with pytest.raises(ConnectError, match="closed"):
        await request
    assert (server.heads, open_sockets(session)) == ([], 0)


async def test_a_new_certificate_does_not_interrupt_a_request(server: RawServer, session: ApiSession) -> None:
    old, new = AuthHeaders({}, (b"old", b"key")), AuthHeaders({}, (b"new", b"key"))
    server.answer = server.when_told
    request = Request("get", "things", "/old")
    under_way = asyncio.create_task(session.transport(old).exchange(request, old, SECONDS, None))
    await server.asked(1)
    transport = session.transport(new)
    assert transport is session.transport(AuthHeaders({}, (b"new", b"key")))
    server.answer = echo
    answer = await transport.exchange(Request("get", "things", "/new"), new, SECONDS, None)
    server.may_answer.set()
    assert (answer.body, (await under_way).body) == (b"/new", b"/old")
    assert (server.connections, len(session._retiring)) == (2, 1)


# -- what is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "base", "expected"),
    [
        pytest.param("127.0.0.1", "", ("/x", "127.0.0.1"), id="IPv4"),
        pytest.param("127.0.0.1", "/k8s/clusters/c-1", ("/k8s/clusters/c-1/x", "127.0.0.1"), id="below a path"),
        pytest.param("::1", "", ("/x", "[::1]"), id="IPv6"),
    ],
)
async def test_addresses(host: str, base: str, expected: tuple[str, str]) -> None:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with listening(host) as server:
        session = ApiSession(access(f"{server.url}{base}"))
        await session.transport(AUTH).exchange(Request("get", "things", "/x"), AUTH, SECONDS, None)
        await session.close()
    path, name = expected
    port = server.url.rpartition(":")[2]
    assert server.heads[0].startswith(f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\n")


@pytest.mark.parametrize(
    ("url", "header", "name"),
    [
        ("https://api.example", "api.example", "api.example"),
        ("https://API.example:443", "api.example:443", "api.example"),
        ("https://api.example.:6443/k8s", "api.example.:6443", "api.example"),
        ("https://me:secret@api.example", "api.example", "api.example"),
        ("https://[2001:db8::1]:6443", "[2001:db8::1]:6443", "2001:db8::1"),
        ("https://bücher.example", "xn--bcher-kva.example", "bücher.example"),
    ],
)
async def test_the_name_of_the_server(url: str, header: str, name: str) -> None:
    transport = DirectTransport(url, "", [], ssl.create_default_context(), lambda _: socket.socket())
    sent = transport._encode(Request("get", "things", "/x"), AUTH)
    assert f"\r\nHost: {header}\r\n" in sent.decode()
    assert transport._server_name == name


@pytest.mark.parametrize("path", ["/a\r\nX: y", "/a\nb", "/ü", "/a\x00"])
async def test_a_path_that_is_not_one_is_not_sent(server: RawServer, transport: DirectTransport, path: str) -> None:
    with pytest.raises(InvalidError, match="characters that an HTTP request cannot contain"):
        await get(transport, path)
    assert server.connections == 0


async def test_new_credentials_replace_the_old_ones(server: RawServer, transport: DirectTransport) -> None:
    for token in ("one", "two"):
        auth = AuthHeaders({"Authorization": f"Bearer {token}"})
        await transport.exchange(Request("create", "things", "/x", b"{}"), auth, SECONDS, None)
    sent = [[line for line in head.split("\r\n") if line.startswith("Auth")] for head in server.heads]
    assert sent == [["Authorization: Bearer one"], ["Authorization: Bearer two"]]
    assert server.connections == 1
