# SPDX-License-Identifier: Apache-2.0
"""What has ended, split in two: over for good, and to be tried again. Between `observe` and the rules.

What is over for good is remembered in the ledger, so a collected pod is not run again, and counted for the rules;
what will be tried again is handed to `restart`. A replica that may still be restarted has not failed.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from trainwright.core import attempts, budget, creation
from trainwright.core.budget import Retry
from trainwright.core.observe import View
from trainwright.core.rules import Tally
from trainwright.model.cause import Cause, Why
from trainwright.model.indexes import members, spell
from trainwright.model.job import Job, Role
from trainwright.model.ledger import KEPT_FAILURES, Failure, Ledger, RoleLedger
from trainwright.model.status import RoleSeen, Seen, State
from trainwright.model.units import Time, whole

_ENDED = (State.FAILED, State.LOST, State.SUCCEEDED)


class Settled(Struct, frozen=True, gc=False):
    """The pass with what is over remembered, the tallies for the rules, and the retries."""

    view: View
    tallies: dict[str, Tally]
    retries: tuple[Retry, ...] = ()
    #: The restart that the job's own budget does not allow; where kubelets have overspent it, the worst of theirs.
    refused: Retry | None = None
    overspent: bool = False


def settle(view: View) -> Settled:
    """Split what has ended."""
    if view.calm:
        overspent = budget.overspent(view)
        return Settled(view, {}, refused=budget.worst(view) if overspent else None, overspent=overspent)
    ended = [
        Retry(role, seen, cause)
        for role, group in zip(view.job.roles, view.roles, strict=True)
        if not group.calm
        for seen, cause in _ended(view, role, group)
    ]
    retries, finals = budget.split(view.ledger, ended)
    view = _remember(view, finals)
    allowed, refused = budget.within_backoff_limit(view, retries)
    overspent = refused is not None or budget.overspent(view)
    if overspent and refused is None:
        refused = budget.worst(view)
    return Settled(view, tallies(view.job), allowed, refused, overspent)


def _ended(view: View, role: Role, group: RoleSeen) -> Iterator[tuple[Seen, Cause]]:
    """Replicas that have ended and are not yet remembered, each with its cause."""
    for seen in group.replicas:
        if seen.state in _ENDED:
            if not seen.final and seen.cause is not None:
                yield seen, seen.cause
        elif role.recreates and seen.cause is not None and _overstayed(view, role, seen):
            yield seen, seen.cause
        elif _taken(view, role, seen):
            yield seen, Cause(Why.DELETED)


def _overstayed(view: View, role: Role, seen: Seen) -> bool:
    """Its containers cannot be made, and it is time for another try."""
    book = attempts.of_role(view.ledger, role.name)
    return creation.stuck(role, seen) and creation.overstayed(book, seen, view.site.creating, view.now)


def _taken(view: View, role: Role, seen: Seen) -> bool:
    """Somebody removed its pod, and that means more than making it again.

    Its scope restarts with it, since its peers hold its old address; or the kubelet's count goes with the pod, and must
    be kept.
    """
    if seen.state is State.STOPPING:
        return view.job.lifecycle.counts_in_place and seen.pod is not None and budget.in_place(seen.pod) > 0
    if seen.state is not State.WAITING or not role.restart.answers_removal:
        return False
    return seen.index < attempts.of_role(view.ledger, role.name).reached


def _remember(view: View, finals: list[Retry]) -> View:
    """Note what is over for good, on the ledger and on the replicas of this pass."""
    if not finals:
        return view
    done: dict[str, list[Retry]] = {}
    for final in finals:
        done.setdefault(final.role.name, []).append(final)
    books = tuple(_closed(book, done.get(book.name, [])) for book in view.ledger.roles)
    ledger = replace(kept(view.ledger, view.job, finals, view.now), roles=books)
    roles = tuple(_marked(group, {final.seen.index for final in done.get(group.name, [])}) for group in view.roles)
    return replace(view.remember(ledger), roles=roles)


def _closed(book: RoleLedger, finals: list[Retry]) -> RoleLedger:
    if not finals:
        return book
    succeeded = {final.seen.index for final in finals if final.cause.why is Why.COMPLETED}
    failed = {final.seen.index for final in finals} - succeeded
    return replace(
        book,
        succeeded=spell(members(book.succeeded) | succeeded),
        failed=spell(members(book.failed) | failed),
    )


def _marked(group: RoleSeen, done: set[int]) -> RoleSeen:
    if not done:
        return group
    return replace(
        group, replicas=tuple(replace(seen, final=True) if seen.index in done else seen for seen in group.replicas)
    )


def kept(ledger: Ledger, job: Job, ended: list[Retry], now: Time) -> Ledger:
    """The ledger with these failures among the latest ones."""
    new = [failure(job, retry, now) for retry in ended if retry.cause.why is not Why.COMPLETED]
    return replace(ledger, failures=(*ledger.failures, *new)[-KEPT_FAILURES:]) if new else ledger


def failure(job: Job, retry: Retry, now: Time) -> Failure:
    """One failure in full."""
    role, seen = retry.role.name, retry.seen
    return Failure(role, seen.index, job.key.replica_name(role, seen.index), seen.attempt, whole(now), retry.cause)


def tallies(job: Job) -> dict[str, Tally]:
    """What is over for good, by role."""
    books = {book.name: book for book in job.ledger.roles}
    return {role.name: _tally(role, books.get(role.name)) for role in job.roles}


def _tally(role: Role, book: RoleLedger | None) -> Tally:
    if book is None or not (book.succeeded or book.failed):
        return Tally(role.replicas)
    return Tally(role.replicas, members(book.succeeded), members(book.failed))
