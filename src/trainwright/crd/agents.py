# SPDX-License-Identifier: Apache-2.0
"""What `trainwright node` may do on a cluster, and not one verb more. `install` prints it where that is asked for.

Tests run agents under exactly these rules.

A user `system:node:NAME` of the group `system:nodes` has these rights already, for its own node and its pods, where the
API server authorises nodes; other users get them by this role. It reads the Secrets that pods ask for.
"""

from trainwright.crd.rights import RBAC
from trainwright.model.job import Body

NAME = "trainwright-node"
_LEASES = "kube-node-lease"


def agents(namespace: str) -> tuple[Body, ...]:
    """A service account for node agents, and its rights."""
    account: Body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": namespace}}
    subject: Body = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    return account, cluster_role(), lease_role(), *bindings(subject)


def cluster_role() -> Body:
    """Nodes, the pods on them, and what pods are made of."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": NAME},
        "rules": [
            _rule("", ["nodes"], ["create", "patch", "delete"]),
            _rule("", ["nodes/status", "pods/status"], ["patch"]),
            _rule("", ["pods"], ["get", "list", "watch", "delete"]),
            _rule("", ["services"], ["list", "watch"]),
            _rule("", ["configmaps"], ["get", "list", "watch"]),
            _rule("", ["secrets", "persistentvolumeclaims", "persistentvolumes"], ["get"]),
            _rule("", ["serviceaccounts/token"], ["create"]),
            _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
        ],
    }


def lease_role() -> Body:
    """The signs of life."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": NAME, "namespace": _LEASES},
        "rules": [_rule("coordination.k8s.io", ["leases"], ["create", "patch"])],
    }


def bindings(subject: Body) -> tuple[Body, Body]:
    """Both for somebody: a user, or a service account."""
    whole: Body = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": NAME}}
    own: Body = {**whole, "kind": "RoleBinding", "metadata": {"name": NAME, "namespace": _LEASES}}
    return (
        {**whole, "subjects": [subject], "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": NAME}},
        {**own, "subjects": [subject], "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": NAME}},
    )


def _rule(group: str, resources: list[str], verbs: list[str]) -> Body:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}
