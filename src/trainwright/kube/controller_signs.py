# SPDX-License-Identifier: Apache-2.0
"""Signs of other controllers of our kinds: Deployments, service accounts with rights, webhooks and leases. Pure.

No object proves which program manages a kind, so each sign is reported with its details.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from trainwright.crd.rbac import LEASE, LEASE_NAMESPACE, NAME
from trainwright.kinds.base import Kind
from trainwright.model.job import Body
from trainwright.model.units import parse_time

_OUR_LABEL = ("app.kubernetes.io/name", "trainwright")
_WRITE_VERBS = {"update", "patch", "*"}
#: The holder of a lease counts as alive if it renewed the lease within this time.
_LEASE_FRESHNESS = timedelta(minutes=5)


class ControllerSign(Struct, frozen=True, rename="camel"):
    """An object that is a sign of another controller."""

    #: Kind, namespace and name of the object, for example `Deployment kubeflow/training-operator`.
    object: str
    kinds: tuple[str, ...]
    detail: str
    #: Whether this sign needs a decision: the controller works now, or its webhook can block requests for our jobs.
    active: bool = True


class ControllerObjects(Struct, frozen=True):
    """The objects of a cluster that can be signs of controllers, if the caller has permission to read them."""

    deployments: Sequence[Body] = ()
    roles: Sequence[Body] = ()
    bindings: Sequence[Body] = ()
    webhooks: Sequence[Body] = ()
    leases: Sequence[Body] = ()


def other_controllers(kinds: Sequence[Kind], objects: ControllerObjects, now: datetime) -> tuple[ControllerSign, ...]:
    """All signs of controllers other than ours."""
    accounts = _accounts(kinds, objects)
    return (
        *_deployments(kinds, objects.deployments, accounts),
        *_unused_accounts(accounts, objects.deployments),
        *_webhooks(kinds, objects.webhooks),
        *_leases(kinds, objects.leases, now),
    )


def own_operators(deployments: Iterable[Body]) -> tuple[str, ...]:
    """The installed operators of Trainwright, each with its namespace and image."""
    found = [one for one in deployments if _is_ours(one)]
    return tuple(f"{_name(one)} ({', '.join(_images(one))})" for one in found)


def held_leases(leases: Iterable[Body], deployments: Iterable[Body], now: datetime) -> tuple[str, ...]:
    """The leases that operators of Trainwright hold now. An operator on a laptop has no Deployment, only a lease."""
    namespaces = {one["metadata"].get("namespace") for one in deployments if _is_ours(one)} | {LEASE_NAMESPACE}
    found = []
    for one in leases:
        meta, spec = one["metadata"], one.get("spec") or {}
        is_ours = meta["name"] == LEASE and meta.get("namespace") in namespaces
        if is_ours and spec.get("holderIdentity") and _is_fresh(spec, now):
            found.append(f"Lease {_name(one)}, held by {spec['holderIdentity']}")
    return tuple(found)


def _deployments(
    kinds: Sequence[Kind], deployments: Iterable[Body], accounts: dict[tuple[str, str], tuple[str, ...]]
) -> list[ControllerSign]:
    found = []
    for one in deployments:
        if _is_ours(one):
            continue
        commands = [word for each in _pod(one).get("containers") or () for word in each.get("command") or ()]
        text = " ".join((one["metadata"]["name"], *_images(one), *commands)).lower()
        named = [kind.title for kind in kinds if any(word in text for word in kind.controller_names)]
        names = tuple(dict.fromkeys((*named, *accounts.get(_account(one), ()))))
        if names:
            replicas = (one.get("spec") or {}).get("replicas", 1)
            detail = f"{', '.join(_images(one))}, {replicas} replica{'s' * (replicas != 1)}"
            found.append(ControllerSign(f"Deployment {_name(one)}", names, detail, active=replicas > 0))
    return found


def _accounts(kinds: Sequence[Kind], objects: ControllerObjects) -> dict[tuple[str, str], tuple[str, ...]]:
    """For each service account: the kinds whose status it can write. Only a controller needs this permission.

    Rules for all API groups (`*`) do not count, because administrators have such rules.
    """
    writable = {_role(one): [kind.title for kind in kinds if _may_write(kind, one)] for one in objects.roles}
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for binding in objects.bindings:
        ref, namespace = binding.get("roleRef") or {}, binding["metadata"].get("namespace", "")
        role_namespace = "" if ref.get("kind") == "ClusterRole" else namespace
        names = writable.get((ref.get("kind", ""), role_namespace, ref.get("name", "")), [])
        for subject in (binding.get("subjects") or ()) if names else ():
            if subject.get("kind") == "ServiceAccount" and subject.get("name") != NAME:
                account = (subject.get("namespace") or namespace, subject["name"])
                found[account] = tuple(dict.fromkeys((*found.get(account, ()), *names)))
    return found


def _role(role: Body) -> tuple[str, str, str]:
    return role["kind"], role["metadata"].get("namespace", ""), role["metadata"]["name"]


def _may_write(kind: Kind, role: Body) -> bool:
    for rule in role.get("rules") or ():
        status = {f"{kind.plural}/status", "*/status", "*"} & set(rule.get("resources") or ())
        if kind.group in (rule.get("apiGroups") or ()) and status and _WRITE_VERBS & set(rule.get("verbs") or ()):
            return True
    return False


def _unused_accounts(
    accounts: dict[tuple[str, str], tuple[str, ...]], deployments: Iterable[Body]
) -> list[ControllerSign]:
    """Those `accounts` that no Deployment uses. Perhaps their controller runs elsewhere, or it was removed."""
    used = {_account(one) for one in deployments}
    text = "may write the status of these jobs; no Deployment uses it"
    return [
        ControllerSign(f"ServiceAccount {namespace}/{name}", names, text, active=False)
        for (namespace, name), names in accounts.items()
        if (namespace, name) not in used
    ]


def _webhooks(kinds: Sequence[Kind], configurations: Iterable[Body]) -> list[ControllerSign]:
    found = []
    for one in configurations:
        for hook in one.get("webhooks") or ():
            names = tuple(kind.title for kind in kinds if any(_covers(kind, rule) for rule in hook.get("rules") or ()))
            if names:
                policy = hook.get("failurePolicy", "Fail")
                text = f"webhook {hook['name']} checks these jobs, failurePolicy {policy}"
                found.append(
                    ControllerSign(f"{one['kind']} {one['metadata']['name']}", names, text, active=policy == "Fail")
                )
    return found


def _covers(kind: Kind, rule: Body) -> bool:
    resources = {resource.partition("/")[0] for resource in rule.get("resources") or ()}
    return kind.group in (rule.get("apiGroups") or ()) and bool(resources & {kind.plural, "*"})


def _leases(kinds: Sequence[Kind], leases: Iterable[Body], now: datetime) -> list[ControllerSign]:
    found = []
    for one in leases:
        name, spec = one["metadata"]["name"], one.get("spec") or {}
        names = tuple(
            kind.title
            for kind in kinds
            if any(word in name for word in kind.controller_names) or name.endswith(f".{kind.group}")
        )
        if names and spec.get("holderIdentity"):
            detail = f"held by {spec['holderIdentity']}, renewed {spec.get('renewTime') or 'never'}"
            found.append(ControllerSign(f"Lease {_name(one)}", names, detail, active=_is_fresh(spec, now)))
    return found


def _is_fresh(lease_spec: Body, now: datetime) -> bool:
    renewed = parse_time(lease_spec.get("renewTime") or "")
    return renewed is not None and now - renewed < _LEASE_FRESHNESS


def _is_ours(deployment: Body) -> bool:
    meta = deployment["metadata"]
    return (meta.get("labels") or {}).get(_OUR_LABEL[0]) == _OUR_LABEL[1] or meta["name"] == NAME


def _name(body: Body) -> str:
    meta = body["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"


def _pod(deployment: Body) -> Body:
    found: Body = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    return found


def _account(deployment: Body) -> tuple[str, str]:
    return deployment["metadata"].get("namespace", ""), _pod(deployment).get("serviceAccountName") or "default"


def _images(deployment: Body) -> list[str]:
    return [str(one.get("image") or "") for one in _pod(deployment).get("containers") or ()]
