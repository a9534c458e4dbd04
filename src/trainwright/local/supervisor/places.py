# SPDX-License-Identifier: Apache-2.0
"""Mount points that the host does not have, made without touching the host. `mounts` asks for each place in turn.

Below a volume or the working directory the folder is simply made, as container engines do. Anywhere else the deepest
folder that exists gets a cover: new entries go into memory or the pod's folder, and its folders stay the host's.
"""
# ruff: noqa: PTH - pathlib would cost the supervisor a tenth of its start

import errno
import os
import stat
from typing import NamedTuple

from trainwright.local.supervisor import kernel

_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Entry(NamedTuple):
    """Something in a folder, held open so that it can be shown again once the folder is covered."""

    name: str
    handle: int
    mode: int
    link: str


class Places:
    """The tree of the mount namespace that the caller is in. `root`: an empty folder for a new root, if needed."""

    def __init__(self, root: str | None, working: str | None) -> None:
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
            self._cover(base)
        os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
        if not folder:
            _touch(path)
        return path

    def _ours(self, base: str) -> bool:
        while base not in self._own:
            base = os.path.dirname(base)
        return self._own[base]

    def _cover(self, base: str) -> None:
        entries = _entries(base)
        if base == "/":
            self._replace_root(entries)
        else:
            _layer(base, entries)
        for entry in entries:
            os.close(entry.handle)
            if stat.S_ISDIR(entry.mode):
                self._own.setdefault(os.path.join(base, entry.name), False)
        self._own[base] = True

    def _replace_root(self, entries: list[Entry]) -> None:
        """A new root with everything that is in the old one. Where it lies is hidden, or it would contain itself."""
        if self._root is None:
            root = next(f"/{one.name}" for one in entries if stat.S_ISDIR(one.mode) and one.name != "proc")
            kernel.mount("tmpfs", root, "tmpfs", 0, "mode=755")
        else:
            root = self._root
            os.makedirs(root, exist_ok=True)
            kernel.mount(root, root, None, kernel.BIND)
        kernel.mount("none", root, None, kernel.UNBINDABLE)
        _mirror(root, entries)
        kernel.pivot(root)


def _layer(base: str, entries: list[Entry]) -> None:
    """An overlay, so that files in it can still be replaced; where the kernel has none, all entries one by one."""
    lower = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mounted = _mounted(base)
    mode = stat.S_IMODE(os.fstat(lower).st_mode)
    kernel.mount("tmpfs", base, "tmpfs", 0, f"mode={mode:o}")
    try:
        _overlay(base, lower, mode)
    except OSError:
        _mirror(base, entries)
    else:
        for entry in entries:
            if stat.S_ISDIR(entry.mode) or entry.name in mounted:
                _bind(entry, base)
    finally:
        os.close(lower)


def _overlay(base: str, lower: int, mode: int) -> None:
    """Changes are kept beneath, in memory. Descriptors stand for the folders: paths would need their commas escaped."""
    handles = {"lowerdir": lower}
    for name in ("upperdir", "workdir"):
        path = os.path.join(base, name)
        os.mkdir(path)
        os.chmod(path, mode)
        handles[name] = os.open(path, _HANDLE)
    options = ",".join(f"{name}=/proc/self/fd/{handle}" for name, handle in handles.items())
    try:
        kernel.mount("overlay", base, "overlay", 0, f"{options},userxattr")
    except OSError:
        os.rmdir(os.path.join(base, "upperdir"))
        os.rmdir(os.path.join(base, "workdir"))
        raise
    finally:
        os.close(handles["upperdir"])
        os.close(handles["workdir"])


def _mirror(base: str, entries: list[Entry]) -> None:
    for entry in entries:
        path = os.path.join(base, entry.name)
        if stat.S_ISLNK(entry.mode):
            os.symlink(entry.link, path)
            continue
        if stat.S_ISDIR(entry.mode):
            os.mkdir(path)
        else:
            _touch(path)
        _bind(entry, base)


def _bind(entry: Entry, base: str) -> None:
    flags = kernel.BIND | kernel.REC
    kernel.mount(f"/proc/self/fd/{entry.handle}", os.path.join(base, entry.name), None, flags)


def _entries(base: str) -> list[Entry]:
    entries = []
    for name in sorted(os.listdir(base)):
        handle = os.open(os.path.join(base, name), _HANDLE)
        mode = os.fstat(handle).st_mode
        entries.append(Entry(name, handle, mode, os.readlink("", dir_fd=handle) if stat.S_ISLNK(mode) else ""))
    return entries


def _mounted(base: str) -> set[str]:
    """The names in a folder at which something is mounted."""
    with open("/proc/self/mountinfo", "rb") as file:
        points = [line.split(b" ", 5)[4] for line in file]
    # The kernel writes blanks and the like as three octal digits.
    paths = [os.fsdecode(point.decode("unicode_escape").encode("latin-1")) for point in points]
    return {os.path.basename(path) for path in paths if os.path.dirname(path) == base}


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _check(path: str, *, folder: bool) -> None:
    if os.path.isdir(path) != folder:
        text = "it is a file on this machine, not a folder" if folder else "it is a folder on this machine, not a file"
        raise OSError(errno.ENOTDIR if folder else errno.EISDIR, text, path)
