# SPDX-License-Identifier: Apache-2.0
"""The Go original of TFJob, training-operator, prepared to run in turn with ours.

`TRAINING_OPERATOR_BIN` names its program. `cluster_training_operator` prepares the control plane for it.
"""

import os
import shutil
import subprocess
from pathlib import Path

import cluster_training_operator as training_operator
from cluster_binaries import MissingError
from cluster_install import await_crds
from cluster_plane import ControlPlane
from cluster_training_operator import ENVIRONMENT, MODULE, NAME, USER, certify, prepare

__all__ = ["ENVIRONMENT", "NAME", "certify", "prepare"]
#: Its limits: the highest speed, the limits of the case `matched`, its defaults.
MODES = {
    "open": ["--kube-api-qps=1000", "--kube-api-burst=1000", "--controller-threads=8"],
    "matched": ["--kube-api-qps=50", "--kube-api-burst=100", "--controller-threads=8"],
    "shipped": [],
}
#: Its user name at the API server.
USERS = {"peer": USER}


def program() -> str | None:
    """Return the path of its program, or None if it is not installed."""
    return os.environ.get("TRAINING_OPERATOR_BIN")


def words(plane: ControlPlane, mode: str = "open") -> list[str]:
    """Return its command line: one kind, and ports that are not in use."""
    return [*training_operator.words(plane, str(program()), ["tfjob"]), *MODES[mode]]


def version() -> str:
    """Return the version that is recorded in its program."""
    lines = [line.split() for line in _go("version", "-m", str(program())).splitlines()]
    found = [words[2] for words in lines if words[:1] in (["mod"], ["dep"]) and words[1] == MODULE]
    return found[0] if found else "of an unknown version"


def check() -> None:
    """Raise MissingError, with one line, if its program or its CRDs are not there."""
    path = program()
    if not path:
        raise MissingError("TRAINING_OPERATOR_BIN is not set; `python bench/operator --help` says how to install it")
    if not os.access(path, os.X_OK):
        raise MissingError(f"TRAINING_OPERATOR_BIN={path} is not a program")
    crd()


def crd() -> Path:
    """Return the file of its TFJob CRD, from TRAINING_OPERATOR_CRDS or from Go's module cache."""
    given = os.environ.get("TRAINING_OPERATOR_CRDS")
    cache = Path(_go("env", "GOMODCACHE").strip() or ".")
    file = Path(given or cache / f"{MODULE}@{version()}" / "manifests" / "base" / "crds") / "kubeflow.org_tfjobs.yaml"
    if not file.exists():
        raise MissingError(f"{file} does not exist; set TRAINING_OPERATOR_CRDS to the folder of the peer's CRDs")
    return file


def install_crd(plane: ControlPlane) -> None:
    """Install its TFJob CRD and wait until the API server serves it."""
    plane.kubectl("apply", "--server-side", "-f", str(crd()))
    await_crds(plane)


def _go(*words: str) -> str:
    """Return the output of a go command; nothing if there is no Go."""
    go = shutil.which("go")
    if not go:
        return ""
    return subprocess.run([go, *words], capture_output=True, text=True, check=False).stdout  # noqa: S603 - only reads
