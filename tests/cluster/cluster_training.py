# SPDX-License-Identifier: Apache-2.0
"""A control plane with our operator and two `trainwright node` agents, and examples of Kubeflow v1 that train there.

Unlike the pods of fake nodes, those of agents run the programs of the examples, with this machine's Python.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from cluster_agents import agent, agent_plane, left
from cluster_client import until
from cluster_operator import QUICK, started
from cluster_plane import ControlPlane

from single_process import EXAMPLES

#: Importing a framework alone takes ten seconds where others are at work too.
PATIENCE = 240.0
LABELS = "training.kubeflow.org"
Body = dict[str, Any]


@contextmanager
def training_plane(folder: Path, programs: Path, *offer: str) -> Iterator[ControlPlane]:
    """With the nodes east and west, whose pods find these programs first; `offer` are more options of the agents."""
    env = {"PATH": os.pathsep.join([str(programs), os.environ["PATH"]])}
    words = ("--cpus", "4", "--working-dir", str(folder), *offer)
    with agent_plane(folder) as plane:
        log = plane.layout.logs / "operator.log"
        with (
            agent(plane, "east", *words, env=env),
            agent(plane, "west", *words, env=env),
            started(plane.kubeconfig("operator"), log, "--lease", "default/operator", *QUICK) as operator,
        ):
            operator.until(lambda: operator.leads(plane, "default"))
            yield plane
            assert operator.end() == 0
        assert plane.audit().where(user="operator", denied=True) == ()
    assert left([str(folder)]) == []


class TrainingJobs:
    """Jobs of one kind in one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, kind: str) -> None:
        self.plane, self.namespace, self.kind = plane, namespace, kind
        self._jobs = f"/apis/kubeflow.org/v1/namespaces/{namespace}/{kind}s"
        self._core = f"/api/v1/namespaces/{namespace}"

    def start(self, example: str, change: Callable[[Body], None] | None = None) -> str:
        """Apply an example, with this change of its job; the job's name. Its claims get folders of this machine."""
        text = (EXAMPLES / self.kind / f"{example}.yaml").read_text(encoding="utf-8")
        bodies: list[Body] = list(yaml.safe_load_all(text))
        for body in bodies[:-1]:
            self._volume(body["metadata"]["name"])
        if change is not None:
            change(bodies[-1])
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
        self.plane.kubectl("-n", self.namespace, "apply", "-f", "-", given=given)
        return str(bodies[-1]["metadata"]["name"])

    def _volume(self, claim: str) -> None:
        """A folder of this machine, as a cluster's storage would give one."""
        folder = self.plane.layout.folder / "volumes" / self.namespace
        folder.mkdir(parents=True)
        spec = {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": self.namespace, "name": claim},
        }
        body = {"metadata": {"name": f"volume-{self.namespace}"}, "spec": spec}
        self.plane.call("POST", "/api/v1/persistentvolumes", body)

    def conditions(self, name: str) -> list[str]:
        """The types of those that are true, in order."""
        found = (self.plane.find(f"{self._jobs}/{name}") or {}).get("status", {}).get("conditions") or ()
        return [one["type"] for one in found if one["status"] == "True"]

    def pods(self, name: str) -> dict[str, Body]:
        """By what their names end with: `worker-0`."""
        found = self.plane.call("GET", f"{self._core}/pods?labelSelector={LABELS}/job-name={name}")["items"]
        return {one["metadata"]["name"].removeprefix(f"{name}-"): one for one in found}

    def nodes(self, name: str) -> set[str]:
        """Where its pods are."""
        return {pod["spec"].get("nodeName", "") for pod in self.pods(name).values()}

    def log(self, pod: str) -> str:
        """What it has said so far."""
        return self.plane.kubectl("-n", self.namespace, "logs", pod, check=False).stdout

    def lose(self, pod: str) -> None:
        """Delete a pod without a grace period."""
        self.plane.kubectl("-n", self.namespace, "delete", "pod", pod, "--force", "--grace-period=0")

    def end(self, name: str) -> None:
        """Wait for its end, which is success."""
        until(lambda: {"Succeeded", "Failed"} & set(self.conditions(name)), f"{name} ends", PATIENCE)
        logs = {pod: self.log(f"{name}-{pod}")[-2000:] for pod in self.pods(name)}
        assert self.conditions(name)[-1] == "Succeeded", (self.plane.find(f"{self._jobs}/{name}"), logs)
