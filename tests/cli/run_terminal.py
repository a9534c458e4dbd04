# SPDX-License-Identifier: Apache-2.0
"""Runs the real command line on a pseudo-terminal."""

import fcntl
import os
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from run_command import SCRIPT, CommandRunner

from patience import PATIENCE


class Terminal:
    """A command on its own pseudo-terminal."""

    def __init__(self, runner: CommandRunner, *args: str) -> None:
        self.ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", SCRIPT, *args],  # noqa: S607
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=runner.env,
            cwd=runner.folder,
        )
        os.close(theirs)
        self.text = ""

    def until(self, text: str) -> None:
        self.until_so(lambda: text in self.text)

    def until_so(self, look: Callable[[], bool]) -> None:
        """Read until the condition holds."""
        end = time.monotonic() + PATIENCE
        os.set_blocking(self.ours, False)
        while not look():
            assert time.monotonic() < end, self.text
            with suppress(BlockingIOError):
                self.text += os.read(self.ours, 65536).decode()
            time.sleep(0.01)

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def end(self) -> int:
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < end:
            self._take()
            time.sleep(0.01)
        self._take()
        return self.process.wait(1)

    def close(self) -> None:
        os.close(self.ours)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _take(self) -> None:
        os.set_blocking(self.ours, False)
        with suppress(OSError):
            self.text += os.read(self.ours, 65536).decode()


Terminals = Callable[..., Terminal]


@contextmanager
def terminals_of(runner: CommandRunner) -> Iterator[Terminals]:
    """Start commands on terminals; those that have not ended by the end of the block are killed."""
    made: list[Terminal] = []

    def start(*args: str) -> Terminal:
        made.append(Terminal(runner, *args))
        return made[-1]

    try:
        yield start
    finally:
        for terminal in made:
            terminal.close()
