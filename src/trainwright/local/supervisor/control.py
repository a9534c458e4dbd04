# SPDX-License-Identifier: Apache-2.0
"""The agent's connection: its requests in their order, a few a turn, and our answers and events, in one piece a turn.

`service` says what each request means. An agent that comes back through `terminal` takes the place of the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainwright.jsonlines import decode
from trainwright.local.supervisor.launch import NOT_POSSIBLE
from trainwright.local.supervisor.loop import Loop
from trainwright.local.supervisor.runtimes import Refused
from trainwright.local.supervisor.wire import LineSocket

if TYPE_CHECKING:
    from trainwright.local.supervisor.protocol import Answer, Event, Request

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
        except Refused as refused:
            reply({"error": refused.text, "code": refused.code})
        except KeyError as error:
            reply({"error": f"the request lacks the field {error}.", "code": NOT_POSSIBLE})
        except Exception as error:  # one that fails is answered, and the others go on
            reply({"error": str(error) or type(error).__name__, "code": NOT_POSSIBLE})

    def _handler(self, request: Request) -> Handler:
        verb = request.get("do")
        if not isinstance(verb, str) or verb not in self.handlers:
            known = ", ".join(self.handlers)
            raise Refused(NOT_POSSIBLE, f"expected `do` to be one of {known}; found {verb!r}.")
        return self.handlers[verb]
