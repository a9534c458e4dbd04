# SPDX-License-Identifier: Apache-2.0
"""Writes for a view, in a thread of its own: a reader that is slow, paused or gone must not stop the engine.

What is given first is written first. Once the reader is gone, or the disk is full, everything else is dropped.
"""

import os
import threading
from collections import deque

#: A view holds logs back while this much is waiting to be written.
_PLENTY = 64 * 1024


class BackgroundWriter:
    """Text to a file descriptor, without waiting."""

    def __init__(self, fd: int, encoding: str = "utf-8") -> None:
        self._fd = fd
        self._encoding = encoding
        self._parts: deque[bytes] = deque()
        self._waiting = 0
        self._closed = False
        self._change = threading.Condition()
        #: Why nothing is written any more.
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="pen", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """The reader has plenty to read."""
        return self._waiting > _PLENTY

    @property
    def idle(self) -> bool:
        """Everything is written."""
        return not self._waiting

    def write(self, text: str) -> None:
        """Hand over; returns at once."""
        data = text.encode(self._encoding, errors="backslashreplace")
        if not data or self.error is not None:
            return
        with self._change:
            self._parts.append(data)
            self._waiting += len(data)
            self._change.notify()

    def close(self, patience: float | None = None) -> bool:
        """Wait until all is written, but not longer than that; whether it is. May be called again."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join(patience)
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


class PenView:
    """A view that only ever appends to what it has written."""

    def __init__(self, pen: BackgroundWriter) -> None:
        self._pen = pen

    @property
    def busy(self) -> bool:
        """The reader has enough to read."""
        return self._pen.busy

    @property
    def gone(self) -> bool:
        """There is no reader any more."""
        return isinstance(self._pen.error, BrokenPipeError)

    def close(self, patience: float) -> bool:
        """Write what is left; whether all of it is written."""
        return self._pen.close(patience)
