# SPDX-License-Identifier: Apache-2.0
"""Finds fields that a kind does not have and removes them, as an API server does before it stores an object.

For jobs and queues the schema of their kind is used. For built-in kinds this module knows all fields of the first level
and of the metadata; deeper fields are stored as they come.
"""

import re
from typing import Any, NamedTuple

from trainwright.api import queues
from trainwright.api.resources import ServedResource
from trainwright.api.structural import unknown_paths
from trainwright.kinds.base import load
from trainwright.model.job import Body
from trainwright.runtime.ports import QUEUES

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_TYPE = frozenset(("apiVersion", "kind", "metadata"))
_SPEC_AND_STATUS = frozenset(("spec", "status"))
_METADATA = frozenset((
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
    "generation", "labels", "managedFields", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink",
    "uid",
))  # fmt: skip
_EVENT = frozenset((
    "action", "count", "eventTime", "firstTimestamp", "involvedObject", "lastTimestamp", "message", "reason", "related",
    "reportingComponent", "reportingInstance", "series", "source", "type",
))  # fmt: skip
#: The fields of built-in kinds besides those of every object.
_FIELDS = {
    "ConfigMap": frozenset(("binaryData", "data", "immutable")),
    "Secret": frozenset(("data", "immutable", "stringData", "type")),
    "Event": _EVENT,
    "Lease": frozenset(("spec",)),
}


class Unknown(NamedTuple):
    """An unknown field, and the known field that is most similar to it."""

    path: str
    nearest: str = ""

    @property
    def text(self) -> str:
        """The text for warnings and errors. An API server does not name a similar field."""
        return f'unknown field "{self.path}"' + (f" (did you mean {self.nearest}?)" if self.nearest else "")


def unknown_fields(served: ServedResource, body: Body) -> list[Unknown]:
    """All unknown fields of an object."""
    metadata = body.get("metadata") or {}
    found = [Unknown(f"metadata.{name}") for name in metadata if name not in _METADATA]
    if served.job is not None:
        given = {part: value for part, value in body.items() if part != "status"}
        given["metadata"] = {name: value for name, value in metadata.items() if name in _METADATA}
        problems = load(served.job, given).problems
        return [Unknown(one.path, one.nearest) for one in problems if "unknown field" in one.message] + found
    if served.resource.id == QUEUES.id:
        paths = unknown_paths(queues.SCHEMA, {part: value for part, value in body.items() if part != "metadata"})
        return [Unknown(path) for path in paths] + found
    known = _FIELDS.get(served.resource.kind, _SPEC_AND_STATUS)
    return [Unknown(name) for name in body if name not in known and name not in _TYPE] + found


def without(body: Body, unknown: list[Unknown]) -> Body:
    """The object without these fields."""
    for one in unknown:
        body = _without(body, _STEP.findall(one.path))
    return body


def _without(value: Any, steps: list[tuple[str, str]]) -> Any:
    """The value without the field at the path; the value itself if there is no such field."""
    (name, index), *rest = steps
    key: Any = name if name else int(index)
    if isinstance(value, dict) and key in value:
        if rest:
            return {**value, key: _without(value[key], rest)}
        return {field: part for field, part in value.items() if field != key}
    if isinstance(value, list) and isinstance(key, int) and key < len(value) and rest:
        return [*value[:key], _without(value[key], rest), *value[key + 1 :]]
    return value
