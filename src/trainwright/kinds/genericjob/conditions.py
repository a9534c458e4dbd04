# SPDX-License-Identifier: Apache-2.0
"""The six conditions of a GenericJob, with the published reasons and messages. Called by `status`.

Kept in one fixed order and updated in place; the transition time moves only when the status does. `Completed` means
that the job is over, well or not: every real status of the original says so, against one line of its manual.
"""

from collections.abc import Iterator
from typing import NamedTuple

from trainwright.kinds.genericjob.wire import JobCondition
from trainwright.model.cause import Cause, CauseKind, brief
from trainwright.model.job import Body, Job
from trainwright.model.ledger import LONGEST_TEXT, Outcome, Phase, Reason
from trainwright.model.plan import ReplicaState, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time, rfc3339

NORMAL = "All pods are running normally."
ORDER = ("Initialized", "Running", "Failed", "Completed", "ReplicaFailure", "Paused")


class NewCondition(NamedTuple):
    """One condition, without its time."""

    type: str
    status: bool
    reason: str
    message: str


def conditions(before: tuple[JobCondition, ...] | None, job: Job, status: Status, now: Time) -> list[Body]:
    """All conditions that have something to say, each with the time since when it says so."""
    known = {condition.type: condition for condition in before or ()}
    said = {one.type: one for one in _said(job, status, known)}
    return [_body(said[name], known.get(name), now) for name in ORDER if name in said]


def _body(said: NewCondition, before: JobCondition | None, now: Time) -> Body:
    truth = "True" if said.status else "False"
    since = before.last_transition_time if before is not None and before.status == truth else ""
    return {
        "type": said.type,
        "status": truth,
        "reason": said.reason,
        "message": said.message,
        "lastTransitionTime": since or rfc3339(now),
    }


def _said(job: Job, status: Status, known: dict[str, JobCondition]) -> Iterator[NewCondition]:
    ledger = status.ledger
    yield _initialized(status, known)
    if ledger.outcome is not None:
        yield from _ended(ledger.outcome)
    elif ledger.phase is Phase.SUSPENDED:
        yield NewCondition("Running", False, "Paused", "The job is paused.")
    else:
        yield _running(status)
    yield _replica_failure(job, status, known)
    if ledger.phase is Phase.SUSPENDED:
        yield NewCondition("Paused", True, "Paused", "The job is paused.")
    elif ledger.resumes or "Paused" in known:
        yield NewCondition("Paused", False, "Resumed", "The job has been resumed.")


def _initialized(status: Status, known: dict[str, JobCondition]) -> NewCondition:
    """Once every child has been made it stays true, whatever becomes of them.

    A replica in back-off has been made: an attempt above the role's epoch follows a pod that was there.
    """
    before = known.get("Initialized")
    epochs = {book.name: book.epoch for book in status.ledger.roles}
    made = all(
        seen.pod is not None or seen.final or seen.attempt > epochs.get(role.name, 0)
        for role in status.roles
        for seen in role.replicas
    )
    if (before is not None and before.status == "True") or (made and status.roles):
        return NewCondition("Initialized", True, "-", "The job has been initialized successfully.")
    return NewCondition("Initialized", False, "Pending", "The job is being initialized.")


def _running(status: Status) -> NewCondition:
    phase = status.ledger.phase
    if phase is Phase.RUNNING:
        return NewCondition("Running", True, "-", NORMAL)
    if phase is Phase.RESTARTING:
        return NewCondition("Running", True, "-", "Some pods are being restarted.")
    if phase is Phase.RESUMING:
        return NewCondition("Running", False, "Resuming", "The job is being resumed.")
    return NewCondition("Running", False, "Pending", "The job is waiting for its replicas to run.")


def _ended(outcome: Outcome) -> Iterator[NewCondition]:
    done = outcome.result is Result.SUCCEEDED
    reason, message = ("Succeeded", "The job has finished successfully.") if done else ("Failed", _failure(outcome))
    yield NewCondition("Running", False, reason, message)
    yield NewCondition("Failed", not done, reason, message)
    yield NewCondition("Completed", True, reason, message)


def _failure(outcome: Outcome) -> str:
    """The published text names the rule; where the user wrote none, the replica that decided makes one."""
    if outcome.reason is Reason.RULE:
        failure = outcome.failure
        own = f'{{"{failure.role}":[{failure.index}]}}' if failure is not None else ""
        return brief(f"The job is failed with rule: {outcome.rule or own}", LONGEST_TEXT)
    return brief(f"The job is failed: {outcome.message}", LONGEST_TEXT)


def _replica_failure(job: Job, status: Status, known: dict[str, JobCondition]) -> NewCondition:
    outcome = status.ledger.outcome
    trouble = _trouble(job, status)
    if trouble:
        return NewCondition("ReplicaFailure", True, "ErrorInPod", trouble)
    before = known.get("ReplicaFailure")
    if outcome is not None and before is not None and before.status == "True":
        return NewCondition("ReplicaFailure", True, before.reason, before.message)
    if outcome is not None and outcome.result is Result.SUCCEEDED:
        return NewCondition("ReplicaFailure", False, "Finished", "The job has finished successfully")
    return NewCondition("ReplicaFailure", False, "-", NORMAL)


def _trouble(job: Job, status: Status) -> str:
    """The first replica with an error, in the published words."""
    if status.invalid:
        return brief(status.invalid, LONGEST_TEXT)
    epochs = {book.name: book.epoch for book in status.ledger.roles}
    latest = {
        (one.role, one.index): one.cause for one in status.ledger.failures if one.attempt >= epochs.get(one.role, 0)
    }
    for role in status.roles:
        for seen in role.replicas:
            if (cause := _error(seen, latest.get((role.name, seen.index)))) is not None:
                return brief(f"Pod[{job.key.replica_name(role.name, seen.index)}] {_words(cause)}", LONGEST_TEXT)
    refused = [f"{name} could not be created: {why}" for name, why in status.refused.items()]
    return brief(refused[0], LONGEST_TEXT) if refused else ""


def _error(seen: ReplicaState, latest: Cause | None) -> Cause | None:
    """What is wrong with a replica now: it failed, it cannot start, or it is being tried again."""
    cause = seen.cause
    if (
        seen.state in (State.FAILED, State.LOST, State.STARTING)
        and cause is not None
        and cause.why is not CauseKind.COMPLETED
    ):
        return cause
    return latest if seen.state in (State.FAILED, State.WAITING, State.STARTING) else None


def _words(cause: Cause) -> str:
    if cause.why is CauseKind.EXIT:
        return f"exited with error code {cause.code}"
    if cause.why is CauseKind.CREATE_ERROR:
        # Without the message: it counts retries, and each count would be another write.
        return f"cannot be created: {cause.reason}"
    return str(cause)
