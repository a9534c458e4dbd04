# SPDX-License-Identifier: Apache-2.0
"""Other controllers of our kinds, from what a cluster holds: Deployments, roles, webhooks, leases. Pure.

Nothing says for certain which program looks after a kind. Each sign is told as what it is.

What a cluster holds that an install would meet: definitions, other controllers, jobs. With the caller's rights.

Reads only. What may not be read is part of the report, and never a failure.
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
from trainwright.kube.codec import Request, one_of
from trainwright.model.job import Body
from trainwright.model.ledger import Phase
from trainwright.model.meta import ADOPT, Key
from trainwright.model.units import moment
from trainwright.runtime.ports import DEFINITIONS, Resource, Selection

_OURS = ("app.kubernetes.io/name", "trainwright")
_WRITES = {"update", "patch", "*"}
#: A lease that was renewed later than this is held by a program that runs.
_FRESH = timedelta(minutes=5)


class ControllerSign(Struct, frozen=True, rename="camel"):
    """One thing that tells of another controller."""

    #: `Deployment kubeflow/training-operator`
    object: str
    kinds: tuple[str, ...]
    detail: str
    #: It works now, or would get in the way as it is.
    active: bool = True


class ControllerObjects(Struct, frozen=True):
    """The objects of a cluster that may tell of controllers, as far as they may be read."""

    deployments: Sequence[Body] = ()
    roles: Sequence[Body] = ()
    bindings: Sequence[Body] = ()
    webhooks: Sequence[Body] = ()
    leases: Sequence[Body] = ()


def signs(kinds: Sequence[Kind], held: ControllerObjects, now: datetime) -> tuple[ControllerSign, ...]:
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
) -> list[ControllerSign]:
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
            found.append(ControllerSign(f"Deployment {_name(one)}", whose, detail, active=wanted > 0))
    return found


def _accounts(kinds: Sequence[Kind], held: ControllerObjects) -> dict[tuple[str, str], tuple[str, ...]]:
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


def _bound(accounts: dict[tuple[str, str], tuple[str, ...]], deployments: Iterable[Body]) -> list[ControllerSign]:
    """Accounts with such rights that no Deployment runs under: a controller may run elsewhere, or be gone."""
    used = {
        (one["metadata"].get("namespace", ""), _pod(one).get("serviceAccountName") or "default") for one in deployments
    }
    text = "may write the status of these jobs; no Deployment runs under it"
    return [
        ControllerSign(f"ServiceAccount {space}/{name}", whose, text, active=False)
        for (space, name), whose in accounts.items()
        if (space, name) not in used
    ]


def _webhooks(kinds: Sequence[Kind], configurations: Iterable[Body]) -> list[ControllerSign]:
    found = []
    for one in configurations:
        for hook in one.get("webhooks") or ():
            whose = tuple(kind.name for kind in kinds if any(_asks(kind, rule) for rule in hook.get("rules") or ()))
            if whose:
                policy = hook.get("failurePolicy", "Fail")
                text = f"webhook {hook['name']} is asked about these jobs, failurePolicy {policy}"
                found.append(
                    ControllerSign(f"{one['kind']} {one['metadata']['name']}", whose, text, active=policy == "Fail")
                )
    return found


def _asks(kind: Kind, rule: Body) -> bool:
    resources = {resource.partition("/")[0] for resource in rule.get("resources") or ()}
    return kind.group in (rule.get("apiGroups") or ()) and bool(resources & {kind.plural, "*"})


def _leases(kinds: Sequence[Kind], leases: Iterable[Body], now: datetime) -> list[ControllerSign]:
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
            found.append(ControllerSign(f"Lease {_name(one)}", whose, detail, active=fresh))
    return found


def leading(leases: Iterable[Body], deployments: Iterable[Body], now: datetime) -> tuple[str, ...]:
    """The leases by which operators of Trainwright lead now, also one that runs on a laptop and has no Deployment."""
    namespaces = {one["metadata"].get("namespace") for one in deployments if _is_ours(one)} | {LEASE_NAMESPACE}
    found = []
    for one in leases:
        meta, spec = one["metadata"], one.get("spec") or {}
        renewed = moment(spec.get("renewTime") or "")
        fresh = renewed is not None and now - renewed < _FRESH
        if meta["name"] == LEASE and meta.get("namespace") in namespaces and spec.get("holderIdentity") and fresh:
            found.append(f"Lease {_name(one)}, held by {spec['holderIdentity']}")
    return tuple(found)


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


_RBAC, _HOOKS = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
_ROLES = (
    Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource(_RBAC, "v1", "roles", "Role"),
)
_BINDINGS = (
    Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Resource(_RBAC, "v1", "rolebindings", "RoleBinding"),
)
_WEBHOOKS = (
    Resource(_HOOKS, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False),
    Resource(_HOOKS, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False),
)
_LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


class JobCounts(Struct, frozen=True, rename="camel"):
    """The jobs of one kind that are there."""

    total: int = 0
    unfinished: int = 0
    running: int = 0
    #: Unfinished jobs by who looks after them: `trainwright`, `nobody yet`, or who wrote their status.
    unfinished_by: dict[str, int] = {}
    #: Unfinished jobs that the operator will leave alone.
    foreign: tuple[str, ...] = ()


class KindSurvey(Struct, frozen=True, rename="camel"):
    """One kind."""

    kind: str
    definition: InstalledCrd
    #: None: they may not be read.
    jobs: JobCounts | None


class Survey(Struct, frozen=True, rename="camel"):
    """Everything that was found."""

    server: str
    kinds: tuple[KindSurvey, ...]
    controllers: tuple[ControllerSign, ...]
    #: Operators of Trainwright that are installed, and the leases by which one leads now.
    operators: tuple[str, ...]
    not_permitted: tuple[str, ...]

    @property
    def decisions(self) -> tuple[str, ...]:
        """What somebody has to decide before an install, each with what can be done about it."""
        found = [text for one in self.kinds for text in (*_of_definition(one), *_of_jobs(one))]
        names = [one.kind for one in self.kinds]
        return tuple(found + [_of_controller(one, names) for one in self.controllers if one.active])


async def survey(cluster: KubeCluster, server: str, namespace: str, kinds: Sequence[Kind], now: datetime) -> Survey:
    """Look at everything; `namespace` is for callers who may not look into all of them."""
    reader = _Reader(cluster, namespace)
    found = [await _of_kind(reader, kind) for kind in kinds]
    held = ControllerObjects(
        deployments=await reader.every(_DEPLOYMENTS),
        roles=[one for resource in _ROLES for one in await reader.every(resource)],
        bindings=[one for resource in _BINDINGS for one in await reader.every(resource)],
        webhooks=[one for resource in _WEBHOOKS for one in await reader.every(resource)],
        leases=await reader.every(_LEASES),
    )
    told = signs(kinds, held, now)
    operators = (*ours(held.deployments), *leading(held.leases, held.deployments, now))
    return Survey(server, tuple(found), told, operators, tuple(dict.fromkeys(reader.refused)))


class _Reader:
    """Reads what may be read, and notes what may not."""

    def __init__(self, cluster: KubeCluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self.refused: list[str] = []

    async def definition(self, kind: Kind) -> Body | None:
        """The CRD as it is stored, managedFields and all; None: there is none. ForbiddenError if it may not be read."""
        key = Key("", f"{kind.plural}.{kind.group}")
        try:
            data = await self._cluster.http.ask(
                Request("get", DEFINITIONS.id, one_of(DEFINITIONS, key), repeatable=True)
            )
        except NotFoundError:
            return None
        except ForbiddenError:
            self.refused.append(f"get {DEFINITIONS.plural} {key.name}")
            raise
        body: Body = msgspec.json.decode(data)
        return body

    async def every(self, resource: Resource) -> Sequence[Body]:
        """All objects, or those of the caller's namespace where only these may be read; none if the API is absent."""
        return await self.allowed(resource) or ()

    async def allowed(self, resource: Resource) -> Sequence[Body] | None:
        """The same; None: nothing may be read."""
        try:
            return (await self._cluster.list(resource)).items
        except NotFoundError:
            return ()
        except ForbiddenError:
            what = f"list {resource.id}"
        if not resource.namespaced:
            self.refused.append(what)
            return None
        try:
            found = (await self._cluster.list(resource, Selection(namespace=self._namespace))).items
        except NotFoundError:
            return ()
        except ForbiddenError:
            self.refused.append(what)
            return None
        self.refused.append(f"{what} in all namespaces: only {self._namespace} was looked at")
        return found


async def _of_kind(reader: _Reader, kind: Kind) -> KindSurvey:
    name = f"{kind.plural}.{kind.group}"
    version = kind.version
    try:
        definition = await reader.definition(kind)
    except ForbiddenError:
        found = InstalledCrd(name, CrdOrigin.UNKNOWN)
    else:
        if definition is None:
            return KindSurvey(kind.name, InstalledCrd(name, CrdOrigin.ABSENT), JobCounts())
        found = installed(kind, definition)
        version = version if version in found.serves else next(iter(found.serves), version)
    bodies = await reader.allowed(Resource(kind.group, version, kind.plural, kind.name))
    return KindSurvey(kind.name, found, None if bodies is None else _counts(kind, bodies))


def _counts(kind: Kind, bodies: Sequence[Body]) -> JobCounts:
    """What has become of them, and who looks after those that have not ended."""
    by: Counter[str] = Counter()
    foreign, running = [], 0
    for body in bodies:
        loaded = load(kind, body)
        job = loaded.job
        if job.ledger.outcome is not None:
            continue
        # Another controller may have written anything: only what can be read of it is asked.
        running += kind.word(msgspec.to_builtins(loaded.status or {})) == "Running"
        if job.foreign:
            foreign.append(str(job.key))
        by[_whose(job.foreign, job.ledger.phase, managed=not job.unmanaged)] += 1
    return JobCounts(len(bodies), by.total(), running, dict(sorted(by.items())), tuple(sorted(foreign)))


def _whose(foreign: str, phase: Phase, *, managed: bool) -> str:
    if not managed:
        return "the manager that their manifest names"
    return foreign or ("nobody yet" if phase is Phase.NEW else "trainwright")


# -- what there is to decide -------------------------------------------------------------------------------------------


def _of_definition(one: KindSurvey) -> list[str]:
    """What an install, or leaving it out, would do to the definition and to what is stored under it."""
    found, texts = one.definition, list[str]()
    if found.origin is CrdOrigin.OTHER:
        gone = f"; {', '.join(found.vanish)} would no longer be served" if found.vanish else ""
        lost = f"; stored objects would lose {listed(list(found.pruned))}" if found.pruned else ""
        texts.append(
            f"{found.name} is another owner's ({found.owner}), and an install replaces it{gone}{lost}. Remove that"
            f" operator first, or leave the kind out with --kinds. `kubectl get crd {found.name} -o yaml` keeps a copy"
        )
    elif found.unusable:
        texts.append(f"the operator would refuse to start: {found.unusable}")
    kept = [path for path in found.pruned if path.startswith("status.trainwright")]
    if found.origin is CrdOrigin.OURS and kept:
        texts.append(
            f"{found.name} is of a newer Trainwright ({found.version or 'it does not say which'}), and an install would"
            f" drop {listed(kept)}. Leave the definitions as they are: `trainwright manifests --no-crds`"
        )
    if found.stored:
        texts.append(
            f"objects of {found.name} are stored as {', '.join(found.stored)}, which our definition does not have: the"
            " API server refuses an install until they are stored anew and status.storedVersions says so"
        )
    return texts


def _of_jobs(one: KindSurvey) -> list[str]:
    foreign = one.jobs.foreign if one.jobs is not None else ()
    if not foreign:
        return []
    number = f"{len(foreign)} unfinished {one.kind}{'s' * (len(foreign) != 1)} of another controller"
    resource = f"{one.kind.lower()}.{one.definition.name.partition('.')[2]}"
    return [
        f"{number}: {listed(list(foreign))}. The operator leaves such jobs alone. Let them end, or stop that controller"
        f" and hand each over: `kubectl annotate {resource} NAME -n NAMESPACE {ADOPT}=true`; it then starts anew"
    ]


def _of_controller(sign: ControllerSign, kinds: Sequence[str]) -> str:
    others = ",".join(kind.lower() for kind in kinds if kind not in sign.kinds)
    leave = f", or leave the kind to it with `trainwright manifests --kinds {others}`" if others else ""
    return f"{sign.object} tells of another controller for {', '.join(sign.kinds)} ({sign.detail}): remove it{leave}"
