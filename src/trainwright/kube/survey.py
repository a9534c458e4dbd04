# SPDX-License-Identifier: Apache-2.0
"""A survey of a cluster before an installation: our CRDs, other controllers of the same kinds, and existing jobs.

The survey only reads, with the permissions of the caller. If the caller has no permission to read something, the report
says so; this is not an error. No object proves which program manages a kind, so the survey reports each sign of a
controller with its details.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from trainwright.crd.compare import CrdOrigin, InstalledCrd, installed, listed
from trainwright.crd.hold import ADMISSION_GROUP, HOLD_NAME
from trainwright.errors import ForbiddenError, NotFoundError
from trainwright.kinds.base import Kind, load
from trainwright.kube.cluster import KubeCluster
from trainwright.kube.codec import Request, object_path
from trainwright.kube.controller_signs import (
    ControllerObjects,
    ControllerSign,
    held_leases,
    other_controllers,
    own_operators,
)
from trainwright.model.job import Body
from trainwright.model.ledger import Phase
from trainwright.model.meta import ADOPT, Key
from trainwright.runtime.ports import DEFINITIONS, EVERYTHING, LEASES, Resource, Selection

_RBAC = "rbac.authorization.k8s.io"


def _admission(plural: str, kind: str) -> Resource:
    return Resource(ADMISSION_GROUP, "v1", plural, kind, namespaced=False)


_HOLDS = _admission("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding")
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
        _admission("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
        _admission("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    ],
    "leases": [LEASES.whole()],
}


class NamespaceCounts(Struct, rename="camel"):
    """The number of jobs of one kind in one namespace, by what happens to them when our operator starts."""

    #: Finished jobs keep their status.
    finished: int = 0
    #: Unfinished jobs of other controllers. Our operator does not touch them.
    foreign: int = 0
    #: Jobs that another controller has suspended. They have no pods, and our operator continues with them.
    suspended: int = 0
    #: Jobs without a status. Our operator starts them.
    new: int = 0
    #: Unfinished jobs of Trainwright, and jobs whose manifest names another manager.
    other: int = 0


class JobCounts(Struct, frozen=True, rename="camel"):
    """The number of jobs of one kind."""

    total: int = 0
    unfinished: int = 0
    running: int = 0
    #: The number of unfinished jobs by manager: `trainwright`, `nobody yet`, or the controller that wrote their status.
    unfinished_by: dict[str, int] = {}
    #: Unfinished jobs of other controllers. The operator does not touch them.
    foreign: tuple[str, ...] = ()
    namespaces: dict[str, NamespaceCounts] = {}


class KindSurvey(Struct, frozen=True, rename="camel"):
    """What the survey found for one kind."""

    kind: str
    #: The word for the kind in `--kinds` and other options.
    id: str
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
    #: Whether new jobs are held (`crd.hold`); None if the caller has no permission to read this.
    held: bool | None = None

    @property
    def decisions(self) -> tuple[str, ...]:
        """The decisions that the user must make before an installation, each with the possible actions."""
        found = [text for one in self.kinds for text in (*_definition_decisions(one), *_job_decisions(one))]
        ids = {one.kind: one.id for one in self.kinds}
        found += [_controller_decision(one, ids) for one in self.controllers if one.active]
        return (*found, *_unseen_controllers(self))


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
    holds = await reader.readable(_HOLDS)
    held = None if holds is None else any(one["metadata"]["name"] == HOLD_NAME for one in holds)
    return Survey(server, tuple(surveys), controllers, operators, tuple(dict.fromkeys(reader.forbidden)), held)


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
            return KindSurvey(kind.title, kind.id, InstalledCrd(name, CrdOrigin.ABSENT), JobCounts())
        found = installed(kind, definition)
        version = version if version in found.serves else next(iter(found.serves), version)
    bodies = await reader.readable(Resource(kind.group, version, kind.plural, kind.name))
    return KindSurvey(kind.title, kind.id, found, None if bodies is None else _counts(kind, bodies))


def _counts(kind: Kind, bodies: Sequence[Body]) -> JobCounts:
    """Count the jobs by namespace, and the unfinished jobs by manager."""
    by_manager: Counter[str] = Counter()
    namespaces: dict[str, NamespaceCounts] = {}
    foreign, running = [], 0
    for body in bodies:
        loaded = load(kind, body)
        job = loaded.job
        counts = namespaces.setdefault(job.key.namespace, NamespaceCounts())
        if job.ledger.outcome is not None:
            counts.finished += 1
            continue
        # Another controller may have written this status. `loaded.status` has only the fields that we can decode.
        running += kind.phase_of(msgspec.to_builtins(loaded.status or {})) == "Running"
        if job.unmanaged:
            manager = "the manager that their manifest names"
            counts.other += 1
        elif job.foreign:
            manager = job.foreign
            foreign.append(str(job.key))
            counts.foreign += 1
        elif job.ledger.phase is Phase.NEW:
            manager = "nobody yet"
            counts.new += 1
        elif loaded.status.trainwright.phase is Phase.NEW:  # the ledger is derived from the other controller's status
            manager = "nobody while they are suspended"
            counts.suspended += 1
        else:
            manager = "trainwright"
            counts.other += 1
        by_manager[manager] += 1
    return JobCounts(
        len(bodies),
        by_manager.total(),
        running,
        dict(sorted(by_manager.items())),
        tuple(sorted(foreign)),
        dict(sorted(namespaces.items())),
    )


# -- decisions for the user --------------------------------------------------------------------------------------------


def _definition_decisions(one: KindSurvey) -> list[str]:
    """What an installation would do to the CRD and to stored objects, and why the operator would refuse the CRD."""
    found, texts = one.definition, list[str]()
    if found.origin is CrdOrigin.OTHER and (found.vanish or found.pruned):
        unserved = f"; {', '.join(found.vanish)} would no longer be served" if found.vanish else ""
        lost = f"; stored objects would lose {listed(list(found.pruned))}" if found.pruned else ""
        texts.append(
            f"{found.name} is another owner's ({found.owner}), and an install replaces it{unserved}{lost}. Remove that"
            f" operator first, or leave the kind out with --kinds. `kubectl get crd {found.name} -o yaml` keeps a copy"
        )
    elif found.unusable and found.origin is not CrdOrigin.OTHER:
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
    resource = f"{one.id.partition('.')[0]}.{one.definition.name.partition('.')[2]}"
    return [
        f"{number}: {listed(list(foreign))}. The operator does not touch such jobs. Let them end, or stop that"
        f" controller and hand each over: `kubectl annotate {resource} NAME -n NAMESPACE {ADOPT}=true`;"
        " the job then starts again"
    ]


def _unseen_controllers(found: Survey) -> list[str]:
    """If a CRD is another owner's and the caller cannot see Deployments, nobody knows whether its operator runs."""
    names = [one.definition.name for one in found.kinds if one.definition.origin is CrdOrigin.OTHER]
    if not names or not any(one.startswith("list deployments") for one in found.not_permitted):
        return []
    return [
        f"{listed(names)} came from another operator, and you may not list Deployments: make sure that it is stopped"
    ]


def _controller_decision(sign: ControllerSign, ids: Mapping[str, str]) -> str:
    others = ",".join(ids[kind] for kind in ids if kind not in sign.kinds)
    leave = f", or leave the kind to it with `trainwright manifests --kinds {others}`" if others else ""
    return (
        f"{sign.object} is a sign of another controller for {', '.join(sign.kinds)} ({sign.detail}): remove it{leave}"
    )
