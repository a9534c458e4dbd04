# SPDX-License-Identifier: Apache-2.0
"""The resources that the API serves: names, verbs and subresources, in the order of the discovery documents.

There is one entry per group, version and resource: a kind of job with two versions has two entries. Discovery, the
OpenAPI documents, the tables and the handlers of requests read this list and no other.
"""

from functools import cache

from msgspec import Struct

from trainwright.api.columns import COLUMNS, PrinterColumn, custom
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.runtime.ports import (
    CLAIMS,
    CONFIG_MAPS,
    DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    QUEUES,
    SECRETS,
    SERVICES,
    Resource,
)

_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"
SELF_SUBJECT_REVIEWS = Resource(_AUTHENTICATION, "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
SELF_SUBJECT_ACCESS_REVIEWS = Resource(
    _AUTHORIZATION, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
SELF_SUBJECT_RULES_REVIEWS = Resource(
    _AUTHORIZATION, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False
)

_ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
#: The API server lists the verbs of custom resources in this order.
_CUSTOM_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_READ_VERBS = ("get", "list", "watch")
_STATUS_VERBS = ("get", "patch", "update")


class Subresource(Struct, frozen=True, kw_only=True):
    """A subresource, for example `log` of pods. Requests and answers have the kind `kind`.

    An empty group and version mean those of the resource.
    """

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


class ServedResource(Struct, frozen=True, kw_only=True):
    """One resource in one version. The objects of `resource` are plain dicts."""

    resource: Resource
    singular: str
    verbs: tuple[str, ...]
    columns: tuple[PrinterColumn, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[Subresource, ...] = ()
    #: The kind of job; None for all other resources.
    job: Kind | None = None
    #: Whether a CRD defines the resource on a cluster. For such a resource clients send no strategic merge patches.
    custom: bool = False

    @property
    def list_kind(self) -> str:
        """The kind of a list of these objects."""
        return f"{self.resource.kind}List"

    @property
    def has_table(self) -> bool:
        """Whether clients can get a table. For a review, the server ignores that a client prefers a table."""
        return bool(self.columns)

    def subresource(self, name: str) -> Subresource | None:
        """The subresource with this name; None if there is no such subresource."""
        return next((one for one in self.subresources if one.name == name), None)


_SCALE = Subresource(name="scale", kind="Scale", verbs=_STATUS_VERBS, group="autoscaling", version="v1")


def _status(kind: str) -> Subresource:
    return Subresource(name="status", kind=kind, verbs=_STATUS_VERBS)


def _built_in(
    resource: Resource,
    *short_names: str,
    verbs: tuple[str, ...] = _ALL_VERBS,
    categories: tuple[str, ...] = (),
    subresources: tuple[Subresource, ...] = (),
) -> ServedResource:
    """A resource that API servers have without a CRD."""
    return ServedResource(
        resource=resource.whole(),
        singular=resource.kind.lower(),
        short_names=short_names,
        verbs=verbs,
        categories=categories,
        subresources=subresources,
        columns=COLUMNS.get(resource.id, ()),
    )


def _review(resource: Resource) -> ServedResource:
    """A resource without stored objects: the answer to a create is the review."""
    return _built_in(resource, verbs=("create",))


def _jobs(kind: Kind) -> tuple[ServedResource, ...]:
    """The entries of a kind of job, the stored version first."""
    return tuple(
        ServedResource(
            resource=Resource(kind.group, version, kind.plural, kind.name),
            singular=kind.singular,
            short_names=kind.short_names,
            verbs=_CUSTOM_VERBS,
            subresources=(_status(kind.name), *((_SCALE,) if kind.scale_paths is not None else ())),
            columns=custom(kind.columns),
            job=kind,
            custom=True,
        )
        for version in (api_version.partition("/")[2] for api_version in kind.served)
    )


def _custom(resource: Resource) -> ServedResource:
    """A custom resource whose objects are no jobs."""
    return ServedResource(
        resource=resource.whole(),
        singular=resource.kind.lower(),
        verbs=_CUSTOM_VERBS,
        subresources=(_status(resource.kind),),
        columns=COLUMNS[resource.id],
        custom=True,
    )


_POD_SUBRESOURCES = (
    Subresource(name="attach", kind="PodAttachOptions", verbs=("create", "get")),
    Subresource(name="binding", kind="Binding", verbs=("create",)),
    Subresource(name="exec", kind="PodExecOptions", verbs=("create", "get")),
    Subresource(name="log", kind="Pod", verbs=("get",)),
    _status("Pod"),
)
#: A namespace has no `deletecollection`, as on every API server.
_NAMESPACE_VERBS = tuple(verb for verb in _ALL_VERBS if verb != "deletecollection")

SERVED: tuple[ServedResource, ...] = (
    _built_in(CONFIG_MAPS, "cm"),
    _built_in(EVENTS, "ev"),
    _built_in(NAMESPACES, "ns", verbs=_NAMESPACE_VERBS, subresources=(_status("Namespace"),)),
    _built_in(NODES, "no", subresources=(_status("Node"),)),
    _built_in(CLAIMS, "pvc", subresources=(_status("PersistentVolumeClaim"),)),
    _built_in(PODS, "po", categories=("all",), subresources=_POD_SUBRESOURCES),
    _built_in(SECRETS),
    _built_in(SERVICES, "svc", categories=("all",), subresources=(_status("Service"),)),
    _review(SELF_SUBJECT_REVIEWS),
    _review(SELF_SUBJECT_ACCESS_REVIEWS),
    _review(SELF_SUBJECT_RULES_REVIEWS),
    _built_in(DEFINITIONS, "crd", "crds", verbs=_READ_VERBS, categories=("api-extensions",)),
    _built_in(LEASES),
    # By group, as on an API server: kubectl takes the first group that has a resource of that name.
    *(served for kind in sorted(KINDS, key=lambda kind: kind.group) for served in _jobs(kind)),
    _custom(POD_GROUPS),
    _custom(QUEUES),
)
_BY_PATH = {(one.resource.group, one.resource.version, one.resource.plural): one for one in SERVED}


def find(group: str, version: str, plural: str) -> ServedResource | None:
    """The resource at `/apis/GROUP/VERSION/PLURAL`, or, with an empty group, at `/api/VERSION/PLURAL`."""
    return _BY_PATH.get((group, version, plural))


@cache
def groups() -> dict[str, tuple[str, ...]]:
    """The names of the groups with their versions, the preferred version first. The core group is the empty name."""
    found: dict[str, dict[str, None]] = {}
    for served in SERVED:
        found.setdefault(served.resource.group, {})[served.resource.version] = None
    return {name: tuple(versions) for name, versions in found.items()}


def in_group_version(group: str, version: str) -> tuple[ServedResource, ...]:
    """The resources of one version of a group, in the order of the discovery documents."""
    return tuple(one for one in SERVED if (one.resource.group, one.resource.version) == (group, version))
