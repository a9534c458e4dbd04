# SPDX-License-Identifier: Apache-2.0
"""Write the output of a view in a thread, so that a slow, stopped or closed reader does not stop the engine.

The writer keeps the order of the texts. After the first error (a closed pipe, a full disk) it drops everything.
"""

import os
import threading
from collections import deque

from trainwright.cli.show.news import Frame

#: A view delays logs while more bytes than this wait to be written.
_BUSY_BYTES = 64 * 1024


class BackgroundWriter:
    """Writes text to a file descriptor without blocking the caller."""

    def __init__(self, fd: int, encoding: str = "utf-8") -> None:
        self._fd = fd
        self._encoding = encoding
        self._parts: deque[bytes] = deque()
        self._waiting = 0
        self._closed = False
        self._change = threading.Condition()
        #: The first error; after an error nothing is written any more.
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="view-writer", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether much output waits for the reader."""
        return self._waiting > _BUSY_BYTES

    @property
    def idle(self) -> bool:
        """Whether everything is written."""
        return not self._waiting

    def write(self, text: str) -> None:
        """Add text to the output and return at once."""
        data = text.encode(self._encoding, errors="backslashreplace")
        if not data or self.error is not None:
            return
        with self._change:
            self._parts.append(data)
            self._waiting += len(data)
            self._change.notify()

    def close(self, timeout: float | None = None) -> bool:
        """Wait until all output is written. Return False if this takes over `timeout` seconds. Can be called again."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (data := self._next()) is not None:
            try:
                self._put(data)
            except OSError as error:
                self.error = error
            with self._change:
                self._waiting -= len(data)

    def _next(self) -> bytes | None:
        with self._change:
            while not self._parts and not self._closed:
                self._change.wait()
            if not self._parts:
                return None
            data = b"".join(self._parts)
            self._parts.clear()
            return data

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self.error is None:
            view = view[os.write(self._fd, view) :]


class WriterView:
    """What all views share: they write their output in the background."""

    def __init__(self, writer: BackgroundWriter, *, with_logs: bool = True) -> None:
        self._writer = writer
        self._with_logs = with_logs

    @property
    def busy(self) -> bool:
        """Whether much output waits for the reader."""
        return self._writer.busy

    @property
    def gone(self) -> bool:
        """Whether the reader has closed the pipe."""
        return isinstance(self._writer.error, BrokenPipeError)

    def tick(self, frame: Frame) -> None:
        """Do nothing, because output that is already written does not change."""

    def close(self, timeout: float) -> bool:
        """Write the rest of the output. Return whether everything is written."""
        return self._writer.close(timeout)
