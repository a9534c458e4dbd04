# SPDX-License-Identifier: Apache-2.0
"""The conditions and events of a PaddleJob. The original controller has events, but no conditions.

The order of the conditions is fixed. The transition time of a condition changes only when its status changes.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from trainwright.kinds.paddlejob.dialect import CONTROLLER
from trainwright.kinds.paddlejob.wire import SERVICE, WORKER, JobCondition, PaddleJobStatus, intranet, is_elastic, mode
from trainwright.kinds.rendering import NewCondition, dated, in_order, replica_error
from trainwright.model.cause import CauseKind, brief
from trainwright.model.event import ChildEvent, Emit, EventReason, JobEnded, JobEvent, JobStep, Resized, default_emit
from trainwright.model.job import Job
from trainwright.model.ledger import LONGEST_TEXT, Outcome, Phase, Reason
from trainwright.model.plan import Status
from trainwright.model.rule import Result
from trainwright.model.units import Time

#: The reason of the condition for a failed job.
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
    """Reason and message of the condition for a job that has ended."""
    if outcome.result is Result.SUCCEEDED:
        return "Completed", f"PaddleJob {job.key.name} is completed: {outcome.message}."
    failure = outcome.failure
    why = outcome.message if failure is None else f"{failure.pod}: {failure.cause}"
    if failure is not None and outcome.reason is Reason.BACKOFF_LIMIT:
        why = f"{outcome.message}; the last failure is of {why}"
    return REASONS[outcome.reason], brief(f"PaddleJob {job.key.name} has failed: {why}", LONGEST_TEXT)


def event(job: Job, status: Status, event: JobEvent) -> Emit:
    """An event as the original controller sends it; events that only we have get our own reason and text."""
    emit = default_emit(event, CONTROLLER)
    match event:
        case JobEnded(outcome):
            reason = "Failed" if event.warning else "Completed"
            return replace(emit, reason=reason, message=brief(ended_text(job, outcome)[1]))
        case JobStep(EventReason.RUNNING) if shared := _shared_address_text(job, status):
            return replace(emit, message=brief(f"{emit.message} {shared}"), warning=True)
        case Resized() if any(role.size_key for role in job.roles):
            size = next(one.size for one in status.ledger.roles if one.name == WORKER)
            return replace(emit, message=f"scaled replicas to {size}")
        case ChildEvent(EventReason.REFUSED, kind, name, why):
            return replace(emit, reason="Create", message=brief(f"create failed {kind} {name}: {why}"))
        case ChildEvent(moment, kind, name):
            verb = "created" if moment is EventReason.CREATED else "deleted"
            return replace(emit, reason=verb.title(), message=f"{verb} {kind} {name}")
    return emit


def _shared_address_text(job: Job, status: Status) -> str:
    """A warning if workers share an address: Paddle's launcher would count them as one worker."""
    spec = getattr(job.dialect, "spec", None)
    if spec is None or mode(spec) != "Collective" or intranet(spec) == SERVICE or is_elastic(spec):
        return ""
    workers = next((role.replicas for role in status.roles if role.name == WORKER), ())
    by_address: dict[str, str] = {}
    for replica in workers:
        name = f"{WORKER}-{replica.index}"
        address = replica.pod.status.pod_ip if replica.pod is not None else ""
        first = by_address.setdefault(address, name) if address else name
        if first != name:
            return (
                f"But {first} and {name} share the address {address}: paddle.distributed.launch counts"
                " addresses, not workers, and trains with fewer than there are. Give each worker a node of its own"
                " (podAntiAffinity), or use `intranet: Service`."
            )
    return ""


RUNNING, COMPLETED, FAILED, SUSPENDED = "Running", "Completed", "Failed", "Suspended"
REPLICA_FAILURE = "ReplicaFailure"
ORDER = (RUNNING, COMPLETED, FAILED, SUSPENDED, REPLICA_FAILURE)
_LIVE = {
    Phase.RUNNING: (True, "Running", "All pods are running or have succeeded."),
    Phase.RESTARTING: (False, "Restarting", "Pods are being restarted."),
    Phase.SUSPENDED: (False, "Suspended", "The job is suspended."),
}
_WAITING = (False, "Pending", "Not all pods are running yet.")


def conditions(old: PaddleJobStatus, job: Job, status: Status, now: Time) -> tuple[JobCondition, ...]:
    """The conditions after this pass; `old` is the stored status."""
    known = {condition.type: condition for condition in old.conditions or ()}
    return in_order(ORDER, JobCondition, _current(job, status, known), known, now)


def unapplied(old: PaddleJobStatus, status: Status, now: Time) -> tuple[JobCondition, ...]:
    """The stored conditions, and a condition that says why an edit cannot be applied."""
    known = {condition.type: condition for condition in old.conditions or ()}
    new = NewCondition(REPLICA_FAILURE, True, "Invalid", brief(status.invalid, LONGEST_TEXT))
    kept = (one for name, one in known.items() if name != REPLICA_FAILURE)
    return (*kept, dated(JobCondition, new, known, now))


def _current(job: Job, status: Status, known: dict[str, JobCondition]) -> Iterator[NewCondition]:
    ledger = status.ledger
    if ledger.outcome is None:
        yield NewCondition(RUNNING, *_LIVE.get(ledger.phase, _WAITING))
    else:
        reason, message = ended_text(job, ledger.outcome)
        yield NewCondition(RUNNING, False, reason, message)
        yield NewCondition(COMPLETED if ledger.outcome.result is Result.SUCCEEDED else FAILED, True, reason, message)
    if ledger.phase is Phase.SUSPENDED:
        yield NewCondition(SUSPENDED, True, "Suspended", "The job is suspended.")
    elif SUSPENDED in known or ledger.resumes:
        yield NewCondition(SUSPENDED, False, "Resumed", "The job has been resumed.")
    yield from _replica_failure(job, status, known)


def _replica_failure(job: Job, status: Status, known: dict[str, JobCondition]) -> Iterator[NewCondition]:
    """The condition is true while a replica has an error, and false afterwards. Before the first error it is absent."""
    found = _first_error(job, status) if status.ledger.outcome is None else None
    if found is not None:
        yield NewCondition(REPLICA_FAILURE, True, found[0], brief(found[1], LONGEST_TEXT))
    elif REPLICA_FAILURE in known:
        yield NewCondition(REPLICA_FAILURE, False, "Resolved", "No pod has an error.")


def _first_error(job: Job, status: Status) -> tuple[str, str] | None:
    for role in status.roles:
        for replica in role.replicas if not role.all_running else ():
            if (cause := replica_error(replica)) is not None:
                reason, text = "PodFailed", str(cause)
                if cause.why is CauseKind.CREATE_ERROR:
                    # Leave out the message: it contains the number of retries, so every retry would write the status.
                    reason, text = cause.reason, f"cannot be created: {cause.reason}"
                return reason, f"{job.key.replica_name(role.name, replica.index)}: {text}"
    refused = [f"{name} could not be created: {why}" for name, why in status.refused.items()]
    return ("FailedCreate", refused[0]) if refused else None
