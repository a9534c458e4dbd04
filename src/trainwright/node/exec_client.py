# SPDX-License-Identifier: Apache-2.0
"""The client of a supervisor that runs commands in containers: see `supervisor.terminal`.

The supervisor gets the standard streams of the command as descriptors. If the client closes the connection, the
supervisor kills the command.
"""

import socket
from collections import deque
from contextlib import suppress
from typing import Any, cast

from trainwright import __version__
from trainwright.errors import EngineError, UsageError
from trainwright.jsonlines import SUPERVISOR_PROTOCOL, LineSplitter, decode, encode
from trainwright.model.job import Body
from trainwright.model.meta import CONTAINER_SCHEME
from trainwright.node.supervisor.protocol import TerminalEnd, TerminalExec, TerminalSignal
from trainwright.node.supervisor.terminal import connect

_CHUNK_BYTES = 64 * 1024
_MAX_MESSAGE_BYTES = 1 << 20


class CommandNotStarted(UsageError):  # noqa: N818 - the name says what happened
    """The command cannot be started. The exit codes are those of a shell: 127 if not found, 126 if not executable."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.exit_code = code or UsageError.exit_code


def container_id(status: Body) -> str:
    """The id that the supervisor knows of a container with this status."""
    found: str = status.get("containerID", "").removeprefix(CONTAINER_SCHEME)
    return found


def exec_request(container: str, argv: list[str], *, terminal: str = "") -> TerminalExec:
    """A request to run a command; `terminal` is the type of its terminal (TERM), empty if it has none."""
    request: TerminalExec = {
        "do": "exec",
        "protocol": SUPERVISOR_PROTOCOL,
        "version": __version__,
        "container": container,
        "argv": argv,
    }
    if terminal:
        request["env"], request["tty"] = {"TERM": terminal}, True
    return request


class ExecConnection:
    """The connection to the supervisor whose socket is in `folder`.

    A client without an event loop calls `start` and `wait`; a client with one calls `begin` and `ended`.
    """

    def __init__(self, folder: str) -> None:
        try:
            self.socket = connect(folder)
        except OSError as error:
            reason = error.strerror or error
            raise EngineError(f"the node of the replica does not answer at {folder}: {reason}") from None
        self._lines, self._ready = LineSplitter(_MAX_MESSAGE_BYTES), deque[bytes]()

    def start(self, request: TerminalExec, fds: list[int]) -> None:
        """Start the command with these standard streams. Raises CommandNotStarted with the reason."""
        socket.send_fds(self.socket, [encode(request)], fds)
        _check_started(self._read())

    def wait(self) -> int:
        """Wait until the command has ended and return its exit code."""
        end = cast("TerminalEnd", self._read())
        return end["code"]

    async def begin(self, request: TerminalExec, fds: list[int]) -> None:
        """The same as `start`, for a client with an event loop."""
        self.socket.setblocking(False)
        socket.send_fds(self.socket, [encode(request)], fds)
        await self._receive()
        _check_started(self._read())

    async def ended(self) -> int:
        """The same as `wait`, for a client with an event loop."""
        await self._receive()
        return self.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the command."""
        message: TerminalSignal = {"signal": number}
        with suppress(OSError):
            self.socket.sendall(encode(message))

    def close(self) -> None:
        """Close the connection. The supervisor kills the command, unless it has ended."""
        self.socket.close()

    def _read(self) -> dict[str, Any]:
        """Wait for the next message."""
        while not self._ready:
            self._take(self.socket.recv(_CHUNK_BYTES))
        return decode(self._ready.popleft())

    async def _receive(self) -> None:
        """Wait until there is a message."""
        from asyncio import get_running_loop  # noqa: PLC0415 - `trainwright exec` does not need asyncio, which is slow

        while not self._ready:
            self._take(await get_running_loop().sock_recv(self.socket, _CHUNK_BYTES))

    def _take(self, data: bytes) -> None:
        if not data:
            raise EngineError("the node of the replica has closed the connection")
        self._ready.extend(self._lines.feed(data))


def _check_started(answer: dict[str, Any]) -> None:
    if not answer.get("ok"):
        raise CommandNotStarted(str(answer.get("error", "the node did not start the command")), answer.get("code"))
