# SPDX-License-Identifier: Apache-2.0
"""Bookkeeping of a role's durable state: attempts, holds, what has ended. Pure edits of `model.ledger.RoleLedger`.

A replica's attempt is its role's epoch plus the retries of its index. Both only ever grow, so a pod that carries less
than its replica's attempt is stale whatever its phase. `observe` reads attempts; `restart` and `lifecycle` raise them.

Counting restarts: what is decided, which replica it is charged to, and what people are shown of it.

A restart is counted in `RoleLedger.restarts`, and charged to its budget, when it is decided: that is stored before
anything is deleted, so a kill loses no count. People are shown a restart once it has happened: when the pod that
follows exists, or for a restart of a whole scope the first of its pods. Until then, and for good if no pod ever
follows because the job ended or was suspended first, the restart is in `RoleLedger.hidden`.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from trainwright.model.cause import CauseKind
from trainwright.model.job import Role
from trainwright.model.ledger import Hold, Ledger, PendingRestart, RoleLedger
from trainwright.model.units import (
    Time,
    after,
    format_counts,
    format_indexes,
    format_row,
    parse_counts,
    parse_indexes,
    parse_row,
)

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0
#: More groups of replicas in back-off than this are merged: the durable state stays bounded.
MAX_HOLDS = 32


def find_entry(ledger: Ledger, name: str) -> RoleLedger:
    """What is remembered of a role; a new role has nothing behind it."""
    return next((role for role in ledger.roles if role.name == name), RoleLedger(name))


def current_attempt(role: RoleLedger, index: int) -> int:
    """Which try at this replica is the current one."""
    return role.epoch + parse_counts(role.retries).get(index, 0) if role.retries else role.epoch


def next_epoch(role: RoleLedger) -> RoleLedger:
    """Every replica of the role starts anew: above every attempt so far, with nothing finished or pending."""
    highest = max(parse_counts(role.retries).values(), default=0)
    epoch = role.epoch + highest + 1
    return replace(role, epoch=epoch, retries="", succeeded="", failed="", reached=0, holds=(), pending=())


def retry_replicas(role: RoleLedger, indexes: Iterable[int]) -> RoleLedger:
    """These replicas start anew."""
    chosen = frozenset(indexes)
    tries = dict(parse_counts(role.retries))
    for index in chosen:
        tries[index] = tries.get(index, 0) + 1
    return replace(
        role,
        retries=format_counts(tries),
        succeeded=format_indexes(parse_indexes(role.succeeded) - chosen),
        failed=format_indexes(parse_indexes(role.failed) - chosen),
    )


def raise_attempts(role: RoleLedger, higher: Mapping[int, int]) -> RoleLedger:
    """Pods carry attempts above what is stored (a status was lost): believe the pods."""
    tries = dict(parse_counts(role.retries)) | {index: found - role.epoch for index, found in higher.items()}
    return replace(role, retries=format_counts(tries))


def count_restarts(role: RoleLedger, why: CauseKind, times: int = 1) -> RoleLedger:
    """One more restart for this cause."""
    return replace(role, restarts=role.restarts | {why.value: role.restarts.get(why.value, 0) + times})


def hold(role: RoleLedger, indexes: Iterable[int], until: Time) -> RoleLedger:
    """Do not create these replicas before then."""
    chosen = frozenset(indexes)
    groups = {until: chosen}
    for old in role.holds:
        groups[old.until] = groups.get(old.until, frozenset()) | (parse_indexes(old.indexes) - chosen)
    while len(groups) > MAX_HOLDS:
        earliest, second = sorted(groups)[:2]
        groups[second] |= groups.pop(earliest)
    return replace(
        role, holds=tuple(Hold(when, format_indexes(groups[when])) for when in sorted(groups) if groups[when])
    )


def held_replicas(role: RoleLedger, now: Time) -> dict[int, Time]:
    """The replicas that must wait, and until when."""
    return {index: one.until for one in role.holds if _is_active(one, now) for index in parse_indexes(one.indexes)}


def drop_expired_holds(role: RoleLedger, now: Time) -> RoleLedger:
    """Forget holds that are over."""
    if all(_is_active(one, now) for one in role.holds):
        return role
    return replace(role, holds=tuple(one for one in role.holds if _is_active(one, now)))


def _is_active(one: Hold, now: Time) -> bool:
    """Not over yet; one that lies much further ahead than any back-off was written by a clock that was wrong."""
    return now < one.until <= after(now, 2 * LONGEST_BACKOFF_SECONDS)


def forget_surplus(role: RoleLedger, replicas: int) -> RoleLedger:
    """Forget what replicas that are no longer wanted had come to."""
    if role.reached <= replicas and not (role.succeeded or role.failed):
        return role
    return replace(
        role,
        reached=min(role.reached, replicas),
        succeeded=format_indexes(index for index in parse_indexes(role.succeeded) if index < replicas),
        failed=format_indexes(index for index in parse_indexes(role.failed) if index < replicas),
    )


def budget_used(role: RoleLedger, free: frozenset[CauseKind]) -> int:
    """How much of its budget the role has used."""
    return sum(times for why, times in role.restarts.items() if why not in free)


def decide_restarts(entry: RoleLedger, why: CauseKind, indexes: Iterable[int]) -> RoleLedger:
    """Each of these replicas is restarted by itself."""
    chosen = frozenset(indexes)
    same = [one for one in entry.pending if one.cause is why and not one.together]
    waiting = chosen.union(*(parse_indexes(one.indexes) for one in same))
    others = tuple(one for one in entry.pending if one not in same)
    entry = _hide(count_restarts(entry, why, len(chosen)), why, len(chosen))
    return replace(entry, pending=(*others, PendingRestart(why, format_indexes(waiting))))


def decide_role_restart(entry: RoleLedger, why: CauseKind, replicas: int) -> RoleLedger:
    """One restart of the whole role. Whatever was pending before is part of it, and never happens by itself."""
    entry = _hide(count_restarts(entry, why), why, 1)
    return replace(entry, pending=(PendingRestart(why, format_indexes(range(replicas)), together=True),))


def count_shared_restart(entry: RoleLedger, why: CauseKind) -> RoleLedger:
    """The role is restarted by another, and charged as well; people are shown it once, on the role that caused it."""
    return _hide(count_restarts(entry, why), why, 1)


def awaited(entry: RoleLedger) -> frozenset[int]:
    """The replicas whose next pod makes a decided restart happen."""
    return frozenset[int]().union(*(parse_indexes(one.indexes) for one in entry.pending))


def note_happened(entry: RoleLedger, present: frozenset[int]) -> RoleLedger:
    """The book after pods of the current attempt were seen for these replicas."""
    pending: list[PendingRestart] = []
    for one in entry.pending:
        waiting = parse_indexes(one.indexes)
        arrived = waiting & present
        if arrived:
            entry = _hide(entry, one.cause, -1 if one.together else -len(arrived))
        if not arrived:
            pending.append(one)
        elif not one.together and waiting - arrived:
            pending.append(replace(one, indexes=format_indexes(waiting - arrived)))
    return replace(entry, pending=tuple(pending))


def _hide(entry: RoleLedger, why: CauseKind, times: int) -> RoleLedger:
    hidden = entry.hidden | {why.value: entry.hidden.get(why.value, 0) + times}
    return replace(entry, hidden={cause: number for cause, number in hidden.items() if number > 0})


def charge_replicas(entry: RoleLedger, indexes: Iterable[int]) -> RoleLedger:
    """Each of these replicas has used one restart of its own budget."""
    charged = dict(parse_row(entry.charged))
    for index in indexes:
        charged[index] = charged.get(index, 0) + 1
    return replace(entry, charged=format_row(charged))


def attribute_charges(role: Role, entry: RoleLedger) -> RoleLedger:
    """The book with every restart that counts charged to a replica, where each replica has its own budget.

    A ledger of a version that knew only the sum of the role says nothing of its replicas. Their retries tell most of
    it: in index order each replica is charged as many restarts as it has retries, until the sum is used up. What is
    left was made before a suspension, which forgets the retries: all replicas share it evenly, the lowest first.
    """
    charged = dict(parse_row(entry.charged))
    missing = budget_used(entry, role.uncounted | {CauseKind.IN_PLACE}) - sum(charged.values())
    if missing <= 0 or not role.replicas:
        return entry
    for index, tries in sorted(parse_counts(entry.retries).items()):
        share = min(max(tries - charged.get(index, 0), 0), missing)
        charged[index] = charged.get(index, 0) + share
        missing -= share
    each, more = divmod(missing, role.replicas)
    for index in range(role.replicas):
        charged[index] = charged.get(index, 0) + each + (index < more)
    return replace(entry, charged=format_row(charged))
