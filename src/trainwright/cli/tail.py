# SPDX-License-Identifier: Apache-2.0
"""Following many log files at once, by looking at them now and then. Called by `run` and by `logs -f`.

A file that has not grown costs one `stat`, and an empty one is never opened: a thousand silent replicas are cheap.
Files that are rotated are read to their end first; a line that goes on for ever is handed out in pieces.
"""

import os
from typing import Generic, TypeVar

from msgspec import Struct

Who = TypeVar("Who")

#: Bytes read of one file at a time, so that one that floods does not keep the others waiting.
CHUNK = 256 * 1024
#: A longer line is handed out in pieces.
LONGEST = 16 * 1024
#: Seconds after which a line without an end (a prompt, a progress bar) is shown as far as it goes.
PATIENCE = 1.0
#: How many rotated files are looked through for the one that was being read.
_ROTATED = 16


class TailedFile(Struct, Generic[Who]):
    """One file, and how far it has been read."""

    path: str
    who: Who
    inode: int = 0
    offset: int = 0
    rest: bytes = b""
    #: When the rest last grew.
    grown: float = 0.0
    #: Nobody writes to it any more: read what is there, then forget it.
    final: bool = False


class Tail(Generic[Who]):
    """Lines of many files, in the order in which they are found. A line comes without its end."""

    def __init__(self) -> None:
        self._tracks: dict[str, TailedFile[Who]] = {}
        #: There was more to read than was read.
        self.behind = False

    def __len__(self) -> int:
        return len(self._tracks)

    def add(self, path: str, who: Who, *, inode: int = 0, offset: int = 0) -> None:
        """Follow a file from its beginning, or from where it has been read to; it need not exist yet."""
        self._tracks.setdefault(path, TailedFile(path, who, inode, offset))

    def end(self, path: str, now: float) -> list[tuple[Who, str]]:
        """The rest of a file that will not grow any more. Of a very long rest `poll` hands out what is left."""
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
        """What is new."""
        found: list[tuple[Who, str]] = []
        self.behind = False
        over = [track.path for track in self._tracks.values() if self._look(track, now, found)]
        for path in over:
            del self._tracks[path]
        return found

    def drain(self, now: float) -> list[tuple[Who, str]]:
        """Everything that is left, unfinished lines too; afterwards nothing is followed."""
        for track in self._tracks.values():
            track.final = True
        found = self.poll(now)
        while self.behind:
            found += self.poll(now)
        return found

    def _look(self, track: TailedFile[Who], now: float, found: list[tuple[Who, str]]) -> bool:
        """Whether the file is read to its end for good."""
        try:
            stat = os.stat(track.path)  # noqa: PTH116 - a Path costs as much again, a thousand times a second
        except OSError:
            return track.final and self._quiet(track, now, found)
        if stat.st_size == track.offset and (stat.st_ino == track.inode or not track.offset):
            return self._quiet(track, now, found)
        if track.inode not in (0, stat.st_ino) and not self._rotated(track, found):
            return False
        track.inode = stat.st_ino
        if stat.st_size < track.offset:  # cut short from under us
            track.offset = 0
        self._read(track, track.path, stat.st_size, found)
        track.grown = now
        return track.final and not self.behind and self._quiet(track, now, found)

    def _quiet(self, track: TailedFile[Who], now: float, found: list[tuple[Who, str]]) -> bool:
        if track.rest and (track.final or now - track.grown >= PATIENCE):
            found.append((track.who, _text(track.rest)))
            track.rest = b""
        return track.final

    def _rotated(self, track: TailedFile[Who], found: list[tuple[Who, str]]) -> bool:
        """Read what is left of the file that was moved away, and all that were moved after it; True when done."""
        names = [f"{track.path}.{number}" for number in range(1, _ROTATED)]
        place = next((at for at, name in enumerate(names) if _inode(name) == track.inode), None)
        if place is None:
            found.append((track.who, f"… lines are missing here: {track.path} was rotated faster than it was read"))
            track.offset, track.rest = 0, b""
            return True
        try:
            size = os.stat(names[place]).st_size  # noqa: PTH116 - as above
        except OSError:  # rotated once more since: look again in a moment
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
                data = file.read(CHUNK)
        except OSError:
            data = b""
        track.offset = track.offset + len(data) if data else size  # what cannot be read is not tried for ever
        self.behind = self.behind or track.offset < size
        *lines, track.rest = (track.rest + data).split(b"\n")
        found += [(track.who, _text(part)) for line in lines for part in _parts(line)]
        *parts, track.rest = _parts(track.rest)
        found += [(track.who, _text(part)) for part in parts]


def _parts(line: bytes) -> list[bytes]:
    """A line, or the pieces of one that is too long, none of them cut within a character."""
    parts = []
    while len(line) > LONGEST:
        end = next((at for at in range(LONGEST, LONGEST - 4, -1) if line[at] & 0xC0 != 0x80), LONGEST)
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
