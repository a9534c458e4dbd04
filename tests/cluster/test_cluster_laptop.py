# SPDX-License-Identifier: Apache-2.0
"""The README's way to try the operator: definitions on the cluster, the operator on a laptop, its lease in the cluster.

The commands run as they are written, on a control plane on which nothing of ours is installed.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_client import until
from cluster_install import install_crds, shell_environment
from cluster_jobs import Jobs, job, role
from cluster_nodes import fake_nodes
from cluster_operator import Operator, started
from cluster_plane import ControlPlane
from cluster_process import Process

from trainwright.crd.rbac import RBAC, rights
from trainwright.kinds.registry import KINDS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
LAPTOP = re.compile(r"^```sh laptop\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMESPACE = "/api/v1/namespaces/trainwright"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path / "plane") as plane, fake_nodes(plane, 1):
        yield plane


def test_the_steps_of_the_readme_work_on_a_cluster_that_has_nothing_of_ours(
    plane: ControlPlane, tmp_path: Path
) -> None:
    (block,) = LAPTOP.findall(README)
    install, start = block.splitlines()
    env = shell_environment(plane, tmp_path)
    subprocess.run(["/bin/bash", "-euo", "pipefail", "-c", install], env=env, check=True, timeout=60)
    assert plane.find(NAMESPACE) is None
    operator = Process("laptop", ["/bin/bash", "-c", f"exec {start}"], tmp_path / "laptop.log", env)
    operator.start()
    operator.until(lambda: plane.find(NAMESPACE) is not None)
    jobs = Jobs(plane, "default")
    jobs.apply(job("first", role(replicas=2)))
    jobs.until("first", "Succeeded")

    assert operator.end() == 0
    assert "created the missing namespace of the lease" in operator.tail(100)
    assert plane.find("/apis/coordination.k8s.io/v1/namespaces/trainwright/leases/operator") is not None


def test_who_may_not_create_the_namespace_is_told_the_command_and_it_helps(plane: ControlPlane, tmp_path: Path) -> None:
    install_crds(plane)
    _grant_all_but_namespaces(plane)
    with started(plane.kubeconfig("operator"), tmp_path / "operator.log") as operator:
        until(lambda: not operator.alive, "it has ended")
        assert operator.end() == 3
        last = operator.tail(1)
    assert last.startswith("trainwright: cannot get the lease trainwright/operator: namespaces ")
    assert plane.find(NAMESPACE) is None
    words = last.partition(" to run: kubectl ")[2].split()
    assert words == ["create", "namespace", "trainwright"]
    plane.kubectl(*words)
    with started(plane.kubeconfig("operator"), tmp_path / "operator.log") as operator:
        _until_it_leads(plane, operator)


def _until_it_leads(plane: ControlPlane, operator: Operator) -> None:
    operator.until(lambda: operator.leads(plane, "trainwright"))


def _grant_all_but_namespaces(plane: ControlPlane) -> None:
    """What the operator needs, and leases of every namespace."""
    user = {"kind": "User", "name": "operator", "apiGroup": RBAC}
    role, _, bound, _ = rights(KINDS, "trainwright", "", user)
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"]}
    role["rules"].append(leases)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, bound]})
    plane.kubectl("apply", "--server-side", "-f", "-", given=text)
