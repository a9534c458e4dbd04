# SPDX-License-Identifier: Apache-2.0
"""How much CPU and memory this process may use, by the control groups it is in, version 1 or 2. Asked by `machine`.

A container sees the whole machine in `/proc`; what it was given is in the files of its group and of those above it. The
smallest of them holds. Where there are no control groups, or they cannot be read, there is no limit.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

#: Version 1 writes "no limit" as the largest number of pages; nobody has that much memory.
_NO_LIMIT = 2**60


class Limits(Struct, frozen=True):
    """CPU in thousandths, memory in bytes; None: no limit."""

    cpu: int | None = None
    memory: int | None = None


def limits(root: Path = Path("/")) -> Limits:
    """What holds for this process; `root` is where `/proc` and `/sys` are."""
    cpu = [found for folder in _folders(root, "cpu") if (found := _cpu(folder)) is not None]
    memory = [found for folder in _folders(root, "memory") if (found := _memory(folder)) is not None]
    return Limits(min(cpu, default=None), min(memory, default=None))


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
