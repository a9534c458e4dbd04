# SPDX-License-Identifier: Apache-2.0
"""What a TFJob says of itself, word for word as the original does: for its conditions and for its events.

Programs match on these texts; change none of them.
"""

from msgspec.structs import replace

from trainwright.kinds.tfjob.dialect import CONTROLLER
from trainwright.kinds.tfjob.policies import RETRYABLE
from trainwright.model.cause import Why, brief
from trainwright.model.event import (
    ChildEvent,
    Emit,
    JobEnded,
    JobEvent,
    JobStep,
    Moment,
    Notice,
    PodExited,
    PodWaiting,
    Restarting,
    plain,
    with_child_kind,
)
from trainwright.model.job import Job
from trainwright.model.ledger import LONGEST_TEXT, Failure, Ledger, Outcome, Reason
from trainwright.model.status import RoleSeen, State, Status

INVALID = "TFJobFailedValidation"
_PERMANENT = range(1, RETRYABLE[0][0])
_NOT_OURS = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"


def created(job: Job) -> str:
    """The job was accepted."""
    return f"TFJob {job.key.name} is created."


def running(job: Job) -> str:
    """Somebody trains."""
    return f"TFJob {job.key} is running."


def restarting(job: Job, role: str) -> str:
    """A pod failed and is made anew."""
    return f"job {job.key.name} is restarting because {role} replica(s) failed."


def suspended(job: Job) -> str:
    """Nothing runs, because somebody wants it so."""
    return f"TFJob {job.key.name} is suspended."


def resumed(job: Job) -> str:
    """It may go on."""
    return f"TFJob {job.key.name} is resumed."


def succeeded(job: Job) -> str:
    """The success rule is met."""
    return f"TFJob {job.key} successfully completed."


def failed(job: Job, status: Status, outcome: Outcome) -> str:
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
    count = max(1, sum(counted(group) for group in status.roles if group.name == failure.role))
    return f"TFJob {job.key} has failed because {count} {failure.role} replica(s) failed."


def _said_so_itself(job: Job, failure: Failure) -> bool:
    """Its policy leaves the decision to the exit code, and the code says: for good."""
    role = next((one for one in job.roles if one.name == failure.role), None)
    asked = role is not None and role.restart.codes is not None
    return asked and failure.cause.why is Why.EXIT and failure.cause.code in _PERMANENT


def counted(group: RoleSeen) -> int:
    """How many replicas of a type have failed: for good, or to be made anew once their back-off is over."""
    return sum(
        seen.state in (State.FAILED, State.LOST) or (seen.old is not None and seen.old.status.phase == "Failed")
        for seen in group.replicas
    )


def restarted(before: Ledger, after: Ledger) -> str:
    """The first type of which a pod failed and is made anew in this pass; empty if there is none."""
    known = {book.name: book.restarts for book in before.roles}
    for book in after.roles:
        for why, times in book.restarts.items():
            if why not in (Why.COMPLETED, Why.IN_PLACE, Why.DELETED) and times > known.get(book.name, {}).get(why, 0):
                return book.name
    return ""


def worded(job: Job, status: Status, event: JobEvent) -> Emit:
    """An event with the original's reason and message, under the original's name."""
    emit = plain(event, CONTROLLER)
    match event:
        case JobStep(moment):
            message = {Moment.RUNNING: running, Moment.SUSPENDED: suspended, Moment.RESUMED: resumed}[moment](job)
        case Restarting():
            role = restarted(job.ledger, status.ledger)
            # Without a role, nothing failed: somebody removed a pod, or it had completed.
            message = restarting(job, role) if role else emit.message
        case JobEnded(outcome):
            message = failed(job, status, outcome) if event.warning else succeeded(job)
            if outcome.reason is Reason.INVALID:
                return replace(emit, message=message, reason=INVALID)
        case ChildEvent():
            return with_child_kind(event, CONTROLLER)
        case PodExited():
            return replace(emit, message=f"Pod: {job.key.namespace}.{emit.message}")
        case PodWaiting():
            return replace(emit, message=f"Error pod {emit.message}")
        case Notice(Moment.OTHER_SCHEDULER):
            return replace(emit, reason="SetPodTemplateSchedulerName", message=_NOT_OURS)
        case _:
            return emit
    return replace(emit, message=message, reason=f"TFJob{emit.moment}")
