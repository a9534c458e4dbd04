# SPDX-License-Identifier: Apache-2.0
"""Which child has ended, and how, without reaping it yet: `main` asks after every SIGCHLD.

Between `ended` and `reap` the process is a zombie: its pid and its group cannot be given to anyone else.
"""

import os
from typing import NamedTuple

_WAITID = hasattr(os, "waitid") and hasattr(os, "WNOWAIT")


class End(NamedTuple):
    """How a process ended: its exit code, or 128 + the signal that killed it."""

    pid: int
    code: int
    signal: int


class NoChildren(Exception):  # noqa: N818 - a state, not a defect
    """There is nothing to wait for."""


def ended() -> End | None:
    """One child that has ended and is not reaped; None while all of them live. Raises NoChildren."""
    try:
        if not _WAITID:
            return _reaped()
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        raise NoChildren from None
    if info is None:
        return None
    if info.si_code == os.CLD_EXITED:
        return End(info.si_pid, info.si_status, 0)
    return End(info.si_pid, 128 + info.si_status, info.si_status)


def reap(pid: int) -> None:
    """Let it go for good."""
    if _WAITID:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _reaped() -> End | None:
    """Where `waitid` is missing the end is known only by reaping."""
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid == 0:
        return None
    if os.WIFSIGNALED(status):
        return End(pid, 128 + os.WTERMSIG(status), os.WTERMSIG(status))
    return End(pid, os.WEXITSTATUS(status), 0)
