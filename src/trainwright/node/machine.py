# SPDX-License-Identifier: Apache-2.0
"""The CPUs, memory and devices of this machine, and how several nodes share them.

A container sees the whole machine in `/proc`. Its limits are in the files of its control group (version 1 or 2) and of
the groups above it, and the smallest limit counts. Without readable control groups there is no limit.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from trainwright.errors import UsageError
from trainwright.node.devices.inventory import DeviceSet, inventory
from trainwright.node.requests import PODS

#: A memory limit of at least this size means "no limit". Version 1 of control groups then has a very large number.
_NO_LIMIT_BYTES = 2**60


class CgroupLimits(Struct, frozen=True):
    """The limits for CPU, in thousandths of a CPU, and for memory, in bytes; None: no limit."""

    cpu: int | None = None
    memory: int | None = None


def cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """The limits of this process; `root` is the folder that contains `proc` and `sys`."""
    cpu = [found for folder in _cgroup_folders(root, "cpu") if (found := _cpu_limit(folder)) is not None]
    memory = [found for folder in _cgroup_folders(root, "memory") if (found := _memory_limit(folder)) is not None]
    return CgroupLimits(min(cpu, default=None), min(memory, default=None))


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of the groups above it, in every hierarchy with this controller."""
    paths: dict[str, str] = {}  # path by controller; version 2 has one path for all controllers, with the key ""
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), path)
    for point, base, filesystem, options in _cgroup_mounts(root):
        is_v1 = filesystem == "cgroup" and controller in options
        name = controller if is_v1 else "" if filesystem == "cgroup2" else None
        if name is None or name not in paths:
            continue
        # In a container, the kernel may report a path of the host. The mount point is then the cgroup of the container.
        inside = paths[name].removeprefix(base.rstrip("/")).strip("/")
        parts = inside.split("/") if inside and ".." not in inside else []
        top = root / point.lstrip("/")
        yield from (top.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))


def _cgroup_mounts(root: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """The mounts of hierarchies: mount point, the group that is mounted there, file system, its options."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        here, there = before.split(), after.split()
        if there and there[0] in ("cgroup", "cgroup2"):
            yield here[4], here[3], there[0], there[-1].split(",")


def _cpu_limit(folder: Path) -> int | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    quota_us, period_us = _number(quota), _number(period)
    return quota_us * 1000 // period_us if quota_us and period_us and quota_us > 0 else None


def _memory_limit(folder: Path) -> int | None:
    found = _number(_text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes"))
    return found if found is not None and 0 < found < _NO_LIMIT_BYTES else None


def _number(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdigit() else None


def _text(path: Path) -> str:
    return "".join(_lines(path)[:1]).strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


#: The pod capacity of a node. In practice it limits nothing, because the memory of a machine allows fewer pods.
_MAX_PODS = "10000"


class NodeCapacity(Struct, frozen=True):
    """What one node has: CPU in thousandths of a CPU, memory in bytes, and devices by resource name."""

    cpu: int
    memory: int
    devices: dict[str, DeviceSet] = {}

    def capacity(self) -> dict[str, str]:
        """The quantities for `status.capacity` and `status.allocatable` of a Node."""
        cpu = f"{self.cpu}m" if self.cpu % 1000 else str(self.cpu // 1000)
        devices = {name: str(len(found.ids)) for name, found in self.devices.items() if found.ids}
        return {"cpu": cpu, "memory": f"{self.memory // 1024}Ki", PODS: _MAX_PODS} | devices


def machine(devices: Mapping[str, DeviceSet]) -> NodeCapacity:
    """The part of this machine that this process may use. `devices` are the devices that the user declares."""
    limits = cgroup_limits()
    cpu = 1000 * (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return NodeCapacity(min(cpu, limits.cpu or cpu), min(memory, limits.memory or memory), inventory(devices))


def share(whole: NodeCapacity, nodes: int) -> tuple[NodeCapacity, ...]:
    """Divide the machine between nodes: CPUs and memory in equal parts, devices round-robin."""
    if nodes < 1:
        raise UsageError(f"expected at least one node, found {nodes}")
    if whole.cpu < nodes:
        raise UsageError(f"{nodes} nodes are too many for this machine, which has only {whole.cpu}m CPU")
    shares = [
        {name: replace(found, ids=found.ids[index::nodes]) for name, found in whole.devices.items()}
        for index in range(nodes)
    ]
    return tuple(NodeCapacity(whole.cpu // nodes, whole.memory // nodes, devices) for devices in shares)
