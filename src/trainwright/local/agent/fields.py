# SPDX-License-Identifier: Apache-2.0
"""The downward API: what `fieldRef` and `resourceFieldRef` stand for. Called by `environment`; pure."""

import re
from decimal import ROUND_CEILING, Decimal

from msgspec import Struct

from trainwright.kinds.spelling import FIELDS
from trainwright.local.agent.refusals import Unconfigured
from trainwright.model.job import Body
from trainwright.model.problem import nearest
from trainwright.model.units import quantity

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_RESOURCES = ("limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu", "requests.memory")
_COUNTED = ("cpu", "memory", "ephemeral-storage", "hugepages-")


class Facts(Struct, frozen=True):
    """What the agent knows about a pod besides the object."""

    node: str
    address: str
    host: str
    allocatable: dict[str, str]


def of_pod(ref: Body, pod: Body, facts: Facts, path: str) -> str:
    """The value of a `fieldRef`."""
    field = str(ref.get("fieldPath", ""))
    meta, spec = pod["metadata"], pod.get("spec") or {}
    match field:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(meta.get(field[9:], ""))
        case "spec.nodeName":
            return facts.node
        case "spec.serviceAccountName":
            return str(spec.get("serviceAccountName") or "default")
        case "status.hostIP" | "status.hostIPs":
            return facts.host
        case "status.podIP" | "status.podIPs":
            return facts.address
    subscript = _SUBSCRIPT.fullmatch(field)
    if subscript is None:
        raise Unconfigured(
            f"{path}.fieldPath", f"{field!r} is not known; expected {', '.join(FIELDS)}", nearest(field, FIELDS)
        )
    return str((meta.get(subscript[1]) or {}).get(subscript[2], ""))


def of_resources(ref: Body, pod: Body, container: Body, facts: Facts, path: str) -> str:
    """The value of a `resourceFieldRef`: a number of divisors, rounded up."""
    resource = str(ref.get("resource", ""))
    part, _, name = resource.partition(".")
    if part not in ("limits", "requests") or not name.startswith(_COUNTED):
        message = f"{resource!r} is not known; expected {', '.join(_RESOURCES)}"
        raise Unconfigured(f"{path}.resource", message, nearest(resource, _RESOURCES))
    named = ref.get("containerName")
    subject = container if not named else _container(pod, str(named), path)
    asked = subject.get("resources") or {}
    amount = _amount(asked, part, name)
    if not amount and part == "limits":
        amount = quantity(facts.allocatable.get(name, 0))
    divisor = quantity(ref.get("divisor") or 1) or Decimal(1)
    return str(((amount or Decimal(0)) / divisor).to_integral_value(ROUND_CEILING))


def _amount(asked: Body, part: str, name: str) -> Decimal | None:
    """A request that is not made is the limit, as an API server would have put it there."""
    found = (asked.get(part) or {}).get(name)
    if found is None and part == "requests":
        found = (asked.get("limits") or {}).get(name)
    return None if found is None else quantity(found)


def _container(pod: Body, name: str, path: str) -> Body:
    spec = pod["spec"]
    known = {one["name"]: one for one in (*(spec.get("initContainers") or ()), *spec["containers"])}
    if name not in known:
        message = f"there is no container {name!r}; the pod has {', '.join(known)}"
        raise Unconfigured(f"{path}.containerName", message, nearest(name, known))
    body: Body = known[name]
    return body
