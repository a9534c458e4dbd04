# SPDX-License-Identifier: Apache-2.0
"""Which replicas have ended since a ledger was stored, for those who want to be told of each. `publisher` asks.

Nothing is decided by it: it reads two ledgers. Of failures, those that are kept word for word are told.
"""

from collections.abc import Iterator

from trainwright.model.cause import Why
from trainwright.model.event import PodExited
from trainwright.model.indexes import members
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger


def exits(job: Job, before: Ledger, after: Ledger, *, every: bool = True) -> tuple[PodExited, ...]:
    """One event for each pod that has exited, with its code; or only for each that has failed."""
    failures = [one for one in after.failures if one.cause.why is Why.EXIT and one not in before.failures]
    ends = [PodExited(one.pod, one.cause.code) for one in failures]
    return (*ends, *(PodExited(pod, 0) for pod in _succeeded(job, before, after) if every))


def _succeeded(job: Job, before: Ledger, after: Ledger) -> Iterator[str]:
    known = {book.name: book.succeeded for book in before.roles}
    for book in after.roles:
        if book.succeeded != known.get(book.name, ""):
            for index in sorted(members(book.succeeded) - members(known.get(book.name, ""))):
                yield job.key.replica_name(book.name, index)
