# SPDX-License-Identifier: Apache-2.0
"""A command in a container, connected to this terminal or to these pipes. `exec` calls it; the supervisor runs it.

Pipes are handed over as they are. For a terminal a pseudo-terminal stands between: the command has its own, and this
one is only passed on, key by key, with its size.
"""

import fcntl
import os
import selectors
import signal
import socket
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from trainwright import __version__
from trainwright.errors import EngineError, UsageError
from trainwright.jsonlines import LineSplitter, decode, encode
from trainwright.local.handshake import SUPERVISOR_PROTOCOL
from trainwright.local.supervisor.protocol import TerminalEnd, TerminalExec, TerminalSignal
from trainwright.local.supervisor.terminal import connect

_CHUNK = 64 * 1024
_LONGEST = 1 << 20
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_in(supervisor: str, container: str, argv: list[str], *, tty: bool | None) -> int:
    """Run it; its exit code. Without a word about it, it has a terminal if this is one."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if tty and not sys.stdin.isatty():
        raise UsageError("-t needs a terminal, and standard input is none")
    link = _Link(supervisor)
    request: TerminalExec = {
        "do": "exec",
        "protocol": SUPERVISOR_PROTOCOL,
        "version": __version__,
        "container": container,
        "argv": argv,
    }
    if tty is False or not (terminal or tty):
        return _piped(link, request)
    env = {"TERM": os.environ.get("TERM", "dumb")}
    return _at_terminal(link, {**request, "env": env, "tty": True})


class Unstarted(UsageError):  # noqa: N818 - it ends a command, it is no mistake of ours
    """The command cannot be started; the exit code is what a shell would say: 127 not found, 126 not executable."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.exit_code = code or UsageError.exit_code


class _Link:
    """The connection to a supervisor."""

    def __init__(self, path: str) -> None:
        try:
            self.socket = connect(str(Path(path).parent))
        except OSError as error:
            raise EngineError(f"the replica's node does not answer at {path}: {error.strerror or error}") from None
        self._lines, self._ready = LineSplitter(_LONGEST), deque[bytes]()

    def ask(self, request: TerminalExec, fds: list[int]) -> None:
        """Start the command; Unstarted says why it cannot be."""
        socket.send_fds(self.socket, [encode(request)], fds)
        answer = self._read()
        if not answer.get("ok"):
            raise Unstarted(str(answer.get("error", "the node did not start the command")), answer.get("code"))

    def end(self) -> int:
        """Wait until the command has ended; its exit code."""
        end = cast("TerminalEnd", self._read())
        return end["code"]

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        message: TerminalSignal = {"signal": number}
        with suppress(OSError):
            self.socket.sendall(encode(message))

    def _read(self) -> dict[str, Any]:
        """The next message; waits for it."""
        while not self._ready:
            data = self.socket.recv(_CHUNK)
            if not data:
                raise EngineError("the replica's node is gone")
            self._ready.extend(self._lines.feed(data))
        return decode(self._ready.popleft())


def _piped(link: _Link, request: TerminalExec) -> int:
    link.ask(request, [0, 1, 2])
    with _handling(dict.fromkeys(_FORWARDED, link.signal)):
        return link.end()


@contextmanager
def _handling(acts: dict[signal.Signals, Callable[[int], None]]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda got, _: acts[signal.Signals(got)](got)) for number in acts}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_terminal(link: _Link, request: TerminalExec) -> int:
    ours, theirs = os.openpty()
    _resize(ours)
    try:
        link.ask(request, [theirs, theirs, theirs])
    finally:
        os.close(theirs)
    with _raw(), _handling({signal.SIGWINCH: lambda _: _resize(ours)}):
        return _pass_on(link, ours)


def _resize(terminal: int) -> None:
    """Give it this one's size; the kernel tells whoever is in it."""
    with suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


@contextmanager
def _raw() -> Iterator[None]:
    """Keys as they come, Ctrl-C too; the terminal is put back whatever happens."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is not to be lost
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _pass_on(link: _Link, terminal: int) -> int:
    """Both ways, until the command has ended and all it wrote is shown."""
    with selectors.DefaultSelector() as selector:
        for fd in (0, terminal, link.socket.fileno()):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if terminal in ready and not _copy(terminal, 1):
                selector.unregister(terminal)
            if 0 in ready and not _copy(0, terminal):
                selector.unregister(0)
            if link.socket.fileno() in ready:
                code = link.end()
                _drain(terminal)
                return code


def _copy(source: int, target: int) -> bool:
    try:
        data = os.read(source, _CHUNK)
    except OSError:  # how a terminal says that nobody is in it any more
        return False
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return bool(data)


def _drain(terminal: int) -> None:
    os.set_blocking(terminal, False)
    while _copy(terminal, 1):
        pass
