# SPDX-License-Identifier: Apache-2.0
"""CustomResourceDefinitions and their structural OpenAPI v3 schemas, generated from the wire types of the kinds.

The generator reads the annotations directly, because `msgspec.inspect` sorts the values of a `Literal` and readers
expect the order in the source. Schemas contain no references. A field that may be absent is not nullable: null
means the same as no field, and the API server removes a null from a field that is not nullable.
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
from trainwright.kinds.cel import CelRule, CombinedRule
from trainwright.model.job import Body
from trainwright.model.meta import PREFIX

#: The keyword for an object of which the API server keeps every field.
_PRESERVES = "x-kubernetes-preserve-unknown-fields"
_SCALARS: dict[Any, Body] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    str: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
    Any: {_PRESERVES: True},
}
#: The suffix of the keywords for a minimum and maximum size, by type.
_SIZE_KEYWORDS = {"string": "Length", "array": "Items", "object": "Properties"}
#: The order of keywords in a schema: first `_FIRST`, then all other keywords, then `_LAST`.
_FIRST = ("description", "type", "format", "nullable", "enum", "default")
_LAST = ("required", "properties", "items", "additionalProperties")
#: The annotation on a CRD with the version of Trainwright that made the CRD.
VERSION = f"{PREFIX}/version"


def crds(kinds: Iterable[Kind]) -> tuple[Body, ...]:
    """The CRDs of these kinds."""
    return tuple(crd(kind) for kind in kinds)


def crd(kind: Kind) -> Body:
    """The CRD of a kind. It serves all versions without conversion, because their fields are the same."""
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
        "subresources": {"status": {}, **_scale(kind)},
        "additionalPrinterColumns": [column(one) for one in kind.columns],
        "schema": {"openAPIV3Schema": _with_open_status(_with_rules(schema(kind.wire, version.defaults), kind.cel))},
    }


def _scale(kind: Kind) -> Body:
    """The scale subresource, if the kind has one."""
    paths = kind.scale_paths
    if paths is None:
        return {}
    fields = {"specReplicasPath": paths.spec, "statusReplicasPath": paths.status, "labelSelectorPath": paths.selector}
    return {"scale": fields}


def _with_open_status(whole: Body) -> Body:
    """Replace the schema of the status by a schema that allows every field, because only the operator writes it.

    API servers validate the whole object again with every write of its status, and record who manages each field. Both
    together were two fifths of the cost of a write (bench/operator/request_cost.py). `atomic` means one record for the
    whole status.
    """
    status = whole["properties"]["status"]
    anything = {"type": "object", _PRESERVES: True}
    ledger = {"description": status["properties"]["trainwright"].get("description", ""), **anything}
    whole["properties"]["status"] = {
        "description": status.get("description", ""),
        **anything,
        "x-kubernetes-map-type": "atomic",
        "properties": {"trainwright": ledger},
    }
    return whole


def column(one: Column) -> Body:
    """A printer column as a CRD has it."""
    shown: Body = {"name": one.name, "type": one.type, "jsonPath": one.path}
    return shown | ({"priority": one.priority} if one.priority else {})


def _with_rules(whole: Body, rules: tuple[CelRule | CombinedRule, ...]) -> Body:
    """Add the CEL rules of a kind to the whole of `spec`, so that a rule also sees fields that appear or disappear."""
    if rules:
        whole["properties"]["spec"]["x-kubernetes-validations"] = [_validation(rule) for rule in rules]
    return whole


def _validation(rule: CelRule | CombinedRule) -> Body:
    if isinstance(rule, CombinedRule):
        return {"rule": rule.rule, "message": rule.message, "messageExpression": rule.message_expression}
    return {"rule": rule[0], "message": rule[1]}


def schema(wire: type[Any], stamps: Mapping[str, str] | None = None) -> Body:
    """The schema of a whole object. The API server validates `apiVersion`, `kind` and `metadata` without us.

    `stamps` are the additional defaults of one version, by path, from `kinds.base.Version`.
    """
    own = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    fields = {field.encode_name: field for field in structs.fields(wire) if field.encode_name not in own}
    node: Body = {"description": _first_sentence(wire), "type": "object"}
    node["required"] = [name for name, field in fields.items() if field.required]
    # Only fields that users write have defaults. A status contains exactly the fields that its controller wrote.
    parts = {name: _property(field, defaults=name != "status") for name, field in fields.items()}
    whole = node | {"properties": own | parts}
    for path, value in (stamps or {}).items():
        _set_default(whole, path.split("."), value)
    return whole


def _set_default(node: Body, steps: list[str], value: str) -> None:
    """Set the default of the field at a path, in place."""
    for step in steps:
        node = node["additionalProperties"] if step == "*" else node["properties"][step]
    old = dict(node)
    node.clear()
    node.update(_ordered(old | {"default": value}))


def _node(annotation: Any, *, defaults: bool) -> Body:
    """The schema of an annotation of a wire type."""
    return _ordered(_unordered_node(annotation, defaults=defaults))


def _unordered_node(annotation: Any, *, defaults: bool) -> Body:
    generic = _GENERICS.get(get_origin(annotation))
    if generic is not None:
        return generic(annotation, defaults=defaults)
    if get_origin(annotation) is Literal:
        return {"type": "string", "enum": list(get_args(annotation))}
    if annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return {"type": "string", "enum": [member.value for member in annotation]}
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _struct(annotation, defaults=defaults)
    raise TypeError(f"{annotation!r} has no structural schema")


def _struct(kind: type[Struct], *, defaults: bool) -> Body:
    fields = structs.fields(kind)
    node: Body = {"description": _first_sentence(kind), "type": "object"}
    if required := [field.encode_name for field in fields if field.required]:
        node["required"] = required
    return node | {"properties": {field.encode_name: _property(field, defaults=defaults) for field in fields}}


def _property(field: structs.FieldInfo, *, defaults: bool) -> Body:
    node = _node(field.type, defaults=defaults)
    if not field.required:
        node.pop("nullable", None)
    if defaults:
        node |= _default(field.default)
    return _ordered(node)


def _ordered(node: Body) -> Body:
    middle = [name for name in node if name not in _FIRST + _LAST]
    return {name: node[name] for name in (*_FIRST, *middle, *_LAST) if name in node}


def _default(value: object) -> Body:
    """The default that the API server fills in. Empty values are no defaults."""
    match value:
        case bool() | int() | float():
            return {"default": value}
        case str() if value:
            return {"default": str(value)}
        case Struct():
            return {
                "default": msgspec.to_builtins(value)
            }  # usually {}: the API server adds the defaults of the inner fields
        case _:
            return {}


def _annotated(annotation: Any, *, defaults: bool) -> Body:
    inner, *metas = get_args(annotation)
    node = _node(inner, defaults=defaults)
    for meta in metas:
        node |= _limits(meta, _SIZE_KEYWORDS.get(node.get("type", ""), ""))
    if (
        node.get("type") == "integer"
        and -(2**31) <= node.get("minimum", -(2**63)) <= node.get("maximum", 2**63) < 2**31
    ):
        node["format"] = "int32"
    return node


def _limits(meta: Meta, size: str) -> Body:
    """The limits in OpenAPI 3.0, where an exclusive bound is a separate flag."""
    found = {
        "description": meta.description,
        "minimum": meta.ge if meta.gt is None else meta.gt,
        "exclusiveMinimum": None if meta.gt is None else True,
        "maximum": meta.le if meta.lt is None else meta.lt,
        "exclusiveMaximum": None if meta.lt is None else True,
        "multipleOf": meta.multiple_of,
        # In Python `$` also matches before a final newline, so our patterns end in `\Z`. In OpenAPI `$` is exact.
        "pattern": meta.pattern and meta.pattern.replace(r"\Z", "$"),
        f"min{size}": meta.min_length,
        f"max{size}": meta.max_length,
        **(meta.extra_json_schema or {}),
    }
    return {name: value for name, value in found.items() if value is not None}


def _union(annotation: Any, *, defaults: bool) -> Body:
    members = [member for member in get_args(annotation) if member not in (NoneType, UnsetType)]
    nodes = [_node(member, defaults=defaults) for member in members]
    node = nodes[0] if len(nodes) == 1 else _int_or_string(annotation, nodes)
    return node | {"nullable": True} if NoneType in get_args(annotation) else node


def _int_or_string(annotation: Any, nodes: list[Body]) -> Body:
    """The only union that structural schemas allow. It has no `type`. A limit on numbers does not apply to strings."""
    if sorted(node.get("type", "") for node in nodes) != ["integer", "string"]:
        raise TypeError(f"{annotation!r} has no structural schema")
    both = {name: value for node in nodes for name, value in node.items() if name not in ("type", "format")}
    return both | {"x-kubernetes-int-or-string": True}


def _array(annotation: Any, *, defaults: bool) -> Body:
    return {"type": "array", "items": _node(get_args(annotation)[0], defaults=defaults)}


def _map(annotation: Any, *, defaults: bool) -> Body:
    value = get_args(annotation)[1]
    if value is Any:
        return {"type": "object", _PRESERVES: True}
    return {"type": "object", "additionalProperties": _node(value, defaults=defaults)}


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
