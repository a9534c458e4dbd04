# SPDX-License-Identifier: Apache-2.0
"""The mounts of a container: `plan_mounts` lists them, `mount_all` performs them in the container's mount namespace.

All sources are opened before the first mount, because a private /tmp may hide the folder of a volume. Parents are
mounted before their children.

`MountOverlay` creates mount points that the host does not have. In a volume and in the working directory it creates a
new folder, as container engines do. Elsewhere it does not change the host, but covers the deepest existing folder with
an overlay: new entries are in memory or in the pod's folder, and existing folders stay the folders of the host.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from trainwright import kernel
from trainwright.node.supervisor.launch import StartRefused

if TYPE_CHECKING:
    from trainwright.node.supervisor import protocol

_HOST_LINK = ".host"
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_TMP, _SHM, _HOSTS, _RESOLVER = "/tmp", "/dev/shm", "/etc/hosts", "/etc/resolv.conf"  # noqa: S108 - paths in the container
_TERMINATION_LOG = "/dev/termination-log"
# Flags of statvfs, and the same flags for mount. In a user namespace, a remount must repeat the flags of the mount.
_RESTRICTIONS = {
    os.ST_NOSUID: kernel.NOSUID,
    os.ST_NODEV: kernel.NODEV,
    os.ST_NOEXEC: kernel.NOEXEC,
    os.ST_NOATIME: kernel.NOATIME,
    os.ST_NODIRATIME: kernel.NODIRATIME,
    os.ST_RELATIME: kernel.RELATIME,
}


class ContainerMount(NamedTuple):
    """A mount at `target`: a file or folder (`source`) or memory. With both: memory that the pod's containers share."""

    target: str
    source: str | None
    memory: int | None = None
    readonly: bool = False


def prepare() -> None:
    """Prepare the mount namespace that is copied for every pod: its mounts no longer propagate to the host.

    Every container has a file /dev/termination-log. Creating its mount point here, once for all containers, saves a
    third of the time that the start of a container takes. Raises OSError.
    """
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    MountOverlay().make_mount_point(_TERMINATION_LOG, folder=False)


def plan_mounts(pod: protocol.OpenPod, resolver: str | None, start: protocol.StartContainer) -> list[ContainerMount]:
    """All mounts of a container, parents first. Of two mounts with the same target, the later mount is visible.

    /tmp and mounts below it are last. A volume may show the host's /tmp at another path. A bind mount includes the
    mounts that its source already has, so this volume must be mounted before the pod's private /tmp.
    """
    requested = [
        ContainerMount(os.path.normpath(one["target"]), one.get("source"), one.get("tmpfs"), bool(one.get("readonly")))
        for one in start.get("mounts") or ()
    ]
    targets = {one.target for one in requested}
    return sorted([one for one in _default_mounts(pod, resolver) if one.target not in targets] + requested, key=_order)


def _default_mounts(pod: protocol.OpenPod, resolver: str | None) -> list[ContainerMount]:
    tmp, size = pod.get("tmp"), pod.get("shm")
    shared = os.path.join(os.path.dirname(tmp), "shm") if tmp else None
    found = [ContainerMount(_SHM, shared, size or _default_shm_bytes())]
    files = {_HOSTS: pod.get("hosts"), _RESOLVER: resolver}
    found += [ContainerMount(target, source) for target, source in files.items() if source]
    return found + (_private_tmp(tmp, pod.get("keep") or ()) if tmp else [])


@functools.cache
def _default_shm_bytes() -> int:
    """The larger of two sizes: this machine's /dev/shm, and half of the memory (returned as 0, the kernel's default).

    Data loaders share batches in /dev/shm. Many container engines give it 64 MiB, and data loaders that need more end
    by SIGBUS. This machine may itself be such a container, so a small /dev/shm of this machine is not used as the size.
    A container's memory limit includes the bytes in /dev/shm.
    """
    if not os.path.ismount(_SHM):
        return 0
    system = os.statvfs(_SHM)
    size = system.f_blocks * system.f_frsize
    return size if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 else 0


def _private_tmp(tmp: str, keep: Iterable[str]) -> list[ContainerMount]:
    """The pod's private /tmp, with the folders of `keep` visible in it; no mount if all of /tmp stays visible."""
    kept = sorted({os.path.normpath(path) for path in keep})
    if _TMP in kept:
        return []
    below = [path for path in kept if path.startswith(f"{_TMP}/") and os.path.exists(path)]
    return [ContainerMount(_TMP, tmp), *(ContainerMount(path, path) for path in below)]


def _order(one: ContainerMount) -> tuple[bool, int]:
    return f"{one.target}/".startswith(f"{_TMP}/"), one.target.rstrip("/").count("/")


def mount_shared_memory(plan: list[ContainerMount], mounted: set[str]) -> None:
    """In the pod's mount namespace, mount the memory that its containers share. Raises StartRefused."""
    for one in plan:
        if one.source is None or one.memory is None or one.source in mounted:
            continue
        try:
            os.makedirs(one.source, exist_ok=True)
            _mount_memory(one.source, one.memory)
        except OSError as error:
            raise _refusal(one, error) from None
        mounted.add(one.source)


def mount_all(plan: list[ContainerMount], overlay: MountOverlay) -> None:
    """In the container's mount namespace, perform all mounts. Raises StartRefused."""
    try:
        overlay.prepare_root(one.target for one in plan)
    except OSError as error:
        raise StartRefused(f"cannot make a root folder with all mount points: {error}.") from None
    sources: list[int | None] = []
    try:
        sources += map(_open_source, plan)
        for one, source in zip(plan, sources, strict=True):
            try:
                _mount(one, source, overlay)
            except OSError as error:
                raise _refusal(one, error) from None
    finally:
        for source in sources:
            if source is not None:
                os.close(source)


def _open_source(one: ContainerMount) -> int | None:
    if one.source is None:
        return None
    try:
        return os.open(one.source, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(one, error) from None


def _mount(one: ContainerMount, source: int | None, overlay: MountOverlay) -> None:
    folder = source is None or stat.S_ISDIR(os.fstat(source).st_mode)
    target = overlay.make_mount_point(one.target, folder=folder)
    if target == "/":
        raise OSError(errno.EINVAL, "the root itself cannot be replaced", target)
    if source is None:
        _mount_memory(target, one.memory or 0)
    else:
        _bind(source, target)
    if one.readonly:
        found = os.statvfs(target).f_flag
        restrictions = sum(flag for bit, flag in _RESTRICTIONS.items() if found & bit)
        kernel.mount("none", target, None, kernel.REMOUNT | kernel.BIND | kernel.RDONLY | restrictions)
    overlay.writable[target] = not one.readonly


def _mount_memory(target: str, size: int) -> None:
    limit = f",size={size}" if size else ""
    kernel.mount("tmpfs", target, "tmpfs", kernel.NOSUID | kernel.NODEV, f"mode=1777{limit}")


def _refusal(one: ContainerMount, error: OSError) -> StartRefused:
    what = f'"{one.source}"' if one.source and one.memory is None else "memory"
    where = f' ("{error.filename}")' if error.filename not in {None, one.target, one.source} else ""
    return StartRefused(f'cannot mount {what} at "{one.target}": {error.strerror or error}{where}.')


class FolderEntry(NamedTuple):
    """An entry of a folder, held open so that it can be mounted again when the folder is covered."""

    name: str
    handle: int
    mode: int


class MountOverlay:
    """Creates mount points in the mount namespace of the calling thread.

    `root`: the folder to create if a target needs a new root (None: a tmpfs). `working`: the working directory.
    """

    def __init__(self, root: str | None = None, working: str | None = None) -> None:
        self._root = root
        # By path: whether folders may be created below it. For a mount point, the longest path above it decides.
        self.writable = {"/": False}
        if working is not None and working != "/":
            self.writable[os.path.realpath(working)] = True

    def make_mount_point(self, target: str, *, folder: bool) -> str:
        """Follow symbolic links, create the mount point if it is missing, and return its path. Raises OSError."""
        path = os.path.realpath(target)
        base = path
        while not os.path.lexists(base):
            base = os.path.dirname(base)
        _check(base, folder=folder or base != path)
        if base == path:
            return path
        above = base
        while above not in self.writable:
            above = os.path.dirname(above)
        if not self.writable[above]:
            entries = _entries(base)
            _cover(base, entries)
            self._add_covered(base, entries)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _make(path, folder=folder)
        return path

    def prepare_root(self, targets: Iterable[str]) -> None:
        """Switch to a new root if a target's top folder is missing. Call before the first mount. Raises OSError."""
        tops = {os.path.realpath(target).split("/", 2)[1] for target in targets}
        if all(os.path.lexists(f"/{top}") for top in tops):
            return
        entries = _entries("/")
        self._replace_root(entries)
        self._add_covered("/", entries)

    def _replace_root(self, entries: list[FolderEntry]) -> None:
        """Mount all entries of the old root in a new root. The new root is unbindable: no mount may include it."""
        root = self._root
        if root is None:
            root = next(f"/{one.name}" for one in entries if stat.S_ISDIR(one.mode) and one.name != "proc")
            kernel.mount("tmpfs", root, "tmpfs", 0, "mode=755")
        else:
            os.mkdir(root)
            os.chmod(root, 0o755)  # noqa: S103 - the mode of a root, for any umask
            kernel.mount(root, root, None, kernel.BIND)
        kernel.mount("none", root, None, kernel.UNBINDABLE)
        _mirror(root, -1, entries)
        kernel.pivot(root)

    def _add_covered(self, base: str, entries: list[FolderEntry]) -> None:
        """Record that folders may now be created in `base`, but not in its existing folders, which are the host's."""
        self.writable[base] = True
        for entry in entries:
            os.close(entry.handle)
            if stat.S_ISDIR(entry.mode):
                self.writable.setdefault(os.path.join(base, entry.name), False)


def _cover(base: str, entries: list[FolderEntry]) -> None:
    """Cover a folder with an overlay. If that fails, cover it with a tmpfs, and mount the folder's entries there.

    A program can replace the files in an overlay, but not the files in the tmpfs, which are mount points.
    """
    lower = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mounted = _mount_points_in(base)
    try:
        if _mount_overlay(base, lower):
            for entry in entries:
                if stat.S_ISDIR(entry.mode) or entry.name in mounted:
                    _bind(entry.handle, os.path.join(base, entry.name))
        else:
            _mount_empty(base, lower)
            _mirror(base, lower, entries)
    finally:
        os.close(lower)


def _mount_empty(base: str, lower: int) -> None:
    mode = stat.S_IMODE(os.fstat(lower).st_mode)
    kernel.mount("tmpfs", base, "tmpfs", 0, f"mode={mode:o}")


def _mount_overlay(base: str, lower: int) -> bool:
    """Mount an overlay that keeps changes in a tmpfs. Its options use descriptors, since paths may contain commas."""
    _mount_empty(base, lower)
    handles = {"lowerdir": lower}
    for name in ("upperdir", "workdir"):
        path = os.path.join(base, name)
        os.mkdir(path)
        os.chmod(path, stat.S_IMODE(os.fstat(lower).st_mode))
        handles[name] = os.open(path, _HANDLE)
    options = ",".join(f"{name}=/proc/self/fd/{handle}" for name, handle in handles.items())
    try:
        kernel.mount("overlay", base, "overlay", 0, f"{options},userxattr")
    except OSError:
        kernel.unmount(base)
        return False
    finally:
        os.close(handles["upperdir"])
        os.close(handles["workdir"])
    return True


def _mirror(base: str, folder: int, entries: list[FolderEntry]) -> None:
    """Mount every entry of a folder in the empty folder that covers it. Devices are many, so they become links."""
    if any(_is_device(entry) for entry in entries):
        hidden = os.path.join(base, _HOST_LINK)
        os.mkdir(hidden)
        kernel.mount("none", base, None, kernel.UNBINDABLE)  # the next mount must not include this cover
        _bind(folder, hidden)
        kernel.mount("none", base, None, kernel.PRIVATE)
    for entry in entries:
        path = os.path.join(base, entry.name)
        if stat.S_ISLNK(entry.mode):
            os.symlink(os.readlink("", dir_fd=entry.handle), path)
        elif _is_device(entry):
            os.symlink(os.path.join(_HOST_LINK, entry.name), path)
        else:
            _make(path, folder=stat.S_ISDIR(entry.mode))
            _bind(entry.handle, path)


def _is_device(entry: FolderEntry) -> bool:
    return stat.S_ISCHR(entry.mode) or stat.S_ISBLK(entry.mode)


def _bind(handle: int, path: str) -> None:
    kernel.mount(f"/proc/self/fd/{handle}", path, None, kernel.BIND | kernel.REC)


def _entries(base: str) -> list[FolderEntry]:
    entries = []
    for name in sorted(os.listdir(base)):
        try:
            handle = os.open(os.path.join(base, name), _HANDLE)
        except FileNotFoundError:
            continue  # another process has just removed the entry
        entries.append(FolderEntry(name, handle, os.fstat(handle).st_mode))
    return entries


def _mount_points_in(base: str) -> set[str]:
    """The names of mount points in a folder."""
    with open("/proc/thread-self/mountinfo", "rb") as file:
        points = [line.split(b" ", 5)[4] for line in file]
    # The kernel writes blanks and some other characters as a backslash and three octal digits.
    paths = [os.fsdecode(point.decode("unicode_escape").encode("latin-1")) for point in points]
    return {os.path.basename(path) for path in paths if os.path.dirname(path) == base}


def _make(path: str, *, folder: bool) -> None:
    if folder:
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _check(path: str, *, folder: bool) -> None:
    if os.path.isdir(path) != folder:
        text = "it is a file on this machine, not a folder" if folder else "it is a folder on this machine, not a file"
        raise OSError(errno.ENOTDIR if folder else errno.EISDIR, text, path)
