# SPDX-License-Identifier: Apache-2.0
"""Pods, nodes and pod groups as `placement` sees them: read once when they change, not once a pass. Pure.

`scheduler` makes them from what it watches and keeps the `Tally` of what is taken; `preflight` makes them from a file.

The scheduler's picture of pods, nodes and groups, brought up to date by each event. `scheduler` reads and feeds it.

Totals are kept, not counted anew: an event costs the same whether ten pods are bound or ten thousand. An event that is
older than what is known, or tells it again, changes nothing, so answers to our own writes may enter at once.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from trainwright.kinds import gangs
from trainwright.local.scheduling.affinity import NodeTerms, NodeTraits, terms, traits
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node.devices.inventory import LeasedDevices
from trainwright.node.requests import Amounts, amounts, asks

#: Not metered where a node does not say how much it has: 2^63 bytes are always there.
_UNMETERED = {"ephemeral-storage": 2**63 * 1000}
_FINISHED = ("Succeeded", "Failed")


class PodInfo(Struct, frozen=True):
    """A pod: who it is, when its turn comes, what it asks for."""

    key: Key
    uid: str
    asks: tuple[tuple[str, int], ...]
    terms: NodeTerms
    #: What it waits for before it may be placed at all.
    gates: str = ""
    priority: int | None = None
    created: str = ""
    group: Key | None = None
    #: It said that it is one of a gang, whether or not the group is there.
    ganged: bool = False


class NodeInfo(Struct, frozen=True):
    """A node: what it has in all, and what it is like."""

    traits: NodeTraits
    total: Amounts

    @property
    def name(self) -> str:
        """The node's name."""
        return self.traits.name


class GroupInfo(Struct, frozen=True):
    """A pod group: how many are placed together at least, and how soon."""

    least: int
    priority: int = 0


#: By node and resource name.
Leased = Mapping[str, Mapping[str, LeasedDevices]]


class NodeUsage:
    """What is taken on each node, and who of each gang is there already. Kept up to date, not counted anew."""

    def __init__(self) -> None:
        self.used: dict[str, Amounts] = {}
        self.members: dict[Key, set[str]] = {}

    def take(self, claim: PodInfo, node: str) -> None:
        """The pod has its place."""
        used = self.used.setdefault(node, {})
        for name, amount in claim.asks:
            used[name] = used.get(name, 0) + amount

    def release(self, claim: PodInfo, node: str) -> None:
        """The pod's place is free again."""
        used = self.used[node]
        for name, amount in claim.asks:
            used[name] -= amount

    def join(self, claim: PodInfo) -> None:
        """A member of a gang is there: it has its place, or has done its work."""
        if claim.group is not None:
            self.members.setdefault(claim.group, set()).add(claim.key.name)

    def leave(self, claim: PodInfo) -> None:
        """It is there no more."""
        if claim.group is not None:
            members = self.members.get(claim.group, set())
            members.discard(claim.key.name)
            if not members:
                self.members.pop(claim.group, None)


def claim(pod: Body) -> PodInfo:
    """A pod as placement sees it."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    namespace = meta.get("namespace", "")
    group = (meta.get("labels") or {}).get(gangs.T9K_GROUP_LABEL)
    gates = spec.get("schedulingGates")
    return PodInfo(
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


def offer(node: Body) -> NodeInfo:
    """A node as placement sees it."""
    status = node.get("status") or {}
    return NodeInfo(traits(node), _UNMETERED | amounts(status.get("allocatable") or status.get("capacity")))


def group(body: Body) -> GroupInfo:
    """A pod group as placement sees it."""
    spec = body.get("spec") or {}
    return GroupInfo(spec.get("minMember") or 1, spec.get("priority") or 0)


def finished(pod: Body) -> bool:
    """The pod has ended and needs its place no more."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


def going(pod: Body) -> bool:
    """The pod is being deleted."""
    return pod["metadata"].get("deletionTimestamp") is not None


class PlacedPod(Struct, frozen=True):
    """A pod as it was last seen, and what it stands for in the totals."""

    body: Body
    claim: PodInfo
    version: int
    #: Where it is, or nothing.
    node: str
    #: It takes up room there.
    holds: bool
    #: It is one of its gang.
    counts: bool


class SchedulerCache:
    """What there is to place, and where."""

    def __init__(self) -> None:
        self.pending: dict[Key, PodInfo] = {}
        self.offers: dict[str, NodeInfo] = {}
        self.groups: dict[Key, GroupInfo] = {}
        self.tally = NodeUsage()
        self.nodes: dict[str, Body] = {}
        #: Counts what may lead to another decision: pods to place, room that became free, other nodes or groups.
        self.news = 0
        self._seats: dict[Key, PlacedPod] = {}

    def seat(self, key: Key) -> PlacedPod | None:
        """A pod as it was last seen."""
        return self._seats.get(key)

    def bound(self) -> list[PlacedPod]:
        """The pods that take up room on a node."""
        return [seat for seat in self._seats.values() if seat.holds]

    # -- pods -----------------------------------------------------------------------------------------------------

    def pod(self, body: Body) -> None:
        """A pod is new, or has changed."""
        key, version = _key(body), int(body["metadata"].get("resourceVersion") or 0)
        before = self._seats.get(key)
        if before is not None and before.claim.uid != body["metadata"]["uid"]:
            self._clear(key, before)
            before = None
        if before is not None and version <= before.version:
            return
        spec = body["spec"]
        node = spec.get("nodeName") or ""
        # What a pod asks for is fixed; only before it has a node may its gates still change.
        known = before.claim if before is not None and (node or before.body["spec"] is spec) else claim(body)
        over, leaves = finished(body), going(body)
        self._replace(
            key, before, PlacedPod(body, known, version, node, bool(node) and not over, bool(node) and not leaves)
        )
        if node or over or leaves:
            self.pending.pop(key, None)
        elif self.pending.get(key) is not known:
            self.pending[key] = known
            self.news += 1

    def _replace(self, key: Key, before: PlacedPod | None, after: PlacedPod) -> None:
        held = before is not None and before.holds
        if before is not None and held and not (after.holds and after.node == before.node):
            self.tally.release(before.claim, before.node)
            self.news += 1
            held = False
        if after.holds and not held:
            self.tally.take(after.claim, after.node)
        counted = before is not None and before.counts
        if after.counts != counted:
            (self.tally.join if after.counts else self.tally.leave)(after.claim)
        self._seats[key] = after

    def pod_gone(self, body: Body) -> None:
        """A pod is no more."""
        key = _key(body)
        before = self._seats.get(key)
        if before is None or before.claim.uid != body["metadata"]["uid"]:
            return
        # A member that has done its work is not made again: the gang must not wait for it for ever.
        done = (body.get("status") or {}).get("phase") == "Succeeded" and before.claim.group in self.groups
        self._clear(key, before, stays=done)

    def _clear(self, key: Key, seat: PlacedPod, *, stays: bool = False) -> None:
        if seat.holds:
            self.tally.release(seat.claim, seat.node)
        if not stays:
            self.tally.leave(seat.claim)
        elif seat.claim.group is not None:
            self.tally.join(seat.claim)
        self.pending.pop(key, None)
        del self._seats[key]
        self.news += 1

    def pods_listed(self, bodies: Iterable[Body]) -> None:
        """All pods there are."""
        listed = {_key(body): body for body in bodies}
        for key in [key for key in self._seats if key not in listed]:
            self._clear(key, self._seats[key])
        for body in listed.values():
            self.pod(body)

    # -- nodes and groups -----------------------------------------------------------------------------------------

    def node(self, body: Body) -> None:
        """A node is new, or has changed."""
        name = body["metadata"]["name"]
        self.nodes[name] = body
        now = offer(body)
        if self.offers.get(name) != now:
            self.offers[name] = now
            self.news += 1

    def node_gone(self, body: Body) -> None:
        """A node is no more; what was on it is still counted, until its pods go."""
        self.nodes.pop(body["metadata"]["name"], None)
        self.offers.pop(body["metadata"]["name"], None)
        self.news += 1

    def nodes_listed(self, bodies: Iterable[Body]) -> None:
        """All nodes there are."""
        self.nodes.clear()
        self.offers.clear()
        self.news += 1
        for body in bodies:
            self.node(body)

    def group(self, body: Body) -> None:
        """A pod group is new, or has changed."""
        self.groups[_key(body)] = group(body)
        self.news += 1

    def group_gone(self, body: Body) -> None:
        """A pod group is no more, and with it the memory of who was in it and is gone."""
        self._forget(_key(body))

    def groups_listed(self, bodies: Iterable[Body]) -> None:
        """All pod groups there are."""
        listed = {_key(body): group(body) for body in bodies}
        for key in [key for key in self.groups if key not in listed]:
            self._forget(key)
        self.groups.update(listed)
        self.news += 1

    def _forget(self, key: Key) -> None:
        self.groups.pop(key, None)
        self.news += 1
        members = self.tally.members.pop(key, set())
        for name in members:
            seat = self._seats.get(Key(key.namespace, name))
            if seat is not None and seat.counts:
                self.tally.join(seat.claim)


def _key(body: Body) -> Key:
    return Key(body["metadata"].get("namespace", ""), body["metadata"]["name"])
