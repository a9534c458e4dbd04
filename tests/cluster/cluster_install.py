# SPDX-License-Identifier: Apache-2.0
"""Putting Trainwright on a control plane as a user does it: its own command, piped into kubectl."""

import subprocess
import sys

from cluster_client import run
from cluster_plane import ControlPlane


def install_crds(plane: ControlPlane) -> str:
    """All kinds, ready for use; what kubectl said."""
    crds = trainwright("crds").stdout
    said = plane.kubectl("apply", "--server-side", "-f", "-", given=crds).stdout
    plane.kubectl("wait", "--for=condition=Established", "--timeout=20s", "crd", "--all")
    return said


def trainwright(*words: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return run([sys.executable, "-m", "trainwright", *words], given, check=check)
