# SPDX-License-Identifier: Apache-2.0
"""TFJobs for a real control plane, what becomes of them, and their pods as another operator might have left them."""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster_client import until
from cluster_plane import ControlPlane
from cluster_pods import PREFIX

from patience import PATIENCE
from trainwright.core import render
from trainwright.kinds.base import load
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.job import Replica
from trainwright.model.site import Site

Body = dict[str, Any]
LABELS = "training.kubeflow.org"


def replicas(count: int, policy: str = "Never", pod: Body | None = None, **script: str) -> Body:
    """Those of one type; fake nodes play their pods so: `exit="1,0"`, `runs="forever"`."""
    notes = {"annotations": {PREFIX + key: value for key, value in script.items()}}
    container = {"name": "tensorflow", "image": "none", "command": ["true"]}
    template = {"metadata": notes, "spec": {"containers": [container], **(pod or {})}}
    return {"replicas": count, "restartPolicy": policy, "template": template}


def tfjob(name: str, version: str = "v1", spec: Body | None = None, **types: Body) -> Body:
    """A job of these types; `spec` is what else it says."""
    head = {"apiVersion": f"kubeflow.org/{version}", "kind": "TFJob", "metadata": {"name": name}}
    return {**head, "spec": {"tfReplicaSpecs": types, **(spec or {})}}


class TFJobs:
    """Those of one namespace, and what belongs to them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.path = f"/apis/kubeflow.org/v1/namespaces/{namespace}/tfjobs"
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

    def conditions(self, name: str) -> list[str]:
        """Their types, in order; of one that is not true, with its status."""
        said = self.status(name).get("conditions") or ()
        return [one["type"] if one["status"] == "True" else f"{one['type']}={one['status']}" for one in said]

    def until(self, name: str, *conditions: str, patience: float = PATIENCE) -> Body:
        """Wait until its conditions are these; the status."""
        expected = list(conditions)
        until(lambda: self.conditions(name) == expected, f"{name} is {expected}: {self.status(name)}", patience)
        return self.status(name)

    def children(self, name: str, kind: str = "pods") -> dict[str, Body]:
        """Its pods, or services, by what their names end with: `worker-0`."""
        found = self.plane.call("GET", f"{self.core}/{kind}?labelSelector={LABELS}/job-name={name}")["items"]
        return {one["metadata"]["name"].removeprefix(f"{name}-"): one for one in found}

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of what was told of it, in order."""
        about = f"involvedObject.kind=TFJob,involvedObject.name={name}"
        found = self.plane.call("GET", f"{self.core}/events?fieldSelector={about}")["items"]
        ordered = sorted(found, key=lambda one: int(one["metadata"]["resourceVersion"]))
        return [(one["reason"], one["message"]) for one in ordered]

    # -- what another operator left ----------------------------------------------------------------------------------

    def furnish(self, document: Body, pods: Mapping[str, Sequence[Body]], services: bool = True) -> None:
        """Pods of a job, by type and in the order of their indexes, each with that status; and their services."""
        job = load(TFJOB, document).job
        for role in job.roles:
            for index, status in enumerate(pods.get(role.name, ())):
                replica = Replica(role, index, 0, job.key.replica_name(role.name, index))
                body = render.pod(job, replica, Site()).body
                self.plane.call("POST", f"{self.core}/pods", body)
                self.plane.call("PATCH", f"{self.core}/pods/{replica.name}/status", {"status": status})
                if services:
                    self.plane.call("POST", f"{self.core}/services", render.service(job, replica, Site()).body)


def seen(phase: str, code: int | None = None, restarts: int = 0) -> Body:
    """The status of a pod in that phase; one that has ended with this code, or with the usual one."""
    code = code if code is not None else {"Succeeded": 0, "Failed": 1}.get(phase)
    state: Body = {"waiting": {"reason": "ContainerCreating"}}
    if phase == "Running":
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    if code is not None:
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    one = {"name": "tensorflow", "image": "none", "imageID": "", "ready": phase == "Running", "restartCount": restarts}
    return {"phase": phase, "containerStatuses": [{**one, "state": state}]}
