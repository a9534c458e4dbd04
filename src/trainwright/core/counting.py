# SPDX-License-Identifier: Apache-2.0
"""Counting restarts: what is decided, which replica it is charged to, and what people are shown of it.

A restart is counted in `RoleLedger.restarts`, and charged to its budget, when it is decided: that is stored before
anything is deleted, so a kill loses no count. People are shown a restart once it has happened: when the pod that
follows exists, or for a restart of a whole scope the first of its pods. Until then, and for good if no pod ever
follows because the job ended or was suspended first, the restart is in `RoleLedger.hidden`.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.core import attempts
from trainwright.model.cause import Why
from trainwright.model.indexes import counts, members, row, spell, spell_row
from trainwright.model.job import Role
from trainwright.model.ledger import PendingRestart, RoleLedger


def decided(book: RoleLedger, why: Why, indexes: Iterable[int]) -> RoleLedger:
    """Each of these replicas is restarted by itself."""
    chosen = frozenset(indexes)
    same = [one for one in book.pending if one.cause is why and not one.together]
    waiting = chosen.union(*(members(one.indexes) for one in same))
    others = tuple(one for one in book.pending if one not in same)
    book = _hide(attempts.count(book, why, len(chosen)), why, len(chosen))
    return replace(book, pending=(*others, PendingRestart(why, spell(waiting))))


def decided_together(book: RoleLedger, why: Why, replicas: int) -> RoleLedger:
    """One restart of the whole role. Whatever was pending before is part of it, and never happens by itself."""
    book = _hide(attempts.count(book, why), why, 1)
    return replace(book, pending=(PendingRestart(why, spell(range(replicas)), together=True),))


def shared(book: RoleLedger, why: Why) -> RoleLedger:
    """The role is restarted by another, and charged as well; people are shown it once, on the role that caused it."""
    return _hide(attempts.count(book, why), why, 1)


def awaited(book: RoleLedger) -> frozenset[int]:
    """The replicas whose next pod makes a decided restart happen."""
    return frozenset[int]().union(*(members(one.indexes) for one in book.pending))


def happened(book: RoleLedger, present: frozenset[int]) -> RoleLedger:
    """The book after pods of the current attempt were seen for these replicas."""
    pending: list[PendingRestart] = []
    for one in book.pending:
        waiting = members(one.indexes)
        arrived = waiting & present
        if arrived:
            book = _hide(book, one.cause, -1 if one.together else -len(arrived))
        if not arrived:
            pending.append(one)
        elif not one.together and waiting - arrived:
            pending.append(replace(one, indexes=spell(waiting - arrived)))
    return replace(book, pending=tuple(pending))


def _hide(book: RoleLedger, why: Why, times: int) -> RoleLedger:
    hidden = book.hidden | {why.value: book.hidden.get(why.value, 0) + times}
    return replace(book, hidden={cause: number for cause, number in hidden.items() if number > 0})


def charge(book: RoleLedger, indexes: Iterable[int]) -> RoleLedger:
    """Each of these replicas has used one restart of its own budget."""
    charged = dict(row(book.charged))
    for index in indexes:
        charged[index] = charged.get(index, 0) + 1
    return replace(book, charged=spell_row(charged))


def attributed(role: Role, book: RoleLedger) -> RoleLedger:
    """The book with every restart that counts charged to a replica, where each replica has its own budget.

    A ledger of a version that knew only the sum of the role says nothing of its replicas. Their retries tell most of
    it: in index order each replica is charged as many restarts as it has retries, until the sum is used up. What is
    left was made before a suspension, which forgets the retries: all replicas share it evenly, the lowest first.
    """
    charged = dict(row(book.charged))
    missing = attempts.restarts(book, role.uncounted | {Why.IN_PLACE}) - sum(charged.values())
    if missing <= 0 or not role.replicas:
        return book
    for index, tries in sorted(counts(book.retries).items()):
        share = min(max(tries - charged.get(index, 0), 0), missing)
        charged[index] = charged.get(index, 0) + share
        missing -= share
    each, more = divmod(missing, role.replicas)
    for index in range(role.replicas):
        charged[index] = charged.get(index, 0) + each + (index < more)
    return replace(book, charged=spell_row(charged))
