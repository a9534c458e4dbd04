# SPDX-License-Identifier: Apache-2.0
"""Read logs of containers from an API server, each line with its time.

The server puts the time before each line. A reader remembers per container how far it has read, so that a log can be
read again from there: after the container has ended, after a restart, or after a lost connection.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from queue import Queue
from threading import Thread

import click
from msgspec import Struct

from trainwright.cli.logs.merge import LineFilter, LogPiece
from trainwright.cli.logs.select import LogFile
from trainwright.errors import ApiError, ForbiddenError, InvalidError, NotFoundError
from trainwright.kube.blocking import ClusterClient
from trainwright.node.log_segments import Piece
from trainwright.runtime.ports import LogPart

_SECOND = 1_000_000_000
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")
#: How many lines of each log wait in memory for the lines of other logs: at most this many batches of this many lines.
_AHEAD_BATCHES, _BATCH_LINES = 8, 256


class RemoteLog(Struct, frozen=True):
    """The log of one start of a container. `file` has its label and its attempt."""

    pod: str
    container: str
    file: LogFile
    #: Whether it is the log before the last restart of the container.
    previous: bool = False
    #: Whether the container has ended, so that its log gets no new lines.
    ended: bool = False

    @property
    def place(self) -> tuple[str, str]:
        """The container: UID of the pod, and name."""
        return self.file.uid, self.container


class _Position(Struct):
    """How far a container's log was read: the time of the last line, and how many of its lines have this time."""

    time: int = 0
    lines: int = 0

    def advance(self, time: int) -> None:
        """Count a line."""
        self.lines = self.lines + 1 if time == self.time else 1
        self.time = time


class LogReader:
    """Reads logs of the pods of one namespace, and keeps what could not be read in `problems`."""

    def __init__(self, client: ClusterClient, namespace: str, wanted: LineFilter) -> None:
        self._client, self._namespace, self._wanted = client, namespace, wanted
        self._positions: dict[tuple[str, str], _Position] = {}
        self.problems: list[str] = []

    def existing_lines(self, log: RemoteLog) -> Iterator[LogPiece]:
        """The wanted lines that exist now. An unreadable log is a notice, a missing right an error."""
        # If every line counts, the server can count the last ones.
        tail = self._wanted.last if self._wanted.pattern is None else None
        try:
            yield from self._lines(log, tail, follow=False)
        except ForbiddenError:
            raise
        except (NotFoundError, InvalidError):  # the pod is gone, or the container has not started yet
            return
        except ApiError as error:
            self.problems.append(str(error))
            click.echo(f"notice: {log.file.name}: its log cannot be read: {error}", err=True)

    def new_lines(self, log: RemoteLog) -> Iterator[LogPiece]:
        """The wanted lines that were not read yet, until the container ends. Raises ApiError."""
        was_skipped = self._wanted.last == 0 and log.place in self._positions
        return self._lines(log, 0 if was_skipped else None, follow=not log.ended)

    def _lines(self, log: RemoteLog, tail: int | None, *, follow: bool) -> Iterator[LogPiece]:
        position = self._positions.setdefault(log.place, _Position())
        known, known_lines, skipped, time = position.time, position.lines, 0, position.time
        since = max(known, self._wanted.since)
        part = LogPart(
            follow=follow,
            previous=log.previous,
            timestamps=True,
            tail=tail if not known else None,
            since=datetime.fromtimestamp(since // _SECOND, UTC) if since else None,  # the server takes whole seconds
        )
        for line in _split_lines(self._client.log((self._namespace, log.pod), log.container, part)):
            time, data = _split_time(line, time)
            if time < known:
                continue
            if time == known and skipped < known_lines:
                skipped += 1
                continue
            position.advance(time)
            if time >= self._wanted.since and self._wanted.matches(data):
                yield LogPiece(log.file, Piece(time, data))


def _split_lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The lines with their newline characters. Only the last line can be without one."""
    rest: list[bytes] = []
    for part in parts:
        first, newline, more = part.partition(b"\n")
        rest.append(first)
        if not newline:
            continue
        yield b"".join(rest) + b"\n"
        *lines, last = more.split(b"\n")
        yield from (line + b"\n" for line in lines)
        rest = [last]
    if last := b"".join(rest):
        yield last


def _split_time(line: bytes, before: int) -> tuple[int, bytes]:
    """The time of a line and its text. `before` is the time of the line before it, for a line without a time."""
    found = _STAMP.match(line)
    if found is None:
        return before, line
    fraction = (found[2] or b"").ljust(9, b"0")
    return _seconds(found[1], found[3]) * _SECOND + int(fraction), line[found.end() :]


@lru_cache(maxsize=256)
def _seconds(text: bytes, zone: bytes) -> int:
    """The time in seconds since 1970. Many lines have the same second."""
    return int(datetime.fromisoformat((text + zone).decode()).timestamp())


def read_ahead(source: Iterator[LogPiece]) -> Iterator[LogPiece]:
    """Read the source in a thread, so that many sources are read at the same time. Raises the error of the source.

    The thread begins at once, and does not delay the end of the process.
    """
    queue: Queue[list[LogPiece] | BaseException] = Queue(_AHEAD_BATCHES)

    def work() -> None:
        try:
            while batch := list(islice(source, _BATCH_LINES)):
                queue.put(batch)
        except BaseException as error:  # the caller's thread raises it
            queue.put(error)
        else:
            queue.put([])

    Thread(target=work, daemon=True).start()
    return _taken(queue)


def _taken(queue: "Queue[list[LogPiece] | BaseException]") -> Iterator[LogPiece]:
    while found := queue.get():
        if isinstance(found, BaseException):
            raise found
        yield from found
