# SPDX-License-Identifier: Apache-2.0
"""One connection of the supervisor: JSON objects, one a line, both ways, without ever waiting for the other side.

`control` uses it for the agent, `terminal` for a client of `supervisor.sock`, whose descriptors it also takes.
"""

import array
import os
import socket
from collections.abc import Mapping
from typing import Any

from trainwright.jsonlines import LineSplitter, LineTooLongError, encode

_CHUNK = 64 * 1024
_LONGEST = 16 * 1024 * 1024
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class LineSocket:
    """A socket and what is still to be read from it and written to it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fds: list[int] = []  # received, and open until `drop`
        self.closed = False
        self._in = LineSplitter(_LONGEST)
        self._out = bytearray()

    def fileno(self) -> int:
        """For the selector."""
        return self.sock.fileno()

    def receive(self) -> list[bytes]:
        """The complete lines that are there; afterwards `closed` says whether the other side has gone."""
        data = self._read()
        if data is None:
            return []
        try:
            if data:
                return self._in.feed(data)
        except LineTooLongError:
            pass
        self.closed = True
        return []

    def _read(self) -> bytes | None:
        try:
            data, messages, _, _ = self.sock.recvmsg(_CHUNK, socket.CMSG_SPACE(4 * 8), _CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""
        for level, kind, body in messages:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(body[: len(body) - len(body) % numbers.itemsize])
                self.fds.extend(numbers)
        return data

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue it; `flush` sends what is queued in one piece."""
        self._out += encode(message)

    def flush(self) -> bool:
        """Send as much as the other side takes now. False: something is left."""
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._out.clear()  # it hears no more; what it said before is still to be read, and then its end
        return True

    def drop(self) -> None:
        """Close the descriptors that were received: whoever needed them has them."""
        fds, self.fds = self.fds, []
        for fd in fds:
            os.close(fd)

    def close(self) -> None:
        """Close it, and what was received with it."""
        self.closed = True
        self.drop()
        self.sock.close()
