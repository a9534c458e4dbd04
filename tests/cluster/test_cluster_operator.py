# SPDX-License-Identifier: Apache-2.0
"""The operator, out of process, on a real control plane: jobs end as their rules say, and cost what was promised."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_client import until
from cluster_plane import ControlPlane
from cluster_process import Process

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


@pytest.fixture(scope="session")
def rights(plane: ControlPlane) -> None:
    """What the operator may do, until RBAC rules of its own exist."""
    subject = {"kind": "User", "name": "operator", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"}
    body = {"metadata": {"name": "operator"}, "subjects": [subject], "roleRef": role}
    plane.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body)


@pytest.mark.usefixtures("nodes", "rights")
def test_a_job_succeeds_within_its_budget_of_writes(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    with operator(plane, tmp_path, namespace) as process:
        until(lambda: plane.find(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/operator"), "it leads")
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
