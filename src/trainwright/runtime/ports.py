# SPDX-License-Identifier: Apache-2.0
"""What an engine offers: the verbs of an API server on typed resources. `kube` and `local` implement `Cluster`.

The controller, the scheduler and the node agent see nothing else of the place they run in. Errors are the ApiErrors of
`errors`. One contract suite (`tests/contract`) says what every implementation does.

Which part of a container's log is wanted. `node.log_server` reads it from a request, `node.logs` finds it.

The wall clock: the only place that asks what time it is. Everything else is given a `Clock` or a time.

The resources we read and write, as values. Used wherever a `Cluster` is asked for something.
"""

from collections.abc import AsyncGenerator, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.base import Kind
from trainwright.kinds.gangs import T9K_GROUP, T9K_VERSION
from trainwright.kinds.registry import KINDS
from trainwright.model.child import ConfigMap, Event, Extra, Lease, Node, Pod, Service
from trainwright.model.job import Body
from trainwright.model.meta import Key, Meta, ObjectMeta


class Resource(Struct, frozen=True):
    """One resource of the API, and how its objects are decoded: `type` is a narrow struct, or dict for all of it."""

    group: str
    version: str
    plural: str
    kind: str
    type: Any = dict
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def id(self) -> str:
        """`pods`, `genericjobs.batch.tensorstack.dev`: unique in an API server."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def whole(self) -> "Resource":
        """The same resource, with objects as plain dicts."""
        return self if self.type is dict else replace(self, type=dict)

    def decode(self, body: Body) -> Any:
        """An object as this resource is read. Whole objects are shared, not copied: whoever reads must not edit."""
        return body if self.type is dict else msgspec.convert(body, self.type)

    def meta(self, item: Any) -> Meta:
        """The metadata of one of its objects."""
        return msgspec.convert(item["metadata"], ObjectMeta) if isinstance(item, dict) else item.metadata


class WatchEventType(StrEnum):
    """What a watch tells."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(Struct, frozen=True, gc=False):
    """One event of a watch. A bookmark has no object: it only says how far the watch has come."""

    what: WatchEventType
    version: str
    item: Any = None


class ListPage(Struct, frozen=True):
    """All objects of a list, and the version from which a watch goes on."""

    items: tuple[Any, ...]
    version: str


class Propagation(StrEnum):
    """What becomes of the objects that the deleted one owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Selection(Struct, frozen=True):
    """Which objects a list or a watch is about. Selectors in Kubernetes' notation."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


EVERYTHING = Selection()


class Cluster(Protocol):
    """The verbs. Whatever comes back is decoded as `resource.type` says."""

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """Everything in the scope, at least as new as that version."""
        ...

    def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        """What happened after that version, in order, as it comes, in batches. GoneError: list again."""
        ...

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object."""
        ...

    async def create(self, resource: Resource, body: Body) -> Any:
        """Make an object; the body names it and its namespace."""
        ...

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Merge-patch an object, or its status alone; ConflictError if it is not that UID or that version any more."""
        ...

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> Any:
        """Delete an object. Returns it as it now is if it lingers (grace period, finalizers), None once it is gone."""
        ...


class Registry(Protocol):
    """Where replicas of elastic jobs meet: keys and values that they keep there, not we."""

    async def revise(self, key: str, value: str) -> str | None:
        """Put the value in place of the one that is there; which one was, None: there was none, and there is none now.

        UnavailableError: nobody knows.
        """
        ...


class Clock(Protocol):
    """What time it is. Tests have their own."""

    def now(self) -> datetime:
        """The time, in UTC."""
        ...


class LogPart(Struct, frozen=True, kw_only=True):
    """Everything, unless it says less."""

    #: Go on as it is written, until the container ends.
    follow: bool = False
    #: Of the container before its last restart.
    previous: bool = False
    #: Each line with the time at which it was written.
    timestamps: bool = False
    #: So many lines from the end.
    tail: int | None = None
    since: datetime | None = None
    #: So many bytes at most.
    limit: int | None = None


class WallClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(UTC)  # noqa: TID251 - somebody has to


PODS = Resource("", "v1", "pods", "Pod", Pod)
SERVICES = Resource("", "v1", "services", "Service", Service)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", ConfigMap)
SECRETS = Resource("", "v1", "secrets", "Secret")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS = Resource("", "v1", "events", "Event", Event)
NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
#: Read by the operator alone, to see that what it writes will be kept.
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease)
#: Of the gang scheduler that the embedded engine has.
POD_GROUPS = Resource(T9K_GROUP, T9K_VERSION, "podgroups", "PodGroup", Extra)
#: Which host, and which ports, stand for a replica's name where names do not resolve: `local.network.addresses`.
ADDRESSES = Resource("trainwright.dev", "v1", "addresses", "Address")


def jobs_of(kind: Kind) -> Resource:
    """The resource of a kind; its objects are read whole, by `kinds.base.load`."""
    return Resource(kind.group, kind.version, kind.plural, kind.name)


JOBS: dict[str, Resource] = {kind.singular: jobs_of(kind) for kind in KINDS}
RESOURCES: tuple[Resource, ...] = (
    PODS,
    SERVICES,
    CONFIG_MAPS,
    SECRETS,
    CLAIMS,
    EVENTS,
    NODES,
    LEASES,
    POD_GROUPS,
    ADDRESSES,
    *JOBS.values(),
)
BY_ID = {resource.id: resource for resource in RESOURCES}


def groups_of(kinds: Iterable[Kind]) -> tuple[Resource, ...]:
    """The pod groups of every gang that jobs of these kinds may be, in whichever API."""
    apis = dict.fromkeys(tuple(gang.api.split("/")) for kind in kinds for gang in kind.gangs)
    return tuple(replace(POD_GROUPS, group=group, version=version) for group, version in apis)
