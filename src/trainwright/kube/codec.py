# SPDX-License-Identifier: Apache-2.0
"""Requests as values, and where things are on an API server. Made by `cluster` and `logs`, carried out by `http`.

A name that would change the meaning of a path is refused here: an empty one would turn the deletion of one object into
the deletion of all.

Bytes of an API server to objects, as narrow as their resource says. The only place that knows JSON of objects.

Objects in a list of a built-in type do not say what they are, and Go writes `null` for an empty list. Whole objects
lose their `managedFields`, which are half of an object, but for who wrote their status. One object that cannot be read
must not hide the others: it is left out, with a warning.

What an API server answers when it refuses: a `Status` object, or whatever a proxy before it says, as our errors.

`http` calls it for every answer that is none, `watch` for the error that ends a watch.
"""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw, Struct

from trainwright.errors import (
    API_ERRORS,
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    QuotaError,
    TooManyRequestsError,
    UnavailableError,
)
from trainwright.model.job import Body
from trainwright.model.meta import Key, ObjectMeta
from trainwright.runtime.ports import Resource, Selection
from trainwright.runtime.telemetry import LogMessage

_METHODS = {"create": "POST", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
_READS = frozenset({"get", "list", "watch"})


class Request(Struct, frozen=True):
    """A request. The verb is RBAC's."""

    verb: str
    resource: str
    path: str
    body: bytes | None = None
    content: str = "application/json"
    #: Doing it twice is doing it once.
    repeatable: bool = False
    #: It is about the object of this UID only.
    pinned: bool = False

    @property
    def method(self) -> str:
        """The word of HTTP for it."""
        return _METHODS.get(self.verb, "GET")

    @property
    def write(self) -> bool:
        """Whether it may change anything."""
        return self.verb not in _READS

    @property
    def headers(self) -> Mapping[str, str]:
        """Its own headers."""
        return {} if self.body is None else {"Content-Type": self.content}


def all_of(resource: Resource, namespace: str = "") -> str:
    """The path of a resource, in one namespace or in all."""
    root = f"/apis/{resource.group}" if resource.group else "/api"
    inside = f"/namespaces/{_segment('namespace', namespace)}" if namespace and resource.namespaced else ""
    return f"{root}/{resource.version}{inside}/{resource.plural}"


def place_of(resource: Resource, namespace: str) -> str:
    """The path that objects are created at."""
    if resource.namespaced and not namespace:
        raise InvalidError(f"metadata.namespace: missing; expected the name of a namespace: {resource.id} have one")
    return all_of(resource, namespace)


def one_of(resource: Resource, key: Key, part: str = "") -> str:
    """The path of an object, or of a subresource of it."""
    path = f"{place_of(resource, key.namespace)}/{_segment('name', key.name)}"
    return f"{path}/{part}" if part else path


def scoped(scope: Selection) -> dict[str, str]:
    """The parameters that select."""
    given = {"labelSelector": scope.labels, "fieldSelector": scope.fields}
    return {name: value for name, value in given.items() if value}


def with_query(path: str, query: Mapping[str, str]) -> str:
    """A path with parameters."""
    return f"{path}?{urlencode(query, quote_via=quote)}" if query else path


def _segment(field: str, value: str) -> str:
    if value in ("", ".", "..") or "/" in value or "%" in value:
        raise InvalidError(f"metadata.{field}: {value!r}; expected a {field} without `/` and `%`")
    return quote(value, safe="")


T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class _ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class _List(Struct, Generic[T], frozen=True):
    metadata: _ListMeta
    items: tuple[T, ...] | None = None


class _Head(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class Listed(Struct, frozen=True):
    """A page: its objects, the version of the list, and the token for the next page."""

    items: tuple[Any, ...]
    version: str
    more: str


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def encode(body: Body) -> bytes:
    """An object, or a patch, as it is sent."""
    return msgspec.json.encode(body)


def metadata(data: bytes | Raw) -> ObjectMeta:
    """The metadata of an answer, whatever else it is."""
    found: _Head = _read(_Head, data)
    return found.metadata


def item(resource: Resource, data: bytes | Raw) -> Any:
    """One object; ApiError if it is not what it should be."""
    if resource.type is dict:
        return _whole(resource, _read(dict, data))
    return _read(resource.type, data)


def page(resource: Resource, data: bytes) -> Listed:
    """One page of a list."""
    if resource.type is dict:
        listed = _read(_List[Body], data)
        items = tuple([_whole(resource, body) for body in listed.items or ()])
    else:
        try:
            listed = _decoder(_List[resource.type]).decode(data)  # type: ignore[name-defined]
            items = listed.items or ()
        except msgspec.ValidationError:
            listed = _read(_List[Body], data)
            items = tuple([one for body in listed.items or () for one in _each(resource, body)])
    return Listed(items, listed.metadata.resource_version, listed.metadata.continue_ or "")


def _each(resource: Resource, body: Body) -> tuple[Any, ...]:
    """The object in the narrow form, or nothing if that cannot be."""
    try:
        return (resource.decode(_whole(resource, body)),)
    except msgspec.ValidationError as error:
        unreadable(resource, body.get("metadata") or {}, error)
        return ()


def unreadable(resource: Resource, meta: Body, error: Exception) -> None:
    """Tell of an object that is left out."""
    name = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
    _LOG.warning(LogMessage("object left out", resource=resource.id, object=name, error=error))


def _whole(resource: Resource, body: Body) -> Body:
    """Complete what was just decoded: nobody else has it yet."""
    body.setdefault("apiVersion", resource.api_version)
    body.setdefault("kind", resource.kind)
    meta = body.get("metadata")
    if isinstance(meta, dict) and (entries := meta.pop("managedFields", None)):
        writers = [one for one in entries if isinstance(one, dict) and one.get("subresource") == "status"]
        if writers:
            meta["managedFields"] = [{"manager": one.get("manager"), "subresource": "status"} for one in writers]
    return body


def _read(kind: Any, data: bytes | Raw) -> Any:
    try:
        return _decoder(kind).decode(data)
    except msgspec.MsgspecError as error:
        raise ApiError(f"the server's answer cannot be read: {error}") from None


#: etcd's words for an object that it cannot store, which API servers hand on as an error of their own.
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
#: What the quota admission of an API server says; its reason is that of any other refusal.
_QUOTA = "exceeded quota"
#: A server that asks for more patience than this, in seconds, is asked again all the same.
_LONGEST = 3600.0
#: Where Kubernetes' word is none of ours. What was malformed or too large cannot be right either.
_BY_CODE: dict[int, type[ApiError]] = {
    400: InvalidError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: InvalidError,
    422: InvalidError,
    429: TooManyRequestsError,
}


class StatusCause(Struct, frozen=True):
    """One of several things that are wrong."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Struct, frozen=True, rename="camel"):
    """What a refusal is about."""

    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: int | None = None


class ApiStatus(Struct, frozen=True):
    """An answer that is no object."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int | None = None
    details: StatusDetails | None = None

    def blames(self, field: str) -> bool:
        """Whether that field is among what is wrong."""
        return any(field in (cause.field, cause.reason) for cause in (self.details and self.details.causes) or ())


_DECODER = msgspec.json.Decoder(ApiStatus)


def read(code: int, data: bytes) -> ApiStatus:
    """The status in an answer; one is made up for an answer that has none."""
    try:
        status = _DECODER.decode(data)
    except msgspec.MsgspecError:
        status = ApiStatus()
    if status.kind == "Status":
        return status
    text = " ".join(data[:300].decode(errors="replace").split())
    return ApiStatus(message=f"HTTP {code} without a reason{f': {text}' if text else ''}", code=code)


def error_of(status: ApiStatus, code: int = 0, retry_after: str = "") -> ApiError:
    """The error that a status means."""
    code = code or status.code or 500
    kind = API_ERRORS.get(status.reason) or _BY_CODE.get(code)
    if any(words in status.message for words in _TOO_LARGE):
        kind = InvalidError
    elif kind is ForbiddenError and _QUOTA in status.message:
        kind = QuotaError
    if kind is None:
        kind = UnavailableError if code >= 500 else ApiError
    seconds = float(retry_after) if retry_after.isdecimal() else None
    if seconds is None and status.details is not None and status.details.retry_after_seconds:
        seconds = float(status.details.retry_after_seconds)
    seconds = min(seconds, _LONGEST) if seconds is not None else None
    return kind(status.message or status.reason or f"HTTP {code}", retry_after=seconds)
