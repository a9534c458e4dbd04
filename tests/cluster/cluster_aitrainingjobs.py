# SPDX-License-Identifier: Apache-2.0
"""AITrainingJobs for a real control plane, and what becomes of them."""

from typing import Any

from cluster_client import until
from cluster_jobs import Jobs
from cluster_pods import PREFIX

from patience import PATIENCE

Body = dict[str, Any]


def replicas(count: int, pod: Body | None = None, spec: Body | None = None, **script: str) -> Body:
    """Those of one type, with what else its spec says; fake nodes play their pods so: `exit="1,0"`, `runs="0.5"`."""
    notes = {"annotations": {PREFIX + key: value for key, value in script.items()}}
    container = {"name": "aitj-main", "image": "none", "command": ["true"]}
    template = {"metadata": notes, "spec": {"containers": [container], **(pod or {})}}
    return {"replicas": count, "template": template, **(spec or {})}


def aitrainingjob(name: str, spec: Body | None = None, **types: Body) -> Body:
    """A job of these types; `spec` is what else it says."""
    head = {"apiVersion": "elasticdeeplearning.ai/v1", "kind": "AITrainingJob", "metadata": {"name": name}}
    return {**head, "spec": {"replicaSpecs": types, **(spec or {})}}


class AITrainingJobs(Jobs):
    """Those of one namespace."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(jobs.plane, jobs.namespace)
        self.path = f"/apis/elasticdeeplearning.ai/v1/namespaces/{self.namespace}/aitrainingjobs"

    def events(self, name: str) -> list[str]:
        """What was told of it, in order: reason and message."""
        about = f"involvedObject.kind=AITrainingJob,involvedObject.name={name}"
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector={about}"
        found = sorted(self.plane.call("GET", path)["items"], key=lambda one: int(one["metadata"]["resourceVersion"]))
        return [f"{one['reason']} {one['message']}" for one in found]

    def steps(self, name: str) -> list[str]:
        """The types of its conditions, in order."""
        return [one["type"] for one in self.status(name).get("conditions") or ()]

    def message(self, name: str) -> str:
        """What it says of where it is."""
        return str((self.status(name).get("conditions") or [{"message": ""}])[-1]["message"])

    def until_message(self, name: str, text: str, patience: float = PATIENCE) -> None:
        """Wait until it says so."""
        until(lambda: text in self.message(name), f"{text!r} of {name}: {self.status(name)}", patience)

    def uids(self, name: str) -> dict[str, str]:
        """The UIDs of its pods, by what their names end with."""
        return {key.removeprefix(f"{name}-"): pod["metadata"]["uid"] for key, pod in self.pods(name).items()}
