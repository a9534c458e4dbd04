# SPDX-License-Identifier: Apache-2.0
"""The bytes of an answer: the parser in `kube.connection`, fed in every possible way, and what ends a connection."""

import asyncio
import gc
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.kube.connection import Connection, HttpAnswer

OK = b"HTTP/1.1 200 OK\r\n"
TWO = OK + b"Content-Length: 2\r\n\r\nhi"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.aborted, self.paused = b"", False, False

    def write(self, data: Any) -> None:
        self.sent += data

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def connect() -> tuple[Connection, Wire]:
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    return connection, wire


async def answer_to(pieces: Iterable[bytes], *, closes: bool = False) -> tuple[HttpAnswer | str, bool]:
    """The answer, or the text of the error; and whether the connection can be used again."""
    connection, wire = connect()
    exchange = asyncio.create_task(connection.exchange(b"request", 60.0))
    await asyncio.sleep(0)
    assert wire.sent == b"request"
    for piece in pieces:
        if not wire.aborted:
            connection.data_received(piece)
    if closes:
        connection.connection_lost(None)
    done, _ = await asyncio.wait([exchange], timeout=0.05)
    if not done:
        exchange.cancel()
        await asyncio.wait([exchange])
        return "no answer yet", False
    error = exchange.exception()
    return str(error) if error else exchange.result(), connection.usable


def at_once(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    """Of many bytes, only the last ones are alone: the others would take seconds."""
    alone = range(max(0, len(data) - 1_000), len(data))
    return [piece for piece in (data[: alone.start], *(data[at : at + 1] for at in alone)) if piece]


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[start:end] for start, end in pairwise(places)]


#: Bytes, the body, and whether the connection can be used again. The code is 200 unless the case says otherwise.
ANSWERS = {
    "length": (TWO, b"hi", True),
    "no body": (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", b"hi", True),
    "names in capitals, no space, many spaces": (OK + b"CONTENT-LENGTH:2\r\nX:  \t y \r\n\r\nhi", b"hi", True),
    "two answers": (TWO + TWO, b"hi", False),
    "surplus": (TWO + b"!", b"hi", False),
    "chunks": (CHUNKED + b"2\r\nhi\r\n3\r\n\r\n!\r\n0\r\n\r\n", b"hi\r\n!", True),
    "size in capitals and with zeros": (CHUNKED + b"00A\r\n0123456789\r\n0\r\n\r\n", b"0123456789", True),
    "chunk extensions": (CHUNKED + b"2;a=b;c\r\nhi\r\n1 ; d\r\n!\r\n0;e\r\n\r\n", b"hi!", True),
    "trailers": (CHUNKED + b"2\r\nhi\r\n0\r\nA: b\r\nContent-Length: 7\r\n\r\n", b"hi", True),
    "chunks and surplus": (CHUNKED + b"2\r\nhi\r\n0\r\n\r\nX", b"hi", False),
    "CHUNKED": (OK + b"transfer-encoding: Chunked\r\n\r\n0\r\n\r\n", b"", True),
    "interim answers": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + TWO, b"hi", True),
    "close": (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
    "close, the second time": (
        OK + b"Connection: close\r\nConnection: x\r\nContent-Length: 2\r\n\r\nhi",
        b"hi",
        False,
    ),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
    "large head": (OK + b"X: " + b"x" * 8000 + b"\r\nContent-Length: 2\r\n\r\nhi", b"hi", True),
}
#: Bytes, and a part of the error.
ERRORS = {
    "another protocol": (b"SSH-2.0-OpenSSH_9.2\r\n", "begins with 'S"),
    "HTTP/2": (b"HTTP/2 200 OK\r\n\r\n", "begins with 'HTTP/2"),
    "a code of two digits": (b"HTTP/1.1 20\r\nContent-Length: 0\r\n\r\n", "begins with 'HTTP/1.1 20'"),
    "a code of four digits": (b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", "begins with 'HTTP/1.1 2000"),
    "a low code": (b"HTTP/1.1 099 OK\r\n\r\n", "begins with 'HTTP/1.1 099"),
    "another protocol from now on": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "changes the protocol"),
    "LF only": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", "does not end with CR LF"),
    "LF in between": (OK + b"X: y\nContent-Length: 2\r\n\r\nhi", "does not end with CR LF"),
    "endless head": (OK + b"X: " + b"x" * (1 << 16), "does not end"),
    "head too large": (OK + b"X: " + b"x" * (1 << 16) + b"\r\nContent-Length: 0\r\n\r\n", "does not end"),
    "no colon": (OK + b"X\r\n\r\n", "has the line 'X'"),
    "no name": (OK + b": x\r\n\r\n", "has the line ': x'"),
    "a space before the colon": (OK + b"Content-Length : 2\r\n\r\nhi", "has the line 'Content-Length : 2'"),
    "a continued line": (OK + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", "has the line ' chunked'"),
    "negative length": (OK + b"Content-Length: -2\r\n\r\nhi", "Content-Length is '-2'"),
    "length with a sign": (OK + b"Content-Length: +2\r\n\r\nhi", "Content-Length is '+2'"),
    "length with an underscore": (OK + b"Content-Length: 1_0\r\n\r\n0123456789", "Content-Length is '1_0'"),
    "empty length": (OK + b"Content-Length:\r\n\r\nhi", "Content-Length is ''"),
    "two lengths": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi!", "Content-Length is '2, 3'"),
    "both": (OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "a Content-Length too"),
    "compressed": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "not `chunked`"),
    "chunked twice": (CHUNKED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "not `chunked`"),
    "negative size": (CHUNKED + b"-2\r\nhi\r\n0\r\n\r\n", "a chunk begins with b'-2'"),
    "size with a prefix": (CHUNKED + b"0x2\r\nhi\r\n0\r\n\r\n", "a chunk begins with b'0x2'"),
    "no size": (CHUNKED + b"\r\nhi\r\n0\r\n\r\n", "a chunk begins with b''"),
    "only an extension": (CHUNKED + b";a\r\n0\r\n\r\n", "a chunk begins with b';a'"),
    "not a size": (CHUNKED + b"hi\r\n", "a chunk begins with b'hi'"),
    "chunk longer than its size": (CHUNKED + b"2\r\nhi!\r\n0\r\n\r\n", "longer than its size"),
    "endless size": (CHUNKED + b"2;" + b"x" * (1 << 13), "a line between two chunks does not end"),
    "size line too long": (CHUNKED + b"2;" + b"x" * (1 << 13) + b"\r\nhi\r\n", "between two chunks does not end"),
}
#: Bytes before the server closes the connection, and the body; or None if the answer is not complete.
CLOSED = {
    "no length": (OK + b"\r\nhi", b"hi"),
    "no length, no body": (OK + b"\r\n", b""),
    "HTTP/1.0 without a length": (b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nhi", b"hi"),
    "complete": (TWO, b"hi"),
    "nothing": (b"", None),
    "half a head": (OK, None),
    "only an interim answer": (b"HTTP/1.1 100 Continue\r\n\r\n", None),
    "half a body": (TWO[:-1], None),
    "half a chunk": (CHUNKED + b"2\r\nh", None),
    "no last chunk": (CHUNKED + b"2\r\nhi\r\n", None),
    "half a trailer": (CHUNKED + b"0\r\nA: b\r\n", None),
}
SPLITS = pytest.mark.parametrize("split", [at_once, byte_by_byte])


@SPLITS
@pytest.mark.parametrize("case", ANSWERS)
async def test_answers(case: str, split: Any) -> None:
    data, body, usable = ANSWERS[case]
    assert await answer_to(split(data)) == (HttpAnswer(200, body), usable)


@SPLITS
@pytest.mark.parametrize("case", ERRORS)
async def test_what_is_not_certain_is_an_error(case: str, split: Any) -> None:
    data, words = ERRORS[case]
    text, usable = await answer_to(split(data))
    assert isinstance(text, str)
    assert text.startswith("the answer is not HTTP/1.1: ")
    assert words in text
    assert not usable


@SPLITS
@pytest.mark.parametrize("case", CLOSED)
async def test_the_end_of_the_connection(case: str, split: Any) -> None:
    data, body = CLOSED[case]
    expected = "Server disconnected" if body is None else HttpAnswer(200, body)
    assert await answer_to(split(data), closes=True) == (expected, False)


@SPLITS
@pytest.mark.parametrize("code", [204, 304])
@pytest.mark.parametrize(
    ("headers", "usable"),
    [(b"", True), (b"Content-Length: 0\r\n", True), (b"Content-Length: 2\r\n", False), (CHUNKED[17:-2], False)],
    ids=["none", "0", "2", "chunked"],
)
async def test_answers_without_a_body(code: int, headers: bytes, usable: bool, split: Any) -> None:
    data = b"HTTP/1.1 %d X\r\n%s\r\n" % (code, headers)
    assert await answer_to(split(data)) == (HttpAnswer(code, b""), usable)


async def test_an_answer_that_is_not_complete_is_waited_for() -> None:
    for data in (b"", OK, CHUNKED, OK + b"\r\nhi", TWO[:-1], CHUNKED + b"2\r\nhi\r\n0\r\n"):
        assert await answer_to([data] if data else []) == ("no answer yet", False)


async def test_the_pause_that_a_server_wants() -> None:
    data = b"HTTP/1.1 429 Too Many\r\nretry-after:  7 \r\nContent-Length: 0\r\n\r\n"
    assert await answer_to([data]) == (HttpAnswer(429, b"", "7"), True)


ALL: list[bytes] = [case[0] for table in (ANSWERS, ERRORS, CLOSED) for case in table.values()]


@given(data=st.sampled_from([data for data in ALL if len(data) < 300]), cuts=st.lists(st.integers(0, 300)))
@settings(max_examples=300, deadline=None)
def test_how_the_bytes_are_split_does_not_matter(data: bytes, cuts: list[int]) -> None:
    async def both() -> list[tuple[HttpAnswer | str, bool]]:
        return [await answer_to(pieces, closes=True) for pieces in ([data], split_at(data, cuts))]

    whole, parts = asyncio.run(both())
    if isinstance(whole[0], str) and "begins with" in whole[0]:  # the error shows as much as has arrived
        assert "begins with" in str(parts[0])
    else:
        assert parts == whole


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    cuts=st.lists(st.integers(0, 300)),
    extension=st.sampled_from([b"", b";x", b" ;x=y"]),
    trailer=st.sampled_from([b"", b"X: y\r\n"]),
)
@settings(max_examples=200, deadline=None)
def test_chunks_contain_what_was_sent(chunks: list[bytes], cuts: list[int], extension: bytes, trailer: bytes) -> None:
    sent = b"".join(b"%x%s\r\n%s\r\n" % (len(one), extension, one) for one in chunks)
    data = CHUNKED + sent + b"0\r\n" + trailer + b"\r\n"
    assert asyncio.run(answer_to(split_at(data, cuts))) == (HttpAnswer(200, b"".join(chunks)), True)


# -- one connection ---------------------------------------------------------------------------------------------------


async def test_one_answer_after_the_other() -> None:
    connection, wire = connect()
    chunked = CHUNKED + b"2\r\nhi\r\n0\r\nX: y\r\n\r\n"
    for data in (chunked, TWO, chunked, chunked):
        exchange = asyncio.create_task(connection.exchange(b"x", 60.0))
        await asyncio.sleep(0)
        connection.data_received(data)
        assert await exchange == HttpAnswer(200, b"hi")
        assert connection.usable
    assert (wire.sent, wire.aborted) == (b"xxxx", False)


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(lambda one: one.data_received(b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n"), id="bytes"),
        pytest.param(lambda one: one.eof_received(), id="end of the stream"),
        pytest.param(lambda one: one.connection_lost(None), id="end of the connection"),
        pytest.param(lambda one: one.connection_lost(ConnectionResetError("reset")), id="reset"),
        pytest.param(lambda one: one.abort(), id="abort"),
    ],
)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
async def test_an_idle_connection_that_ends_is_not_used_again(ends: Any, used: bool) -> None:
    connection, wire = connect()
    if used:
        exchange = asyncio.create_task(connection.exchange(b"", 60.0))
        await asyncio.sleep(0)
        connection.data_received(TWO)
        await exchange
    usable = [connection.usable]
    ends(connection)
    assert [*usable, connection.usable] == [True, False]
    assert wire.aborted
    with pytest.raises(ConnectionError):
        await connection.exchange(b"request", 60.0)
    assert wire.sent == b""


async def test_a_request_that_is_cancelled_as_its_answer_arrives_ends_the_connection() -> None:
    connection, wire = connect()
    exchange = asyncio.create_task(connection.exchange(b"", 60.0))
    await asyncio.sleep(0)
    connection.data_received(TWO)
    exchange.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange
    assert (connection.usable, wire.aborted) == (False, True)


async def test_the_time_for_an_answer_ends_the_connection() -> None:
    connection, wire = connect()
    with pytest.raises(TimeoutError):
        await connection.exchange(b"", 0.01)
    assert (connection.usable, wire.aborted) == (False, True)


@pytest.mark.looptime
async def test_the_time_for_an_answer_is_not_the_time_for_the_next() -> None:
    connection, wire = connect()
    for _ in range(3):
        exchange = asyncio.create_task(connection.exchange(b"", 5.0))
        await asyncio.sleep(3.0)
        connection.data_received(TWO)
        await exchange
    assert (connection.usable, wire.aborted) == (True, False)


async def test_an_error_that_nobody_waits_for_is_not_reported() -> None:
    """The loop would report "Future exception was never retrieved"."""
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    connection, _ = connect()
    waiting = connection._wait()
    waiting.send(None)  # the consumer begins to wait, and never comes back
    connection.connection_lost(OSError("lost"))
    waiting.close()
    del connection, waiting
    gc.collect()
    await asyncio.sleep(0)
    assert reports == []


# -- streams ----------------------------------------------------------------------------------------------------------


async def open_stream(connection: Connection, *pieces: bytes, seconds: float = 60.0) -> Connection:
    opening = asyncio.create_task(connection.open(b"", seconds))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    return await opening


async def test_a_stream_gives_parts_as_they_arrive() -> None:
    connection, _ = connect()
    stream = await open_stream(connection, CHUNKED)
    chunks = stream.chunks()
    for part in (b"a", b"bc"):
        connection.data_received(b"%x\r\n%s\r\n" % (len(part), part))
        assert await anext(chunks) == part
    connection.data_received(b"0\r\n\r\n")
    assert [chunk async for chunk in chunks] == []


async def test_a_stream_without_a_length_has_no_empty_parts() -> None:
    connection, _ = connect()
    chunks = (await open_stream(connection, OK + b"\r\n")).chunks()
    first = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    connection.data_received(b"hi")
    assert await first == b"hi"
    connection.connection_lost(None)
    assert [chunk async for chunk in chunks] == []


async def test_what_arrived_before_an_error_is_given_first() -> None:
    connection, _ = connect()
    stream = await open_stream(connection, CHUNKED + b"2\r\nhi\r\n")
    connection.connection_lost(ConnectionResetError("reset"))
    chunks = stream.chunks()
    assert await anext(chunks) == b"hi"
    with pytest.raises(ConnectionResetError, match="reset"):
        await anext(chunks)


async def test_a_server_that_tcp_has_lost_is_not_the_regular_end_of_a_stream() -> None:
    """`HttpClient.stream` ends at a TimeoutError, because the caller has set the time for the stream."""
    connection, _ = connect()
    stream = await open_stream(connection, CHUNKED)
    connection.connection_lost(TimeoutError(110, "Connection timed out"))
    with pytest.raises(ConnectionError) as caught:
        await anext(stream.chunks())
    assert caught.value.errno == 110


async def test_a_stream_ends_after_its_time() -> None:
    connection, wire = connect()
    stream = await open_stream(connection, CHUNKED + b"2\r\nhi\r\n", seconds=0.01)
    chunks = stream.chunks()
    assert await anext(chunks) == b"hi"
    with pytest.raises(TimeoutError):
        await anext(chunks)
    assert wire.aborted


async def test_a_slow_consumer_stops_the_server() -> None:
    connection, wire = connect()
    stream = await open_stream(connection, CHUNKED)
    part = b"%x\r\n%s\r\n" % (1 << 19, b"x" * (1 << 19))
    paused = []
    for _ in range(3):
        connection.data_received(part)
        paused.append(wire.paused)
    assert len(await anext(stream.chunks())) == 3 << 19
    assert [*paused, wire.paused] == [False, False, True, False]


async def test_a_large_answer_is_not_a_stream() -> None:
    """Nobody takes its parts before it is complete, so a pause would last for ever."""
    connection, wire = connect()
    exchange = asyncio.create_task(connection.exchange(b"", 60.0))
    await asyncio.sleep(0)
    connection.data_received(OK + b"Content-Length: %d\r\n\r\n" % (4 << 20))
    for _ in range(4):
        connection.data_received(b"x" * (1 << 20))
    assert not wire.paused
    assert len((await exchange).body) == 4 << 20
