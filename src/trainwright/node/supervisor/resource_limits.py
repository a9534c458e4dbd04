# SPDX-License-Identifier: Apache-2.0
"""Memory and CPU limits: a cgroup per container that asks for them, of version 1 or 2, below or beside our own.

`containers` makes a `Group`, hands its `entries` to the runtime, and asks it at the end whether memory ran out.
`Cgroups.refusals` says which limits no group can enforce, and why.

Memory limits where no cgroup can be had: once a second the supervisor measures the containers that have one.

A cgroup is better: the kernel refuses memory before it is used. Here a container may exceed its limit until the next
measurement. The supervisor measures the memory that a cgroup could not take back either: anonymous and shared memory,
swapped out or not, but no pages of files. Each of several processes that share a page counts a part of it. So a
container that is killed here would be killed in a cgroup too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainwright.node.supervisor import tree
from trainwright.node.supervisor.loop import Loop

# pathlib would cost the supervisor a tenth of its start.


if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Limits

_PERIOD = 100_000  # microseconds
_SHORTEST = 1_000  # of CPU time in a period, the least that the kernel takes
CONTROLLERS = ("memory", "cpu")
_NAME = "trainwright-"

Mount = tuple[str, str, str, list[str]]  # root, mount point, type, options of the file system


class ContainerCgroup:
    """The cgroup of one container: one folder for each controller, in version 2 one for all."""

    def __init__(self, folders: list[str]) -> None:
        self.folders = folders
        self.entries = tuple(_opened(f"{one}/cgroup.procs") for one in folders)

    def add(self, pid: int) -> None:
        """Put a running process in too; what it forks from now on is in as well."""
        for entry in self.entries:
            with contextlib.suppress(OSError):
                os.write(entry, str(pid).encode())

    def oom(self) -> bool:
        """Whether the kernel has killed a process in it for want of memory."""
        words = " ".join(_read(f"{one}/{name}") for one in self.folders for name in _OOM).split()
        return "oom_kill" in words and words[words.index("oom_kill") + 1] != "0"

    def kill(self) -> None:
        """SIGKILL everything in it, where the kernel can (version 2)."""
        for one in self.folders:
            with contextlib.suppress(OSError):
                _write(f"{one}/cgroup.kill", "1")

    def close(self) -> None:
        """Give the descriptors back."""
        for entry in self.entries:
            os.close(entry)
        self.entries = ()


_OOM = ("memory.events", "memory.oom_control")


class Cgroups:
    """Finds the place for groups when it is made; makes its folder there only when the first is asked for."""

    def __init__(self, proc: str = "/proc") -> None:
        self.version = "none"
        #: By controller: why no group can have such a limit.
        self.refusals = dict.fromkeys(CONTROLLERS, "this system has no cgroups")
        self._proc = proc
        self._count = 0
        self._places: dict[str, str] = {}  # by controller: the folder in which ours is, or will be
        self._ready = False
        self._leftover: list[str] = []
        with contextlib.suppress(OSError, ValueError):
            self._find(_mounts(_read(f"{proc}/self/mountinfo")), _own(_read(f"{proc}/self/cgroup")))

    def group(self, limits: Limits) -> ContainerCgroup:
        """A new group with those of these limits that `refusals` does not name. Raises OSError."""
        if not self._ready:
            self._prepare()
        self._count += 1
        wanted = [name for name in CONTROLLERS if name in self._places and limits.get(name)]
        folders = [*dict.fromkeys(f"{self._base(name)}/{self._count}" for name in wanted)]
        made: list[str] = []
        try:
            for folder in folders:
                os.mkdir(folder)
                made.append(folder)
            self._limit(limits)
            return ContainerCgroup(folders)
        except OSError:
            self._leftover += made
            self.tidy()
            raise

    def remove(self, group: ContainerCgroup) -> None:
        """Take it away, now or, if something in it is still dying, with a later `tidy`."""
        group.close()
        self._leftover += group.folders
        self.tidy()

    def tidy(self) -> bool:
        """Remove what could not be removed before. True: something is left."""
        self._leftover = [folder for folder in self._leftover if not _removed(folder)]
        return bool(self._leftover)

    def close(self) -> None:
        """Remove our own folder too."""
        self.tidy()
        for name in self._places:
            _removed(self._base(name))

    def _base(self, controller: str) -> str:
        return f"{self._places[controller]}/{_NAME}{os.getpid()}"

    def _find(self, mounts: list[Mount], own: dict[str, str]) -> None:
        for name in CONTROLLERS:
            for root, point, kind, options in mounts:
                if kind == "cgroup" and name in options and name in own:
                    self._offer(name, "v1", _inside(root, point, own[name]))
                elif kind == "cgroup2" and "" in own and name in _read(f"{point}/cgroup.controllers").split():
                    self._offer(name, "v2", _spacious(point, _inside(root, point, own[""]), name))

    def _offer(self, controller: str, version: str, folder: str | None) -> None:
        if controller in self._places:
            return
        if folder is None:
            self.refusals[controller] = f"no cgroup above this process lets it limit {controller}"
        elif not os.access(folder, os.W_OK):
            self.refusals[controller] = f"{folder} may not be written"
        else:
            self._places[controller] = folder
            self.version = version
            del self.refusals[controller]

    def _prepare(self) -> None:
        for folder in {*self._places.values()}:
            _clear(folder, self._proc)
        for name in self._places:
            os.makedirs(self._base(name), exist_ok=True)
        if self.version == "v2":
            share = " ".join(f"+{name}" for name in self._places)
            _write(f"{self._base(next(iter(self._places)))}/cgroup.subtree_control", share)
        self._ready = True

    def _limit(self, limits: Limits) -> None:
        memory, cpu = limits.get("memory"), limits.get("cpu")
        if memory and "memory" in self._places:
            _limit_memory(f"{self._base('memory')}/{self._count}", int(memory), self.version)
        if cpu and "cpu" in self._places:
            quota = max(_SHORTEST, int(float(cpu) * _PERIOD))
            _limit_cpu(f"{self._base('cpu')}/{self._count}", quota, self.version)


def remedy() -> str:
    """How people can let this process make cgroups, as the end of a sentence; empty where there are none."""
    if not os.path.exists("/proc/self/cgroup"):
        return ""
    if os.path.isdir("/run/systemd/system"):
        return "; start it with `systemd-run --user --scope -p Delegate=yes trainwright …`"
    return "; root may, and so may a user who owns the cgroup that trainwright was started in"


def _limit_memory(folder: str, size: int, version: str) -> None:
    _write(f"{folder}/{'memory.max' if version == 'v2' else 'memory.limit_in_bytes'}", str(size))
    extras = {"memory.swap.max": "0", "memory.oom.group": "1"} if version == "v2" else {}
    for name, value in (extras or {"memory.memsw.limit_in_bytes": str(size)}).items():
        with contextlib.suppress(OSError):  # a kernel without swap accounting
            _write(f"{folder}/{name}", value)


def _limit_cpu(folder: str, quota: int, version: str) -> None:
    if version == "v2":
        _write(f"{folder}/cpu.max", f"{quota} {_PERIOD}")
        return
    _write(f"{folder}/cpu.cfs_period_us", str(_PERIOD))
    _write(f"{folder}/cpu.cfs_quota_us", str(quota))


def _mounts(text: str) -> list[Mount]:
    lines = [line.split() for line in text.splitlines() if " - cgroup" in line]
    after = [(words, words.index("-")) for words in lines]
    return [(words[3], words[4], words[at + 1], words[-1].split(",")) for words, at in after]


def _own(text: str) -> dict[str, str]:
    """By controller, the path of our cgroup; that of version 2 has no controller's name."""
    parts = [line.split(":", 2) for line in text.splitlines()]
    return {name: path for _, names, path in parts for name in names.split(",")}


def _inside(root: str, point: str, own: str) -> str:
    """The folder of a cgroup; in a container the mount may show only a part of the tree."""
    below = own.removeprefix(root) if root != "/" and own.startswith(root) else own
    folder = f"{point}/{below.strip('/')}".rstrip("/")
    return folder if os.path.isdir(folder) else point


def _spacious(point: str, own: str, controller: str) -> str | None:
    """The nearest folder that shares the controller out to others: a group with processes in it may not (version 2)."""
    folder = own
    while folder.startswith(point):
        shared = controller in _read(f"{folder}/cgroup.subtree_control").split()
        if shared and os.access(f"{folder}/cgroup.procs", os.W_OK):
            return folder
        folder = folder.rpartition("/")[0]
    return None


def _clear(folder: str, proc: str) -> None:
    """Remove what a supervisor that was killed has left; the kernel refuses where a process is still in it."""
    for name in os.listdir(folder):
        pid = name.removeprefix(_NAME)
        if name == pid or not pid.isdigit() or os.path.exists(f"{proc}/{pid}"):
            continue
        old = f"{folder}/{name}"
        for inner in os.listdir(old):
            if inner.isdigit():
                _removed(f"{old}/{inner}")
        _removed(old)


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _opened(path: str) -> int:
    """To be written; the kernel lets nobody make a file here, a tree of a test does."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _write(path: str, text: str) -> None:
    file = _opened(path)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


INTERVAL = 1.0  # seconds between two measurements
_REST = 20  # the next measurement waits at least this many times as long as the last one took: 5 % of a CPU

# Cheap, but counts a page once for each process that shares it, for example after a fork.
_STATUS = "status", (b"RssAnon", b"RssShmem", b"VmSwap")
# The kernel walks all page tables of the process: read only if the cheap sum exceeds the limit.
_ROLLUP = "smaps_rollup", (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")


class MemoryWatch:
    """Measures containers by their main processes. `exceeded` hears of each that has more memory than its limit."""

    def __init__(self, loop: Loop, exceeded: Callable[[str], None]) -> None:
        self._loop, self._exceeded = loop, exceeded
        self._watched: dict[int, tuple[str, int]] = {}  # by main process: the container, and its limit in bytes
        self._waiting = False

    def add(self, pid: int, container: str, limit: int) -> None:
        """Watch a container until `remove`."""
        self._watched[pid] = container, limit
        self._wait(INTERVAL)

    def remove(self, pid: int) -> None:
        """The main process has ended. One that is not watched is no error."""
        self._watched.pop(pid, None)

    def _wait(self, seconds: float) -> None:
        if self._watched and not self._waiting:
            self._waiting = True
            self._loop.later(seconds, self._measure)

    def _measure(self) -> None:
        self._waiting = False
        began = time.monotonic()
        processes = tree.members({pid: container for pid, (container, _) in self._watched.items()})
        try:
            for container, limit in [*self._watched.values()]:
                if _size(processes[container], _STATUS) > limit and _size(processes[container], _ROLLUP) > limit:
                    self._exceeded(container)
        finally:
            self._wait(max(INTERVAL, _REST * (time.monotonic() - began)))


def measurable() -> bool:
    """Whether this system tells which processes there are, and how much memory they have: Linux does."""
    pid = os.getpid()
    return os.path.exists(f"/proc/{pid}/task/{pid}/children") and _size([pid], _ROLLUP) > 0


def _size(pids: list[int], source: tuple[str, tuple[bytes, ...]]) -> int:
    """Bytes of all of them together. A process that has ended, or may not be read, counts nothing."""
    name, fields = source
    lines = [line.split() for pid in pids for line in tree.read(f"/proc/{pid}/{name}").splitlines()]
    return sum(int(words[1]) << 10 for words in lines if len(words) > 1 and words[0].rstrip(b":") in fields)
