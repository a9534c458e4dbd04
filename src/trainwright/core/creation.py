# SPDX-License-Identifier: Apache-2.0
"""Pods whose containers cannot be made (no such image, a missing Secret), in roles that replace such pods.

For a while (`Creating.restart_period`) each is replaced when it has been stuck for so long (`duration_period`), since
another node may have better luck; after that its replica fails, or is only waited for. The while begins with the
replica's first such pod and goes on over its successors: the ledger knows since when. `observe` asks whether a
replica is given up, `settle` whether its pod is replaced, `lifecycle` keeps the ledger, `run` asks when to look again.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from trainwright.model.child import Pod
from trainwright.model.indexes import members, spell
from trainwright.model.job import Role
from trainwright.model.ledger import RoleLedger, Spell
from trainwright.model.site import Creating
from trainwright.model.status import Seen, State
from trainwright.model.units import Time, after, due

#: More groups of stuck replicas than this are merged: the durable state stays bounded.
MOST_SPELLS = 32


def stuck(role: Role, seen: Seen) -> bool:
    """Its containers cannot be made, and its role replaces such pods."""
    return role.recreates and seen.state is State.STARTING and seen.cause is not None


def given_up(book: RoleLedger, index: int, pod: Pod, creating: Creating, now: Time) -> bool:
    """Whether a stuck replica has failed."""
    return creating.fail and now >= _ends(book, index, pod, creating, now)


def overstayed(book: RoleLedger, seen: Seen, creating: Creating, now: Time) -> bool:
    """Whether a stuck pod is to be replaced."""
    time = _replaced_at(book, seen, creating, now)
    return time is not None and now >= time


def wakes(book: RoleLedger, seen: Seen, creating: Creating, now: Time) -> list[Time]:
    """When something becomes of a stuck pod by time alone."""
    if seen.pod is None:
        return []
    time = _replaced_at(book, seen, creating, now)
    times = [time] if time is not None else []
    return times + ([_ends(book, seen.index, seen.pod, creating, now)] if creating.fail else [])


def _begun(pod: Pod, now: Time) -> Time:
    return pod.status.start_time or pod.metadata.creation_timestamp or now


def _ends(book: RoleLedger, index: int, pod: Pod, creating: Creating, now: Time) -> Time:
    """When the while is over in which a replica's pods are replaced."""
    return due(since(book).get(index, _begun(pod, now)), creating.restart_period)


def _replaced_at(book: RoleLedger, seen: Seen, creating: Creating, now: Time) -> Time | None:
    if seen.pod is None:
        return None
    time = after(_begun(seen.pod, now), creating.duration_period)
    return time if time < _ends(book, seen.index, seen.pod, creating, now) else None


def since(book: RoleLedger) -> Mapping[int, Time]:
    """By replica: since when its containers have not been made."""
    return {index: one.since for one in book.stuck for index in members(one.indexes)}


def noted(book: RoleLedger, role: Role, replicas: Iterable[Seen], now: Time) -> RoleLedger:
    """The book with those that are stuck, and without those that have run or ended meanwhile."""
    known, kept = since(book), dict[int, Time]()
    for seen in replicas:
        if stuck(role, seen) and seen.pod is not None:
            kept[seen.index] = known.get(seen.index, _begun(seen.pod, now))
        elif seen.index in known and not seen.final and seen.state not in (State.RUNNING, State.SUCCEEDED):
            kept[seen.index] = known[seen.index]
    return book if kept == known else replace(book, stuck=_spells(kept))


def _spells(kept: Mapping[int, Time]) -> tuple[Spell, ...]:
    groups: dict[Time, set[int]] = {}
    for index, time in kept.items():
        groups.setdefault(time, set()).add(index)
    while len(groups) > MOST_SPELLS:
        # Those whose time is over last are given less of it: nothing waits longer than it should.
        second, last = sorted(groups)[-2:]
        groups[second] |= groups.pop(last)
    return tuple(Spell(time, spell(groups[time])) for time in sorted(groups))
