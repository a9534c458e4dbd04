# SPDX-License-Identifier: Apache-2.0
"""Memory and CPU limits: a cgroup (version 1 or 2) for each container that has limits.

If no cgroup can enforce a memory limit, `MemoryWatch` measures the container once a second. A cgroup is better, because
the kernel refuses memory before it is used; a measured container can exceed its limit until the next measurement. The
measurement counts only memory that a cgroup cannot reclaim: anonymous and shared memory, including swapped-out memory,
but no pages of files. Each process counts its part of a shared page. So a container that is killed after a measurement
would also be killed in a cgroup.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainwright.node.supervisor import tree
from trainwright.node.supervisor.loop import Loop

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Limits

_CPU_PERIOD = 100_000  # microseconds: the period to which CPU quotas apply
_MIN_CPU_QUOTA = 1_000  # microseconds of CPU time in a period; the kernel refuses a smaller quota
CONTROLLERS = ("memory", "cpu")
_PREFIX = "trainwright-"
_OOM_FILES = ("memory.events", "memory.oom_control")
# Some of these files do not exist if the kernel has no swap accounting.
_OPTIONAL_FILES = ("memory.memsw.limit_in_bytes", "memory.swap.max", "memory.oom.group")

#: A line of mountinfo: root, mount point, type, options of the file system.
CgroupMount = tuple[str, str, str, list[str]]

INTERVAL = 1.0  # seconds between two measurements
#: The pause after a measurement is at least this many times its duration, so measuring uses at most 5 % of a CPU.
_PAUSE_FACTOR = 20
# First, fast measurement: a file in /proc/PID and the fields to add. It counts a shared page fully for each process.
_STATUS = "status", (b"RssAnon", b"RssShmem", b"VmSwap")
# Second, slow measurement, only if the first exceeds the limit: the kernel walks all page tables of the process.
_ROLLUP = "smaps_rollup", (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")


class ContainerCgroup:
    """A container's cgroup: one folder per controller (version 1) or one folder (version 2); none without limits."""

    def __init__(self, folders: list[str]) -> None:
        self.folders = folders
        # O_CREAT is for tests: the kernel does not allow new files in a cgroup.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self.entries = tuple(os.open(f"{one}/cgroup.procs", flags, 0o600) for one in folders)

    def oom(self) -> bool:
        """Whether the kernel has killed a process in the cgroup at its memory limit."""
        words = " ".join(_read(f"{one}/{name}") for one in self.folders for name in _OOM_FILES).split()
        return "oom_kill" in words and words[words.index("oom_kill") + 1] != "0"

    def kill(self) -> None:
        """SIGKILL all processes in the cgroup (version 2 only)."""
        for one in self.folders:
            with contextlib.suppress(OSError):
                _write(f"{one}/cgroup.kill", "1")

    def close(self) -> None:
        """Close the descriptors."""
        for entry in self.entries:
            os.close(entry)
        self.entries = ()


class Cgroups:
    """The cgroups of this supervisor. The first call of `group`, not the constructor, creates our folder."""

    def __init__(self, proc: str = "/proc") -> None:
        self.version = "none"
        #: By controller: why no cgroup can enforce this limit.
        self.refusals = dict.fromkeys(CONTROLLERS, "this system has no cgroups")
        self._proc = proc
        self._count = 0
        self._parents: dict[str, str] = {}  # by controller: the folder that contains our folder
        self._ready = False
        self._leftover: list[str] = []
        with contextlib.suppress(OSError, ValueError):
            self._find_parents(_mounts(_read(f"{proc}/self/mountinfo")), _own_paths(_read(f"{proc}/self/cgroup")))

    def group(self, limits: Limits) -> ContainerCgroup:
        """Create a cgroup with all limits except the limits in `refusals`. Raises OSError."""
        if not self._ready:
            self._prepare()
        self._count += 1
        wanted = [name for name in CONTROLLERS if name in self._parents and limits.get(name)]
        folders = [*dict.fromkeys(f"{self._base(name)}/{self._count}" for name in wanted)]
        made: list[str] = []
        try:
            for folder in folders:
                os.mkdir(folder)
                made.append(folder)
            for name in wanted:
                self._limit(name, limits)
            return ContainerCgroup(folders)
        except OSError:
            self._leftover += made
            self.remove_leftovers()
            raise

    def remove(self, group: ContainerCgroup) -> bool:
        """Remove a cgroup. True: `remove_leftovers` must try again, because a process in a cgroup has not ended yet."""
        group.close()
        self._leftover += group.folders
        return self.remove_leftovers()

    def remove_leftovers(self) -> bool:
        """Remove cgroups that could not be removed before. True: some still cannot be removed."""
        self._leftover = [folder for folder in self._leftover if not _remove(folder)]
        return bool(self._leftover)

    def close(self) -> None:
        """Remove the remaining cgroups and our own folder."""
        self.remove_leftovers()
        for name in self._parents:
            _remove(self._base(name))

    def _base(self, controller: str) -> str:
        return f"{self._parents[controller]}/{_PREFIX}{os.getpid()}"

    def _find_parents(self, mounts: list[CgroupMount], own: dict[str, str]) -> None:
        for name in CONTROLLERS:
            for root, point, kind, options in mounts:
                if kind == "cgroup" and name in options and name in own:
                    self._offer(name, "v1", _inside(root, point, own[name]))
                elif kind == "cgroup2" and "" in own and name in _read(f"{point}/cgroup.controllers").split():
                    self._offer(name, "v2", _delegating_folder(point, _inside(root, point, own[""]), name))

    def _offer(self, controller: str, version: str, folder: str | None) -> None:
        if controller in self._parents:
            return
        if folder is None:
            self.refusals[controller] = f"no cgroup above this process lets it limit {controller}"
        elif not os.access(folder, os.W_OK):
            self.refusals[controller] = f"trainwright may not write to {folder}"
        else:
            self._parents[controller] = folder
            self.version = version
            del self.refusals[controller]

    def _prepare(self) -> None:
        for folder in {*self._parents.values()}:
            _remove_stale(folder, self._proc)
        for name in self._parents:
            os.makedirs(self._base(name), exist_ok=True)
        if self.version == "v2":
            controllers = " ".join(f"+{name}" for name in self._parents)
            _write(f"{self._base(next(iter(self._parents)))}/cgroup.subtree_control", controllers)
        self._ready = True

    def _limit(self, controller: str, limits: Limits) -> None:
        memory = int(limits.get("memory") or 0)
        quota = max(_MIN_CPU_QUOTA, int(float(limits.get("cpu") or 0) * _CPU_PERIOD))
        files: dict[tuple[str, str], dict[str, int | str]] = {
            ("v1", "memory"): {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
            ("v2", "memory"): {"memory.max": memory, "memory.swap.max": 0, "memory.oom.group": 1},
            ("v1", "cpu"): {"cpu.cfs_period_us": _CPU_PERIOD, "cpu.cfs_quota_us": quota},
            ("v2", "cpu"): {"cpu.max": f"{quota} {_CPU_PERIOD}"},
        }
        for name, value in files[self.version, controller].items():
            try:
                _write(f"{self._base(controller)}/{self._count}/{name}", str(value))
            except OSError:
                if name not in _OPTIONAL_FILES:
                    raise


def remedy() -> str:
    """How the user can allow this process to create cgroups, as the end of a sentence; empty without cgroups."""
    if not os.path.exists("/proc/self/cgroup"):
        return ""
    if os.path.isdir("/run/systemd/system"):
        return "; start it with `systemd-run --user --scope -p Delegate=yes trainwright …`"
    return "; root may, and so may a user who owns the cgroup that trainwright was started in"


def _mounts(text: str) -> list[CgroupMount]:
    lines = [line.split() for line in text.splitlines() if " - cgroup" in line]
    after = [(words, words.index("-")) for words in lines]
    return [(words[3], words[4], words[at + 1], words[-1].split(",")) for words, at in after]


def _own_paths(text: str) -> dict[str, str]:
    """The path of our cgroup by controller; for version 2 the key is empty."""
    parts = [line.split(":", 2) for line in text.splitlines()]
    return {name: path for _, names, path in parts for name in names.split(",")}


def _inside(root: str, point: str, own: str) -> str:
    """The folder of our cgroup in the mount `point`. In a container, the mount may show only the tree below `root`."""
    below = own.removeprefix(root) if root != "/" and own.startswith(root) else own
    folder = f"{point}/{below.strip('/')}".rstrip("/")
    return folder if os.path.isdir(folder) else point


def _delegating_folder(point: str, own: str, controller: str) -> str | None:
    """The nearest cgroup, from our own cgroup upwards, that we may write to and whose children can use the controller.

    Usually this is not our own cgroup: children of a cgroup that has processes cannot use most controllers.
    """
    folder = own
    while folder.startswith(point):
        shared = controller in _read(f"{folder}/cgroup.subtree_control").split()
        if shared and os.access(f"{folder}/cgroup.procs", os.W_OK):
            return folder
        folder = folder.rpartition("/")[0]
    return None


def _remove_stale(folder: str, proc: str) -> None:
    """Remove the cgroups of killed supervisors; the kernel keeps cgroups that still have a process."""
    for name in os.listdir(folder):
        pid = name.removeprefix(_PREFIX)
        if name == pid or not pid.isdigit() or os.path.exists(f"{proc}/{pid}"):
            continue
        old = f"{folder}/{name}"
        for inner in os.listdir(old):
            if inner.isdigit():
                _remove(f"{old}/{inner}")
        _remove(old)


def _remove(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _read(path: str) -> str:
    return tree.read(path).decode()


class MemoryWatch:
    """Measures the memory of containers, and calls `exceeded` for each container above its limit."""

    def __init__(self, loop: Loop, exceeded: Callable[[str], None]) -> None:
        self._loop, self._exceeded = loop, exceeded
        self._watched: dict[int, tuple[str, int]] = {}  # by main process: the container, and its limit in bytes
        self._scheduled = False

    def add(self, pid: int, container: str, limit: int) -> None:
        """Measure a container until `remove`."""
        self._watched[pid] = container, limit
        self._schedule(INTERVAL)

    def remove(self, pid: int) -> None:
        """Stop measuring a container by the pid of its main process. An unknown pid is no error."""
        self._watched.pop(pid, None)

    def _schedule(self, seconds: float) -> None:
        if self._watched and not self._scheduled:
            self._scheduled = True
            self._loop.later(seconds, self._measure)

    def _measure(self) -> None:
        self._scheduled = False
        began = time.monotonic()
        processes = tree.members({pid: container for pid, (container, _) in self._watched.items()})
        try:
            for container, limit in [*self._watched.values()]:
                pids = processes[container]
                if _memory_bytes(pids, _STATUS) > limit and _memory_bytes(pids, _ROLLUP) > limit:
                    self._exceeded(container)
        finally:
            self._schedule(max(INTERVAL, _PAUSE_FACTOR * (time.monotonic() - began)))


def measurable() -> bool:
    """Whether this system (Linux) shows the children and the memory of processes."""
    pid = os.getpid()
    return os.path.exists(f"/proc/{pid}/task/{pid}/children") and _memory_bytes([pid], _ROLLUP) > 0


def _memory_bytes(pids: list[int], source: tuple[str, tuple[bytes, ...]]) -> int:
    """The memory of all processes, in bytes. A process that has ended, or that we cannot read, counts as 0."""
    name, fields = source
    lines = [line.split() for pid in pids for line in tree.read(f"/proc/{pid}/{name}").splitlines()]
    return sum(int(words[1]) << 10 for words in lines if len(words) > 1 and words[0].rstrip(b":") in fields)
