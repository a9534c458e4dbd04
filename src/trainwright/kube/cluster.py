# SPDX-License-Identifier: Apache-2.0
"""A watch's bytes to changes. `cluster` opens the watch, `runtime`'s informers go on where it ends.

Lines are split here: aiohttp's own reader has a limit that large objects exceed. Whatever came in one chunk is one
batch, so that a burst is looked at once.

`Cluster` on a real API server. The operator, `trainwright node` and the command line talk to it.

Nothing here replaces an object: what was not decoded in full must not be PUT. Writes are creates, merge patches and
deletions, each pinned to a UID or a version where the caller names one.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from random import random
from typing import Any

import msgspec
from msgspec import Raw, Struct

from trainwright.errors import ApiError, ConflictError, GoneError, UnavailableError
from trainwright.jsonlines import LineSplitter, LineTooLongError
from trainwright.kube import codec
from trainwright.kube.codec import (
    Request,
    all_of,
    error_of,
    item,
    metadata,
    one_of,
    place_of,
    read,
    scoped,
    unreadable,
    with_query,
)
from trainwright.kube.config import Access
from trainwright.kube.http import Count, HttpClient, RequestGate, RequestPolicy
from trainwright.kube.session import ApiSession
from trainwright.model.job import Body
from trainwright.model.meta import Key, ObjectMeta
from trainwright.runtime.ports import (
    EVERYTHING,
    PODS,
    ListPage,
    Propagation,
    Resource,
    Selection,
    WatchEvent,
    WatchEventType,
)

#: Many times what etcd stores of one object.
_LONGEST = 1 << 26
_HAPPENED = {one.value: one for one in WatchEventType}


class _Event(Struct, frozen=True):
    type: str
    object: Raw


_EVENT = msgspec.json.Decoder(_Event)


async def changes(
    resource: Resource, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
    """The changes in a stream, until it ends; GoneError and its like where the server says so."""
    lines = LineSplitter(_LONGEST)
    async with aclosing(chunks):
        async for chunk in chunks:
            batch: list[WatchEvent] = []
            try:
                batch.extend(_change(resource, line) for line in lines.feed(chunk) if line)
            except LineTooLongError as error:
                raise UnavailableError(f"the watch of {resource.id} sends {error}") from None
            except ApiError:
                # What came before the error did happen.
                if batch:
                    yield tuple(batch)
                raise
            if batch:
                yield tuple(batch)
    if lines.partial:
        raise UnavailableError(f"the watch of {resource.id} broke off within an event")


def _change(resource: Resource, line: bytes) -> WatchEvent:
    try:
        event = _EVENT.decode(line)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"the watch of {resource.id} sends what is no event: {error}") from None
    what = _HAPPENED.get(event.type)
    if what is None:
        raise error_of(read(500, bytes(event.object)))
    if what is WatchEventType.BOOKMARK:
        return WatchEvent(what, metadata(event.object).resource_version)
    return _told(resource, what, event.object)


def _told(resource: Resource, what: WatchEventType, data: Raw) -> WatchEvent:
    try:
        one = item(resource, data)
    except ApiError as error:
        # Passing over it must not lose our place.
        meta: dict[str, Any] = msgspec.json.decode(data).get("metadata") or {}
        unreadable(resource, meta, error)
        return WatchEvent(WatchEventType.BOOKMARK, str(meta.get("resourceVersion", "")))
    version = one["metadata"]["resourceVersion"] if isinstance(one, dict) else one.metadata.resource_version
    return WatchEvent(what, version, one)


_PAGE = 500
_MERGE = "application/merge-patch+json"
#: Seconds after which the server ends a watch, up to twice as many: not all watches at once.
_WATCH = 300
#: A server that forgets to end it is left so many seconds later.
_LATE = 30


@asynccontextmanager
async def connected(
    access: Access, manner: RequestPolicy | None = None, *, gate: RequestGate | None = None, count: Count | None = None
) -> AsyncIterator["KubeCluster"]:
    """The cluster that is reached so, until the end of the block."""
    session = ApiSession(access)
    try:
        yield KubeCluster(HttpClient(session, manner, gate=gate, count=count))
    finally:
        await session.close()


class KubeCluster:
    """A `Cluster`, and what only an API server has besides."""

    def __init__(self, http: HttpClient) -> None:
        self.http = http

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """Everything in the scope, page by page; from the start, in one piece, if that takes the server too long."""
        query = scoped(scope)
        if not_older_than:
            query |= {"resourceVersion": not_older_than, "resourceVersionMatch": "NotOlderThan"}
        try:
            return await self._pages(resource, scope, query | {"limit": str(_PAGE)})
        except GoneError:
            return await self._pages(resource, scope, query)

    async def _pages(self, resource: Resource, scope: Selection, query: dict[str, str]) -> ListPage:
        path = all_of(resource, scope.namespace)
        page = await self._page(resource, path, query)
        items, version = [page.items], page.version
        while page.more:
            page = await self._page(resource, path, scoped(scope) | {"limit": str(_PAGE), "continue": page.more})
            items.append(page.items)
        return ListPage(tuple([item for some in items for item in some]), version)

    async def _page(self, resource: Resource, path: str, query: dict[str, str]) -> codec.Listed:
        data = await self.http.ask(Request("list", resource.id, with_query(path, query), repeatable=True))
        return codec.page(resource, data)

    async def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        """What happened after that version, until the server ends the watch; it does so every few minutes."""
        seconds = int(_WATCH * (1 + random()))  # noqa: S311 - jitter, not a secret
        query = scoped(scope) | {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        query |= {"resourceVersion": since} if since else {}
        path = with_query(all_of(resource, scope.namespace), query)
        call = Request("watch", resource.id, path)
        async with aclosing(changes(resource, self.http.stream(call, seconds + _LATE))) as batches:
            async for batch in batches:
                yield batch

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object."""
        data = await self.http.ask(Request("get", resource.id, one_of(resource, key), repeatable=True))
        return codec.item(resource, data)

    async def create(self, resource: Resource, body: Body) -> Any:
        """Make an object."""
        path = place_of(resource, (body.get("metadata") or {}).get("namespace") or "")
        return codec.item(resource, await self.http.ask(Request("create", resource.id, path, codec.encode(body))))

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
        call = Request("patch", id_, path, codec.encode(body), _MERGE, repeatable=True, pinned=bool(uid))
        return codec.item(resource, await self.http.ask(call))

    async def _version_of(self, resource: Resource, key: Key, uid: str) -> str:
        """The version of that very object. API servers do not look at the UID in a custom resource's status patch."""
        data = await self.http.ask(Request("get", resource.id, one_of(resource, key), repeatable=True))
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
            Request("delete", resource.id, path, codec.encode(options), repeatable=bool(uid), pinned=bool(uid))
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
        await self.http.ask(Request("create", f"{PODS.id}/binding", path, codec.encode(body), pinned=bool(uid)))
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
