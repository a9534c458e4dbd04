# SPDX-License-Identifier: Apache-2.0
"""A container's log: what its processes write, in order, in files of a bounded size. `containers` feeds it.

A log never stops training: what cannot be written is dropped, the gap is named in the log once it can be again. Where
lines are stamped, each begins with the time at which its first byte was read, as `agent.logs` takes it off again.

The pipe on which processes write and the loop reads, a piece a turn.

`containers` passes the pieces on to a log, `execs` keeps the end of them.
"""

import os
import time
from collections.abc import Callable

from trainwright.node.supervisor.loop import Loop

# pathlib would cost the supervisor a tenth of its start.


DEFAULT = (10 * 1024 * 1024, 5)  # bytes of one file, and how many files with the one that is written


class ContainerLog:
    """One log. `trouble` is called with the reason when the first byte of it is lost."""

    def __init__(
        self, path: str, rotate: tuple[int, int], trouble: Callable[[str], None], *, stamps: bool = False
    ) -> None:
        self.path = path
        self._stamps, self._midline = stamps, False
        self._size, self._files = max(1, rotate[0]), max(1, rotate[1])
        self._trouble: Callable[[str], None] | None = trouble
        self._file = -1
        self._written = 0
        self._lost = 0
        self.write(b"")  # a container that says nothing has a log too

    def write(self, data: bytes) -> None:
        """Append it; a new file begins with a whole line where that is possible."""
        if self._stamps and data:
            data = self._stamped(data)
        try:
            while True:
                if self._file < 0:
                    self._open()
                if self._lost:
                    self._gap()
                if not data:
                    return
                data = self._put(data)
        except OSError as error:
            self._drop(len(data), error)

    def close(self) -> None:
        """No more will come."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _stamped(self, data: bytes) -> bytes:
        """The time before each line that begins here."""
        seconds, rest = divmod(time.time_ns(), 1_000_000_000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:09}Z "
        ended = data.endswith(b"\n")
        lines = data[:-1] if ended else data
        first = b"" if self._midline else stamp.encode()
        self._midline = not ended
        return first + lines.replace(b"\n", b"\n" + stamp.encode()) + (b"\n" if ended else b"")

    def _put(self, data: bytes) -> bytes:
        """Write a piece; returns what is left."""
        room = self._size - self._written
        if room <= 0:
            self._rotate()
            return data
        piece = data if len(data) <= room else data[: data.rfind(b"\n", 0, room) + 1]
        if not piece and self._written:
            self._rotate()
            return data
        count = os.write(self._file, piece or data[:room])
        self._written += count
        return data[count:]

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._file = os.open(self.path, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._file = os.open(self.path, flags, 0o644)
        self._written = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = f"{self.path}.{number - 1}" if number > 1 else self.path
            if os.path.exists(older):
                os.replace(older, f"{self.path}.{number}")
        if self._files == 1:
            os.unlink(self.path)
        self._open()

    def _drop(self, count: int, error: OSError) -> None:
        self._lost += count
        if self._trouble is not None and count:
            self._trouble((error.strerror or str(error)).lower())
            self._trouble = None

    def _gap(self) -> None:
        """Say how much is missing; part of a line may stand before."""
        note = f"\n[trainwright: {self._lost} bytes of the log could not be written and are missing here]\n".encode()
        count = os.write(self._file, note)
        self._written += count
        if count == len(note):
            self._lost = 0


_CHUNK = 64 * 1024
_MOST = 1024 * 1024  # the most that a pipe can hold, unless root has raised the limit

Take = Callable[[bytes], None]


class OutputPipe:
    """`entry` is what a new process gets; `open` closes it here and begins to read."""

    __slots__ = ("_exit", "_loop", "_take", "entry")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._take: Take | None = None
        self._exit, self.entry = os.pipe()

    def open(self, take: Take) -> None:
        """Give every piece to `take`, until all writers are gone or `drain` is called."""
        self._take = take
        self._shut()
        os.set_blocking(self._exit, False)
        self._loop.watch(self._exit, self._piece)

    def drain(self) -> None:
        """Take what is in it now, and close: a process that keeps it open is not waited for."""
        taken = 0
        while self._exit >= 0 and taken < _MOST:
            count = self._piece()
            if not count:
                break
            taken += count
        self.close()

    def close(self) -> None:
        """Close both ends. Safe to call twice."""
        self._shut()
        if self._exit >= 0:
            if self._take is not None:
                self._loop.unwatch(self._exit)
            os.close(self._exit)
            self._exit = -1

    def _piece(self) -> int:
        try:
            data = os.read(self._exit, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return 0
        if data and self._take is not None:
            self._take(data)
        if not data:
            self.close()
        return len(data)

    def _shut(self) -> None:
        if self.entry >= 0:
            os.close(self.entry)
            self.entry = -1
