# SPDX-License-Identifier: Apache-2.0
"""Which pod goes to which node, and why the others wait. Pure; `scheduler` calls it and carries out what it says.

In turn: higher priority first, then the older, then by name. Whatever does not fit waits and keeps nobody behind it
from fitting; the members of a gang are placed together or not at all. Nothing is ever taken away from a running pod.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from trainwright.local.scheduling.affinity import NodeTerms
from trainwright.local.scheduling.cache import GroupInfo, Leased, NodeInfo, NodeUsage, PodInfo
from trainwright.local.scheduling.reasons import Asks, FreeRoom, gang, single
from trainwright.model.meta import Key

Place = tuple[PodInfo, str]


class Placements(Struct, frozen=True):
    """Pods with their nodes, and pods with what they wait for."""

    placed: tuple[Place, ...] = ()
    waiting: tuple[tuple[PodInfo, str], ...] = ()


def place(
    pending: Iterable[PodInfo],
    nodes: Iterable[NodeInfo],
    bound: NodeUsage,
    groups: Mapping[Key, GroupInfo] | None = None,
    leased: Leased | None = None,
) -> Placements:
    """A node or a reason for each pending pod; `bound` says what is taken already, `leased` what other runs hold."""
    return _Pass(FreeRoom(nodes, bound.used, leased), bound, groups or {}).run(pending)


class _Pass:
    """One pass over everything that waits."""

    def __init__(self, room: FreeRoom, bound: NodeUsage, groups: Mapping[Key, GroupInfo]) -> None:
        self.room, self.bound, self.groups = room, bound, groups
        self.placed: list[Place] = []
        self.waiting: list[PodInfo] = []
        #: What did not fit will not fit later in the same pass: room only shrinks.
        self.hopeless: set[tuple[Asks, NodeTerms]] = set()

    def run(self, pending: Iterable[PodInfo]) -> Placements:
        claims = sorted(pending, key=self._turn)
        gangs: dict[Key, list[PodInfo]] = {}
        for claim in claims:
            if claim.group is not None and claim.group in self.groups and not claim.gates:
                gangs.setdefault(claim.group, []).append(claim)
        met: set[Key] = set()
        for claim in claims:
            if claim.group not in gangs or claim.gates:
                self._single(claim)
            elif claim.group not in met:
                met.add(claim.group)
                self._gang(claim.group, gangs[claim.group])
        # Reasons come last: they tell of the room that is left when all have had their turn.
        return Placements(tuple(self.placed), self._reasons(gangs))

    def _turn(self, claim: PodInfo) -> tuple[int, str, Key]:
        group = self.groups.get(claim.group) if claim.group is not None and claim.priority is None else None
        priority = group.priority if group is not None else claim.priority or 0
        return -priority, claim.created, claim.key

    def _single(self, claim: PodInfo) -> None:
        shape = claim.asks, claim.terms
        held = claim.gates or claim.ganged
        node = "" if held or shape in self.hopeless else self.room.choose(claim)
        if node:
            self.room.take(claim.asks, node)
            self.placed.append((claim, node))
            return
        self.waiting.append(claim)
        if not held:
            self.hopeless.add(shape)

    def _gang(self, key: Key, members: list[PodInfo]) -> None:
        """As many as fit, if those who are there already make up the gang with them; else none."""
        missing = max(0, self.groups[key].least - self._there(key, members))
        places = _seats(self.room, members, missing) if missing <= len(members) else []
        for claim, node in places:
            self.room.take(claim.asks, node)
        self.placed += places
        seated = {claim.key for claim, _ in places}
        self.waiting += [claim for claim in members if claim.key not in seated]

    def _there(self, key: Key, members: Iterable[PodInfo]) -> int:
        """How many of the gang are there besides these."""
        return len(self.bound.members.get(key, set()) - {one.key.name for one in members})

    def _reasons(self, gangs: Mapping[Key, list[PodInfo]]) -> tuple[tuple[PodInfo, str], ...]:
        """Those who ask for the same wait for the same."""
        known: dict[object, str] = {}
        told = []
        for claim in self.waiting:
            shape = claim.group if claim.group in gangs else (claim.asks, claim.terms)
            about = (shape, claim.gates, claim.ganged)
            if about not in known:
                known[about] = self._reason(claim, gangs)
            told.append((claim, known[about]))
        return tuple(told)

    def _reason(self, claim: PodInfo, gangs: Mapping[Key, list[PodInfo]]) -> str:
        if claim.gates:
            return f"waits for its scheduling gates to be removed: {claim.gates}"
        if claim.group is None or claim.group not in gangs:
            group = claim.group.name if claim.group is not None and claim.ganged else ""
            return f"waits for its PodGroup {group!r}, which does not exist" if group else single(claim, self.room)
        least, members = self.groups[claim.group].least, gangs[claim.group]
        waiting = [one for one in self.waiting if one.group == claim.group and not one.gates]
        there = self._there(claim.group, members) + len(members) - len(waiting)
        return gang(least, there, waiting, self.room) if there < least else single(claim, self.room)


def _seats(room: FreeRoom, members: list[PodInfo], missing: int) -> list[Place]:
    """Places for as many as fit beside each other, at least for those that are missing; else none.

    The first trial spreads the pods, as single pods are spread. If that does not place all of them, the second trial
    packs the largest pods first. If neither places enough pods, the third trial packs the smallest pods first: a pod
    that takes a whole node must not keep smaller pods from making up the gang.
    """
    spread = _trial(room, members, missing, packed=False)
    if len(spread) == len(members):
        return spread
    ascending = sorted(members, key=lambda one: one.asks)
    largest_first = _trial(room, ascending[::-1], missing, packed=True)
    return max(spread, largest_first, key=len) or _trial(room, ascending, missing, packed=True)


def _trial(room: FreeRoom, members: list[PodInfo], missing: int, *, packed: bool) -> list[Place]:
    places: list[Place] = []
    hopeless: set[tuple[Asks, NodeTerms]] = set()
    spare = len(members) - missing
    for claim in members:
        shape = claim.asks, claim.terms
        node = "" if shape in hopeless else room.choose(claim, packed=packed)
        if node:
            room.take(claim.asks, node)
            places.append((claim, node))
            continue
        hopeless.add(shape)
        spare -= 1
        if spare < 0:
            break
    for claim, node in places:
        room.give(claim.asks, node)
    return places if spare >= 0 else []
