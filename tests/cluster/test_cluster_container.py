# SPDX-License-Identifier: Apache-2.0
"""A real kubelet runs a pod in a real container. That is what our own nodes, real and fake, are held against."""

from collections.abc import Iterator
from typing import Any

import pytest
from cluster_binaries import MissingError
from cluster_bodies import pod
from cluster_client import until
from cluster_container import real_node
from cluster_images import BUSYBOX
from cluster_plane import ControlPlane
from cluster_process import Process

pytest_plugins = ("cluster_fixtures",)


@pytest.fixture(scope="module")
def kubelet(plane: ControlPlane) -> Iterator[Process]:
    try:
        node = real_node(plane)
        with node as process:
            yield process
    except MissingError as missing:
        pytest.skip(str(missing))


def _shell(name: str, script: str) -> dict[str, Any]:
    body = pod(name, node="node-0")
    body["spec"]["restartPolicy"] = "Never"
    main = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    body["spec"]["containers"] = [main]
    return body


def test_a_pod_runs_in_a_container_and_its_end_is_known(plane: ControlPlane, namespace: str, kubelet: Process) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.call("POST", path, _shell("a", "echo I am $(hostname) at $(hostname -i); exit 3"))

    def over() -> Any:
        found = plane.call("GET", f"{path}/a")
        return found if found["status"]["phase"] in ("Succeeded", "Failed") else None

    found = until(over, f"it ended; see {kubelet.log}")

    ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (found["status"]["phase"], ended["exitCode"], ended["reason"]) == ("Failed", 3, "Error")
    said = plane.kubectl("logs", "a", "-n", namespace).stdout
    assert said.startswith("I am a at 10.130.0.")
