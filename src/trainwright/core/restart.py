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
from trainwright.model.job import Scope
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.status import Seen
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
            ledger = _raised(view, ledger, retry)
            done.append(retry)
    return view.remember(ledger).again()


def _raised(view: View, ledger: Ledger, retry: Retry) -> Ledger:
    """One restart: counted on the role that caused it, attempts raised over its whole scope."""
    until = after(view.now, delay(attempts.of_role(ledger, retry.role.name), retry, view.now))
    sizes = {role.name: role.replicas for role in view.job.roles}
    books = [
        _counted(view, _anew(book, retry, sizes[book.name], until), retry) if _reaches(retry, book) else book
        for book in ledger.roles
    ]
    return replace(ledger, roles=tuple(books))


def _reaches(retry: Retry, book: RoleLedger) -> bool:
    return retry.scope is Scope.JOB or book.name == retry.role.name


def _anew(book: RoleLedger, retry: Retry, replicas: int, until: Time) -> RoleLedger:
    """The role's book with the replicas that the restart reaches starting anew after the back-off."""
    if retry.scope is Scope.POD:
        return attempts.hold(attempts.retry(book, [retry.seen.index]), [retry.seen.index], until)
    return attempts.hold(attempts.next_epoch(book), range(replicas), until)


def _counted(view: View, book: RoleLedger, retry: Retry) -> RoleLedger:
    if book.name == retry.role.name or retry.role.restart.shared:
        book = attempts.count(book, retry.cause.why)
    return kept_in_place(view, book, retry.seen if retry.scope is Scope.POD else None)


def kept_in_place(view: View, book: RoleLedger, one: Seen | None = None) -> RoleLedger:
    """Pods of the role go (one, or all of them), and the kubelet's counts go with them: keep those."""
    if not view.job.lifecycle.counts_in_place:
        return book
    group = next(group for group in view.roles if group.name == book.name)
    lost = sum(budget.in_place(seen.pod) for seen in ([one] if one else group.replicas) if seen.pod is not None)
    return attempts.count(book, Why.IN_PLACE, lost) if lost else book


def delay(book: RoleLedger, retry: Retry, now: Time) -> float:
    """1 s, doubling to 60 s with each restart of the same thing; forgiven after it ran well for a while."""
    if retry.cause.why is Why.DELETED and retry.scope is Scope.POD:
        # It did nothing wrong, and is made again as soon as its name is free.
        return 0.0
    pod = retry.seen.pod
    born = pod.status.start_time if pod is not None else None
    if born is not None and now >= after(born, FORGIVEN_AFTER):
        return FIRST_DELAY
    tries = retry.seen.attempt - book.epoch if retry.scope is Scope.POD else sum(book.restarts.values())
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(tries, 16))
