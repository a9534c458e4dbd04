# SPDX-License-Identifier: Apache-2.0
"""What the supervisor's loop asks of a runtime: `plain` runs bare processes, `sandbox` gives each pod namespaces.

The loop owns logs, cgroups, ends and the journal, and reaps every child of the supervisor, helpers included: a runtime
never waits for one. A runtime knows where a process runs, and finds what it left behind.
"""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trainwright.local.supervisor.protocol import OpenPod, StartContainer

MARKER = "TRAINWRIGHT_CONTAINER"  # in the environment of every process of a container: how strays are recognised

Stdio = tuple[int, int, int]


class Refused(Exception):  # noqa: N818 - the word for an answer, not for a defect
    """Why something cannot be started or opened, as a whole sentence; `code` as a shell would say it: 126, 127, 128."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Process:
    """A process that was started here. Only who holds it reaps it, and closes it then."""

    __slots__ = ("pid", "pidfd")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1

    def send(self, number: int) -> None:
        """Signal it, if it still lives. Without a pidfd the pid is good too: it is ours until it is reaped."""
        try:
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def ended(self) -> bool:
        """Whether it runs no more, reaped or not. Without a pidfd one that is not reaped yet counts as running."""
        if self.pidfd >= 0:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            return bool(poll.poll(0))
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def close(self) -> None:
        """Give the pidfd back. Safe to call twice."""
        fd, self.pidfd = self.pidfd, -1
        if fd >= 0:
            os.close(fd)


class Runtime(Protocol):
    """One per supervisor. All calls come from the loop's thread, one at a time, and should not wait for long."""

    notices: list[str]
    outside: bool

    def open(self, pod: OpenPod) -> None:
        """Make what the containers of a pod share. Raises Refused."""

    def spawn(
        self, start: StartContainer, stdio: Stdio, entries: tuple[int, ...], inherited: tuple[int, ...]
    ) -> Process:
        """Start a container's main process, by `launch.launch`, with `MARKER` in its environment. Raises Refused.

        `entries` are the open `cgroup.procs` files that it enters before its command runs. `inherited` are descriptors
        that the process keeps open as long as it lives.
        """

    def enter(
        self,
        container: str,
        argv: list[str],
        env: dict[str, str] | None,
        cwd: str | None,
        stdio: Stdio,
        *,
        tty: bool,
    ) -> Process:
        """One more process in a running container: its namespaces, its cwd unless given, its env with `env` on top."""

    def kill(self, container: str) -> None:
        """SIGKILL the whole tree. The main process's end is reported as always, and `ended` follows."""

    def ended(self, container: str) -> None:
        """The main process has ended: kill what it left. It is not reaped yet, so its pid and group are still its own.

        The container is forgotten with this call; an unknown one is no error, here and in `kill`.
        """

    def orphaned(self) -> None:
        """A process that the loop does not know was reaped: the children that it had may be strays."""

    def close(self, pod: str) -> None:
        """Kill what is left of a pod and drop what its containers shared. An unknown pod is no error."""

    def stop(self) -> None:
        """Kill and drop everything; the supervisor exits after this."""
