# SPDX-License-Identifier: Apache-2.0
"""The conditions of a TFJob, in the original's order: a list that is edited, not a table. Called by `status`.

`kubectl get` prints the last one, so the order is part of the contract; `put` is the original's algorithm. Each pass
makes the moves that lie between what is stored and what was concluded; a second pass over the same finds none left.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.kinds.tfjob import words
from trainwright.kinds.tfjob.types import WORKER, chief_of
from trainwright.kinds.tfjob.wire import JobCondition
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger, Outcome, Phase, Reason
from trainwright.model.rule import Result
from trainwright.model.status import Status
from trainwright.model.units import Time, rfc3339

Conditions = tuple[JobCondition, ...]
TRUE, FALSE = "True", "False"
_FINAL = ("Failed", "Succeeded")
#: These two exclude each other.
_EXCLUDES = {"Restarting": "Running", "Running": "Restarting"}


def put(conditions: Conditions, new: JobCondition) -> Conditions:
    """The list with this condition in it."""
    if holds(conditions, "Failed"):
        return conditions
    old = next((one for one in conditions if one.type == new.type), None)
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return conditions
    if old is not None and old.status == new.status:
        new = replace(new, last_transition_time=old.last_transition_time)
    kept = [one for one in conditions if one.type not in (new.type, _EXCLUDES.get(new.type))]
    if new.type in _FINAL:
        kept = [replace(one, status=FALSE) if one.type == "Running" else one for one in kept]
    return (*kept, new)


def holds(conditions: Iterable[JobCondition], kind: str) -> bool:
    """Whether that condition is there and true."""
    return any(one.type == kind and one.status == TRUE for one in conditions)


class _Hand:
    """Writes conditions of one pass."""

    def __init__(self, conditions: Conditions, now: Time) -> None:
        self.conditions = conditions
        self._now = rfc3339(now)

    def put(self, kind: str, message: str, status: str = TRUE, reason: str = "") -> None:
        new = JobCondition(kind, status, reason or f"TFJob{kind}", message, self._now, self._now)
        self.conditions = put(self.conditions, new)

    def holds(self, kind: str) -> bool:
        return holds(self.conditions, kind)


def conditions(known: Conditions, before: Ledger, job: Job, status: Status, now: Time) -> Conditions:
    """The conditions after this pass; `before` is the ledger that was stored with the known ones."""
    hand = _Hand(known, now)
    ledger = status.ledger
    if not any(one.type == "Created" for one in known):
        hand.put("Created", words.created(job))
    if ledger.outcome is not None:
        _end(hand, ledger.outcome, job, status)
    elif ledger.phase is Phase.SUSPENDED:
        _suspend(hand, job)
    else:
        if hand.holds("Suspended"):
            hand.put("Suspended", words.resumed(job), FALSE, "TFJobResumed")
        _live(hand, before, job, status)
    return hand.conditions


def _suspend(hand: _Hand, job: Job) -> None:
    if hand.holds("Running"):
        hand.put("Running", words.suspended(job), FALSE, "TFJobSuspended")
    hand.put("Suspended", words.suspended(job))


def _live(hand: _Hand, before: Ledger, job: Job, status: Status) -> None:
    """Restarting for as long as a failed pod is there, or waits to be made anew; then running once somebody trains."""
    role = words.restarted(before, status.ledger)
    if role:
        hand.put("Restarting", words.restarting(job, role))
    held = any(book.holds for book in status.ledger.roles)
    failing = held or any(words.counted(group) for group in status.roles)
    if not (role or (failing and hand.holds("Restarting"))) and _trains(job, status):
        hand.put("Running", words.running(job))


def _trains(job: Job, status: Status) -> bool:
    """A chief runs, or where there is none a worker."""
    leads = chief_of((role.name, role.replicas) for role in job.roles) or WORKER
    return any(group.running for group in status.roles if group.name == leads)


def _end(hand: _Hand, outcome: Outcome, job: Job, status: Status) -> None:
    if outcome.reason is Reason.EXTERNAL:
        return  # it ended under another controller, which has said so
    if outcome.result is Result.SUCCEEDED:
        hand.put("Succeeded", words.succeeded(job))
    else:
        invalid = outcome.reason is Reason.INVALID
        hand.put("Failed", words.failed(job, status, outcome), reason=words.INVALID if invalid else "")
