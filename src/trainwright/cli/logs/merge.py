# SPDX-License-Identifier: Apache-2.0
"""Filter the lines of many logs, and bring them into the order in which they were written.

Only one block of each log is in memory, and the blocks get smaller if there are many logs.
"""

import heapq
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec import Struct

from trainwright.cli.logs.select import LogFile
from trainwright.cli.show.text import line as clean
from trainwright.node import log_segments
from trainwright.node.log_segments import LogSegment, Piece

#: The total size of all blocks in bytes, and the smallest size of one block.
_ALL_BLOCKS_BYTES = 64 * 1024 * 1024
_MIN_BLOCK_BYTES = 8 * 1024


class LineFilter(Struct, frozen=True):
    """The lines that the user wants: those since a time, those that match, and the last lines of each replica."""

    #: In nanoseconds since 1970.
    since: int = 0
    pattern: re.Pattern[str] | None = None
    last: int | None = None

    def matches(self, line: bytes) -> bool:
        """Whether the line, as it is or as it looks on a terminal, matches the pattern."""
        if self.pattern is None:
            return True
        text = line.decode(errors="replace").rstrip("\r\n")
        found = self.pattern.search(text)
        return bool(found or (not text.isprintable() and self.pattern.search(clean(text))))


class LogPiece(Struct, frozen=True):
    """Lines that a container wrote at the same time."""

    file: LogFile
    piece: Piece


def merged(logs: Sequence[LogFile], wanted: LineFilter) -> Iterator[LogPiece]:
    """The wanted lines of all logs in the order of time. If no time is known: replica by replica."""
    by_label: dict[str, list[LogFile]] = {}
    for one in logs:
        by_label.setdefault(one.label, []).append(one)
    block = min(log_segments.BLOCK_BYTES, max(_MIN_BLOCK_BYTES, _ALL_BLOCKS_BYTES // max(1, len(by_label))))
    if len(by_label) > 1 and any(log_segments.has_times(one.path) for one in logs):
        streams = [_of_replica(own, wanted, block) for own in by_label.values()]
        yield from heapq.merge(*streams, key=lambda one: one.piece.time)
        return
    for own in by_label.values():
        yield from _of_replica(own, wanted, block)


def _of_replica(logs: Sequence[LogFile], wanted: LineFilter, block: int) -> Iterator[LogPiece]:
    """The wanted lines of one replica, from its first attempt to its last."""
    if wanted.last is not None:
        return _last(logs, wanted, wanted.last, block)
    pieces = (
        LogPiece(one, piece)
        for one in logs
        for part in log_segments.parts(one.path, one.inode, one.size)
        for piece in part.pieces(since=wanted.since, block=block)
    )
    return pieces if wanted.pattern is None else (line for one in pieces for line in _matching(one, wanted))


def _matching(one: LogPiece, wanted: LineFilter) -> Iterator[LogPiece]:
    data = b"".join(line for line in one.piece.lines() if wanted.matches(line))
    if data:
        yield LogPiece(one.file, Piece(one.piece.time, data, one.piece.exact))


def _last(logs: Sequence[LogFile], wanted: LineFilter, count: int, block: int) -> Iterator[LogPiece]:
    """The last `count` wanted lines. Files are read from the newest to the oldest, and only as many as necessary."""
    count = min(count, sys.maxsize)  # a deque cannot be longer
    kept: list[deque[LogPiece]] = []
    for one in reversed(logs):
        for part in reversed(log_segments.parts(one.path, one.inode, one.size)):
            if count <= 0:
                break
            kept.append(deque(_lines(one, part, wanted, count, block), maxlen=count))
            count -= len(kept[-1])
    return chain.from_iterable(reversed(kept))


def _lines(one: LogFile, part: LogSegment, wanted: LineFilter, count: int, block: int) -> Iterator[LogPiece]:
    last = count if wanted.pattern is None else None
    for piece in part.pieces(since=wanted.since, last=last, block=block):
        for line in piece.lines():
            if wanted.matches(line):
                yield LogPiece(one, Piece(piece.time, line, piece.exact))
