# SPDX-License-Identifier: Apache-2.0
"""Putting Trainwright on a control plane as a user does it: its own command, piped into kubectl."""

import os
import subprocess
import sys
from pathlib import Path

from cluster_client import Body, run, until
from cluster_plane import ControlPlane

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install_crds(plane: ControlPlane) -> str:
    """All kinds, ready for use; what kubectl said."""
    crds = trainwright("crds").stdout
    said = plane.kubectl("apply", "--server-side", "-f", "-", given=crds).stdout
    await_crds(plane)
    return said


def await_crds(plane: ControlPlane) -> None:
    """Wait until the API server serves every CRD. `kubectl wait` fails on a CRD that has no conditions yet."""
    until(lambda: all(map(_is_established, plane.call("GET", _CRDS)["items"])), "all CRDs are established")


def _is_established(crd: Body) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def trainwright(*words: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return run([sys.executable, "-m", "trainwright", *words], given, check=check)


def shell_environment(plane: ControlPlane, folder: Path) -> dict[str, str]:
    """Variables of a shell in which kubectl and trainwright are at hand, and the kubeconfig is the administrator's."""
    (commands := folder / "bin").mkdir()
    for name, words in (("kubectl", plane.binaries["kubectl"]), ("trainwright", f"{sys.executable} -m trainwright")):
        (commands / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(folder), "KUBECONFIG": str(plane.kubeconfig())}
