# SPDX-License-Identifier: Apache-2.0
"""The roles of the operator, with exactly the verbs that it uses, and the roles for users of our kinds.

The tests on a real control plane run the operator with these roles. They fail if the operator makes a request outside
of the rules, and also if no request uses a rule.
"""

from collections.abc import Sequence

from trainwright.kinds.base import Kind
from trainwright.model.job import Body

RBAC = "rbac.authorization.k8s.io"
NAME = "trainwright-operator"
#: The lease for leader election between all operators of a cluster. An operator for one namespace has its own lease.
LEASE = "operator"
LEASE_NAMESPACE = "trainwright"
_LEASE_ROLE = f"{NAME}-lease"
_WATCH = ["list", "watch"]
_MANAGE = ["get", "create", "patch", "delete"]
_EDIT = ["create", "delete", "deletecollection", "patch", "update"]


def cluster_role(kinds: Sequence[Kind]) -> Body:
    """The role of an operator that manages the jobs of all namespaces."""
    return _role("ClusterRole", NAME, "", [*_namespaced_rules(kinds), *_cluster_rules(kinds)])


def lease_role(namespace: str) -> Body:
    """The role for the lease, in the namespace of the lease. RBAC cannot limit `create` to objects of one name."""
    leases = _rule("coordination.k8s.io", ["leases"], ["create"])
    ours = _rule("coordination.k8s.io", ["leases"], ["get", "patch"]) | {"resourceNames": [LEASE]}
    return _role("Role", _LEASE_ROLE, namespace, [leases, ours])


def lease_namespace(namespace: str, watch: str) -> str:
    """The namespace of the lease, for an operator in `namespace` that manages the jobs of `watch` (empty: all)."""
    return namespace if watch else LEASE_NAMESPACE


def rights(kinds: Sequence[Kind], namespace: str, watch: str, subject: Body, lease_in: str = "") -> tuple[Body, ...]:
    """The roles and bindings of an operator for all namespaces, or only for the namespace `watch`.

    `lease_in` is the namespace of the lease, by default the namespace of the operator.
    """
    lease = lease_role(lease_in or namespace)
    if not watch:
        roles = [cluster_role(kinds), lease]
    else:
        # A cluster may have several such operators. With equal names, one install would replace the roles of another.
        cluster = _role("ClusterRole", f"{NAME}-{namespace}", "", _cluster_rules(kinds))
        roles = [cluster, _role("Role", NAME, watch, _namespaced_rules(kinds)), lease]
    return *roles, *(binding(role["metadata"], subject, role["kind"], role["metadata"]["name"]) for role in roles)


def people(kinds: Sequence[Kind], suffix: str = "") -> tuple[Body, Body]:
    """Roles that extend the default roles `view`, `edit` and `admin` of every cluster to our kinds.

    The suffix gives the roles of each installation their own names, so that one installation can be removed alone.
    """
    view: list[Body] = []
    for kind in kinds:
        view.append(_rule(kind.group, [kind.plural], ["get", "list", "watch"]))
        view.append(_rule(kind.group, [f"{kind.plural}/{name}" for name in ("status", *_scale(kind))], ["get"]))
    edit = [_rule(kind.group, [kind.plural], _EDIT) for kind in kinds]
    edit += [_rule(kind.group, [f"{kind.plural}/scale"], ["patch", "update"]) for kind in kinds if _scale(kind)]
    return _aggregated("view", suffix, view), _aggregated("edit", suffix, edit)


def _scale(kind: Kind) -> tuple[str, ...]:
    """The name of the scale subresource, if the kind has one."""
    return ("scale",) if kind.scale_paths is not None else ()


def _aggregated(to: str, suffix: str, rules: list[Body]) -> Body:
    """A role whose rules Kubernetes adds to the default role `to`. `edit` includes `view`, `admin` includes `edit`."""
    role = _role("ClusterRole", "-".join(filter(None, ("trainwright", to, suffix))), "", rules)
    role["metadata"]["labels"] = {f"{RBAC}/aggregate-to-{to}": "true"}
    return role


def _namespaced_rules(kinds: Sequence[Kind]) -> list[Body]:
    """The rules for jobs and their children. `get` is needed if another object already has the name of a new child."""
    return [
        *(rule for kind in kinds for rule in _job_rules(kind)),
        _rule("", ["pods"], ["get", *_WATCH, "create", "patch", "delete"]),
        _rule("", ["services"], ["get", *_WATCH, "create", "delete"]),
        _rule("", ["configmaps"], [*_WATCH, *_MANAGE * any(kind.has_config_map for kind in kinds)]),
        _rule("", ["events"], ["create"]),
        *(_rule(group, ["podgroups"], ["get", *_WATCH, "create", "patch", "delete"]) for group in _gang_groups(kinds)),
        *_autoscaler_rules(kinds),
    ]


def _autoscaler_rules(kinds: Sequence[Kind]) -> list[Body]:
    """The rule for autoscalers, if jobs of these kinds may have one."""
    verbs = ["get", *_WATCH, "create", "patch", "delete"]
    has_any = any(kind.has_autoscaler for kind in kinds)
    return [_rule("autoscaling", ["horizontalpodautoscalers"], verbs)] if has_any else []


def _gang_groups(kinds: Sequence[Kind]) -> list[str]:
    """The API groups of all gang schedulers for these kinds. The operator checks which of them exist."""
    return list(dict.fromkeys(gang.api.partition("/")[0] for kind in kinds for gang in kind.gangs))


def _job_rules(kind: Kind) -> tuple[Body, Body, Body]:
    """The rules for one kind. Children with blockOwnerDeletion require the right to update the job's `finalizers`."""
    return (
        _rule(
            kind.group,
            [kind.plural],
            [*_WATCH, *["delete"] * kind.has_ttl, *["patch"] * bool(kind.obsolete_finalizers)],
        ),
        _rule(kind.group, [f"{kind.plural}/status"], ["patch", "update"]),
        _rule(kind.group, [f"{kind.plural}/finalizers"], ["update"]),
    )


def _cluster_rules(kinds: Sequence[Kind]) -> list[Body]:
    """The rules for resources without a namespace: nodes, to notice failures, and CRDs, to check their schemas."""
    definitions = sorted({f"{kind.plural}.{kind.group}" for kind in kinds})
    return [
        _rule("", ["nodes"], _WATCH),
        _rule("apiextensions.k8s.io", ["customresourcedefinitions"], ["get"]) | {"resourceNames": definitions},
    ]


def _role(kind: str, name: str, namespace: str, rules: list[Body]) -> Body:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules}


def binding(metadata: Body, subject: Body, role_kind: str, role: str) -> Body:
    """The binding of a role. It is in a namespace if the metadata contain a namespace."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if "namespace" in metadata else "ClusterRoleBinding",
        "metadata": dict(metadata),
        "subjects": [subject],
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
    }


def _rule(group: str, resources: list[str], verbs: list[str]) -> Body:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
