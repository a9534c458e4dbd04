# SPDX-License-Identifier: Apache-2.0
"""How much CPU and memory this process may use, by the control groups it is in, version 1 or 2. Asked by `machine`.

A container sees the whole machine in `/proc`; what it was given is in the files of its group and of those above it. The
smallest of them holds. Where there are no control groups, or they cannot be read, there is no limit.

What this machine has: CPUs, memory and devices, and how nodes share it out. The engine asks once, when it starts.

Each node agent reports its `Share` as the capacity of its Node.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from trainwright.errors import UsageError
from trainwright.node.devices.inventory import DeviceSet, inventory
from trainwright.node.requests import PODS

#: Version 1 writes "no limit" as the largest number of pages; nobody has that much memory.
_NO_LIMIT = 2**60


class CgroupLimits(Struct, frozen=True):
    """CPU in thousandths, memory in bytes; None: no limit."""

    cpu: int | None = None
    memory: int | None = None


def cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """What holds for this process; `root` is where `/proc` and `/sys` are."""
    cpu = [found for folder in _folders(root, "cpu") if (found := _cpu(folder)) is not None]
    memory = [found for folder in _folders(root, "memory") if (found := _memory(folder)) is not None]
    return CgroupLimits(min(cpu, default=None), min(memory, default=None))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The folder of our group and those of the groups above it, in every hierarchy that may limit this."""
    groups = dict(_groups(root))
    for point, base, sort, options in _mounts(root):
        kind = controller if sort == "cgroup" and controller in options else "" if sort == "cgroup2" else None
        if kind is None or kind not in groups:
            continue
        # Seen from inside a container the path may be the one outside it: then only the mount itself is ours.
        inside = groups[kind].removeprefix(base.rstrip("/")).strip("/")
        parts = inside.split("/") if inside and ".." not in inside else []
        top = root / point.lstrip("/")
        yield from (top.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """Controller to path; version 2 has one path for all, under an empty name."""
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        yield from ((name, path) for name in names.split(","))


def _mounts(root: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Where hierarchies are mounted: mount point, the group that is mounted there, file system, its options."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        here, there = before.split(), after.split()
        if there and there[0] in ("cgroup", "cgroup2"):
            yield here[4], here[3], there[0], there[-1].split(",")


def _cpu(folder: Path) -> int | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    allowed, each = _number(quota), _number(period)
    return allowed * 1000 // each if allowed and each and allowed > 0 else None


def _memory(folder: Path) -> int | None:
    found = _number(_text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes"))
    return found if found is not None and 0 < found < _NO_LIMIT else None


def _number(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdigit() else None


def _text(path: Path) -> str:
    return "".join(_lines(path)[:1]).strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


#: As good as no limit: what a machine can really run is for its memory to say.
_MOST_PODS = "10000"


class NodeCapacity(Struct, frozen=True):
    """What one node has: thousandths of a CPU, bytes, and its devices by resource name."""

    cpu: int
    memory: int
    devices: dict[str, DeviceSet] = {}

    def capacity(self) -> dict[str, str]:
        """As Kubernetes writes it, for `status.capacity` and `status.allocatable` of a Node."""
        cpu = f"{self.cpu}m" if self.cpu % 1000 else str(self.cpu // 1000)
        devices = {name: str(len(found.ids)) for name, found in self.devices.items() if found.ids}
        return {"cpu": cpu, "memory": f"{self.memory // 1024}Ki", PODS: _MOST_PODS} | devices


def machine(devices: Mapping[str, DeviceSet]) -> NodeCapacity:
    """All of this machine that this process may use, with the devices that the user says it has: see `inventory`."""
    held = cgroup_limits()
    cpu = _cpus() * 1000
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return NodeCapacity(min(cpu, held.cpu or cpu), min(memory, held.memory or memory), inventory(devices))


def share(whole: NodeCapacity, nodes: int) -> tuple[NodeCapacity, ...]:
    """The machine, shared out among that many nodes: CPUs and memory in equal parts, devices in turn."""
    if nodes < 1:
        raise UsageError(f"there must be at least one node, not {nodes}")
    if whole.cpu < nodes:
        raise UsageError(f"{nodes} nodes are more than this machine can be shared out among: it has {whole.cpu}m CPU")
    return tuple(
        NodeCapacity(whole.cpu // nodes, whole.memory // nodes, _dealt(whole.devices, index, nodes))
        for index in range(nodes)
    )


def _dealt(devices: Mapping[str, DeviceSet], index: int, nodes: int) -> dict[str, DeviceSet]:
    """Every n-th device is that node's."""
    return {name: replace(found, ids=found.ids[index::nodes]) for name, found in devices.items()}


def _cpus() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
