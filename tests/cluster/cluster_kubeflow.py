# SPDX-License-Identifier: Apache-2.0
"""Jobs of Kubeflow v1 other than TFJobs for a real control plane, and what becomes of them."""

from typing import Any

from cluster_plane import ControlPlane
from cluster_pods import PREFIX
from cluster_tfjobs import TFJobs

Body = dict[str, Any]
#: Plural -> kind, name of its replica specs, name of its container, and the types of a small job.
KINDS: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "pytorchjobs": ("PyTorchJob", "pytorchReplicaSpecs", "pytorch", {"Master": 1, "Worker": 1}),
    "xgboostjobs": ("XGBoostJob", "xgbReplicaSpecs", "xgboost", {"Master": 1, "Worker": 1}),
    "jaxjobs": ("JAXJob", "jaxReplicaSpecs", "jax", {"Worker": 2}),
    "paddlejobs": ("PaddleJob", "paddleReplicaSpecs", "paddle", {"Worker": 2}),
}
METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]


def kubeflow_job(plural: str, name: str, spec: Body | None = None, runs: str = "forever", **types: int) -> Body:
    """A job whose pods fake nodes run for `runs`; `spec` is what else it says."""
    kind, field, container, usual = KINDS[plural]
    template = {
        "metadata": {"annotations": {f"{PREFIX}runs": runs}},
        "spec": {"containers": [{"name": container, "image": "none", "command": ["true"]}]},
    }
    specs = {role: {"replicas": count, "template": template} for role, count in (types or usual).items()}
    head = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": name}}
    return {**head, "spec": {field: specs, **(spec or {})}}


class KubeflowJobs(TFJobs):
    """Those of one kind in one namespace, and what belongs to them."""

    def __init__(self, plane: ControlPlane, namespace: str, plural: str) -> None:
        super().__init__(plane, namespace)
        self.plural = f"{plural}.kubeflow.org"
        self.path = f"/apis/kubeflow.org/v1/namespaces/{namespace}/{plural}"
        self.autoscalers = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"

    def kubectl(self, *words: str) -> str:
        """Run kubectl in the namespace."""
        return self.plane.kubectl("-n", self.namespace, *words).stdout

    def running(self, name: str) -> list[str]:
        """The pods that run, by what their names end with."""
        pods = self.children(name)
        return sorted(
            one
            for one, pod in pods.items()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        )

    def autoscaler(self, name: str) -> Body:
        """The spec of its autoscaler, or nothing."""
        found = self.plane.find(f"{self.autoscalers}/{name}") or {}
        spec: Body = found.get("spec") or {}
        return spec
