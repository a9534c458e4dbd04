# SPDX-License-Identifier: Apache-2.0
"""The room that is left on the nodes while one pass of `placement` hands it out. Pure: nothing outlives the pass.

The node with the largest free share comes first; a pod that asks for nothing still counts as a hundredth of a node, so
that such pods spread as well.

Why a pod waits, in words that name what is missing. Pure; `placement` asks at the end of a pass.

They end up in the pod's PodScheduled condition and so in front of a person, who wants to know two things: is it worth
waiting, and if not, which number to change. `NEVER` opens the reasons of pods for which it is not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from trainwright.local.scheduling.affinity import NodeTerms, refusal
from trainwright.local.scheduling.cache import Leased, NodeInfo, PodInfo
from trainwright.node.devices.inventory import holders
from trainwright.node.requests import PODS, Amounts, free_of, needed, present, total

Asks = tuple[tuple[str, int], ...]
#: How much of a node a pod counts for besides what it asks for, per thousandth of a pod.
_A_POD = 0.01 / 1000


class FreeRoom:
    """What is free on each node, and which nodes are open to which terms."""

    def __init__(self, offers: Iterable[NodeInfo], used: Mapping[str, Amounts], leased: Leased | None = None) -> None:
        self.offers = {offer.name: offer for offer in sorted(offers, key=lambda one: one.name)}
        #: What other runs hold.
        self.leased = leased or {}
        self.free: dict[str, Amounts] = {}
        self._busy: dict[str, float] = {}
        self._open: dict[NodeTerms, tuple[str, ...]] = {}
        self._metered = {name: _metered(offer.total) for name, offer in self.offers.items()}
        for name, offer in self.offers.items():
            taken = used.get(name, {})
            self.free[name] = {one: amount - taken.get(one, 0) for one, amount in offer.total.items()}
            for one, devices in self.leased.get(name, {}).items():
                self.free[name][one] = self.free[name].get(one, 0) - devices.amount
            self._weigh(name)

    def open_to(self, terms: NodeTerms) -> tuple[str, ...]:
        """The nodes that would have a pod of these terms, room or not."""
        names = self._open.get(terms)
        if names is None:
            names = () if terms.unsupported else tuple(self._accepting(terms))
            self._open[terms] = names
        return names

    def _accepting(self, terms: NodeTerms) -> Iterable[str]:
        return (name for name, offer in self.offers.items() if not refusal(terms, offer.traits))

    def choose(self, claim: PodInfo, *, packed: bool = False) -> str:
        """The node with the largest free share of those where it fits, or, packed, with the smallest; empty: none."""
        best, least = "", float("inf")
        for name in self.open_to(claim.terms):
            busy = -self._busy[name] if packed else self._busy[name]
            if busy < least and self.fits(claim.asks, name):
                best, least = name, busy
        return best

    def fits(self, asks: Asks, name: str) -> bool:
        """Whether the node has all of it left."""
        free = self.free[name]
        for one, amount in asks:  # noqa: SIM110 - the innermost loop of a pass; a generator would double its cost
            if amount and free.get(one, 0) < amount:
                return False
        return True

    def take(self, asks: Asks, name: str) -> None:
        """It is no longer free."""
        free = self.free[name]
        for one, amount in asks:
            free[one] = free.get(one, 0) - amount
        self._weigh(name)

    def give(self, asks: Asks, name: str) -> None:
        """It is free again."""
        self.take(tuple([(one, -amount) for one, amount in asks]), name)

    def _weigh(self, name: str) -> None:
        free, total = self.free[name], self.offers[name].total
        metered = [1 - free[one] / total[one] for one in self._metered[name]]
        shares = sum(metered) / len(metered) if metered else 0.0
        self._busy[name] = shares + (total.get(PODS, 0) - free.get(PODS, 0)) * _A_POD


def _metered(total: Amounts) -> tuple[str, ...]:
    """The resources whose share counts: CPU, memory and devices, which have a domain in their name."""
    return tuple(name for name, amount in total.items() if amount and (name in ("cpu", "memory") or "/" in name))


NEVER = "can never fit: "


def single(claim: PodInfo, room: FreeRoom) -> str:
    """Why no node takes this pod now."""
    if not room.offers:
        return "0/0 nodes are available: no node has reported yet"
    if claim.terms.unsupported:
        return f"{claim.terms.unsupported} is not supported here"
    never = impossible(claim.asks, {name: offer.total for name, offer in room.offers.items()})
    if never:
        return NEVER + never
    return f"0/{len(room.offers)} nodes are available: {_now(claim, room)}"


def impossible(asks: Asks, nodes: Mapping[str, Amounts]) -> str:
    """What the nearest node has too little of even when it is empty; nothing if some node has it all."""
    lacking = {name: _lacking(asks, has) for name, has in nodes.items()}
    if not lacking or not all(lacking.values()):
        return ""
    name = min(lacking, key=lambda one: (_distance(lacking[one], nodes[one]), one))
    missing = "; ".join(_has(one, amount, nodes[name].get(one, 0)) for one, amount in lacking[name])
    return f"{'nearest is ' if len(nodes) > 1 else ''}{name}: {missing}"


def _now(claim: PodInfo, room: FreeRoom) -> str:
    """One node speaks for itself; of many, how many say what, and the nearest in full."""
    lacking = {name: _lacking(claim.asks, room.free[name]) for name in room.open_to(claim.terms)}
    closed = {name: refusal(claim.terms, offer.traits) for name, offer in room.offers.items() if name not in lacking}
    full = ""
    if lacking:
        name = min(lacking, key=lambda one: (_distance(lacking[one], room.free[one]), one))
        totals = room.offers[name].total
        parts = (
            _free(one, amount, room.free[name].get(one, 0), totals.get(one, 0)) + _holders(one, (name,), room)
            for one, amount in lacking[name]
        )
        full = f"{name}: {'; '.join(parts)}"
    if len(room.offers) == 1:
        return full or "".join(f"{name}: {why}" for name, why in closed.items())
    counts = Counter(closed.values())
    counts.update(f"too little {one}" for missing in lacking.values() for one, _ in missing)
    listed = ", ".join(f"{count} {why}" for why, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
    return f"{listed}; nearest is {full}" if full else listed


def gang(least: int, there: int, waiting: Sequence[PodInfo], room: FreeRoom) -> str:
    """Why the pods of a gang wait: the same for each of them."""
    head = f"gang needs {least} pod{'s' * (least != 1)} at once: "
    exist = there + len(waiting)
    if exist < least:
        return f"{head}{exist} of them exist{'s' * (exist == 1)}"
    if not room.offers:
        return f"{head}no node has reported yet"
    for claim in waiting:
        if impossible(claim.asks, {name: offer.total for name, offer in room.offers.items()}):
            return NEVER + head + single(claim, room).removeprefix(NEVER)
        if not room.open_to(claim.terms):
            return head + single(claim, room)
    return _together(head, waiting[: least - there], room)


def _together(head: str, waiting: Sequence[PodInfo], room: FreeRoom) -> str:
    """What they need in all; if that is there, it is only in the wrong pieces."""
    asks = tuple(sorted(total(dict(claim.asks) for claim in waiting).items()))
    has = total(offer.total for offer in room.offers.values())
    never = short(asks, has)
    if never:
        return NEVER + head + never
    usable = {name for claim in waiting for name in room.open_to(claim.terms)}
    free = _positive(room.free[name] for name in sorted(usable))
    parts = (
        f"{one}: needs {needed(one, n)} together, {free_of(one, free.get(one, 0), has[one])}"
        f"{_holders(one, sorted(usable), room)}"
        for one, n in _lacking(asks, free)
    )
    return head + ("; ".join(parts) or "there is room for all, but not in pieces that fit each of them")


def _holders(resource: str, nodes: Iterable[str], room: FreeRoom) -> str:
    leased = (room.leased.get(name, {}).get(resource) for name in nodes)
    return holders(one for one in leased if one is not None)


def short(asks: Asks, has: Mapping[str, int]) -> str:
    """What all nodes together have too little of; nothing if they have it all."""
    lacking = _lacking(asks, has)
    return "; ".join(
        f"{one}: needs {needed(one, amount)} together, all nodes have {present(one, has.get(one, 0))}"
        for one, amount in lacking
    )


def _positive(many: Iterable[Amounts]) -> Amounts:
    return total({name: max(0, amount) for name, amount in one.items()} for one in many)


def _lacking(asks: Asks, has: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(one, amount) for one, amount in asks if amount and has.get(one, 0) < amount]


def _distance(lacking: Iterable[tuple[str, int]], has: Mapping[str, int]) -> float:
    """How far a node is from having it: the share that is missing, over all that is."""
    return sum(1 + (amount - has.get(one, 0)) / amount for one, amount in lacking)


def _free(one: str, amount: int, free: int, in_all: int) -> str:
    if in_all < amount:
        return _has(one, amount, in_all)
    return f"{one}: needs {needed(one, amount)}, {free_of(one, max(0, free), in_all)}"


def _has(one: str, amount: int, in_all: int) -> str:
    has = f"has {present(one, in_all)}" if in_all else "has none"
    return f"{one}: needs {needed(one, amount)}, this node {has}"
