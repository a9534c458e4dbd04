# SPDX-License-Identifier: Apache-2.0
"""PaddleJobs for a real control plane, and what becomes of them."""

from typing import Any

from cluster_client import until
from cluster_plane import ControlPlane
from cluster_pods import PREFIX

from patience import PATIENCE

Body = dict[str, Any]
API = "batch.paddlepaddle.org/v1"


def role(count: int, pod: Body | None = None, **script: Any) -> Body:
    """Those of one role; fake nodes play their pods so: `exit="1,0"`, `runs="forever"`."""
    notes = {"annotations": {PREFIX + key: value for key, value in script.items()}}
    container = {"name": "paddle", "image": "none", "command": ["true"]}
    return {"replicas": count, "template": {"metadata": notes, "spec": {"containers": [container], **(pod or {})}}}


def paddlejob(name: str, **spec: Any) -> Body:
    """A job: `worker=role(2)`, and whatever else stands in its spec."""
    return {"apiVersion": API, "kind": "PaddleJob", "metadata": {"name": name}, "spec": spec}


class PaddleJobs:
    """Those of one namespace, and what belongs to them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.path = f"/apis/{API}/namespaces/{namespace}/paddlejobs"
        self.core = f"/api/v1/namespaces/{namespace}"

    def make(self, body: Body) -> Body:
        """A job."""
        return self.plane.call("POST", self.path, body)

    def edit(self, name: str, **spec: Any) -> None:
        """Merge this into its spec."""
        self.plane.call("PATCH", f"{self.path}/{name}", {"spec": spec})

    def find(self, name: str) -> Body:
        """The job, or nothing."""
        return self.plane.find(f"{self.path}/{name}") or {}

    def status(self, name: str) -> Body:
        """Its status, or nothing."""
        return self.find(name).get("status") or {}

    def until(self, name: str, phase: str, patience: float = PATIENCE) -> Body:
        """Wait for that phase; the status."""
        until(lambda: self.status(name).get("phase") == phase, f"{name} is {phase}: {self.status(name)}", patience)
        return self.status(name)

    def data(self, name: str) -> dict[str, str]:
        """What its ConfigMap holds, or nothing."""
        found = self.plane.find(f"{self.core}/configmaps/{name}") or {}
        return found.get("data") or {}

    def children(self, name: str, kind: str = "pods") -> dict[str, Body]:
        """Its pods, or services, by what their names end with: `worker-0`."""
        found = self.plane.call("GET", f"{self.core}/{kind}?labelSelector=trainwright.dev/kind=paddlejob")["items"]
        names = {one["metadata"]["name"]: one for one in found}
        return {key.removeprefix(f"{name}-"): one for key, one in names.items() if key.startswith(f"{name}-")}

    def events(self, name: str) -> list[str]:
        """The reasons of what was told of it, in order."""
        about = f"involvedObject.kind=PaddleJob,involvedObject.name={name}"
        found = self.plane.call("GET", f"{self.core}/events?fieldSelector={about}")["items"]
        return [one["reason"] for one in sorted(found, key=lambda one: int(one["metadata"]["resourceVersion"]))]
