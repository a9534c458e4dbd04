# SPDX-License-Identifier: Apache-2.0
"""What a TFJob says of itself, word for word as the original does: for its conditions and for its events.

Programs match on these texts; change none of them.

The conditions of a TFJob, in the original's order: a list that is edited, not a table. Called by `status`.

`kubectl get` prints the last one, so the order is part of the contract; `put` is the original's algorithm. Each pass
makes the moves that lie between what is stored and what was concluded; a second pass over the same finds none left.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.kinds.tfjob.dialect import CONTROLLER
from trainwright.kinds.tfjob.policies import RETRYABLE
from trainwright.kinds.tfjob.wire import WORKER, JobCondition, chief_of
from trainwright.model.cause import CauseKind, brief
from trainwright.model.event import (
    ChildEvent,
    Emit,
    EventReason,
    JobEnded,
    JobEvent,
    JobStep,
    Notice,
    PodExited,
    PodWaiting,
    Restarting,
    default_emit,
    with_child_kind,
)
from trainwright.model.job import Job
from trainwright.model.ledger import LONGEST_TEXT, Failure, Ledger, Outcome, Phase, Reason
from trainwright.model.plan import RoleState, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time, rfc3339

INVALID = "TFJobFailedValidation"
_PERMANENT = range(1, RETRYABLE[0][0])
_NOT_OURS = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"


def created_text(job: Job) -> str:
    """The job was accepted."""
    return f"TFJob {job.key.name} is created."


def running_text(job: Job) -> str:
    """Somebody trains."""
    return f"TFJob {job.key} is running."


def restarting_text(job: Job, role: str) -> str:
    """A pod failed and is made anew."""
    return f"job {job.key.name} is restarting because {role} replica(s) failed."


def suspended_text(job: Job) -> str:
    """Nothing runs, because somebody wants it so."""
    return f"TFJob {job.key.name} is suspended."


def resumed_text(job: Job) -> str:
    """It may go on."""
    return f"TFJob {job.key.name} is resumed."


def succeeded_text(job: Job) -> str:
    """The success rule is met."""
    return f"TFJob {job.key} successfully completed."


def failed_text(job: Job, status: Status, outcome: Outcome) -> str:
    """Why it failed."""
    name = job.key.name
    match outcome.reason:
        case Reason.BACKOFF_LIMIT:
            return f"Job {name} has failed because it has reached the specified backoff limit"
        case Reason.DEADLINE:
            return f"Job {name} has failed because it was active longer than specified deadline"
        case Reason.INVALID:
            return brief(f"TFJob failed validation because {outcome.message}", LONGEST_TEXT)
    failure = outcome.failure
    if failure is None:
        return brief(f"TFJob {job.key} has failed: {outcome.message}", LONGEST_TEXT)
    if _said_so_itself(job, failure):
        return f'job "{name}" is failing because "{failure.role}" replica(s) failed.'
    count = max(1, sum(counted_text(group) for group in status.roles if group.name == failure.role))
    return f"TFJob {job.key} has failed because {count} {failure.role} replica(s) failed."


def _said_so_itself(job: Job, failure: Failure) -> bool:
    """Its policy leaves the decision to the exit code, and the code says: for good."""
    role = next((one for one in job.roles if one.name == failure.role), None)
    asked = role is not None and role.restart.codes is not None
    return asked and failure.cause.why is CauseKind.EXIT and failure.cause.code in _PERMANENT


def counted_text(group: RoleState) -> int:
    """How many replicas of a type have failed: for good, or to be made anew once their back-off is over."""
    return sum(
        seen.state in (State.FAILED, State.LOST) or (seen.old is not None and seen.old.status.phase == "Failed")
        for seen in group.replicas
    )


def restarted_text(before: Ledger, after: Ledger) -> str:
    """The first type of which a pod failed and is made anew in this pass; empty if there is none."""
    known = {book.name: book.restarts for book in before.roles}
    for book in after.roles:
        for why, times in book.restarts.items():
            if why not in (CauseKind.COMPLETED, CauseKind.IN_PLACE, CauseKind.DELETED) and times > known.get(
                book.name, {}
            ).get(why, 0):
                return book.name
    return ""


def worded(job: Job, status: Status, event: JobEvent) -> Emit:
    """An event with the original's reason and message, under the original's name."""
    emit = default_emit(event, CONTROLLER)
    match event:
        case JobStep(moment):
            message = {
                EventReason.RUNNING: running_text,
                EventReason.SUSPENDED: suspended_text,
                EventReason.RESUMED: resumed_text,
            }[moment](job)
        case Restarting():
            role = restarted_text(job.ledger, status.ledger)
            # Without a role, nothing failed: somebody removed a pod, or it had completed.
            message = restarting_text(job, role) if role else emit.message
        case JobEnded(outcome):
            message = failed_text(job, status, outcome) if event.warning else succeeded_text(job)
            if outcome.reason is Reason.INVALID:
                return replace(emit, message=message, reason=INVALID)
        case ChildEvent():
            return with_child_kind(event, CONTROLLER)
        case PodExited():
            return replace(emit, message=f"Pod: {job.key.namespace}.{emit.message}")
        case PodWaiting():
            return replace(emit, message=f"Error pod {emit.message}")
        case Notice(EventReason.OTHER_SCHEDULER):
            return replace(emit, reason="SetPodTemplateSchedulerName", message=_NOT_OURS)
        case _:
            return emit
    return replace(emit, message=message, reason=f"TFJob{emit.event_reason}")


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


def updated_conditions(known: Conditions, before: Ledger, job: Job, status: Status, now: Time) -> Conditions:
    """The conditions after this pass; `before` is the ledger that was stored with the known ones."""
    hand = _Hand(known, now)
    ledger = status.ledger
    if not any(one.type == "Created" for one in known):
        hand.put("Created", created_text(job))
    if ledger.outcome is not None:
        _end(hand, ledger.outcome, job, status)
    elif ledger.phase is Phase.SUSPENDED:
        _suspend(hand, job)
    else:
        if hand.holds("Suspended"):
            hand.put("Suspended", resumed_text(job), FALSE, "TFJobResumed")
        _live(hand, before, job, status)
    return hand.conditions


def _suspend(hand: _Hand, job: Job) -> None:
    if hand.holds("Running"):
        hand.put("Running", suspended_text(job), FALSE, "TFJobSuspended")
    hand.put("Suspended", suspended_text(job))


def _live(hand: _Hand, before: Ledger, job: Job, status: Status) -> None:
    """Restarting for as long as a failed pod is there, or waits to be made anew; then running once somebody trains."""
    role = restarted_text(before, status.ledger)
    if role:
        hand.put("Restarting", restarting_text(job, role))
    held = any(book.holds for book in status.ledger.roles)
    failing = held or any(counted_text(group) for group in status.roles)
    if not (role or (failing and hand.holds("Restarting"))) and _trains(job, status):
        hand.put("Running", running_text(job))


def _trains(job: Job, status: Status) -> bool:
    """A chief runs, or where there is none a worker."""
    leads = chief_of((role.name, role.replicas) for role in job.roles) or WORKER
    return any(group.running for group in status.roles if group.name == leads)


def _end(hand: _Hand, outcome: Outcome, job: Job, status: Status) -> None:
    if outcome.reason is Reason.EXTERNAL:
        return  # it ended under another controller, which has said so
    if outcome.result is Result.SUCCEEDED:
        hand.put("Succeeded", succeeded_text(job))
    else:
        invalid = outcome.reason is Reason.INVALID
        hand.put("Failed", failed_text(job, status, outcome), reason=INVALID if invalid else "")
