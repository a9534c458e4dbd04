# SPDX-License-Identifier: Apache-2.0
"""`supervisor.sock`: clients use this socket to run commands in containers, and a restarted agent to reconnect.

The first line on a connection says whether the other side is a client or an agent. Clients call `connect`.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from trainwright.jsonlines import SUPERVISOR_PROTOCOL, decode, mismatch
from trainwright.node.supervisor.containers import ExecTable, RunningExec
from trainwright.node.supervisor.control import LineSocket
from trainwright.node.supervisor.launch import Descriptors, StartRefused
from trainwright.node.supervisor.loop import Loop
from trainwright.node.supervisor.tree import ProcessEnd

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Attach, ErrorAnswer, Started, TerminalEnd, TerminalExec

    AttachAgent = Callable[[LineSocket, Attach], None]

NAME = "supervisor.sock"
_FIRST_LINE_SECONDS = 10.0
_MAX_FOLDER_BYTES = 89  # the longest folder path in bytes: the address of a socket has at most 108 bytes


def connect(folder: str) -> socket.socket:
    """Connect to the supervisor of that folder. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        with _socket_path(folder) as path:
            sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def _socket_path(folder: str) -> Iterator[str]:
    """The path of the socket. If the folder's path is too long: a path in /proc through a descriptor of the folder."""
    if len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES or not os.path.isdir("/proc/self/fd"):
        yield f"{folder}/{NAME}"
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)


class ExecListener:
    """Listens on the socket in a folder. Only the owner of the socket can connect."""

    def __init__(self, loop: Loop, folder: str, execs: ExecTable, attach: AttachAgent) -> None:
        self._loop, self._folder, self._execs, self._attach = loop, folder, execs, attach
        self._sock = socket.socket(socket.AF_UNIX)
        self._remove()
        before = os.umask(0o177)
        try:
            with _socket_path(folder) as path:
                self._sock.bind(path)
        finally:
            os.umask(before)
        self._sock.listen(64)
        self._sock.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stop listening and remove the socket file."""
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{NAME}")

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor is free: try again after a second
            self._loop.unwatch(self._sock.fileno())
            self._loop.later(1.0, self._listen)
            return
        ExecClient(self._loop, LineSocket(sock), self._execs, self._attach)

    def _listen(self) -> None:
        self._loop.watch(self._sock.fileno(), self._accept)


class ExecClient:
    """One connection: it waits for the first line; then it is the terminal of a command or the agent's connection."""

    def __init__(self, loop: Loop, lines: LineSocket, execs: ExecTable, attach: AttachAgent) -> None:
        self._loop, self._lines, self._execs, self._attach = loop, lines, execs, attach
        self._exec: RunningExec | None = None
        self._timer = loop.later(_FIRST_LINE_SECONDS, self._close)
        loop.watch(lines.fileno(), self._receive)

    def _receive(self) -> None:
        for line in self._lines.receive():
            try:
                if self._handle(line):
                    return
            except (StartRefused, ValueError, KeyError, TypeError, OSError) as error:
                refused = error if isinstance(error, StartRefused) else StartRefused(f"the request failed: {error!r}.")
                self._send({"error": str(refused), "code": refused.code})
                self._close()
                return
        if self._lines.closed:
            self._close()

    def _handle(self, line: bytes) -> bool:
        """Handle one line. True: the connection is now the agent's."""
        message = decode(line)
        if self._exec is not None:
            self._exec.signal(int(message["signal"]))
            return False
        self._timer.cancel()
        problem = mismatch(message, SUPERVISOR_PROTOCOL, "the client", "the supervisor")
        if problem is not None:
            raise StartRefused(f"{problem}.")
        if message.get("role") == "control":
            self._attach(self._lines, cast("Attach", message))
            return True
        if message.get("do") != "exec":
            raise StartRefused('expected {"role": "control"} or {"do": "exec", …} as the first line.')
        self._run(cast("TerminalExec", message))
        return False

    def _run(self, message: TerminalExec) -> None:
        fds = self._lines.fds
        if len(fds) != 3:
            raise StartRefused(f"expected three descriptors (stdin, stdout, stderr), found {len(fds)}.")
        self._exec = self._execs.enter(message, Descriptors(*fds, tty=bool(message.get("tty"))))
        self._exec.finish = self._finished
        self._lines.close_fds()
        self._send({"ok": True, "pid": self._exec.process.pid})

    def _finished(self, end: ProcessEnd) -> None:
        self._exec = None
        if not self._lines.closed:
            self._send({"code": end.code})
            self._close()

    def _send(self, message: Started | ErrorAnswer | TerminalEnd) -> None:
        self._lines.send(message)
        self._lines.flush()

    def _close(self) -> None:
        """Close the connection and kill its command."""
        self._timer.cancel()
        if not self._lines.sock.fileno() < 0:
            self._loop.unwatch(self._lines.fileno())
            self._lines.close()
        if self._exec is not None:
            self._exec.kill()
