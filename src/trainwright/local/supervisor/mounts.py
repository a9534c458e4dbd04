# SPDX-License-Identifier: Apache-2.0
"""What a container sees differently from the host: a plan, and carrying it out. `init` calls it in the new namespace.

Sources are opened before anything is covered, so it does not matter that a private /tmp hides the folder that a volume
comes from. Parents are mounted before what lies in them. Every refusal is a sentence that names the mount.
"""
# ruff: noqa: PTH - pathlib would cost the supervisor a tenth of its start

import os
import stat
from typing import Any, NamedTuple

from trainwright.local.supervisor import kernel
from trainwright.local.supervisor.places import Places
from trainwright.local.supervisor.runtimes import Refused

_SHM, TMP, HOSTS = "/dev/shm", "/tmp", "/etc/hosts"  # noqa: S108 - the paths themselves are meant
SHM_BYTES = 64 << 20
# statvfs says how a mount is restricted; a remount in a user namespace must repeat all of it.
_KEPT = {
    os.ST_NOSUID: kernel.NOSUID,
    os.ST_NODEV: kernel.NODEV,
    os.ST_NOEXEC: kernel.NOEXEC,
    os.ST_NOATIME: kernel.NOATIME,
    os.ST_NODIRATIME: kernel.NODIRATIME,
    os.ST_RELATIME: kernel.RELATIME,
}


class Mount(NamedTuple):
    """One thing to be seen at `target`: a file or folder, or memory of its own."""

    target: str
    source: str | None = None
    readonly: bool = False
    tmpfs: int | None = None
    own: bool = True  # what is mounted below may leave a mount point in it


def planned(pod: dict[str, Any], start: dict[str, Any], shm: str | None) -> list[Mount]:
    """All mounts of a container, parents first; of two at the same place the later one is seen."""
    given = [_asked(one) for one in start.get("mounts") or ()]
    targets = {one.target for one in given}
    fixed = _private(pod.get("tmp"), pod.get("keep") or (), TMP in targets)
    if _SHM not in targets:
        size = pod.get("shm")
        fixed.append(Mount(_SHM, shm) if shm else Mount(_SHM, tmpfs=SHM_BYTES if size is None else size))
    if pod.get("hosts"):
        fixed.append(Mount(HOSTS, pod["hosts"]))
    return sorted(fixed + given, key=lambda one: one.target.count("/") if one.target != "/" else 0)


def _asked(one: dict[str, Any]) -> Mount:
    source, size = one.get("source"), one.get("tmpfs")
    readonly = bool(one.get("readonly"))
    target = os.path.normpath(one["target"])
    return Mount(target, source, readonly, None if source else size, own=not readonly)


def _private(tmp: str | None, keep: Any, replaced: bool) -> list[Mount]:
    """A /tmp of the pod's own, in which the folders to be kept are found again; none where /tmp itself is to be kept."""
    kept = sorted({os.path.normpath(path) for path in keep})
    if (not tmp and not replaced) or TMP in kept:
        return []
    below = [path for path in kept if path.startswith(f"{TMP}/") and os.path.exists(path)]
    return ([Mount(TMP, tmp)] if tmp and not replaced else []) + [Mount(path, path) for path in below]


def furnish(plan: list[Mount], places: Places) -> None:
    """Mount all of it. Raises Refused."""
    sources = [_opened(one) for one in plan]
    for one, source in zip(plan, sources, strict=True):
        try:
            _mounted(one, source, places)
        except OSError as error:
            raise refusal(one.target, error) from None


def _opened(one: Mount) -> int | None:
    if one.source is None:
        return None
    try:
        return os.open(one.source, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        text = f'cannot mount "{one.source}" at "{one.target}": {error.strerror or error}.'
        raise Refused(128, text) from None


def _mounted(one: Mount, source: int | None, places: Places) -> None:
    folder = source is None or stat.S_ISDIR(os.fstat(source).st_mode)
    target = places.made(one.target, folder=folder)
    if source is None:
        flags = kernel.NOSUID | kernel.NODEV | (kernel.RDONLY if one.readonly else 0)
        kernel.mount("tmpfs", target, "tmpfs", flags, f"mode=1777,size={one.tmpfs or 0}")
    else:
        bind(source, target)
        os.close(source)
        if one.readonly:
            lock(target)
    places.note(target, own=one.own)


def bind(source: int, target: str) -> None:
    """Show what is open as `source` at `target` too, with whatever is mounted in it."""
    kernel.mount(f"/proc/self/fd/{source}", target, None, kernel.BIND | kernel.REC)


def lock(target: str) -> None:
    """Make one bind mount read-only."""
    found = os.statvfs(target).f_flag
    kept = sum(flag for seen, flag in _KEPT.items() if found & seen)
    kernel.mount("none", target, None, kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kept)


def refusal(target: str, error: OSError) -> Refused:
    """Why there can be no mount at this place."""
    where = f' ("{error.filename}")' if error.filename not in {None, target} else ""
    return Refused(128, f'cannot mount at "{target}": {error.strerror or error}{where}.')
