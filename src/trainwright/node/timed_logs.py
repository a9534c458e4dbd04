# SPDX-License-Identifier: Apache-2.0
"""Read the log of one container with the options of `kubectl logs`, where the times of the lines are beside the log.

The background engine keeps logs byte for byte, and the times in marks (`log_segments`). As in kubelet, `tail` selects
the last lines of the log, and `since` drops some of these lines. A thread reads the files, so that a slow disk does not
delay the event loop.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from threading import Lock

from trainwright.node import log_segments
from trainwright.node.log_segments import LogSegment, Piece
from trainwright.runtime.ports import LogPart

#: Seconds between two looks at a log that does not grow.
_POLL_SECONDS = 0.1
#: One step returns about this many bytes.
_STEP_BYTES = 256 * 1024
_SECOND = 1_000_000_000
_MISSING = b"\xe2\x80\xa6 lines are missing here: the log was rotated before all its lines were read\n"


class _LineTimes:
    """Drops lines older than `part.since`, and puts times before lines. A line has the time of its first byte."""

    def __init__(self, part: LogPart) -> None:
        self._since = int(part.since.timestamp() * 1_000_000) * 1000 if part.since is not None else 0
        self._stamps = part.timestamps
        self.needed = bool(self._stamps or self._since)
        self._in_line = self._dropped = False

    def feed(self, piece: Piece) -> bytes:
        """The part of the bytes to show."""
        if not self.needed:
            return piece.data
        data, head = piece.data, b""
        if self._in_line:
            head, newline, data = data.partition(b"\n")
            head = b"" if self._dropped else head + newline
            self._in_line = not newline
        if not data:
            return head
        self._in_line, self._dropped = not data.endswith(b"\n"), piece.time < self._since
        if self._dropped:
            return head
        return head + (_stamped(data, piece.time) if self._stamps else data)


def _stamped(data: bytes, nanoseconds: int) -> bytes:
    seconds, rest = divmod(nanoseconds, _SECOND)
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09}Z ".encode()
    body = data.removesuffix(b"\n")
    return stamp + body.replace(b"\n", b"\n" + stamp) + data[len(body) :]


class _LogReader:
    """Reads a log to its end, and then what was written meanwhile. Its methods block. Call `begin` first."""

    def __init__(self, path: str, part: LogPart) -> None:
        self._path, self._tail = path, part.tail
        #: A reader that is cancelled is closed while a thread may still read, or is about to.
        self._lock, self._closed = Lock(), False
        self._lines = _LineTimes(part)
        #: The file that is read stays open, so that no newer file gets its inode.
        self._held: int | None = None
        self._inode = self._offset = 0
        self._pieces: Iterator[Piece] = iter(())

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closed = True
            self._release()

    def _release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def begin(self) -> None:
        """Go to the beginning of the log, or of its last lines. Raises FileNotFoundError."""
        parts, offset = log_segments.all_parts(self._path), 0
        first, left = parts[0], self._tail or 0
        for part in reversed(parts) if self._tail is not None else ():
            first, (offset, left) = part, part.start_of_last(left)
            if not left:
                break
        with self._lock:
            self._move_to(first, offset)
        self._pieces = self._new_pieces()

    def _move_to(self, part: LogSegment, offset: int) -> None:
        self._release()
        if self._closed:
            return
        self._inode, self._offset, self._held = part.inode, offset, part.open()

    def step(self) -> bytes:
        """The next bytes; empty at the end of the log as it was when `more` was called."""
        found: list[bytes] = []
        size = 0
        with self._lock:
            for piece in self._pieces if not self._closed else ():
                found.append(self._lines.feed(piece))
                size += len(piece.data)
                if size >= _STEP_BYTES and any(found):
                    break
        return b"".join(found)

    def more(self) -> bool:
        """Whether the log has grown. If so, `step` returns the new bytes. Only this method is quick."""
        try:
            stat = os.stat(self._path)  # noqa: PTH116 - called ten times a second for each client
        except FileNotFoundError:  # it is being rotated, or it was removed
            return False
        if (stat.st_ino, stat.st_size) == (self._inode, self._offset):
            return False
        self._pieces = self._new_pieces()
        return True

    def _new_pieces(self) -> Iterator[Piece]:
        try:
            parts = log_segments.all_parts(self._path)
        except FileNotFoundError:
            return
        index = next((at for at, one in enumerate(parts) if one.inode == self._inode), None)
        if index is None or parts[index].size < self._offset:
            yield Piece(time.time_ns(), _MISSING)
            index = 0
            self._move_to(parts[0], 0)
        for part in parts[index:]:
            if part.inode != self._inode:
                self._move_to(part, 0)
            for piece in part.rest(self._offset, times=self._lines.needed):
                self._offset += len(piece.data)
                yield piece


async def read(path: str, part: LogPart, live: Callable[[], Awaitable[bool]]) -> AsyncGenerator[bytes, None]:
    """The part of the log at `path`; `live` returns whether the container still runs. Raises FileNotFoundError."""
    reader = _LogReader(path, part)
    left = sys.maxsize if part.limit is None else part.limit
    try:
        await asyncio.to_thread(reader.begin)
        async for data in _chunks(reader, live if part.follow else None):
            yield data[:left]
            left -= len(data)
            if left <= 0:
                return
    finally:
        await asyncio.shield(asyncio.to_thread(reader.close))


async def _chunks(reader: _LogReader, live: Callable[[], Awaitable[bool]] | None) -> AsyncGenerator[bytes, None]:
    """The bytes of the log, and if `live` is given, new bytes until it returns False."""
    while True:
        while data := await asyncio.to_thread(reader.step):
            yield data
        while True:
            was_live = live is not None and await live()  # asked first: a container writes nothing after its end
            if live is not None and reader.more():
                break
            if not was_live:
                return
            await asyncio.sleep(_POLL_SECONDS)
