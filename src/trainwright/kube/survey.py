# SPDX-License-Identifier: Apache-2.0
"""A survey of a cluster before an installation: our CRDs, other controllers of the same kinds, and existing jobs.

The survey only reads, with the permissions of the caller. If the caller has no permission to read something, the report
says so; this is not an error. No object proves which program manages a kind, so the survey reports each sign of a
controller with its details.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from trainwright.crd.compare import CrdOrigin, InstalledCrd, installed, listed
from trainwright.crd.rbac import LEASE, LEASE_NAMESPACE, NAME
from trainwright.errors import ForbiddenError, NotFoundError
from trainwright.kinds.base import Kind, load
from trainwright.kube.cluster import KubeCluster
from trainwright.kube.codec import Request, object_path
from trainwright.model.job import Body
from trainwright.model.ledger import Phase
from trainwright.model.meta import ADOPT, Key
from trainwright.model.units import parse_time
from trainwright.runtime.ports import DEFINITIONS, EVERYTHING, LEASES, Resource, Selection

_OUR_LABEL = ("app.kubernetes.io/name", "trainwright")
_WRITE_VERBS = {"update", "patch", "*"}
#: The holder of a lease counts as alive if it renewed the lease within this time.
_LEASE_FRESHNESS = timedelta(minutes=5)
_RBAC, _HOOKS = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
#: The resources that are read for each field of `ControllerObjects`.
_SOURCES = {
    "deployments": [Resource("apps", "v1", "deployments", "Deployment")],
    "roles": [
        Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
        Resource(_RBAC, "v1", "roles", "Role"),
    ],
    "bindings": [
        Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
        Resource(_RBAC, "v1", "rolebindings", "RoleBinding"),
    ],
    "webhooks": [
        Resource(_HOOKS, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False),
        Resource(_HOOKS, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False),
    ],
    "leases": [LEASES.whole()],
}


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


class JobCounts(Struct, frozen=True, rename="camel"):
    """The number of jobs of one kind."""

    total: int = 0
    unfinished: int = 0
    running: int = 0
    #: The number of unfinished jobs by manager: `trainwright`, `nobody yet`, or the controller that wrote their status.
    unfinished_by: dict[str, int] = {}
    #: Unfinished jobs of other controllers. The operator does not touch them.
    foreign: tuple[str, ...] = ()


class KindSurvey(Struct, frozen=True, rename="camel"):
    """What the survey found for one kind."""

    kind: str
    definition: InstalledCrd
    #: The numbers of jobs; None if the caller has no permission to read jobs.
    jobs: JobCounts | None


class Survey(Struct, frozen=True, rename="camel"):
    """The result of the survey."""

    server: str
    kinds: tuple[KindSurvey, ...]
    controllers: tuple[ControllerSign, ...]
    #: The installed operators of Trainwright, and the leases that an operator holds now.
    operators: tuple[str, ...]
    not_permitted: tuple[str, ...]

    @property
    def decisions(self) -> tuple[str, ...]:
        """The decisions that the user must make before an installation, each with the possible actions."""
        found = [text for one in self.kinds for text in (*_definition_decisions(one), *_job_decisions(one))]
        names = [one.kind for one in self.kinds]
        return tuple(found + [_controller_decision(one, names) for one in self.controllers if one.active])


async def survey(cluster: KubeCluster, server: str, namespace: str, kinds: Sequence[Kind], now: datetime) -> Survey:
    """Survey the cluster. If the caller has no permission for all namespaces, the survey reads only `namespace`."""
    reader = _Reader(cluster, namespace)
    surveys = [await _survey_kind(reader, kind) for kind in kinds]
    found: dict[str, list[Body]] = {}
    for name, resources in _SOURCES.items():
        found[name] = [one for resource in resources for one in await reader.readable(resource) or ()]
    objects = ControllerObjects(**found)
    controllers = other_controllers(kinds, objects, now)
    operators = (*own_operators(objects.deployments), *held_leases(objects.leases, objects.deployments, now))
    return Survey(server, tuple(surveys), controllers, operators, tuple(dict.fromkeys(reader.forbidden)))


class _Reader:
    """Reads what the caller has permission to read, and records the requests that the API server forbids."""

    def __init__(self, cluster: KubeCluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self.forbidden: list[str] = []

    async def definition(self, kind: Kind) -> Body | None:
        """The whole CRD with its managedFields; None if it is not installed. Raises ForbiddenError."""
        key = Key("", f"{kind.plural}.{kind.group}")
        try:
            data = await self._cluster.http.send(
                Request("get", DEFINITIONS.id, object_path(DEFINITIONS, key), idempotent=True)
            )
        except NotFoundError:
            return None
        except ForbiddenError:
            self.forbidden.append(f"get {DEFINITIONS.plural} {key.name}")
            raise
        body: Body = msgspec.json.decode(data)
        return body

    async def readable(self, resource: Resource) -> Sequence[Body] | None:
        """The objects of all namespaces. If the server forbids this: those of `namespace`. If it forbids both: None."""
        request, one_namespace = f"list {resource.id}", Selection(namespace=self._namespace)
        for scope in (EVERYTHING, one_namespace) if resource.namespaced else (EVERYTHING,):
            try:
                found = (await self._cluster.list(resource, scope)).items
            except NotFoundError:
                return ()
            except ForbiddenError:
                continue
            if scope is one_namespace:
                self.forbidden.append(f"{request} in all namespaces: only {self._namespace} was read")
            return found
        self.forbidden.append(request)
        return None


async def _survey_kind(reader: _Reader, kind: Kind) -> KindSurvey:
    name = f"{kind.plural}.{kind.group}"
    version = kind.version
    try:
        definition = await reader.definition(kind)
    except ForbiddenError:
        found = InstalledCrd(name, CrdOrigin.UNKNOWN)
    else:
        if definition is None:
            return KindSurvey(kind.title, InstalledCrd(name, CrdOrigin.ABSENT), JobCounts())
        found = installed(kind, definition)
        version = version if version in found.serves else next(iter(found.serves), version)
    bodies = await reader.readable(Resource(kind.group, version, kind.plural, kind.name))
    return KindSurvey(kind.title, found, None if bodies is None else _counts(kind, bodies))


def _counts(kind: Kind, bodies: Sequence[Body]) -> JobCounts:
    """Count the jobs, and the unfinished jobs by manager."""
    by_manager: Counter[str] = Counter()
    foreign, running = [], 0
    for body in bodies:
        loaded = load(kind, body)
        job = loaded.job
        if job.ledger.outcome is not None:
            continue
        # Another controller may have written this status. `loaded.status` has only the fields that we can decode.
        running += kind.phase_of(msgspec.to_builtins(loaded.status or {})) == "Running"
        if job.foreign:
            foreign.append(str(job.key))
        manager = job.foreign or ("nobody yet" if job.ledger.phase is Phase.NEW else "trainwright")
        by_manager["the manager that their manifest names" if job.unmanaged else manager] += 1
    return JobCounts(len(bodies), by_manager.total(), running, dict(sorted(by_manager.items())), tuple(sorted(foreign)))


# -- signs of other controllers ----------------------------------------------------------------------------------------


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


# -- decisions for the user --------------------------------------------------------------------------------------------


def _definition_decisions(one: KindSurvey) -> list[str]:
    """What an installation would do to the CRD and to stored objects, and why the operator would refuse the CRD."""
    found, texts = one.definition, list[str]()
    if found.origin is CrdOrigin.OTHER:
        unserved = f"; {', '.join(found.vanish)} would no longer be served" if found.vanish else ""
        lost = f"; stored objects would lose {listed(list(found.pruned))}" if found.pruned else ""
        texts.append(
            f"{found.name} is another owner's ({found.owner}), and an install replaces it{unserved}{lost}. Remove that"
            f" operator first, or leave the kind out with --kinds. `kubectl get crd {found.name} -o yaml` keeps a copy"
        )
    elif found.unusable:
        texts.append(f"the operator would refuse to start: {found.unusable}")
    if found.origin is CrdOrigin.OURS and found.pruned:
        texts.append(
            f"{found.name} is of a newer Trainwright (version {found.version or 'unknown'}), and an install would"
            f" drop {listed(list(found.pruned))}. Leave the definitions as they are: `trainwright manifests --no-crds`"
        )
    if found.stored:
        texts.append(
            f"objects of {found.name} are stored as {', '.join(found.stored)}, which our definition does not have: the"
            " API server refuses an install until they are stored in another version and status.storedVersions lists it"
        )
    return texts


def _job_decisions(one: KindSurvey) -> list[str]:
    foreign = one.jobs.foreign if one.jobs is not None else ()
    if not foreign:
        return []
    number = f"{len(foreign)} unfinished {one.kind}{'s' * (len(foreign) != 1)} of another controller"
    resource = f"{one.kind.lower()}.{one.definition.name.partition('.')[2]}"
    return [
        f"{number}: {listed(list(foreign))}. The operator does not touch such jobs. Let them end, or stop that"
        f" controller and hand each over: `kubectl annotate {resource} NAME -n NAMESPACE {ADOPT}=true`;"
        " the job then starts again"
    ]


def _controller_decision(sign: ControllerSign, kinds: Sequence[str]) -> str:
    others = ",".join(kind.lower() for kind in kinds if kind not in sign.kinds)
    leave = f", or leave the kind to it with `trainwright manifests --kinds {others}`" if others else ""
    return (
        f"{sign.object} is a sign of another controller for {', '.join(sign.kinds)} ({sign.detail}): remove it{leave}"
    )
