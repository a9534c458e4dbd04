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


class Place:
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
def place(plane: ControlPlane, namespace: str, nodes: object) -> Place:
    return Place(plane, namespace)


@pytest.mark.parametrize(
    ("script", "phase", "expected"),
    [
        pytest.param({}, "Succeeded", (0, "Completed"), id="well"),
        pytest.param({"exit": "3"}, "Failed", (3, "Error"), id="with 3"),
        pytest.param({"exit": "137", "reason": "OOMKilled"}, "Failed", (137, "OOMKilled"), id="out of memory"),
    ],
)
def test_a_pod_is_scheduled_runs_and_ends(
    place: Place, script: dict[str, Any], phase: str, expected: tuple[int, str]
) -> None:
    place.make(pod("a", **script))

    ended = place.until("a", phase)

    state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == expected
    assert ended["spec"]["nodeName"].startswith("fake-")
    assert ended["status"]["podIP"]


def test_a_pod_may_run_until_it_is_deleted(place: Place) -> None:
    place.make(pod("a", runs="forever", stops="0.5"))
    up = place.until("a", "Running")
    assert {one["type"]: one["status"] for one in up["status"]["conditions"]}["Ready"] == "True"

    place.delete("a")

    left = place.find("a")
    assert left
    assert left["metadata"]["deletionTimestamp"]
    place.until_gone("a")


def test_the_next_pod_of_a_name_has_the_next_exit(place: Place) -> None:
    place.make(pod("a", exit="1,0"))
    place.until("a", "Failed")
    place.delete("a")
    place.until_gone("a")

    place.make(pod("a", exit="1,0"))

    place.until("a", "Succeeded")


def test_a_pod_may_never_start(place: Place) -> None:
    place.make(pod("a", waiting="ImagePullBackOff"))

    def why() -> str:
        found = place.find("a") or {}
        states = found["status"].get("containerStatuses", [])
        return states[0]["state"]["waiting"]["reason"] if states else ""

    assert until(why, "it waits", 20) == "ImagePullBackOff"
    place.delete("a")
    place.until_gone("a")


def test_what_a_deleted_job_owns_goes_with_it(plane: ControlPlane, namespace: str, place: Place) -> None:
    jobs = f"/apis/batch.tensorstack.dev/v1beta1/namespaces/{namespace}/genericjobs"
    made = plane.call("POST", jobs, job("demo"))
    owner = {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": "demo", "uid": made["metadata"]["uid"]}
    place.make(pod("a", owners=[owner], runs="forever"))
    place.until("a", "Running")

    plane.call("DELETE", f"{jobs}/demo")

    place.until_gone("a")


def test_nodes_outlast_a_server_that_goes_away(plane: ControlPlane, place: Place) -> None:
    place.make(pod("a", runs="forever"))
    place.until("a", "Running")

    plane.restart("kube-apiserver")

    place.delete("a")
    place.until_gone("a")
    place.make(pod("b"))
    place.until("b", "Succeeded")


def test_without_a_scheduler_nodes_bind_pods_themselves() -> None:
    with ControlPlane(controllers=False, scheduler=False) as plane:
        there = Place(plane, "default")
        with fake_nodes(plane, 2, binds=True, script=Script(runs=None)):
            for name in ("a", "b"):
                there.make(pod(name))
            found = {there.until(name, "Running")["spec"]["nodeName"] for name in ("a", "b")}
            assert found == {"fake-0", "fake-1"}
        assert plane.call("GET", "/api/v1/pods")["items"] == []
        assert plane.call("GET", "/api/v1/nodes")["items"] == []
