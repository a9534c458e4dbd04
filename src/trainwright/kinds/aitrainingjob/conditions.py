# SPDX-License-Identifier: Apache-2.0
"""The conditions and events of an AITrainingJob, with the texts of the original controller.

The conditions are a history: only the last condition is true, and its type is the phase of the job. Each pass appends
what changed between the stored status and the result of the pass; a second pass over the same input changes nothing.
The messages say why pods failed, on which nodes, and why pods cannot be created or scheduled.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.aitrainingjob.wire import MAX_CONDITIONS, AITrainingJobStatus, TrainingJobCondition
from trainwright.kinds.rendering import FALSE, TRUE, UNAPPLIED
from trainwright.model.cause import Cause, CauseKind, brief
from trainwright.model.event import (
    ChildEvent,
    Emit,
    EventReason,
    JobEnded,
    JobEvent,
    JobStep,
    Resized,
    Restarting,
    default_emit,
    with_child_kind,
)
from trainwright.model.job import CleanPods, Job, RestartScope, Role
from trainwright.model.ledger import LONGEST_TEXT, Failure, Ledger, Outcome, Phase, Reason, RoleLedger
from trainwright.model.plan import ReplicaState, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time, rfc3339

Conditions = tuple[TrainingJobCondition, ...]
FINAL_PHASES = frozenset({"Succeed", "Failed", "Timeout", "Preempted", "NodeFail"})
#: The source of events.
SOURCE = "TrainingJobOperator"
RUNNING = "all pods are running"
PENDING = "all pods are waiting for scheduling"
CREATING = "creating containers"
#: Maximum number of waiting pods that a message lists by name; the other pods are only counted.
_MAX_WAITING_NAMED = 3
_NODE_CAUSES = (CauseKind.NODE_LOST, CauseKind.DEVICE)


class ConditionHistory(Struct):
    """The history while one pass changes it. `restarting` is the replica type whose old pods still terminate."""

    conditions: Conditions
    now: Time
    restarting: str = ""

    @property
    def phase(self) -> str:
        """The current phase."""
        return self.conditions[-1].type if self.conditions else ""

    def put(self, kind: str, message: str) -> None:
        """Append a phase, or change the message of the current phase."""
        self.conditions = put(self.conditions, kind, message, self.now)[-MAX_CONDITIONS:]


def put(conditions: Conditions, kind: str, message: str, now: Time) -> Conditions:
    """The history with this phase at its end. If the last phase already is this phase, only its message changes."""
    last = conditions[-1] if conditions else None
    when, reason = rfc3339(now), f"TrainingJob{kind}"
    if last is None or (last.type, last.status, last.reason) != (kind, TRUE, reason):
        new = TrainingJobCondition(kind, TRUE, reason, message, when, when)
        return (*(one if one.status == FALSE else replace(one, status=FALSE) for one in conditions), new)
    if last.message == message:
        return conditions
    return (*conditions[:-1], replace(last, message=message, last_probe_time=when))


def conditions(old: AITrainingJobStatus, job: Job, status: Status, now: Time) -> ConditionHistory:
    """The history after this pass; `old` is the stored status."""
    known = tuple(one for one in old.conditions or () if one.type != UNAPPLIED)
    # A restart that another controller began is ignored.
    restarting = old.restart_replica_name if old.trainwright.phase is not Phase.NEW else ""
    history = ConditionHistory(known, now, restarting)
    outcome = status.ledger.outcome
    if outcome is not None:
        _end(history, outcome, job, status)
    elif status.ledger.phase is Phase.SUSPENDED:
        history.restarting = ""
        history.put("Suspended", f"job {job.key.name} is suspended")
    else:
        _run(history, old, job, status)
    return history


def _end(history: ConditionHistory, outcome: Outcome, job: Job, status: Status) -> None:
    """Set Terminating until the pods that must be removed are gone; then set the final phase."""
    history.restarting = ""
    message, phase = _ended_text(job, status.ledger, outcome), _final_phase(outcome)
    if outcome.reason is Reason.INVALID:
        history.put(phase, message)
    elif status.cleaning:
        history.put("Terminating", _joined(message, "deleting pods"))
    else:
        history.put(phase, _joined(message, "kept pods" if _keeps_pods(job, outcome) else "deleted pods"))


def _run(history: ConditionHistory, old: AITrainingJobStatus, job: Job, status: Status) -> None:
    ledger, before = status.ledger, old.trainwright
    name, message = _restart_text(before, ledger)
    if name:
        history.restarting = name
        history.put("Terminating", message)
        return
    runs = ledger.phase is Phase.RUNNING
    if history.restarting and (runs or all(replica.old is None for replica in _replicas(status))):
        history.put("Restarting", _restarting_text(job, history.restarting))
        history.restarting = ""
    elif resized := _resized_text(before, ledger):
        # The resize restarts the pods anyway, so an earlier restart that is not complete is not reported any more.
        history.restarting = ""
        history.put("Restarting", resized)
    if runs:
        history.put("Running", RUNNING)
    elif not history.restarting:
        _wait(history, status)


def _wait(history: ConditionHistory, status: Status) -> None:
    """Set the phase of a job in which not every pod runs: pods are being scheduled, created or restarted."""
    why, replicas = _waiting_text(status), [*_replicas(status)]
    if history.phase == "Restarting":
        # Keep the beginning of the message, which says what restarts, and replace the reason for waiting.
        start = history.conditions[-1].message.split("; pod ")[0]
        history.put("Restarting", _joined(start, why))
    elif not all(one.final or (one.pod is not None and one.pod.spec.node_name) for one in replicas):
        history.put("Pending", _joined(PENDING, why))
    elif not history.phase or any(
        one.pod is not None and one.pod.status.phase == "Pending" and not one.final for one in replicas
    ):
        history.put("Creating", why or CREATING)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _replicas(status: Status) -> Iterator[ReplicaState]:
    """The replicas of every role in which not all replicas run."""
    return (replica for role in status.roles if not role.all_running for replica in role.replicas)


# -- the end of a job ------------------------------------------------------------------------------------------------


def _final_phase(outcome: Outcome) -> str:
    """The phase of a job that has ended."""
    if outcome.reason is Reason.EXTERNAL and outcome.word:
        return outcome.word
    if outcome.result is Result.SUCCEEDED:
        return "Succeed"
    if outcome.reason in (Reason.DEADLINE, Reason.START_DEADLINE):
        return "Timeout"
    return "NodeFail" if outcome.failure is not None and outcome.failure.cause.why in _NODE_CAUSES else "Failed"


def _ended_text(job: Job, ledger: Ledger, outcome: Outcome) -> str:
    """Why the job ended."""
    name = job.key.name
    if outcome.reason is Reason.RULE and outcome.result is Result.SUCCEEDED:
        return f"job {name} completed"
    if outcome.reason is Reason.DEADLINE:
        limit, since = job.lifecycle.deadline, ledger.times.running
        began = rfc3339(since) if since is not None else "its start"
        seconds = int(limit.seconds) if limit is not None else 0
        return (
            f"job {name} has been running since {began}, and at {rfc3339(outcome.at)} for longer than {seconds} seconds"
        )
    if outcome.failure is None:
        return outcome.message
    text = _failed_text(job, ledger, outcome.failure)
    return text if outcome.reason is Reason.RULE else brief(f"{text}; {outcome.message}", LONGEST_TEXT)


def _keeps_pods(job: Job, outcome: Outcome) -> bool:
    """Whether the pods stay after this end."""
    clean = job.lifecycle.clean
    levels = {"Succeed": clean.succeeded, "Failed": clean.failed}
    return outcome.reason is not Reason.EXTERNAL and levels.get(_final_phase(outcome), CleanPods.ALL) is CleanPods.NONE


def _failed_text(job: Job, ledger: Ledger, failure: Failure) -> str:
    """Which pods failed, and why; the text depends on the fail policy of the replica type."""
    role = _role(job, failure.role)
    policy = _fail_policy(job, failure.role)
    others = [one for one in ledger.failures if one.role == failure.role]
    if policy == "All" and role is not None and len({one.index for one in others}) >= role.replicas:
        causes = dict.fromkeys(_cause_text(one.cause) for one in others)
        return brief(f"All {failure.role} pods are failed, {'; '.join(causes)}", LONGEST_TEXT)
    rank = "rank0 " if policy == "Rank0" and failure.index == 0 else ""
    return brief(f"{rank}pod {failure.pod} is failed, {_cause_text(failure.cause)}", LONGEST_TEXT)


def _fail_policy(job: Job, role: str) -> str:
    spec = getattr(job.dialect, "spec", None)
    replica_spec = spec.replica_specs.get(role) if spec is not None else None
    return replica_spec.fail_policy if replica_spec is not None else ""


def _role(job: Job, name: str) -> Role | None:
    return next((one for one in job.roles if one.name == name), None)


def _cause_text(cause: Cause) -> str:
    """Why a pod failed."""
    detail = f": {cause.message}" if cause.message else ""
    if cause.why is CauseKind.EXIT:
        text = f"container {cause.container} on node {cause.node} exited with reason {cause.reason or 'Error'}"
        return f"{text} exitcode {cause.code}{detail}"
    if cause.why is CauseKind.NODE_LOST:
        return f"Node {cause.node} is failed and offline{detail}"
    if cause.why is CauseKind.DEVICE:
        return f"GPUs of node {cause.node} have failed{detail}"
    if cause.why is CauseKind.CREATE_ERROR:
        return f"create container failed[{_create_error(cause)}]"
    text = ", ".join(part for part in (cause.reason, cause.message) if part) or str(cause)
    return f"{text} on node {cause.node}" if cause.node else text


def _create_error(cause: Cause) -> str:
    detail = f": {cause.message}" if cause.message else ""
    return f"{cause.container}: {cause.reason}{detail}"


# -- restarts --------------------------------------------------------------------------------------------------------


def _restart_text(before: Ledger, after: Ledger) -> tuple[str, str]:
    """The replica type whose failure causes a restart in this pass, and the message; both empty without a restart."""
    increases = {one.name: _total(after, one.name) - _total(before, one.name) for one in after.roles}
    restarted = [name for name, increase in increases.items() if increase > 0]
    if not restarted:
        return "", ""
    new = [one for one in after.failures if one not in before.failures and one.role in restarted]
    name = new[0].role if new else restarted[0]
    why = f"pod {new[0].pod}: {_cause_text(new[0].cause)}" if new else "a pod is made again"
    return name, brief(f"restart times is {_total(after, name)}, {why}", LONGEST_TEXT)


def _total(ledger: Ledger, name: str) -> int:
    return next((sum(one.restarts.values()) for one in ledger.roles if one.name == name), 0)


def _resized_text(before: Ledger, after: Ledger) -> str:
    """Which replica types restart because of a new size; if the controller chose the size, the text says why."""
    known = {one.name: one for one in before.roles if one.size >= 0}
    pairs = [(known.get(one.name, one), one) for one in after.roles if one.size >= 0]
    return brief("; ".join(_scaled_text(old, new) for old, new in pairs if old.size != new.size), LONGEST_TEXT)


def _scaled_text(old: RoleLedger, new: RoleLedger) -> str:
    why = f": {new.ceiling.why}" if new.ceiling is not None and new.ceiling != old.ceiling and new.ceiling.why else ""
    return f"{new.name} is scaled from {old.size} to {new.size} replica{'s' * (new.size != 1)}{why}"


def _restarting_text(job: Job, name: str) -> str:
    """The message after the old pods are gone: it says which pods restart now."""
    role = _role(job, name)
    scope = role.restart.scope if role is not None else RestartScope.POD
    if scope is RestartScope.JOB:
        return "All pods are restarting now"
    return f"{name} pods are restarting now" if scope is RestartScope.ROLE else "pod is restarting now"


# -- why a job waits -------------------------------------------------------------------------------------------------


def _waiting_text(status: Status) -> str:
    """Why pods do not run yet: pods cannot be created, scheduled or started."""
    found = list(_waiting_reasons(status))
    more = [f"{len(found) - _MAX_WAITING_NAMED} more pods wait"] if len(found) > _MAX_WAITING_NAMED else []
    return brief("; ".join((*found[:_MAX_WAITING_NAMED], *more)), LONGEST_TEXT)


def _waiting_reasons(status: Status) -> Iterator[str]:
    yield from (f"pod {name} could not be created: {why}" for name, why in sorted(status.refused.items()))
    for replica in _replicas(status):
        pod, cause = replica.pod, replica.cause
        if replica.state is not State.STARTING or pod is None:
            continue
        if cause is not None and cause.why is CauseKind.CREATE_ERROR:
            node = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
            yield f"pod {pod.metadata.name}{node} create container failed[{_create_error(cause)}]"
        for one in pod.status.conditions or ():
            if one.type == "PodScheduled" and one.status == "False" and one.message:
                yield f"pod {pod.metadata.name}: {one.message}"


# -- events ----------------------------------------------------------------------------------------------------------


def event(job: Job, status: Status, event: JobEvent) -> Emit:
    """An event with the original controller's reason, message and source; `job` has the ledger from before the pass."""
    emit = default_emit(event, SOURCE)
    reason, message = str(emit.event_reason), emit.message
    match event:
        case JobStep(EventReason.RUNNING):
            message = RUNNING
        case Restarting():
            message = _restart_text(job.ledger, status.ledger)[1] or message
        case JobEnded(outcome):
            reason = _final_phase(outcome)
            # If an annotation ended the job, keep the default message: it has the annotation's name and its value.
            if outcome.reason is not Reason.EXTERNAL:
                message = _ended_text(job, status.ledger, outcome)
        case JobStep() | Resized():
            pass
        case ChildEvent():
            return with_child_kind(event, SOURCE)
        case _:
            return emit
    return replace(emit, message=message, reason=f"TrainingJob{reason}")
