# SPDX-License-Identifier: Apache-2.0
"""An older Trainwright beside this one: its source from the history, on the same Python and its packages.

Tests of the way from one version to the next and back start its operator and apply its definitions.
"""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from cluster_client import run, until
from cluster_jobs import Body, Jobs, job, role
from cluster_nodes import fake_nodes
from cluster_operator import Operator, account, started
from cluster_plane import ControlPlane

ROOT = Path(__file__).parents[2]
#: The state before jobs of other controllers were left alone.
OLD = "a6f952f93ffc5536bc511bb5f59e110e6b0e9133"
#: The last state in which jobs had no verdict and no history.
WITHOUT_VERDICT = "6b4a4fb6ec51701d20a00a80b2cbfbee37bfdb09"
#: The last state in which definitions described every field of a status, and the operator patched statuses.
CLOSED_STATUS = "70f9c4a51e7a969249062cf49c5e742b68584552"


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


def old_version(folder: Path, commit: str = OLD) -> Version:
    """The one of a commit, unpacked into that folder."""
    git = [shutil.which("git") or "git", "-C", str(ROOT)]
    if subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True, check=False).returncode:
        raise AssertionError(
            f"commit {commit} is not in this clone, so that nothing shows that an upgrade loses no count; fetch the"
            " whole history with `git fetch --unshallow`"
        )
    packed = subprocess.run([*git, "archive", commit, "src"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return Version("old", folder / "src")


class UpgradeCluster(NamedTuple):
    """A control plane with nodes, and two versions."""

    plane: ControlPlane
    old: Version
    new: Version
    config: Path
    logs: Path
    namespace: str
    #: The user name of all operators here.
    user: str

    @contextmanager
    def operator(self, version: Version, definitions: Version | None = None) -> Iterator[Operator]:
        """Its definitions or those, then its operator, until the end of the block: then it is killed (SIGKILL)."""
        (definitions or version).install_crds(self.plane)
        words = ("--namespace", self.namespace, "--no-leader-elect")
        log = self.logs / f"{version.name}.log"
        with started(self.config, log, *words, env=version.env) as process:
            yield process
            assert process.alive, process.tail()
        assert "Traceback" not in log.read_text()


class LongJob:
    """A GenericJob of two replicas that run until the test ends them."""

    def __init__(self, cluster: UpgradeCluster, name: str) -> None:
        self._cluster, self.name, self.jobs = cluster, name, Jobs(cluster.plane, cluster.namespace)
        self.jobs.make(job(name, role(replicas=2, limit=9, runs="forever")))

    def ledger(self) -> Body:
        found: Body = self.jobs.status(self.name).get("trainwright") or {}
        return found

    def until(self, phase: str, restarts: int = 0) -> "LongJob":
        """Wait for this phase after so many restarts."""

        def there() -> bool:
            found = self.ledger()
            counts = [sum((one.get("restarts") or {}).values()) for one in found.get("roles") or ()]
            return (found.get("phase"), sum(counts)) == (phase, restarts)

        until(there, f"{self.name} is {phase} after {restarts} restarts")
        return self

    def ends(self, index: int, code: int) -> None:
        """The container of a replica ends."""
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        told = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [told]}
        path = f"{self.jobs.pods_path}/{self.name}-worker-{index}/status"
        self._cluster.plane.call("PATCH", path, {"status": status})

    def restarts(self, number: int) -> None:
        """Replica 0 fails and is made again; this is restart `number`."""
        self.ends(0, 1)
        self.until("Running", number)

    def succeeds(self, restarts: int = 0) -> None:
        """Both replicas succeed, after so many restarts."""
        for index in range(2):
            self.ends(index, 0)
        self.until("Succeeded", restarts)

    def pods(self) -> dict[str, str]:
        """The UIDs of its pods."""
        return {name: pod["metadata"]["uid"] for name, pod in self.jobs.pods(self.name).items()}

    def writes(self, mark: int) -> int:
        """How often operators have written its status since then."""
        calls = self._cluster.plane.audit(mark).where(user=self._cluster.user, name=self.name)
        return len(calls.writes)


@contextmanager
def upgrade_cluster(folder: Path, namespace: str, commit: str = OLD) -> Iterator[UpgradeCluster]:
    """A cluster for this version and that of a commit, with two fake nodes and an account for operators."""
    old, new = old_version(folder / "old", commit), this_version()
    with ControlPlane(folder / "plane", first=old.install_crds) as plane, fake_nodes(plane, 2):
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        until(lambda: plane.find(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"), "pods can be made")
        user, config = account(plane, namespace, "operator")
        yield UpgradeCluster(plane, old, new, config, folder, namespace, user)
