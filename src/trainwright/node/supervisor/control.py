# SPDX-License-Identifier: Apache-2.0
"""One connection of the supervisor: JSON objects, one a line, both ways, without ever waiting for the other side.

`control` uses it for the agent, `terminal` for a client of `supervisor.sock`, whose descriptors it also takes.

The agent's connection: its requests in their order, a few a turn, and our answers and events, in one piece a turn.

`main` says what each request means. An agent that comes back through `terminal` takes the place of the one before.
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


if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Answer, Event, Request

    Reply = Callable[[Answer], None]
    #: Takes the request of its verb. None: it will reply later.
    Handler = Callable[[Any, Reply], Answer | None]

_A_TURN = 16  # requests; a start takes half a millisecond, and logs want to be read in between


class Control:
    """`lost` is called when the agent has gone. What is said while there is none is not kept here."""

    def __init__(self, loop: Loop, lost: Callable[[], None]) -> None:
        self.handlers: dict[str, Handler] = {}
        self._loop = loop
        self._lost = lost
        self._lines: LineSocket | None = None
        self._queue: deque[bytes] = deque()
        self._writing = False
        loop.tasks.append(self._turn)

    @property
    def attached(self) -> bool:
        """Whether there is an agent."""
        return self._lines is not None

    def attach(self, lines: LineSocket) -> None:
        """Listen to this one from now on."""
        self._detach()
        self._lines = lines
        self._loop.watch(lines.fileno(), self._receive)

    def tell(self, event: Event) -> None:
        """Say something, if there is somebody to hear it."""
        if self._lines is not None:
            self._lines.send(event)

    def flush(self) -> None:
        """Send what was said, as far as it is taken."""
        if self._lines is None:
            return
        waiting = not self._lines.flush()
        if waiting != self._writing:
            self._writing = waiting
            self._loop.writing(self._lines.fileno(), self._receive, waiting)

    def _detach(self) -> None:
        lines, self._lines = self._lines, None
        self._queue.clear()
        self._writing = False
        if lines is not None:
            self._loop.unwatch(lines.fileno())
            lines.close()

    def _gone(self) -> None:
        self._detach()
        self._lost()

    def _receive(self) -> None:
        if self._lines is None:
            return
        self._queue.extend(self._lines.receive())
        if self._lines.closed:
            while self._queue:  # what it said last counts too
                self._handle(self._queue.popleft())
            self._gone()

    def _turn(self) -> bool:
        for _ in range(min(_A_TURN, len(self._queue))):
            if self._queue:  # a request may end the connection
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
            reply({"error": refused.text, "code": refused.code})
        except KeyError as error:
            reply({"error": f"the request lacks the field {error}.", "code": NOT_POSSIBLE})
        except Exception as error:  # one that fails is answered, and the others go on
            reply({"error": str(error) or type(error).__name__, "code": NOT_POSSIBLE})

    def _handler(self, request: Request) -> Handler:
        verb = request.get("do")
        if not isinstance(verb, str) or verb not in self.handlers:
            known = ", ".join(self.handlers)
            raise StartRefused(NOT_POSSIBLE, f"expected `do` to be one of {known}; found {verb!r}.")
        return self.handlers[verb]
