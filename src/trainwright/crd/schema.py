# SPDX-License-Identifier: Apache-2.0
"""Structural OpenAPI v3 schemas, generated from the wire types. `crd.schema` puts them into CRDs.

Walks the annotations themselves: `msgspec.inspect` sorts the values of a `Literal`, and people read them in order.
Everything is inlined. Null is not mentioned where it means the same as nothing: API servers drop such nulls themselves.

CustomResourceDefinitions, one for each kind, made from what `kinds.registry` lists.

`trainwright crds` prints them; the engines compare them with what is installed. Plain dicts in the order people write.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, UnsetType, structs

from trainwright import __version__
from trainwright.kinds.base import Column, Kind, Version
from trainwright.model.job import Body
from trainwright.model.meta import PREFIX

_SCALARS: dict[Any, Body] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    str: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
    Any: {"x-kubernetes-preserve-unknown-fields": True},
}
#: What a length is called, by the type of what is measured.
_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}
#: What people want to read before the long parts; anything else keeps its place between the two.
_FIRST = ("description", "type", "format", "nullable", "enum", "default")
_LAST = ("required", "properties", "items", "additionalProperties")


def schema(wire: type[Any], stamps: Mapping[str, str] | None = None) -> Body:
    """The schema of a whole object. The API server itself looks after `apiVersion`, `kind` and `metadata`.

    `stamps` are the defaults of one version, by path, as `kinds.base.Version` has them.
    """
    own = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    fields = {field.encode_name: field for field in structs.fields(wire) if field.encode_name not in own}
    node: Body = {"description": _first_sentence(wire), "type": "object"}
    node["required"] = [name for name, field in fields.items() if field.required]
    # Defaults are for what people write; a status says what its writer said, nothing more.
    parts = {name: _property(field, stamps=name != "status") for name, field in fields.items()}
    whole = node | {"properties": own | parts}
    for path, value in (stamps or {}).items():
        _stamp(whole, path.split("."), value)
    return whole


def _stamp(node: Body, steps: list[str], value: str) -> None:
    """Write a default down at the end of a path; the schema is new, so it may be edited."""
    for step in steps:
        node = node["additionalProperties"] if step == "*" else node["properties"][step]
    old = dict(node)
    node.clear()
    node.update(_tidy(old | {"default": value}))


def _node(annotation: Any, *, stamps: bool) -> Body:
    """The schema of any annotation a wire type may have."""
    return _tidy(_walk(annotation, stamps=stamps))


def _walk(annotation: Any, *, stamps: bool) -> Body:
    walk = _GENERICS.get(get_origin(annotation))
    if walk is not None:
        return walk(annotation, stamps=stamps)
    if get_origin(annotation) is Literal:
        return {"type": "string", "enum": list(get_args(annotation))}
    if annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return {"type": "string", "enum": [member.value for member in annotation]}
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _struct(annotation, stamps=stamps)
    raise TypeError(f"{annotation!r} has no structural schema")


def _struct(kind: type[Struct], *, stamps: bool) -> Body:
    fields = structs.fields(kind)
    node: Body = {"description": _first_sentence(kind), "type": "object"}
    if required := [field.encode_name for field in fields if field.required]:
        node["required"] = required
    return node | {"properties": {field.encode_name: _property(field, stamps=stamps) for field in fields}}


def _property(field: structs.FieldInfo, *, stamps: bool) -> Body:
    node = _node(field.type, stamps=stamps)
    if not field.required:
        node.pop("nullable", None)
    if stamps:
        node |= _default(field.default)
    return _tidy(node)


def _tidy(node: Body) -> Body:
    middle = [name for name in node if name not in _FIRST + _LAST]
    return {name: node[name] for name in (*_FIRST, *middle, *_LAST) if name in node}


def _default(value: object) -> Body:
    """What the API server writes down for the user; emptiness stays unwritten."""
    match value:
        case bool() | int() | float():
            return {"default": value}
        case str() if value:
            return {"default": str(value)}
        case Struct():
            return {"default": msgspec.to_builtins(value)}  # mostly {}, which its own fields' defaults then fill
        case _:
            return {}


def _annotated(annotation: Any, *, stamps: bool) -> Body:
    inner, *metas = get_args(annotation)
    node = _node(inner, stamps=stamps)
    for meta in metas:
        node |= _limits(meta, _LENGTHS.get(node.get("type", ""), ""))
    if (
        node.get("type") == "integer"
        and -(2**31) <= node.get("minimum", -(2**63)) <= node.get("maximum", 2**63) < 2**31
    ):
        node["format"] = "int32"
    return node


def _limits(meta: Meta, measure: str) -> Body:
    """The limits as OpenAPI 3.0 says them, where an exclusive bound is a flag beside the bound."""
    found = {
        "description": meta.description,
        "minimum": meta.ge if meta.gt is None else meta.gt,
        "exclusiveMinimum": None if meta.gt is None else True,
        "maximum": meta.le if meta.lt is None else meta.lt,
        "exclusiveMaximum": None if meta.lt is None else True,
        "multipleOf": meta.multiple_of,
        # Python's `$` lets a last newline through, so exact patterns end in `\Z`; elsewhere `$` is exact.
        "pattern": meta.pattern and meta.pattern.replace(r"\Z", "$"),
        f"min{measure}": meta.min_length,
        f"max{measure}": meta.max_length,
        **(meta.extra_json_schema or {}),
    }
    return {name: value for name, value in found.items() if value is not None}


def _union(annotation: Any, *, stamps: bool) -> Body:
    members = [member for member in get_args(annotation) if member not in (NoneType, UnsetType)]
    nodes = [_node(member, stamps=stamps) for member in members]
    node = nodes[0] if len(nodes) == 1 else _int_or_string(annotation, nodes)
    return node | {"nullable": True} if NoneType in get_args(annotation) else node


def _int_or_string(annotation: Any, nodes: list[Body]) -> Body:
    """The one union that structural schemas know. It has no type; limits of a side bind only values of that side."""
    if sorted(node.get("type", "") for node in nodes) != ["integer", "string"]:
        raise TypeError(f"{annotation!r} has no structural schema")
    both = {name: value for node in nodes for name, value in node.items() if name not in ("type", "format")}
    return both | {"x-kubernetes-int-or-string": True}


def _array(annotation: Any, *, stamps: bool) -> Body:
    return {"type": "array", "items": _node(get_args(annotation)[0], stamps=stamps)}


def _map(annotation: Any, *, stamps: bool) -> Body:
    value = get_args(annotation)[1]
    if value is Any:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"type": "object", "additionalProperties": _node(value, stamps=stamps)}


_GENERICS: dict[Any, Callable[..., Body]] = {
    Annotated: _annotated,
    Union: _union,
    UnionType: _union,
    tuple: _array,
    list: _array,
    dict: _map,
}


def _first_sentence(kind: type[Any]) -> str:
    return re.split(r"(?<=\.)\s", kind.__doc__ or "", maxsplit=1)[0]


#: Annotation on a CRD: the version of Trainwright that it is of.
VERSION = f"{PREFIX}/version"


def crds(kinds: Iterable[Kind]) -> tuple[Body, ...]:
    """One CRD for each kind."""
    return tuple(crd(kind) for kind in kinds)


def crd(kind: Kind) -> Body:
    """The CRD of a kind. All its versions are served; nothing is converted between them, since their fields agree."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}", "annotations": {VERSION: __version__}},
        "spec": {
            "group": kind.group,
            "names": _names(kind),
            "scope": "Namespaced",
            "versions": [_version(kind, one) for one in kind.versions or (Version(kind.version, {}),)],
        },
    }


def _names(kind: Kind) -> Body:
    names: Body = {"plural": kind.plural, "singular": kind.singular, "kind": kind.name, "listKind": f"{kind.name}List"}
    return names | ({"shortNames": list(kind.short_names)} if kind.short_names else {})


def _version(kind: Kind, version: Version) -> Body:
    return {
        "name": version.name,
        "served": True,
        "storage": version.name == kind.version,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
        "schema": {"openAPIV3Schema": _checked(schema(kind.wire, version.stamps), kind.cel)},
    }


def _column(column: Column) -> Body:
    shown: Body = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return shown | ({"priority": column.priority} if column.priority else {})


def _checked(whole: Body, rules: tuple[tuple[str, str], ...]) -> Body:
    """The schema with the kind's rules on `spec`: the whole of it, so that rules see fields that come and go."""
    if rules:
        validations = [{"rule": rule, "message": message} for rule, message in rules]
        whole["properties"]["spec"]["x-kubernetes-validations"] = validations
    return whole
