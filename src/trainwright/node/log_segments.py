# SPDX-License-Identifier: Apache-2.0
"""Read log files, also very large ones, with the times at which their lines were written.

The supervisor keeps these times in marks beside each log (`node.supervisor.log_times`). Logs of earlier versions have
no marks; for such a log, only the time of the last write is known. A file is open only while a block of it is read, so
thousands of logs can be read at the same time. A log can be rotated between two reads, so a file is identified by its
inode, not by its name.
"""

import os
from collections.abc import Callable, Iterator
from itertools import pairwise

from msgspec import Struct

from trainwright.node.supervisor.log_times import MARK, times_path

#: A rotated file has a number at the end of its name. Only files with numbers below this number are found.
MAX_ROTATED = 16
#: The number of bytes that are read at a time from one log, unless the caller wants another number.
BLOCK_BYTES = 256 * 1024
#: The maximum size of a line in bytes; a longer line is split.
MAX_LINE_BYTES = 1024 * 1024
_MARKS_PER_READ = 64
_MARKS_PER_SEARCH = 4096
#: The kernel takes the time of the last write from a clock that can be late by one tick, at most 10 ms.
_TICK_NS = 10_000_000


class Piece(Struct, frozen=True):
    """Consecutive lines of a log that were written at the same time, in nanoseconds since 1970."""

    time: int
    data: bytes
    #: False if the log has no marks: `time` is then the time at which the last line of the file was written.
    exact: bool = True

    def lines(self) -> list[bytes]:
        """The lines with their newline characters. Only the last line of a file can be without one."""
        *lines, rest = self.data.split(b"\n")
        found = [line + b"\n" for line in lines]
        return [*found, rest] if rest else found


class _NumberedFile:
    """A file whose number grows when it is rotated: `name(0)` is the newest file, `name(1)` the file before it."""

    __slots__ = ("_final", "_name", "_number", "_stat")

    def __init__(self, name: Callable[[int], str], number: int, stat: os.stat_result) -> None:
        self._name, self._number, self._stat = name, number, stat
        self._final = number > 0

    def read(self, offset: int, count: int) -> bytes | None:
        """At most `count` bytes; None if the file does not exist any more."""
        file = self.open()
        if file is None:
            return None
        try:
            return os.pread(file, count, offset)
        finally:
            os.close(file)

    def open(self) -> int | None:
        """A descriptor of the file; None if the file does not exist any more."""
        for number in range(self._number, MAX_ROTATED):
            try:
                file = os.open(self._name(number), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            if self._is_same(os.fstat(file)):
                self._number = number
                return file
            os.close(file)
        return None

    def _is_same(self, stat: os.stat_result) -> bool:
        """Whether it is the same file. A new file can get the inode of a file that was removed."""
        unchanged = stat.st_mtime_ns == self._stat.st_mtime_ns or not self._final
        return stat.st_ino == self._stat.st_ino and stat.st_size >= self._stat.st_size and unchanged


class _Marks:
    """The marks of one log file, read from the first to the last."""

    def __init__(self, file: _NumberedFile, count: int) -> None:
        self._file = file
        self.count = count
        self._next = 0
        self._block: list[tuple[int, int]] = []
        self._place = 0
        self.time = 0
        #: The offset of the next mark: `time` is valid for the bytes before it. -1: there is no next mark.
        self.until = -1
        self.seek(0)

    def seek(self, number: int) -> None:
        """Continue with the mark of this number."""
        self._next, self._block, self._place = number, [], 0
        self._advance()

    def at(self, offset: int) -> int:
        """The time of the byte at this offset, which must not be before the offset of an earlier call."""
        while 0 <= self.until <= offset:
            self._advance()
        return self.time

    def after(self, offset: int) -> int:
        """The number of the first mark after this offset; `count` if there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            later = any(found > offset for found, _ in self._read(middle, 1))
            low, high = (low, middle) if later else (middle + 1, high)
        return low

    def since(self, time: int) -> int | None:
        """The offset of the first mark at this time or later. Marks are not sorted by time if the clock was changed."""
        for number in range(0, self.count, _MARKS_PER_SEARCH):
            for offset, found in self._read(number, _MARKS_PER_SEARCH):
                if found >= time:
                    return offset
        return None

    def _advance(self) -> None:
        """Go to the next mark: set `time` to its time, and `until` to the offset of the mark after it."""
        if self._place + 1 >= len(self._block):
            self._block = self._read(self._next, _MARKS_PER_READ)
            self._place = 0
        else:
            self._place += 1
        if not self._block:
            self.until = -1
            return
        self._next += 1
        self.time = self._block[self._place][1]
        after = self._block[self._place + 1 : self._place + 2] or self._read(self._next, 1)
        self.until = after[0][0] if after else -1

    def _read(self, number: int, count: int) -> list[tuple[int, int]]:
        size = max(0, min(count, self.count - number)) * MARK.size
        data = (self._file.read(number * MARK.size, size) or b"") if size else b""
        return list(MARK.iter_unpack(data[: len(data) // MARK.size * MARK.size]))


class LogSegment:
    """One file of a log: the newest file, or a rotated one.

    A rotation can split a line. The line belongs to the file in which it begins.
    """

    def __init__(self, path: str, number: int, stat: os.stat_result, size: int) -> None:
        self.path, self.size, self.inode = path, size, stat.st_ino
        self.written = stat.st_mtime_ns + _TICK_NS
        self._file = _NumberedFile(lambda number: _numbered(path, number), number, stat)
        self._times = _times(path, number)
        #: The files of the log that were written before and after this one.
        self.before: LogSegment | None = None
        self.after: LogSegment | None = None

    def open(self) -> int | None:
        """A descriptor of the file; None if the file does not exist any more. While it is open, its inode is unique."""
        return self._file.open()

    def begin(self) -> int:
        """The offset of the first line that begins in this file."""
        if self.before is None or self.before.ends_with_line():
            return 0
        found = self._start_of_line(1, BLOCK_BYTES)
        return found if found < self.size or self.ends_with_line() else 0

    def ends_with_line(self) -> bool:
        """Whether the last line of this file does not continue in the next file. True if the file was removed."""
        return not self.size or self._file.read(self.size - 1, 1) in (b"\n", None)

    def pieces(self, *, since: int = 0, last: int | None = None, block: int = BLOCK_BYTES) -> Iterator[Piece]:
        """The lines that were written at the time `since` or later; with `last`, only this many lines from the end."""
        if self.written < since or not self.size:
            return
        marks = _Marks(*self._times) if self._times is not None else None
        offset = max(self.begin(), self.start_of_last(last, block)[0] if last is not None else 0)
        if marks is not None and since:
            found = marks.since(since)
            if found is None:
                return
            offset = max(offset, self._start_of_line(found, block))
        if marks is not None and offset:
            marks.seek(max(0, marks.after(offset) - 1))
        for start, data in self._whole_lines(offset, block):
            for piece in self._timed(start, data, marks):
                if piece.time >= since:
                    yield piece

    def rest(self, offset: int, *, times: bool, block: int = BLOCK_BYTES) -> Iterator[Piece]:
        """The bytes from this offset on. A piece can end within a line. Without `times`, the pieces have no times."""
        marks = _Marks(*self._times) if times and self._times is not None else None
        if marks is not None and offset:
            marks.seek(max(0, marks.after(offset) - 1))
        while offset < self.size:
            data = self._file.read(offset, min(block, self.size - offset))
            if not data:
                return
            place = 0
            while place < len(data):
                time = marks.at(offset + place) if marks is not None else self.written if times else 0
                end = marks.until - offset if marks is not None and 0 <= marks.until < offset + len(data) else len(data)
                yield Piece(time, data[place:end], exact=marks is not None)
                place = end
            offset += len(data)

    def _timed(self, start: int, data: bytes, marks: _Marks | None) -> Iterator[Piece]:
        """The lines in pieces of the same time. `start` is the offset of the data in the file."""
        if marks is None:
            yield Piece(self.written, data, exact=False)
            return
        place = 0
        while place < len(data):
            time = marks.at(start + place)
            end = len(data)
            if 0 <= marks.until < start + end:  # the line in which the next mark lies belongs to this piece
                end = data.find(b"\n", marks.until - start - 1) + 1 or end
            yield Piece(time, data[place:end])
            place = end

    def _whole_lines(self, offset: int, block: int) -> Iterator[tuple[int, bytes]]:
        """The file from this offset on, in blocks that end with a line, each with its offset."""
        rest: list[bytes] = []
        start = offset
        while offset < self.size:
            data = self._file.read(offset, min(block, self.size - offset))
            if data is None:
                text = f"… lines are missing here: {self.path} was rotated before all its lines were read\n"
                yield start, b"".join([*rest, b"\n" * bool(rest), text.encode()])
                return
            if not data:
                break
            offset += len(data)
            end = data.rfind(b"\n") + 1
            if not end and offset - start >= MAX_LINE_BYTES:
                end = len(data)
            rest.append(data[:end] if end else data)
            if end:
                yield start, b"".join(rest)
                start = offset - len(data) + end
                rest = [data[end:]] if end < len(data) else []
        if rest and self.after is not None:
            rest.append(self.after._file.read(0, self.after.begin()) or b"")
        if rest:
            yield start, b"".join(rest)

    def _start_of_line(self, offset: int, block: int) -> int:
        """The offset of the first line that begins at this offset or later."""
        at = max(0, offset - 1)
        while offset and at < self.size:
            data = self._file.read(at, min(block, self.size - at))
            if not data:
                break
            if (found := data.find(b"\n")) >= 0:
                return at + found + 1
            at += len(data)
        return at

    def end_of_lines(self) -> int:
        """The offset after the last newline; the size of the file if there is no newline near its end."""
        begin = max(0, self.size - BLOCK_BYTES)
        data = self._file.read(begin, self.size - begin) or b""
        end = data.rfind(b"\n") + 1
        return begin + end if end or not begin else self.size

    def start_of_last(self, lines: int, block: int = BLOCK_BYTES) -> tuple[int, int]:
        """The offset at which the last `lines` lines begin, and how many of these lines begin in an older file."""
        at, left = self.size, lines
        while at > 0 and left:
            begin = max(0, at - min(block, 64 * 1024))
            data = self._file.read(begin, at - begin) or b""
            # The newline at the end of the file does not begin another line.
            stop = len(data) - (at == self.size)
            while (found := data.rfind(b"\n", 0, stop)) >= 0:
                left -= 1
                if not left:
                    return begin + found + 1, 0
                stop = found
            at = begin
        begins = left and self.size and (self.before is None or self.before.ends_with_line())
        return at, left - bool(begins)


def _numbered(path: str, number: int) -> str:
    return f"{path}.{number}" if number else path


def _times(path: str, number: int) -> tuple[_NumberedFile, int] | None:
    """The file of the marks of a log file, and the number of marks; None if there are none."""
    try:
        stat = os.stat(times_path(_numbered(path, number)))  # noqa: PTH116 - a Path doubles the cost
    except OSError:
        return None
    count = stat.st_size // MARK.size
    return (_NumberedFile(lambda number: times_path(_numbered(path, number)), number, stat), count) if count else None


def parts(path: str, inode: int, size: int) -> list[LogSegment]:
    """The files of the log at `path`, oldest first, up to the first `size` bytes of the file with this inode."""
    found: list[LogSegment] = []
    seen: set[int] = set()
    for number in range(MAX_ROTATED):  # from the newest: a file that is rotated now is seen twice, but never missed
        try:
            stat = os.stat(_numbered(path, number))  # noqa: PTH116 - a Path doubles the cost
        except OSError:
            continue
        if stat.st_ino in seen:
            continue
        if stat.st_ino == inode:  # the files that were found before are newer
            found.clear()
        found.append(LogSegment(path, number, stat, size if stat.st_ino == inode else stat.st_size))
        seen.add(stat.st_ino)
    found.reverse()
    for before, after in pairwise(found):
        before.after, after.before = after, before
    return found


def has_times(path: str) -> bool:
    """Whether the times of the lines are known, at least for a part of the log."""
    return any(os.path.exists(times_path(_numbered(path, number))) for number in (0, 1))  # noqa: PTH110 - as above


def all_parts(path: str) -> list[LogSegment]:
    """The files of the log at `path`, oldest first, with their sizes now. Raises FileNotFoundError."""
    stat = os.stat(path)  # noqa: PTH116 - as above
    return parts(path, stat.st_ino, stat.st_size)


def end_of_lines(path: str, inode: int, size: int) -> int:
    """The size of the newest file of a log without an unfinished line at its end, unless that line is very long."""
    part = next((part for part in parts(path, inode, size) if part.inode == inode), None)
    return part.end_of_lines() if part is not None else size
