# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a job are in doubt, and when they count as lost. `observe` asks once a pass; later steps look it up.

A node is lost when it has not been ready for longer than the grace. One that nobody knows is not judged: an engine that
has not listed its nodes must not declare them dead, and keeps one that was removed as not ready since it went. GPUs
that have failed are a doubt of another kind: the node answers, so its pods can still be asked to go.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct

from trainwright.core import devices, taints
from trainwright.model.child import GONE, Node, Observed
from trainwright.model.job import Body, Job, Role
from trainwright.model.site import Site
from trainwright.model.units import Time, after, count

UNREACHABLE = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})
#: From so many nodes on, the share of those that fell silent says something about the cluster.
FEW = 3
#: If more than this share of all nodes falls silent, it is more likely that nobody hears them than that all died.
MOST_SILENT = 0.55
#: And then they are waited for so many times as long.
LONGER = 5.0


class Doubt(Struct, frozen=True, gc=False):
    """What is the matter with a node that holds pods of the job."""

    #: It does not answer; it counts as lost from then on, or never as things are.
    silent: bool = False
    lost_at: Time | None = None
    #: Why it is not ready, in the words of its Ready condition.
    words: str = ""
    #: Its GPUs have failed, in words, and which roles hold some; pods of those are given up from then on.
    sick: str = ""
    roles: frozenset[str] = frozenset()
    failed_at: Time | None = None

    def lost(self, now: Time) -> bool:
        """Whether the node is lost."""
        return self.lost_at is not None and now >= self.lost_at

    def failed(self, role: str, now: Time) -> bool:
        """Whether GPUs that this role holds have failed."""
        return self.failed_at is not None and now >= self.failed_at and role in self.roles


def doubts(job: Job, observed: Observed, site: Site, now: Time) -> Mapping[str, Doubt]:
    """The nodes that hold pods of the job and are not as they should be; few jobs ever have any."""
    known = observed.nodes
    if known is None:
        return {}
    asked = devices.asked_most(job, site)
    names = {pod.spec.node_name for pod in observed.pods}
    here = [(name, node) for name in names if (node := known.get(name)) is not None]
    strange = [pair for pair in here if not pair[1].plain or (asked and pair[1].status.allocatable)]
    if not strange:
        return {}
    silent = {name: node for name, node in strange if not (node.plain or node.ready)}
    odd: dict[str, Node] = {}
    if asked:
        pods = Counter([pod.spec.node_name for pod in observed.pods])
        odd = {
            name: node
            for name, node in strange
            if name not in silent and devices.illness(node, asked, site, pods[name])
        }
    found = _silent(silent, known, site) if silent else {}
    return found | _sick(job, odd, observed, site, now) if odd else found


def _gone(node: Node) -> bool:
    return any(condition.reason == GONE for condition in node.status.conditions or ())


def silent_since(node: Node) -> Time | None:
    """Since when the node has not answered."""
    times = [c.last_transition_time for c in node.status.conditions or () if c.type == "Ready" and c.status != "True"]
    times += [taint.time_added for taint in node.spec.taints or () if taint.key in UNREACHABLE]
    return min((moment for moment in times if moment is not None), default=node.metadata.creation_timestamp)


def _words(node: Node) -> str:
    return next((one.message for one in node.status.conditions or () if one.type == "Ready"), "")


def _silent(silent: Mapping[str, Node], known: Mapping[str, Node], site: Site) -> dict[str, Doubt]:
    """When each of them counts as lost.

    With no node ready, none is ever judged: nothing could run elsewhere, so giving pods up could only do harm. With
    most of them silent it is the network or the API server that we have lost; they are waited for longer. A node that
    was removed is gone whatever the others do.
    """
    there = [node for node in known.values() if not _gone(node)]
    mute = sum([not node.ready for node in there])
    if mute == len(there):
        return dict.fromkeys(silent, Doubt(silent=True))
    braked = len(there) > FEW and mute > MOST_SILENT * len(there)
    found: dict[str, Doubt] = {}
    for name, node in silent.items():
        since = silent_since(node)
        grace = site.node_grace * (LONGER if braked and not _gone(node) else 1.0)
        lost_at = None if since is None else after(since, grace)
        found[name] = Doubt(silent=True, lost_at=lost_at, words=_words(node))
    return found


def _sick(job: Job, answering: Mapping[str, Node], observed: Observed, site: Site, now: Time) -> dict[str, Doubt]:
    """When the GPUs of each of them count as failed: a while after that was first seen.

    Where nothing could run elsewhere they are not judged, as with nodes that are silent.
    """
    held = devices.held(job, observed, site)
    ill = {
        name: illness
        for name, node in answering.items()
        if name in held and (illness := devices.illness(node, held[name].amounts, site))
    }
    since = {one.node: one.since for one in job.ledger.avoided}
    found: dict[str, Doubt] = {}
    for name, illness in ill.items():
        roles = [role for role in job.roles if role.name in held[name].roles]
        movable = any(elsewhere(role, observed.nodes or {}, ill, site) for role in roles)
        due = after(min(since.get(name, now), now), site.devices.grace) if movable else None
        found[name] = Doubt(sick=illness, roles=frozenset(role.name for role in roles), failed_at=due)
    return found


def elsewhere(role: Role, known: Mapping[str, Node], barred: Collection[str], site: Site) -> bool:
    """Whether a node is known that could take pods of this role, as far as one can tell without its scheduler.

    The barred ones are those where such pods have been.
    """
    asked = devices.asked(role, site)
    spec: Body = role.template.get("spec") or {}
    borne = taints.keys(known.get(name) for name in barred) | asked.keys()
    return any(
        name not in barred
        and _takes(node, spec.get("nodeSelector") or {}, asked)
        and not taints.repelled(node, spec, borne)
        and not devices.illness(node, {}, site)
        for name, node in known.items()
    )


def _takes(node: Node, selector: Mapping[str, str], asked: Mapping[str, int]) -> bool:
    """It is open, and has what is asked for; one that does not say what it has may have anything."""
    labels, has = node.metadata.labels or {}, node.status.allocatable
    return (
        node.ready
        and not node.spec.unschedulable
        and all(labels.get(key) == value for key, value in selector.items())
        and (not has or all(count(has.get(name, "0")) >= amount for name, amount in asked.items()))
    )
