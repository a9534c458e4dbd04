# SPDX-License-Identifier: Apache-2.0
"""`KubeCluster`: implements `Cluster` with a real API server. It reads long lists page by page, and it watches.

It creates, merge-patches and deletes objects. The caller can limit a patch or a deletion to one UID or one version of
the object. It replaces only the status of an object with PUT, which costs the API server less than a patch. It never
replaces another part, because it decodes only some fields and would lose the other fields.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from random import random
from typing import Any

import msgspec
from msgspec import Raw, Struct

from trainwright.errors import ApiError, ConflictError, ForbiddenError, GoneError, UnavailableError
from trainwright.jsonlines import LineSplitter, LineTooLongError
from trainwright.kube.codec import (
    PAGE_SIZE,
    Request,
    collection_path,
    create_path,
    decode,
    decode_metadata,
    decode_object,
    decode_page,
    decode_status,
    encode,
    error_of,
    object_path,
    selector_query,
    warn_unreadable,
    with_query,
)
from trainwright.kube.config import Access
from trainwright.kube.http import HttpClient, RequestPolicy
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

_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
#: API servers write this text if the user has no right. Admission webhooks and policies also answer with 403, but with
#: another text.
_NO_RIGHT_TO_UPDATE = " cannot update resource "
#: The server ends a watch after this time plus a random part of up to the same length, so that not all watches end at
#: once.
_WATCH_SECONDS = 300
#: If the server does not end a watch in time, the client ends the watch this many seconds later.
_WATCH_MARGIN_SECONDS = 30
#: Maximum size of one watch event. etcd stores at most a few MiB per object.
_MAX_EVENT_BYTES = 1 << 26
_EVENT_TYPES = {one.value: one for one in WatchEventType}


@asynccontextmanager
async def connected(access: Access, policy: RequestPolicy | None = None) -> AsyncIterator["KubeCluster"]:
    """A connection to the cluster of `access`, until the end of the block."""
    session = ApiSession(access)
    try:
        yield KubeCluster(HttpClient(session, policy))
    finally:
        await session.close()


class KubeCluster:
    """A `Cluster` that uses an API server. It also has the method `bind`."""

    def __init__(self, http: HttpClient) -> None:
        self.http = http
        #: Whether the user may patch the status of jobs but not replace it. Remove this after the next release.
        self._patches_status = False

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """All selected objects, read page by page. If a page token expires, one request reads the whole list again."""
        query = selector_query(scope)
        if not_older_than:
            query |= {"resourceVersion": not_older_than, "resourceVersionMatch": "NotOlderThan"}
        try:
            return await self._pages(resource, scope, query | {"limit": str(PAGE_SIZE)})
        except GoneError:
            return await self._pages(resource, scope, query)

    async def _pages(self, resource: Resource, scope: Selection, query: dict[str, str]) -> ListPage:
        path = collection_path(resource, scope.namespace)
        items, version = [], ""
        while True:
            data = await self.http.send(Request("list", resource.id, with_query(path, query), idempotent=True))
            page, next_token = decode_page(resource, data)
            items.append(page.items)
            version = version or page.version
            if not next_token:
                return ListPage(tuple([item for some in items for item in some]), version)
            query = selector_query(scope) | {"limit": str(PAGE_SIZE), "continue": next_token}

    async def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        """The changes after the version `since`, until the server ends the watch (after five to ten minutes)."""
        seconds = int(_WATCH_SECONDS * (1 + random()))  # noqa: S311 - jitter, not a secret
        query = selector_query(scope) | {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        query |= {"resourceVersion": since} if since else {}
        request = Request("watch", resource.id, with_query(collection_path(resource, scope.namespace), query))
        chunks = self.http.stream(request, seconds + _WATCH_MARGIN_SECONDS)
        async with aclosing(watch_events(resource, chunks)) as batches:
            async for batch in batches:
                yield batch

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object."""
        return decode_object(resource, await self._get(resource, key))

    async def _get(self, resource: Resource, key: Key) -> bytes:
        return await self.http.send(Request("get", resource.id, object_path(resource, key), idempotent=True))

    async def create(self, resource: Resource, body: Body) -> Any:
        """Create an object."""
        path = create_path(resource, (body.get("metadata") or {}).get("namespace") or "")
        return decode_object(resource, await self.http.send(Request("create", resource.id, path, encode(body))))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Merge-patch an object, or its status alone."""
        custom = "." in resource.group and not resource.group.endswith(".k8s.io")
        if status and uid and not version and custom:
            # In a status patch of a custom resource, API servers ignore the UID. So send the version instead.
            version = await self._version_of(resource, key, uid)
        if pinned := pins(uid, version):
            body = {**body, "metadata": {**(body.get("metadata") or {}), **pinned}}
        path = object_path(resource, key, "status" if status else "")
        id_ = f"{resource.id}/status" if status else resource.id
        request = Request("patch", id_, path, encode(body), _MERGE_PATCH, idempotent=True, pinned=bool(uid))
        return decode_object(resource, await self.http.send(request))

    async def replace_status(self, resource: Resource, document: Body) -> Any:
        """Replace the status of an object; the API server ignores changes of all other parts.

        The request contains the labels and annotations, because the server would otherwise record that their managers
        no longer manage them. It contains no `spec` and no `managedFields`: the server keeps the stored ones, and a
        spec would only cost it the time to decode pod templates. Webhooks for the status see an object without a spec.
        """
        metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
        path = object_path(resource, Key(metadata.get("namespace", ""), metadata["name"]), "status")
        id_ = f"{resource.id}/status"
        if not self._patches_status:
            parts = {name: part for name, part in document.items() if name != "spec"}
            body = encode(parts | {"metadata": metadata})
            request = Request("update", id_, path, body, idempotent=True, pinned=True)
            try:
                return decode_object(resource, await self.http.send(request))
            except ForbiddenError as error:
                # The role of an older version has only the verb `patch`. If that is forbidden too, the error says so.
                if _NO_RIGHT_TO_UPDATE not in str(error):
                    raise
        pinned = {name: metadata[name] for name in ("uid", "resourceVersion")}
        steps = [{"op": "add", "path": f"/metadata/{name}", "value": value} for name, value in pinned.items()]
        steps.append({"op": "add", "path": "/status", "value": document.get("status") or {}})
        request = Request("patch", id_, path, msgspec.json.encode(steps), _JSON_PATCH, idempotent=True, pinned=True)
        try:
            data = await self.http.send(request)
        except ForbiddenError:
            self._patches_status = False
            raise
        self._patches_status = True
        return decode_object(resource, data)

    async def _version_of(self, resource: Resource, key: Key, uid: str) -> str:
        """The version of the object with this UID. Raises ConflictError if the object has another UID."""
        meta = decode_metadata(await self._get(resource, key))
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
        """Delete an object. Returns the object if it still exists because of a grace period or a finalizer."""
        options: Body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation.value}
        options |= {"gracePeriodSeconds": grace} if grace is not None else {}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        path = object_path(resource, key)
        data = await self.http.send(
            Request("delete", resource.id, path, encode(options), idempotent=bool(uid), pinned=bool(uid))
        )
        return decode_object(resource, data) if _still_exists(decode_metadata(data)) else None

    async def bind(self, key: Key, node: str, *, uid: str = "", version: str = "") -> Any:
        """Assign a pod to a node. Raises ConflictError if the pod is on another node or is being deleted."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": key.name, "namespace": key.namespace, **pins(uid, version)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = object_path(PODS, key, "binding")
        await self.http.send(Request("create", f"{PODS.id}/binding", path, encode(body), pinned=bool(uid)))
        return await self.get(PODS, key)


def pins(uid: str, version: str) -> dict[str, str]:
    """The metadata that limits a write to the object with this UID, or to this version of the object."""
    return {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}


def _still_exists(meta: ObjectMeta) -> bool:
    """Whether the object in the answer to a delete request still exists. Some answers contain a removed object."""
    kept = meta.deletion_grace_period_seconds or meta.finalizers
    return meta.deletion_timestamp is not None and bool(kept)


# -- watches -----------------------------------------------------------------------------------------------------------


class _Event(Struct, frozen=True):
    type: str
    object: Raw


_EVENT = msgspec.json.Decoder(_Event)


async def watch_events(
    resource: Resource, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
    """Decode the events of a watch, one batch per chunk. Raises the ApiError that the server sends."""
    lines = LineSplitter(_MAX_EVENT_BYTES)
    async with aclosing(chunks):
        async for chunk in chunks:
            batch: list[WatchEvent] = []
            try:
                batch.extend(_event(resource, line) for line in lines.feed(chunk) if line)
            except LineTooLongError as error:
                raise UnavailableError(f"the watch of {resource.id} sends {error}") from None
            except ApiError:
                # The events before the error are valid, so the caller gets them first.
                if batch:
                    yield tuple(batch)
                raise
            if batch:
                yield tuple(batch)
    if lines.partial:
        raise UnavailableError(f"the watch of {resource.id} broke off within an event")


def _event(resource: Resource, line: bytes) -> WatchEvent:
    try:
        event = _EVENT.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnavailableError(f"the watch of {resource.id} sent a line that is not an event: {error}") from None
    type_ = _EVENT_TYPES.get(event.type)
    if type_ is None:
        raise error_of(decode_status(500, bytes(event.object)))
    if type_ is WatchEventType.BOOKMARK:
        return WatchEvent(type_, decode_metadata(event.object).resource_version)
    try:
        found = decode_object(resource, event.object)
    except ApiError as error:
        # Leave out this object, but report its version, because the informer continues from the last version.
        meta: dict[str, Any] = decode(dict, event.object).get("metadata") or {}
        warn_unreadable(resource, meta, error)
        return WatchEvent(WatchEventType.BOOKMARK, str(meta.get("resourceVersion", "")))
    version = found["metadata"]["resourceVersion"] if isinstance(found, dict) else found.metadata.resource_version
    return WatchEvent(type_, version, found)
