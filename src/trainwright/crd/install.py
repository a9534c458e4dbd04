# SPDX-License-Identifier: Apache-2.0
"""Everything to install on a cluster, in the order in which it has to be there. `trainwright manifests` prints it."""

from collections.abc import Sequence

from trainwright.crd.manifests import crds
from trainwright.crd.rights import NAME, bindings, cluster_role, lease_role
from trainwright.kinds.base import Kind
from trainwright.model.job import Body

_LABELS = {"app.kubernetes.io/name": "trainwright", "app.kubernetes.io/component": "operator"}
_PORT = 8080


def manifests(kinds: Sequence[Kind], image: str, namespace: str) -> tuple[Body, ...]:
    """CRDs, namespace, rights, two operators of which one leads, and their disruption budget."""
    account: Body = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    return (
        *crds(kinds),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": namespace}},
        cluster_role(kinds),
        lease_role(namespace),
        *bindings(namespace, account),
        _deployment(image, namespace),
        _budget(namespace),
    )


def _deployment(image: str, namespace: str) -> Body:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": namespace, "labels": _LABELS},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": _LABELS},
            "template": {"metadata": {"labels": _LABELS}, "spec": _pod(image, namespace)},
        },
    }


def _pod(image: str, namespace: str) -> Body:
    return {
        "serviceAccountName": NAME,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "operator",
                "image": image,
                "args": ["operator", "--run-in-cluster", f"--lease={namespace}/operator", f"--address=:{_PORT}"],
                "ports": [{"name": "http", "containerPort": _PORT}],
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10},
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 5},
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }


def _budget(namespace: str) -> Body:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": _LABELS}},
    }
