# SPDX-License-Identifier: Apache-2.0
"""Bytes of an API server to objects, as narrow as their resource says. The only place that knows JSON of objects.

Objects in a list of a built-in type do not say what they are, and Go writes `null` for an empty list. Whole objects
lose their `managedFields`, which are half of an object, but for who wrote their status. One object that cannot be read
must not hide the others: it is left out, with a warning.
"""

import logging
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from trainwright.errors import ApiError
from trainwright.model.job import Body
from trainwright.model.meta import ObjectMeta
from trainwright.runtime.line import Line
from trainwright.runtime.ports import Resource

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
    _LOG.warning(Line("object left out", resource=resource.id, object=name, error=error))


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
