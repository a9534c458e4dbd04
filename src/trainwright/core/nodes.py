# SPDX-License-Identifier: Apache-2.0
"""Health of the nodes that hold pods of a job: lost nodes, failed GPUs, and whether another node could take a pod.

A node is lost when it has not been ready for longer than the grace period. A node that is not in `Observed.nodes`
is not lost: perhaps the engine has not listed it yet. A removed node stays in `Observed.nodes` as not ready.

GPU failures show in conditions and taints of the node, or in fewer allocatable GPUs than the job's pods hold there. The
node still answers, so its pods can be deleted normally.

Admission plugins may add tolerations that are not in the template. So we assume that pods also tolerate a taint if its
key is on a node where pods of the role have run, or if its key is the name of a resource that the pods request.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any

from msgspec import Struct

from trainwright.model.child import NODE_GONE, Node, Observed, Taint
from trainwright.model.job import Body, Job, Role
from trainwright.model.meta import JOB_UID, ROLE
from trainwright.model.site import Site
from trainwright.model.units import Time, after, count

_REPELLING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


def repelled_by_taints(node: Node, spec: Body, known: Container[str]) -> bool:
    """Return whether a node's taints repel pods with this spec. Taints whose key is in `known` count as tolerated."""
    hard = [one for one in node.spec.taints or () if one.effect in _REPELLING_EFFECTS and one.key not in known]
    return any(not _tolerated(one, spec.get("tolerations") or ()) for one in hard)


def _tolerated(taint: Taint, given: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a toleration fits the taint. Values are ignored, so no usable node ever counts as unusable."""
    return any(
        one.get("effect") in (None, "", taint.effect)
        and (one.get("key") == taint.key or (not one.get("key") and one.get("operator") == "Exists"))
        for one in given
    )


_ENDED = ("Succeeded", "Failed")


class HeldDevices(Struct, frozen=True, gc=False):
    """The devices that running pods of the job hold on one node, by resource, and the roles of these pods."""

    amounts: dict[str, int]
    roles: set[str]


def requested_devices(role: Role, site: Site) -> Mapping[str, int]:
    """Return how many GPUs a pod of this role requests, by resource."""
    found, known = role.extended_resources, site.devices.resources
    if not found or found.keys() <= known:
        return found
    return {name: amount for name, amount in found.items() if name in known}


def most_requested_devices(job: Job, site: Site) -> Mapping[str, int]:
    """Return the largest request of any role's pod, by resource."""
    asks = [amounts for role in job.roles if (amounts := requested_devices(role, site))]
    if len(asks) <= 1:
        return asks[0] if asks else {}
    return {name: max(one.get(name, 0) for one in asks) for name in sorted({name for one in asks for name in one})}


def held_devices(job: Job, observed: Observed, site: Site) -> Mapping[str, HeldDevices]:
    """Return the devices that running pods of the job hold, by node."""
    asks = {role.name: amounts for role in job.roles if (amounts := requested_devices(role, site))}
    found: dict[str, HeldDevices] = {}
    if not asks:
        return found
    for pod in observed.pods:
        labels = pod.metadata.labels or {}
        wanted = asks.get(labels.get(ROLE, ""))
        if wanted is None or pod.status.phase in _ENDED or labels.get(JOB_UID) != job.uid:
            continue
        here = found.setdefault(pod.spec.node_name, HeldDevices({}, set()))
        here.roles.add(labels[ROLE])
        for name, amount in wanted.items():
            here.amounts[name] = here.amounts.get(name, 0) + amount
    return found


def device_failure(node: Node, amounts: Mapping[str, int], site: Site, times: int = 1) -> str:
    """Return what is wrong with the GPUs of a node, or an empty text. `times` pods there use `amounts` each."""
    return ("" if node.is_healthy else _detector_message(node, site)) or _missing_devices(
        node.status.allocatable or {}, amounts, times
    )


def _detector_message(node: Node, site: Site) -> str:
    """Return what failure detectors report."""
    known = site.devices
    for condition in node.status.conditions or ():
        if (condition.type, condition.status) in known.conditions:
            detail = f": {condition.message}" if condition.message else ""
            return f"{condition.type} is {condition.status}{detail}"
    for taint in node.spec.taints or ():
        if taint.key in known.taints:
            return f"tainted {taint.key}"
    return ""


def _missing_devices(has: Mapping[str, str], amounts: Mapping[str, int], times: int) -> str:
    """Return which devices the device plugin has withdrawn."""
    for name, amount in amounts.items():
        left = has.get(name)
        # A node that does not report this resource counts as healthy here.
        if left is not None and count(left) < amount * times:
            return f"{count(left)} {name} left of {amount * times} in use"
    return ""


UNREACHABLE = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})
#: With this many nodes or fewer, the share of nodes that are not ready is not checked.
MIN_NODES_FOR_SHARE = 3
#: If more than this share of nodes is not ready, the network or the API server is the likely cause.
MAX_SILENT_SHARE = 0.55
#: If more than `MAX_SILENT_SHARE` of the nodes is not ready, the grace period is this many times longer.
WIDE_OUTAGE_GRACE_FACTOR = 5.0


class NodeHealth(Struct, frozen=True, gc=False):
    """What is wrong with a node that holds pods of the job."""

    #: The node is not ready. It counts as lost from `lost_at`; None: never.
    silent: bool = False
    lost_at: Time | None = None
    #: The message of the node's Ready condition.
    not_ready_message: str = ""
    #: What is wrong with the node's GPUs, the roles that hold some of them, and the time at which they count as failed.
    device_message: str = ""
    roles: frozenset[str] = frozenset()
    devices_failed_at: Time | None = None

    def is_lost(self, now: Time) -> bool:
        """Return whether the node is lost."""
        return self.lost_at is not None and now >= self.lost_at

    def devices_have_failed(self, role: str, now: Time) -> bool:
        """Return whether GPUs that this role holds have failed."""
        return self.devices_failed_at is not None and now >= self.devices_failed_at and role in self.roles


def unhealthy_nodes(job: Job, observed: Observed, site: Site, now: Time) -> Mapping[str, NodeHealth]:
    """Return the unhealthy nodes that hold pods of the job."""
    known = observed.nodes
    if known is None:
        return {}
    names = {pod.spec.node_name for pod in observed.pods}
    here = [(name, node) for name in names if (node := known.get(name)) is not None]
    if not here:
        return {}
    asked = most_requested_devices(job, site)
    strange = [pair for pair in here if not pair[1].is_healthy or (asked and pair[1].status.allocatable)]
    if not strange:
        return {}
    silent = {name: node for name, node in strange if not (node.is_healthy or node.ready)}
    odd: dict[str, Node] = {}
    if asked:
        pods = Counter([pod.spec.node_name for pod in observed.pods])
        odd = {
            name: node for name, node in strange if name not in silent and device_failure(node, asked, site, pods[name])
        }
    found = _silent_nodes(silent, known, site) if silent else {}
    return found | _device_nodes(job, odd, observed, site, now) if odd else found


def _is_removed(node: Node) -> bool:
    return any(condition.reason == NODE_GONE for condition in node.status.conditions or ())


def not_ready_since(node: Node) -> Time | None:
    """Return the time since which the node has not been ready."""
    times = [c.last_transition_time for c in node.status.conditions or () if c.type == "Ready" and c.status != "True"]
    times += [taint.time_added for taint in node.spec.taints or () if taint.key in UNREACHABLE]
    return min((moment for moment in times if moment is not None), default=node.metadata.creation_timestamp)


def _silent_nodes(silent: Mapping[str, Node], known: Mapping[str, Node], site: Site) -> dict[str, NodeHealth]:
    """Return the time at which each of these nodes counts as lost.

    If no node is ready, none is lost, because pods could not run anywhere else. If most nodes are not ready, the
    network or the API server has probably failed, so the grace period is longer. Removed nodes keep the normal period.
    """
    there = [node for node in known.values() if not _is_removed(node)]
    mute = sum([not node.ready for node in there])
    if mute == len(there):
        return dict.fromkeys(silent, NodeHealth(silent=True))
    braked = len(there) > MIN_NODES_FOR_SHARE and mute > MAX_SILENT_SHARE * len(there)
    found: dict[str, NodeHealth] = {}
    for name, node in silent.items():
        since = not_ready_since(node)
        grace = site.node_grace * (WIDE_OUTAGE_GRACE_FACTOR if braked and not _is_removed(node) else 1.0)
        lost_at = None if since is None else after(since, grace)
        message = next((one.message for one in node.status.conditions or () if one.type == "Ready"), "")
        found[name] = NodeHealth(silent=True, lost_at=lost_at, not_ready_message=message)
    return found


def _device_nodes(
    job: Job, answering: Mapping[str, Node], observed: Observed, site: Site, now: Time
) -> dict[str, NodeHealth]:
    """Return the times at which GPUs of these nodes count as failed: a grace period after the failure was first seen.

    If the pods could not run on another node, the GPUs never count as failed.
    """
    held = held_devices(job, observed, site)
    ill = {
        name: illness
        for name, node in answering.items()
        if name in held and (illness := device_failure(node, held[name].amounts, site))
    }
    since = {one.node: one.since for one in job.ledger.avoided}
    found: dict[str, NodeHealth] = {}
    for name, illness in ill.items():
        roles = [role for role in job.roles if role.name in held[name].roles]
        movable = any(another_node_fits(role, observed.nodes or {}, ill, site) for role in roles)
        due = after(min(since.get(name, now), now), site.devices.grace) if movable else None
        found[name] = NodeHealth(
            device_message=illness, roles=frozenset(role.name for role in roles), devices_failed_at=due
        )
    return found


def another_node_fits(role: Role, known: Mapping[str, Node], barred: Collection[str], site: Site) -> bool:
    """Return whether another known node could take pods of this role, as far as can be known without the scheduler.

    Nodes in `barred` do not count. Pods of the role have run on them, so the keys of their taints count as tolerated.
    """
    asked = requested_devices(role, site)
    spec: Body = role.template.get("spec") or {}
    borne = {one.key for name in barred if name in known for one in known[name].spec.taints or ()} | asked.keys()
    return any(
        name not in barred
        and _can_take(node, spec.get("nodeSelector") or {}, asked)
        and not repelled_by_taints(node, spec, borne)
        and not device_failure(node, {}, site)
        for name, node in known.items()
    )


def _can_take(node: Node, selector: Mapping[str, str], asked: Mapping[str, int]) -> bool:
    """Return whether the node is schedulable and has the requested devices. Unknown capacity counts as enough."""
    labels, has = node.metadata.labels or {}, node.status.allocatable
    return (
        node.ready
        and not node.spec.unschedulable
        and all(labels.get(key) == value for key, value in selector.items())
        and (not has or all(count(has.get(name, "0")) >= amount for name, amount in asked.items()))
    )
