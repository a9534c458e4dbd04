# SPDX-License-Identifier: Apache-2.0
"""The logs of containers: read them with the options of `kubectl logs`, and remove the logs of pods that are gone.

The supervisor writes the files, with a timestamp before each line, and rotates them. `read` joins the files of a log.
"""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path

from trainwright.runtime.ports import LogPart

_TIMESTAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) ")
_TIMESTAMP_BYTES = 31
_CHUNK_BYTES = 64 * 1024
#: Seconds between two reads of a log that does not grow.
_POLL_SECONDS = 0.1


class LogLines:
    """Drops lines that are older than `part.since`, and removes the timestamps unless the request asks for them."""

    def __init__(self, part: LogPart) -> None:
        self._with_timestamps = part.timestamps
        self._since = part.since.strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode() if part.since else b""
        self._rest = b""
        self._in_line = False
        self._line_dropped = False
        self._timestamp = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next data of the log; return the part to show. An incomplete timestamp waits for the next call."""
        out: list[bytes] = []
        data, self._rest, position = self._rest + data, b"", 0
        while position < len(data):
            if not self._in_line:
                if len(data) - position < _TIMESTAMP_BYTES and b"\n" not in data[position:]:
                    self._rest = data[position:]
                    break
                position = self._begin_line(data, position, out)
            end = data.find(b"\n", position) + 1 or len(data)
            if not self._line_dropped:
                out.append(data[position:end])
            self._in_line = not data.endswith(b"\n", position, end)
            position = end
        return b"".join(out)

    def end(self) -> bytes:
        """The remaining data, if the log ends within a timestamp."""
        return self._rest

    def _begin_line(self, data: bytes, position: int, out: list[bytes]) -> int:
        """Handle the beginning of a line and return where its text begins.

        A line without a timestamp gets the timestamp of the line before.
        """
        found = _TIMESTAMP.match(data, position)
        self._timestamp = found[1] if found else self._timestamp
        self._line_dropped = self._timestamp < self._since
        if self._with_timestamps and not self._line_dropped:
            out.append(self._timestamp + b" ")
        return found.end() if found else position


def without_timestamps(text: str) -> str:
    """Remove the timestamps that the supervisor has written before each line."""
    lines = LogLines(LogPart())
    return (lines.feed(text.encode()) + lines.end()).decode()


async def read(path: str, part: LogPart, live: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """The part of the log at `path`; `live` returns whether the container still runs. Raises FileNotFoundError."""
    left = sys.maxsize if part.limit is None else part.limit
    async for chunk in _chunks(path, part, live):
        if shown := chunk[:left]:
            yield shown
        left -= len(shown)
        if left <= 0:
            return


async def _chunks(path: str, part: LogPart, live: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    lines, files = LogLines(part), _log_files(path)
    index, offset = _tail_start(files, part.tail) if part.tail is not None else (0, 0)
    with ExitStack() as stack:
        handles = [stack.enter_context(Path(name).open("rb", buffering=0)) for name in files[index:]]
        handles[0].seek(offset)
        for handle in handles:
            while data := handle.read(_CHUNK_BYTES):
                yield lines.feed(data)
                await asyncio.sleep(0)
        if part.follow:
            async for data in _new_data(path, os.dup(handles[-1].fileno()), live):
                yield lines.feed(data)
    yield lines.end()


async def _new_data(path: str, fd: int, live: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """The data that is written from now on. After a rotation the old file is read to its end before the new file."""
    own = fd
    try:
        while True:
            was_live, is_rotated = live(), _is_rotated(path, own)
            data = os.read(own, _CHUNK_BYTES)
            if data:
                yield data
            elif is_rotated:
                os.close(own)
                own = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            elif not was_live:
                return
            else:
                await asyncio.sleep(_POLL_SECONDS)
    finally:
        os.close(own)


def _is_rotated(path: str, fd: int) -> bool:
    try:
        return not os.path.samestat(os.stat(path), os.fstat(fd))  # noqa: PTH116 - to match `os.fstat`
    except FileNotFoundError:
        return False


def _log_files(path: str) -> list[str]:
    """The files of a log, the oldest first."""
    found = [path] if Path(path).exists() else []
    while Path(older := f"{path}.{len(found)}").exists() and found:
        found.append(older)
    if not found:
        raise FileNotFoundError(path)
    return found[::-1]


def _tail_start(files: list[str], lines: int) -> tuple[int, int]:
    """Where the last `lines` lines begin: the index of the file, and the offset in the file."""
    left = lines
    for index in reversed(range(len(files))):
        with Path(files[index]).open("rb") as file:
            position = size = file.seek(0, os.SEEK_END)
            if index == len(files) - 1 and not left:
                return index, size
            while position > 0:
                begin = max(0, position - _CHUNK_BYTES)
                file.seek(begin)
                block = file.read(position - begin)
                # The newline at the end of a file does not begin another line.
                stop = len(block) - (position == size)
                while (found := block.rfind(b"\n", 0, stop)) >= 0:
                    left -= 1
                    if not left:
                        return index, begin + found + 1
                    stop = found
                position = begin
            left -= size > 0
            if left <= 0:
                return index, 0
    return 0, 0


#: The file name of a log begins with this many characters of the pod's UID.
UID_PREFIX_LENGTH = 8


def log_path(folder: str, pod: str, uid: str, container: str, restarts: int) -> str:
    """The path of the log that a container writes after that many restarts. `folder` is that of the job or the run."""
    return f"{folder}/logs/{pod}/{uid[:UID_PREFIX_LENGTH]}-{container}-{restarts}.log"


def remove_logs(folder: Path, name: str, uid: str) -> None:
    """Remove the logs of one pod, but not the logs of other pods with the same name."""
    logs = folder / "logs" / name
    for log in logs.glob(f"{uid[:UID_PREFIX_LENGTH]}-*"):
        log.unlink(missing_ok=True)
    with suppress(OSError):
        logs.rmdir()


def remove_stale_files(folder: Path, present: Collection[str]) -> None:
    """Remove the files of pods that were deleted while no agent ran."""
    for position in folder.glob("pods/*"):
        if position.name not in present:
            shutil.rmtree(position, ignore_errors=True)
    known = {uid[:UID_PREFIX_LENGTH] for uid in present}
    for log in folder.glob("logs/*/*"):
        if log.name.partition("-")[0] not in known:
            with suppress(OSError):  # `unlink` fails for a folder: the folder stays, since it is not a log
                log.unlink()
    for logs in folder.glob("logs/*"):
        with suppress(OSError):
            logs.rmdir()
