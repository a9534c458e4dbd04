# SPDX-License-Identifier: Apache-2.0
"""The verbs of a cluster as other processes ask for them: a request in, plain JSON out. Called by `server`.

Objects go over the socket whole; whoever asked decodes what it wants of them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct, ValidationError, convert

from trainwright.errors import InvalidError, NotFoundError
from trainwright.local.cluster import LocalCluster
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.problem import nearest
from trainwright.runtime.ports import Change, Propagation, Resource, Scope
from trainwright.runtime.resources import BY_ID

Request = dict[str, Any]
Verb = Callable[[Request], Awaitable[Any]]


class Call(Struct, frozen=True, rename="camel"):
    """What a request for one of these verbs may say."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    labels: str = ""
    fields: str = ""
    since: str = ""
    not_older_than: str = ""
    body: Body = {}
    uid: str = ""
    version: str = ""
    status: bool = False
    grace: int | None = None
    propagation: Propagation = Propagation.BACKGROUND
    node: str = ""

    @property
    def key(self) -> Key:
        """The object it is about."""
        return Key(self.namespace, self.name)

    @property
    def scope(self) -> Scope:
        """The objects it is about."""
        return Scope(self.namespace, self.labels, self.fields)


def read(request: Request) -> tuple[Resource, Call]:
    """What is asked, of which resource; InvalidError or NotFoundError if that cannot be."""
    try:
        call = convert(request, Call)
    except ValidationError as error:
        raise InvalidError(f"the request cannot be read: {error}") from None
    resource = BY_ID.get(call.resource)
    if resource is None:
        hint = nearest(call.resource, BY_ID)
        meant = f"; did you mean `{hint}`?" if hint else ""
        raise NotFoundError(f"there is no resource {call.resource!r}{meant}")
    return resource.whole(), call


def watch(cluster: LocalCluster, request: Request) -> AsyncGenerator[tuple[Change, ...], None]:
    """The batches of a watch."""
    resource, call = read(request)
    return cluster.watch(resource, call.scope, since=call.since)


def verbs(cluster: LocalCluster) -> Mapping[str, Verb]:
    """The verbs that have one answer."""

    async def listing(request: Request) -> Any:
        resource, call = read(request)
        page = await cluster.list(resource, call.scope, not_older_than=call.not_older_than)
        return {"items": page.items, "version": page.version}

    async def get(request: Request) -> Any:
        resource, call = read(request)
        return await cluster.get(resource, call.key)

    async def create(request: Request) -> Any:
        resource, call = read(request)
        return await cluster.create(resource, call.body)

    async def patch(request: Request) -> Any:
        resource, call = read(request)
        says = {"uid": call.uid, "version": call.version}
        return await cluster.patch(resource, call.key, call.body, status=call.status, **says)

    async def delete(request: Request) -> Any:
        resource, call = read(request)
        return await cluster.delete(resource, call.key, uid=call.uid, grace=call.grace, propagation=call.propagation)

    async def bind(request: Request) -> Any:
        _, call = read({"resource": "pods", **request})
        return cluster.store.bind(call.key, call.node, uid=call.uid, version=call.version)

    return {"list": listing, "get": get, "create": create, "patch": patch, "delete": delete, "bind": bind}
