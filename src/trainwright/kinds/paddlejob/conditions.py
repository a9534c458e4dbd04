# SPDX-License-Identifier: Apache-2.0
"""The conditions of a PaddleJob, which the original has none of: what holds, since when, and why. Called by `status`.

Kept in one fixed order and updated in place; the transition time moves only when the status does.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET

from trainwright.kinds.paddlejob import words
from trainwright.kinds.paddlejob.wire import JobCondition
from trainwright.model.cause import Cause, Why, brief
from trainwright.model.job import Job
from trainwright.model.ledger import LONGEST_TEXT, Phase
from trainwright.model.rule import Result
from trainwright.model.status import Seen, State, Status
from trainwright.model.units import Time, rfc3339

RUNNING, COMPLETED, FAILED, SUSPENDED, TROUBLE = "Running", "Completed", "Failed", "Suspended", "ReplicaFailure"
ORDER = (RUNNING, COMPLETED, FAILED, SUSPENDED, TROUBLE)
_LIVE = {
    Phase.RUNNING: (True, "Running", "All pods run, or have done their work."),
    Phase.RESTARTING: (False, "Restarting", "Pods are being made anew."),
    Phase.SUSPENDED: (False, "Suspended", "The job is suspended."),
}
_WAITING = (False, "Pending", "Not all pods run yet.")


class Said(NamedTuple):
    """One condition, without its time."""

    type: str
    status: bool
    reason: str
    message: str


def conditions(
    before: tuple[JobCondition, ...] | None, job: Job, status: Status, now: Time
) -> tuple[JobCondition, ...]:
    """All conditions that have something to say, each with the time since when it says so."""
    known = {condition.type: condition for condition in before or ()}
    said = {one.type: one for one in _said(job, status, known)}
    return tuple(_dated(said[name], known.get(name), now) for name in ORDER if name in said)


def unapplied(before: tuple[JobCondition, ...] | None, status: Status, now: Time) -> tuple[JobCondition, ...]:
    """What was said, and that an edit cannot be applied."""
    known = {condition.type: condition for condition in before or ()}
    trouble = _dated(Said(TROUBLE, True, "Invalid", brief(status.invalid, LONGEST_TEXT)), known.get(TROUBLE), now)
    return (*(one for name, one in known.items() if name != TROUBLE), trouble)


def _dated(said: Said, before: JobCondition | None, now: Time) -> JobCondition:
    truth = "True" if said.status else "False"
    kept = before is not None and before.status == truth and before.last_transition_time is not UNSET
    since = before.last_transition_time if kept and before is not None else rfc3339(now)
    return JobCondition(said.type, truth, said.reason, said.message, since)


def _said(job: Job, status: Status, known: dict[str, JobCondition]) -> Iterator[Said]:
    ledger = status.ledger
    if ledger.outcome is None:
        yield Said(RUNNING, *_LIVE.get(ledger.phase, _WAITING))
    else:
        reason, message = words.ended(job, ledger.outcome)
        yield Said(RUNNING, False, reason, message)
        yield Said(COMPLETED if ledger.outcome.result is Result.SUCCEEDED else FAILED, True, reason, message)
    if ledger.phase is Phase.SUSPENDED:
        yield Said(SUSPENDED, True, "Suspended", "The job is suspended.")
    elif SUSPENDED in known or ledger.resumes:
        yield Said(SUSPENDED, False, "Resumed", "The job has been resumed.")
    yield from _trouble(job, status, known)


def _trouble(job: Job, status: Status, known: dict[str, JobCondition]) -> Iterator[Said]:
    """The first replica in trouble; that there is none any more is said only where there was one."""
    found = _first(job, status) if status.ledger.outcome is None else None
    if found is not None:
        yield Said(TROUBLE, True, found[0], brief(found[1], LONGEST_TEXT))
    elif TROUBLE in known:
        yield Said(TROUBLE, False, "Resolved", "No pod is in trouble.")


def _first(job: Job, status: Status) -> tuple[str, str] | None:
    for role in status.roles:
        for seen in role.replicas if not role.calm else ():
            if (cause := _error(seen)) is not None:
                # Without the message of what cannot be created: it counts retries, and each would be another write.
                text = f"cannot be created: {cause.reason}" if cause.why is Why.CREATE_ERROR else str(cause)
                return _word(cause), f"{job.key.replica_name(role.name, seen.index)}: {text}"
    refused = [f"{name} could not be created: {why}" for name, why in status.refused.items()]
    return ("FailedCreate", refused[0]) if refused else None


def _word(cause: Cause) -> str:
    return cause.reason if cause.why is Why.CREATE_ERROR else "PodFailed"


def _error(seen: Seen) -> Cause | None:
    """What is wrong with a replica now; being tried again is no trouble any more."""
    troubled = seen.state in (State.FAILED, State.LOST, State.STARTING)
    return seen.cause if troubled and seen.cause is not None and seen.cause.why is not Why.COMPLETED else None
