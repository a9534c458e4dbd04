# SPDX-License-Identifier: Apache-2.0
"""The connections of the supervisor: JSON objects in both directions, one per line. No call blocks.

`LineSocket` is one connection; it also receives file descriptors. `Control` is the connection to the agent: it handles
a few requests per turn of the loop, in their order, and sends all answers and events of a turn in one write.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainwright.jsonlines import LineSplitter, LineTooLongError, decode, encode
from trainwright.node.supervisor.launch import NOT_POSSIBLE, StartRefused
from trainwright.node.supervisor.loop import Loop

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Answer, Event, Request

    Reply = Callable[[Answer], None]
    #: Handles the requests of one verb. A handler that replies later returns None.
    Handler = Callable[[Any, Reply], Answer | None]

_CHUNK_BYTES = 64 * 1024
_MAX_LINE_BYTES = 16 * 1024 * 1024
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
#: Maximum number of requests per turn: a start takes half a millisecond, and the loop must read logs between turns.
_REQUESTS_PER_TURN = 16


class LineSocket:
    """A socket with its unread and unsent bytes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fds: list[int] = []  # received descriptors, open until `close_fds`
        self.closed = False
        self._in = LineSplitter(_MAX_LINE_BYTES)
        self._out = bytearray()

    def fileno(self) -> int:
        """The descriptor, for the selector."""
        return self.sock.fileno()

    def receive(self) -> list[bytes]:
        """The complete lines received; afterwards `closed` says whether the other side has disconnected."""
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
            data, messages, _, _ = self.sock.recvmsg(_CHUNK_BYTES, socket.CMSG_SPACE(4 * 8), _CLOEXEC)
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
        """Queue a message; `flush` sends all queued messages in one write."""
        self._out += encode(message)

    def flush(self) -> bool:
        """Send as much as the socket accepts now. False: some bytes are still queued."""
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._out.clear()  # the other side has closed: it gets no more bytes, but its last lines can still be read
        return True

    def close_fds(self) -> None:
        """Close the received descriptors; a process that needs them has its own copies."""
        fds, self.fds = self.fds, []
        for fd in fds:
            os.close(fd)

    def close(self) -> None:
        """Close the socket and the received descriptors."""
        self.closed = True
        self.close_fds()
        self.sock.close()


class Control:
    """The connection to the agent. It calls `lost` when the agent disconnects, and then drops events."""

    def __init__(self, loop: Loop, lost: Callable[[], None]) -> None:
        self.handlers: dict[str, Handler] = {}
        self._loop = loop
        self._lost = lost
        self._lines: LineSocket | None = None
        self._queue: deque[bytes] = deque()
        self._waits_to_write = False
        loop.tasks.append(self._turn)

    @property
    def attached(self) -> bool:
        """Whether an agent is connected."""
        return self._lines is not None

    def attach(self, lines: LineSocket) -> None:
        """Replace the connection to the agent."""
        self._detach()
        self._lines = lines
        self._loop.watch(lines.fileno(), self._receive)

    def send(self, event: Event) -> None:
        """Queue an event for the agent, if an agent is connected."""
        if self._lines is not None:
            self._lines.send(event)

    def flush(self) -> None:
        """Send queued messages, as many as the socket accepts."""
        if self._lines is None:
            return
        waiting = not self._lines.flush()
        if waiting != self._waits_to_write:
            self._waits_to_write = waiting
            self._loop.watch_writable(self._lines.fileno(), self._receive, waiting)

    def _detach(self) -> None:
        lines, self._lines = self._lines, None
        self._queue.clear()
        self._waits_to_write = False
        if lines is not None:
            self._loop.unwatch(lines.fileno())
            lines.close()

    def _receive(self) -> None:
        if self._lines is None:
            return
        self._queue.extend(self._lines.receive())
        if self._lines.closed:
            while self._queue:  # the agent has disconnected, but its last requests are still handled
                self._handle(self._queue.popleft())
            self._detach()
            self._lost()

    def _turn(self) -> bool:
        for _ in range(min(_REQUESTS_PER_TURN, len(self._queue))):
            if self._queue:  # an earlier request may have closed the connection; closing empties the queue
                self._handle(self._queue.popleft())
        self.flush()
        return bool(self._queue)

    def _handle(self, line: bytes) -> None:
        lines, number = self._lines, None

        def reply(answer: Answer) -> None:
            if lines is not None and lines is self._lines:
                lines.send({"id": number, **answer})

        try:
            request = decode(line)
            number = request.get("id")
            answer = self._handler(request)(request, reply)
            if answer is not None:
                reply(answer)
        except StartRefused as refused:
            reply({"error": str(refused), "code": refused.code})
        except KeyError as error:
            reply({"error": f"the request lacks the field {error}.", "code": NOT_POSSIBLE})
        except Exception as error:  # a failed request must not affect other requests
            reply({"error": str(error) or type(error).__name__, "code": NOT_POSSIBLE})

    def _handler(self, request: Request) -> Handler:
        verb = request.get("do")
        if not isinstance(verb, str) or verb not in self.handlers:
            known = ", ".join(self.handlers)
            raise StartRefused(f"expected `do` to be one of {known}; found {verb!r}.")
        return self.handlers[verb]
