# SPDX-License-Identifier: Apache-2.0
"""Bookkeeping of a role's durable state: attempts, holds, what has ended. Pure edits of `model.ledger.RoleLedger`.

A replica's attempt is its role's epoch plus the retries of its index. Both only ever grow, so a pod that carries less
than its replica's attempt is stale whatever its phase. `observe` reads attempts; `restart` and `lifecycle` raise them.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from trainwright.model.cause import Why
from trainwright.model.indexes import counts, members, spell, spell_counts
from trainwright.model.ledger import Hold, Ledger, RoleLedger
from trainwright.model.units import Time, after

FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
#: More groups of replicas in back-off than this are merged: the durable state stays bounded.
MOST_HOLDS = 32


def of_role(ledger: Ledger, name: str) -> RoleLedger:
    """What is remembered of a role; a new role has nothing behind it."""
    return next((role for role in ledger.roles if role.name == name), RoleLedger(name))


def attempt(role: RoleLedger, index: int) -> int:
    """Which try at this replica is the current one."""
    return role.epoch + counts(role.retries).get(index, 0) if role.retries else role.epoch


def next_epoch(role: RoleLedger) -> RoleLedger:
    """Every replica of the role starts anew: above every attempt so far, with nothing finished or pending."""
    highest = max(counts(role.retries).values(), default=0)
    epoch = role.epoch + highest + 1
    return replace(role, epoch=epoch, retries="", succeeded="", failed="", reached=0, holds=(), pending=())


def retry(role: RoleLedger, indexes: Iterable[int]) -> RoleLedger:
    """These replicas start anew."""
    chosen = frozenset(indexes)
    tries = dict(counts(role.retries))
    for index in chosen:
        tries[index] = tries.get(index, 0) + 1
    return replace(
        role,
        retries=spell_counts(tries),
        succeeded=spell(members(role.succeeded) - chosen),
        failed=spell(members(role.failed) - chosen),
    )


def learn(role: RoleLedger, higher: Mapping[int, int]) -> RoleLedger:
    """Pods carry attempts above what is stored (a status was lost): believe the pods."""
    tries = dict(counts(role.retries)) | {index: found - role.epoch for index, found in higher.items()}
    return replace(role, retries=spell_counts(tries))


def count(role: RoleLedger, why: Why, times: int = 1) -> RoleLedger:
    """One more restart for this cause."""
    return replace(role, restarts=role.restarts | {why.value: role.restarts.get(why.value, 0) + times})


def hold(role: RoleLedger, indexes: Iterable[int], until: Time) -> RoleLedger:
    """Do not create these replicas before then."""
    chosen = frozenset(indexes)
    groups = {until: chosen}
    for old in role.holds:
        groups[old.until] = groups.get(old.until, frozenset()) | (members(old.indexes) - chosen)
    while len(groups) > MOST_HOLDS:
        earliest, second = sorted(groups)[:2]
        groups[second] |= groups.pop(earliest)
    return replace(role, holds=tuple(Hold(when, spell(groups[when])) for when in sorted(groups) if groups[when]))


def held(role: RoleLedger, now: Time) -> dict[int, Time]:
    """The replicas that must wait, and until when."""
    return {index: one.until for one in role.holds if _holds(one, now) for index in members(one.indexes)}


def release(role: RoleLedger, now: Time) -> RoleLedger:
    """Forget holds that are over."""
    if all(_holds(one, now) for one in role.holds):
        return role
    return replace(role, holds=tuple(one for one in role.holds if _holds(one, now)))


def _holds(one: Hold, now: Time) -> bool:
    """Not over yet; one that lies much further ahead than any back-off was written by a clock that was wrong."""
    return now < one.until <= after(now, 2 * LONGEST_DELAY)


def resize(role: RoleLedger, replicas: int) -> RoleLedger:
    """Forget what replicas that are no longer wanted had come to."""
    if role.reached <= replicas and not (role.succeeded or role.failed):
        return role
    return replace(
        role,
        reached=min(role.reached, replicas),
        succeeded=spell(index for index in members(role.succeeded) if index < replicas),
        failed=spell(index for index in members(role.failed) if index < replicas),
    )


def restarts(role: RoleLedger, free: frozenset[Why]) -> int:
    """How much of its budget the role has used."""
    return sum(times for why, times in role.restarts.items() if why not in free)
