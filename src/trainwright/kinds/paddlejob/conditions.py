# SPDX-License-Identifier: Apache-2.0
"""What a PaddleJob says of itself: the texts of its conditions and its events. For `conditions` and the publisher.

The conditions of a PaddleJob, which the original has none of: what holds, since when, and why. Called by `status`.

Kept in one fixed order and updated in place; the transition time moves only when the status does.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from trainwright.kinds.paddlejob.dialect import CONTROLLER
from trainwright.kinds.paddlejob.wire import SERVICE, WORKER, JobCondition, elastic, intranet, mode
from trainwright.model.cause import Cause, CauseKind, brief
from trainwright.model.event import ChildEvent, Emit, EventReason, JobEnded, JobEvent, JobStep, Resized, default_emit
from trainwright.model.job import Job
from trainwright.model.ledger import LONGEST_TEXT, Outcome, Phase, Reason
from trainwright.model.plan import ReplicaState, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time, rfc3339

#: Why a job failed, in a word.
REASONS = {
    Reason.RULE: "PodFailed",
    Reason.UNREACHABLE: "PodFailed",
    Reason.BACKOFF_LIMIT: "BackoffLimitExceeded",
    Reason.DEADLINE: "DeadlineExceeded",
    Reason.START_DEADLINE: "DeadlineExceeded",
    Reason.EXTERNAL: "EndedElsewhere",
    Reason.INVALID: "Invalid",
}


def ended_text(job: Job, outcome: Outcome) -> tuple[str, str]:
    """Reason and message of an end."""
    if outcome.result is Result.SUCCEEDED:
        return "Completed", f"PaddleJob {job.key.name} is completed: {outcome.message}."
    failure = outcome.failure
    said = outcome.message if failure is None else f"{failure.pod}: {failure.cause}"
    if failure is not None and outcome.reason is Reason.BACKOFF_LIMIT:
        said = f"{outcome.message}; the last was of {said}"
    return REASONS[outcome.reason], brief(f"PaddleJob {job.key.name} has failed: {said}", LONGEST_TEXT)


def worded(job: Job, status: Status, event: JobEvent) -> Emit:
    """An event under the original's name, with its words where it has some."""
    emit = default_emit(event, CONTROLLER)
    match event:
        case JobEnded(outcome):
            word = "Failed" if event.warning else "Completed"
            return replace(emit, reason=word, message=brief(ended_text(job, outcome)[1]))
        case JobStep(EventReason.RUNNING) if shared := _shared(job, status):
            return replace(emit, message=brief(f"{emit.message} {shared}"), warning=True)
        case Resized() if any(role.size_key for role in job.roles):
            size = next(book.size for book in status.ledger.roles if book.name == WORKER)
            return replace(emit, message=f"scaled replicas to {size}")
        case ChildEvent(EventReason.REFUSED, kind, name, why):
            return replace(emit, reason="Create", message=brief(f"create failed {kind} {name}: {why}"))
        case ChildEvent(moment, kind, name):
            verb = "created" if moment is EventReason.CREATED else "deleted"
            return replace(emit, reason=verb.title(), message=f"{verb} {kind} {name}")
    return emit


def _shared(job: Job, status: Status) -> str:
    """Workers of which Paddle's launcher would take several for one, and train without a word with fewer."""
    spec = getattr(job.dialect, "spec", None)
    if spec is None or mode(spec) != "Collective" or intranet(spec) == SERVICE or elastic(spec):
        return ""
    group = next((role for role in status.roles if role.name == WORKER), None)
    hosts: dict[str, str] = {}
    for seen in group.replicas if group is not None else ():
        address = seen.pod.status.pod_ip if seen.pod is not None else ""
        first = hosts.setdefault(address, f"{WORKER}-{seen.index}") if address else ""
        if first not in ("", f"{WORKER}-{seen.index}"):
            return (
                f"But {first} and {WORKER}-{seen.index} share the address {address}: paddle.distributed.launch counts"
                " addresses, not workers, and trains with fewer than there are. Give each worker a node of its own"
                " (podAntiAffinity), or use `intranet: Service`."
            )
    return ""


RUNNING, COMPLETED, FAILED, SUSPENDED, TROUBLE = "Running", "Completed", "Failed", "Suspended", "ReplicaFailure"
ORDER = (RUNNING, COMPLETED, FAILED, SUSPENDED, TROUBLE)
_LIVE = {
    Phase.RUNNING: (True, "Running", "All pods run, or have done their work."),
    Phase.RESTARTING: (False, "Restarting", "Pods are being made anew."),
    Phase.SUSPENDED: (False, "Suspended", "The job is suspended."),
}
_WAITING = (False, "Pending", "Not all pods run yet.")


class PaddleCondition(NamedTuple):
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
    trouble = _dated(
        PaddleCondition(TROUBLE, True, "Invalid", brief(status.invalid, LONGEST_TEXT)), known.get(TROUBLE), now
    )
    return (*(one for name, one in known.items() if name != TROUBLE), trouble)


def _dated(said: PaddleCondition, before: JobCondition | None, now: Time) -> JobCondition:
    truth = "True" if said.status else "False"
    kept = before is not None and before.status == truth and before.last_transition_time is not UNSET
    since = before.last_transition_time if kept and before is not None else rfc3339(now)
    return JobCondition(said.type, truth, said.reason, said.message, since)


def _said(job: Job, status: Status, known: dict[str, JobCondition]) -> Iterator[PaddleCondition]:
    ledger = status.ledger
    if ledger.outcome is None:
        yield PaddleCondition(RUNNING, *_LIVE.get(ledger.phase, _WAITING))
    else:
        reason, message = ended_text(job, ledger.outcome)
        yield PaddleCondition(RUNNING, False, reason, message)
        yield PaddleCondition(COMPLETED if ledger.outcome.result is Result.SUCCEEDED else FAILED, True, reason, message)
    if ledger.phase is Phase.SUSPENDED:
        yield PaddleCondition(SUSPENDED, True, "Suspended", "The job is suspended.")
    elif SUSPENDED in known or ledger.resumes:
        yield PaddleCondition(SUSPENDED, False, "Resumed", "The job has been resumed.")
    yield from _trouble(job, status, known)


def _trouble(job: Job, status: Status, known: dict[str, JobCondition]) -> Iterator[PaddleCondition]:
    """The first replica in trouble; that there is none any more is said only where there was one."""
    found = _first(job, status) if status.ledger.outcome is None else None
    if found is not None:
        yield PaddleCondition(TROUBLE, True, found[0], brief(found[1], LONGEST_TEXT))
    elif TROUBLE in known:
        yield PaddleCondition(TROUBLE, False, "Resolved", "No pod is in trouble.")


def _first(job: Job, status: Status) -> tuple[str, str] | None:
    for role in status.roles:
        for seen in role.replicas if not role.all_running else ():
            if (cause := _error(seen)) is not None:
                # Without the message of what cannot be created: it counts retries, and each would be another write.
                text = f"cannot be created: {cause.reason}" if cause.why is CauseKind.CREATE_ERROR else str(cause)
                return _word(cause), f"{job.key.replica_name(role.name, seen.index)}: {text}"
    refused = [f"{name} could not be created: {why}" for name, why in status.refused.items()]
    return ("FailedCreate", refused[0]) if refused else None


def _word(cause: Cause) -> str:
    return cause.reason if cause.why is CauseKind.CREATE_ERROR else "PodFailed"


def _error(seen: ReplicaState) -> Cause | None:
    """What is wrong with a replica now; being tried again is no trouble any more."""
    troubled = seen.state in (State.FAILED, State.LOST, State.STARTING)
    return seen.cause if troubled and seen.cause is not None and seen.cause.why is not CauseKind.COMPLETED else None
