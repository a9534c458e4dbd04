# SPDX-License-Identifier: Apache-2.0
"""The pipe on which processes write and the loop reads, a piece a turn.

`containers` passes the pieces on to a log, `execs` keeps the end of them.
"""

import os
from collections.abc import Callable

from trainwright.local.supervisor.loop import Loop

_CHUNK = 64 * 1024
_MOST = 1024 * 1024  # the most that a pipe can hold, unless root has raised the limit

Take = Callable[[bytes], None]


class Pipe:
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
