# SPDX-License-Identifier: Apache-2.0
"""Requests on a bad day: what is tried again, what never is, and what the caller is told in the end."""

import asyncio
import socket

import pytest
from aiohttp import web
from kube_server import BRISK, HERE, SECRETS, Answer, Server, a_secret, access, drops, refuses, says, streams, text
from msgspec.structs import replace

from trainwright.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    MethodNotAllowedError,
    NotFoundError,
    QuotaError,
    TooManyRequestsError,
    UnavailableError,
)
from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.http import HttpClient, RequestPolicy, WriteFence
from trainwright.kube.session import ApiSession
from trainwright.model.child import Service
from trainwright.runtime.ports import Resource

NEW = {"metadata": {"name": "a", "namespace": "ns"}}
NARROW = Resource("", "v1", "services", "Service", Service)
BUSY = refuses(429, "TooManyRequests", "slow down")


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(refuses(500, "InternalError"), id="500"),
        pytest.param(refuses(503, "ServiceUnavailable"), id="503"),
        pytest.param(refuses(504, "Timeout"), id="504"),
        pytest.param(text("<html>bad gateway</html>", 502), id="a proxy's 502"),
        pytest.param(BUSY, id="429"),
        pytest.param(drops, id="no answer"),
        pytest.param(streams([b'{"metad'], cut=True), id="half an answer"),
    ],
)
async def test_what_can_be_repeated_is(server: Server, cluster: KubeCluster, first: Answer) -> None:
    server.says = [first, says(a_secret())]
    assert (await cluster.get(SECRETS, HERE))["metadata"]["name"] == "a"
    assert len(server.asked) == 2
    assert server.asked[1].at - server.asked[0].at > 0.04


@pytest.mark.parametrize("ask", ["patch", "delete with a UID"])
async def test_so_are_writes_that_come_to_the_same_when_done_twice(
    server: Server, cluster: KubeCluster, ask: str
) -> None:
    server.says = [drops, says(a_secret())]
    if ask == "patch":
        await cluster.patch(SECRETS, HERE, {"data": {}})
    else:
        await cluster.delete(SECRETS, HERE, uid="u-a")
    assert len(server.asked) == 2


@pytest.mark.parametrize("first", [refuses(500), refuses(503), drops], ids=["500", "503", "no answer"])
async def test_what_may_have_been_done_is_not_done_again(server: Server, cluster: KubeCluster, first: Answer) -> None:
    server.says = [first]
    with pytest.raises(UnavailableError):
        await cluster.create(SECRETS, NEW)
    assert len(server.asked) == 1


async def test_nor_is_a_deletion_of_whatever_bears_the_name(server: Server, cluster: KubeCluster) -> None:
    server.says = [drops]
    with pytest.raises(UnavailableError):
        await cluster.delete(SECRETS, HERE)
    assert len(server.asked) == 1


async def test_a_refusal_for_want_of_time_is_no_deed(server: Server, cluster: KubeCluster) -> None:
    server.says = [BUSY, says(a_secret())]
    assert (await cluster.create(SECRETS, NEW))["metadata"]["uid"] == "u-a"


async def test_the_server_says_when_to_come_back(server: Server, cluster: KubeCluster) -> None:
    server.says = [refuses(429, "TooManyRequests", Retry_After="1"), says(a_secret())]
    await cluster.get(SECRETS, HERE)
    assert server.asked[1].at - server.asked[0].at >= 1.0


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(refuses(429, "TooManyRequests", Retry_After="60"), id="header"),
        pytest.param(refuses(429, "TooManyRequests", details={"retryAfterSeconds": 60}), id="details"),
    ],
)
async def test_a_long_wait_is_the_callers(server: Server, cluster: KubeCluster, answer: Answer) -> None:
    server.says = [answer]
    with pytest.raises(TooManyRequestsError) as caught:
        await cluster.get(SECRETS, HERE)
    assert caught.value.retry_after == 60
    assert len(server.asked) == 1


async def test_what_etcd_cannot_store_is_not_tried_again(server: Server, cluster: KubeCluster) -> None:
    server.says = [refuses(500, "", "etcdserver: request is too large")]
    with pytest.raises(InvalidError, match="too large"):
        await cluster.patch(SECRETS, HERE, {"data": {}})
    assert len(server.asked) == 1


async def test_nobody_is_put_off_for_ever(server: Server, cluster: KubeCluster) -> None:
    server.says = [refuses(429, "TooManyRequests", **{"Retry-After": "9" * 400})]
    with pytest.raises(TooManyRequestsError) as caught:
        await cluster.get(SECRETS, HERE)
    assert caught.value.retry_after == 3600


async def test_the_password_of_a_proxy_is_not_told(server: Server) -> None:
    proxy = server.url.replace("http://", "http://me:secret@")
    there = replace(access("https://api.example"), proxy=proxy)
    async with connected(there, RequestPolicy(retry_seconds=0)) as cluster:
        with pytest.raises(UnavailableError, match="the proxy says 404") as caught:
            await cluster.get(SECRETS, HERE)
    assert "secret" not in str(caught.value)


async def test_patience_ends(server: Server, cluster: KubeCluster) -> None:
    server.says = [refuses(503, "ServiceUnavailable", "not today")]
    with pytest.raises(UnavailableError, match="not today"):
        await cluster.get(SECRETS, HERE)
    assert server.asked[-1].at - server.asked[0].at < 2 * BRISK.retry_seconds  # a request may reach the server late
    assert 3 <= len(server.asked) <= 8


async def test_an_answer_that_does_not_come_is_not_waited_for(server: Server) -> None:
    server.says = [streams([b"{", 30.0])]
    async with connected(access(server.url), RequestPolicy(timeout=0.2, retry_seconds=0)) as cluster:
        with pytest.raises(UnavailableError, match=r"no answer from http://127\.0\.0\.1:\d+: none within 0.2 s"):
            await cluster.get(SECRETS, HERE)


async def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with connected(access(url), RequestPolicy(retry_seconds=0)) as cluster:
            with pytest.raises(
                UnavailableError, match=rf"no answer from {url}: Connection refused; nothing listens there"
            ):
                await cluster.create(SECRETS, NEW)


async def test_a_server_that_comes_up_gets_even_what_must_not_be_repeated(server: Server) -> None:
    """Without a connection nothing can have been done."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    counted: list[tuple[str, str, int]] = []

    def count(verb: str, what: str, code: int, _: float) -> None:
        counted.append((verb, what, code))

    async with connected(access(f"http://127.0.0.1:{port}")) as plain:
        cluster = KubeCluster(HttpClient(plain.http.session, observer=count))
        making = asyncio.create_task(cluster.create(SECRETS, NEW))
        while not counted:
            await asyncio.sleep(0.01)
        server.says = [says(a_secret())]
        relay = await asyncio.start_server(lambda *pipe: _relay(server.url, *pipe), "127.0.0.1", port)
        async with relay:
            await making
    assert counted[0] == ("create", "secrets", 0)
    assert counted[-1] == ("create", "secrets", 200)
    assert len(server.asked) == 1


async def _relay(url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    up, down = await asyncio.open_connection(host, int(port))
    down.write(await reader.read(65536))
    writer.write(await up.read(65536))
    for one in (down, writer):
        one.close()
        await one.wait_closed()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        pytest.param(refuses(404, "NotFound", 'secrets "a" not found'), NotFoundError, 'secrets "a"', id="404"),
        pytest.param(text("404 page not found", 404), NotFoundError, "404 page not found", id="no such resource"),
        pytest.param(refuses(403, "Forbidden", "who may not"), ForbiddenError, "who may not", id="403"),
        pytest.param(refuses(403, "Forbidden", "exceeded quota: few"), QuotaError, "exceeded quota: few", id="quota"),
        pytest.param(refuses(403, "", "exceeded quota: few"), QuotaError, "exceeded quota: few", id="quota, no reason"),
        pytest.param(refuses(401, "Unauthorized", "Unauthorized"), ForbiddenError, "who we are", id="401"),
        pytest.param(refuses(409, "Conflict"), ConflictError, "no", id="409"),
        pytest.param(refuses(400, "BadRequest"), InvalidError, "no", id="400"),
        pytest.param(refuses(413, "RequestEntityTooLarge"), InvalidError, "no", id="413"),
        pytest.param(refuses(405, "MethodNotAllowed"), MethodNotAllowedError, "no", id="405"),
        pytest.param(says({}, 302, Location="/elsewhere"), ApiError, "HTTP 302", id="a redirect"),
        pytest.param(text("<html>", 200), ApiError, "cannot be read", id="a captive portal"),
        pytest.param(says({"metadata": 3}), ApiError, "cannot be read", id="nonsense"),
    ],
)
async def test_what_is_said_once_is_not_asked_again(
    server: Server, cluster: KubeCluster, answer: Answer, error: type[ApiError], words: str
) -> None:
    server.says = [answer]
    with pytest.raises(ApiError, match=words) as caught:
        await cluster.get(NARROW, HERE)
    assert type(caught.value) is error
    assert len(server.asked) == 1


async def test_a_webhook_that_fails_is_no_lost_server(server: Server, cluster: KubeCluster) -> None:
    server.says = [refuses(500, "InternalError", "failed calling webhook")]
    with pytest.raises(ApiError, match="webhook") as caught:
        await cluster.create(SECRETS, NEW)
    assert type(caught.value) is ApiError


async def test_a_version_that_the_server_waited_for_in_vain_is_not_asked_for_again(
    server: Server, cluster: KubeCluster
) -> None:
    causes = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    server.says = [refuses(504, "Timeout", "Too large resource version", details=causes)]
    with pytest.raises(UnavailableError, match="Too large"):
        await cluster.list(SECRETS, not_older_than="99")
    assert len(server.asked) == 1


class _Closed(WriteFence):
    """A fence that lets nothing through but what it is told to."""

    def __init__(self) -> None:
        super().__init__(None, timeout=5)
        self.seen: list[bool] = []

    async def wait(self, *, is_write: bool) -> None:
        self.seen.append(is_write)
        if is_write:
            raise ForbiddenError("not the leader")


class _Late(WriteFence):
    """A fence that lets everything through, and has changed its mind when the bytes are to go out."""

    def __init__(self) -> None:
        super().__init__(None, timeout=5)
        self.open = False
        self.seen: list[bool] = []

    async def wait(self, *, is_write: bool) -> None:
        self.seen.append(is_write)

    def check(self) -> None:
        if not self.open:
            raise UnavailableError("the lease has ended meanwhile")


async def test_a_write_is_not_sent_when_the_fence_has_closed_since_it_passed(server: Server) -> None:
    """The process was stopped while a connection was made, and goes on when somebody else leads."""
    fence = _Late()
    server.says = [says(a_secret())]
    async with connected(access(server.url)) as plain:
        cluster = KubeCluster(HttpClient(plain.http.session, fence=fence))
        await cluster.get(SECRETS, HERE)
        for write in (
            cluster.create(SECRETS, NEW),
            cluster.patch(SECRETS, HERE, {"data": {}}, uid="one"),
            cluster.delete(SECRETS, HERE, uid="one"),
        ):
            with pytest.raises(UnavailableError, match="the lease has ended meanwhile"):
                await write
        assert [one.method for one in server.asked] == ["GET"]
        assert fence.seen == [False, True, True, True], "and none is tried again"
        fence.open = True
        await cluster.create(SECRETS, NEW)
    assert [one.method for one in server.asked] == ["GET", "POST"]


async def test_the_fence_sees_every_attempt_and_can_refuse(server: Server) -> None:
    fence = _Closed()
    server.says = [drops, says(a_secret())]
    async with connected(access(server.url)) as plain:
        cluster = KubeCluster(HttpClient(plain.http.session, fence=fence))
        await cluster.get(SECRETS, HERE)
        with pytest.raises(ForbiddenError, match="not the leader"):
            await cluster.create(SECRETS, NEW)
        assert fence.seen == [False, False, True]
        assert len(server.asked) == 2
        await plain.create(SECRETS, NEW)
    assert len(fence.seen) == 3


async def test_only_so_many_requests_are_under_way(server: Server) -> None:
    going, most = 0, 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal going, most
        going += 1
        most = max(most, going)
        await asyncio.sleep(0.02)
        going -= 1
        return await says(a_secret())(request)

    server.says = [answer]
    session = ApiSession(access(server.url))
    cluster = KubeCluster(HttpClient(session, RequestPolicy(max_concurrent=3)))
    await asyncio.gather(*[cluster.get(SECRETS, HERE) for _ in range(10)])
    await session.close()
    assert most == 3
