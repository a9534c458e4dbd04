# SPDX-License-Identifier: Apache-2.0
"""One connection of the supervisor: JSON objects, one a line, both ways, without ever waiting for the other side.

`control` uses it for the agent, `terminal` for a client of `supervisor.sock`, whose descriptors it also takes.
"""

import array
import json
import os
import socket
from typing import Any

_CHUNK = 64 * 1024
_LONGEST = 16 * 1024 * 1024
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Lines:
    """A socket and what is still to be read from it and written to it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fds: list[int] = []  # received, and open until `drop`
        self.closed = False
        self._in = b""
        self._out = bytearray()

    def fileno(self) -> int:
        """For the selector."""
        return self.sock.fileno()

    def receive(self) -> list[bytes]:
        """The complete lines that are there; afterwards `closed` says whether the other side has gone."""
        data = self._read()
        if data is None:
            return []
        if not data or len(self._in) > _LONGEST:
            self.closed = True
            return []
        *lines, self._in = (self._in + data).split(b"\n")
        return lines

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

    def send(self, message: dict[str, Any]) -> None:
        """Queue it; `flush` sends what is queued in one piece."""
        self._out += _encode(message).encode() + b"\n"

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


def decoded(line: bytes) -> dict[str, Any]:
    """The object of one line. Raises ValueError with a sentence."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ValueError(f"a line is not JSON: {error}.") from None
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, found {type(message).__name__}.")
    return message
