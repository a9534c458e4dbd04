# SPDX-License-Identifier: Apache-2.0
"""One control plane with our CRDs and fake nodes for a whole session, and a namespace of its own for each test.

A plugin of the tests beside it. A test that needs other flags, or a plane to break, makes a `ControlPlane` of its own.
"""

from collections.abc import Iterator
from itertools import count

import pytest
from cluster_client import until
from cluster_install import install_crds
from cluster_nodes import fake_nodes
from cluster_plane import ControlPlane
from cluster_process import Process

from trainwright.crd.rbac import LEASE_NAMESPACE

_numbers = count()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Everything of Kubernetes but nodes, and our CRDs."""
    with ControlPlane(tmp_path_factory.mktemp("plane"), first=install_crds) as plane:
        yield plane


@pytest.fixture(scope="session")
def nodes(plane: ControlPlane) -> Iterator[Process]:
    """Three fake nodes; pods on them end well at once unless their annotations say otherwise."""
    with fake_nodes(plane, 3) as process:
        yield process


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """An empty one, in which pods can be made. Nobody waits for its end."""
    name = f"test-{next(_numbers)}"
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    until(lambda: plane.find(account), f"{account} is there")
    yield name
    plane.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def lease_namespace(plane: ControlPlane) -> None:
    """The namespace of the lease that operators share. A dry run makes no namespace for the objects that follow it."""
    if plane.find(f"/api/v1/namespaces/{LEASE_NAMESPACE}") is None:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": LEASE_NAMESPACE}})
