# SPDX-License-Identifier: Apache-2.0
"""What an engine offers: the verbs of an API server on typed resources. `kube` and `local` implement `Cluster`.

The controller, the scheduler and the node agent see nothing else of the place they run in. Errors are the ApiErrors of
`errors`. One contract suite (`tests/contract`) says what every implementation does.
"""

from collections.abc import AsyncGenerator
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

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


class Happened(StrEnum):
    """What a watch tells."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Change(Struct, frozen=True, gc=False):
    """One event of a watch. A bookmark has no object: it only says how far the watch has come."""

    what: Happened
    version: str
    item: Any = None


class Page(Struct, frozen=True):
    """All objects of a list, and the version from which a watch goes on."""

    items: tuple[Any, ...]
    version: str


class Propagation(StrEnum):
    """What becomes of the objects that the deleted one owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Scope(Struct, frozen=True):
    """Which objects a list or a watch is about. Selectors in Kubernetes' notation."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


EVERYTHING = Scope()


class Cluster(Protocol):
    """The verbs. Whatever comes back is decoded as `resource.type` says."""

    async def list(self, resource: Resource, scope: Scope = EVERYTHING, *, not_older_than: str = "") -> Page:
        """Everything in the scope, at least as new as that version."""
        ...

    def watch(
        self, resource: Resource, scope: Scope = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[Change, ...], None]:
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
