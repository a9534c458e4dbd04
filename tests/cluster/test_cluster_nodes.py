# SPDX-License-Identifier: Apache-2.0
"""Fake nodes do to pods what a kubelet does, as far as the scheduler, the controllers and an operator can see."""

from typing import Any

import pytest
from cluster_bodies import Body, job, pod
from cluster_client import until
from cluster_nodes import fake_nodes
from cluster_plane import ControlPlane
from cluster_pods import Script

pytest_plugins = ("cluster_fixtures",)


class NamespacePods:
    """The pods of one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def make(self, body: Body) -> Body:
        return self._plane.call("POST", self.path, body)

    def find(self, name: str) -> Body | None:
        return self._plane.find(f"{self.path}/{name}")

    def delete(self, name: str) -> None:
        self._plane.call("DELETE", f"{self.path}/{name}")

    def until(self, name: str, phase: str) -> Any:
        def there() -> Body | None:
            found = self.find(name)
            return found if found and found["status"].get("phase") == phase else None

        return until(there, f"{name} is {phase}: {self.find(name)}")

    def until_gone(self, name: str) -> None:
        until(lambda: self.find(name) is None, f"{name} is gone: {self.find(name)}")


@pytest.fixture
def namespace_pods(plane: ControlPlane, namespace: str, nodes: object) -> NamespacePods:
    return NamespacePods(plane, namespace)


@pytest.mark.parametrize(
    ("script", "phase", "expected"),
    [
        pytest.param({}, "Succeeded", (0, "Completed"), id="well"),
        pytest.param({"exit": "3"}, "Failed", (3, "Error"), id="with 3"),
        pytest.param({"exit": "137", "reason": "OOMKilled"}, "Failed", (137, "OOMKilled"), id="out of memory"),
    ],
)
def test_a_pod_is_scheduled_runs_and_ends(
    namespace_pods: NamespacePods, script: dict[str, Any], phase: str, expected: tuple[int, str]
) -> None:
    namespace_pods.make(pod("a", **script))

    ended = namespace_pods.until("a", phase)

    state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == expected
    assert ended["spec"]["nodeName"].startswith("fake-")
    assert ended["status"]["podIP"]


def test_a_pod_may_run_until_it_is_deleted(namespace_pods: NamespacePods) -> None:
    namespace_pods.make(pod("a", runs="forever", stops="0.5"))
    up = namespace_pods.until("a", "Running")
    assert {one["type"]: one["status"] for one in up["status"]["conditions"]}["Ready"] == "True"

    namespace_pods.delete("a")

    left = namespace_pods.find("a")
    assert left
    assert left["metadata"]["deletionTimestamp"]
    namespace_pods.until_gone("a")


def test_the_next_pod_of_a_name_has_the_next_exit(namespace_pods: NamespacePods) -> None:
    namespace_pods.make(pod("a", exit="1,0"))
    namespace_pods.until("a", "Failed")
    namespace_pods.delete("a")
    namespace_pods.until_gone("a")

    namespace_pods.make(pod("a", exit="1,0"))

    namespace_pods.until("a", "Succeeded")


def test_a_pod_may_never_start(namespace_pods: NamespacePods) -> None:
    namespace_pods.make(pod("a", waiting="ImagePullBackOff"))

    def why() -> str:
        found = namespace_pods.find("a") or {}
        states = found["status"].get("containerStatuses", [])
        return states[0]["state"]["waiting"]["reason"] if states else ""

    assert until(why, "it waits", 20) == "ImagePullBackOff"
    namespace_pods.delete("a")
    namespace_pods.until_gone("a")


def test_what_a_deleted_job_owns_goes_with_it(
    plane: ControlPlane, namespace: str, namespace_pods: NamespacePods
) -> None:
    jobs = f"/apis/batch.tensorstack.dev/v1beta1/namespaces/{namespace}/genericjobs"
    made = plane.call("POST", jobs, job("demo"))
    owner = {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": "demo", "uid": made["metadata"]["uid"]}
    namespace_pods.make(pod("a", owners=[owner], runs="forever"))
    namespace_pods.until("a", "Running")

    plane.call("DELETE", f"{jobs}/demo")

    namespace_pods.until_gone("a")


def test_nodes_outlast_a_server_that_goes_away(plane: ControlPlane, namespace_pods: NamespacePods) -> None:
    namespace_pods.make(pod("a", runs="forever"))
    namespace_pods.until("a", "Running")

    plane.restart("kube-apiserver")

    namespace_pods.delete("a")
    namespace_pods.until_gone("a")
    namespace_pods.make(pod("b"))
    namespace_pods.until("b", "Succeeded")


def test_without_a_scheduler_nodes_bind_pods_themselves() -> None:
    with ControlPlane(controllers=False, scheduler=False) as plane:
        there = NamespacePods(plane, "default")
        with fake_nodes(plane, 2, binds=True, script=Script(runs=None)):
            for name in ("a", "b"):
                there.make(pod(name))
            found = {there.until(name, "Running")["spec"]["nodeName"] for name in ("a", "b")}
            assert found == {"fake-0", "fake-1"}
        assert plane.call("GET", "/api/v1/pods")["items"] == []
        assert plane.call("GET", "/api/v1/nodes")["items"] == []
