# SPDX-License-Identifier: Apache-2.0
"""Trees of processes: who descends from whom, which container a process belongs to, and killing them all.

`plain` finds what a container left behind with it, `execs` ends an abandoned command with it, and an agent whose
supervisor was killed uses `kill_marked` for what that one left running. Without /proc only process groups are known.
"""
# pathlib would cost the supervisor a tenth of its start.

import contextlib
import os
import signal
from collections.abc import Container

from trainwright.local.supervisor.runtimes import MARKER, Process

_MARK = f"\0{MARKER}=".encode()
_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> bool:
    """Have orphans below us become our children, where the system can do that (Linux)."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return False
    try:
        import ctypes  # noqa: PLC0415 - 3 ms, which nobody else needs

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def adopted() -> list[int]:
    """Our own children and the orphans that became ours: they all belong to the main thread."""
    return _numbers(f"/proc/self/task/{os.getpid()}/children")


def container(pid: int) -> str | None:
    """Which container it belongs to, by its environment; None if that cannot be told."""
    environ = b"\0" + _read(f"/proc/{pid}/environ")
    at = environ.find(_MARK)
    return environ[at + len(_MARK) :].split(b"\0", 1)[0].decode(errors="replace") if at >= 0 else None


def kill(process: Process) -> None:
    """SIGKILL a child of ours that is not reaped yet, its group, and all that descend from it."""
    below = [one for one in (_held(pid, parent) for parent, pid in _descendants(process.pid)) if one is not None]
    kill_group(process.pid)
    for one in [process, *below]:
        one.send(signal.SIGKILL)
    for one in below:
        one.close()


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
        one = _held(pid, _parent(pid))
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


def _held(pid: int, parent: int) -> Process | None:
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
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _everyone() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _numbers(path: str) -> list[int]:
    return [int(word) for word in _read(path).split()]


def _read(path: str) -> bytes:
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
