# SPDX-License-Identifier: Apache-2.0
"""The output of processes: the pipe that they write to, and the log files of a container, which have a bounded size.

A full disk does not stop a container: the log drops bytes that cannot be written, and records the gap when it can
write again. If lines are stamped, each line begins with the time at which the supervisor read its first byte; if not,
`log_times` keeps the times beside the log.
"""

import os
import time
from collections.abc import Callable

from trainwright.node.supervisor import log_times
from trainwright.node.supervisor.loop import Loop

#: The maximum size of one log file in bytes, and the number of files, including the current file.
DEFAULT_ROTATION = (10 * 1024 * 1024, 5)
_CHUNK_BYTES = 64 * 1024
#: The largest size of a pipe in bytes, unless root has raised the limit.
_MAX_PIPE_BYTES = 1024 * 1024


class ContainerLog:
    """The log of one container. It calls `on_loss` once, with the reason, when it drops bytes for the first time."""

    def __init__(
        self, path: str, rotate: tuple[int, int], on_loss: Callable[[str], None], *, stamps: bool = False
    ) -> None:
        self.path = path
        self._stamps, self._midline = stamps, False
        self._times = None if stamps else log_times.LogTimes(path)
        self._now = 0
        self._size, self._files = max(1, rotate[0]), max(1, rotate[1])
        self._on_loss: Callable[[str], None] | None = on_loss
        self._file = -1
        self._written = 0
        self._lost = 0
        self.write(b"")  # a container without output also has a log

    def write(self, data: bytes) -> None:
        """Append the bytes. A new file begins at the start of a line, unless a line is longer than a file."""
        self._now = time.time_ns()
        if self._stamps and data:
            data = self._stamped(data)
        try:
            while True:
                if self._file < 0:
                    self._open()
                if self._lost:
                    self._record_gap()
                if not data:
                    return
                data = self._write_piece(data)
        except OSError as error:
            self._drop(len(data), error)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._times is not None:
            self._times.close()

    def _stamped(self, data: bytes) -> bytes:
        """Insert the time before each line of the data, but not before the rest of a line from an earlier call."""
        seconds, rest = divmod(self._now, 1_000_000_000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:09}Z "
        ended = data.endswith(b"\n")
        lines = data[:-1] if ended else data
        first = b"" if self._midline else stamp.encode()
        self._midline = not ended
        return first + lines.replace(b"\n", b"\n" + stamp.encode()) + (b"\n" if ended else b"")

    def _write_piece(self, data: bytes) -> bytes:
        """Write as much as the current file takes, and return the rest."""
        room = max(0, self._size - self._written)
        piece = data if len(data) <= room else data[: data.rfind(b"\n", 0, room) + 1]
        if not piece and self._written:
            self._rotate()
            return data
        if self._times is not None:
            self._times.mark(self._written, self._now)
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
                log_times.move(older, f"{self.path}.{number}")
        if self._files == 1:
            log_times.remove(self.path)
        self._open()

    def _drop(self, count: int, error: OSError) -> None:
        self._lost += count
        if self._on_loss is not None and count:
            self._on_loss((error.strerror or str(error)).lower())
            self._on_loss = None

    def _record_gap(self) -> None:
        """Write how many bytes are missing, on a new line, because the line before may be incomplete."""
        note = f"\n[trainwright: {self._lost} bytes of the log could not be written and are missing here]\n".encode()
        count = os.write(self._file, note)
        self._written += count
        if count == len(note):
            self._lost = 0


class OutputPipe:
    """A pipe that processes write to and the loop reads, one chunk per turn.

    A new process inherits `write_end`; `open` closes `write_end` in the supervisor and begins to read.
    """

    __slots__ = ("_consume", "_loop", "_read_end", "write_end")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._consume: Callable[[bytes], None]
        self._read_end, self.write_end = os.pipe()

    def open(self, consume: Callable[[bytes], None]) -> None:
        """Pass every chunk to `consume`, until all writers have closed the pipe or `drain` is called."""
        self._consume = consume
        self._close_write_end()
        os.set_blocking(self._read_end, False)
        self._loop.watch(self._read_end, self._read_chunk)

    def drain(self) -> None:
        """Read the bytes that are in the pipe now and close it, even if a process still has it open."""
        total = 0
        while self._read_end >= 0 and total < _MAX_PIPE_BYTES and (count := self._read_chunk()):
            total += count
        self.close()

    def close(self) -> None:
        """Close both ends. Safe to call twice."""
        self._close_write_end()
        if self._read_end >= 0:
            self._loop.unwatch(self._read_end)
            os.close(self._read_end)
            self._read_end = -1

    def _read_chunk(self) -> int:
        try:
            data = os.read(self._read_end, _CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        if data:
            self._consume(data)
        else:
            self.close()
        return len(data)

    def _close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1
