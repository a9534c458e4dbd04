# SPDX-License-Identifier: Apache-2.0
"""`trainwright logs --follow` on a cluster: print the new lines of all containers until the job ends.

A thread reads each log. The main thread prints the lines, and looks for new pods and restarted containers. It reads a
log once more after its container has ended, from where the stream stopped, so that no line is missing.
"""

import sys
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from msgspec import Struct

from trainwright.cli.live_job import LiveJob
from trainwright.cli.logs.merge import LogPiece
from trainwright.cli.logs.printer import Printer
from trainwright.cli.remote.outcome import ledger_of
from trainwright.cli.remote.streams import LogReader, RemoteLog
from trainwright.errors import ApiError, ForbiddenError, UnavailableError, UntrustedError

_SCAN_SECONDS = 1.0
#: After the end of a log, its container has probably ended or was restarted, so the next look is soon.
_SOON_SECONDS = 0.2
#: After the end of a job, replicas that the clean-up policy keeps can run for ever. They are not followed.
_LAST_LINES_SECONDS = 3.0

#: One start of a container: UID of the pod, name of the container, and attempt.
Start = tuple[str, str, int]


class _StreamEnd(Struct, frozen=True):
    """A stream has ended, with an error or without."""

    log: RemoteLog
    error: BaseException | None = None


class LogFollower:
    """Follows the logs that `find_logs` returns, which can be others each time."""

    def __init__(
        self, reached: LiveJob, reader: LogReader, printer: Printer, find_logs: Callable[[], list[RemoteLog]]
    ) -> None:
        self._reached, self._reader, self._printer, self._find_logs = reached, reader, printer, find_logs
        self._news: SimpleQueue[LogPiece | _StreamEnd] = SimpleQueue()
        #: The containers whose log is being read. Each has one stream at a time.
        self._open: set[tuple[str, str]] = set()
        self._finished: set[Start] = set()

    def follow(self) -> None:
        """Print new lines until the job has ended and its logs are read. Raises ApiError."""
        next_scan, end = 0.0, None
        while True:
            now = time.monotonic()
            if now >= next_scan:
                opened, ended = self._scan()
                next_scan = now + _SCAN_SECONDS
                end = (end or now + _LAST_LINES_SECONDS) if ended else None
                if end is not None and ((not opened and not self._open) or now >= end):
                    return
            if self._show(next_scan - time.monotonic()):
                next_scan = min(next_scan, time.monotonic() + _SOON_SECONDS)

    def _scan(self) -> tuple[bool, bool]:
        """Open the streams of new logs. Return whether there were any, and whether the job has ended."""
        try:
            job = self._reached.current()
            ended = job is None or ledger_of(job).outcome is not None
            logs = self._find_logs()
        except UntrustedError:
            raise
        except UnavailableError:  # the API server is being restarted
            return False, False
        opened = False
        for log in logs:
            if log.place not in self._open and _start(log) not in self._finished:
                opened = True
                self._open.add(log.place)
                Thread(target=self._read, args=(log,), daemon=True).start()
        return opened, ended

    def _read(self, log: RemoteLog) -> None:
        try:
            for piece in self._reader.new_lines(log):
                self._news.put(piece)
        except BaseException as error:  # the main thread decides
            self._news.put(_StreamEnd(log, error))
        else:
            self._news.put(_StreamEnd(log))

    def _show(self, seconds: float) -> bool:
        """Print lines for at most this time. Return True as soon as a stream has ended."""
        sys.stdout.flush()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                found = self._news.get(timeout=left)
            except Empty:
                break
            if isinstance(found, _StreamEnd):
                self._close(found)
                return True
            self._printer.show(found)
            if self._news.empty():
                sys.stdout.flush()
        return False

    def _close(self, found: _StreamEnd) -> None:
        log, error = found.log, found.error
        self._open.discard(log.place)
        if isinstance(error, ForbiddenError) or (error is not None and not isinstance(error, ApiError)):
            raise error
        if log.ended and not isinstance(error, UnavailableError):
            self._finished.add(_start(log))


def _start(log: RemoteLog) -> Start:
    return (*log.place, log.file.attempt)
