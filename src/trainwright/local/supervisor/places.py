# SPDX-License-Identifier: Apache-2.0
"""Mount points that the host does not have, made without touching the host. `mounts` asks for each place in turn.

Below a volume or the working directory the folder is simply made, as container engines do. Anywhere else the deepest
folder that exists gets a cover: new entries go into memory or the pod's folder, and its folders stay the host's.
"""

import errno
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from trainwright.local.supervisor import kernel

_HIDDEN = ".host"
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Entry(NamedTuple):
    """Something in a folder, held open so that it can be shown again once the folder is covered."""

    name: str
    handle: int
    mode: int
    link: str


class Places:
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

    def _replace_root(self, entries: list[Entry]) -> None:
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

    def _covered(self, base: str, entries: list[Entry]) -> None:
        """It is ours now; the folders in it are still the host's."""
        self._own[base] = True
        for entry in entries:
            os.close(entry.handle)
            if stat.S_ISDIR(entry.mode):
                self._own.setdefault(os.path.join(base, entry.name), False)


def _layer(base: str, entries: list[Entry]) -> None:
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


def _mirror(base: str, folder: int, entries: list[Entry]) -> None:
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


def _is_device(entry: Entry) -> bool:
    return stat.S_ISCHR(entry.mode) or stat.S_ISBLK(entry.mode)


def _bind(handle: int, path: str) -> None:
    kernel.mount(f"/proc/self/fd/{handle}", path, None, kernel.BIND | kernel.REC)


def _entries(base: str) -> list[Entry]:
    entries = []
    for name in sorted(os.listdir(base)):
        try:
            handle = os.open(os.path.join(base, name), _HANDLE)
        except FileNotFoundError:
            continue  # removed by somebody in this moment
        mode = os.fstat(handle).st_mode
        entries.append(Entry(name, handle, mode, os.readlink("", dir_fd=handle) if stat.S_ISLNK(mode) else ""))
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
