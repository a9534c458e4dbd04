# SPDX-License-Identifier: Apache-2.0
"""An operator for all namespaces, and the jobs of a test's own namespace. A plugin of the tests beside it."""

from collections.abc import Iterator

import pytest
from cluster_jobs import Jobs
from cluster_operator import Operator, grant, started
from cluster_plane import ControlPlane

from trainwright.crd.rbac import RBAC

HOME = "trainwright"


@pytest.fixture(scope="module")
def operator(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """One for all namespaces. Nothing that it asks for is beyond its rights, and nothing takes it by surprise."""
    if plane.find(f"/api/v1/namespaces/{HOME}") is None:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
    grant(plane, HOME, "operator", {"kind": "User", "name": "operator", "apiGroup": RBAC})
    mark, log = plane.mark(), tmp_path_factory.mktemp("operator") / "operator.log"
    with started(plane.kubeconfig("operator"), log, "--lease", f"{HOME}/operator") as process:
        process.until(lambda: process.leads(plane, HOME))
        yield process
        assert process.alive, process.tail()
        assert process.end() == 0
    assert plane.audit(mark).where(user="operator", denied=True) == ()
    assert "Traceback" not in log.read_text()


@pytest.fixture
def jobs(plane: ControlPlane, namespace: str, nodes: object, operator: Operator) -> Jobs:
    """Those of a namespace of the test's own."""
    return Jobs(plane, namespace)
