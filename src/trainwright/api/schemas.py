# SPDX-License-Identifier: Apache-2.0
"""The component schemas of the OpenAPI documents: one per kind, and one for each type that its fields have.

Kinds of jobs have the schema of their CRD, with the whole status; a pod template in them refers to the same schemas as
a pod. Queues have the schema of `queues`. All other kinds come from `builtin_types`.
"""

from collections.abc import Iterable

from trainwright.api import queues
from trainwright.api.builtin_types import DESCRIPTIONS, TYPES
from trainwright.api.resources import ServedResource
from trainwright.crd.schema import schema
from trainwright.kinds.base import Kind
from trainwright.model.job import Body
from trainwright.runtime.ports import QUEUES

_REFERENCE = "#/components/schemas/"
_CORE, _META = "io.k8s.api.core.v1", "io.k8s.apimachinery.pkg.apis.meta.v1"
_META_TYPES = frozenset(
    {"ObjectMeta", "OwnerReference", "ManagedFieldsEntry", "LabelSelector", "LabelSelectorRequirement"}
)
_ANY: Body = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SCALARS: dict[str, Body] = {
    "any": _ANY,
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "format": "int64"},
    "intOrString": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "str": {"type": "string"},
    "time": {"type": "string", "format": "date-time"},
}
#: Fields of jobs that have any content in the CRD, and the types of what they contain.
_OPEN_FIELDS = {"template": "PodTemplateSpec", "labelSelector": "LabelSelector"}
_TYPE_META: Body = {
    "apiVersion": {"description": "The group and version of the kind.", "type": "string"},
    "kind": {"description": "The kind of the object.", "type": "string"},
}


def component_name(served: ServedResource) -> str:
    """The name of the schema of a kind, such as `io.k8s.api.core.v1.Pod` or `org.kubeflow.v1.TFJob`."""
    group, version = served.resource.group, served.resource.version
    domain = ".".join(reversed(group.split("."))) if served.custom else f"io.k8s.api.{group.split('.')[0] or 'core'}"
    return f"{domain}.{version}.{served.resource.kind}"


def reference(name: str) -> Body:
    """A reference to the component with this name."""
    return {"$ref": f"{_REFERENCE}{name}"}


def components(served: Iterable[ServedResource]) -> dict[str, Body]:
    """The schemas of these kinds, of their lists, and of everything to which they refer."""
    found: dict[str, Body] = {}
    for one in served:
        api = {"group": one.resource.group, "version": one.resource.version}
        kind = {"x-kubernetes-group-version-kind": [{**api, "kind": one.resource.kind}]}
        kinds = {"x-kubernetes-group-version-kind": [{**api, "kind": one.list_kind}]}
        found[component_name(one)] = _kind_schema(one) | kind
        found[f"{component_name(one)}List"] = _list_schema(one) | kinds
    needed = [name for body in found.values() for name in _referenced(body)]
    while needed:
        name = needed.pop()
        if name not in found:
            found[name] = _type_schema(name.rpartition(".")[2])
            needed += _referenced(found[name])
    return dict(sorted(found.items()))


def _kind_schema(served: ServedResource) -> Body:
    if served.job is not None:
        return _with_metadata(_job_schema(served.job, served.resource.version))
    if served.resource.id == QUEUES.id:
        return _with_metadata(queues.SCHEMA)
    described = _type_schema(served.resource.kind)
    return described | {"properties": _TYPE_META | described["properties"]}


def _list_schema(served: ServedResource) -> Body:
    items = {"type": "array", "items": reference(component_name(served))}
    return {
        "description": f"A list of {served.resource.kind} objects.",
        "type": "object",
        "required": ["items"],
        "properties": {**_TYPE_META, "items": items, "metadata": {"type": "object"}},
    }


def _job_schema(kind: Kind, version: str) -> Body:
    defaults = next((one.defaults for one in kind.versions if one.name == version), {})
    return _with_references(schema(kind.wire, defaults))


def _with_metadata(whole: Body) -> Body:
    """The schema of a custom resource with the description of the fields that all objects have."""
    metadata = _described(_type_reference("ObjectMeta"), DESCRIPTIONS["ObjectMeta"])
    return whole | {"properties": whole["properties"] | _TYPE_META | {"metadata": metadata}}


def _with_references(node: Body) -> Body:
    """The schema of a job, in which the fields of `_OPEN_FIELDS` refer to their types."""
    changed = dict(node)
    if "properties" in node:
        changed["properties"] = {
            name: _described(_type_reference(_OPEN_FIELDS[name]), inner.get("description", ""))
            if name in _OPEN_FIELDS and inner.get("x-kubernetes-preserve-unknown-fields")
            else _with_references(inner)
            for name, inner in node["properties"].items()
        }
    for keyword in ("items", "additionalProperties"):
        if isinstance(node.get(keyword), dict):
            changed[keyword] = _with_references(node[keyword])
    return changed


def _type_schema(name: str) -> Body:
    """The schema of a type of `builtin_types`."""
    fields = TYPES[name]
    required = [field for field, notation in fields.items() if notation.endswith("!")]
    return {
        **({"description": DESCRIPTIONS[name]} if name in DESCRIPTIONS else {}),
        "type": "object",
        **({"required": required} if required else {}),
        "properties": {
            field: _described(_field_schema(notation.rstrip("!")), _description(name, field, notation))
            for field, notation in fields.items()
        },
    }


def _description(name: str, field: str, notation: str) -> str:
    """The description of a field, or else of its type."""
    return DESCRIPTIONS.get(f"{name}.{field}") or DESCRIPTIONS.get(notation.rstrip("!"), "")


def _field_schema(notation: str) -> Body:
    """The schema for the notation of `kinds.podtable`: `[T]` is a list and `{T}` a map of T."""
    if notation[0] == "[":
        return {"type": "array", "items": _field_schema(notation[1:-1])}
    if notation[0] == "{":
        return {"type": "object", "additionalProperties": _field_schema(notation[1:-1])}
    return dict(_SCALARS[notation]) if notation in _SCALARS else _type_reference(notation)


def _type_reference(name: str) -> Body:
    return reference(f"{_META if name in _META_TYPES else _CORE}.{name}")


def _described(node: Body, description: str) -> Body:
    """The schema with a description. In OpenAPI 3.0 nothing may stand beside `$ref`, so the reference moves inside."""
    if not description:
        return node
    return {"description": description, **({"allOf": [node]} if "$ref" in node else node)}


def _referenced(node: object) -> list[str]:
    """The names of all components to which a schema refers."""
    if isinstance(node, list):
        return [name for inner in node for name in _referenced(inner)]
    if not isinstance(node, dict):
        return []
    own = node.get("$ref")
    found = [own.removeprefix(_REFERENCE)] if isinstance(own, str) else []
    return found + [name for inner in node.values() for name in _referenced(inner)]
