# SPDX-License-Identifier: Apache-2.0
"""An older Trainwright beside this one: its source from the history, on the same Python and its packages.

Tests of the way from one version to the next and back start its operator and apply its definitions.
"""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from cluster_client import run
from cluster_plane import ControlPlane

ROOT = Path(__file__).parents[2]
#: The state before jobs of other controllers were left alone.
OLD = "a6f952f93ffc5536bc511bb5f59e110e6b0e9133"


class Version:
    """One Trainwright: what its command needs in the environment to be that one."""

    def __init__(self, name: str, source: Path) -> None:
        self.name = name
        self.env: Mapping[str, str] = {"PYTHONPATH": str(source)}
        found = self._python("-c", "import trainwright; print(trainwright.__file__)").strip()
        assert Path(found).is_relative_to(source), f"{name} is not what runs: {found} is not in {source}"

    def crds(self) -> str:
        """The definitions that it prints."""
        return self._python("-m", "trainwright", "crds")

    def install_crds(self, plane: ControlPlane) -> None:
        """Its definitions, in the place of whatever is there."""
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=self.crds())
        plane.kubectl("wait", "--for=condition=Established", "--timeout=100s", "crd", "--all")

    def _python(self, *words: str) -> str:
        assignments = [f"{key}={value}" for key, value in self.env.items()]
        return run(["env", *assignments, sys.executable, *words]).stdout


def this_version() -> Version:
    """The one under test."""
    return Version("new", ROOT / "src")


def old_version(folder: Path) -> Version:
    """The one before, unpacked into that folder."""
    git = [shutil.which("git") or "git", "-C", str(ROOT)]
    if subprocess.run([*git, "cat-file", "-e", f"{OLD}^{{commit}}"], capture_output=True, check=False).returncode:
        raise AssertionError(
            f"commit {OLD} is not in this clone, so that nothing shows that an upgrade loses no count; fetch the whole"
            " history with `git fetch --unshallow`"
        )
    packed = subprocess.run([*git, "archive", OLD, "src"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return Version("old", folder / "src")
