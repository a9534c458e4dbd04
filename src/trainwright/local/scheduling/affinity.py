# SPDX-License-Identifier: Apache-2.0
"""Which nodes a pod may go to at all: taints and tolerations, selectors, required affinity. Pure.

`cache` reads the terms of a pod and the traits of a node; `placement` asks `refusal` for each pair, once a pass for
all pods of the same terms. Room is not looked at here.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from trainwright.model.job import Body

_KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})


class Toleration(Struct, frozen=True):
    """A taint that the pod puts up with; empty fields match all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeTaint(Struct, frozen=True):
    """A taint that keeps pods off a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class LabelExpression(Struct, frozen=True):
    """One condition on a label; `metadata.name` stands for the node's name where it is a field."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    field: bool = False


class NodeTerms(Struct, frozen=True):
    """What a pod demands of its node. Equal terms are judged once; most pods have none."""

    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    #: Any of these, each all of its expressions.
    affinity: tuple[tuple[LabelExpression, ...], ...] | None = None
    #: What it also demands and nobody here can give.
    unsupported: str = ""


class NodeTraits(Struct, frozen=True):
    """What a node says of itself, as far as terms are about it."""

    name: str
    ready: bool = True
    unschedulable: bool = False
    labels: dict[str, str] = {}
    taints: tuple[NodeTaint, ...] = ()


ANYWHERE = NodeTerms()


def terms(spec: Body) -> NodeTerms:
    """The terms of a pod."""
    if not any(spec.get(key) for key in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints")):
        return ANYWHERE
    affinity = spec.get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return NodeTerms(
        tuple(sorted((spec.get("nodeSelector") or {}).items())),
        tuple(_toleration(one) for one in spec.get("tolerations") or ()),
        tuple(tuple(_expressions(one)) for one in required.get("nodeSelectorTerms") or ()) if required else None,
        _unsupported(spec, affinity),
    )


def _toleration(given: Body) -> Toleration:
    words = {key: str(given.get(key) or "") for key in ("key", "value", "effect")}
    return Toleration(operator=given.get("operator") or "Equal", **words)


def _expressions(term: Body) -> Iterator[LabelExpression]:
    for group in ("matchExpressions", "matchFields"):
        for one in term.get(group) or ():
            values = tuple(str(value) for value in one.get("values") or ())
            yield LabelExpression(str(one.get("key")), str(one.get("operator")), values, group == "matchFields")


def _unsupported(spec: Body, affinity: Body) -> str:
    """The first demand of those that need more than one look at one node."""
    for kind in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            return f"required {kind}"
    spread = spec.get("topologySpreadConstraints") or ()
    if any(one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for one in spread):
        return "a topologySpreadConstraint with whenUnsatisfiable: DoNotSchedule"
    return ""


def ready_condition(node: Body) -> Body:
    """What a node last said of itself; empty if it has said nothing yet."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == "Ready"), {})


def traits(node: Body) -> NodeTraits:
    """The traits of a node; one that is being deleted takes no more pods."""
    meta, spec = node["metadata"], node.get("spec") or {}
    taints = [_taint(one) for one in spec.get("taints") or () if one.get("effect") in _KEEPS_OFF]
    return NodeTraits(
        meta["name"],
        ready_condition(node).get("status") == "True",
        bool(spec.get("unschedulable")) or meta.get("deletionTimestamp") is not None,
        meta.get("labels") or {},
        tuple(taints),
    )


def _taint(given: Any) -> NodeTaint:
    return NodeTaint(given.get("key") or "", given.get("value") or "", given["effect"])


def refusal(wanted: NodeTerms, node: NodeTraits) -> str:
    """Why the node will not have such a pod, short enough to be counted; empty if it will."""
    if not node.ready:
        return "not ready"
    if node.unschedulable:
        return "closed to new pods"
    for taint in node.taints:
        if not any(_tolerates(one, taint) for one in wanted.tolerations):
            return f"tainted {taint}"
    if any(node.labels.get(key) != value for key, value in wanted.selector):
        listed = ", ".join(f"{key}={value}" for key, value in wanted.selector)
        return f"without the label{'s' * (len(wanted.selector) > 1)} {listed}"
    if wanted.affinity is not None and not any(one and _all_hold(one, node) for one in wanted.affinity):
        return "not what nodeAffinity asks for"
    return ""


def _tolerates(one: Toleration, taint: NodeTaint) -> bool:
    if one.effect and one.effect != taint.effect:
        return False
    if not one.key:
        return one.operator == "Exists"
    return one.key == taint.key and (one.operator == "Exists" or one.value == taint.value)


def _all_hold(expressions: tuple[LabelExpression, ...], node: NodeTraits) -> bool:
    return all(_holds(one, node.name if one.field else node.labels.get(one.key)) for one in expressions)


def _holds(one: LabelExpression, found: str | None) -> bool:
    match one.operator:
        case "In":
            return found is not None and found in one.values
        case "NotIn":
            return found not in one.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return _compares(one, found)
        case _:
            return False


def _compares(one: LabelExpression, found: str | None) -> bool:
    try:
        here, there = int(found or ""), int(one.values[0])
    except (ValueError, IndexError):
        return False
    return here > there if one.operator == "Gt" else here < there
