# SPDX-License-Identifier: Apache-2.0
"""What the operator may do on a cluster, and not one verb more. `trainwright manifests` prints it; tests run under it.

A call outside of these rules is answered with 403, which the tests on a real control plane take for a failure; so is a
rule that nothing there makes use of. `people` has what users of a cluster may do with our kinds.
"""

from collections.abc import Iterable, Sequence

from trainwright.kinds.base import Kind
from trainwright.model.job import Body

RBAC = "rbac.authorization.k8s.io"
NAME = "trainwright-operator"
#: The lease that all operators of a cluster compete for. An operator that serves one namespace has its own lease there.
LEASE = "operator"
LEASE_NAMESPACE = "trainwright"
_LEASE_ROLE = f"{NAME}-lease"
_SEEN = ["list", "watch"]
_MADE = ["get", "create", "patch", "delete"]
_CHANGED = ["create", "delete", "deletecollection", "patch", "update"]


def cluster_role(kinds: Iterable[Kind]) -> Body:
    """All of it, in all namespaces."""
    listed = list(kinds)
    return _role("ClusterRole", NAME, "", [*_on_jobs(listed), *_on_the_cluster(listed)])


def lease_role(namespace: str) -> Body:
    """In the namespace of the lease. Whoever creates something cannot be held to a name."""
    leases = _rule("coordination.k8s.io", ["leases"], ["create"])
    ours = _rule("coordination.k8s.io", ["leases"], ["get", "patch"]) | {"resourceNames": [LEASE]}
    return _role("Role", _LEASE_ROLE, namespace, [leases, ours])


def lease_namespace(namespace: str, watch: str) -> str:
    """Where the lease of an operator is that runs in one namespace and serves another, or all of them."""
    return namespace if watch else LEASE_NAMESPACE


def rights(kinds: Sequence[Kind], namespace: str, watch: str, subject: Body, lease_in: str = "") -> tuple[Body, ...]:
    """Roles and bindings of an operator: for all namespaces, or for one and what no namespace has.

    `lease_in` is the namespace of its lease, by default that of the operator.
    """
    lease = lease_role(lease_in or namespace)
    if not watch:
        roles = [cluster_role(kinds), lease]
    else:
        # Operators of several namespaces are beside each other: none may take the binding of another.
        whole = _role("ClusterRole", f"{NAME}-{namespace}", "", _on_the_cluster(kinds))
        roles = [whole, _role("Role", NAME, watch, _on_jobs(kinds)), lease]
    return *roles, *(_bound(role, subject) for role in roles)


def people(kinds: Sequence[Kind], whose: str = "") -> tuple[Body, Body]:
    """What the roles that every cluster has for its users, `view`, `edit` and `admin`, come to mean for our kinds.

    `whose` tells the roles of several installations apart: whoever removes one leaves the others theirs.
    """
    seen = [rule for kind in kinds for rule in _seen_by_people(kind)]
    edited = [_rule(kind.group, [kind.plural], _CHANGED) for kind in kinds]
    return _aggregated("view", whose, seen), _aggregated("edit", whose, edited)


def _seen_by_people(kind: Kind) -> tuple[Body, Body]:
    return (
        _rule(kind.group, [kind.plural], ["get", "list", "watch"]),
        _rule(kind.group, [f"{kind.plural}/status"], ["get"]),
    )


def _aggregated(to: str, whose: str, rules: list[Body]) -> Body:
    """Kubernetes adds the rules to the role of that name; `edit` has what `view` has, `admin` what `edit` has."""
    role = _role("ClusterRole", "-".join(filter(None, ("trainwright", to, whose))), "", rules)
    role["metadata"]["labels"] = {f"{RBAC}/aggregate-to-{to}": "true"}
    return role


def _on_jobs(kinds: Sequence[Kind]) -> list[Body]:
    """Jobs and their children. What bears a child's name already is looked at: that is what `get` is for."""
    return [
        *(rule for kind in kinds for rule in _of_kind(kind)),
        _rule("", ["pods"], ["get", *_SEEN, "create", "patch", "delete"]),
        _rule("", ["services"], ["get", *_SEEN, "create", "delete"]),
        _rule("", ["configmaps"], [*_SEEN, *_MADE * any(kind.configures for kind in kinds)]),
        _rule("", ["events"], ["create"]),
        *(_rule(group, ["podgroups"], ["get", *_SEEN, "create", "patch", "delete"]) for group in _gangs(kinds)),
    ]


def _gangs(kinds: Sequence[Kind]) -> list[str]:
    """The groups of every gang API that jobs of these kinds may use, installed or not: else we could not even look."""
    return list(dict.fromkeys(gang.api.partition("/")[0] for kind in kinds for gang in kind.gangs))


def _of_kind(kind: Kind) -> tuple[Body, Body, Body]:
    """`finalizers` is what blockOwnerDeletion on its children asks of whoever makes them."""
    return (
        _rule(kind.group, [kind.plural], [*_SEEN, *["delete"] * kind.removes, *["patch"] * bool(kind.outlived)]),
        _rule(kind.group, [f"{kind.plural}/status"], ["patch"]),
        _rule(kind.group, [f"{kind.plural}/finalizers"], ["update"]),
    )


def _on_the_cluster(kinds: Sequence[Kind]) -> list[Body]:
    """Nodes that fall silent, and whether the definitions are ours: neither is in a namespace."""
    definitions = sorted({f"{kind.plural}.{kind.group}" for kind in kinds})
    return [
        _rule("", ["nodes"], _SEEN),
        _rule("apiextensions.k8s.io", ["customresourcedefinitions"], ["get"]) | {"resourceNames": definitions},
    ]


def _role(kind: str, name: str, namespace: str, rules: list[Body]) -> Body:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": name, **place}, "rules": rules}


def _bound(role: Body, subject: Body) -> Body:
    """The binding of a role, under its name and where it is."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{role['kind']}Binding",
        "metadata": dict(role["metadata"]),
        "subjects": [subject],
        "roleRef": {"apiGroup": RBAC, "kind": role["kind"], "name": role["metadata"]["name"]},
    }


def _rule(group: str, resources: list[str], verbs: list[str]) -> Body:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
