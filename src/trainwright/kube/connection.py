# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 connection to a server, and the answers that it returns.

This is the part of HTTP that API servers use: one request at a time, answers with a known length or in chunks, no
compression, no redirects. It needs a third of the CPU time of aiohttp per request (docs/decisions/0008-own-http.md).
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Protocol, cast

from msgspec import Struct

#: A stream stops reading from its socket while this many bytes wait for the consumer.
_MAX_WAITING_BYTES = 1 << 20
#: Maximum size of the head of an answer, and of a line between two chunks.
_MAX_HEAD_BYTES, _MAX_LINE_BYTES = 1 << 16, 1 << 13
#: Answers with these codes have no body.
_WITHOUT_BODY = frozenset({204, 304})
#: The headers that we read.
_USED_HEADERS = frozenset({"connection", "content-length", "retry-after", "transfer-encoding"})
#: The first line of an answer: the minor version of HTTP and the code.
_STATUS_LINE = re.compile(r"HTTP/1\.(\d) ([1-9]\d\d)(?: .*)?", re.ASCII)
#: The line before a chunk: its size in bytes, and perhaps extensions, which nobody uses.
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")


class ConnectError(Exception):
    """There is no connection, so the server got no request. `cause` is the error of the system, or a TimeoutError."""

    def __init__(self, cause: Exception, host: str) -> None:
        super().__init__(str(cause))
        self.cause, self.host = cause, host


class ProxyError(ConnectError):
    """The proxy refused to open a connection to the server. `text` says how."""

    def __init__(self, text: str) -> None:
        super().__init__(ConnectionError(text), "")


class HttpAnswer(Struct, frozen=True):
    """The whole answer to a request."""

    code: int
    body: bytes
    #: The header Retry-After; empty if there is none.
    retry_after: str = ""


class AnswerStream(Protocol):
    """An answer whose body arrives in parts."""

    @property
    def code(self) -> int:
        """The HTTP code."""
        ...

    @property
    def retry_after(self) -> str:
        """The header Retry-After; empty if there is none."""
        ...

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body, in the parts in which it arrives. Raises TimeoutError after the time for the whole stream."""
        ...


class _Head(Struct, frozen=True):
    """What we read from the head of an answer. `length` is None if the length is not known in advance."""

    code: int
    retry_after: str
    length: int | None
    chunked: bool
    #: Whether the connection can be used for another request afterwards.
    keep: bool


class Connection(asyncio.Protocol):
    """One connection. `exchange` and `open` send one request; the next request must wait for the end of the answer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        #: Received bytes that are not parsed yet.
        self._buffer = b""
        self._head: _Head | None = None
        #: Parts of the body that the consumer has not taken yet.
        self._parts: list[bytes] = []
        #: Bytes that are missing of the body, or of the current chunk.
        self._left = 0
        #: Whether the next line ends a chunk, and whether the last chunk is over.
        self._after_chunk = self._in_trailer = False
        self._complete = True
        self._streams = False
        self._paused = False
        self._error: Exception | None = None
        #: Resolved when the answer is complete; for a stream, when its head or its next part is there.
        self._waiter: asyncio.Future[None] | None = None
        #: Ends a stream after its time.
        self._timer: asyncio.TimerHandle | None = None

    # -- requests ------------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        kept = self._head is None or self._head.keep
        return self._complete and kept and self._error is None and not self._buffer

    async def exchange(self, data: bytes, seconds: float) -> HttpAnswer:
        """Send a request and return the answer. Raises TimeoutError or OSError; the connection is closed then."""
        timer = self._loop.call_later(seconds, self._fail, TimeoutError())
        try:
            self._send(data, streams=False)
            while not self._complete:
                await self._wait()
        except BaseException:
            self.abort()
            raise
        finally:
            timer.cancel()
        assert self._head is not None  # noqa: S101 - for the type checker: a complete answer has a head
        body, self._parts = b"".join(self._parts), []
        return HttpAnswer(self._head.code, body, self._head.retry_after)

    async def open(self, data: bytes, seconds: float) -> "Connection":
        """Send a request and return when the head of the answer is there. The stream may last for `seconds`.

        The caller must call `abort` after the stream, even if the stream is complete.
        """
        self._timer = self._loop.call_later(seconds, self._fail, TimeoutError())
        try:
            self._send(data, streams=True)
            while self._head is None:
                await self._wait()
        except BaseException:
            self.abort()
            raise
        return self

    @property
    def code(self) -> int:
        """The HTTP code of the answer."""
        return self._head.code if self._head is not None else 0

    @property
    def retry_after(self) -> str:
        """The header Retry-After of the answer; empty if there is none."""
        return self._head.retry_after if self._head is not None else ""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body of a stream, in the parts in which it arrives."""
        while True:
            while not self._parts:
                if self._complete:
                    return
                await self._wait()
            data, self._parts = b"".join(self._parts), []
            if self._paused and self._transport is not None:
                self._paused = False
                self._transport.resume_reading()
            yield data

    def abort(self) -> None:
        """Close the connection at once."""
        if self._error is None:
            self._error = ConnectionAbortedError("the connection was closed")
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _send(self, data: bytes, *, streams: bool) -> None:
        if self._error is not None or self._transport is None:
            raise self._error or ConnectionResetError("the server has closed the connection")
        self._head, self._parts, self._left = None, [], 0
        self._after_chunk = self._in_trailer = False
        self._complete, self._streams = False, streams
        self._transport.write(data)

    async def _wait(self) -> None:
        """Wait for more data. Raises the error that ended the connection."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._wake()  # `_wait` raises the error
        if self._transport is not None:
            self._transport.abort()

    # -- what the event loop calls -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes of the answer."""
        if self._complete:
            # No request is under way: the server says why it closes the connection. Do not use the connection again.
            self.abort()
            return
        self._buffer = self._buffer + data if self._buffer else data
        try:
            self._parse()
        except ValueError as error:
            self._fail(ConnectionError(f"the answer is not HTTP/1.1: {error}"))
            return
        if self._complete or self._streams:
            self._wake()
        if self._streams and not self._complete and not self._paused and self._transport is not None:
            self._paused = sum(map(len, self._parts)) > _MAX_WAITING_BYTES
            if self._paused:
                self._transport.pause_reading()

    def eof_received(self) -> None:
        """The server has closed the connection. Do not use it again while the event loop closes it."""
        if self._complete:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End. If an answer has no length, this is its regular end."""
        if isinstance(exc, TimeoutError):  # TCP lost the server. `TimeoutError` means that the time is over.
            exc = ConnectionError(*exc.args)
        until_close = self._head is not None and self._head.length is None and not self._head.chunked
        if exc is None and self._error is None and not self._complete and until_close:
            self._complete = True
            self._wake()
        self._fail(exc or ConnectionResetError("Server disconnected"))
        self._transport = None

    # -- parsing -------------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        while self._head is None:
            if not self._parse_head():
                return
        if self._head.chunked:
            self._parse_chunks()
        elif self._head.length is None:
            if self._buffer:
                self._parts.append(self._buffer)
                self._buffer = b""
        else:
            if self._buffer:
                self._parts.append(self._buffer[: self._left])
                self._buffer = self._buffer[self._left :]
                self._left -= len(self._parts[-1])
            self._complete = not self._left

    def _parse_head(self) -> bool:
        """Read the head of the answer, or of an interim answer. Returns False if the head is not complete."""
        end = self._buffer.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
        if end < 0:
            _check_incomplete_head(self._buffer)
            return False
        text = self._buffer[:end].decode("latin-1")
        self._buffer = self._buffer[end + 4 :]
        first, *lines = text.split("\r\n")
        found = _STATUS_LINE.fullmatch(first)
        if found is None:
            raise ValueError(f"it begins with {first[:40]!r}")
        if text.count("\n") != len(lines):
            raise ValueError("a line of its head does not end with CR LF")
        code = int(found[2])
        if code == 101:
            raise ValueError("it changes the protocol")
        if code >= 200:
            self._head = _head_of(code, found[1], _headers(lines))
            self._left = self._head.length or 0
        return True  # after an interim answer (1xx), the real answer follows

    def _parse_chunks(self) -> None:
        data, at = self._buffer, 0
        while not self._complete:
            if self._left:
                part = data[at : at + self._left]
                if not part:
                    break
                self._parts.append(part)
                at, self._left = at + len(part), self._left - len(part)
                continue
            end = data.find(b"\r\n", at, at + _MAX_LINE_BYTES)
            if end < 0:
                if len(data) - at >= _MAX_LINE_BYTES:
                    raise ValueError("a line between two chunks does not end")
                break
            self._parse_chunk_line(data[at:end])
            at = end + 2
        self._buffer = data[at:]

    def _parse_chunk_line(self, line: bytes) -> None:
        """Read a line between chunks: the end of a chunk, the size of the next chunk, or a line of the trailer."""
        if self._in_trailer:
            self._complete = not line
        elif self._after_chunk:
            if line:
                raise ValueError("a chunk is longer than its size")
            self._after_chunk = False
        elif found := _CHUNK_LINE.fullmatch(line):
            self._left = int(found[1], 16)
            self._after_chunk, self._in_trailer = bool(self._left), not self._left
        else:
            raise ValueError(f"a chunk begins with {line[:40]!r}")


def _check_incomplete_head(data: bytes) -> None:
    """Raise ValueError if no more bytes can complete this head."""
    if data[:7] != b"HTTP/1."[: len(data)]:
        raise ValueError(f"it begins with {data[:40].decode('latin-1')!r}")
    if len(data) >= _MAX_HEAD_BYTES:
        raise ValueError("its head does not end")
    if b"\n\n" in data:
        raise ValueError("a line of its head does not end with CR LF")


def _headers(lines: list[str]) -> dict[str, str]:
    """The headers that we use. If a header occurs several times, commas separate its values."""
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name.strip() != name:  # for example a value that continues on a second line
            raise ValueError(f"its head has the line {line[:40]!r}")
        name, value = name.lower(), value.strip(" \t")
        if name in _USED_HEADERS:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _head_of(code: int, minor_version: str, headers: dict[str, str]) -> _Head:
    """Raises ValueError if it is not certain where the answer ends (RFC 9112, section 6.3)."""
    coding, length_text = headers.get("transfer-encoding", ""), headers.get("content-length", "0")
    if coding and (coding.lower() != "chunked" or "content-length" in headers):
        raise ValueError("its Transfer-Encoding is not `chunked`, or it has a Content-Length too")
    if not length_text.isdecimal():
        raise ValueError(f"its Content-Length is {length_text[:40]!r}")
    chunked, retry_after = bool(coding), headers.get("retry-after", "")
    length = int(length_text) if "content-length" in headers else None
    keep = minor_version != "0" and "close" not in headers.get("connection", "").lower()
    if code in _WITHOUT_BODY:
        # Some servers send a body nevertheless. Do not use the connection again then.
        return _Head(code, retry_after, 0, chunked=False, keep=keep and not chunked and not length)
    return _Head(code, retry_after, length, chunked, keep)
