# SPDX-License-Identifier: Apache-2.0
"""The six conditions of a GenericJob, with the published reasons and messages.

The order of the conditions is fixed. The transition time of a condition changes only when its status changes.
`Completed` means that the job has ended, with success or failure. The original controller does the same, although its
manual says something else.
"""

from collections.abc import Iterator

from trainwright.kinds.genericjob.wire import GenericJobStatus, JobCondition
from trainwright.kinds.rendering import NewCondition, in_order, replica_error
from trainwright.model.cause import Cause, CauseKind, brief
from trainwright.model.job import Job
from trainwright.model.ledger import LONGEST_TEXT, Outcome, Phase, Reason
from trainwright.model.plan import ReplicaState, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time

NORMAL = "All pods are running normally."
_WAITING = NewCondition("Running", False, "Pending", "The job is waiting for its replicas to run.")
#: The condition Running of an unfinished job.
_RUNNING = {
    Phase.RUNNING: NewCondition("Running", True, "-", NORMAL),
    Phase.RESTARTING: NewCondition("Running", True, "-", "Some pods are being restarted."),
    Phase.RESUMING: NewCondition("Running", False, "Resuming", "The job is being resumed."),
    Phase.SUSPENDED: NewCondition("Running", False, "Paused", "The job is paused."),
}
ORDER = ("Initialized", "Running", "Failed", "Completed", "ReplicaFailure", "Paused")


def conditions(old: GenericJobStatus | None, job: Job, status: Status, now: Time) -> tuple[JobCondition, ...]:
    """The conditions after this pass; `old` is the stored status."""
    known = {condition.type: condition for condition in (old.conditions if old is not None else None) or ()}
    return in_order(ORDER, JobCondition, _current(job, status, known), known, now)


def _current(job: Job, status: Status, known: dict[str, JobCondition]) -> Iterator[NewCondition]:
    ledger = status.ledger
    yield _initialized(status, known)
    if ledger.outcome is not None:
        yield from _ended(ledger.outcome)
    else:
        yield _RUNNING.get(ledger.phase, _WAITING)
    yield _replica_failure(job, status, known)
    if ledger.phase is Phase.SUSPENDED:
        yield NewCondition("Paused", True, "Paused", "The job is paused.")
    elif ledger.resumes or "Paused" in known:
        yield NewCondition("Paused", False, "Resumed", "The job has been resumed.")


def _initialized(status: Status, known: dict[str, JobCondition]) -> NewCondition:
    """The condition is true once every pod has been created, and stays true afterwards.

    A replica in back-off has no pod now, but it had one: its attempt is larger than the epoch of its role, because
    the attempt is the epoch plus the retries of the replica.
    """
    before = known.get("Initialized")
    epochs = {role_ledger.name: role_ledger.epoch for role_ledger in status.ledger.roles}
    created = (
        replica.pod is not None or replica.final or replica.attempt > epochs.get(role.name, 0)
        for role in status.roles
        for replica in role.replicas
    )
    if (before is not None and before.status == "True") or (status.roles and all(created)):
        return NewCondition("Initialized", True, "-", "The job has been initialized successfully.")
    return NewCondition("Initialized", False, "Pending", "The job is being initialized.")


def _ended(outcome: Outcome) -> Iterator[NewCondition]:
    succeeded = outcome.result is Result.SUCCEEDED
    reason = "Succeeded" if succeeded else "Failed"
    message = "The job has finished successfully." if succeeded else _failure_text(outcome)
    yield NewCondition("Running", False, reason, message)
    yield NewCondition("Failed", not succeeded, reason, message)
    yield NewCondition("Completed", True, reason, message)


def _failure_text(outcome: Outcome) -> str:
    """The published text with the rule that ended the job; without user's rules, with a rule for the failed replica."""
    if outcome.reason is Reason.RULE:
        failure = outcome.failure
        default = f'{{"{failure.role}":[{failure.index}]}}' if failure is not None else ""
        return brief(f"The job is failed with rule: {outcome.rule or default}", LONGEST_TEXT)
    return brief(f"The job is failed: {outcome.message}", LONGEST_TEXT)


def _replica_failure(job: Job, status: Status, known: dict[str, JobCondition]) -> NewCondition:
    outcome = status.ledger.outcome
    error = _error_text(job, status)
    if error:
        return NewCondition("ReplicaFailure", True, "ErrorInPod", error)
    before = known.get("ReplicaFailure")
    if outcome is not None and before is not None and before.status == "True":
        return NewCondition("ReplicaFailure", True, before.reason, before.message)
    if outcome is not None and outcome.result is Result.SUCCEEDED:
        return NewCondition("ReplicaFailure", False, "Finished", "The job has finished successfully")
    return NewCondition("ReplicaFailure", False, "-", NORMAL)


def _error_text(job: Job, status: Status) -> str:
    """The published text about the first replica with an error."""
    if status.invalid:
        return brief(status.invalid, LONGEST_TEXT)
    epochs = {role_ledger.name: role_ledger.epoch for role_ledger in status.ledger.roles}
    latest = {
        (one.role, one.index): one.cause for one in status.ledger.failures if one.attempt >= epochs.get(one.role, 0)
    }
    for role in status.roles:
        for replica in role.replicas:
            if (cause := _error(replica, latest.get((role.name, replica.index)))) is not None:
                name = job.key.replica_name(role.name, replica.index)
                return brief(f"Pod[{name}] {_cause_text(cause)}", LONGEST_TEXT)
    refused = [f"{name} could not be created: {why}" for name, why in status.refused.items()]
    return brief(refused[0], LONGEST_TEXT) if refused else ""


def _error(replica: ReplicaState, latest: Cause | None) -> Cause | None:
    """Why a replica failed, cannot start or is being restarted; None if it has no error."""
    restarts = replica.state in (State.FAILED, State.WAITING, State.STARTING)
    return replica_error(replica) or (latest if restarts else None)


def _cause_text(cause: Cause) -> str:
    if cause.why is CauseKind.EXIT:
        return f"exited with error code {cause.code}"
    if cause.why is CauseKind.CREATE_ERROR:
        # The message is left out: it contains the number of retries, so every retry would cause a status write.
        return f"cannot be created: {cause.reason}"
    return str(cause)
