# SPDX-License-Identifier: Apache-2.0
"""Pods, nodes and pod groups as `placement` sees them: read once when they change, not once a pass. Pure.

`scheduler` makes them from what it watches and keeps the `Tally` of what is taken; `preflight` makes them from a file.
"""

from collections.abc import Mapping

from msgspec import Struct

from trainwright.kinds import gangs
from trainwright.local.devices.leased import LeasedDevices
from trainwright.local.scheduling.requests import Amounts, amounts, asks
from trainwright.local.scheduling.terms import Terms, Traits, terms, traits
from trainwright.model.job import Body
from trainwright.model.meta import Key

#: Not metered where a node does not say how much it has: 2^63 bytes are always there.
_UNMETERED = {"ephemeral-storage": 2**63 * 1000}
_FINISHED = ("Succeeded", "Failed")


class Claim(Struct, frozen=True):
    """A pod: who it is, when its turn comes, what it asks for."""

    key: Key
    uid: str
    asks: tuple[tuple[str, int], ...]
    terms: Terms
    #: What it waits for before it may be placed at all.
    gates: str = ""
    priority: int | None = None
    created: str = ""
    group: Key | None = None
    #: It said that it is one of a gang, whether or not the group is there.
    ganged: bool = False


class Offer(Struct, frozen=True):
    """A node: what it has in all, and what it is like."""

    traits: Traits
    total: Amounts

    @property
    def name(self) -> str:
        """The node's name."""
        return self.traits.name


class Group(Struct, frozen=True):
    """A pod group: how many are placed together at least, and how soon."""

    least: int
    priority: int = 0


#: By node and resource name.
Leased = Mapping[str, Mapping[str, LeasedDevices]]


class Tally:
    """What is taken on each node, and who of each gang is there already. Kept up to date, not counted anew."""

    def __init__(self) -> None:
        self.used: dict[str, Amounts] = {}
        self.members: dict[Key, set[str]] = {}

    def take(self, claim: Claim, node: str) -> None:
        """The pod has its place."""
        used = self.used.setdefault(node, {})
        for name, amount in claim.asks:
            used[name] = used.get(name, 0) + amount

    def release(self, claim: Claim, node: str) -> None:
        """The pod's place is free again."""
        used = self.used[node]
        for name, amount in claim.asks:
            used[name] -= amount

    def join(self, claim: Claim) -> None:
        """A member of a gang is there: it has its place, or has done its work."""
        if claim.group is not None:
            self.members.setdefault(claim.group, set()).add(claim.key.name)

    def leave(self, claim: Claim) -> None:
        """It is there no more."""
        if claim.group is not None:
            members = self.members.get(claim.group, set())
            members.discard(claim.key.name)
            if not members:
                self.members.pop(claim.group, None)


def claim(pod: Body) -> Claim:
    """A pod as placement sees it."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    namespace = meta.get("namespace", "")
    group = (meta.get("labels") or {}).get(gangs.T9K_GROUP_LABEL)
    gates = spec.get("schedulingGates")
    return Claim(
        Key(namespace, meta["name"]),
        meta.get("uid", ""),
        tuple(sorted(asks(spec).items())),
        terms(spec),
        ", ".join(str(gate.get("name")) for gate in gates) if gates else "",
        spec.get("priority"),
        meta.get("creationTimestamp") or "",
        Key(namespace, group) if group else None,
        # Never placed without its group, even if that is made after it.
        bool(group) and spec.get("schedulerName") == gangs.T9K.scheduler,
    )


def offer(node: Body) -> Offer:
    """A node as placement sees it."""
    status = node.get("status") or {}
    return Offer(traits(node), _UNMETERED | amounts(status.get("allocatable") or status.get("capacity")))


def group(body: Body) -> Group:
    """A pod group as placement sees it."""
    spec = body.get("spec") or {}
    return Group(spec.get("minMember") or 1, spec.get("priority") or 0)


def finished(pod: Body) -> bool:
    """The pod has ended and needs its place no more."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


def going(pod: Body) -> bool:
    """The pod is being deleted."""
    return pod["metadata"].get("deletionTimestamp") is not None
