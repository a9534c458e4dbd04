# SPDX-License-Identifier: Apache-2.0
"""How many restarts of a job people are shown: one number for the table of `run`, its verdict, and `get`.

A restart counts once the pod that follows exists, and a restart inside a pod once the kubelet reports it. Decisions
that still wait for their back-off are not restarts yet (`core.counting`).
"""

from collections.abc import Iterable

from msgspec import Struct

from trainwright.core import attempts, counting
from trainwright.model.ledger import Ledger, RoleLedger


class PodCount(Struct, frozen=True, gc=False):
    """A pod that exists or existed: which replica it is, of which attempt, and how often its containers restarted."""

    role: str
    index: int
    attempt: int
    inside: int = 0


def shown(ledger: Ledger, pods: Iterable[PodCount] = ()) -> int:
    """Restarts that have happened, as far as the ledger and these pods tell."""
    by_role: dict[str, list[PodCount]] = {}
    for pod in pods:
        by_role.setdefault(pod.role, []).append(pod)
    return sum(_of_role(book, by_role.get(book.name, []), ledger) for book in ledger.roles)


def _of_role(book: RoleLedger, pods: list[PodCount], ledger: Ledger) -> int:
    current = [pod for pod in pods if pod.attempt >= attempts.attempt(book, pod.index)]
    book = counting.happened(book, frozenset(pod.index for pod in current)) if book.pending else book
    # The ledger keeps what was restarted inside a pod once that is replaced, and of all pods when the job ends.
    inside = sum(pod.inside for pod in current) if ledger.outcome is None else 0
    return book.made() + book.inside + inside
