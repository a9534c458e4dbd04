# SPDX-License-Identifier: Apache-2.0
"""Other controllers of our kinds, from what a cluster holds: Deployments, roles, webhooks, leases. Pure.

Nothing says for certain which program looks after a kind. Each sign is told as what it is.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from trainwright.crd.rights import NAME
from trainwright.kinds.base import Kind
from trainwright.model.job import Body
from trainwright.model.units import moment

_OURS = ("app.kubernetes.io/name", "trainwright")
_WRITES = {"update", "patch", "*"}
#: A lease that was renewed later than this is held by a program that runs.
_FRESH = timedelta(minutes=5)


class Sign(Struct, frozen=True, rename="camel"):
    """One thing that tells of another controller."""

    #: `Deployment kubeflow/training-operator`
    object: str
    kinds: tuple[str, ...]
    detail: str
    #: It works now, or would get in the way as it is.
    active: bool = True


class Held(Struct, frozen=True):
    """The objects of a cluster that may tell of controllers, as far as they may be read."""

    deployments: Sequence[Body] = ()
    roles: Sequence[Body] = ()
    bindings: Sequence[Body] = ()
    webhooks: Sequence[Body] = ()
    leases: Sequence[Body] = ()


def signs(kinds: Sequence[Kind], held: Held, now: datetime) -> tuple[Sign, ...]:
    """Everything that tells of a controller other than ours."""
    accounts = _accounts(kinds, held)
    return (
        *_deployments(kinds, held.deployments, accounts),
        *_bound(accounts, held.deployments),
        *_webhooks(kinds, held.webhooks),
        *_leases(kinds, held.leases, now),
    )


def ours(deployments: Iterable[Body]) -> tuple[str, ...]:
    """Operators of Trainwright that are installed: where, and their image."""
    found = [one for one in deployments if _is_ours(one)]
    return tuple(f"{_name(one)} ({', '.join(_images(one))})" for one in found)


def _deployments(
    kinds: Sequence[Kind], deployments: Iterable[Body], accounts: dict[tuple[str, str], tuple[str, ...]]
) -> list[Sign]:
    found = []
    for one in deployments:
        if _is_ours(one):
            continue
        words = " ".join((one["metadata"]["name"], *_images(one), *_commands(one))).lower()
        named = [kind.name for kind in kinds if any(word in words for word in kind.originals)]
        account = (one["metadata"].get("namespace", ""), _pod(one).get("serviceAccountName") or "default")
        whose = tuple(dict.fromkeys((*named, *accounts.get(account, ()))))
        if whose:
            wanted = (one.get("spec") or {}).get("replicas", 1)
            detail = f"{', '.join(_images(one))}, {wanted} replica{'s' * (wanted != 1)}"
            found.append(Sign(f"Deployment {_name(one)}", whose, detail, active=wanted > 0))
    return found


def _accounts(kinds: Sequence[Kind], held: Held) -> dict[tuple[str, str], tuple[str, ...]]:
    """Service accounts that may write the status of our kinds, by name; wildcards are administrators' and say nothing.

    Nobody but a controller has reason to write a status.
    """
    may = {_role(one): [kind.name for kind in kinds if _may_write(kind, one)] for one in held.roles}
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for binding in held.bindings:
        ref, space = binding.get("roleRef") or {}, binding["metadata"].get("namespace", "")
        where = "" if ref.get("kind") == "ClusterRole" else space
        whose = may.get((ref.get("kind", ""), where, ref.get("name", "")), [])
        for subject in (binding.get("subjects") or ()) if whose else ():
            if subject.get("kind") == "ServiceAccount" and subject.get("name") != NAME:
                account = (subject.get("namespace") or space, subject["name"])
                found[account] = tuple(dict.fromkeys((*found.get(account, ()), *whose)))
    return found


def _role(role: Body) -> tuple[str, str, str]:
    return role["kind"], role["metadata"].get("namespace", ""), role["metadata"]["name"]


def _may_write(kind: Kind, role: Body) -> bool:
    for rule in role.get("rules") or ():
        status = {f"{kind.plural}/status", "*/status", "*"} & set(rule.get("resources") or ())
        if kind.group in (rule.get("apiGroups") or ()) and status and _WRITES & set(rule.get("verbs") or ()):
            return True
    return False


def _bound(accounts: dict[tuple[str, str], tuple[str, ...]], deployments: Iterable[Body]) -> list[Sign]:
    """Accounts with such rights that no Deployment runs under: a controller may run elsewhere, or be gone."""
    used = {
        (one["metadata"].get("namespace", ""), _pod(one).get("serviceAccountName") or "default") for one in deployments
    }
    text = "may write the status of these jobs; no Deployment runs under it"
    return [
        Sign(f"ServiceAccount {space}/{name}", whose, text, active=False)
        for (space, name), whose in accounts.items()
        if (space, name) not in used
    ]


def _webhooks(kinds: Sequence[Kind], configurations: Iterable[Body]) -> list[Sign]:
    found = []
    for one in configurations:
        for hook in one.get("webhooks") or ():
            whose = tuple(kind.name for kind in kinds if any(_asks(kind, rule) for rule in hook.get("rules") or ()))
            if whose:
                policy = hook.get("failurePolicy", "Fail")
                text = f"webhook {hook['name']} is asked about these jobs, failurePolicy {policy}"
                found.append(Sign(f"{one['kind']} {one['metadata']['name']}", whose, text, active=policy == "Fail"))
    return found


def _asks(kind: Kind, rule: Body) -> bool:
    resources = {resource.partition("/")[0] for resource in rule.get("resources") or ()}
    return kind.group in (rule.get("apiGroups") or ()) and bool(resources & {kind.plural, "*"})


def _leases(kinds: Sequence[Kind], leases: Iterable[Body], now: datetime) -> list[Sign]:
    found = []
    for one in leases:
        name, spec = one["metadata"]["name"], one.get("spec") or {}
        whose = tuple(
            kind.name
            for kind in kinds
            if any(word in name for word in kind.originals) or name.endswith(f".{kind.group}")
        )
        if whose and spec.get("holderIdentity"):
            renewed = moment(spec.get("renewTime") or "")
            fresh = renewed is not None and now - renewed < _FRESH
            detail = f"held by {spec['holderIdentity']}, renewed {spec.get('renewTime') or 'never'}"
            found.append(Sign(f"Lease {_name(one)}", whose, detail, active=fresh))
    return found


def _is_ours(deployment: Body) -> bool:
    meta = deployment["metadata"]
    return (meta.get("labels") or {}).get(_OURS[0]) == _OURS[1] or meta["name"] == NAME


def _name(body: Body) -> str:
    meta = body["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"


def _pod(deployment: Body) -> Body:
    found: Body = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    return found


def _images(deployment: Body) -> list[str]:
    return [str(one.get("image") or "") for one in _pod(deployment).get("containers") or ()]


def _commands(deployment: Body) -> list[str]:
    return [word for one in _pod(deployment).get("containers") or () for word in one.get("command") or ()]
