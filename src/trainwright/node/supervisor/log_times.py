# SPDX-License-Identifier: Apache-2.0
"""The times at which the bytes of a log file were written, in a second file beside the log.

`x.log` has `x.times`, and `x.log.1` has `x.times.1`. The log itself stays byte for byte the output of the program. The
second file is a list of marks of 16 bytes: an offset in the log, and the time in nanoseconds at which the supervisor
read the byte at this offset. Later bytes have the same time, up to the next mark. `trainwright logs` reads the marks.

The supervisor writes a mark before the bytes that it describes. So if SIGKILL or a full disk interrupts the writing,
the worst case is that the last bytes have an earlier time. Logs that an earlier version of Trainwright wrote have no
marks.
"""

import contextlib
import os
import struct

#: Offset and time, both unsigned, little-endian.
MARK = struct.Struct("<QQ")
#: Bytes within this time after a mark get the time of that mark.
RESOLUTION_NS = 1_000_000
# If a program writes very short pieces, the marks would need more space than the log. If the marks are larger than this
# size plus a quarter of the log, the pause between two marks is longer.
_SMALL_BYTES = 64 * 1024
_LOG_BYTES_PER_MARK_BYTE = 4
_LONG_PAUSE_NS = 1_000_000_000


def times_path(log: str) -> str:
    """The path of the marks of a log file, which may be a rotated file."""
    before, _, number = log.rpartition(".log")
    return f"{before}.times{number}" if before else f"{log}.times"


def move(log: str, new: str) -> None:
    """Rename a log file and its marks. The marks of a file that is replaced are removed."""
    os.replace(log, new)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(times_path(new))
    with contextlib.suppress(FileNotFoundError):
        os.rename(times_path(log), times_path(new))


def remove(log: str) -> None:
    """Remove a log file and its marks."""
    os.unlink(log)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(times_path(log))


class LogTimes:
    """Writes the marks of one log file. It never raises OSError: a log without marks is better than no log."""

    __slots__ = ("_end", "_file", "_last", "_path")

    def __init__(self, log: str) -> None:
        self._path = times_path(log)
        self._file = -1
        self._end = 0
        self._last = 0

    def mark(self, offset: int, now: int) -> None:
        """Record that the byte at this offset, which is about to be written, was read at the time `now`."""
        crowded = self._end > _SMALL_BYTES + offset // _LOG_BYTES_PER_MARK_BYTE
        if 0 <= now - self._last < (_LONG_PAUSE_NS if crowded else RESOLUTION_NS):
            return
        try:
            if self._file < 0:
                self._open()
            # A mark that a full disk has cut is overwritten by the next mark.
            if os.pwrite(self._file, MARK.pack(offset, now), self._end) == MARK.size:
                self._end += MARK.size
                self._last = now
        except OSError:
            pass

    def close(self) -> None:
        """Close the file. The next mark opens the file of that name again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._last = 0

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._end = os.fstat(self._file).st_size // MARK.size * MARK.size
