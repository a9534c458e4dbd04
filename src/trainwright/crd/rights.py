# SPDX-License-Identifier: Apache-2.0
"""What the operator may do on a cluster, and not one verb more. `trainwright manifests` prints it; tests run under it.

A call outside of these rules is answered with 403, which the tests on a real control plane take for a failure.
"""

from collections.abc import Iterable

from trainwright.kinds.base import Kind
from trainwright.model.job import Body

RBAC = "rbac.authorization.k8s.io"
NAME = "trainwright-operator"
_SEEN = ["get", "list", "watch"]
_KEPT = [*_SEEN, "create", "patch", "delete"]


def cluster_role(kinds: Iterable[Kind]) -> Body:
    """On the whole cluster: jobs and their children, and a look at nodes."""
    listed = list(kinds)
    definitions = sorted({f"{kind.plural}.{kind.group}" for kind in listed})
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": NAME},
        "rules": [
            *(rule for kind in listed for rule in _of_kind(kind)),
            _rule("", ["pods", "services", "configmaps"], _KEPT),
            _rule("", ["events"], ["create"]),
            _rule("", ["nodes"], ["list", "watch"]),
            _rule("scheduler.tensorstack.dev", ["podgroups"], _KEPT),
            _rule("apiextensions.k8s.io", ["customresourcedefinitions"], ["get"]) | {"resourceNames": definitions},
        ],
    }


def lease_role(namespace: str) -> Body:
    """In the operator's own namespace: its lease."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": NAME, "namespace": namespace},
        "rules": [_rule("coordination.k8s.io", ["leases"], ["get", "create", "patch"])],
    }


def bindings(namespace: str, subject: Body) -> tuple[Body, Body]:
    """Both roles for somebody: a service account, or a user."""
    whole = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": NAME},
        "subjects": [subject],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": NAME},
    }
    own = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": NAME, "namespace": namespace},
        "subjects": [subject],
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": NAME},
    }
    return whole, own


def _of_kind(kind: Kind) -> tuple[Body, Body, Body]:
    """A job is deleted when its time to live is over; `finalizers` is what blockOwnerDeletion on its children asks."""
    return (
        _rule(kind.group, [kind.plural], [*_SEEN, "delete"]),
        _rule(kind.group, [f"{kind.plural}/status"], ["patch"]),
        _rule(kind.group, [f"{kind.plural}/finalizers"], ["update"]),
    )


def _rule(group: str, resources: list[str], verbs: list[str]) -> Body:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}
