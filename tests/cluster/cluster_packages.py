# SPDX-License-Identifier: Apache-2.0
"""What a real node needs beside the kubelet: containerd, runc, network plugins, and a shell to put into an image.

Debian's packages, unpacked into the cache folder; nothing is installed. `cluster_container` uses them.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster_binaries import MissingError, alone, cache
from msgspec import Struct

PACKAGES = ("containerd", "runc", "containernetworking-plugins", "busybox-static")


class Packages(Struct, frozen=True):
    """The folder they were unpacked in."""

    root: Path

    @property
    def path(self) -> str:
        """Where programs look for each other."""
        ours = [str(self.root / "usr" / "bin"), str(self.root / "usr" / "sbin")]
        return os.pathsep.join([*ours, os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

    @property
    def containerd(self) -> str:
        """The daemon."""
        return str(self.root / "usr" / "bin" / "containerd")

    @property
    def ctr(self) -> str:
        """Its own client."""
        return str(self.root / "usr" / "bin" / "ctr")

    @property
    def plugins(self) -> Path:
        """Of the network."""
        return self.root / "usr" / "lib" / "cni"

    @property
    def busybox(self) -> Path:
        """A static one."""
        return self.root / "bin" / "busybox"


def packages() -> Packages:
    """Unpacked, downloaded before if need be; MissingError where that cannot be, or where a node could not run."""
    if os.geteuid() != 0:
        raise MissingError("a real node needs root: run these tests as root")
    folder = cache().parent / "packages"
    if not folder.exists():
        with alone(folder.parent, print):
            if not folder.exists():
                _fetch(folder)
    return Packages(folder)


def _fetch(folder: Path) -> None:
    if not shutil.which("apt-get"):
        raise MissingError(f"a real node needs {', '.join(PACKAGES)} as Debian has them, and here is no apt-get")
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        _run("apt-get", "-q", "download", *PACKAGES, cwd=work)
        for file in sorted(Path(work).glob("*.deb")):
            _run("dpkg-deb", "-x", file.name, "root", cwd=work)
        Path(work, "root").rename(folder)  # whole or not at all


def _run(*words: str, cwd: str) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "no word of why").splitlines()[-1]
        raise MissingError(f"a real node cannot be had: {' '.join(words)}: {last}; try apt-get update")
