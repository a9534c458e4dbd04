# SPDX-License-Identifier: Apache-2.0
"""Carrying restarts out: back-off → scope → new attempts. `reconcile` calls `again` with what `settle` handed over.

Only the ledger changes here. Raised attempts make the old pods stale, and `create` replaces stale pods; since
the status is stored first, a kill at any point loses neither the count nor the restart.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.core import attempts, budget, quarantine
from trainwright.core.attempts import FIRST_DELAY, LONGEST_DELAY
from trainwright.core.budget import Retry
from trainwright.core.observe import Snapshot
from trainwright.core.verdict import SettledJob, kept
from trainwright.model.cause import CauseKind
from trainwright.model.job import RestartScope
from trainwright.model.ledger import RoleLedger
from trainwright.model.plan import ReplicaState
from trainwright.model.units import Time, after

#: A replica that lasted this long had a fresh start: its next delay is the first one again.
FORGIVEN_AFTER = 600.0


def again(settled: SettledJob) -> Snapshot:
    """The pass after its restarts were decided: attempts raised, counted, held back, and the world seen anew."""
    view = settled.view
    if not settled.retries:
        return view
    ledger = kept(view.ledger, view.job, list(settled.retries), view.now)
    ledger = quarantine.failed(ledger, [retry.cause for retry in settled.retries], view.now)
    single, wide = _sorted(settled.retries)
    books = {book.name: book for book in ledger.roles}
    for name, group in single.items():
        books[name] = _retried(view, books[name], group)
    counted = {(name, retry.seen.index) for name, group in single.items() for retry in group}
    for retry in wide:
        _restarted(view, books, retry, counted)
    return view.remember(replace(ledger, roles=tuple(books.values()))).again()


def _sorted(retries: tuple[Retry, ...]) -> tuple[dict[str, list[Retry]], list[Retry]]:
    """Those of single replicas, by role, and those of whole scopes; without what an earlier scope takes along."""
    single: dict[str, list[Retry]] = {}
    wide: list[Retry] = []
    along = budget.RestartCascade()
    for retry in retries:
        if retry.role not in along:
            if retry.scope is RestartScope.POD:
                single.setdefault(retry.role.name, []).append(retry)
            else:
                wide.append(retry)
            along.add(retry)
    return single, wide


def _retried(view: Snapshot, book: RoleLedger, group: list[Retry]) -> RoleLedger:
    """Single replicas of one role: all at once, for a thousand may fail together."""
    holds: dict[float, list[int]] = {}
    for retry in group:
        holds.setdefault(delay(book, retry, view.now), []).append(retry.seen.index)
    book = attempts.retry(book, [retry.seen.index for retry in group])
    for seconds, indexes in holds.items():
        book = attempts.hold(book, indexes, after(view.now, seconds))
    by_cause: dict[CauseKind, list[int]] = {}
    for retry in group:
        by_cause.setdefault(retry.counted, []).append(retry.seen.index)
    for why, indexes in by_cause.items():
        book = attempts.decided(book, why, indexes)
    book = _charged(book, group)
    return kept_in_place(view, book, [retry.seen for retry in group])


def _charged(book: RoleLedger, group: Iterable[Retry]) -> RoleLedger:
    """Restarts of one role, charged to the replicas that caused them, where each has its own budget."""
    charged = [retry.seen.index for retry in group if retry.role.restart.per_replica and not retry.free]
    return attempts.charge(book, charged) if charged else book


def _restarted(view: Snapshot, books: dict[str, RoleLedger], cause: Retry, counted: set[tuple[str, int]]) -> None:
    """A whole scope: counted on the role that caused it, or on all of them, where they share their budgets."""
    until = after(view.now, delay(books[cause.role.name], cause, view.now))
    for role, group in zip(view.job.roles, view.roles, strict=True):
        if cause.scope is RestartScope.JOB or role.name == cause.role.name:
            book = attempts.hold(attempts.next_epoch(books[role.name]), range(role.replicas), until)
            if role.name == cause.role.name:
                book = _charged(attempts.decided_together(book, cause.counted, role.replicas), [cause])
            elif cause.role.restart.shared:
                book = attempts.shared_charge(book, cause.counted)
            going = [seen for seen in group.replicas if (role.name, seen.index) not in counted]
            books[role.name] = kept_in_place(view, book, going)
            counted |= {(role.name, seen.index) for seen in going}


def kept_in_place(view: Snapshot, book: RoleLedger, going: Iterable[ReplicaState]) -> RoleLedger:
    """Pods of the role go, and the kubelet's counts go with them: keep those, for the budget or only for people."""
    lost = budget.inside(going)
    if not lost:
        return book
    if view.job.lifecycle.counts_in_place:
        return attempts.count(book, CauseKind.IN_PLACE, lost)
    return replace(book, inside=book.inside + lost)


def delay(book: RoleLedger, retry: Retry, now: Time) -> float:
    """1 s, doubling to 60 s with each restart of the same thing; forgiven after it ran well for a while."""
    if retry.cause.why is CauseKind.DELETED and retry.scope is RestartScope.POD:
        # It did nothing wrong, and is made again as soon as its name is free.
        return 0.0
    pod = retry.seen.pod
    born = pod.status.start_time if pod is not None else None
    if born is not None and now >= after(born, FORGIVEN_AFTER):
        return FIRST_DELAY
    tries = retry.seen.attempt - book.epoch if retry.scope is RestartScope.POD else sum(book.restarts.values())
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(tries, 16))
