# SPDX-License-Identifier: Apache-2.0
"""Watches: lines however they come in, bookmarks, errors in their midst, ends of all kinds."""

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web
from kube_server import HERE, SECRETS, Answer, Server, a_secret, event, refuses, says, streams, text

from trainwright.errors import ApiError, GoneError, TooManyRequestsError, UnavailableError
from trainwright.kube import cluster as watching
from trainwright.kube.cluster import KubeCluster
from trainwright.runtime.ports import PODS, Selection, WatchEvent, WatchEventType

TOO_OLD = {
    "kind": "Status",
    "status": "Failure",
    "message": "too old resource version: 1 (9)",
    "reason": "Expired",
    "code": 410,
}


async def _batches(cluster: KubeCluster, since: str = "1", resource: Any = SECRETS) -> list[tuple[WatchEvent, ...]]:
    async with asyncio.timeout(5), aclosing(cluster.watch(resource, Selection("ns", "a=b"), since=since)) as batches:
        return [batch async for batch in batches]


def _seen(batches: list[tuple[WatchEvent, ...]]) -> list[tuple[str, str]]:
    return [(change.what.value, change.version) for batch in batches for change in batch]


async def test_a_watch_asks_for_bookmarks_and_an_end(server: Server, cluster: KubeCluster) -> None:
    server.says = [streams([])]
    for _ in range(5):
        assert await _batches(cluster, "12") == []
    query = server.asked[0].query
    lasts = {int(asked.query["timeoutSeconds"]) for asked in server.asked}
    assert {name: value for name, value in query.items() if name != "timeoutSeconds"} == {
        "labelSelector": "a=b", "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "12",
    }  # fmt: skip
    assert all(300 <= seconds < 600 for seconds in lasts)
    assert len(lasts) > 1


async def test_without_a_version_it_begins_now(server: Server, cluster: KubeCluster) -> None:
    server.says = [streams([event("ADDED", a_secret(version="4"))])]
    assert _seen(await _batches(cluster, "")) == [("ADDED", "4")]
    assert "resourceVersion" not in server.asked[0].query


async def test_what_comes_together_is_one_batch(server: Server, cluster: KubeCluster) -> None:
    added, changed, gone = (
        event(what, a_secret(version=v)) for what, v in (("ADDED", "2"), ("MODIFIED", "3"), ("DELETED", "4"))
    )
    server.says = [streams([added + changed, 0.05, gone])]
    batches = await _batches(cluster)
    assert [len(batch) for batch in batches] == [2, 1]
    assert _seen(batches) == [("ADDED", "2"), ("MODIFIED", "3"), ("DELETED", "4")]
    assert batches[0][0].item == {"apiVersion": "v1", "kind": "Secret", **a_secret(version="2")}


@pytest.mark.parametrize("size", [1, 7, 100], ids=lambda size: f"{size} bytes at a time")
async def test_lines_are_put_together_again(server: Server, cluster: KubeCluster, size: int) -> None:
    data = b"".join(event("ADDED", a_secret(f"ä-{number}", version=str(number))) for number in range(5)) + b"\n"
    chunks: list[bytes | float] = [part for at in range(0, len(data), size) for part in (data[at : at + size], 0.0)]
    server.says = [streams(chunks)]
    batches = await _batches(cluster)
    assert _seen(batches) == [("ADDED", str(number)) for number in range(5)]
    assert batches[-1][-1].item["metadata"]["name"] == "ä-4"


async def test_an_event_may_be_larger_than_any_buffer(server: Server, cluster: KubeCluster) -> None:
    server.says = [streams([event("ADDED", {**a_secret(version="2"), "data": {"a": "x" * 8_000_000}})])]
    ((change,),) = await _batches(cluster)
    assert len(change.item["data"]["a"]) == 8_000_000


async def test_one_that_never_ends_is_left(
    server: Server, cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_MAX_EVENT_BYTES", 100_000)
    server.says = [streams([b"x" * 60_000, 0.01, b"x" * 60_000, 5.0])]
    with pytest.raises(UnavailableError, match="more than 100,000 bytes"):
        await _batches(cluster)


async def test_a_bookmark_tells_how_far_it_has_come(server: Server, cluster: KubeCluster) -> None:
    mark = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "77", "creationTimestamp": None}}
    server.says = [streams([event("BOOKMARK", {**mark, "spec": {"containers": None}, "status": {}})])]
    assert await _batches(cluster, resource=PODS) == [(WatchEvent(WatchEventType.BOOKMARK, "77"),)]


async def test_a_version_that_is_forgotten_from_the_start(server: Server, cluster: KubeCluster) -> None:
    server.says = [refuses(410, "Expired", "too old resource version: 1 (9)")]
    with pytest.raises(GoneError, match="too old"):
        await _batches(cluster)


async def test_what_came_before_an_error_did_happen(server: Server, cluster: KubeCluster) -> None:
    server.says = [
        streams([event("ADDED", a_secret(version="2")) + event("ERROR", TOO_OLD) + event("ADDED", a_secret())])
    ]
    seen: list[tuple[WatchEvent, ...]] = []
    with pytest.raises(GoneError, match="too old"):
        async with aclosing(cluster.watch(SECRETS, since="1")) as batches:
            seen.extend([batch async for batch in batches])
    async with aclosing(cluster.watch(SECRETS, since="1")) as batches:
        assert _seen([await anext(batches)]) == [("ADDED", "2")]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"code": 410, "reason": "Gone"}, GoneError),
        ({"code": 500, "reason": "InternalError"}, ApiError),
        ({"code": 504, "reason": "Timeout"}, UnavailableError),
        ({"code": 429, "reason": "TooManyRequests"}, TooManyRequestsError),
        ({}, UnavailableError),
    ],
    ids=lambda value: value.get("reason", "nothing") if isinstance(value, dict) else "",
)
async def test_the_error_that_ends_a_watch(
    server: Server, cluster: KubeCluster, status: dict[str, Any], error: type[ApiError]
) -> None:
    server.says = [streams([event("ERROR", {"kind": "Status", "message": "m", **status})])]
    with pytest.raises(ApiError, match="m") as caught:
        await _batches(cluster)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(streams([event("ADDED", a_secret())[:-9]]), id="within a line"),
        pytest.param(streams([event("ADDED", a_secret())], cut=True), id="the connection"),
        pytest.param(streams([b"<html>no</html>\n"]), id="no events"),
        pytest.param(streams([b'{"type": "ADDED"}\n']), id="no object"),
    ],
)
async def test_a_watch_that_breaks_off_says_so(server: Server, cluster: KubeCluster, answer: Answer) -> None:
    server.says = [answer]
    with pytest.raises(UnavailableError):
        await _batches(cluster)


@pytest.mark.parametrize("answer", [refuses(500), refuses(503), text("no", 502)], ids=["500", "503", "502"])
async def test_the_informer_decides_when_to_try_again(server: Server, cluster: KubeCluster, answer: Answer) -> None:
    server.says = [answer]
    with pytest.raises(UnavailableError):
        await _batches(cluster)
    assert len(server.asked) == 1


async def test_unless_the_server_says_when(server: Server, cluster: KubeCluster) -> None:
    server.says = [refuses(429, "TooManyRequests", Retry_After="1"), streams([])]
    assert await _batches(cluster) == []
    assert server.asked[1].at - server.asked[0].at >= 1


async def test_an_object_that_cannot_be_read_does_not_stop_it(
    server: Server, cluster: KubeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    bad = {**a_secret("b", version="3"), "status": {"phase": 3}}
    server.says = [streams([event("ADDED", bad) + event("ADDED", a_secret("c", version="4"))])]
    with caplog.at_level(logging.WARNING):
        ((passed, change),) = await _batches(cluster, resource=PODS)
    assert passed == WatchEvent(WatchEventType.BOOKMARK, "3")
    assert change.item.metadata.name == "c"
    assert "object=ns/b" in caplog.text


async def test_a_watch_that_is_left_hangs_up(server: Server, cluster: KubeCluster) -> None:
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(event("ADDED", a_secret()))
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()
        return response

    server.says = [answer]
    async with aclosing(cluster.watch(SECRETS, since="1")) as batches:
        await anext(batches)
    async with asyncio.timeout(5):
        await ended.wait()


async def test_a_server_that_never_ends_a_watch_is_left_in_time(
    server: Server, cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.kube.cluster._WATCH_SECONDS", 0)
    monkeypatch.setattr("trainwright.kube.cluster._WATCH_MARGIN_SECONDS", 0.2)
    server.says = [streams([event("ADDED", a_secret()), 30.0])]
    assert _seen(await _batches(cluster)) == [("ADDED", "1")]


async def test_a_silent_watch_does_not_keep_requests_waiting(server: Server, cluster: KubeCluster) -> None:
    """Watches come on top of the requests that are bounded."""
    server.says = [streams([event("ADDED", a_secret()), 3.0])]
    watches = [cluster.watch(SECRETS, since="1") for _ in range(cluster.http.policy.max_concurrent + 8)]
    await asyncio.gather(*[anext(one) for one in watches])
    server.says = [says(a_secret())]
    async with asyncio.timeout(1):
        await cluster.get(SECRETS, HERE)
    for one in watches:
        await one.aclose()
