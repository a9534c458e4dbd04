# SPDX-License-Identifier: Apache-2.0
"""Answers the requests for resources: finds the resource of a path, checks the rights, and calls the verb."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from trainwright.api import access, bodies, field_labels, paths, queries, scales, statuses
from trainwright.api.access import AccessRole, ApiIdentity
from trainwright.api.bodies import DeleteOptions
from trainwright.api.definitions import Definitions
from trainwright.api.formats import ObjectFormat, check_form, choose
from trainwright.api.lists import Lists, Page
from trainwright.api.namespaces import Namespaces
from trainwright.api.paths import ResourcePath
from trainwright.api.pod_exec import PodStreams
from trainwright.api.pod_logs import PodLogs
from trainwright.api.queries import ListOptions, WriteOptions
from trainwright.api.resources import ServedResource, find
from trainwright.api.watches import WatchHub
from trainwright.api.writes import Writes, check_patch_type, patched
from trainwright.errors import (
    ApiError,
    BadRequestError,
    InvalidError,
    MethodNotAllowedError,
    NotFoundError,
    TooManyRequestsError,
)
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.selectors import compiled
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import CLAIMS, DEFINITIONS, NAMESPACES, PODS, SERVICES, Clock

#: So many watches can be open at the same time.
MAX_WATCHES = 500
#: Per cent of these watches that clients may open who are no admins, so that they cannot lock the admin out.
_SHARE_OF_OTHERS = 80
#: The longest watch in seconds. Clients begin a new watch at its end.
_MAX_WATCH_SECONDS = 3600.0
#: A list is sent in parts of at least this many bytes, so that other requests are answered between them, and a client
#: that does not read costs little memory.
_PART_BYTES = 64 << 10
#: A client must read each part within this many seconds.
_PART_SECONDS = 60.0
_REVIEWS: dict[str, Callable[[ApiIdentity, Body], Body]] = {
    "selfsubjectaccessreviews": access.review_access,
    "selfsubjectrulesreviews": access.review_rules,
    "selfsubjectreviews": lambda identity, _: access.review_self(identity),
}
_JSON = {"Content-Type": "application/json"}
_LIST, _WATCH = "list", "watch"
#: As on an API server, the answer to a deletion of these is the object, even if it is gone.
_RETURNED = (PODS.id, SERVICES.id, CLAIMS.id)


class Call(Struct, frozen=True):
    """One request for a resource: the HTTP request, who sends it, the parts of its path, and its verb."""

    request: web.BaseRequest
    identity: ApiIdentity
    path: ResourcePath
    served: ServedResource
    verb: str

    @property
    def key(self) -> Key:
        """The object of the request."""
        return Key(self.path.namespace, self.path.name)


class ResourceHandlers:
    """The verbs of all resources."""

    def __init__(self, cluster: LocalCluster, clock: Clock, folder: Path) -> None:
        """`folder` is the folder of the engine, with the logs of pods and the sockets of supervisors."""
        self._cluster, self._clock = cluster, clock
        logs = PodLogs(cluster, clock, folder)
        streams = PodStreams(folder, logs)
        self._streams = {"log": logs.serve, "exec": streams.exec, "attach": streams.attach}
        self._writes = Writes(cluster)
        self._namespaces = Namespaces(cluster)
        self._definitions = Definitions(clock.now())
        loop = asyncio.get_running_loop()
        self._lists = Lists(cluster, loop.time)
        self.watches = WatchHub(cluster.store, clock, lambda: cluster.durable_version)
        self._verbs: dict[str, Callable[[Call], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def prepare(self) -> None:
        """Make the namespaces of all stored objects."""
        await self._namespaces.require_all()

    def find(self, request: web.BaseRequest, identity: ApiIdentity) -> Call | None:
        """The call that a request makes; None if its path is no resource. Raises ApiError."""
        path = paths.parse(request.rel_url.raw_path)
        served = find(path.group, path.version, path.plural) if path is not None else None
        if path is None or served is None:
            return None
        if path.subresource and served.subresource(path.subresource) is None:
            raise NotFoundError("the server could not find the requested resource")
        is_collection = not path.name
        if served.resource.namespaced and not path.namespace and not (is_collection and request.method == "GET"):
            if is_collection and not served.custom:
                raise MethodNotAllowedError("the server does not allow this method on the requested resource")
            raise NotFoundError("the server could not find the requested resource")
        if path.namespace and not served.resource.namespaced:
            return None
        verb = _verb(request, path)
        return Call(request, identity, path, served, verb)

    async def answer(self, call: Call) -> web.StreamResponse:
        """Check the rights and do it. Raises ApiError."""
        path, resource = call.path, call.served.resource
        access.check(call.identity, call.verb, resource, sub=path.subresource, scope=path.namespace, name=path.name)
        found = call.served.subresource(path.subresource) if path.subresource else call.served
        if found is None or call.verb not in found.verbs:
            raise MethodNotAllowedError("the server does not allow this method on the requested resource")
        if path.subresource == "binding":
            return await self._bind(call)
        if path.subresource == "scale":
            return await self._scale(call)
        if path.subresource in self._streams:
            body = await self._cluster.get(resource, call.key)
            return await self._streams[path.subresource](call.request, body)
        return await self._verbs[call.verb](call)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _get(self, call: Call) -> web.StreamResponse:
        form = self._format(call)
        self._lists.check_version(queries.version(call.request.query))
        if call.served.resource.id == DEFINITIONS.id:
            return self._shown(form, self._definitions.get(call.path.name))
        return self._shown(form, await self._cluster.get(call.served.resource, call.key))

    async def _list(self, call: Call) -> web.StreamResponse:
        form, options = self._format(call, _LIST), self._options(call)
        if call.served.resource.id == DEFINITIONS.id:
            page = Page(self._definitions.list(options.scope), str(self._cluster.durable_version))
        else:
            page = await self._lists.page(call.served.resource, options)
        table = form.table(page.items, page.metadata, self._clock.now())
        if table is not None:
            return await _send_parts(call.request, iter(_cut(table)))
        return await _send_list(call.request, form, page)

    async def _watch(self, call: Call) -> web.StreamResponse:
        form, options = self._format(call, _WATCH), self._options(call)
        limit = MAX_WATCHES if call.identity.role is AccessRole.ADMIN else MAX_WATCHES * _SHARE_OF_OTHERS // 100
        if len(self.watches) >= limit:
            raise TooManyRequestsError(f"{limit} watches are open already", retry_after=5)
        transport = call.request.transport
        if transport is None:
            raise ConnectionResetError
        version = str(self._cluster.store.last_version)
        watch = self.watches.open(call.served.resource, options, form, transport)
        try:
            response = web.StreamResponse(headers=_JSON)
            response.enable_chunked_encoding()
            await response.prepare(call.request)
            watch.begin(initial_events_end=version if options.initial_events and options.bookmarks else "")
            timeout = min(options.timeout or _MAX_WATCH_SECONDS, _MAX_WATCH_SECONDS)
            await asyncio.wait([watch.done], timeout=timeout)
        finally:
            watch.close()
        return response

    # -- writing -----------------------------------------------------------------------------------------------------

    async def _create(self, call: Call) -> web.StreamResponse:
        given = bodies.decode_object(await call.request.read(), _media(call.request))
        review = _REVIEWS.get(call.path.plural)
        if review is not None:
            return web.Response(status=201, body=msgspec.json.encode(review(call.identity, given)), headers=_JSON)
        options = queries.write_options(call.request.query, "CreateOptions")
        form, name = self._format(call), str((given.get("metadata") or {}).get("name") or "")
        try:
            body = bodies.check_identity(call.served, given, call.path.namespace, "")
            return await self._made(call, body, options, form)
        except ApiError as error:  # the path has no name, but the message needs it
            return failed(replace(call, path=replace(call.path, name=name)), error)

    async def _made(self, call: Call, body: Body, options: WriteOptions, form: ObjectFormat) -> web.StreamResponse:
        """Create an object, and its namespace."""
        self._namespaces.check(call.served.resource, call.path.namespace, str(body["metadata"].get("name") or ""))
        made, warnings = await self._writes.create(call.served, body, options)
        if not options.dry_run:
            await self._namespaces.require(call.path.namespace)
        return self._shown(form, made, status=201, warnings=warnings)

    async def _bind(self, call: Call) -> web.StreamResponse:
        """Put a pod on a node, for a scheduler other than ours."""
        given = bodies.decode_object(await call.request.read(), _media(call.request))
        target, metadata = given.get("target"), given.get("metadata") or {}
        node = target.get("name") if isinstance(target, dict) else None
        if not isinstance(node, str) or not node:
            raise InvalidError("target.name: missing; expected the name of a node")
        await self._cluster.bind(call.key, node, uid=str(metadata.get("uid") or ""))
        return web.Response(status=201, body=msgspec.json.encode(statuses.success(201)), headers=_JSON)

    async def _scale(self, call: Call) -> web.StreamResponse:
        """Read or change the number of replicas of a job, for kubectl and autoscalers."""
        fields = call.served.job.scale_paths if call.served.job is not None else None
        if fields is None:
            raise NotFoundError("the server could not find the requested resource")
        if call.verb == "get":
            return _plain(scales.scale_of(fields, await self._cluster.get(call.served.resource, call.key)))
        media = _media(call.request)
        if call.verb == "patch":
            check_patch_type(call.served, media)
            patch = bodies.decode(await call.request.read(), media)
            make = partial(scales.rescaled, fields, change=partial(patched, call.served, patch=patch, kind=media))
        else:
            given = bodies.decode_object(await call.request.read(), media)
            make = partial(scales.rescaled, fields, change=lambda _: given)
        options = queries.write_options(call.request.query, f"{call.verb.title()}Options")
        changed, warnings = await self._writes.edit(call.served, call.key, make, options)
        return _plain(scales.scale_of(fields, changed), warnings)

    async def _update(self, call: Call) -> web.StreamResponse:
        given = bodies.decode_object(await call.request.read(), _media(call.request))
        body = bodies.check_identity(call.served, given, call.path.namespace, call.path.name)
        options = queries.write_options(call.request.query, "UpdateOptions")
        form, status = self._format(call), call.path.subresource == "status"
        if not status and self._writes.creates(call.served, call.key):
            return await self._made(call, body, options, form)
        changed, warnings = await self._writes.replace(call.served, call.key, body, options, status=status)
        return self._shown(form, changed, warnings=warnings)

    async def _patch(self, call: Call) -> web.StreamResponse:
        kind = _media(call.request)
        check_patch_type(call.served, kind)
        patch = bodies.decode(await call.request.read(), kind)
        options = queries.write_options(call.request.query, "PatchOptions")
        form, status = self._format(call), call.path.subresource == "status"
        changed, warnings = await self._writes.patch(call.served, call.key, patch, kind, options, status=status)
        return self._shown(form, changed, warnings=warnings)

    async def _delete(self, call: Call) -> web.StreamResponse:
        options = await _delete_options(call)
        form, resource = self._format(call), call.served.resource
        if resource.id == NAMESPACES.id and not options.dry_run:
            self._writes.check_preconditions(call.served, call.key, options)
            body, is_gone = await self._namespaces.delete(call.path.name), False
        else:
            body, is_gone = await self._writes.delete(call.served, call.key, options)
        if is_gone and resource.id not in _RETURNED:
            return web.Response(body=msgspec.json.encode(statuses.deleted(resource, body)), headers=_JSON)
        return self._shown(form, body)

    async def _delete_collection(self, call: Call) -> web.StreamResponse:
        options = await _delete_options(call)
        form, scope = self._format(call, _LIST), self._options(call).scope
        gone = await self._writes.delete_all(call.served, scope, options)
        page = Page(tuple(gone), str(self._cluster.durable_version))
        return await _send_list(call.request, form, page)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _format(self, call: Call, answer: str = "") -> ObjectFormat:
        form = choose(call.request.headers.get("Accept", ""), call.request.query)
        if answer != _WATCH:
            check_form(form, call.served, is_list=answer == _LIST)
        return ObjectFormat(call.served, form)

    def _options(self, call: Call) -> ListOptions:
        options = queries.list_options(call.request.query, call.path.namespace)
        fields = field_labels.check_fields(call.served.resource.id, options.scope.fields)
        scope = replace(options.scope, fields=fields)
        try:
            compiled(scope)
        except InvalidError as error:
            raise BadRequestError(str(error)) from None
        return replace(options, scope=scope)

    def _shown(
        self, form: ObjectFormat, body: Body, *, status: int = 200, warnings: list[str] | None = None
    ) -> web.Response:
        response = web.Response(status=status, body=form.one(body, self._clock.now()), headers=_JSON)
        return _with_warnings(response, warnings or [])


def _verb(request: web.BaseRequest, path: ResourcePath) -> str:
    """The verb of a request, in the words of RBAC."""
    match request.method:
        case "GET" if path.name:
            return "get"
        case "GET":
            return "watch" if queries.truth(request.query, "watch") else "list"
        case "POST" if path.name and not path.subresource:
            return "post"  # an object has no POST: it is refused as a method that is not allowed
        case "POST":
            return "create"
        case "PUT" if path.name:
            return "update"
        case "PATCH" if path.name:
            return "patch"
        case "DELETE":
            return "delete" if path.name else "deletecollection"
        case other:  # no resource has such a verb
            return f"{other.lower()}collection"


def _plain(body: Body, warnings: list[str] | None = None) -> web.Response:
    """The answer with an object that is not stored."""
    return _with_warnings(web.Response(body=msgspec.json.encode(body), headers=_JSON), warnings or [])


def _with_warnings(response: web.Response, warnings: list[str]) -> web.Response:
    for text in warnings:
        response.headers.add("Warning", f"299 - {msgspec.json.encode(text).decode()}")
    return response


def _media(request: web.BaseRequest) -> str:
    return bodies.media_type(request.headers.get("Content-Type", ""))


async def _delete_options(call: Call) -> DeleteOptions:
    """The options of a deletion: those in its body, and those in its query."""
    given = bodies.delete_options(await call.request.read(), _media(call.request))
    return bodies.with_query(given, call.request.query)


async def _send_list(request: web.BaseRequest, form: ObjectFormat, page: Page) -> web.StreamResponse:
    """Send a list in parts, so that its size in memory is bounded and other requests are answered meanwhile."""
    start, end = form.head(page.metadata)
    return await _send_parts(request, _list_parts(start, form, page.items, end))


def _list_parts(start: bytes, form: ObjectFormat, items: tuple[Body, ...], end: bytes) -> Iterator[bytes]:
    """The bytes of a list, in parts."""
    part, size, separator = [start], 0, b""
    for item in items:
        (data,) = form.items((item,))
        part += (separator, data)
        size, separator = size + len(data), b","
        if size >= _PART_BYTES:
            yield b"".join(part)
            part, size = [], 0
    yield b"".join((*part, end))


def _cut(data: bytes) -> list[bytes]:
    """The data in parts."""
    return [data[start : start + _PART_BYTES] for start in range(0, len(data), _PART_BYTES)] or [b""]


async def _send_parts(request: web.BaseRequest, parts: Iterator[bytes]) -> web.StreamResponse:
    """Send the parts, each after the client has read the one before. A short answer is sent at once."""
    part, following = next(parts), next(parts, None)
    if following is None and len(part) < 2 * _PART_BYTES:
        return web.Response(body=part, headers=_JSON)
    response = web.StreamResponse(headers=_JSON)
    response.enable_chunked_encoding()
    await response.prepare(request)
    while True:
        try:
            async with asyncio.timeout(_PART_SECONDS):
                await response.write(part)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError from None
        if following is None:
            break
        part, following = following, next(parts, None)
    await response.write_eof()
    return response


def failed(call: Call | None, error: ApiError) -> web.Response:
    """The answer to a request that failed."""
    resource, name = (call.served.resource, call.path.name) if call is not None else (None, "")
    body = statuses.failure(error, resource, name)
    response = web.Response(status=error.status, body=msgspec.json.encode(body), headers=_JSON)
    if isinstance(error, TooManyRequestsError):
        response.force_close()  # a client that asks too often does not also keep a connection
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(int(error.retry_after) or 1)
    return response
