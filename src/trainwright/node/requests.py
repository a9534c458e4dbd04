# SPDX-License-Identifier: Apache-2.0
"""What a pod asks for, as numbers, and such numbers in words. Pure.

`placement` compares what `asks` says with what nodes have left; `preflight` does so before anything is created. All
amounts are whole thousandths of a unit (a CPU, a byte, a GPU, a pod), rounded up, so that nothing is lost in adding.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import ceil
from typing import Any

from trainwright.model.job import Body
from trainwright.model.units import quantity

Amounts = dict[str, int]
#: Every pod takes one of these; nodes have only so many.
PODS = "pods"
_ONE_POD = 1000
_SIZES = ((1024**4, "Ti"), (1024**3, "Gi"), (1024**2, "Mi"), (1024, "Ki"))


def asks(spec: Body) -> Amounts:
    """Everything that the pod of this spec takes from its node.

    Containers run together and add up; init containers run one after the other before them, so the largest counts;
    those that go on running (restartPolicy Always) add up as well. What is given for the pod as a whole has precedence.
    """
    total: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = requested(container.get("resources"))
        _raise(peak, _sum(total, own))
        if container.get("restartPolicy") == "Always":
            total = _sum(total, own)
    for container in spec.get("containers") or ():
        total = _sum(total, requested(container.get("resources")))
    _raise(peak, total)
    if spec.get("resources"):
        peak |= requested(spec["resources"])
    if spec.get("overhead"):
        peak = _sum(peak, _read(spec["overhead"]))
    peak[PODS] = _ONE_POD
    return peak


def requested(resources: Any) -> Amounts:
    """What one container asks for; a limit stands in for a request that is not given."""
    if not resources:
        return {}
    limits, requests = resources.get("limits"), resources.get("requests")
    return (_read(limits) if limits else {}) | (_read(requests) if requests else {})


def amounts(quantities: Mapping[str, object] | None) -> Amounts:
    """What a node offers."""
    return _read(quantities or {})


def total(many: Iterable[Mapping[str, int]]) -> Amounts:
    """All of them together."""
    together: Amounts = {}
    for one in many:
        together = _sum(together, one)
    return together


def _read(quantities: Mapping[str, object]) -> Amounts:
    return {name: thousandths(given) for name, given in quantities.items()}


@lru_cache(maxsize=512, typed=True)
def thousandths(given: object) -> int:
    """A quantity as a whole number of thousandths; what cannot be read asks for nothing."""
    found = quantity(given)
    return max(0, ceil(found * 1000)) if found is not None else 0


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return dict(one) | {name: one.get(name, 0) + amount for name, amount in other.items()}


def _raise(peak: Amounts, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if amount > peak.get(name, 0):
            peak[name] = amount


def needed(name: str, amount: int) -> str:
    """An amount that is asked for, in words; rounded up, so that it never looks as if it would fit."""
    return _words(name, amount, up=True)


def present(name: str, amount: int) -> str:
    """An amount that is there, in words; rounded down."""
    return _words(name, amount, up=False)


def free_of(name: str, free: int, in_all: int) -> str:
    """`4 of 8 are free`, `1 of 8 is free`; a size is one amount: `3Gi of 4Gi is free`."""
    verb = "is" if _is_size(name) or 0 < free <= 1000 else "are"
    return f"{present(name, free)} of {present(name, in_all)} {verb} free"


def _is_size(name: str) -> bool:
    return name == "memory" or name.startswith(("hugepages-", "ephemeral-storage"))


def _words(name: str, amount: int, *, up: bool) -> str:
    unit, suffix = 1, ""
    if _is_size(name):
        unit, suffix = next(((size, word) for size, word in _SIZES if amount >= size * 1000), (1, ""))
    # Two decimals of a size are enough to read; a CPU is counted in thousandths.
    digits = 100 if suffix else 1000
    number = amount * digits
    rounded = -(-number // (unit * 1000)) if up else number // (unit * 1000)
    return f"{rounded / digits:.{len(str(digits)) - 1}f}".rstrip("0").rstrip(".") + suffix
