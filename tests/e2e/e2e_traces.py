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
    for name in os.listdir(_PROC):  # noqa: PTH208 - tests do this often, and pathlib makes it twice as slow
        if name.isdigit() and int(name) != os.getpid() and _marked(name, mark):
            found[int(name)] = _text(f"/proc/{name}/cmdline").replace("\0", " ").strip()
    return found


def _marked(pid: str, mark: str) -> bool:
    if mark in _text(f"/proc/{pid}/environ") or mark in _text(f"/proc/{pid}/cmdline"):
        return True
    with suppress(OSError):
        return mark in os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - see above
    return False


def open_files(pid: int) -> list[str]:
    """The files and sockets that a process has open."""
    found = []
    for file in (_PROC / str(pid) / "fd").iterdir():
        with suppress(OSError):
            found.append(str(file.readlink()))
    return found


def mounts(mark: str) -> list[str]:
    """Mounts from or in the marked folder, and namespaces that were pinned there."""
    return [line for line in _text("/proc/self/mountinfo").splitlines() if mark in line]


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


def _text(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return b"".join(iter(lambda: os.read(fd, 65536), b"")).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
