# SPDX-License-Identifier: Apache-2.0
"""Mount points that the host does not have, made without touching the host. `mounts` asks for each place in turn.

Below a volume or the working directory the folder is simply made, as container engines do. Anywhere else the deepest
folder that exists gets a cover: new entries go into memory or the pod's folder, and its folders stay the host's.

What a container sees differently from the host: the plan of it, and carrying it out. `sandbox` calls all of it.

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

from trainwright.node.supervisor import kernel
from trainwright.node.supervisor.launch import NOT_POSSIBLE, StartRefused

_HIDDEN = ".host"
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderEntry(NamedTuple):
    """Something in a folder, held open so that it can be shown again once the folder is covered."""

    name: str
    handle: int
    mode: int
    link: str


class MountOverlay:
    """The tree of the mount namespace that the caller is in.

    `root` names a folder to be made for a new root, should it take one; `working` is the caller's working directory.
    """

    def __init__(self, root: str | None = None, working: str | None = None) -> None:
        self._root = root
        # Whether mount points may be made: the innermost of these folders that holds the place says so.
        self._own = {"/": False}
        if working is not None and working != "/":
            self._own[os.path.realpath(working)] = True

    def note(self, path: str, *, own: bool) -> None:
        """Something was mounted there; `own`: mount points may be made in it."""
        self._own[path] = own

    def made(self, target: str, *, folder: bool) -> str:
        """The place itself: links followed, made if it is missing. Raises OSError."""
        path = os.path.realpath(target)
        base = path
        while not os.path.lexists(base):
            base = os.path.dirname(base)
        _check(base, folder=folder or base != path)
        if base == path:
            return path
        if not self._ours(base):
            entries = _entries(base)
            _layer(base, entries)
            self._covered(base, entries)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _make(path, folder=folder)
        return path

    def ground(self, targets: Iterable[str]) -> None:
        """Before anything is mounted: have a root in which all of them can be made. Raises OSError."""
        tops = {os.path.realpath(target).split("/", 2)[1] for target in targets}
        if all(os.path.lexists(f"/{top}") for top in tops):
            return
        entries = _entries("/")
        self._replace_root(entries)
        self._covered("/", entries)

    def _replace_root(self, entries: list[FolderEntry]) -> None:
        """A new root with everything that is in the old one; itself it is left out, or it would go round in circles."""
        root = self._root
        if root is None:
            root = next(f"/{one.name}" for one in entries if stat.S_ISDIR(one.mode) and one.name != "proc")
            kernel.mount("tmpfs", root, "tmpfs", 0, "mode=755")
        else:
            os.mkdir(root)
            os.chmod(root, 0o755)  # noqa: S103 - as roots are, whatever the umask
            kernel.mount(root, root, None, kernel.BIND)
        kernel.mount("none", root, None, kernel.UNBINDABLE)
        _mirror(root, -1, entries)
        kernel.pivot(root)

    def _ours(self, base: str) -> bool:
        while base not in self._own:
            base = os.path.dirname(base)
        return self._own[base]

    def _covered(self, base: str, entries: list[FolderEntry]) -> None:
        """It is ours now; the folders in it are still the host's."""
        self._own[base] = True
        for entry in entries:
            os.close(entry.handle)
            if stat.S_ISDIR(entry.mode):
                self._own.setdefault(os.path.join(base, entry.name), False)


def _layer(base: str, entries: list[FolderEntry]) -> None:
    """An overlay, so that files in it can still be replaced; where the kernel has none, all entries one by one."""
    lower = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mounted = _mounted(base)
    try:
        if _overlaid(base, lower):
            for entry in entries:
                if stat.S_ISDIR(entry.mode) or entry.name in mounted:
                    _bind(entry.handle, os.path.join(base, entry.name))
        else:
            _blank(base, lower)
            _mirror(base, lower, entries)
    finally:
        os.close(lower)


def _blank(base: str, lower: int) -> None:
    mode = stat.S_IMODE(os.fstat(lower).st_mode)
    kernel.mount("tmpfs", base, "tmpfs", 0, f"mode={mode:o}")


def _overlaid(base: str, lower: int) -> bool:
    """Changes are kept beneath, in memory. Descriptors stand for the folders: paths would need their commas escaped."""
    _blank(base, lower)
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
    """Every entry of a folder in the empty one that covers it. Devices by link: there are many, and few are used."""
    if any(_is_device(entry) for entry in entries):
        hidden = os.path.join(base, _HIDDEN)
        os.mkdir(hidden)
        kernel.mount("none", base, None, kernel.UNBINDABLE)  # the cover itself is on that folder
        _bind(folder, hidden)
        kernel.mount("none", base, None, kernel.PRIVATE)
    for entry in entries:
        path = os.path.join(base, entry.name)
        if stat.S_ISLNK(entry.mode):
            os.symlink(entry.link, path)
        elif _is_device(entry):
            os.symlink(os.path.join(_HIDDEN, entry.name), path)
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
            continue  # removed by somebody in this moment
        mode = os.fstat(handle).st_mode
        entries.append(FolderEntry(name, handle, mode, os.readlink("", dir_fd=handle) if stat.S_ISLNK(mode) else ""))
    return entries


def _mounted(base: str) -> set[str]:
    """The names in a folder at which something is mounted."""
    with open("/proc/thread-self/mountinfo", "rb") as file:
        points = [line.split(b" ", 5)[4] for line in file]
    # The kernel writes blanks and the like as three octal digits.
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


if TYPE_CHECKING:
    from trainwright.node.supervisor import protocol

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


class ContainerMount(NamedTuple):
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
    MountOverlay().made(_TERMINATION_LOG, folder=False)


def planned(pod: protocol.OpenPod, resolver: str | None, start: protocol.StartContainer) -> list[ContainerMount]:
    """All mounts of a container, parents first; of two at the same place the later one is seen.

    /tmp and what is in it come last: a bind of a folder takes the mounts on it along, so a volume that shows the
    machine's /tmp elsewhere would show the pod's own.
    """
    given = [_given(one) for one in start.get("mounts") or ()]
    taken = {one.target for one in given}
    return sorted([one for one in _usual(pod, resolver) if one.target not in taken] + given, key=_order)


def _given(one: protocol.Mount) -> ContainerMount:
    return ContainerMount(
        os.path.normpath(one["target"]), one.get("source"), one.get("tmpfs"), bool(one.get("readonly"))
    )


def _usual(pod: protocol.OpenPod, resolver: str | None) -> list[ContainerMount]:
    tmp, size = pod.get("tmp"), pod.get("shm")
    shared = os.path.join(os.path.dirname(tmp), "shm") if tmp else None
    usual = [ContainerMount(_SHM, shared, size or _machine_size())]
    files = {_HOSTS: pod.get("hosts"), _RESOLVER: resolver}
    usual += [ContainerMount(target, source) for target, source in files.items() if source]
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


def _private(tmp: str, keep: Iterable[str]) -> list[ContainerMount]:
    """A /tmp of the pod's own, with the folders in it that must be seen; unless that is all of /tmp."""
    kept = sorted({os.path.normpath(path) for path in keep})
    if _TMP in kept:
        return []
    below = [path for path in kept if path.startswith(f"{_TMP}/") and os.path.exists(path)]
    return [ContainerMount(_TMP, tmp), *(ContainerMount(path, path) for path in below)]


def _order(one: ContainerMount) -> tuple[bool, int]:
    return f"{one.target}/".startswith(f"{_TMP}/"), one.target.rstrip("/").count("/")


def share(plan: list[ContainerMount], known: set[str]) -> None:
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


def furnish(plan: list[ContainerMount], places: MountOverlay) -> None:
    """In the container's mount namespace: mount all of it. Raises Refused."""
    try:
        places.ground(one.target for one in plan)
    except OSError as error:
        raise StartRefused(NOT_POSSIBLE, f"cannot make a root in which all mounts have a place: {error}.") from None
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


def _opened(one: ContainerMount) -> int | None:
    if one.source is None:
        return None
    try:
        return os.open(one.source, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(one, error) from None


def _mount(one: ContainerMount, source: int | None, places: MountOverlay) -> None:
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


def _refusal(one: ContainerMount, error: OSError) -> StartRefused:
    what = f'"{one.source}"' if one.source and one.memory is None else "memory"
    where = f' ("{error.filename}")' if error.filename not in {None, one.target, one.source} else ""
    return StartRefused(NOT_POSSIBLE, f'cannot mount {what} at "{one.target}": {error.strerror or error}{where}.')
