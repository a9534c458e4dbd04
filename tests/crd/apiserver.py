# SPDX-License-Identifier: Apache-2.0
"""What an API server does with a structural schema, in small: drop nulls, prune, stamp defaults, validate.

Checked against the server's own Go code with the tables of `test_schema` and `test_cel` when the rules were written.
"""

from typing import Any

import jsonschema_rs

OPEN = "x-kubernetes-preserve-unknown-fields"
EITHER = "x-kubernetes-int-or-string"


def admit(value: Any, node: dict[str, Any]) -> Any:
    """The value as it is stored: unknown fields and meaningless nulls gone, defaults written down."""
    if isinstance(value, list):
        return [admit(item, node.get("items", {})) for item in value]
    if not isinstance(value, dict) or node.get(OPEN):
        return value
    known = node.get("properties", dict.fromkeys(value, node.get("additionalProperties", {})))
    kept = {name: inner for name, inner in value.items() if name in known}
    kept = {name: inner for name, inner in kept.items() if inner is not None or known[name].get("nullable")}
    stamped = {name: inner["default"] for name, inner in known.items() if "default" in inner}
    return {name: admit(inner, known[name]) for name, inner in (stamped | kept).items()}


def errors(value: Any, node: dict[str, Any]) -> list[str]:
    """Where the value breaks the schema, as dotted paths."""
    validator = jsonschema_rs.Draft4Validator(_plain(node), validate_formats=True)
    return [".".join(str(step) for step in error.instance_path) for error in validator.iter_errors(value)]


def _plain(node: dict[str, Any]) -> dict[str, Any]:
    """The schema without what only Kubernetes knows."""
    plain = dict(node)
    if node.get(EITHER):
        plain["type"] = ["integer", "string"]
    if node.get("nullable"):
        plain["type"] = [node["type"], "null"]
    for name in ("items", "additionalProperties"):
        if name in node:
            plain[name] = _plain(node[name])
    if "properties" in node:
        plain["properties"] = {name: _plain(inner) for name, inner in node["properties"].items()}
    return plain
