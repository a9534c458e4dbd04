# SPDX-License-Identifier: Apache-2.0
"""`Cluster` on a real API server. The operator, `trainwright node` and the command line talk to it.

Nothing here replaces an object: what was not decoded in full must not be PUT. Writes are creates, merge patches and
deletions, each pinned to a UID or a version where the caller names one.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from random import random
from typing import Any

from trainwright.errors import ConflictError, GoneError
from trainwright.kube import codec
from trainwright.kube.calls import Call, all_of, one_of, place_of, scoped, with_query
from trainwright.kube.config import Access
from trainwright.kube.http import Count, Gate, Http, Manner
from trainwright.kube.session import Session
from trainwright.kube.watch import changes
from trainwright.model.job import Body
from trainwright.model.meta import Key, ObjectMeta
from trainwright.runtime.ports import EVERYTHING, Change, Page, Propagation, Resource, Scope
from trainwright.runtime.resources import PODS

_PAGE = 500
_MERGE = "application/merge-patch+json"
#: Seconds after which the server ends a watch, up to twice as many: not all watches at once.
_WATCH = 300
#: A server that forgets to end it is left so many seconds later.
_LATE = 30


@asynccontextmanager
async def connected(
    access: Access, manner: Manner | None = None, *, gate: Gate | None = None, count: Count | None = None
) -> AsyncIterator["KubeCluster"]:
    """The cluster that is reached so, until the end of the block."""
    session = Session(access)
    try:
        yield KubeCluster(Http(session, manner, gate=gate, count=count))
    finally:
        await session.close()


class KubeCluster:
    """A `Cluster`, and what only an API server has besides."""

    def __init__(self, http: Http) -> None:
        self.http = http

    async def list(self, resource: Resource, scope: Scope = EVERYTHING, *, not_older_than: str = "") -> Page:
        """Everything in the scope, page by page; from the start, in one piece, if that takes the server too long."""
        query = scoped(scope)
        if not_older_than:
            query |= {"resourceVersion": not_older_than, "resourceVersionMatch": "NotOlderThan"}
        try:
            return await self._pages(resource, scope, query | {"limit": str(_PAGE)})
        except GoneError:
            return await self._pages(resource, scope, query)

    async def _pages(self, resource: Resource, scope: Scope, query: dict[str, str]) -> Page:
        path = all_of(resource, scope.namespace)
        page = await self._page(resource, path, query)
        items, version = [page.items], page.version
        while page.more:
            page = await self._page(resource, path, scoped(scope) | {"limit": str(_PAGE), "continue": page.more})
            items.append(page.items)
        return Page(tuple([item for some in items for item in some]), version)

    async def _page(self, resource: Resource, path: str, query: dict[str, str]) -> codec.Listed:
        data = await self.http.ask(Call("list", resource.id, with_query(path, query), repeatable=True))
        return codec.page(resource, data)

    async def watch(
        self, resource: Resource, scope: Scope = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[Change, ...], None]:
        """What happened after that version, until the server ends the watch; it does so every few minutes."""
        seconds = int(_WATCH * (1 + random()))  # noqa: S311 - jitter, not a secret
        query = scoped(scope) | {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        query |= {"resourceVersion": since} if since else {}
        path = with_query(all_of(resource, scope.namespace), query)
        call = Call("watch", resource.id, path)
        async with aclosing(changes(resource, self.http.stream(call, seconds + _LATE))) as batches:
            async for batch in batches:
                yield batch

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object."""
        data = await self.http.ask(Call("get", resource.id, one_of(resource, key), repeatable=True))
        return codec.item(resource, data)

    async def create(self, resource: Resource, body: Body) -> Any:
        """Make an object."""
        path = place_of(resource, (body.get("metadata") or {}).get("namespace") or "")
        return codec.item(resource, await self.http.ask(Call("create", resource.id, path, codec.encode(body))))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Merge-patch an object, or its status alone."""
        if status and uid and not version and _is_custom(resource):
            version = await self._version_of(resource, key, uid)
        pins = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}
        if pins:
            body = {**body, "metadata": {**(body.get("metadata") or {}), **pins}}
        path = one_of(resource, key, "status" if status else "")
        id_ = f"{resource.id}/status" if status else resource.id
        call = Call("patch", id_, path, codec.encode(body), _MERGE, repeatable=True, pinned=bool(uid))
        return codec.item(resource, await self.http.ask(call))

    async def _version_of(self, resource: Resource, key: Key, uid: str) -> str:
        """The version of that very object. API servers do not look at the UID in a custom resource's status patch."""
        data = await self.http.ask(Call("get", resource.id, one_of(resource, key), repeatable=True))
        meta = codec.metadata(data)
        if meta.uid != uid:
            raise ConflictError(f'{resource.id} "{key.name}": its UID is {meta.uid}, not {uid}')
        return meta.resource_version

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> Any:
        """Delete an object."""
        options = _options(grace, propagation) | ({"preconditions": {"uid": uid}} if uid else {})
        path = one_of(resource, key)
        data = await self.http.ask(
            Call("delete", resource.id, path, codec.encode(options), repeatable=bool(uid), pinned=bool(uid))
        )
        return codec.item(resource, data) if _lingers(codec.metadata(data)) else None

    # -- what only an API server has ----------------------------------------------------------------------------------

    async def bind(self, key: Key, node: str, *, uid: str = "", version: str = "") -> Any:
        """Put a pod on a node; ConflictError if it is on another one or on its way out."""
        pins = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": key.name, "namespace": key.namespace, **pins},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = one_of(PODS, key, "binding")
        await self.http.ask(Call("create", f"{PODS.id}/binding", path, codec.encode(body), pinned=bool(uid)))
        return await self.get(PODS, key)


def _is_custom(resource: Resource) -> bool:
    return "." in resource.group and not resource.group.endswith(".k8s.io")


def _options(grace: int | None, propagation: Propagation) -> Body:
    options: Body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation.value}
    return options if grace is None else {**options, "gracePeriodSeconds": grace}


def _lingers(meta: ObjectMeta) -> bool:
    """Whether the answer to a deletion is an object that is still there; of some, the last state is told as well."""
    kept = meta.deletion_grace_period_seconds or meta.finalizers
    return meta.deletion_timestamp is not None and bool(kept)
