# SPDX-License-Identifier: Apache-2.0
"""A program that runs beside the tests: its log is a file, and it does not outlive the process that started it.

`cluster_plane` and `cluster_nodes` are made of these.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from patience import PATIENCE

# The kernel ends the program when the thread that started it ends, even if that was killed.
_TIED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
hasattr(libc, "prctl") and libc.prctl(1, 9)
os.execv(sys.argv[1], sys.argv[1:])
"""


class PlaneError(Exception):
    """Something did not come up; the text ends with what it wrote."""


class Process:
    """One program: started, killed, started again."""

    def __init__(self, name: str, words: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self._words = words
        self._env = {**os.environ, **env} if env else None
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, its log going on where it was."""
        words = [sys.executable, "-E", "-s", "-S", "-c", _TIED, *self._words]
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env)

    @property
    def pid(self) -> int:
        """Of the program itself, since nothing forks."""
        assert self._popen, f"{self.name} was never started"
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """It runs."""
        return self._popen is not None and self._popen.poll() is None

    def signal(self, number: int) -> None:
        """SIGSTOP, for example."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once; what it holds is thrown away anyway."""
        if self._popen:
            self._popen.kill()
            self._popen.wait()

    def end(self, patience: float = 10.0) -> int | None:
        """Ask it to end, and see to it; its exit code."""
        if self._popen is None:
            return None
        if self.alive:
            self.signal(signal.SIGTERM)
        try:
            return self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._popen.returncode

    def until(self, ready: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait until it is so; PlaneError if it ends before, or never comes to it."""
        deadline = time.monotonic() + patience
        while not ready():
            if not self.alive:
                raise PlaneError(f"{self.name} has ended; {self._last()}")
            if time.monotonic() > deadline:
                raise PlaneError(
                    f"{self.name} was not ready in {patience:.0f} s; the end of {self.log}:\n{self.tail()}"
                )
            time.sleep(0.02)

    def _last(self) -> str:
        return f"the end of {self.log}:\n{self.tail()}"

    def tail(self, lines: int = 20) -> str:
        """The last it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""
