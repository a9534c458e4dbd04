# SPDX-License-Identifier: Apache-2.0
"""The Python that runs the tests, as the root folder of an image: what stands in for `python:…-slim` where nothing can
be pulled. `cluster_build` builds on it, and pods that ask for such an image get it.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pip

_APPLETS = ("sh", "cat", "echo", "env", "id", "ls", "mkdir", "sleep", "touch", "true")
_LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "config-*",
)
#: What compiled packages may ask for beside what Python does: every slim image has them.
_SYSTEM = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libgcc_s.so.1", "libstdc++.so.6")
#: So that what is run while building finds the network, as this machine does.
_SETTINGS = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
)


def python_root(root: Path, busybox: Path) -> None:
    """Fill an empty folder: Python and pip in /usr/local, a shell, and every library that these load."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = root / "usr" / "local" / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, symlinks=True, ignore=_ignored)
    shutil.copytree(Path(pip.__file__).parent, library / "site-packages" / "pip", ignore=_ignored)
    programs = root / "usr" / "local" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), programs / version)
    for name in ("python3", "python"):
        (programs / name).symlink_to(version)
    _shell(root, busybox)
    _libraries(root, [programs / version, *library.glob("lib-dynload/*.so")])
    _settings(root)


def _ignored(_folder: str, names: list[str]) -> set[str]:
    return set(shutil.ignore_patterns(*_LEFT_OUT, "__pycache__", "*.a")(_folder, names))


def _shell(root: Path, busybox: Path) -> None:
    (root / "bin").mkdir()
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in _APPLETS:
        (root / "bin" / name).symlink_to("busybox")


def _libraries(root: Path, files: Iterable[Path]) -> None:
    """All beside the C library, where the loader looks first, and the loader where programs expect it."""
    found = {path for file in files for path in _loaded(file)}
    home = next(path.parent for path in found if path.name.startswith("libc.so"))
    found |= {home / name for name in _SYSTEM if (home / name).exists()}
    for path in found:
        to = root / (path if path.name.startswith("ld-") else home / path.name).relative_to("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)


def _loaded(file: Path) -> set[Path]:
    """What `ldd` says; some have none."""
    said = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False).stdout  # noqa: S607 - as the system has it
    return {Path(word) for line in said.splitlines() for word in line.split() if word.startswith("/")}


def _settings(root: Path) -> None:
    for name in _SETTINGS:
        if Path(name).exists():
            to = root / name.lstrip("/")
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, to)
    for folder, mode in (("tmp", 0o1777), ("dev", 0o755), ("proc", 0o755), ("sys", 0o755)):
        (root / folder).mkdir()
        (root / folder).chmod(mode)
    os.mknod(root / "dev" / "null", 0o20666, os.makedev(1, 3))
