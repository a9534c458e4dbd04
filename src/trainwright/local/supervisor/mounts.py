# SPDX-License-Identifier: Apache-2.0
"""What a container sees differently from the host: the plan of it, and carrying it out. `sandbox` calls all of it.

Sources are opened before anything is covered, so it does not matter that a private /tmp hides the folder in which a
volume lies. Parents are mounted before what is in them. A refusal is a sentence that names the mount.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from trainwright.local.supervisor import kernel
from trainwright.local.supervisor.launch import NOT_POSSIBLE
from trainwright.local.supervisor.places import Places
from trainwright.local.supervisor.runtimes import Refused

if TYPE_CHECKING:
    from trainwright.local.supervisor import protocol

_TMP, _SHM, _HOSTS, _RESOLVER = "/tmp", "/dev/shm", "/etc/hosts", "/etc/resolv.conf"  # noqa: S108 - these very paths are meant
_TERMINATION_LOG = "/dev/termination-log"
# How statvfs says that a mount is restricted: a remount within a user namespace has to repeat it.
_KEPT = {
    os.ST_NOSUID: kernel.NOSUID,
    os.ST_NODEV: kernel.NODEV,
    os.ST_NOEXEC: kernel.NOEXEC,
    os.ST_NOATIME: kernel.NOATIME,
    os.ST_NODIRATIME: kernel.NODIRATIME,
    os.ST_RELATIME: kernel.RELATIME,
}


class Mount(NamedTuple):
    """What is to be seen at `target`: a file or folder, or memory; with both, memory that a pod's containers share."""

    target: str
    source: str | None
    memory: int | None = None
    readonly: bool = False


def prepare() -> None:
    """In a mount namespace that those of all pods are copied from: nothing in it reaches the host any more.

    Every container has a file /dev/termination-log: to make the place for it once saves a third of its start. Raises
    OSError.
    """
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    Places().made(_TERMINATION_LOG, folder=False)


def planned(pod: protocol.OpenPod, resolver: str | None, start: protocol.StartContainer) -> list[Mount]:
    """All mounts of a container, parents first; of two at the same place the later one is seen.

    /tmp and what is in it come last: a bind of a folder takes the mounts on it along, so a volume that shows the
    machine's /tmp elsewhere would show the pod's own.
    """
    given = [_given(one) for one in start.get("mounts") or ()]
    taken = {one.target for one in given}
    return sorted([one for one in _usual(pod, resolver) if one.target not in taken] + given, key=_order)


def _given(one: protocol.Mount) -> Mount:
    return Mount(os.path.normpath(one["target"]), one.get("source"), one.get("tmpfs"), bool(one.get("readonly")))


def _usual(pod: protocol.OpenPod, resolver: str | None) -> list[Mount]:
    tmp, size = pod.get("tmp"), pod.get("shm")
    shared = os.path.join(os.path.dirname(tmp), "shm") if tmp else None
    usual = [Mount(_SHM, shared, size or _machine_size())]
    files = {_HOSTS: pod.get("hosts"), _RESOLVER: resolver}
    usual += [Mount(target, source) for target, source in files.items() if source]
    return usual + (_private(tmp, pod.get("keep") or ()) if tmp else [])


@functools.cache
def _machine_size() -> int:
    """Bytes of this machine's /dev/shm where that is more than half of its memory; 0: the kernel's default, that half.

    Data loaders share their batches here. A /dev/shm of 64 MiB, as container engines make it, ends them by SIGBUS; so a
    machine that is itself such a container is no measure. A container's memory limit counts what is written here.
    """
    if not os.path.ismount(_SHM):
        return 0
    found = os.statvfs(_SHM)
    size = found.f_blocks * found.f_frsize
    return size if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 else 0


def _private(tmp: str, keep: Iterable[str]) -> list[Mount]:
    """A /tmp of the pod's own, with the folders in it that must be seen; unless that is all of /tmp."""
    kept = sorted({os.path.normpath(path) for path in keep})
    if _TMP in kept:
        return []
    below = [path for path in kept if path.startswith(f"{_TMP}/") and os.path.exists(path)]
    return [Mount(_TMP, tmp), *(Mount(path, path) for path in below)]


def _order(one: Mount) -> tuple[bool, int]:
    return f"{one.target}/".startswith(f"{_TMP}/"), one.target.rstrip("/").count("/")


def share(plan: list[Mount], known: set[str]) -> None:
    """In the pod's own mount namespace: the memory that its containers share. Raises Refused."""
    for one in plan:
        if one.source is None or one.memory is None or one.source in known:
            continue
        try:
            os.makedirs(one.source, exist_ok=True)
            _memory(one.source, one.memory)
        except OSError as error:
            raise _refusal(one, error) from None
        known.add(one.source)


def furnish(plan: list[Mount], places: Places) -> None:
    """In the container's mount namespace: mount all of it. Raises Refused."""
    try:
        places.ground(one.target for one in plan)
    except OSError as error:
        raise Refused(NOT_POSSIBLE, f"cannot make a root in which all mounts have a place: {error}.") from None
    sources: list[int | None] = []
    try:
        sources += map(_opened, plan)
        for one, source in zip(plan, sources, strict=True):
            try:
                _mount(one, source, places)
            except OSError as error:
                raise _refusal(one, error) from None
    finally:
        for source in sources:
            if source is not None:
                os.close(source)


def _opened(one: Mount) -> int | None:
    if one.source is None:
        return None
    try:
        return os.open(one.source, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(one, error) from None


def _mount(one: Mount, source: int | None, places: Places) -> None:
    folder = source is None or stat.S_ISDIR(os.fstat(source).st_mode)
    target = places.made(one.target, folder=folder)
    if target == "/":
        raise OSError(errno.EINVAL, "the root itself cannot be replaced", target)
    if source is None:
        _memory(target, one.memory or 0)
    else:
        kernel.mount(f"/proc/self/fd/{source}", target, None, kernel.BIND | kernel.REC)
    if one.readonly:
        found = os.statvfs(target).f_flag
        kept = sum(flag for seen, flag in _KEPT.items() if found & seen)
        kernel.mount("none", target, None, kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kept)
    places.note(target, own=not one.readonly)


def _memory(target: str, size: int) -> None:
    limit = f",size={size}" if size else ""
    kernel.mount("tmpfs", target, "tmpfs", kernel.NOSUID | kernel.NODEV, f"mode=1777{limit}")


def _refusal(one: Mount, error: OSError) -> Refused:
    what = f'"{one.source}"' if one.source and one.memory is None else "memory"
    where = f' ("{error.filename}")' if error.filename not in {None, one.target, one.source} else ""
    return Refused(NOT_POSSIBLE, f'cannot mount {what} at "{one.target}": {error.strerror or error}{where}.')
