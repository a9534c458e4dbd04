# SPDX-License-Identifier: Apache-2.0
"""Which child has ended, and how, without reaping it yet: `main` asks after every SIGCHLD.

Between `ended` and `reap` the process is a zombie: its pid and its group cannot be given to anyone else.

Trees of processes: who descends from whom, which container a process belongs to, and killing them all.

`plain` finds what a container left behind with it, `execs` ends an abandoned command with it, and an agent whose
supervisor was killed uses `kill_marked` for what that one left running; `local.fencing` ends whole supervisors with it.
Without /proc only process groups are known.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Container, Mapping
from typing import NamedTuple

from trainwright.node.supervisor.launch import MARKER, Process

_WAITID = hasattr(os, "waitid") and hasattr(os, "WNOWAIT")


class ProcessEnd(NamedTuple):
    """How a process ended: its exit code, or 128 + the signal that killed it."""

    pid: int
    code: int
    signal: int


class NoChildren(Exception):  # noqa: N818 - a state, not a defect
    """There is nothing to wait for."""


def ended_child() -> ProcessEnd | None:
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
        return ProcessEnd(info.si_pid, info.si_status, 0)
    return ProcessEnd(info.si_pid, 128 + info.si_status, info.si_status)


def reap_child(pid: int) -> None:
    """Let it go for good."""
    if _WAITID:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _reaped() -> ProcessEnd | None:
    """Where `waitid` is missing the end is known only by reaping."""
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid == 0:
        return None
    if os.WIFSIGNALED(status):
        return ProcessEnd(pid, 128 + os.WTERMSIG(status), os.WTERMSIG(status))
    return ProcessEnd(pid, os.WEXITSTATUS(status), 0)


# pathlib would cost the supervisor a tenth of its start.


_MARK = f"\0{MARKER}=".encode()
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_FLAGS, _UTIME, _STIME, _THREADS = 6, 11, 12, 17  # which fields of `_stat`
_PF_EXITING = 4
ENDED = ("", "Z", "X")  # what `activity` says of a process that has ended


def adopt() -> bool:
    """Have orphans below us become our children, where the system can do that (Linux)."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children") and _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wake_without_parent() -> None:
    """Have the kernel let this process go on when its parent ends: one that is stopped then could not notice (Linux).

    SIGKILL would not do: the processes below would live on with nobody to end them.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes  # noqa: PLC0415 - 3 ms, which nobody else needs

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def adopted() -> list[int]:
    """Our own children and the orphans that became ours: they all belong to the main thread."""
    return _numbers(f"/proc/self/task/{os.getpid()}/children")


def container(pid: int) -> str | None:
    """Which container it belongs to, by its environment; None if that cannot be told."""
    environ = b"\0" + read(f"/proc/{pid}/environ")
    at = environ.find(_MARK)
    return environ[at + len(_MARK) :].split(b"\0", 1)[0].decode(errors="replace") if at >= 0 else None


def members(mains: Mapping[int, str]) -> dict[str, list[int]]:
    """The processes of these containers: their main processes, all below those, and all below us with their mark."""
    found: dict[str, list[int]] = {name: [] for name in mains.values()}
    level = [(pid, mains.get(pid) or container(pid)) for pid in _children(os.getpid())]
    while level:
        level = [(pid, owner) for pid, owner in level if owner is None or owner in found]
        for pid, owner in level:
            if owner is not None:
                found[owner].append(pid)
        level = [(child, owner or container(child)) for pid, owner in level for child in _children(pid)]
    return found


def kill(process: Process) -> None:
    """SIGKILL a child of ours that is not reaped yet, its group, and all that descend from it."""
    below = [one for one in (held(pid, parent) for parent, pid in _descendants(process.pid)) if one is not None]
    kill_group(process.pid)
    for one in [process, *below]:
        one.send(signal.SIGKILL)
    for one in below:
        one.close()


def kill_below(process: Process) -> list[int]:
    """SIGKILL all that descend from a process, which need not be our child; those that had not ended before."""
    living = [(parent, child) for parent, child in _descendants(process.pid) if _running(child)]
    below = [one for one in (held(child, parent) for parent, child in living) if one is not None]
    if process.ended():  # its number may have been another's when we looked
        living = []
    for one in below:
        if living:
            with contextlib.suppress(PermissionError):  # it has become another user's; `living` names it
                one.send(signal.SIGKILL)
        one.close()
    return [child for _, child in living]


def kill_group(pid: int) -> None:
    """SIGKILL the group that a child of ours leads; it is not reaped yet, so the number is still its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_child(pid: int) -> None:
    """SIGKILL a child of ours that is not reaped yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_marked(containers: Container[str]) -> list[int]:
    """SIGKILL every process of this machine that belongs to one of these containers; which they were."""
    killed = []
    for pid in _everyone():
        if pid == os.getpid() or container(pid) not in containers:
            continue
        one = held(pid, _parent(pid))
        if one is not None and container(pid) in containers:  # again, now that the number cannot change hands
            one.send(signal.SIGKILL)
            killed.append(pid)
        if one is not None:
            one.close()
    return killed


def _descendants(pid: int) -> list[tuple[int, int]]:
    """Everything below it, as (parent, child)."""
    found: list[tuple[int, int]] = []
    level = [pid]
    while level:
        pairs = [(parent, child) for parent in level for child in _children(parent)]
        found += pairs
        level = [child for _, child in pairs]
    return found


def held(pid: int, parent: int) -> Process | None:
    """A hold on a process that is no child of ours; None if it has gone, or the number is another's by now."""
    try:
        one = Process(pid)
    except OSError:
        return None
    if _parent(pid) == parent:
        return one
    one.close()
    return None


def _children(pid: int) -> list[int]:
    """Its children, those of all its threads."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for thread in threads for child in _numbers(f"/proc/{pid}/task/{thread}/children")]


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def _running(pid: int) -> bool:
    """Whether a process can still do something.

    One that was killed cannot, although it is there until it is reaped: PID 1 of a container even waits for its
    namespace to be empty before it is a zombie. One whose main thread alone has ended can.
    """
    fields = _stat(pid)
    if len(fields) <= _THREADS:
        return False
    exiting = fields[0] in (b"Z", b"X") or int(fields[_FLAGS]) & _PF_EXITING
    return not exiting or int(fields[_THREADS]) > 1


def activity(pid: int) -> tuple[str, float]:
    """What its main thread does, by one letter (R, S, D, T, t, Z, X), and the CPU seconds that the process has used.

    The letter is empty if the process has gone, or where there is no /proc.
    """
    fields = _stat(pid)
    if len(fields) <= _STIME:
        return "", 0.0
    return fields[0].decode(), (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name of the command, in which there may be anything."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _everyone() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _numbers(path: str) -> list[int]:
    return [int(word) for word in read(path).split()]


def read(path: str) -> bytes:
    """A small file of /proc; empty if it is gone, or not for us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)
