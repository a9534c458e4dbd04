# SPDX-License-Identifier: Apache-2.0
"""GPUs: which roles hold some, and whether those of a node have failed. Asked by `nodes`, for jobs that use any.

Detectors tell by conditions and taints of the node; a device plugin takes a GPU that it no longer trusts out of what
the node has to give, so that less is left than pods of the job hold there.
"""

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from trainwright.model.child import Node, Observed
from trainwright.model.job import Job, Role
from trainwright.model.meta import JOB_UID, ROLE
from trainwright.model.site import Site
from trainwright.model.units import quantity

_ENDED = ("Succeeded", "Failed")


class Held(Struct, frozen=True, gc=False):
    """What live pods of the job hold on one node, by resource, and of which roles they are."""

    amounts: dict[str, int]
    roles: set[str]


def asked(role: Role, site: Site) -> dict[str, int]:
    """How many GPUs a pod of this role asks for, by resource; most roles ask for none."""
    spec = role.template.get("spec") or {}
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        resources = container.get("resources")
        if resources:
            for name, amount in ((resources.get("requests") or {}) | (resources.get("limits") or {})).items():
                if name in site.devices.resources:
                    total[name] = total.get(name, 0) + whole(amount)
    return total


def asked_most(job: Job, site: Site) -> Mapping[str, int]:
    """The most that a pod of any role asks for, by resource."""
    most: dict[str, int] = {}
    for role in job.roles:
        for name, amount in asked(role, site).items():
            most[name] = max(amount, most.get(name, 0))
    return most


def odd(node: Node, most: Mapping[str, int], pods: int, site: Site) -> bool:
    """Whether a closer look at the node is called for: it holds so many pods, which ask for so much at most."""
    return bool(illness(node, most, site, pods))


def held(job: Job, observed: Observed, site: Site) -> Mapping[str, Held]:
    """What live pods of the job hold, by node."""
    asks = {role.name: amounts for role in job.roles if (amounts := asked(role, site))}
    found: dict[str, Held] = {}
    if not asks:
        return found
    for pod in observed.pods:
        labels = pod.metadata.labels or {}
        wanted = asks.get(labels.get(ROLE, ""))
        if wanted is None or pod.status.phase in _ENDED or labels.get(JOB_UID) != job.uid:
            continue
        here = found.get(pod.spec.node_name)
        if here is None:
            here = found[pod.spec.node_name] = Held({}, set())
        here.roles.add(labels[ROLE])
        for name, amount in wanted.items():
            here.amounts[name] = here.amounts.get(name, 0) + amount
    return found


def illness(node: Node, amounts: Mapping[str, int], site: Site, times: int = 1) -> str:
    """What is wrong with the GPUs of a node of which so many times so much is in use, in words; empty: nothing."""
    known = site.devices
    for condition in node.status.conditions or ():
        if (condition.type, condition.status) in known.conditions:
            detail = f": {condition.message}" if condition.message else ""
            return f"{condition.type} is {condition.status}{detail}"
    for taint in node.spec.taints or ():
        if taint.key in known.taints:
            return f"tainted {taint.key}"
    has = node.status.allocatable
    for name, amount in amounts.items() if has else ():
        left = has.get(name) if has else None
        # One that never said how many it has is not judged by it.
        if left is not None and whole(left) < amount * times:
            return f"{whole(left)} {name} left of {amount * times} in use"
    return ""


@lru_cache(maxsize=128, typed=True)
def whole(amount: object) -> int:
    """A number of GPUs; what cannot be read is none."""
    found = quantity(amount)
    return int(found) if found is not None else 0
