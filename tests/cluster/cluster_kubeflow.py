# SPDX-License-Identifier: Apache-2.0
"""Jobs of the kinds of Kubeflow v1 for a real control plane, by the name of their kind."""

from collections.abc import Mapping
from typing import NamedTuple

from cluster_plane import ControlPlane
from cluster_tfjobs import Body, TFJobs, replicas


class Shape(NamedTuple):
    """What differs between the kinds: the field of the replicas, the container that trains, the replica types."""

    plural: str
    specs: str
    container: str
    types: tuple[str, ...]
    #: The id of the kind, if it is not the name in lower case.
    shared_id: str = ""


SHAPES = {
    "TFJob": Shape("tfjobs", "tfReplicaSpecs", "tensorflow", ("Worker",)),
    "XGBoostJob": Shape("xgboostjobs", "xgbReplicaSpecs", "xgboost", ("Master", "Worker")),
    "JAXJob": Shape("jaxjobs", "jaxReplicaSpecs", "jax", ("Worker",)),
    "PyTorchJob": Shape("pytorchjobs", "pytorchReplicaSpecs", "pytorch", ("Master", "Worker")),
    "PaddleJob": Shape("paddlejobs", "paddleReplicaSpecs", "paddle", ("Worker",), "paddlejob.kubeflow.org"),
}


#: Metrics for an autoscaler.
METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]


def kubeflow_job(
    kind: str, name: str, spec: Body | None = None, sizes: Mapping[str, int] | None = None, **script: str
) -> Body:
    """A job with these replicas, or one of each type; fake nodes play its pods as `script` says."""
    shape, types = SHAPES[kind], {}
    for type_, count in (sizes or dict.fromkeys(shape.types, 1)).items():
        types[type_] = replicas(count, "Never", None, **script)
        types[type_]["template"]["spec"]["containers"][0]["name"] = shape.container
    head = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": name}}
    return {**head, "spec": {shape.specs: types, **(spec or {})}}


def id_of(kind: str) -> str:
    """The id of a kind: its word in options and reports."""
    return SHAPES[kind].shared_id or kind.lower()


class KubeflowJobs(TFJobs):
    """The jobs of one kind in one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, kind: str) -> None:
        super().__init__(plane, namespace)
        self.plural = f"{SHAPES[kind].plural}.kubeflow.org"
        self.path = f"/apis/kubeflow.org/v1/namespaces/{namespace}/{SHAPES[kind].plural}"
        self.autoscalers = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"

    def is_gone(self, name: str) -> bool:
        """Whether there is no such job."""
        return not self.find(name)

    def kubectl(self, *words: str) -> str:
        """Run kubectl in the namespace."""
        return self.plane.kubectl("-n", self.namespace, *words).stdout

    def running(self, name: str) -> list[str]:
        """The pods that run, by what their names end with."""
        return sorted(
            one
            for one, pod in self.children(name).items()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        )

    def autoscaler(self, name: str) -> Body:
        """The spec of its autoscaler, or nothing."""
        found = self.plane.find(f"{self.autoscalers}/{name}") or {}
        spec: Body = found.get("spec") or {}
        return spec
