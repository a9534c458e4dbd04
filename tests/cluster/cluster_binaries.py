# SPDX-License-Identifier: Apache-2.0
"""Where the programs of a real control plane are: given, kept from before, or built once from the modules in `tools`.

`cluster_plane` asks for each by name. `KUBEBUILDER_ASSETS` wins, wholly; then the cache folder; then Go builds what is
missing there, one process at a time. Run as a program it does that for all of them, which is what a CI image may want.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MODULES = Path(__file__).resolve().parents[2] / "tools" / "kubernetes"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler")
#: Only a real node needs it.
NODE = ("kubelet",)
_ETCD = "go.etcd.io/etcd/server/v3"
_STAMP = "k8s.io/component-base/version"
_ENABLE = f"set KUBEBUILDER_ASSETS to a folder with {', '.join(CONTROL_PLANE)}"


class MissingError(Exception):
    """A program cannot be had here: one line, why and how to get it."""


def version() -> str:
    """The Kubernetes that is tested against, as the module in `tools` says."""
    found = re.search(r"^require k8s\.io/kubernetes v(\S+)$", (MODULES / "go.mod").read_text(), re.MULTILINE)
    assert found, f"{MODULES / 'go.mod'} does not require k8s.io/kubernetes"
    return found[1]


def cache() -> Path:
    """The folder that keeps what was built."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "trainwright" / "kubernetes" / version()


def find(*names: str, tell: Callable[[str], None] = print) -> dict[str, str]:
    """The path of each, built first if need be; MissingError if that cannot be. `tell` is given a line per build."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if given:
        return {name: _given(Path(given), name) for name in names}
    folder = cache()
    if not all((folder / name).exists() for name in names):
        with alone(folder, tell):
            for name in names:  # another process may have built it while this one waited
                if not (folder / name).exists():
                    _build(name, folder, tell)
    return {name: str(folder / name) for name in names}


def _given(folder: Path, name: str) -> str:
    if not os.access(folder / name, os.X_OK):
        raise MissingError(f"KUBEBUILDER_ASSETS={folder} has no program {name}; unset it to have it built with Go")
    return str(folder / name)


@contextmanager
def alone(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Two processes do not work there at once; the kernel lets go of the lock whatever becomes of its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"another process works in {folder}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: str, folder: Path, tell: Callable[[str], None]) -> None:
    go = shutil.which("go")
    if not go:
        raise MissingError(f"no {name} in {folder}, and no Go to build it: install Go 1.26 or later, or {_ENABLE}")
    tell(f"building {name} (Kubernetes {version()}) in {folder}: only once, but it takes minutes")
    began = time.monotonic()
    part = folder / f".{name}.part"
    words = [go, "build", "-buildvcs=false", "-ldflags", _flags(name), "-o", str(part), _package(name)]
    how = {"CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(words, cwd=_module(name), env=os.environ | how, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise MissingError(f"Go could not build {name}: {last}; or {_ENABLE}")
    part.rename(folder / name)  # whole or not at all
    tell(f"built {name} in {time.monotonic() - began:.0f} s")


def _module(name: str) -> Path:
    return MODULES / "etcd" if name == "etcd" else MODULES


def _package(name: str) -> str:
    return _ETCD if name == "etcd" else f"k8s.io/kubernetes/cmd/{name}"


def _flags(name: str) -> str:
    """Smaller; and without its version an API server refuses its own features."""
    major, minor, _ = version().split(".")
    stamps = {"gitVersion": f"v{version()}", "gitMajor": major, "gitMinor": minor}
    stamped = [] if name == "etcd" else [f"-X {_STAMP}.{key}={value}" for key, value in stamps.items()]
    return " ".join(["-s -w", *stamped])


def main() -> int:
    """Have all of them, or say why not: a failure where `CI=true`, since there a skipped tier is one."""
    try:
        for path in find(*CONTROL_PLANE, *NODE).values():
            print(path)
    except MissingError as missing:
        print(f"SKIPPED: {missing}", file=sys.stderr)
        return int(os.environ.get("CI") == "true")
    return 0


if __name__ == "__main__":
    sys.exit(main())
