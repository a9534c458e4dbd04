# SPDX-License-Identifier: Apache-2.0
"""What docs/kubernetes.md tells people to do, done: every command of the page, in its order, on a real cluster.

The image is built as the Containerfile says. Real containers of a real kubelet run the Deployment exactly as it is
printed: two operators with the tokens of their service account, one of which leads.
"""

import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cluster_images as images
import pytest
import yaml
from cluster_binaries import MissingError
from cluster_bodies import pod as pod_body
from cluster_build import build, pack
from cluster_client import RefusedError, run, until
from cluster_container import real_node
from cluster_forward import service_address
from cluster_install import shell_environment
from cluster_packages import packages
from cluster_plane import ControlPlane

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh cluster\n(.*?)^```", re.MULTILINE | re.DOTALL)
ACCOUNT = "system:serviceaccount:trainwright:trainwright-operator"
JOBS = "/apis/batch.tensorstack.dev/v1beta1/namespaces/research/genericjobs"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/trainwright/leases/operator"


class InstalledCluster:
    """A cluster of one real node, and a shell in which kubectl and trainwright are at hand."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        #: The pods of a job, when it had just begun.
        self.before: dict[str, Any] = {}
        self._env = shell_environment(plane, folder)

    def session(self, block: str) -> str:
        """A block of the page, in one shell; what it printed."""
        words = ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(words, cwd=ROOT, env=self._env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}\n{self.seen()}"
        return done.stdout

    def load(self, file: Path) -> None:
        """Give an image to the node."""
        socket = self.plane.layout.data / "node-0" / "c.sock"
        words = [packages().ctr, f"--address={socket}", "--namespace=k8s.io", "image", "import"]
        run([*words, "--snapshotter=native", str(file)])

    def operators(self, namespace: str = "trainwright") -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/component=operator"
        found: list[dict[str, Any]] = self.plane.call("GET", path)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def replicas(self) -> dict[str, Any]:
        """Of all jobs in `research`: each pod's UID, by name, while it runs and was never restarted."""
        pods = self.plane.call("GET", "/api/v1/namespaces/research/pods")["items"]
        whole = [pod for pod in pods if pod["status"]["containerStatuses"][0]["restartCount"] == 0]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in whole if pod["status"]["phase"] == "Running"}

    def leader(self) -> str:
        return str(((self.plane.find(LEASE) or {}).get("spec") or {}).get("holderIdentity") or "")

    def seen(self) -> str:
        """For whoever reads why it failed."""
        asked = (("get", "events", "-A"), ("logs", "-n", "trainwright", "-l", "app.kubernetes.io/name=trainwright"))
        return "\n".join(self.plane.kubectl(*words, check=False).stdout[-4000:] for words in asked)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledCluster]:
    """Everything but the operator is there, and the images."""
    folder = tmp_path_factory.mktemp("install")
    try:
        with ControlPlane(folder / "plane") as plane, real_node(plane), service_address(plane):
            found = InstalledCluster(plane, folder)
            _load_images(found, folder)
            yield found
            # Pods that are made again as fast as they end would keep the node from ending.
            for path in ("/apis/apps/v1/namespaces/trainwright", "/apis/apps/v1/namespaces/research"):
                with suppress(RefusedError):
                    plane.call("DELETE", f"{path}/deployments/trainwright-operator")
    except MissingError as missing:
        pytest.skip(str(missing))


def _load_images(cluster: InstalledCluster, folder: Path) -> None:
    found = packages()
    (work := folder / "build").mkdir()
    stage = build(ROOT / "Containerfile", ROOT, work, found.busybox)
    names = sorted(set(re.findall(r"registry\.example/trainwright:[\d.]+", PAGE)))
    cluster.load(pack(stage, names, work / "image.tar"))
    (work / "busybox.tar").write_bytes(images.archive("docker.io/library/busybox:1.37", found.busybox, ["/bin/sh"]))
    cluster.load(work / "busybox.tar")
    shutil.rmtree(work)


def test_the_page_builds_the_image_that_it_installs() -> None:
    (block,) = re.findall(r"^```sh image\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    first = re.search(r"--image (\S+)", PAGE)

    assert first
    assert block.split() == f"podman build -t {first[1]} . podman push {first[1]}".split()


def test_no_other_page_has_commands_for_a_cluster() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]

    assert [page.name for page in pages if "```sh cluster" in page.read_text(encoding="utf-8")] == ["kubernetes.md"]


def test_every_command_of_the_page_works_in_its_order(cluster: InstalledCluster) -> None:
    checks = {
        "Install": two_run_and_one_leads,
        "The first job": nothing_was_refused,
        "Who may do what": a_long_job_begins,
        "Upgrade, and back": the_version_before_is_back,
        "When something fails": the_other_takes_over,
        "Uninstall": nothing_is_left,
    }
    done = []
    for section in PAGE.split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        for block in BLOCK.findall(section):
            cluster.session(block)
            done.append(block)
        if heading in checks:
            checks.pop(heading)(cluster)

    assert done == BLOCK.findall(PAGE)
    assert checks == {}


def two_run_and_one_leads(cluster: InstalledCluster) -> None:
    pods = cluster.operators()

    assert [pod["spec"]["nodeName"] for pod in pods] == ["node-0", "node-0"]
    assert all(status["ready"] for pod in pods for status in pod["status"]["containerStatuses"])
    assert cluster.leader().rpartition("_")[0] in {pod["metadata"]["name"] for pod in pods}
    for pod in pods:
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8080/metrics", timeout=10) as answer:
            assert b"trainwright_" in answer.read()
    with pytest.raises(RefusedError, match="violates PodSecurity"):
        cluster.plane.call("POST", "/api/v1/namespaces/trainwright/pods", pod_body("plain"))


def nothing_was_refused(cluster: InstalledCluster) -> None:
    """And everything was asked for with the token that its pods were given. What the job owned goes with it."""
    calls = cluster.plane.audit().where(user=ACCOUNT)

    assert calls.where(code=403).tally() == {}
    assert len(calls.where(verb="create", resource="pods", code=201)) == 4
    until(lambda: not cluster.plane.call("GET", "/api/v1/namespaces/default/pods")["items"], "its pods are gone")


def a_long_job_begins(cluster: InstalledCluster) -> None:
    """It will run through everything that happens to operators."""
    job = yaml.safe_load((ROOT / "examples" / "genericjob" / "basic.yaml").read_text(encoding="utf-8"))
    job["metadata"]["name"] = "long"
    job["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]["command"] = ["sleep", "3600"]
    cluster.plane.call("POST", JOBS, job)
    until(lambda: (cluster.plane.call("GET", f"{JOBS}/long").get("status") or {}).get("phase") == "Running", "it runs")
    cluster.before = cluster.replicas()


def the_version_before_is_back(cluster: InstalledCluster) -> None:
    images = {pod["spec"]["containers"][0]["image"] for pod in cluster.operators()}

    assert images == {"registry.example/trainwright:0.1.0"}


def the_other_takes_over(cluster: InstalledCluster) -> None:
    """And a job that runs has noticed nothing of all this."""
    before = until(cluster.leader, "one leads")

    cluster.plane.kubectl("delete", "pod", "-n", "trainwright", before.partition("_")[0], "--wait=false")

    until(lambda: cluster.leader() not in ("", before), "the other one leads")
    assert len(cluster.before) == 4
    assert cluster.replicas() == cluster.before


def nothing_is_left(cluster: InstalledCluster) -> None:
    kinds = "namespaces,crds,clusterroles,clusterrolebindings"
    left = cluster.plane.kubectl("get", kinds, "-o", "name").stdout.splitlines()

    assert [name for name in left if "trainwright" in name or "genericjob" in name] == []
