# SPDX-License-Identifier: Apache-2.0
"""The client of commands on a cluster: writes that are sent once, streams, missing rights, logs that are resumed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kube_server import Answer, Server, a_secret, access, drops, refuses, says, streams
from msgspec.structs import replace

from trainwright.cli.logs.merge import LineFilter
from trainwright.cli.logs.select import LogFile
from trainwright.cli.remote.streams import LogReader, RemoteLog
from trainwright.errors import ApiError, ForbiddenError, NotFoundError, QuotaError, UnavailableError
from trainwright.kube.blocking import ClusterClient
from trainwright.runtime.ports import LogPart

KEY = ("ns", "a")
SECRET = {"apiVersion": "v1", "kind": "Secret", **a_secret()}
Use = Callable[[ClusterClient], Any]


async def use(server: Server, work: Use, *, proxy: bool = False) -> Any:
    """What a call in another thread returns: the server needs this one."""
    made = replace(access("http://api.internal"), proxy=server.url) if proxy else access(server.url)

    def called() -> Any:
        with ClusterClient(made, "cluster lab") as client:
            return work(client)

    return await asyncio.to_thread(called)


def create(client: ClusterClient) -> Any:
    return client.create("secrets", SECRET)


def patch(client: ClusterClient) -> Any:
    return client.patch("secrets", KEY, {"data": {"x": "y"}})


def delete(client: ClusterClient) -> Any:
    return client.delete("secrets", KEY, propagation="Foreground", uid="u-a")


def follow(client: ClusterClient) -> bytes:
    return b"".join(client.log(KEY, "main", LogPart(follow=True, tail=3)))


@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxy"])
@pytest.mark.parametrize(
    ("work", "method", "path", "body"),
    [
        (create, "POST", "/api/v1/namespaces/ns/secrets", SECRET),
        (patch, "PATCH", "/api/v1/namespaces/ns/secrets/a", {"data": {"x": "y"}}),
        (delete, "DELETE", "/api/v1/namespaces/ns/secrets/a", None),
        (follow, "GET", "/api/v1/namespaces/ns/pods/a/log", None),
    ],
)
async def test_what_is_sent(server: Server, work: Use, method: str, path: str, body: Any, *, proxy: bool) -> None:
    server.says = [says(SECRET)]
    await use(server, work, proxy=proxy)

    (asked,) = server.asked
    assert (asked.method, asked.path) == (method, path)
    if body is not None:
        assert asked.body == body
    if work is patch:
        assert asked.headers["Content-Type"] == "application/merge-patch+json"
    if work is delete:
        assert asked.body["preconditions"] == {"uid": "u-a"}
        assert asked.body["propagationPolicy"] == "Foreground"
    if work is follow:
        assert asked.query == {"container": "main", "follow": "true", "tailLines": "3"}


@pytest.mark.parametrize(
    ("work", "trouble", "requests"),
    [
        (create, drops, 1),  # the server may have created the object
        (create, refuses(500, "InternalError"), 1),
        (create, refuses(429, "TooManyRequests"), 2),  # the server has done nothing
        (patch, drops, 2),
        (patch, refuses(500, "InternalError"), 2),
        (delete, drops, 2),
    ],
    ids=["create, lost", "create, 500", "create, 429", "patch, lost", "patch, 500", "delete, lost"],
)
async def test_a_write_is_repeated_only_if_that_is_harmless(
    server: Server, work: Use, trouble: Answer, requests: int
) -> None:
    server.says = [trouble, says(SECRET)]
    if requests == 1:
        with pytest.raises(ApiError):
            await use(server, work)
    else:
        await use(server, work)

    assert len(server.asked) == requests


@pytest.mark.parametrize(
    ("work", "right"),
    [
        (create, "create secrets in namespace 'ns'"),
        (patch, "patch secrets in namespace 'ns'"),
        (delete, "delete secrets in namespace 'ns'"),
        (follow, "get pods/log in namespace 'ns'"),
        (lambda client: client.list("pods"), "list pods"),
    ],
)
async def test_a_missing_right_is_named(server: Server, work: Use, right: str) -> None:
    server.says = [refuses(403, "Forbidden", "no")]

    with pytest.raises(ForbiddenError, match=f"^you may not {right} of cluster lab: no$"):
        await use(server, work)


async def test_other_refusals_are_no_missing_right(server: Server) -> None:
    server.says = [refuses(403, "Forbidden", "exceeded quota: few")]
    with pytest.raises(QuotaError, match=r"^exceeded quota: few$"):
        await use(server, create)
    server.says = [refuses(401, "Unauthorized", "no")]
    with pytest.raises(ForbiddenError, match=r"^the server does not know who we are: no$"):
        await use(server, create)


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxy"])
async def test_the_parts_of_a_stream_arrive_when_they_are_sent(server: Server, *, proxy: bool) -> None:
    server.says = [streams([b"a\n", 0.3, b"b\n"])]

    parts = await use(server, lambda client: list(client.log(KEY, "main", LogPart(follow=True))), proxy=proxy)
    assert parts == [b"a\n", b"b\n"]


@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxy"])
@pytest.mark.parametrize(
    ("answer", "error"),
    [(streams([b"a\n"], cut=True), UnavailableError), (refuses(404, "NotFound"), NotFoundError)],
    ids=["broken", "refused"],
)
async def test_a_stream_that_breaks_is_an_error(
    server: Server, answer: Answer, error: type[ApiError], *, proxy: bool
) -> None:
    server.says = [answer]

    with pytest.raises(error):
        await use(server, follow, proxy=proxy)


# -- logs --------------------------------------------------------------------------------------------------------------

LOG = RemoteLog("a", "main", LogFile("", "worker-0", 0, 0, 0, "uid"))
FIRST, SECOND, LATER = (f"2026-11-17T10:00:{second}Z" for second in ("00.5", "01.25", "02"))


def written(*lines: tuple[str, str]) -> Answer:
    return streams(["".join(f"{time} {text}\n" for time, text in lines).encode()])


async def test_a_log_is_resumed_behind_the_last_line(server: Server) -> None:
    """Several lines can have the same time: none of them may be missing or be printed twice."""
    before = ((FIRST, "a"), (SECOND, "b"), (SECOND, "c"))
    server.says = [written(*before), written(*before[1:], (SECOND, "d"), (LATER, "e"))]

    def work(client: ClusterClient) -> list[list[bytes]]:
        reader = LogReader(client, "ns", LineFilter())
        return [[one.piece.data for one in lines] for lines in (reader.existing_lines(LOG), reader.new_lines(LOG))]

    assert await use(server, work) == [[b"a\n", b"b\n", b"c\n"], [b"d\n", b"e\n"]]
    assert [asked.query.get("sinceTime") for asked in server.asked] == [None, "2026-11-17T10:00:01Z"]
    assert [asked.query.get("follow") for asked in server.asked] == [None, "true"]


@pytest.mark.parametrize(
    ("line", "time", "text"),
    [
        (b"2026-11-17T10:00:00.123456789Z a b\n", 1_794_909_600_123_456_789, b"a b\n"),
        (b"2026-11-17T11:00:00.5+01:00 x\n", 1_794_909_600_500_000_000, b"x\n"),
        (b"2026-11-17T10:00:00Z \n", 1_794_909_600_000_000_000, b"\n"),
        (b"2026-11-17T10:00:00Z  \xff\r", 1_794_909_600_000_000_000, b" \xff\r"),
        (b"no time\n", 0, b"no time\n"),
    ],
)
async def test_the_time_before_a_line(server: Server, line: bytes, time: int, text: bytes) -> None:
    server.says = [streams([line[:9], 0.05, line[9:]])]

    (found,) = await use(server, lambda client: list(LogReader(client, "ns", LineFilter()).existing_lines(LOG)))
    assert (found.piece.time, found.piece.data) == (time, text)


@pytest.mark.parametrize(
    ("wanted", "query", "follows"),
    [
        (LineFilter(), None, None),
        (LineFilter(last=0), "0", "0"),  # the lines before the start of the command are not wanted
        (LineFilter(last=5), "5", None),  # the log was empty: every line is new
    ],
)
async def test_the_last_lines_are_counted_by_the_server(
    server: Server, wanted: LineFilter, query: str | None, follows: str | None
) -> None:
    server.says = [streams([])]

    def work(client: ClusterClient) -> None:
        reader = LogReader(client, "ns", wanted)
        assert [*reader.existing_lines(LOG), *reader.new_lines(LOG)] == []

    await use(server, work)
    assert [asked.query.get("tailLines") for asked in server.asked] == [query, follows]
