# SPDX-License-Identifier: Apache-2.0
"""Requests as values, and where things are on an API server. Made by `cluster` and `logs`, carried out by `http`.

A name that would change the meaning of a path is refused here: an empty one would turn the deletion of one object into
the deletion of all.
"""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from msgspec import Struct

from trainwright.errors import InvalidError
from trainwright.model.meta import Key
from trainwright.runtime.ports import Resource, Scope

_METHODS = {"create": "POST", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
_READS = frozenset({"get", "list", "watch"})


class Call(Struct, frozen=True):
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


def scoped(scope: Scope) -> dict[str, str]:
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
