# SPDX-License-Identifier: Apache-2.0
"""GPUs: which roles hold some, and whether those of a node have failed. Asked by `nodes`, for jobs that use any.

Detectors tell by conditions and taints of the node; a device plugin takes a GPU that it no longer trusts out of what
the node has to give, so that less is left than pods of the job hold there.
"""

from collections.abc import Mapping

from msgspec import Struct

from trainwright.model.child import Node, Observed
from trainwright.model.job import Job, Role
from trainwright.model.meta import JOB_UID, ROLE
from trainwright.model.site import Site
from trainwright.model.units import count

_ENDED = ("Succeeded", "Failed")


class Held(Struct, frozen=True, gc=False):
    """What live pods of the job hold on one node, by resource, and of which roles they are."""

    amounts: dict[str, int]
    roles: set[str]


def asked(role: Role, site: Site) -> Mapping[str, int]:
    """How many GPUs a pod of this role asks for, by resource; most roles ask for none."""
    found, known = role.extended, site.devices.resources
    if not found or found.keys() <= known:
        return found
    return {name: amount for name, amount in found.items() if name in known}


def asked_most(job: Job, site: Site) -> Mapping[str, int]:
    """The most that a pod of any role asks for, by resource."""
    asks = [amounts for role in job.roles if (amounts := asked(role, site))]
    if len(asks) <= 1:
        return asks[0] if asks else {}
    return {name: max(one.get(name, 0) for one in asks) for name in sorted({name for one in asks for name in one})}


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
    return ("" if node.plain else _told(node, site)) or _short(node.status.allocatable or {}, amounts, times)


def _told(node: Node, site: Site) -> str:
    """What detectors say."""
    known = site.devices
    for condition in node.status.conditions or ():
        if (condition.type, condition.status) in known.conditions:
            detail = f": {condition.message}" if condition.message else ""
            return f"{condition.type} is {condition.status}{detail}"
    for taint in node.spec.taints or ():
        if taint.key in known.taints:
            return f"tainted {taint.key}"
    return ""


def _short(has: Mapping[str, str], amounts: Mapping[str, int], times: int) -> str:
    """What the node's device plugin no longer trusts."""
    for name, amount in amounts.items():
        left = has.get(name)
        # One that never said how many it has is not judged by it.
        if left is not None and count(left) < amount * times:
            return f"{count(left)} {name} left of {amount * times} in use"
    return ""
