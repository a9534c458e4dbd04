# SPDX-License-Identifier: Apache-2.0
"""The Queues of the T9k scheduler: their schema and their checks. The engine stores queues; its scheduler ignores them.

A Queue has a namespace. The API reference of T9k does not say so, but its manuals do: a queue is in the namespace of
the T9k scheduler, usually `t9k-system`, and a PodGroup of any namespace names one of these queues.
"""

from collections.abc import Iterator
from typing import Any

from trainwright.api.structural import wrong_values
from trainwright.errors import ErrorCause
from trainwright.model.job import Body

#: As in the CRD of T9k. An empty text is valid, and means the same as no field.
_DURATION = "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"  # fmt: skip
#: The pattern of quantities in CRDs, without the minus sign.
_QUANTITY = (
    r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_ANY: Body = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _map_of(value: Body, description: str) -> Body:
    return {"description": description, "type": "object", "additionalProperties": value}


def _selector(description: str) -> Body:
    text: Body = {"type": "string"}
    requirement: Body = {
        "description": "One condition on a label.",
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": {"description": "The name of the label.", **text},
            "operator": {"description": "How the label is compared.", **text, "enum": [*_OPERATORS]},
            "values": {"description": "The values for In and NotIn.", "type": "array", "items": text},
        },
    }
    return {
        "description": description,
        "type": "object",
        "properties": {
            "matchExpressions": {"description": "Conditions on labels.", "type": "array", "items": requirement},
            "matchLabels": _map_of(text, "Labels with exactly these values."),
        },
    }


_SPEC: Body = {
    "description": "The resources of the queue, and who may use them.",
    "type": "object",
    "properties": {
        "closed": {"description": "Whether the queue accepts no new workloads.", "type": "boolean"},
        "maxDuration": {
            "description": "The longest time that a pod may run, for example 1d12h.",
            "type": "string",
            "pattern": _DURATION,
        },
        "namespaceSelector": _selector("The namespaces whose workloads may use the queue. Without it, no namespace."),
        "nodeSelector": _selector("The nodes whose resources belong to the queue. Without it, all nodes."),
        "preemptible": {
            "description": "Whether queues with a higher priority may preempt pods. Without it, they may.",
            "type": "boolean",
        },
        "priority": {
            "description": "The priority among queues, from 0 to 100. Higher priorities get resources first.",
            "type": "integer",
            "format": "int32",
            "minimum": 0,
            "maximum": 100,
        },
        "quota": {
            "description": "The limits of the queue.",
            "type": "object",
            "properties": {
                "requests": _map_of(
                    {"x-kubernetes-int-or-string": True, "pattern": _QUANTITY},
                    "The most that the pods of the queue may request together.",
                )
            },
        },
        "resourceShapeProfile": {
            "description": "The profile of resource shapes that workloads of the queue may have.",
            "type": "string",
        },
    },
}
#: The structural schema of a Queue.
SCHEMA: Body = {
    "description": "A part of the resources of a cluster, with a quota and a priority. The engine only stores it.",
    "type": "object",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": _SPEC,
        "status": {"description": "The state of the queue, which a scheduler writes.", **_ANY},
    },
}


def queue_problems(body: Body) -> Iterator[ErrorCause]:
    """What is wrong with a queue."""
    spec = body.get("spec")
    found = [*wrong_values(_SPEC, spec, "spec")] if spec is not None else []
    yield from found
    if not found and spec:
        for name in ("nodeSelector", "namespaceSelector"):
            yield from _selector_problems(spec.get(name) or {}, f"spec.{name}")


def _selector_problems(selector: dict[str, Any], path: str) -> Iterator[ErrorCause]:
    """The rules of Kubernetes for label selectors that a schema cannot say."""
    for index, one in enumerate(selector.get("matchExpressions") or ()):
        field, has_values = f"{path}.matchExpressions[{index}].values", bool(one.get("values"))
        if one["operator"] in ("In", "NotIn") and not has_values:
            text = "Required value: must be specified when `operator` is 'In' or 'NotIn'"
            yield ErrorCause("FieldValueRequired", text, field)
        if one["operator"] in ("Exists", "DoesNotExist") and has_values:
            text = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield ErrorCause("FieldValueForbidden", text, field)
