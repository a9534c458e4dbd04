# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI documents, one for each version of a group. kubectl reads them before it creates or changes objects.

kubectl looks for three things: the parameter `fieldValidation` of the patch of a kind, which means that the server
checks objects and kubectl need not; the media types of patches; and the schemas, which `kubectl explain` prints.

For built-in kinds the documents do not list strategic merge patches, although the server accepts them. kubectl then
computes such a patch from its own types, which are complete. From our schemas, which lack merge keys, it would compute
patches that replace whole lists.

Before it creates the objects of a `v1` List, kubectl reads the old document, OpenAPI v2, and fails without it. Ours
describes nothing, so kubectl checks nothing itself; the server checks each object of the list.
"""

from collections.abc import Iterable
from functools import cache
from hashlib import sha256

import msgspec

from trainwright import __version__
from trainwright.api import resources
from trainwright.api.resources import ServedResource
from trainwright.api.schemas import component_name, components, reference
from trainwright.model.job import Body

#: The media type of OpenAPI v2 in protobuf. Clients such as kubectl ask for it by an older spelling.
PROTOBUF_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
ACCEPTS_PROTOBUF_V2 = (PROTOBUF_V2, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
#: The numbers of the fields of such a document and of its `info`.
_SWAGGER, _INFO, _PATHS, _TITLE, _VERSION = 1, 2, 8, 1, 2
_ABOUT = {"title": "Trainwright", "version": __version__}
_PATCH_TYPES = ("application/json-patch+json", "application/merge-patch+json")
_WRITE_PARAMETERS = {
    "dryRun": "All: the server answers as usual, but stores nothing.",
    "fieldManager": "The name of the program that makes the change.",
    "fieldValidation": "What the server does about unknown and repeated fields: Ignore, Warn or Strict.",
}
_LIST_PARAMETERS = {
    "continue": "Continue a list that had a limit: the token from its metadata.",
    "fieldSelector": "Select objects by fields.",
    "labelSelector": "Select objects by labels.",
    "limit": "The largest number of objects in the answer.",
    "resourceVersion": "The version from which a watch begins.",
    "watch": "Send changes as they occur.",
}
#: Verb of the API -> (method, what the operation does).
_COLLECTION_OPERATIONS = {"list": ("get", "List objects"), "create": ("post", "Create an object")}
_ITEM_OPERATIONS = {
    "get": ("get", "Read an object"),
    "update": ("put", "Replace an object"),
    "patch": ("patch", "Change some fields of an object"),
    "delete": ("delete", "Delete an object"),
}


def root() -> Body:
    """The document at `/openapi/v3`: the address of each document. The address changes when the document changes."""
    return {
        "paths": {
            _base(group, version): {
                "serverRelativeURL": f"/openapi/v3/{_base(group, version)}?hash={digest(group, version)}"
            }
            for group, versions in resources.groups().items()
            for version in versions
        }
    }


def document(group: str, version: str) -> bytes | None:
    """The document at `/openapi/v3/apis/GROUP/VERSION`, or at `/openapi/v3/api/VERSION` for the core group, as JSON.

    None if there is no such version. A document is encoded once, because it never changes while the program runs.
    """
    return _encoded(group, version) if version in resources.groups().get(group, ()) else None


def second_version(protobuf: bool) -> bytes:
    """The document at `/openapi/v2`, which describes nothing."""
    if not protobuf:
        return msgspec.json.encode({"swagger": "2.0", "info": _ABOUT, "paths": {}})
    info = _field(_TITLE, _ABOUT["title"].encode()) + _field(_VERSION, _ABOUT["version"].encode())
    return _field(_SWAGGER, b"2.0") + _field(_INFO, info) + _field(_PATHS, b"")


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message: a text, or another message. Its content has fewer than 128 bytes."""
    return bytes((number << 3 | 2, len(content))) + content


def digest(group: str, version: str) -> str:
    """A hash of a document, for its address and its ETag. Raises KeyError if there is no such version."""
    found = document(group, version)
    if found is None:
        raise KeyError(f"{group}/{version}")
    return _digest(found)


@cache
def _digest(content: bytes) -> str:
    return sha256(content).hexdigest().upper()


@cache
def _encoded(group: str, version: str) -> bytes:
    served = resources.in_group_version(group, version)
    return msgspec.json.encode(
        {
            "openapi": "3.0.0",
            "info": _ABOUT,
            "paths": {path: operations for one in served for path, operations in _paths(one)},
            "components": {"schemas": components(served)},
        }
    )


def _base(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _paths(served: ServedResource) -> Iterable[tuple[str, Body]]:
    """The paths of a resource, with the operations that it has. `kubectl explain` finds a resource by these paths."""
    resource = served.resource
    base = f"/{_base(resource.group, resource.version)}"
    collection = f"{base}/{'namespaces/{namespace}/' if resource.namespaced else ''}{resource.plural}"
    place = [_path_parameter("namespace")] if resource.namespaced else []
    yield collection, _operations(served, _COLLECTION_OPERATIONS, place)
    if item := _operations(served, _ITEM_OPERATIONS, [*place, _path_parameter("name")]):
        yield f"{collection}/{{name}}", item
    if resource.namespaced:
        yield f"{base}/{resource.plural}", {"get": _operation(served, "list", _COLLECTION_OPERATIONS["list"][1])}


def _operations(served: ServedResource, known: dict[str, tuple[str, str]], parameters: list[Body]) -> Body:
    """The operations at one path; empty if the resource has none of these verbs."""
    found: Body = {
        method: _operation(served, verb, text) for verb, (method, text) in known.items() if verb in served.verbs
    }
    return found | {"parameters": parameters} if found else {}


def _operation(served: ServedResource, verb: str, text: str) -> Body:
    resource, own = served.resource, component_name(served)
    content = {"application/json": {"schema": reference(f"{own}List" if verb == "list" else own)}}
    operation: Body = {
        "description": f"{text} of the kind {resource.kind}.",
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": "post" if verb == "create" else "put" if verb == "update" else verb,
        "x-kubernetes-group-version-kind": {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        },
    }
    if verb == "list":
        operation["parameters"] = _query_parameters(_LIST_PARAMETERS)
    if verb in ("create", "update", "patch"):
        operation["parameters"] = _query_parameters(_WRITE_PARAMETERS)
        operation["requestBody"] = {"content": _accepted(own, verb), "required": True}
    return operation


def _accepted(own: str, verb: str) -> Body:
    """The media types of the body of a request."""
    if verb == "patch":
        return {media: {"schema": {"type": "object"}} for media in _PATCH_TYPES}
    return {"application/json": {"schema": reference(own)}}


def _query_parameters(described: dict[str, str]) -> list[Body]:
    return [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in described.items()
    ]


def _path_parameter(name: str) -> Body:
    text = f"The {name} of the object."
    return {"name": name, "in": "path", "description": text, "required": True, "schema": {"type": "string"}}
