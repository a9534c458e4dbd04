# SPDX-License-Identifier: Apache-2.0
"""The operator's pods and what goes with them: Deployment, Service, disruption budget. `install` puts them together.

The pods are what the Pod Security level `restricted` demands, and write to no disk.
"""

from collections.abc import Sequence

from trainwright.crd.rights import LEASE, NAME
from trainwright.model.job import Body

_LABELS = {"app.kubernetes.io/name": "trainwright", "app.kubernetes.io/component": "operator"}
_PORT = 8080
#: Nobody in particular; the image has no such user, and needs none.
_USER = 65532


def deployment(image: str, namespace: str, arguments: Sequence[str]) -> Body:
    """Two: one leads, the other takes over."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": namespace, "labels": _LABELS},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": _LABELS},
            "template": {
                "metadata": {
                    "labels": _LABELS,
                    "annotations": {"kubectl.kubernetes.io/default-container": "operator"},
                },
                "spec": _pod(image, arguments),
            },
        },
    }


def service(namespace: str) -> Body:
    """Where metrics are found: of each pod, since each has its own."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": namespace, "labels": _LABELS},
        "spec": {
            "clusterIP": "None",
            "selector": _LABELS,
            "ports": [{"name": "metrics", "port": _PORT, "targetPort": "http"}],
        },
    }


def budget(namespace: str) -> Body:
    """A node may be emptied, both nodes at once may not.

    There is no `unhealthyPodEvictionPolicy`: API servers before Kubernetes 1.26 refuse an object with that field.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME, "namespace": namespace, "labels": _LABELS},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _LABELS}},
    }


def _pod(image: str, arguments: Sequence[str]) -> Body:
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "topologySpreadConstraints": [_spread("kubernetes.io/hostname"), _spread("topology.kubernetes.io/zone")],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(image, arguments)],
    }


def _spread(over: str) -> Body:
    """If it can be had: an operator on the same node is better than none."""
    return {
        "maxSkew": 1,
        "topologyKey": over,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _LABELS},
    }


def _container(image: str, arguments: Sequence[str]) -> Body:
    return {
        "name": "operator",
        "image": image,
        # The pod's own word for its namespace, so that the manifest may be moved to another one.
        "args": ["operator", "--run-in-cluster", f"--lease=$(NAMESPACE)/{LEASE}", f"--address=:{_PORT}", *arguments],
        "env": [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": "http", "containerPort": _PORT}],
        # It answers from its start on: a minute without an answer is what nothing explains.
        "livenessProbe": _probe("/healthz", first=10, every=10, misses=6),
        "readinessProbe": _probe("/readyz", first=3, every=5, misses=3),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _probe(path: str, *, first: int, every: int, misses: int) -> Body:
    """Asked `first` seconds after the start, so that a container that only just starts is not told of as unhealthy."""
    return {
        "httpGet": {"path": path, "port": "http"},
        "initialDelaySeconds": first,
        "periodSeconds": every,
        "failureThreshold": misses,
    }
