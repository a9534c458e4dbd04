# SPDX-License-Identifier: Apache-2.0
"""The interfaces that an engine implements, and the resources that we read and write.

`Cluster` has the verbs of an API server. `kube` and `local` implement it; the controller, the scheduler and the node
agent use an engine only through `Cluster`. Its methods raise the ApiErrors of `errors`. The tests in `tests/contract`
define the behaviour of every implementation.
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
    """One resource of the API. Its objects are decoded as `type`: a struct with some of the fields, or a whole dict."""

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
        """The unique name in an API server, for example `pods` or `genericjobs.batch.tensorstack.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def whole(self) -> "Resource":
        """The same resource, with objects as plain dicts."""
        return self if self.type is dict else replace(self, type=dict)

    def decode(self, body: Body) -> Any:
        """Decode an object as `type`. If `type` is dict, this returns `body` itself: the caller must not change it."""
        return body if self.type is dict else msgspec.convert(body, self.type)

    def meta(self, item: Any) -> Meta:
        """The metadata of an object of this resource."""
        return msgspec.convert(item["metadata"], ObjectMeta) if isinstance(item, dict) else item.metadata


class WatchEventType(StrEnum):
    """The type of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(Struct, frozen=True, gc=False):
    """One event of a watch. A bookmark has no object: it only reports the version that the watch has reached."""

    what: WatchEventType
    version: str
    item: Any = None


class ListPage(Struct, frozen=True):
    """All objects of a list, and the version from which a watch continues."""

    items: tuple[Any, ...]
    version: str


class Propagation(StrEnum):
    """What happens to the objects that a deleted object owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Selection(Struct, frozen=True):
    """Selects the objects of a list or a watch. Selectors have the syntax of Kubernetes; an empty value selects all."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


EVERYTHING = Selection()


class Cluster(Protocol):
    """The verbs of an API server. Returned objects are decoded as `resource.type`."""

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """List all objects that `scope` selects. The list is at least as new as the version `not_older_than`."""
        ...

    def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        """Yield the events after the version `since`, in order, in batches. After a GoneError, list again."""
        ...

    async def get(self, resource: Resource, key: Key) -> Any:
        """Return one object."""
        ...

    async def create(self, resource: Resource, body: Body) -> Any:
        """Create an object. The body contains its name and namespace."""
        ...

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Merge-patch an object or only its status. Raises ConflictError if the object has another UID or version."""
        ...

    async def replace_status(self, resource: Resource, document: Body) -> Any:
        """Replace the status of an object. `document` is the whole object as it was read, with the new status.

        Raises ConflictError if the object has another UID or version than the document.
        """
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
        """Delete an object. Returns the object if it still exists (grace period, finalizers), None if it is gone."""
        ...


class Registry(Protocol):
    """The key-value store in which replicas of elastic jobs find each other. The replicas own the keys."""

    async def revise(self, key: str, value: str) -> str | None:
        """Replace the value of a key and return the old value. If the key is missing, return None and do not create it.

        After an UnavailableError the caller cannot know whether the value was replaced.
        """
        ...


class Clock(Protocol):
    """The source of the current time. Tests use a clock of their own."""

    def now(self) -> datetime:
        """The time in UTC."""
        ...


class WallClock:
    """The clock of the machine. No other code reads this clock: functions get a `Clock` or a time as an argument."""

    def now(self) -> datetime:
        """The time in UTC."""
        return datetime.now(UTC)  # noqa: TID251 - the one place that reads the clock


class LogPart(Struct, frozen=True, kw_only=True):
    """The part of a container's log that a request asks for. The default is the whole log."""

    #: After the existing lines, send new lines until the container ends.
    follow: bool = False
    #: Send the log of the previous container: the container as it was before its last restart.
    previous: bool = False
    #: Put the time of writing before each line.
    timestamps: bool = False
    #: Send only the last lines of the log: at most this many.
    tail: int | None = None
    since: datetime | None = None
    #: Send at most this many bytes of the log.
    limit: int | None = None


PODS = Resource("", "v1", "pods", "Pod", Pod)
SERVICES = Resource("", "v1", "services", "Service", Service)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", ConfigMap)
SECRETS = Resource("", "v1", "secrets", "Secret")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS = Resource("", "v1", "events", "Event", Event)
NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
#: The operator reads CRDs to check that the API server keeps all status fields that the operator writes.
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease)
#: The API of the gang scheduler in the embedded engine.
POD_GROUPS = Resource(T9K_GROUP, T9K_VERSION, "podgroups", "PodGroup", Extra)
#: The queues of the T9k scheduler. The engine stores them, and nothing reads them yet.
QUEUES = Resource(T9K_GROUP, T9K_VERSION, "queues", "Queue")
#: What scales the workers of a job on a cluster. The embedded engine has no autoscaler.
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", Extra)
#: An Address object stores hosts and ports of replicas whose names do not resolve; see `local.addresses`.
ADDRESSES = Resource("trainwright.dev", "v1", "addresses", "Address")


def jobs_of(kind: Kind) -> Resource:
    """The resource of a kind. Its objects stay dicts; `kinds.base.load` decodes them."""
    return Resource(kind.group, kind.version, kind.plural, kind.name)


#: By the id of the kind.
JOBS: dict[str, Resource] = {kind.id: jobs_of(kind) for kind in KINDS}
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
    QUEUES,
    ADDRESSES,
    *JOBS.values(),
)
BY_ID = {resource.id: resource for resource in RESOURCES}


def groups_of(kinds: Iterable[Kind]) -> tuple[Resource, ...]:
    """The PodGroup resources of all gang schedulers that jobs of these kinds can use."""
    apis = dict.fromkeys(tuple(gang.api.split("/")) for kind in kinds for gang in kind.gangs)
    return tuple(replace(POD_GROUPS, group=group, version=version) for group, version in apis)


def autoscalers_of(kinds: Iterable[Kind]) -> tuple[Resource, ...]:
    """The resource of autoscalers, if jobs of these kinds can have one."""
    return (AUTOSCALERS,) if any(kind.has_autoscaler for kind in kinds) else ()
