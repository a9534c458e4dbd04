# SPDX-License-Identifier: Apache-2.0
"""Finds what a run leaves behind on the machine, by the folder of its test, so that other runs do not count.

Every process of a run has the folder of its workspace in its environment (HOME), its arguments or its working
directory. Mounts and control groups are found in the same way.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_LINUX = _PROC.is_dir()


def processes(mark: str) -> dict[int, str]:
    """Processes that carry the mark: ID to arguments. Zombies have no arguments; their parents are listed."""
    found = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _marked(entry, mark):
            found[int(entry.name)] = _text(entry / "cmdline").replace("\0", " ").strip()
    return found


def _marked(entry: Path, mark: str) -> bool:
    if mark in _text(entry / "environ") or mark in _text(entry / "cmdline"):
        return True
    with suppress(OSError):
        return mark in str((entry / "cwd").readlink())
    return False


def mounts(mark: str) -> list[str]:
    """Mounts from or in the marked folder, and namespaces that were pinned there."""
    return [line for line in _text(_PROC / "self/mountinfo").splitlines() if mark in line]


def links() -> list[str]:
    """Network links of supervisors that have ended; a link has the process ID of its supervisor in its name."""
    found = [path.name for path in Path("/sys/class/net").glob("tw*")] if _LINUX else []
    return [name for name in found if name[2:].isdigit() and not (_PROC / name[2:]).exists()]


def groups(supervisor: int) -> list[str]:
    """Control groups that a supervisor has made."""
    found = Path("/sys/fs/cgroup").glob(f"*/**/trainwright-{supervisor}") if _LINUX else ()
    return [str(path) for path in found]


def space(name: str) -> str:
    """The identity of a namespace of this process."""
    return str((_PROC / "self/ns" / name).readlink())


def end(mark: str) -> None:
    """Kill all processes that carry the mark, so that a failed test leaves nothing."""
    for pid in processes(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
