# SPDX-License-Identifier: Apache-2.0
"""The room that is left on the nodes while one pass of `placement` hands it out. Pure: nothing outlives the pass.

The node with the largest free share comes first; a pod that asks for nothing still counts as a hundredth of a node, so
that such pods spread as well.
"""

from collections.abc import Iterable, Mapping

from trainwright.local.scheduling.claims import Claim, Leased, Offer
from trainwright.local.scheduling.requests import PODS, Amounts
from trainwright.local.scheduling.terms import Terms, refusal

Asks = tuple[tuple[str, int], ...]
#: How much of a node a pod counts for besides what it asks for, per thousandth of a pod.
_A_POD = 0.01 / 1000


class Room:
    """What is free on each node, and which nodes are open to which terms."""

    def __init__(self, offers: Iterable[Offer], used: Mapping[str, Amounts], leased: Leased | None = None) -> None:
        self.offers = {offer.name: offer for offer in sorted(offers, key=lambda one: one.name)}
        #: What other runs hold.
        self.leased = leased or {}
        self.free: dict[str, Amounts] = {}
        self._busy: dict[str, float] = {}
        self._open: dict[Terms, tuple[str, ...]] = {}
        self._metered = {name: _metered(offer.total) for name, offer in self.offers.items()}
        for name, offer in self.offers.items():
            taken = used.get(name, {})
            self.free[name] = {one: amount - taken.get(one, 0) for one, amount in offer.total.items()}
            for one, devices in self.leased.get(name, {}).items():
                self.free[name][one] = self.free[name].get(one, 0) - devices.amount
            self._weigh(name)

    def open_to(self, terms: Terms) -> tuple[str, ...]:
        """The nodes that would have a pod of these terms, room or not."""
        names = self._open.get(terms)
        if names is None:
            names = () if terms.unsupported else tuple(self._accepting(terms))
            self._open[terms] = names
        return names

    def _accepting(self, terms: Terms) -> Iterable[str]:
        return (name for name, offer in self.offers.items() if not refusal(terms, offer.traits))

    def choose(self, claim: Claim, *, packed: bool = False) -> str:
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
