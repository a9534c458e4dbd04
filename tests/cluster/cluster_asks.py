# SPDX-License-Identifier: Apache-2.0
"""Requests as values: a scenario is a list of requests in order, which any API server can be asked.

`{ns}` in a path or a body is the namespace of the scenario, `{pods}` the collection of pods in it (see PATHS), and
`{made:metadata.uid}` a value in the answer to the earlier request `made` of the same scenario.
"""

from typing import Any

from msgspec import Struct

Body = dict[str, Any]
JSON, YAML = "application/json", "application/yaml"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
#: The collections of a namespace, by the word for them in a path.
PATHS = {
    "cm": "/api/v1/namespaces/{ns}/configmaps",
    "secrets": "/api/v1/namespaces/{ns}/secrets",
    "pods": "/api/v1/namespaces/{ns}/pods",
    "svc": "/api/v1/namespaces/{ns}/services",
    "pvc": "/api/v1/namespaces/{ns}/persistentvolumeclaims",
    "events": "/api/v1/namespaces/{ns}/events",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases",
    "gj": "/apis/batch.tensorstack.dev/v1beta1/namespaces/{ns}/genericjobs",
    "tf": "/apis/kubeflow.org/v1/namespaces/{ns}/tfjobs",
}


class Ask(Struct, frozen=True):
    """One request. A body that is no text is sent as JSON; `events`: the answer is a watch, read until so many events.

    With -1 a watch is read until its end.
    """

    name: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = {}
    events: int = 0


class Scenario(Struct, frozen=True):
    """Requests in order. Nothing else uses their objects."""

    name: str
    asks: tuple[Ask, ...]


def scenario(name: str, *asks: Ask) -> Scenario:
    """A scenario. Its requests have different names, since answers are known by them."""
    names = [one.name for one in asks]
    if len(names) != len(set(names)):
        raise ValueError(f"{name}: {[one for one in names if names.count(one) > 1]}")
    return Scenario(name, asks)


def get(name: str, path: str, accept: str = "") -> Ask:
    """Read an object, a list or a document."""
    return Ask(name, "GET", path, headers={"Accept": accept} if accept else {})


def watch(name: str, path: str, events: int, accept: str = "") -> Ask:
    """Read so many events, or (-1) all until the server ends the watch after one second."""
    sign = "&" if "?" in path else "?"
    more = "&timeoutSeconds=1" if events < 0 else ""
    headers = {"Accept": accept} if accept else {}
    return Ask(name, "GET", f"{path}{sign}watch=true{more}", headers=headers, events=events)


def post(name: str, path: str, body: Any, kind: str = JSON, accept: str = "") -> Ask:
    """Create an object. An empty `kind` sends no Content-Type."""
    return Ask(name, "POST", path, body, _headers(kind, accept))


def put(name: str, path: str, body: Any, kind: str = JSON, accept: str = "") -> Ask:
    """Replace an object."""
    return Ask(name, "PUT", path, body, _headers(kind, accept))


def patch(name: str, path: str, body: Any, kind: str = MERGE, accept: str = "") -> Ask:
    """Change an object."""
    return Ask(name, "PATCH", path, body, _headers(kind, accept))


def delete(name: str, path: str, body: Any = None, accept: str = "") -> Ask:
    """Delete an object or a collection."""
    return Ask(name, "DELETE", path, body, _headers(JSON if body is not None else "", accept))


def _headers(kind: str, accept: str) -> dict[str, str]:
    return ({"Content-Type": kind} if kind else {}) | ({"Accept": accept} if accept else {})


# -- small objects ----------------------------------------------------------------------------------------------------


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> Body:
    """A ConfigMap."""
    metadata: Body = {"name": name} | ({"labels": labels} if labels else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata} | ({"data": data} if data else {})


def secret(name: str) -> Body:
    """A Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"a": "b"}}


def pod(name: str, **more: Any) -> Body:
    """A pod with as few fields as possible."""
    spec = {"containers": [{"name": "main", "image": "any:1"}], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def service(name: str, **more: Any) -> Body:
    """A headless service, as jobs make them."""
    spec = {"clusterIP": "None", "selector": {"app": name}, "ports": [{"name": "http", "port": 80}], **more}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def claim(name: str) -> Body:
    """A claim of 1 GiB."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def event(name: str) -> Body:
    """An event about a pod."""
    about = {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "{ns}"}
    head = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}}
    times = {"firstTimestamp": "2020-01-02T03:04:05Z", "lastTimestamp": "2020-01-02T03:04:06Z", "count": 2}
    source = {"component": "test"}
    return {**head, "involvedObject": about, "reason": "R", "message": "m", "type": "Normal", "source": source, **times}


def lease(name: str) -> Body:
    """A lease."""
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2020-01-02T03:04:05.000000Z"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}


def namespace(name: str) -> Body:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def node(name: str) -> Body:
    """A node without a kubelet."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def generic_job(name: str, **more: Any) -> Body:
    """A GenericJob with one worker."""
    template = {"spec": {"containers": [{"name": "main", "image": "any:1"}]}}
    spec = {"replicaSpecs": [{"type": "worker", "replicas": 1, "template": template}], **more}
    head = {"apiVersion": "batch.tensorstack.dev/v1beta1", "kind": "GenericJob", "metadata": {"name": name}}
    return {**head, "spec": spec}


def tf_job(name: str) -> Body:
    """A TFJob with one worker."""
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "any:1"}]}}
    spec = {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name}, "spec": spec}
