# SPDX-License-Identifier: Apache-2.0
"""Taints: whether a node keeps pods of a role off. `nodes` asks before it counts on one.

What an admission plugin adds to pods is not in their template, so two more are taken for tolerated: those of nodes
where such pods have been, and one that is called like a resource which the pods ask for.

GPUs: which roles hold some, and whether those of a node have failed. Asked by `nodes`, for jobs that use any.

Detectors tell by conditions and taints of the node; a device plugin takes a GPU that it no longer trusts out of what
the node has to give, so that less is left than pods of the job hold there.

Which nodes of a job are in doubt, and when they count as lost. `observe` asks once a pass; later steps look it up.

A node is lost when it has not been ready for longer than the grace. One that nobody knows is not judged: an engine that
has not listed its nodes must not declare them dead, and keeps one that was removed as not ready since it went. GPUs
that have failed are a doubt of another kind: the node answers, so its pods can still be asked to go.
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
    """Whether a node keeps pods of this spec off; taints of these keys do not."""
    hard = [one for one in node.spec.taints or () if one.effect in _REPELLING_EFFECTS and one.key not in known]
    return any(not _tolerated(one, spec.get("tolerations") or ()) for one in hard)


def taint_keys(nodes: Iterable[Node | None]) -> frozenset[str]:
    """The keys of the taints of these nodes."""
    return frozenset(one.key for node in nodes if node is not None for one in node.spec.taints or ())


def _tolerated(taint: Taint, given: Iterable[Mapping[str, Any]]) -> bool:
    """By key and effect; values are not looked at, for a doubt must not keep pods on a sick node."""
    return any(
        one.get("effect") in (None, "", taint.effect)
        and (one.get("key") == taint.key or (not one.get("key") and one.get("operator") == "Exists"))
        for one in given
    )


_ENDED = ("Succeeded", "Failed")


class HeldDevices(Struct, frozen=True, gc=False):
    """What live pods of the job hold on one node, by resource, and of which roles they are."""

    amounts: dict[str, int]
    roles: set[str]


def requested_devices(role: Role, site: Site) -> Mapping[str, int]:
    """How many GPUs a pod of this role asks for, by resource; most roles ask for none."""
    found, known = role.extended_resources, site.devices.resources
    if not found or found.keys() <= known:
        return found
    return {name: amount for name, amount in found.items() if name in known}


def most_requested_devices(job: Job, site: Site) -> Mapping[str, int]:
    """The most that a pod of any role asks for, by resource."""
    asks = [amounts for role in job.roles if (amounts := requested_devices(role, site))]
    if len(asks) <= 1:
        return asks[0] if asks else {}
    return {name: max(one.get(name, 0) for one in asks) for name in sorted({name for one in asks for name in one})}


def held_devices(job: Job, observed: Observed, site: Site) -> Mapping[str, HeldDevices]:
    """What live pods of the job hold, by node."""
    asks = {role.name: amounts for role in job.roles if (amounts := requested_devices(role, site))}
    found: dict[str, HeldDevices] = {}
    if not asks:
        return found
    for pod in observed.pods:
        labels = pod.metadata.labels or {}
        wanted = asks.get(labels.get(ROLE, ""))
        if wanted is None or pod.status.phase in _ENDED or labels.get(JOB_UID) != job.uid:
            continue
        here = found.get(pod.spec.node_name)
        if here is None:
            here = found[pod.spec.node_name] = HeldDevices({}, set())
        here.roles.add(labels[ROLE])
        for name, amount in wanted.items():
            here.amounts[name] = here.amounts.get(name, 0) + amount
    return found


def device_failure(node: Node, amounts: Mapping[str, int], site: Site, times: int = 1) -> str:
    """What is wrong with the GPUs of a node of which so many times so much is in use, in words; empty: nothing."""
    return ("" if node.is_healthy else _detector_message(node, site)) or _missing_devices(
        node.status.allocatable or {}, amounts, times
    )


def _detector_message(node: Node, site: Site) -> str:
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


def _missing_devices(has: Mapping[str, str], amounts: Mapping[str, int], times: int) -> str:
    """What the node's device plugin no longer trusts."""
    for name, amount in amounts.items():
        left = has.get(name)
        # One that never said how many it has is not judged by it.
        if left is not None and count(left) < amount * times:
            return f"{count(left)} {name} left of {amount * times} in use"
    return ""


UNREACHABLE = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})
#: From so many nodes on, the share of those that fell silent says something about the cluster.
MIN_NODES_FOR_SHARE = 3
#: If more than this share of all nodes falls silent, it is more likely that nobody hears them than that all died.
MAX_SILENT_SHARE = 0.55
#: And then they are waited for so many times as long.
WIDE_OUTAGE_GRACE_FACTOR = 5.0


class NodeHealth(Struct, frozen=True, gc=False):
    """What is the matter with a node that holds pods of the job."""

    #: It does not answer; it counts as lost from then on, or never as things are.
    silent: bool = False
    lost_at: Time | None = None
    #: Why it is not ready, in the words of its Ready condition.
    not_ready_message: str = ""
    #: Its GPUs have failed, in words, and which roles hold some; pods of those are given up from then on.
    device_message: str = ""
    roles: frozenset[str] = frozenset()
    devices_failed_at: Time | None = None

    def is_lost(self, now: Time) -> bool:
        """Whether the node is lost."""
        return self.lost_at is not None and now >= self.lost_at

    def devices_have_failed(self, role: str, now: Time) -> bool:
        """Whether GPUs that this role holds have failed."""
        return self.devices_failed_at is not None and now >= self.devices_failed_at and role in self.roles


def unhealthy_nodes(job: Job, observed: Observed, site: Site, now: Time) -> Mapping[str, NodeHealth]:
    """The nodes that hold pods of the job and are not as they should be; few jobs ever have any."""
    known = observed.nodes
    if known is None:
        return {}
    asked = most_requested_devices(job, site)
    names = {pod.spec.node_name for pod in observed.pods}
    here = [(name, node) for name in names if (node := known.get(name)) is not None]
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
    """Since when the node has not answered."""
    times = [c.last_transition_time for c in node.status.conditions or () if c.type == "Ready" and c.status != "True"]
    times += [taint.time_added for taint in node.spec.taints or () if taint.key in UNREACHABLE]
    return min((moment for moment in times if moment is not None), default=node.metadata.creation_timestamp)


def _ready_message(node: Node) -> str:
    return next((one.message for one in node.status.conditions or () if one.type == "Ready"), "")


def _silent_nodes(silent: Mapping[str, Node], known: Mapping[str, Node], site: Site) -> dict[str, NodeHealth]:
    """When each of them counts as lost.

    With no node ready, none is ever judged: nothing could run elsewhere, so giving pods up could only do harm. With
    most of them silent it is the network or the API server that we have lost; they are waited for longer. A node that
    was removed is gone whatever the others do.
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
        found[name] = NodeHealth(silent=True, lost_at=lost_at, not_ready_message=_ready_message(node))
    return found


def _device_nodes(
    job: Job, answering: Mapping[str, Node], observed: Observed, site: Site, now: Time
) -> dict[str, NodeHealth]:
    """When the GPUs of each of them count as failed: a while after that was first seen.

    Where nothing could run elsewhere they are not judged, as with nodes that are silent.
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
    """Whether a node is known that could take pods of this role, as far as one can tell without its scheduler.

    The barred ones are those where such pods have been.
    """
    asked = requested_devices(role, site)
    spec: Body = role.template.get("spec") or {}
    borne = taint_keys(known.get(name) for name in barred) | asked.keys()
    return any(
        name not in barred
        and _can_take(node, spec.get("nodeSelector") or {}, asked)
        and not repelled_by_taints(node, spec, borne)
        and not device_failure(node, {}, site)
        for name, node in known.items()
    )


def _can_take(node: Node, selector: Mapping[str, str], asked: Mapping[str, int]) -> bool:
    """It is open, and has what is asked for; one that does not say what it has may have anything."""
    labels, has = node.metadata.labels or {}, node.status.allocatable
    return (
        node.ready
        and not node.spec.unschedulable
        and all(labels.get(key) == value for key, value in selector.items())
        and (not has or all(count(has.get(name, "0")) >= amount for name, amount in asked.items()))
    )
