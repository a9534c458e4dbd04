# SPDX-License-Identifier: Apache-2.0
"""HTTP connections over the Unix socket of an engine on this machine, for `blocking_http`.

Only our own server listens there, so this is the part of HTTP/1.1 that it uses. The import of http.client alone would
take longer than the requests of a command.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from socket import socket
from typing import Protocol

from trainwright.unix_sockets import connect

CHUNK_BYTES = 1 << 16
CUT_OFF = "the connection ended in the middle of the answer"
_MAX_LINE_BYTES = 1 << 16


class BrokenAnswerError(OSError):
    """The answer is not HTTP, or it ends too early."""


class BlockingAnswer(Protocol):
    """An answer whose head has arrived."""

    status: int
    retry_after: str

    def parts(self, before: Callable[[], None]) -> Iterator[bytes]:
        """The body in parts. `before` is called before each read. Raises OSError."""
        ...

    def close(self) -> None:
        """Close the answer."""
        ...


class BlockingConnection(Protocol):
    """A connection that a `BlockingHttpClient` uses."""

    #: None: the connection is closed, or not open yet.
    sock: socket | None

    def open(self, seconds: float) -> None:
        """Connect. Raises OSError."""
        ...

    def ask(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> BlockingAnswer:
        """Send a request and wait for the head of its answer. Raises OSError."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class UnixAnswer:
    """An answer whose head has arrived. Its body has a length, or it comes in chunks."""

    def __init__(self, stream: BufferedReader, closed: Callable[[], None]) -> None:
        self._stream, self._closed = stream, closed
        version, _, rest = _line(stream).partition(" ")
        if version != "HTTP/1.1" or not rest[:3].isdecimal():
            raise BrokenAnswerError("the answer is not HTTP/1.1")
        self.status = int(rest[:3])
        headers: dict[str, str] = {}
        while line := _line(stream):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self.retry_after = headers.get("retry-after", "")
        self._length = _number(headers.get("content-length", "0"), 10)
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._is_last = headers.get("connection", "").lower() == "close"

    def parts(self, before: Callable[[], None]) -> Iterator[bytes]:
        """The body in parts. `before` is called before each read. Raises OSError."""
        if not self._is_chunked:
            yield from self._bytes(self._length, before)
        while self._is_chunked:
            before()
            size = _number(_line(self._stream).partition(";")[0], 16)
            yield from self._bytes(size, before)
            if _line(self._stream):
                raise BrokenAnswerError("a chunk of the answer has another length than it says")
            if not size:
                break
        if self._is_last:
            self._closed()

    def _bytes(self, number: int, before: Callable[[], None]) -> Iterator[bytes]:
        while number:
            before()
            part = self._stream.read1(min(number, CHUNK_BYTES))
            if not part:
                raise BrokenAnswerError(CUT_OFF)
            number -= len(part)
            yield part

    def close(self) -> None:
        """Nothing is left to close: the connection is closed, or the next request uses it."""


class UnixConnection:
    """A connection to the engine that listens at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sock: socket | None = None
        self._stream: BufferedReader | None = None

    def open(self, seconds: float) -> None:
        """Connect. Raises OSError."""
        self.sock = connect(self._path, seconds)
        self._stream = self.sock.makefile("rb")

    def ask(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> UnixAnswer:
        """Send a request and wait for the head of its answer. Raises OSError."""
        if self.sock is None or self._stream is None:
            raise BrokenAnswerError("the connection is closed")
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers)]
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode("ascii") + (body or b""))
        return UnixAnswer(self._stream, self.close)

    def close(self) -> None:
        """Close the connection."""
        for one in (self._stream, self.sock):
            if one is not None:
                with suppress(OSError):
                    one.close()
        self.sock = self._stream = None


def _line(stream: BufferedReader) -> str:
    """The next line of a head, without its end."""
    line = stream.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\r\n"):
        raise BrokenAnswerError(CUT_OFF if line else "the engine has closed the connection")
    return line[:-2].decode("latin-1")


def _number(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise BrokenAnswerError("a length in the answer is not a number") from None
