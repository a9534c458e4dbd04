# SPDX-License-Identifier: Apache-2.0
"""The verbs of a cluster as other processes ask for them: a request of `protocol` in, plain JSON out.

Objects go over the socket whole; whoever asked decodes what it wants of them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct, ValidationError, convert

from trainwright.errors import InvalidError, NotFoundError
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.protocol import (
    BindRequest,
    Body,
    CreateRequest,
    DeleteRequest,
    ListRequest,
    ListResult,
    ObjectRequest,
    PatchRequest,
    ScopeRequest,
    WatchRequest,
)
from trainwright.model.meta import Key
from trainwright.model.problem import nearest
from trainwright.runtime.ports import Change, Propagation, Resource, Scope
from trainwright.runtime.resources import BY_ID

RequestT = TypeVar("RequestT")


class Verb(Struct, Generic[RequestT], frozen=True):
    """One verb: the type of its requests, and what answers them."""

    request: type[RequestT]
    answer: Callable[[RequestT], Awaitable[Any]]

    async def __call__(self, request: dict[str, Any]) -> Any:
        """Check a request and answer it. Raises InvalidError."""
        return await self.answer(checked(request, self.request))


def checked(request: dict[str, Any], kind: type[RequestT]) -> RequestT:
    """The request as what it should be; InvalidError if it is not."""
    try:
        return convert(request, kind)
    except ValidationError as error:
        raise InvalidError(f"the request cannot be read: {error}") from None


def watch(cluster: LocalCluster, request: dict[str, Any]) -> AsyncGenerator[tuple[Change, ...], None]:
    """The batches of a watch."""
    wanted = checked(request, WatchRequest)
    return cluster.watch(_resource(wanted["resource"]), _scope(wanted), since=wanted.get("since", ""))


def verbs(cluster: LocalCluster) -> Mapping[str, Verb[Any]]:
    """The verbs that have one answer."""

    async def listing(request: ListRequest) -> ListResult:
        resource, limit = _resource(request["resource"]), request.get("notOlderThan", "")
        page = await cluster.list(resource, _scope(request), not_older_than=limit)
        return {"items": [*page.items], "version": page.version}

    async def get(request: ObjectRequest) -> Body:
        found: Body = await cluster.get(_resource(request["resource"]), _key(request))
        return found

    async def create(request: CreateRequest) -> Body:
        made: Body = await cluster.create(_resource(request["resource"]), request["body"])
        return made

    async def patch(request: PatchRequest) -> Body:
        changed: Body = await cluster.patch(
            _resource(request["resource"]),
            _key(request),
            request["body"],
            uid=request.get("uid", ""),
            version=request.get("version", ""),
            status=request.get("status", False),
        )
        return changed

    async def delete(request: DeleteRequest) -> Body | None:
        left: Body | None = await cluster.delete(
            _resource(request["resource"]),
            _key(request),
            uid=request.get("uid", ""),
            grace=request.get("grace"),
            propagation=Propagation(request.get("propagation", Propagation.BACKGROUND)),
        )
        return left

    async def bind(request: BindRequest) -> Body:
        uid, version = request.get("uid", ""), request.get("version", "")
        return cluster.store.bind(_key(request), request["node"], uid=uid, version=version)

    return {
        "list": Verb(ListRequest, listing),
        "get": Verb(ObjectRequest, get),
        "create": Verb(CreateRequest, create),
        "patch": Verb(PatchRequest, patch),
        "delete": Verb(DeleteRequest, delete),
        "bind": Verb(BindRequest, bind),
    }


def _resource(name: str) -> Resource:
    """The resource of that id; NotFoundError if there is none."""
    resource = BY_ID.get(name)
    if resource is None:
        hint = nearest(name, BY_ID)
        meant = f"; did you mean `{hint}`?" if hint else ""
        raise NotFoundError(f"there is no resource {name!r}{meant}")
    return resource.whole()


def _scope(request: ScopeRequest) -> Scope:
    return Scope(request.get("namespace", ""), request.get("labels", ""), request.get("fields", ""))


def _key(request: ObjectRequest | BindRequest) -> Key:
    return Key(request.get("namespace", ""), request["name"])
