# SPDX-License-Identifier: Apache-2.0
"""Checks objects by the structural schema of a CRD, with the texts of an API server. Functions on dicts, without I/O.

Only the keywords that our schemas use are known: type, properties, required, additionalProperties, items, enum,
minimum, maximum, pattern, x-kubernetes-int-or-string and x-kubernetes-preserve-unknown-fields. Kinds of jobs have
checks of their own, which say more.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from trainwright.api.queries import unsupported
from trainwright.errors import ErrorCause
from trainwright.model.job import Body

_INT_OR_STRING, _PRESERVES = "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"
_TYPES: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
_NAMES: dict[type, str] = {kind: name for name, kind in _TYPES.items()} | {float: "number"}


def wrong_values(schema: Body, value: Any, path: str = "") -> Iterator[ErrorCause]:
    """What is wrong with a value, and with all values in it."""
    kinds = ("integer", "string") if schema.get(_INT_OR_STRING) else (schema["type"],)
    found = _NAMES.get(type(value), "null")
    if found not in kinds:
        what = f'"{found}": {path} in body must be of type {",".join(kinds)}: "{found}"'
        yield ErrorCause("FieldValueTypeInvalid", f"Invalid value: {what}", path)
        return
    yield from _wrong_scalar(schema, value, path)
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if value.get(name) is None:
                yield ErrorCause("FieldValueRequired", "Required value", _joined(path, name))
        for name, inner in value.items():
            known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if known is not None:
                yield from wrong_values(known, inner, _joined(path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from wrong_values(schema["items"], inner, f"{path}[{index}]")


def _wrong_scalar(schema: Body, value: Any, path: str) -> Iterator[ErrorCause]:
    shown = msgspec.json.encode(value).decode() if not isinstance(value, dict | list) else ""
    wrong = ""
    if "enum" in schema and value not in schema["enum"]:
        yield unsupported(path, shown, *schema["enum"])
    elif "pattern" in schema and isinstance(value, str) and not _matches(schema["pattern"], value):
        wrong = f"should match '{schema['pattern']}'"
    elif isinstance(value, int) and value < schema.get("minimum", value):
        wrong = f"should be greater than or equal to {schema['minimum']}"
    elif isinstance(value, int) and value > schema.get("maximum", value):
        wrong = f"should be less than or equal to {schema['maximum']}"
    if wrong:
        yield ErrorCause("FieldValueInvalid", f"Invalid value: {shown}: {path} in body {wrong}", path)


def _matches(pattern: str, text: str) -> bool:
    """Whether the text matches. In Python `$` also matches before a final newline, but in a schema it is exact."""
    return re.search(pattern.removesuffix("$") + (r"\Z" if pattern.endswith("$") else ""), text) is not None


def unknown_paths(schema: Body, value: Any, path: str = "") -> Iterator[str]:
    """The paths of the fields that the schema does not have."""
    if schema.get(_PRESERVES):
        return
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for name, inner in value.items():
            known = properties.get(name) or rest
            if known is None:
                yield _joined(path, name)
            else:
                yield from unknown_paths(known, inner, _joined(path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unknown_paths(schema.get("items", {}), inner, f"{path}[{index}]")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
