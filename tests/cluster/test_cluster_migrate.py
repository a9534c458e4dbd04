# SPDX-License-Identifier: Apache-2.0
"""From the real training-operator 1.9.4 to ours on one control plane, as docs/migrate.md says.

Each test is a step and goes on where the one before it ended. Jobs finish under the old operator and keep their status
byte for byte; others are held, and run under ours.
"""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import cluster_training_operator as old
import pytest
from cluster_client import until
from cluster_install import shell_environment, trainwright
from cluster_kubeflow import ALL_KINDS, KubeflowJobs, id_of, kubeflow_job
from cluster_layout import free_ports
from cluster_nodes import fake_nodes
from cluster_operator import account, started
from cluster_plane import ControlPlane
from prometheus_client.parser import text_string_to_metric_families

from trainwright.crd.hold import HOLD_NAME

Body = dict[str, Any]
PAGE = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh migrate\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMESPACE = "research"
SUSPENDED: Body = {"runPolicy": {"suspend": True}}
KINDS = tuple(ALL_KINDS)
#: Metrics of training-operator that do not have its name.
PLAIN_METRICS = ("created_pod", "deleted_pod", "failed_pods", "succeeded_service_creation", "failed_service_creation")


def named(kind: str, name: str) -> str:
    """The name of a job. Jobs of two kinds with one name would share the names of their pods."""
    return f"{name}-{kind}"


class Migration:
    """The cluster, the old operator, and what is known about its jobs."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.jobs = {kind: KubeflowJobs(plane, NAMESPACE, kind) for kind in KINDS}
        _, self.config = account(plane, NAMESPACE, "newcomer")
        self.stack = ExitStack()
        self.old = self.stack.enter_context(
            old.running(plane, folder / "old.log", [kind.removesuffix("s") for kind in KINDS])
        )
        self.shell = shell_environment(plane, folder)
        #: The finished jobs as the API server returned them before the switch.
        self.finished: dict[str, str] = {}
        self.metrics: dict[str, tuple[str, set[str], set[str]]] = {}

    def preflight(self, *words: str) -> subprocess.CompletedProcess[str]:
        return trainwright("preflight", "--kubeconfig", str(self.plane.kubeconfig()), *words, check=False)

    def step(self, number: int) -> str:
        """What preflight says about a step of the migration."""
        lines = [line.strip() for line in self.preflight().stdout.partition("(docs/migrate.md):")[2].splitlines()]
        (found,) = [line for line in lines if line.startswith(f"{number}. ")]
        return found

    def run(self, heading: str) -> str:
        """Run the commands of a section of the page in a shell; what they said."""
        (section,) = [one for one in PAGE.removeprefix("# ").split("\n## ") if one.startswith(heading)]
        blocks = BLOCK.findall(section)
        assert blocks, f"{heading} has no commands"
        words = ["sh", "-euc", "\n".join(blocks)]
        done = subprocess.run(words, env=self.shell, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make(self, kind: str, name: str, spec: Body | None = None, **script: str) -> None:
        runs, exits = script.get("runs", "0.2"), script.get("exits", "0")
        self.jobs[kind].make(kubeflow_job(kind, named(kind, name), spec, runs, exits))

    def status(self, kind: str, name: str) -> Body:
        return self.jobs[kind].status(named(kind, name))

    def resume(self, kind: str, name: str) -> subprocess.CompletedProcess[str]:
        """Try to resume a suspended job."""
        change = json.dumps({"spec": {"runPolicy": {"suspend": False}}})
        words = (
            "-n",
            NAMESPACE,
            "patch",
            f"{kind}.kubeflow.org",
            named(kind, name),
            "--type=merge",
            "-p",
            change,
        )
        return self.plane.kubectl(*words, check=False)

    def until(self, kind: str, name: str, condition: str) -> None:
        jobs, full = self.jobs[kind], named(kind, name)
        until(lambda: condition in jobs.conditions(full), f"{full} is {condition}: {jobs.status(full)}")

    def stored(self) -> dict[str, str]:
        """The status of each finished job as text, without the part that only Trainwright writes."""
        found = {}
        for kind, jobs in self.jobs.items():
            for name in ("done", "failed", "long"):
                if body := jobs.find(named(kind, name)):
                    status = {field: part for field, part in body["status"].items() if field != "trainwright"}
                    found[f"{kind} {name}"] = json.dumps([status, body["metadata"]["uid"]], sort_keys=True)
        return found

    def ends(self, kind: str, name: str) -> None:
        """The containers of its pods end with success."""
        for pod in self.jobs[kind].children(named(kind, name)).values():
            (told,) = pod["status"]["containerStatuses"]
            state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            status = {"phase": "Succeeded", "containerStatuses": [told | {"ready": False, "state": state}]}
            path = f"{self.jobs[kind].core}/pods/{pod['metadata']['name']}/status"
            self.plane.call("PATCH", path, {"status": status})


def metrics(address: str) -> dict[str, tuple[str, set[str], set[str]]]:
    """The metrics of a training-operator: type, names of labels, and frameworks by name."""
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        one.name: (
            one.type,
            {label for sample in one.samples for label in sample.labels},
            {sample.labels.get("framework", "") for sample in one.samples},
        )
        for one in families
        if one.name.startswith("training_operator_") or one.name.startswith(PLAIN_METRICS)
    }


@pytest.fixture(scope="module")
def migration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    folder = tmp_path_factory.mktemp("migrate")
    with ControlPlane(folder / "plane", first=old.install_crds) as plane, fake_nodes(plane, 2):
        old.prepare(plane)
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        until(lambda: plane.find(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"), "pods can be made")
        plane.call("POST", f"/apis/apps/v1/namespaces/{old.NAMESPACE}/deployments", _deployment())
        found = Migration(plane, folder)
        with found.stack:
            yield found


def _deployment() -> Body:
    """The Deployment that a user sees; the program itself runs beside the cluster."""
    labels = {"control-plane": "kubeflow-training-operator"}
    pod = {"containers": [{"name": old.NAME, "image": f"kubeflow/training-operator:{old.version()}"}]}
    template = {"metadata": {"labels": labels}, "spec": {**pod, "nodeSelector": {"no": "where"}}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": old.NAME}, "spec": spec}


def test_preflight_shows_jobs_by_namespace_and_what_to_do(migration: Migration) -> None:
    for kind in KINDS:
        migration.make(kind, "done")
        migration.make(kind, "suspended", SUSPENDED)
    migration.make("tfjobs", "failed", exits="1")
    migration.make("tfjobs", "long", runs="forever")
    for kind in KINDS:
        migration.until(kind, "done", "Succeeded")
        migration.until(kind, "suspended", "Suspended")
    migration.until("tfjobs", "failed", "Failed")
    migration.until("tfjobs", "long", "Running")
    assert migration.run("From Kubeflow's training-operator").endswith("not yet\n")
    done, found = migration.preflight(), json.loads(migration.preflight("-o", "json").stdout)

    assert (done.returncode, done.stderr) == (1, "")
    theirs = {one["id"]: one for one in found["kinds"] if one["id"] in map(id_of, KINDS)}
    counts = {kind: theirs[id_of(kind)]["jobs"]["namespaces"][NAMESPACE] for kind in KINDS}
    assert counts["tfjobs"] == {"finished": 2, "foreign": 1, "suspended": 1, "new": 0, "other": 0}
    assert counts["jaxjobs"] == {"finished": 1, "foreign": 0, "suspended": 1, "new": 0, "other": 0}
    assert {one["definition"]["origin"] for one in theirs.values()} == {"other"}
    assert [step["name"] for step in found["steps"] if not step["action"]] == ["Release held jobs"]
    assert "TFJob: 1 in research" in migration.step(2)
    assert f"scale deployment {old.NAME} --replicas=0" in migration.step(3)


def test_the_hold_keeps_new_jobs_from_starting(migration: Migration) -> None:
    migration.run("1. Hold new jobs")
    refused = "jobs are held while the operator of this kind is replaced"

    def is_refused(body: Body) -> bool:
        """Whether the API server refuses a new job. It needs a moment to load a policy."""
        words = ("-n", NAMESPACE, "create", "--dry-run=server", "-f", "-")
        return refused in migration.plane.kubectl(*words, given=json.dumps(body), check=False).stderr

    for kind in KINDS:
        until(partial(is_refused, kubeflow_job(kind, "new")), f"a new {kind} is refused")
        migration.make(kind, "held", SUSPENDED)
        migration.until(kind, "held", "Suspended")
        assert refused in migration.resume(kind, "held").stderr
    edit = json.dumps({"metadata": {"annotations": {"note": "this job runs, so people may edit it"}}})
    migration.plane.kubectl("-n", NAMESPACE, "patch", "tfjobs", named("tfjobs", "long"), "--type=merge", "-p", edit)
    assert migration.step(1) == "1. Hold new jobs: done"


def test_it_is_safe_once_running_jobs_have_ended_and_the_operator_is_stopped(migration: Migration) -> None:
    migration.ends("tfjobs", "long")
    migration.until("tfjobs", "long", "Succeeded")
    assert migration.step(2) == "2. Let running jobs end: done"
    assert migration.preflight().returncode == 1

    migration.run("3. Stop the old operator")
    migration.metrics = metrics(migration.old.metrics)
    assert migration.old.end() is not None
    migration.finished = migration.stored()
    for kind in KINDS:
        migration.make(kind, "late", SUSPENDED)
    done = migration.preflight()

    assert done.returncode == 0, done.stdout
    assert migration.step(3) == "3. Stop the other operator: done"
    assert len(migration.finished) == len(KINDS) + 2


def test_the_definitions_are_replaced_and_ours_runs_what_was_held(migration: Migration) -> None:
    migration.run("4. Replace the definitions")
    assert migration.stored() == migration.finished
    migration.run("5. Start Trainwright")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    words = ("--namespace", NAMESPACE, "--no-leader-elect", "--kubeflow-metrics", "--address", address)
    with started(migration.config, migration.folder / "ours.log", *words) as ours:
        for kind in KINDS:
            until(partial(_is_ours, migration, kind, "late"), f"the {kind} that came last is ours")
        migration.run("6. Release the hold")
        until(lambda: migration.preflight().returncode == 0, "the hold is over")
        for kind in KINDS:
            for name in ("held", "late", "suspended"):
                until(partial(_resumed, migration, kind, name), f"{kind} {name} may be resumed")
        for kind in KINDS:
            for name in ("held", "late", "suspended"):
                migration.until(kind, name, "Succeeded")
        migration.make("tfjobs", "bad", exits="1")
        migration.until("tfjobs", "bad", "Failed")
        told = metrics(address)
        assert ours.end() == 0

    assert migration.stored() == migration.finished
    assert len(migration.finished) == len(KINDS) + 2
    for kind in KINDS:
        assert migration.status(kind, "done")["trainwright"]["outcome"]["reason"] == "External"
        assert migration.status(kind, "held")["trainwright"]["outcome"]["result"] == "Succeeded"
    assert migration.metrics, "the old operator has metrics"
    assert {name: told.get(name) for name in migration.metrics} == migration.metrics
    log = (migration.folder / "ours.log").read_text()
    assert "Traceback" not in log


def _is_ours(migration: Migration, kind: str, name: str) -> bool:
    return "trainwright" in migration.status(kind, name)


def _resumed(migration: Migration, kind: str, name: str) -> bool:
    return migration.resume(kind, name).returncode == 0


def test_nothing_is_left_to_do(migration: Migration) -> None:
    done = migration.preflight("-o", "json")

    assert done.returncode == 0
    assert (json.loads(done.stdout)["steps"], json.loads(done.stdout)["held"]) == ([], False)
    found = migration.plane.kubectl("get", "validatingadmissionpolicy", "-o", "name").stdout
    assert HOLD_NAME not in found
