# SPDX-License-Identifier: Apache-2.0
"""Follow many log files by polling them.

For a file that has not grown, a poll calls only `stat`, so a thousand replicas without output need little time. The
tail reads a rotated file to its end before it reads the new file. It splits a very long line into pieces.
"""

import os
from typing import Generic, TypeVar

from msgspec import Struct

from trainwright.node.log_segments import MAX_ROTATED

Who = TypeVar("Who")

#: Maximum number of bytes read from one file in one poll, so that a file with much output does not delay other files.
CHUNK_BYTES = 256 * 1024
#: Maximum size of a line in bytes; a longer line is split.
MAX_LINE_BYTES = 16 * 1024
#: An unfinished line (for example a prompt or a progress bar) is shown after it has not grown for this time.
UNFINISHED_LINE_SECONDS = 1.0


class TailedFile(Struct, Generic[Who]):
    """One file, and the position up to which the file has been read."""

    path: str
    who: Who
    inode: int = 0
    offset: int = 0
    #: The beginning of a line that is not finished.
    rest: bytes = b""
    #: The time at which `rest` last grew.
    grown: float = 0.0
    #: Whether no process writes to the file any more. The tail reads such a file to its end and then forgets it.
    final: bool = False


class Tail(Generic[Who]):
    """Reads the new lines of many files, one file after the other. Lines have no newline at the end."""

    def __init__(self) -> None:
        self._tracks: dict[str, TailedFile[Who]] = {}
        #: Whether a file has bytes that the last poll did not read.
        self.behind = False

    def __len__(self) -> int:
        return len(self._tracks)

    def add(self, path: str, who: Who, *, inode: int = 0, offset: int = 0) -> None:
        """Follow a file from its beginning or from an offset. The file need not exist yet."""
        self._tracks.setdefault(path, TailedFile(path, who, inode, offset))

    def end(self, path: str, now: float) -> list[tuple[Who, str]]:
        """The rest of a file that no longer grows. If it is very long, the next calls of `poll` return more of it."""
        track = self._tracks.get(path)
        if track is None:
            return []
        found: list[tuple[Who, str]] = []
        track.final, behind, self.behind = True, self.behind, False
        if self._look(track, now, found):
            del self._tracks[path]
        self.behind = self.behind or behind
        return found

    def poll(self, now: float) -> list[tuple[Who, str]]:
        """The new lines of all files."""
        found: list[tuple[Who, str]] = []
        self.behind = False
        done = [track.path for track in self._tracks.values() if self._look(track, now, found)]
        for path in done:
            del self._tracks[path]
        return found

    def drain(self, now: float) -> list[tuple[Who, str]]:
        """All remaining lines, including unfinished lines. Afterwards the tail follows no file."""
        for track in self._tracks.values():
            track.final = True
        found = self.poll(now)
        while self.behind:
            found += self.poll(now)
        return found

    def _look(self, track: TailedFile[Who], now: float, found: list[tuple[Who, str]]) -> bool:
        """Read new lines of one file. Return True if the file no longer grows and is read to its end."""
        try:
            stat = os.stat(track.path)  # noqa: PTH116 - a Path doubles the cost, and this runs a thousand times a second
        except OSError:
            return track.final and self._end_of_file(track, now, found)
        if stat.st_size == track.offset and (stat.st_ino == track.inode or not track.offset):
            return self._end_of_file(track, now, found)
        if track.inode not in (0, stat.st_ino) and not self._read_rotated(track, found):
            return False
        track.inode = stat.st_ino
        if stat.st_size < track.offset:  # the file was truncated
            track.offset = 0
        self._read(track, track.path, stat.st_size, found)
        track.grown = now
        return track.final and not self.behind and self._end_of_file(track, now, found)

    def _end_of_file(self, track: TailedFile[Who], now: float, found: list[tuple[Who, str]]) -> bool:
        if track.rest and (track.final or now - track.grown >= UNFINISHED_LINE_SECONDS):
            found.append((track.who, _text(track.rest)))
            track.rest = b""
        return track.final

    def _read_rotated(self, track: TailedFile[Who], found: list[tuple[Who, str]]) -> bool:
        """Read the rest of the followed file, which is now rotated. Return True if no rotated file is left to read."""
        names = [f"{track.path}.{number}" for number in range(1, MAX_ROTATED)]
        place = next((at for at, name in enumerate(names) if _inode(name) == track.inode), None)
        if place is None:
            text = f"… lines are missing here: {track.path} was rotated before all its lines were read"
            found.append((track.who, text))
            track.offset, track.rest = 0, b""
            return True
        try:
            size = os.stat(names[place]).st_size  # noqa: PTH116 - as above
        except OSError:  # the file was rotated again in the meantime; the next poll tries again
            self.behind = True
            return False
        if track.offset < size:
            self._read(track, names[place], size, found)
        if track.offset >= size:
            track.offset = 0
            track.inode = _inode(names[place - 1]) if place else 0
        self.behind = self.behind or track.inode != 0
        return track.inode == 0

    def _read(self, track: TailedFile[Who], path: str, size: int, found: list[tuple[Who, str]]) -> None:
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as above
                file.seek(track.offset)
                data = file.read(CHUNK_BYTES)
        except OSError:
            data = b""
        # If the read fails or returns nothing, skip to `size`, so that the tail does not try the same read for ever.
        track.offset = track.offset + len(data) if data else size
        self.behind = self.behind or track.offset < size
        *lines, track.rest = (track.rest + data).split(b"\n")
        found += [(track.who, _text(part)) for line in lines for part in _parts(line)]
        *parts, track.rest = _parts(track.rest)
        found += [(track.who, _text(part)) for part in parts]


def _parts(line: bytes) -> list[bytes]:
    """A line, split into pieces if it is too long. No piece ends inside a UTF-8 character."""
    parts = []
    while len(line) > MAX_LINE_BYTES:
        ends = range(MAX_LINE_BYTES, MAX_LINE_BYTES - 4, -1)
        end = next((at for at in ends if line[at] & 0xC0 != 0x80), MAX_LINE_BYTES)
        parts.append(line[:end])
        line = line[end:]
    return [*parts, line]


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - as above
    except OSError:
        return -1
