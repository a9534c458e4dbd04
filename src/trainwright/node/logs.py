# SPDX-License-Identifier: Apache-2.0
"""Reading what a container wrote, as `kubectl logs` wants it: the end, since a time, with times, as it is written.

`node.node` offers it to whoever serves logs. The supervisor writes the files, each line with its time before it, and
keeps so many of a bounded size; they are read here in their order, as one.

Files of pods that are gone, where nobody keeps them: `stop` removes a pod's logs, `agent` what others have left.
"""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path

from trainwright.runtime.ports import LogPart

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) ")
_STAMPED = 31
_CHUNK = 64 * 1024
#: Seconds between two looks at a log that does not grow.
_PAUSE = 0.1


class LogLines:
    """Takes the time off each line, or leaves it, and drops the lines from before."""

    def __init__(self, part: LogPart) -> None:
        self._shown = part.timestamps
        self._since = part.since.strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode() if part.since else b""
        self._rest = b""
        self._inside = False
        self._dropped = False
        self._stamp = b""

    def feed(self, data: bytes) -> bytes:
        """What is to be shown of it."""
        out: list[bytes] = []
        data, self._rest, place = self._rest + data, b"", 0
        while place < len(data):
            if not self._inside:
                if len(data) - place < _STAMPED and b"\n" not in data[place:]:
                    self._rest = data[place:]
                    break
                place = self._begin(data, place, out)
            end = data.find(b"\n", place) + 1 or len(data)
            if not self._dropped:
                out.append(data[place:end])
            self._inside = not data.endswith(b"\n", place, end)
            place = end
        return b"".join(out)

    def end(self) -> bytes:
        """What is left of a log that was cut off in the middle of a line."""
        return self._rest

    def _begin(self, data: bytes, place: int, out: list[bytes]) -> int:
        """A line begins; one without a time has that of the one before."""
        found = _STAMP.match(data, place)
        self._stamp = found[1] if found else self._stamp
        self._dropped = self._stamp < self._since
        if self._shown and not self._dropped:
            out.append(self._stamp + b" ")
        return found.end() if found else place


async def read(path: str, part: LogPart, live: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """The part of the log at that path; `live` says whether somebody still writes it. FileNotFoundError."""
    left = part.limit
    async for piece in _pieces(path, part, live):
        shown = piece if left is None else piece[:left]
        if shown:
            yield shown
        if left is not None:
            left -= len(shown)
            if left <= 0:
                return


async def _pieces(path: str, part: LogPart, live: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    lines, files = LogLines(part), _files(path)
    index, offset = _tail(files, part.tail) if part.tail is not None else (0, 0)
    with ExitStack() as stack:
        handles = [stack.enter_context(Path(name).open("rb", buffering=0)) for name in files[index:]]
        handles[0].seek(offset)
        for handle in handles:
            while data := handle.read(_CHUNK):
                yield lines.feed(data)
                await asyncio.sleep(0)
        if part.follow:
            async for data in _growth(path, os.dup(handles[-1].fileno()), live):
                yield lines.feed(data)
    yield lines.end()


async def _growth(path: str, fd: int, live: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """What is written from now on. A file that was put aside is read to its end before the next."""
    own = fd
    try:
        while True:
            alive, moved = live(), _moved(path, own)
            data = os.read(own, _CHUNK)
            if data:
                yield data
            elif moved:
                os.close(own)
                own = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            elif not alive:
                return
            else:
                await asyncio.sleep(_PAUSE)
    finally:
        os.close(own)


def _moved(path: str, fd: int) -> bool:
    try:
        return not os.path.samestat(os.stat(path), os.fstat(fd))  # noqa: PTH116 - as for the descriptor
    except FileNotFoundError:
        return False


def _files(path: str) -> list[str]:
    """The files of a log, the oldest first."""
    found = [path] if Path(path).exists() else []
    while Path(older := f"{path}.{len(found)}").exists() and found:
        found.append(older)
    if not found:
        raise FileNotFoundError(path)
    return found[::-1]


def _tail(files: list[str], lines: int) -> tuple[int, int]:
    """Where the last lines begin: which file, and where in it."""
    left = lines
    for index in reversed(range(len(files))):
        with Path(files[index]).open("rb") as file:
            place = size = file.seek(0, os.SEEK_END)
            if index == len(files) - 1 and not left:
                return index, size
            while place > 0:
                begin = max(0, place - _CHUNK)
                file.seek(begin)
                block = file.read(place - begin)
                # The end of the last line of a file is not where another begins.
                stop = len(block) - (place == size)
                while (found := block.rfind(b"\n", 0, stop)) >= 0:
                    left -= 1
                    if not left:
                        return index, begin + found + 1
                    stop = found
                place = begin
            left -= size > 0
            if left <= 0:
                return index, 0
    return 0, 0


#: Of a UID, in the names of logs.
SHORT = 8


def remove_logs(folder: Path, name: str, uid: str) -> None:
    """Remove the logs of one pod; others of its name may have some too."""
    logs = folder / "logs" / name
    for log in logs.glob(f"{uid[:SHORT]}-*"):
        log.unlink(missing_ok=True)
    with suppress(OSError):
        logs.rmdir()


def remove_stale_logs(folder: Path, present: Collection[str]) -> None:
    """Remove what is left of pods that went while no agent was here."""
    for place in folder.glob("pods/*"):
        if place.name not in present:
            shutil.rmtree(place, ignore_errors=True)
    known = {uid[:SHORT] for uid in present}
    for log in folder.glob("logs/*/*"):
        if log.name.partition("-")[0] not in known:
            with suppress(OSError):  # something else has got there; it is not ours
                log.unlink()
    for logs in folder.glob("logs/*"):
        with suppress(OSError):
            logs.rmdir()
