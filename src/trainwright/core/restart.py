# SPDX-License-Identifier: Apache-2.0
"""Carrying restarts out: back-off → scope → new attempts. `reconcile` calls `again` with what `settle` handed over.

Only the ledger changes here. Raised attempts make the old pods stale, and `run` removes and replaces stale pods; since
the status is stored first, a kill at any point loses neither the count nor the restart.
"""

from msgspec.structs import replace

from trainwright.core import attempts, budget
from trainwright.core.budget import Retry
from trainwright.core.observe import View
from trainwright.core.settle import Settled, kept
from trainwright.model.cause import Why
from trainwright.model.job import Job, Scope
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.units import Time, after

FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
#: A replica that lasted this long had a fresh start: its next delay is the first one again.
FORGIVEN_AFTER = 600.0


def again(settled: Settled) -> View:
    """The pass after its restarts were decided: attempts raised, counted, held back, and the world seen anew."""
    view = settled.view
    if not settled.retries:
        return view
    ledger = kept(view.ledger, view.job, list(settled.retries), view.now)
    done: list[Retry] = []
    for retry in settled.retries:
        if not any(budget.covers(earlier, retry.role) for earlier in done):
            ledger = _raised(view.job, ledger, retry, view.now)
            done.append(retry)
    return view.remember(ledger).again()


def _raised(job: Job, ledger: Ledger, retry: Retry, now: Time) -> Ledger:
    """One restart: counted on the role that caused it, attempts raised over its whole scope."""
    until = after(now, delay(attempts.of_role(ledger, retry.role.name), retry, now))
    sizes = {role.name: role.replicas for role in job.roles}
    books = [_counted(job, _anew(book, retry, sizes[book.name], until), retry) for book in ledger.roles]
    return replace(ledger, roles=tuple(books))


def _anew(book: RoleLedger, retry: Retry, replicas: int, until: Time) -> RoleLedger:
    """The role's book, if the restart reaches it, with its replicas starting anew after the back-off."""
    scope, ours = retry.role.restart.scope, book.name == retry.role.name
    if scope is Scope.JOB or (scope is Scope.ROLE and ours):
        return attempts.hold(attempts.next_epoch(book), range(replicas), until)
    if ours:
        return attempts.hold(attempts.retry(book, [retry.seen.index]), [retry.seen.index], until)
    return book


def _counted(job: Job, book: RoleLedger, retry: Retry) -> RoleLedger:
    if book.name != retry.role.name:
        along = retry.role.restart.shared and retry.role.restart.scope is Scope.JOB
        return attempts.count(book, retry.cause.why) if along else book
    book = attempts.count(book, retry.cause.why)
    if not job.lifecycle.counts_in_place or retry.seen.pod is None:
        return book
    # The pod goes, and the kubelet's own count goes with it: keep it.
    return attempts.count(book, Why.IN_PLACE, budget.in_place(retry.seen.pod))


def delay(book: RoleLedger, retry: Retry, now: Time) -> float:
    """1 s, doubling to 60 s with each restart of the same thing; forgiven after it ran well for a while."""
    pod = retry.seen.pod
    born = pod.status.start_time if pod is not None else None
    if born is not None and now >= after(born, FORGIVEN_AFTER):
        return FIRST_DELAY
    tries = retry.seen.attempt - book.epoch if retry.role.restart.scope is Scope.POD else sum(book.restarts.values())
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(tries, 16))
