# SPDX-License-Identifier: Apache-2.0
"""Processes: which child has ended, which descendants a process has, which container a process belongs to.

Between `ended_child` and `reap_child` a process is a zombie: the kernel does not reuse its pid and its group.
Without /proc only process groups are known, not descendants.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Container, Mapping
from typing import NamedTuple

from trainwright.node.supervisor.launch import MARKER, Process

_WAITID = hasattr(os, "waitid") and hasattr(os, "WNOWAIT")
_MARK = f"\0{MARKER}=".encode()
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_FLAGS, _UTIME, _STIME, _THREADS, _START_TIME = 6, 11, 12, 17, 19  # indexes of fields in `_stat`
_PF_EXITING = 4
#: The states that `activity` returns for a process that has ended.
ENDED = ("", "Z", "X")


class ProcessEnd(NamedTuple):
    """How a process ended: its exit code, or 128 + the signal that killed it."""

    pid: int
    code: int
    signal: int


def ended_child() -> ProcessEnd | None:
    """An ended child that is not reaped; None while all children run. Raises ChildProcessError if there are none."""
    if not _WAITID:
        return _reap_any()
    info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    if info.si_code == os.CLD_EXITED:
        return ProcessEnd(info.si_pid, info.si_status, 0)
    return ProcessEnd(info.si_pid, 128 + info.si_status, info.si_status)


def reap_child(pid: int) -> None:
    """Reap a child that has ended."""
    if _WAITID:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _reap_any() -> ProcessEnd | None:
    """Reap an ended child, for systems without `waitid`: there, only reaping tells how a child ended."""
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid == 0:
        return None
    if os.WIFSIGNALED(status):
        return ProcessEnd(pid, 128 + os.WTERMSIG(status), os.WTERMSIG(status))
    return ProcessEnd(pid, os.WEXITSTATUS(status), 0)


def adopt() -> bool:
    """Let orphaned descendants become our children; return whether the system can do that (Linux)."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children") and _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wake_without_parent() -> None:
    """Let the kernel send SIGCONT to this process when its parent ends (Linux): a stopped process could not react.

    SIGKILL instead of SIGCONT would be wrong: the containers would continue to run, and no process would end them.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes  # noqa: PLC0415 - the import takes 3 ms

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def adopted() -> list[int]:
    """Our own children and the adopted orphans. The kernel lists both as children of our main thread."""
    return _numbers(f"/proc/self/task/{os.getpid()}/children")


def container(pid: int) -> str | None:
    """The container of a process, from its environment; None if unknown."""
    environ = b"\0" + read(f"/proc/{pid}/environ")
    at = environ.find(_MARK)
    return environ[at + len(_MARK) :].split(b"\0", 1)[0].decode(errors="replace") if at >= 0 else None


def members(mains: Mapping[int, str]) -> dict[str, list[int]]:
    """The processes of these containers: main processes, their descendants, and our descendants with the marker."""
    found: dict[str, list[int]] = {name: [] for name in mains.values()}
    level = [(pid, mains.get(pid) or container(pid)) for pid in children(os.getpid())]
    while level:
        level = [(pid, owner) for pid, owner in level if owner is None or owner in found]
        for pid, owner in level:
            if owner is not None:
                found[owner].append(pid)
        level = [(child, owner or container(child)) for pid, owner in level for child in children(pid)]
    return found


def kill(process: Process) -> None:
    """SIGKILL a child of ours that is not reaped yet, its group, and its descendants."""
    below = [one for one in (held(pid, parent) for parent, pid in _descendants(process.pid)) if one is not None]
    kill_group(process.pid)
    for one in [process, *below]:
        one.send(signal.SIGKILL)
    for one in below:
        one.close()


def kill_below(process: Process) -> list[int]:
    """SIGKILL all descendants of a process, which need not be our child. Returns the descendants that still ran."""
    living = [(parent, child) for parent, child in _descendants(process.pid) if _running(child)]
    below = [one for one in (held(child, parent) for parent, child in living) if one is not None]
    if process.ended():  # then `living` may be descendants of another process, which has reused the pid
        living = []
    for one in below:
        if living:
            with contextlib.suppress(PermissionError):  # another user's process: not killed, but returned
                one.send(signal.SIGKILL)
        one.close()
    return [child for _, child in living]


def kill_group(pid: int) -> None:
    """SIGKILL the group that a child of ours leads. The child is not reaped yet, so its pid is not reused."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_child(pid: int) -> None:
    """SIGKILL a child of ours that is not reaped yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_marked(containers: Container[str]) -> list[int]:
    """SIGKILL every process of this machine that belongs to one of these containers. Returns the killed pids."""
    killed = []
    for pid in _all_pids():
        if pid == os.getpid() or container(pid) not in containers:
            continue
        one = held(pid, parent_of(pid))
        if one is not None and container(pid) in containers:  # check again: the pid cannot be reused now
            one.send(signal.SIGKILL)
            killed.append(pid)
        if one is not None:
            one.close()
    return killed


def _descendants(pid: int) -> list[tuple[int, int]]:
    """All descendants, as pairs (parent, child)."""
    found: list[tuple[int, int]] = []
    level = [pid]
    while level:
        pairs = [(parent, child) for parent in level for child in children(parent)]
        found += pairs
        level = [child for _, child in pairs]
    return found


def held(pid: int, parent: int) -> Process | None:
    """Open a process that is not our child; None if it has ended, or if another process has reused its pid."""
    try:
        one = Process(pid)
    except OSError:
        return None
    if parent_of(pid) == parent:
        return one
    one.close()
    return None


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for thread in threads for child in _numbers(f"/proc/{pid}/task/{thread}/children")]


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if there is no parent, or no such process."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def start_time(pid: int) -> str | None:
    """The start time of a process, in the clock ticks of the kernel; None if there is no such process."""
    fields = _stat(pid)
    return fields[_START_TIME].decode() if fields else None


def _running(pid: int) -> bool:
    """Whether any thread of a process can still run.

    A killed process cannot run, although it exists until it is reaped: PID 1 of a container becomes a zombie only when
    its namespace is empty. A process of which only the main thread has ended can still run.
    """
    fields = _stat(pid)
    if not fields:
        return False
    exiting = fields[0] in (b"Z", b"X") or int(fields[_FLAGS]) & _PF_EXITING
    return not exiting or int(fields[_THREADS]) > 1


def activity(pid: int) -> tuple[str, float]:
    """The state of the main thread as one letter (R, S, D, T, t, Z, X), and the CPU seconds that the process has used.

    The letter is empty if the process does not exist, or on a system without /proc.
    """
    fields = _stat(pid)
    if not fields:
        return "", 0.0
    return fields[0].decode(), (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the command's name, which may contain any character."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _numbers(path: str) -> list[int]:
    return [int(word) for word in read(path).split()]


def read(path: str) -> bytes:
    """The content of a file in /proc; empty if it does not exist or cannot be read."""
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
