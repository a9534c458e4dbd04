# SPDX-License-Identifier: Apache-2.0
"""Requests to an API server, their paths, and the JSON format of objects, lists and errors.

In lists of built-in types, objects have no `kind` field, so the decoder adds it. Go writes `null` for an empty list,
which the decoder accepts. The decoder shortens `managedFields`, which is half of an object's size: it keeps only the
names of the managers that wrote the status. If one object in a list cannot be decoded, the decoder logs a warning and
leaves out this object, so that the other objects stay visible.
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
from trainwright.runtime.ports import ListPage, Resource, Selection
from trainwright.runtime.telemetry import LogMessage

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
_READ_VERBS = frozenset({"get", "list", "watch"})
#: If an object is too large to store, the error of the API server contains one of these texts of etcd.
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
#: The quota admission plug-in uses the reason `Forbidden`. Only this text distinguishes its errors from other errors.
_QUOTA = "exceeded quota"
#: What msgspec raises. For text that is not UTF-8, it is no error of its own.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)
_MAX_RETRY_AFTER_SECONDS = 3600.0
#: Maximum number of objects that a client requests at once.
PAGE_SIZE = 500
#: The error for an HTTP code, used if the `Status` object has no reason that we know. 400 and 413: invalid request.
_ERROR_BY_CODE: dict[int, type[ApiError]] = {
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


# -- requests ----------------------------------------------------------------------------------------------------------


class Request(Struct, frozen=True):
    """A request to an API server. `verb` is a verb as in RBAC rules, for example `list`."""

    verb: str
    resource: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"
    #: Whether sending the request twice has the same effect as sending it once.
    idempotent: bool = False
    #: Whether the request contains a UID. The server then refuses the request if the object has another UID.
    pinned: bool = False

    @property
    def method(self) -> str:
        """The HTTP method."""
        return _METHODS.get(self.verb, "GET")

    @property
    def is_write(self) -> bool:
        """Whether the request can change something."""
        return self.verb not in _READ_VERBS

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers that depend on this request."""
        return {} if self.body is None else {"Content-Type": self.content_type}


def collection_path(resource: Resource, namespace: str = "") -> str:
    """The path of all objects of a resource, in one namespace or in all namespaces."""
    root = f"/apis/{resource.group}" if resource.group else "/api"
    inside = f"/namespaces/{_segment('namespace', namespace)}" if namespace and resource.namespaced else ""
    return f"{root}/{resource.version}{inside}/{resource.plural}"


def create_path(resource: Resource, namespace: str) -> str:
    """The path to which new objects are posted."""
    if resource.namespaced and not namespace:
        raise InvalidError(f"metadata.namespace: missing; expected the name of a namespace: {resource.id} have one")
    return collection_path(resource, namespace)


def object_path(resource: Resource, key: Key, subresource: str = "") -> str:
    """The path of one object, or of a subresource of the object."""
    path = f"{create_path(resource, key.namespace)}/{_segment('name', key.name)}"
    return f"{path}/{subresource}" if subresource else path


def selector_query(selection: Selection) -> dict[str, str]:
    """The query parameters for the label and field selectors."""
    given = {"labelSelector": selection.labels, "fieldSelector": selection.fields}
    return {name: value for name, value in given.items() if value}


def with_query(path: str, query: Mapping[str, str]) -> str:
    """A path with query parameters."""
    return f"{path}?{urlencode(query, quote_via=quote)}" if query else path


def _segment(field: str, value: str) -> str:
    """Encode a name. Refuse a name that changes the path: a DELETE with an empty name would delete all objects."""
    if value in ("", ".", "..") or "/" in value or "%" in value or not value.isascii():
        raise InvalidError(f"metadata.{field}: {value!r}; expected a {field} in ASCII without `/` and `%`")
    return quote(value, safe="")


# -- objects -----------------------------------------------------------------------------------------------------------


class _ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class _List(Struct, Generic[T], frozen=True):
    metadata: _ListMeta
    items: tuple[T, ...] | None = None


class _WithMetadata(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


@cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


def encode(body: Body) -> bytes:
    """The JSON of an object or a patch."""
    return msgspec.json.encode(body)


def decode_metadata(data: bytes | Raw) -> ObjectMeta:
    """The metadata of an object of any kind."""
    found: _WithMetadata = decode(_WithMetadata, data)
    return found.metadata


def decode_object(resource: Resource, data: bytes | Raw) -> Any:
    """One object, decoded as the resource's type. Raises ApiError if the data cannot be decoded as this type."""
    if resource.type is dict:
        return _complete(resource, decode(dict, data))
    return decode(resource.type, data)


def decode_page(resource: Resource, data: bytes) -> tuple[ListPage, str]:
    """One page of a list, and the token for the next page."""
    if resource.type is dict:
        listed = decode(_List[Body], data)
        items = tuple([_complete(resource, body) for body in listed.items or ()])
    else:
        try:
            listed = _decoder(_List[resource.type]).decode(data)  # type: ignore[name-defined]
            items = listed.items or ()
        except _UNREADABLE:
            listed = decode(_List[Body], data)
            items = tuple([one for body in listed.items or () for one in _readable(resource, body)])
    return ListPage(items, listed.metadata.resource_version), listed.metadata.continue_ or ""


def _readable(resource: Resource, body: Body) -> tuple[Any, ...]:
    """A tuple with the decoded object. If the object cannot be decoded, log a warning and return an empty tuple."""
    try:
        return (resource.decode(_complete(resource, body)),)
    except msgspec.ValidationError as error:
        warn_unreadable(resource, body.get("metadata") or {}, error)
        return ()


def warn_unreadable(resource: Resource, meta: Body, error: Exception) -> None:
    """Log a warning that an object is ignored because it cannot be decoded."""
    name = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
    _LOG.warning(LogMessage("object left out", resource=resource.id, object=name, error=error))


def _complete(resource: Resource, body: Body) -> Body:
    """Add apiVersion and kind, and shorten `managedFields`. Changes `body` itself, which no other code uses yet."""
    body.setdefault("apiVersion", resource.api_version)
    body.setdefault("kind", resource.kind)
    meta = body.get("metadata")
    if isinstance(meta, dict) and (entries := meta.pop("managedFields", None)):
        writers = [one for one in entries if isinstance(one, dict) and one.get("subresource") == "status"]
        if writers:
            meta["managedFields"] = [{"manager": one.get("manager"), "subresource": "status"} for one in writers]
    return body


def decode(type_: Any, data: bytes | Raw) -> Any:
    """An answer of the server, decoded as this type. Raises ApiError if the data cannot be decoded as this type."""
    try:
        return _decoder(type_).decode(data)
    except _UNREADABLE as error:
        raise ApiError(f"the server's answer cannot be read: {error}") from None


# -- errors ------------------------------------------------------------------------------------------------------------


class StatusCause(Struct, frozen=True):
    """One cause in the list of causes of a status."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Struct, frozen=True, rename="camel"):
    """The details of a status."""

    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: int | None = None


class ApiStatus(Struct, frozen=True):
    """A `Status` object of Kubernetes: the answer to a request that failed."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int | None = None
    details: StatusDetails | None = None

    def has_cause(self, name: str) -> bool:
        """Whether one of the causes has this field or this reason."""
        return any(name in (cause.field, cause.reason) for cause in (self.details and self.details.causes) or ())


def decode_status(code: int, data: bytes) -> ApiStatus:
    """The status in an answer. If there is none (for example from a proxy), make a status from the answer's text."""
    try:
        status: ApiStatus = _decoder(ApiStatus).decode(data)
    except _UNREADABLE:
        status = ApiStatus()
    if status.kind == "Status":
        return status
    text = " ".join(data[:300].decode(errors="replace").split())
    return ApiStatus(message=f"HTTP {code} without a reason{f': {text}' if text else ''}", code=code)


def error_of(status: ApiStatus, code: int = 0, retry_after: str = "") -> ApiError:
    """The error that corresponds to a status."""
    code = code or status.code or 500
    kind = API_ERRORS.get(status.reason) or _ERROR_BY_CODE.get(code)
    if any(text in status.message for text in _TOO_LARGE):
        kind = InvalidError
    elif kind is ForbiddenError and _QUOTA in status.message:
        kind = QuotaError
    if kind is None:
        kind = UnavailableError if code >= 500 else ApiError
    seconds = float(retry_after) if retry_after.isdecimal() else None
    if seconds is None and status.details is not None and status.details.retry_after_seconds:
        seconds = float(status.details.retry_after_seconds)
    seconds = min(seconds, _MAX_RETRY_AFTER_SECONDS) if seconds is not None else None
    return kind(status.message or status.reason or f"HTTP {code}", retry_after=seconds)
