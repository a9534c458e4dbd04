# SPDX-License-Identifier: Apache-2.0
"""Which nodes accept a pod, by taints, tolerations, selectors and required affinity, not by free resources. Pure."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from trainwright.model.job import Body

_REPELLING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


class Toleration(Struct, frozen=True):
    """A toleration of a pod, as in Kubernetes. A taint that matches the toleration does not keep the pod away."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeTaint(Struct, frozen=True):
    """A taint that keeps pods away from a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class LabelExpression(Struct, frozen=True):
    """One condition on a label, or on the field `metadata.name` if `field` is set."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    field: bool = False


class NodeTerms(Struct, frozen=True):
    """The conditions that a pod's node must fulfil. A pass finds nodes once for all pods with equal terms."""

    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    #: A node must match all expressions of at least one of these terms.
    affinity: tuple[tuple[LabelExpression, ...], ...] | None = None
    #: A required constraint of the pod that this scheduler does not support; empty if there is none.
    unsupported: str = ""


class NodeTraits(Struct, frozen=True):
    """The properties of a node that terms can refer to."""

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
    fields = {key: str(given.get(key) or "") for key in ("key", "value", "effect")}
    return Toleration(operator=given.get("operator") or "Equal", **fields)


def _expressions(term: Body) -> Iterator[LabelExpression]:
    for group in ("matchExpressions", "matchFields"):
        for one in term.get(group) or ():
            values = tuple(str(value) for value in one.get("values") or ())
            yield LabelExpression(str(one.get("key")), str(one.get("operator")), values, group == "matchFields")


def _unsupported(spec: Body, affinity: Body) -> str:
    """The first required constraint that depends on other pods. This scheduler does not support such constraints."""
    for kind in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            return f"required {kind}"
    spread = spec.get("topologySpreadConstraints") or ()
    if any(one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for one in spread):
        return "a topologySpreadConstraint with whenUnsatisfiable: DoNotSchedule"
    return ""


def ready_condition(node: Body) -> Body:
    """The Ready condition of a node; empty if the node has none yet."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == "Ready"), {})


def traits(node: Body) -> NodeTraits:
    """The traits of a node. A node that is being deleted is unschedulable."""
    meta, spec = node["metadata"], node.get("spec") or {}
    taints = [_taint(one) for one in spec.get("taints") or () if one.get("effect") in _REPELLING_EFFECTS]
    return NodeTraits(
        meta["name"],
        ready_condition(node).get("status") == "True",
        bool(spec.get("unschedulable")) or meta.get("deletionTimestamp") is not None,
        meta.get("labels") or {},
        tuple(taints),
    )


def _taint(given: Any) -> NodeTaint:
    return NodeTaint(given.get("key") or "", given.get("value") or "", given["effect"])


def refusal(pod: NodeTerms, node: NodeTraits) -> str:
    """Why the node refuses such a pod; empty if it accepts. Short, since a message lists: 3 not ready, 2 closed."""
    if not node.ready:
        return "not ready"
    if node.unschedulable:
        return "closed to new pods"
    for taint in node.taints:
        if not any(_tolerates(one, taint) for one in pod.tolerations):
            return f"tainted {taint}"
    if any(node.labels.get(key) != value for key, value in pod.selector):
        labels = ", ".join(f"{key}={value}" for key, value in pod.selector)
        return f"without the label{'s' * (len(pod.selector) > 1)} {labels}"
    if pod.affinity is not None and not any(one and _match_all(one, node) for one in pod.affinity):
        return "not what nodeAffinity asks for"
    return ""


def _tolerates(one: Toleration, taint: NodeTaint) -> bool:
    if one.effect and one.effect != taint.effect:
        return False
    if not one.key:
        return one.operator == "Exists"
    return one.key == taint.key and (one.operator == "Exists" or one.value == taint.value)


def _match_all(expressions: tuple[LabelExpression, ...], node: NodeTraits) -> bool:
    return all(_matches(one, node.name if one.field else node.labels.get(one.key)) for one in expressions)


def _matches(one: LabelExpression, found: str | None) -> bool:
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
            return _compare(one, found)
        case _:
            return False


def _compare(one: LabelExpression, found: str | None) -> bool:
    try:
        value, limit = int(found or ""), int(one.values[0])
    except (ValueError, IndexError):
        return False
    return value > limit if one.operator == "Gt" else value < limit
