# SPDX-License-Identifier: Apache-2.0
"""Decides which pod gets which node, and finds the reasons why the other pods wait. Pure.

The pass tries pods in this order: higher priority first, then older pods first, then by name. A pod that does not fit
waits, but later pods can still be placed. The members of a gang are placed together or not at all. Running pods are
never preempted.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from trainwright.local.scheduling.affinity import NodeTerms
from trainwright.local.scheduling.cache import GroupInfo, Leased, NodeInfo, NodeUsage, PodInfo
from trainwright.local.scheduling.reasons import FreeRoom, Requests, gang_reason, pod_reason
from trainwright.model.meta import Key

Placement = tuple[PodInfo, str]


class Placements(Struct, frozen=True):
    """Pods with their nodes, and waiting pods with their reasons."""

    placed: tuple[Placement, ...] = ()
    waiting: tuple[tuple[PodInfo, str], ...] = ()


def place(
    pending: Iterable[PodInfo],
    nodes: Iterable[NodeInfo],
    bound: NodeUsage,
    groups: Mapping[Key, GroupInfo] | None = None,
    leased: Leased | None = None,
) -> Placements:
    """A node, or a reason to wait, for each pending pod. `bound`: used resources; `leased`: devices of other runs."""
    return _Pass(FreeRoom(nodes, bound.used, leased), bound, groups or {}).run(pending)


class _Pass:
    """One pass over all pending pods."""

    def __init__(self, room: FreeRoom, bound: NodeUsage, groups: Mapping[Key, GroupInfo]) -> None:
        self.room, self.bound, self.groups = room, bound, groups
        self.placed: list[Placement] = []
        self.waiting: list[PodInfo] = []
        #: Pods with these requests and terms did not fit. Free resources only shrink, so equal pods cannot fit later.
        self.unplaceable: set[tuple[Requests, NodeTerms]] = set()

    def run(self, pending: Iterable[PodInfo]) -> Placements:
        pods = sorted(pending, key=self._order)
        gangs: dict[Key, list[PodInfo]] = {}
        for pod in pods:
            if pod.group is not None and pod.group in self.groups and not pod.gates:
                gangs.setdefault(pod.group, []).append(pod)
        seen_gangs: set[Key] = set()
        for pod in pods:
            if pod.group not in gangs or pod.gates:
                self._single(pod)
            elif pod.group not in seen_gangs:
                seen_gangs.add(pod.group)
                self._gang(pod.group, gangs[pod.group])
        # Find the reasons after all placements, because they describe the resources that are still free then.
        return Placements(tuple(self.placed), self._reasons(gangs))

    def _order(self, pod: PodInfo) -> tuple[int, str, Key]:
        group = self.groups.get(pod.group) if pod.group is not None and pod.priority is None else None
        priority = group.priority if group is not None else pod.priority or 0
        return -priority, pod.created, pod.key

    def _single(self, pod: PodInfo) -> None:
        demands = pod.requests, pod.terms
        held = pod.gates or pod.ganged
        node = "" if held or demands in self.unplaceable else _choose_node(self.room, pod)
        if node:
            self.room.take(pod.requests, node)
            self.placed.append((pod, node))
            return
        self.waiting.append(pod)
        if not held:
            self.unplaceable.add(demands)

    def _gang(self, key: Key, members: list[PodInfo]) -> None:
        """Place as many members as fit. If the gang is still too small with these members, place none."""
        missing = max(0, self.groups[key].min_members - self._members_elsewhere(key, members))
        placements = _place_gang(self.room, members, missing) if missing <= len(members) else []
        for pod, node in placements:
            self.room.take(pod.requests, node)
        self.placed += placements
        placed = {pod.key for pod, _ in placements}
        self.waiting += [pod for pod in members if pod.key not in placed]

    def _members_elsewhere(self, key: Key, members: Iterable[PodInfo]) -> int:
        """The number of other members that have a node or have succeeded."""
        return len(self.bound.members.get(key, set()) - {one.key.name for one in members})

    def _reasons(self, gangs: Mapping[Key, list[PodInfo]]) -> tuple[tuple[PodInfo, str], ...]:
        """The reason why each waiting pod waits. Equal pods, and the members of a gang, share a reason."""
        known: dict[object, str] = {}
        reasons = []
        for pod in self.waiting:
            demands = pod.group if pod.group in gangs else (pod.requests, pod.terms)
            key = (demands, pod.gates, pod.ganged)
            if key not in known:
                known[key] = self._reason(pod, gangs)
            reasons.append((pod, known[key]))
        return tuple(reasons)

    def _reason(self, pod: PodInfo, gangs: Mapping[Key, list[PodInfo]]) -> str:
        if pod.gates:
            return f"waits for its scheduling gates to be removed: {pod.gates}"
        if pod.group is None or pod.group not in gangs:
            group = pod.group.name if pod.group is not None and pod.ganged else ""
            return f"waits for its PodGroup {group!r}, which does not exist" if group else pod_reason(pod, self.room)
        min_members, members = self.groups[pod.group].min_members, gangs[pod.group]
        waiting = [one for one in self.waiting if one.group == pod.group and not one.gates]
        present = self._members_elsewhere(pod.group, members) + len(members) - len(waiting)
        if present >= min_members:
            return pod_reason(pod, self.room)
        return gang_reason(min_members, present, waiting, self.room)


def _choose_node(room: FreeRoom, pod: PodInfo, *, pack: bool = False) -> str:
    """Of the nodes where the pod fits, the node with the lowest used share (`pack`: the highest); empty if none."""
    best, lowest = "", float("inf")
    for name in room.accepting(pod.terms):
        share = -room.used_share[name] if pack else room.used_share[name]
        if share < lowest and room.fits(pod.requests, name):
            best, lowest = name, share
    return best


def _place_gang(room: FreeRoom, members: list[PodInfo], missing: int) -> list[Placement]:
    """Nodes for as many members as fit at the same time. The gang still needs `missing` members; if fewer fit: none.

    The first trial spreads the pods over the nodes, as for single pods. If it does not place all pods, the second trial
    packs the largest pods first. If neither trial places enough pods, the third trial packs the smallest pods first,
    because one pod that needs a whole node must not prevent a gang of smaller pods.
    """
    spread = _trial(room, members, missing, pack=False)
    if len(spread) == len(members):
        return spread
    ascending = sorted(members, key=lambda one: one.requests)
    largest_first = _trial(room, ascending[::-1], missing, pack=True)
    return max(spread, largest_first, key=len) or _trial(room, ascending, missing, pack=True)


def _trial(room: FreeRoom, members: list[PodInfo], missing: int, *, pack: bool) -> list[Placement]:
    placements: list[Placement] = []
    unplaceable: set[tuple[Requests, NodeTerms]] = set()
    optional = len(members) - missing
    for pod in members:
        demands = pod.requests, pod.terms
        node = "" if demands in unplaceable else _choose_node(room, pod, pack=pack)
        if node:
            room.take(pod.requests, node)
            placements.append((pod, node))
            continue
        unplaceable.add(demands)
        optional -= 1
        if optional < 0:
            break
    for pod, node in placements:
        room.release(pod.requests, node)
    return placements if optional >= 0 else []
