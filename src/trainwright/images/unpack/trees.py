# SPDX-License-Identifier: Apache-2.0
"""Removal of unpacked layers, also of folders that their owner may not read or change."""

import os

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> None:
    """Remove a folder and everything in it. A folder that does not exist is no error. Raises OSError."""
    folder = os.open(os.path.dirname(path) or ".", _FOLDER & ~os.O_NOFOLLOW)
    try:
        _remove(folder, os.path.basename(path))
    except FileNotFoundError:
        return
    finally:
        os.close(folder)


def _remove(folder: int, name: str) -> None:
    try:
        fd = os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)  # not a link: opening a link fails in another way
        fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700 and os.geteuid():
            os.fchmod(fd, 0o700)
        with os.scandir(fd) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for child, is_folder in found:
            if is_folder:
                _remove(fd, child)
            else:
                os.unlink(child, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=folder)
