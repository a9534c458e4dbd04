# SPDX-License-Identifier: Apache-2.0
"""Edits of a role's entry in the ledger: attempts, holds (back-off), restart counts.

A replica's attempt is its role's epoch plus the retries of its index. Both numbers only grow, so a pod with a lower
attempt than its replica is stale, whatever its phase.

A restart is counted in `RoleLedger.restarts`, and charged to its budget, as soon as it is decided. The ledger is stored
before any pod is deleted, so no count is lost if our process is killed. The status and the command line show a restart
only when the new pod exists; for a restart of a whole role or job, when the first new pod exists. Until then
`RoleLedger.hidden` counts the restart too. If the job ends or is suspended before the new pod exists, the
restart stays hidden.
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
#: After a replica has run for this many seconds, its back-off starts again from the first delay.
BACKOFF_RESET_SECONDS = 600.0
#: Maximum number of holds per role. If there are more, the two earliest are merged, so that the ledger stays small.
MAX_HOLDS = 32
#: The ledger of a role counts a restart under this key if another role caused the restart and the cause uses no budget
#: of that other role. Such a restart must not use the budget of this role either.
FREE_CASCADE = "Cascade"


def find_entry(ledger: Ledger, name: str) -> RoleLedger:
    """Return the ledger's entry for a role, or an empty entry for a new role."""
    return next((role for role in ledger.roles if role.name == name), RoleLedger(name))


def current_attempt(entry: RoleLedger, index: int) -> int:
    """Return the current attempt of a replica."""
    return entry.epoch + parse_counts(entry.retries).get(index, 0) if entry.retries else entry.epoch


def next_epoch(entry: RoleLedger) -> RoleLedger:
    """Raise the attempt of every replica above all earlier attempts; forget results, back-offs, pending restarts."""
    highest = max(parse_counts(entry.retries).values(), default=0)
    epoch = entry.epoch + highest + 1
    return replace(entry, epoch=epoch, retries="", succeeded="", failed="", reached=0, holds=(), pending=())


def retry_replicas(entry: RoleLedger, indexes: Iterable[int]) -> RoleLedger:
    """Raise the attempt of these replicas and forget how they ended."""
    chosen = frozenset(indexes)
    tries = parse_counts(entry.retries)
    return replace(
        entry,
        retries=format_counts({**tries, **{index: tries.get(index, 0) + 1 for index in chosen}}),
        succeeded=format_indexes(parse_indexes(entry.succeeded) - chosen),
        failed=format_indexes(parse_indexes(entry.failed) - chosen),
    )


def raise_attempts(entry: RoleLedger, higher: Mapping[int, int]) -> RoleLedger:
    """Store these attempts, found on pods. They are higher than in the ledger, because a stored status was lost."""
    tries = {index: found - entry.epoch for index, found in higher.items()}
    return replace(entry, retries=format_counts({**parse_counts(entry.retries), **tries}))


def count_restarts(entry: RoleLedger, why: str, times: int = 1) -> RoleLedger:
    """Add `times` to the number of restarts that the ledger counts for this cause."""
    return replace(entry, restarts=entry.restarts | {str(why): entry.restarts.get(why, 0) + times})


def hold(entry: RoleLedger, indexes: Iterable[int], until: Time) -> RoleLedger:
    """Do not create these replicas before `until`."""
    chosen = frozenset(indexes)
    groups = {until: chosen}
    for old in entry.holds:
        groups[old.until] = groups.get(old.until, frozenset()) | (parse_indexes(old.indexes) - chosen)
    while len(groups) > MAX_HOLDS:
        earliest, second = sorted(groups)[:2]
        groups[second] |= groups.pop(earliest)
    return replace(
        entry, holds=tuple(Hold(when, format_indexes(groups[when])) for when in sorted(groups) if groups[when])
    )


def held_replicas(entry: RoleLedger, now: Time) -> dict[int, Time]:
    """Return the replicas that must wait, each with the end of its back-off."""
    return {index: one.until for one in entry.holds if _is_active(one, now) for index in parse_indexes(one.indexes)}


def drop_expired_holds(entry: RoleLedger, now: Time) -> RoleLedger:
    """Remove holds that are over."""
    if all(_is_active(one, now) for one in entry.holds):
        return entry
    return replace(entry, holds=tuple(one for one in entry.holds if _is_active(one, now)))


def backoff_seconds(tries: int) -> float:
    """Return the delay of a restart: the first delay, doubled for each earlier restart, up to the longest delay."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(tries, 16))


def _is_active(one: Hold, now: Time) -> bool:
    """Return whether a hold is in force. A hold that ends too far in the future is ignored: a wrong clock wrote it."""
    return now < one.until <= after(now, 2 * LONGEST_BACKOFF_SECONDS)


def forget_surplus(entry: RoleLedger, replicas: int) -> RoleLedger:
    """Forget the results of replicas that the role no longer has."""
    if entry.reached <= replicas and not (entry.succeeded or entry.failed):
        return entry
    return replace(
        entry,
        reached=min(entry.reached, replicas),
        succeeded=format_indexes(index for index in parse_indexes(entry.succeeded) if index < replicas),
        failed=format_indexes(index for index in parse_indexes(entry.failed) if index < replicas),
    )


def budget_used(entry: RoleLedger, free: frozenset[CauseKind]) -> int:
    """Return how many restarts count against the role's budget."""
    return sum(times for why, times in entry.restarts.items() if why not in free and why != FREE_CASCADE)


def decide_restarts(entry: RoleLedger, why: CauseKind, indexes: Iterable[int]) -> RoleLedger:
    """Count one restart for each of these replicas. A restart is pending until the replica's next pod exists."""
    chosen = frozenset(indexes)
    same = [one for one in entry.pending if one.cause is why and not one.together]
    waiting = chosen.union(*(parse_indexes(one.indexes) for one in same))
    others = tuple(one for one in entry.pending if one not in same)
    entry = count_hidden_restarts(entry, why, len(chosen))
    return replace(entry, pending=(*others, PendingRestart(why, format_indexes(waiting))))


def decide_role_restart(entry: RoleLedger, why: CauseKind, replicas: int) -> RoleLedger:
    """Count one restart of the whole role. It replaces all other pending restarts of the role."""
    pending = (PendingRestart(why, format_indexes(range(replicas)), together=True),)
    return replace(count_hidden_restarts(entry, why), pending=pending)


def count_hidden_restarts(entry: RoleLedger, why: str, times: int = 1) -> RoleLedger:
    """Count restarts that this role does not show: they have no new pod yet, or another role caused and shows them."""
    return replace(
        entry,
        restarts=entry.restarts | {str(why): entry.restarts.get(why, 0) + times},
        hidden=entry.hidden | {str(why): entry.hidden.get(why, 0) + times},
    )


def pending_replicas(entry: RoleLedger) -> frozenset[int]:
    """Return the replicas whose next pod completes a pending restart."""
    return frozenset[int]().union(*(parse_indexes(one.indexes) for one in entry.pending))


def note_happened(entry: RoleLedger, present: frozenset[int]) -> RoleLedger:
    """Complete pending restarts of replicas that now have a pod of their current attempt."""
    pending: list[PendingRestart] = []
    for one in entry.pending:
        waiting = parse_indexes(one.indexes)
        arrived = waiting & present
        if not arrived:
            pending.append(one)
            continue
        entry = _hide(entry, one.cause, -1 if one.together else -len(arrived))
        if not one.together and waiting - arrived:
            pending.append(replace(one, indexes=format_indexes(waiting - arrived)))
    return replace(entry, pending=tuple(pending))


def _hide(entry: RoleLedger, why: str, times: int) -> RoleLedger:
    hidden = entry.hidden | {str(why): entry.hidden.get(why, 0) + times}
    return replace(entry, hidden={cause: number for cause, number in hidden.items() if number > 0})


def charge_replicas(entry: RoleLedger, indexes: Iterable[int]) -> RoleLedger:
    """Charge one restart to each of these replicas. Only for roles in which each replica has its own budget."""
    charged = parse_row(entry.charged)
    return replace(entry, charged=format_row({**charged, **{index: charged.get(index, 0) + 1 for index in indexes}}))


def attribute_charges(role: Role, entry: RoleLedger) -> RoleLedger:
    """Charge every counted restart to a replica, if each replica of the role has its own budget.

    A ledger of an older version holds only the sum for the role. In index order, each replica is charged as many
    restarts as it has retries, until the sum is used up. The remaining restarts happened before a suspension, which
    resets the retries; they are divided evenly, and the lowest indexes get the remainder.
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
