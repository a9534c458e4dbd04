# SPDX-License-Identifier: Apache-2.0
"""A cluster where another operator looks after TFJobs: what preflight shows of it, and that its job is left alone.

The other operator is played: a definition of the same name that is not ours, applied as its documents say, a job with
its status, pods and services, and a Deployment. Each test goes on where the one before it ended.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_client import until
from cluster_install import install_crds, trainwright
from cluster_nodes import fake_nodes
from cluster_operator import account, started
from cluster_plane import ControlPlane
from cluster_tfjobs import TFJobs, replicas, tfjob

from closed_crds import close_status, ledger_of
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.meta import ADOPT, KIND

Body = dict[str, Any]
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tfjobs.kubeflow.org"


def _object(**properties: Body) -> Body:
    return {"type": "object", "properties": properties}


TEXT = {"type": "string"}
STATUS = _object(
    conditions={"type": "array", "items": _object(type=TEXT, status=TEXT)},
    replicaStatuses={"type": "object", "additionalProperties": _object(active={"type": "integer"})},
)
SPEC = _object(tfReplicaSpecs={"type": "object", "x-kubernetes-preserve-unknown-fields": True}, theirs=TEXT)
#: A few fields of what training-operator installs. All that matters here is that `trainwright` is none of them.
THEIRS: Body = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "tfjobs.kubeflow.org",
        "annotations": {"controller-gen.kubebuilder.io/version": "v0.16.5"},
    },
    "spec": {
        "group": "kubeflow.org",
        "names": {"kind": "TFJob", "listKind": "TFJobList", "plural": "tfjobs", "singular": "tfjob"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": _object(spec=SPEC, status=STATUS)},
            }
        ],
    },
}
RUNS = {
    "conditions": [{"type": "Created", "status": "True"}, {"type": "Running", "status": "True"}],
    "replicaStatuses": {"Worker": {"active": 2}},
}


class SharedCluster(TFJobs):
    """The cluster, and what was there before us."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        super().__init__(plane, namespace)
        self.folder = folder
        _, self.config = account(plane, namespace, "newcomer")
        self.before: dict[str, str] = {}

    def preflight(self, *words: str, user: str = "admin") -> subprocess.CompletedProcess[str]:
        return trainwright("preflight", "--kubeconfig", str(self.plane.kubeconfig(user)), *words, check=False)

    def operator(self) -> Any:
        return started(self.config, self.folder / "operator.log", "--namespace", self.namespace, "--no-leader-elect")

    def uids(self) -> dict[str, str]:
        found = [("pods", self.children("theirs")), ("services", self.children("theirs", "services"))]
        return {f"{kind} {name}": one["metadata"]["uid"] for kind, some in found for name, one in some.items()}

    def begin(self) -> None:
        """A job that the other operator runs."""
        job = self.make(tfjob("theirs", Worker=replicas(2, runs="forever")))
        owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "theirs", "uid": job["metadata"]["uid"]}
        labels = {"training.kubeflow.org/job-name": "theirs", "training.kubeflow.org/operator-name": "tfjob-controller"}
        template = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]
        for index in range(2):
            meta: Body = {"name": f"theirs-worker-{index}", "labels": labels}
            meta["ownerReferences"] = [owner | {"controller": True, "blockOwnerDeletion": True}]
            pod = {"metadata": meta | {"annotations": template["metadata"]["annotations"]}, "spec": template["spec"]}
            self.plane.call("POST", f"{self.core}/pods", pod)
            spec = {"clusterIP": "None", "selector": labels}
            self.plane.call("POST", f"{self.core}/services", {"metadata": meta, "spec": spec})
        given = json.dumps({"status": RUNS})
        self.plane.kubectl(
            "-n", self.namespace, "patch", "tfjob", "theirs", "--subresource=status", "--type=merge",
            "--field-manager=training-operator.v1", "-p", given,
        )  # fmt: skip
        until(self._all_run, "its pods run")
        self.before = self.uids()

    def _all_run(self) -> bool:
        return [pod["status"].get("phase") for pod in self.children("theirs").values()] == ["Running"] * 2


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    folder, name = tmp_path_factory.mktemp("preflight"), "kubeflow"

    def first(plane: ControlPlane) -> None:
        plane.kubectl("apply", "-f", "-", given=json.dumps(THEIRS))
        plane.kubectl("wait", "--for=condition=Established", "--timeout=100s", "crd", "--all")

    with ControlPlane(folder / "plane", first=first) as plane, fake_nodes(plane, 2):
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        until(lambda: plane.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "pods can be made")
        shared = SharedCluster(plane, name, folder)
        shared.begin()
        yield shared


def _deployment(shared: SharedCluster) -> str:
    pod = {"containers": [{"name": "training-operator", "image": "example/training-operator:v1"}]}
    labels = {"control-plane": "kubeflow-training-operator"}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {**pod, "nodeSelector": {"no": "where"}}},
    }
    path = f"/apis/apps/v1/namespaces/{shared.namespace}/deployments"
    shared.plane.call("POST", path, {"metadata": {"name": "training-operator"}, "spec": spec})
    return f"{path}/training-operator"


def test_preflight_shows_what_an_install_would_meet(shared: SharedCluster) -> None:
    deployment = _deployment(shared)
    mark = shared.plane.mark()
    told, found = shared.preflight(), shared.preflight("-o", "json")
    writes = shared.plane.audit(mark).where(user="admin").writes
    shared.plane.call("DELETE", deployment)

    assert (told.returncode, told.stderr, found.returncode) == (1, "", 1)
    assert writes == ()
    assert (
        "1. tfjobs.kubeflow.org is another owner's (generated by controller-gen v0.16.5, applied by"
        " kubectl-client-side-apply), and an install replaces it; stored objects would lose spec.tfReplicaSpecs.*,"
        " spec.theirs."
    ) in told.stdout
    assert "2. 1 unfinished TFJob of another controller: kubeflow/theirs." in told.stdout
    assert "3. Deployment kubeflow/training-operator is a sign of another controller for TFJob" in told.stdout
    (one,) = [kind for kind in json.loads(found.stdout)["kinds"] if kind["kind"] == "TFJob"]
    assert (one["jobs"]["running"], one["jobs"]["unfinishedBy"]) == (1, {"training-operator.v1": 1})


def test_who_may_read_nothing_is_told_what_and_that_is_no_failure(shared: SharedCluster) -> None:
    done = shared.preflight(user="operator")

    assert (done.returncode, done.stderr) == (0, "")
    assert "list tfjobs.kubeflow.org" in done.stdout


def test_the_operator_does_not_start_with_their_definition(shared: SharedCluster) -> None:
    words = ["operator", "--kubeconfig", str(shared.config), "--no-leader-elect", "--kinds", "tfjob"]
    done = trainwright(*words, check=False)

    assert done.returncode == 2
    assert "tfjobs.kubeflow.org belongs to another operator: its status has no `trainwright`" in done.stderr


def test_nor_with_one_of_ours_that_would_prune_a_part_of_the_ledger(shared: SharedCluster) -> None:
    """kubectl replaces their definition without a word: that is why there is a preflight."""
    said = install_crds(shared.plane)
    assert "tfjobs.kubeflow.org serverside-applied" in said
    body = shared.plane.call("GET", DEFINITION)
    versions = body["spec"]["versions"]
    close_status(TFJOB, body)
    for version in versions:
        del ledger_of(version)["properties"]["roles"]["items"]["properties"]["holds"]
    shared.plane.call("PATCH", DEFINITION, {"spec": {"versions": versions}})

    words = ["operator", "--kubeconfig", str(shared.config), "--no-leader-elect", "--kinds", "tfjob"]
    done, told = trainwright(*words, check=False), shared.preflight()
    assert done.returncode == 2
    lost = "status.trainwright.roles[].holds in v1, status.trainwright.roles[].holds in v1alpha2"
    mend = "install ours with `trainwright crds tfjob | kubectl apply --server-side -f -`"
    assert f"tfjobs.kubeflow.org would drop or refuse parts of the durable state: {lost}; {mend}" in done.stderr
    assert told.returncode == 1
    assert "1. the operator would refuse to start: tfjobs.kubeflow.org would drop or refuse" in told.stdout

    shared.plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", given=trainwright("crds", "tfjob").stdout
    )
    assert "from this version" in shared.preflight("--kinds", "tfjob").stdout


def test_its_job_is_left_alone_and_that_is_told_once(shared: SharedCluster) -> None:
    status = shared.status("theirs")
    mark = shared.plane.mark()
    for _ in range(2):
        with shared.operator() as process:
            until(lambda: shared.events("theirs"), "people are told")
            shared.make(tfjob("ours", Worker=replicas(1)))
            until(lambda: "Succeeded" in shared.conditions("ours"), "another job, which is ours, succeeds")
            time.sleep(2)
            shared.plane.call("DELETE", f"{shared.path}/ours")
            assert process.end() == 0

    ((reason, message),) = shared.events("theirs")
    assert reason == "ManagedElsewhere"
    assert message.startswith("training-operator.v1 wrote the status of this unfinished job")
    assert f"`kubectl annotate tfjob.kubeflow.org theirs -n kubeflow {ADOPT}=true`" in message
    assert (shared.uids(), shared.status("theirs")) == (shared.before, status)
    user = f"system:serviceaccount:{shared.namespace}:newcomer"
    calls = shared.plane.audit(mark).where(user=user)
    assert calls.where(denied=True) == ()
    theirs = [call for call in calls.writes if call.name.startswith("theirs")]
    assert {call.resource for call in theirs} <= {"events"}
    log = (shared.folder / "operator.log").read_text()
    assert "reason=ManagedElsewhere" in log
    assert "Traceback" not in log


def test_once_it_is_handed_over_it_starts_anew_under_us(shared: SharedCluster) -> None:
    with shared.operator() as process:
        (_, message), *_ = shared.events("theirs")
        words = message.split("`")[1].split()
        assert words[:2] == ["kubectl", "annotate"]
        shared.plane.kubectl(*words[1:])
        until(lambda: "trainwright" in shared.status("theirs"), "it is ours")
        until(lambda: _ours(shared), f"its pods are ours: {shared.uids()}")
        shared.until("theirs", "Created", "Running")
        assert process.end() == 0

    assert set(shared.uids()) == set(shared.before)
    assert not set(shared.uids().values()) & set(shared.before.values())
    assert "restarts" not in json.dumps(shared.status("theirs")["trainwright"]["roles"])
    assert shared.preflight("--kinds", "tfjob").returncode == 0


def _ours(shared: SharedCluster) -> bool:
    pods = list(shared.children("theirs").values())
    labelled = [one for one in pods if KIND in one["metadata"]["labels"] and one["status"].get("phase") == "Running"]
    return len(labelled) == len(pods) == 2


def test_nobody_answers(shared: SharedCluster) -> None:
    config = shared.folder / "nowhere"
    config.write_text(shared.plane.kubeconfig().read_text().replace(shared.plane.server, "https://127.0.0.1:1"))
    argv = [sys.executable, "-m", "trainwright", "preflight", "--kubeconfig", str(config)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 1
