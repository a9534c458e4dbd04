# SPDX-License-Identifier: Apache-2.0
"""The resources that a pod requests, as numbers and as text. Pure.

All amounts are whole thousandths of a unit (a CPU, a byte, a GPU, a pod), rounded up, so that sums are exact.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import ceil
from typing import Any

from trainwright.model.job import Body
from trainwright.model.units import quantity

Amounts = dict[str, int]
#: Every pod takes one unit of this resource: with it, a node limits its number of pods.
PODS = "pods"
_SIZE_UNITS = ((1024**4, "Ti"), (1024**3, "Gi"), (1024**2, "Mi"), (1024, "Ki"))


def asks(spec: Body) -> Amounts:
    """All resources that a pod with this spec requests from its node.

    The main containers run at the same time, so their requests are added. Init containers run earlier, one after the
    other. The result is the larger number: this sum, or the largest request of an init container. Sidecars (init
    containers with restartPolicy Always) continue to run, so their requests are added to the requests of all later
    containers. A resource in `spec.resources` replaces the result for this resource. At the end, `spec.overhead` is
    added.
    """
    total: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = requested(container.get("resources"))
        _set_maximum(peak, _sum(total, own))
        if container.get("restartPolicy") == "Always":
            total = _sum(total, own)
    for container in spec.get("containers") or ():
        total = _sum(total, requested(container.get("resources")))
    _set_maximum(peak, total)
    if spec.get("resources"):
        peak |= requested(spec["resources"])
    if spec.get("overhead"):
        peak = _sum(peak, amounts(spec["overhead"]))
    peak[PODS] = 1000
    return peak


def requested(resources: Any) -> Amounts:
    """The requests of one container; a limit replaces a missing request."""
    if not resources:
        return {}
    return amounts(resources.get("limits")) | amounts(resources.get("requests"))


def amounts(quantities: Mapping[str, object] | None) -> Amounts:
    """Convert quantities of the API (such as `500m`) to amounts."""
    return {name: thousandths(given) for name, given in quantities.items()} if quantities else {}


def total(many: Iterable[Mapping[str, int]]) -> Amounts:
    """The sum of all these amounts."""
    found: Amounts = {}
    for one in many:
        found = _sum(found, one)
    return found


@lru_cache(maxsize=512, typed=True)
def thousandths(given: object) -> int:
    """A quantity as a whole number of thousandths; 0 if it cannot be read."""
    found = quantity(given)
    return max(0, ceil(found * 1000)) if found is not None else 0


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return dict(one) | {name: one.get(name, 0) + amount for name, amount in other.items()}


def _set_maximum(peak: Amounts, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if amount > peak.get(name, 0):
            peak[name] = amount


def needed(name: str, amount: int) -> str:
    """A requested amount as text, rounded up, so that a request that does not fit never looks as if it fitted."""
    return _format(name, amount, round_up=True)


def present(name: str, amount: int) -> str:
    """An available amount as text, rounded down."""
    return _format(name, amount, round_up=False)


def free_of(name: str, free: int, capacity: int) -> str:
    """A text such as `4 of 8 are free` or `1 of 8 is free`. A size has a singular verb: `3Gi of 4Gi is free`."""
    verb = "is" if _is_size(name) or 0 < free <= 1000 else "are"
    return f"{present(name, free)} of {present(name, capacity)} {verb} free"


def _is_size(name: str) -> bool:
    return name == "memory" or name.startswith(("hugepages-", "ephemeral-storage"))


def _format(name: str, amount: int, *, round_up: bool) -> str:
    unit, suffix = 1, ""
    if _is_size(name):
        unit, suffix = next(((size, word) for size, word in _SIZE_UNITS if amount >= size * 1000), (1, ""))
    # Two decimals for a size with a suffix, three for other amounts, since CPUs are counted in thousandths.
    decimals = 2 if suffix else 3
    scale = 10**decimals
    number = amount * scale
    rounded = -(-number // (unit * 1000)) if round_up else number // (unit * 1000)
    return f"{rounded / scale:.{decimals}f}".rstrip("0").rstrip(".") + suffix
