# SPDX-License-Identifier: Apache-2.0
"""One control plane with our CRDs and fake nodes for a whole session, and a namespace of its own for each test.

A plugin of the tests beside it. A test that needs other flags, or a plane to break, makes a `ControlPlane` of its own.
"""

import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest
from cluster_client import run, until
from cluster_nodes import fake_nodes
from cluster_plane import ControlPlane
from cluster_process import Process

ESTABLISHED = "--for=condition=Established"
_numbers = count()


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Everything of Kubernetes but nodes, and nothing of ours."""
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


@pytest.fixture(scope="session")
def plane(bare: ControlPlane) -> ControlPlane:
    """With our CRDs."""
    install_crds(bare)
    return bare


@pytest.fixture(scope="session")
def nodes(plane: ControlPlane) -> Iterator[Process]:
    """Three fake nodes; pods on them end well at once unless their annotations say otherwise."""
    with fake_nodes(plane, 3) as process:
        yield process


@pytest.fixture
def namespace(bare: ControlPlane) -> Iterator[str]:
    """An empty one, in which pods can be made. Nobody waits for its end."""
    name = f"test-{next(_numbers)}"
    bare.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    until(lambda: bare.find(account), f"{account} is there")
    yield name
    bare.call("DELETE", f"/api/v1/namespaces/{name}")


def install_crds(plane: ControlPlane) -> str:
    """As a user does it; what kubectl said."""
    crds = trainwright("crds").stdout
    said = plane.kubectl("apply", "--server-side", "-f", "-", given=crds).stdout
    plane.kubectl("wait", ESTABLISHED, "--timeout=20s", "crd", "--all")
    return said


def trainwright(*words: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return run([sys.executable, "-m", "trainwright", *words], given, check=check)
