# SPDX-License-Identifier: Apache-2.0
"""The conditions and events of the kinds of Kubeflow v1, with the original controllers' texts.

The texts are part of the contract, byte for byte, because programs search for them.

`kubectl get` prints the last condition, so the order of the list is part of the contract; `put` is the algorithm
of the original controller. Each pass appends what changed between the stored status and the result of the pass; a
second pass over the same input changes nothing.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.kinds.kubeflow.framework import Framework
from trainwright.kinds.kubeflow.policies import RETRYABLE
from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.kinds.kubeflow.wire import JobCondition, KubeflowStatus
from trainwright.kinds.rendering import FALSE, TRUE
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

Conditions = tuple[JobCondition, ...]
_FINAL = ("Failed", "Succeeded")
#: These two types of conditions exclude each other.
_EXCLUDES = {"Restarting": "Running", "Running": "Restarting"}
_PERMANENT_CODES = range(1, RETRYABLE[0][0])
_OTHER_SCHEDULER = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"


def conditions(framework: Framework, old: KubeflowStatus, job: Job, status: Status, now: Time) -> Conditions:
    """The conditions after this pass; `old` is the stored status."""
    known, ledger = old.conditions or (), status.ledger
    updated = _ConditionList(framework, known, now)
    if not any(one.type == "Created" for one in known):
        updated.put("Created", _text(framework, job, "Created"))
    if ledger.outcome is not None:
        _end(updated, ledger.outcome, job, status)
    elif ledger.phase is Phase.SUSPENDED:
        if updated.holds("Running"):
            updated.put("Running", _text(framework, job, "Suspended"), FALSE, f"{framework.name}Suspended")
        updated.put("Suspended", _text(framework, job, "Suspended"))
    else:
        if updated.holds("Suspended"):
            updated.put("Suspended", _text(framework, job, "Resumed"), FALSE, f"{framework.name}Resumed")
        _run(updated, old.trainwright, job, status)
    return updated.list


class _ConditionList:
    """The conditions while one pass changes them."""

    def __init__(self, framework: Framework, conditions: Conditions, now: Time) -> None:
        self.framework = framework
        self.list = conditions
        self._now = rfc3339(now)

    def put(self, kind: str, message: str, status: str = TRUE, reason: str = "") -> None:
        new = JobCondition(kind, status, reason or f"{self.framework.name}{kind}", message, self._now, self._now)
        self.list = put(self.list, new)

    def holds(self, kind: str) -> bool:
        return holds(self.list, kind)


def put(conditions: Conditions, new: JobCondition) -> Conditions:
    """The list with `new` at its end; unchanged if Failed is true, or if its type already has its status and reason."""
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
    """Whether that condition is present and true."""
    return any(one.type == kind and one.status == TRUE for one in conditions)


def _run(conditions: _ConditionList, before: Ledger, job: Job, status: Status) -> None:
    """Set Restarting if a failed pod is replaced, until no replica is failed. Else set Running if a leader runs."""
    framework = conditions.framework
    restarted = _restarted_type(before, status.ledger)
    if restarted:
        conditions.put("Restarting", _restarting_text(job, restarted))
    waiting = any(role_ledger.holds for role_ledger in status.ledger.roles)
    failing = waiting or any(failed_count(role) for role in status.roles)
    if not (restarted or (failing and conditions.holds("Restarting"))) and _leader_runs(
        conditions.framework, job, status
    ):
        conditions.put("Running", _text(framework, job, "Running"))


def _leader_runs(framework: Framework, job: Job, status: Status) -> bool:
    """Whether a leader runs or, in a job without a leader, a worker runs."""
    leading = framework.types.leader_of((role.name, role.replicas) for role in job.roles) or WORKER
    return any(role.running for role in status.roles if role.name == leading)


def _end(conditions: _ConditionList, outcome: Outcome, job: Job, status: Status) -> None:
    if outcome.reason is Reason.EXTERNAL:
        return  # the other controller that ended the job has written its conditions
    framework, invalid = conditions.framework, outcome.reason is Reason.INVALID
    if framework.runs_before_end and outcome.reason is Reason.RULE and not conditions.holds("Succeeded"):
        conditions.put("Running", _text(framework, job, "Running"))
    if outcome.result is Result.SUCCEEDED:
        conditions.put("Succeeded", _text(framework, job, "Succeeded"))
    else:
        message = _failed_text(framework, job, status, outcome)
        conditions.put("Failed", message, reason=invalid_reason(framework) if invalid else "")


def failed_count(role: RoleState) -> int:
    """The number of failed replicas of a type, including replicas whose replacement waits for its back-off."""
    return sum(
        replica.state in (State.FAILED, State.LOST)
        or (replica.old is not None and replica.old.status.phase == "Failed")
        for replica in role.replicas
    )


def _restarted_type(before: Ledger, after: Ledger) -> str:
    """The first type with a failed pod that is replaced in this pass; empty if there is no such type."""
    known = {role_ledger.name: role_ledger.restarts for role_ledger in before.roles}
    for role_ledger in after.roles:
        for why, times in role_ledger.restarts.items():
            failed = why not in (CauseKind.COMPLETED, CauseKind.IN_PLACE, CauseKind.DELETED)
            if failed and times > known.get(role_ledger.name, {}).get(why, 0):
                return role_ledger.name
    return ""


# -- texts and events ------------------------------------------------------------------------------------------------


def invalid_reason(framework: Framework) -> str:
    """The reason of the condition and event for an invalid job."""
    return f"{framework.name}FailedValidation"


def _text(framework: Framework, job: Job, what: str) -> str:
    """The text of a condition or event. Only some texts of the original controller contain the job's namespace."""
    match what:
        case "Running":
            return framework.texts_of(job).running.format(job.key)
        case "Succeeded":
            return framework.texts_of(job).succeeded.format(job.key)
    return f"{framework.name} {job.key.name} is {what.lower()}."


def _restarting_text(job: Job, role: str) -> str:
    return f"job {job.key.name} is restarting because {role} replica(s) failed."


def _failed_text(framework: Framework, job: Job, status: Status, outcome: Outcome) -> str:
    """The message of Failed: why the job failed."""
    name = job.key.name
    match outcome.reason:
        case Reason.BACKOFF_LIMIT:
            return f"Job {name} has failed because it has reached the specified backoff limit"
        case Reason.DEADLINE:
            return f"Job {name} has failed because it was active longer than specified deadline"
        case Reason.INVALID:
            return brief(f"{framework.name} failed validation because {outcome.message}", LONGEST_TEXT)
    failure = outcome.failure
    if failure is None:
        return brief(f"{framework.name} {job.key} has failed: {outcome.message}", LONGEST_TEXT)
    if _is_permanent(job, failure):
        return f'job "{name}" is failing because "{failure.role}" replica(s) failed.'
    count = max(1, sum(failed_count(role) for role in status.roles if role.name == failure.role))
    return framework.texts_of(job).failed.format(job.key, count, failure.role)


def _is_permanent(job: Job, failure: Failure) -> bool:
    """Whether the restart policy is ExitCode and the exit code forbids a restart."""
    role = next((one for one in job.roles if one.name == failure.role), None)
    by_code = role is not None and role.restart.codes is not None
    return by_code and failure.cause.why is CauseKind.EXIT and failure.cause.code in _PERMANENT_CODES


def event(framework: Framework, job: Job, status: Status, event: JobEvent) -> Emit:
    """An event with the original controller's reason, message and source."""
    emit = default_emit(event, framework.controller)
    match event:
        case JobStep(moment):
            message = _text(framework, job, moment)
        case Restarting():
            role = _restarted_type(job.ledger, status.ledger)
            # If `role` is empty, no pod has failed: a user deleted a pod, or a pod had completed.
            message = _restarting_text(job, role) if role else emit.message
        case JobEnded(outcome):
            message = (
                _failed_text(framework, job, status, outcome) if event.warning else _text(framework, job, "Succeeded")
            )
            if outcome.reason is Reason.INVALID:
                return replace(emit, message=message, reason=invalid_reason(framework))
        case ChildEvent():
            return with_child_kind(event, framework.controller)
        case PodExited():
            return replace(emit, message=f"Pod: {job.key.namespace}.{emit.message}")
        case PodWaiting():
            return replace(emit, message=f"Error pod {emit.message}")
        case Notice(EventReason.OTHER_SCHEDULER):
            return replace(emit, reason="SetPodTemplateSchedulerName", message=_OTHER_SCHEDULER)
        case Notice(EventReason.REMOVED):
            return replace(emit, reason=framework.removed_reason)
        case _:
            return emit
    return replace(emit, message=message, reason=f"{framework.name}{emit.event_reason}")
