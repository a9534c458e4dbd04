# SPDX-License-Identifier: Apache-2.0
"""The operator, out of process, on a real control plane: jobs end as their rules say, and cost what was promised."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster_client import until
from cluster_plane import ControlPlane
from cluster_process import Process

from trainwright.crd.rights import RBAC, bindings, cluster_role, lease_role
from trainwright.kinds.registry import KINDS

pytest_plugins = ("cluster_fixtures",)
JOBS = "/apis/batch.tensorstack.dev/v1beta1/namespaces/{}/genericjobs"


@contextmanager
def operator(plane: ControlPlane, folder: Path, namespace: str, *words: str) -> Iterator[Process]:
    """One that looks after one namespace, with a lease there."""
    argv = [sys.executable, "-m", "trainwright", "operator", "--kubeconfig", str(plane.kubeconfig("operator"))]
    argv += ["--namespace", namespace, "--lease", f"{namespace}/operator", *words]
    process = Process("operator", argv, folder / "operator.log")
    process.start()
    try:
        yield process
    finally:
        process.kill()


def job(name: str, replicas: int, **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "command": ["true"]}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    spec = {
        "service": {"ports": [{"name": "http", "port": 80}]},
        "replicaSpecs": [{"type": "worker", "replicas": replicas, "template": template}],
    }
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def phase(plane: ControlPlane, namespace: str, name: str) -> str:
    found = plane.find(f"{JOBS.format(namespace)}/{name}") or {}
    return str((found.get("status") or {}).get("phase"))


@pytest.fixture
def rights(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """What the manifests grant, to the operator's user, and nothing else."""
    subject = {"kind": "User", "name": "operator", "apiGroup": RBAC}
    whole, own = bindings(namespace, subject)
    bodies = [cluster_role(KINDS), lease_role(namespace), own, whole]
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    mark = plane.mark()
    plane.kubectl("apply", "-f", "-", given=items)
    yield
    assert plane.audit(mark).where(user="operator", code=403) == ()


@pytest.mark.usefixtures("nodes", "rights")
def test_a_job_succeeds_within_its_budget_of_writes(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    with operator(plane, tmp_path, namespace) as process:
        # Before the first job everything is listed once.
        plane.kubectl("apply", "-n", namespace, "-f", "-", given=json.dumps(job("first", 1)))
        until(lambda: phase(plane, namespace, "first") == "Succeeded", f"it succeeds; the log is {process.log}")
        mark = plane.mark()
        plane.kubectl("apply", "-n", namespace, "-f", "-", given=json.dumps(job("four", 4)))
        until(lambda: phase(plane, namespace, "four") == "Succeeded", f"it succeeds; the log is {process.log}")
        calls = plane.audit(mark).where(user="operator", namespace=namespace)
        ours = [call for call in calls if not call.resource.startswith("leases")]
        assert process.end() == 0

    writes = [call for call in ours if call.verb in ("create", "update", "patch", "delete")]
    assert len(writes) <= 2 * 4 + 5, calls.writes.tally()
    assert calls.refused.tally() == {}
    assert [call for call in ours if call.verb in ("get", "list")] == []


@pytest.mark.usefixtures("nodes", "rights")
def test_kubectl_deletes_a_job_and_its_children_go(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    with operator(plane, tmp_path, namespace) as process:
        plane.kubectl("apply", "-n", namespace, "-f", "-", given=json.dumps(job("gone", 2)))
        until(lambda: phase(plane, namespace, "gone") == "Succeeded", f"it succeeds; the log is {process.log}")
        shown = plane.kubectl("get", "gj", "-n", namespace).stdout
        plane.kubectl("delete", "gj", "gone", "-n", namespace)
        until(lambda: not plane.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"], "the pods are gone")

    assert "gone" in shown
    assert "Succeeded" in shown


def enough(plane: ControlPlane, namespace: str, least: int) -> bool:
    items = plane.call("GET", JOBS.format(namespace))["items"]
    return len([one for one in items if (one.get("status") or {}).get("phase") == "Succeeded"]) >= least


@pytest.mark.usefixtures("nodes", "rights")
def test_killed_twice_it_makes_no_pod_twice_and_all_jobs_end(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    jobs = [job(f"job-{number}", 2) for number in range(60)]
    mark = plane.mark()
    quick = ("--lease-duration", "6", "--renew-deadline", "0.8", "--retry-period", "0.2")
    plane.kubectl(
        "create", "-n", namespace, "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": jobs})
    )
    for share in (18, 36, 60):
        with operator(plane, tmp_path, namespace, *quick):
            until(partial(enough, plane, namespace, share), f"{share} have succeeded")

    made = plane.audit(mark).where(user="operator", verb="create", resource="pods", namespace=namespace, code=201)
    assert len(made) == 120
    assert len({call.name for call in made}) == 120


@pytest.mark.usefixtures("nodes", "rights")
def test_another_takes_over_from_one_that_is_killed_or_stopped(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    quick = ("--lease-duration", "6", "--renew-deadline", "0.8", "--retry-period", "0.2")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/operator"

    def holder() -> str:
        return str(((plane.find(lease) or {}).get("spec") or {}).get("holderIdentity") or "")

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with operator(plane, tmp_path / "one", namespace, *quick) as one:
        first = until(holder, "somebody leads")
        with operator(plane, tmp_path / "two", namespace, *quick):
            one.signal(signal.SIGSTOP)
            until(lambda: holder() not in ("", first), "the other one leads", patience=20)
            mark = plane.mark()
            one.signal(signal.SIGCONT)
            plane.kubectl("apply", "-n", namespace, "-f", "-", given=json.dumps(job("after", 2)))
            until(lambda: phase(plane, namespace, "after") == "Succeeded", "the job succeeds under its new leader")
            pods = plane.audit(mark).where(user="operator", verb="create", resource="pods", namespace=namespace)
            until(lambda: not one.alive, "the one before has given up")

    assert pods.tally("code") == {201: 2}


def test_the_api_server_takes_the_manifests(plane: ControlPlane, namespace: str) -> None:
    argv = [sys.executable, "-m", "trainwright", "manifests", "--image", "example/trainwright:1", "-n", namespace]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    told = plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", given=text).stdout

    assert "deployment.apps/trainwright-operator serverside-applied (server dry run)" in told
    assert len(told.splitlines()) == 8 + len(KINDS)
