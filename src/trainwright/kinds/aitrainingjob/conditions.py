# SPDX-License-Identifier: Apache-2.0
"""What an AITrainingJob says of itself, as the original does: for its conditions and for its events.

Why a pod failed, on which node, what cannot be created and what cannot be placed: all of it is shown to whoever
describes the job.

The conditions of an AITrainingJob: a history, of which the last entry is true and says where the job is.

Called by `status`. Each pass makes the moves that lie between what is stored and what was concluded; a second pass over
the same finds none left. The phase is the type of the last condition.

The events of an AITrainingJob: one for each step, with the reason of its condition, and the original's of children.

The engines call `worded` for whatever `core` or they themselves have to tell.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.aitrainingjob.wire import MOST_CONDITIONS, AITrainingJobStatus, TrainingJobCondition
from trainwright.model.cause import Cause, CauseKind, brief
from trainwright.model.child import Pod
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

RUNNING = "all pods are running"
PENDING = "all pods are waiting for scheduling"
CREATING = "creating containers"
#: So many troubles are told; the rest is counted.
_TOLD = 3
_LOST = (CauseKind.NODE_LOST, CauseKind.DEVICE)


def end_text(outcome: Outcome) -> str:
    """The phase in which a job ends."""
    if outcome.reason is Reason.EXTERNAL and outcome.word:
        return outcome.word
    if outcome.result is Result.SUCCEEDED:
        return "Succeed"
    if outcome.reason in (Reason.DEADLINE, Reason.START_DEADLINE):
        return "Timeout"
    return "NodeFail" if outcome.failure is not None and outcome.failure.cause.why in _LOST else "Failed"


def ended_text(job: Job, ledger: Ledger, outcome: Outcome) -> str:
    """What decided the end, in full."""
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
    told = _failed(job, ledger, outcome.failure)
    return told if outcome.reason is Reason.RULE else brief(f"{told}; {outcome.message}", LONGEST_TEXT)


def kept_text(job: Job, outcome: Outcome) -> bool:
    """Whether the pods stay after this end."""
    clean = job.lifecycle.clean
    levels = {"Succeed": clean.succeeded, "Failed": clean.failed}
    return outcome.reason is not Reason.EXTERNAL and levels.get(end_text(outcome), CleanPods.ALL) is CleanPods.NONE


def _failed(job: Job, ledger: Ledger, failure: Failure) -> str:
    """Which pods failed, and why, as the replica type's policy looks at them."""
    role = _role(job, failure.role)
    policy = _policy(job, failure.role)
    others = [one for one in ledger.failures if one.role == failure.role]
    if policy == "All" and role is not None and len({one.index for one in others}) >= role.replicas:
        reasons = dict.fromkeys(reason(one.cause) for one in others)
        return brief(f"All {failure.role} pods are failed, {'; '.join(reasons)}", LONGEST_TEXT)
    rank = "rank0 " if policy == "Rank0" and failure.index == 0 else ""
    return brief(f"{rank}pod {failure.pod} is failed, {reason(failure.cause)}", LONGEST_TEXT)


def _policy(job: Job, role: str) -> str:
    spec = getattr(job.dialect, "spec", None)
    one = spec.replica_specs.get(role) if spec is not None else None
    return one.fail_policy if one is not None else ""


def _role(job: Job, name: str) -> Role | None:
    return next((one for one in job.roles if one.name == name), None)


def reason(cause: Cause) -> str:
    """Why a pod failed."""
    if cause.why is CauseKind.EXIT:
        text = f"container {cause.container} on node {cause.node} exited with reason {cause.reason or 'Error'}"
        detail = f": {cause.message}" if cause.message else ""
        return f"{text} exitcode {cause.code}{detail}"
    if cause.why is CauseKind.NODE_LOST:
        return f"Node {cause.node} is failed and offline" + (f": {cause.message}" if cause.message else "")
    if cause.why is CauseKind.DEVICE:
        return f"GPUs of node {cause.node} have failed" + (f": {cause.message}" if cause.message else "")
    if cause.why is CauseKind.CREATE_ERROR:
        return f"create container failed[{_create_error(cause)}]"
    told = ", ".join(part for part in (cause.reason, cause.message) if part) or str(cause)
    return f"{told} on node {cause.node}" if cause.node else told


def _create_error(cause: Cause) -> str:
    detail = f": {cause.message}" if cause.message else ""
    return f"{cause.container}: {cause.reason}{detail}"


# -- restarts --------------------------------------------------------------------------------------------------------


def restarted_text(before: Ledger, after: Ledger) -> tuple[str, str]:
    """The replica type whose failure is answered with a restart in this pass, and what to say of it; or nothing."""
    raised = raises(before, after)
    if not raised:
        return "", ""
    new = [one for one in after.failures if one not in before.failures and one.role in raised]
    name = new[0].role if new else next(iter(raised))
    why = f"pod {new[0].pod}: {reason(new[0].cause)}" if new else "a pod is made again"
    return name, brief(f"restart times is {_total(after, name)}, {why}", LONGEST_TEXT)


def raises(before: Ledger, after: Ledger) -> dict[str, int]:
    """By how much the restarts of each replica type have risen, where they have."""
    rises = {book.name: _total(after, book.name) - _total(before, book.name) for book in after.roles}
    return {name: rise for name, rise in rises.items() if rise > 0}


def _total(ledger: Ledger, name: str) -> int:
    return next((sum(book.restarts.values()) for book in ledger.roles if book.name == name), 0)


def resized_text(before: Ledger, after: Ledger) -> str:
    """Which replica types start anew because they have another size, and why if nobody asked for it."""
    known = {book.name: book for book in before.roles if book.size >= 0}
    found = [(known.get(book.name, book), book) for book in after.roles if book.size >= 0]
    return brief("; ".join(_scaled(old, book) for old, book in found if old.size != book.size), LONGEST_TEXT)


def _scaled(old: RoleLedger, book: RoleLedger) -> str:
    why = (
        f": {book.ceiling.why}" if book.ceiling is not None and book.ceiling != old.ceiling and book.ceiling.why else ""
    )
    return f"{book.name} is scaled from {old.size} to {book.size} replica{'s' * (book.size != 1)}{why}"


def restarting_text(job: Job, name: str) -> str:
    """What starts anew, once what was there before is gone."""
    role = _role(job, name)
    scope = role.restart.scope if role is not None else RestartScope.POD
    if scope is RestartScope.JOB:
        return "All pods are restarting now"
    return f"{name} pods are restarting now" if scope is RestartScope.ROLE else "pod is restarting now"


# -- what keeps a job waiting ----------------------------------------------------------------------------------------


def trouble_text(status: Status) -> str:
    """What keeps pods from running: they cannot be made, placed or started."""
    found = list(_troubles(status))
    more = [f"{len(found) - _TOLD} more pods wait"] if len(found) > _TOLD else []
    return brief("; ".join((*found[:_TOLD], *more)), LONGEST_TEXT)


def _troubles(status: Status) -> Iterator[str]:
    yield from (f"pod {name} could not be created: {why}" for name, why in sorted(status.refused.items()))
    for group in status.roles:
        if group.all_running:
            continue
        for seen in group.replicas:
            if seen.state is State.STARTING and seen.pod is not None:
                yield from _trouble(seen, seen.pod)


def _trouble(seen: ReplicaState, pod: Pod) -> Iterator[str]:
    name = pod.metadata.name
    if seen.cause is not None and seen.cause.why is CauseKind.CREATE_ERROR:
        node = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
        yield f"pod {name}{node} create container failed[{_create_error(seen.cause)}]"
    for one in pod.status.conditions or ():
        if one.type == "PodScheduled" and one.status == "False" and one.message:
            yield f"pod {name}: {one.message}"


Conditions = tuple[TrainingJobCondition, ...]
TRUE, FALSE = "True", "False"
ENDS = frozenset({"Succeed", "Failed", "Timeout", "Preempted", "NodeFail"})
#: Not one of the original's: an edit that cannot be applied has to be told somewhere.
UNAPPLIED = "Invalid"


def put(conditions: Conditions, kind: str, message: str, now: Time) -> Conditions:
    """The history with this step at its end; the same step again only changes what is said of it."""
    last = conditions[-1] if conditions else None
    when, reason = rfc3339(now), f"TrainingJob{kind}"
    if last is None or (last.type, last.status, last.reason) != (kind, TRUE, reason):
        new = TrainingJobCondition(kind, TRUE, reason, message, when, when)
        return (*(one if one.status == FALSE else replace(one, status=FALSE) for one in conditions), new)
    if last.message == message:
        return conditions
    return (*conditions[:-1], replace(last, message=message, last_probe_time=when))


class ConditionHistory(Struct):
    """Where the job is, while one pass is told. `restarting` names the replica type whose old pods still go."""

    conditions: Conditions
    now: Time
    restarting: str = ""

    @property
    def phase(self) -> str:
        """Where it is now."""
        return self.conditions[-1].type if self.conditions else ""

    def put(self, kind: str, message: str) -> None:
        """One step on."""
        self.conditions = put(self.conditions, kind, message, self.now)[-MOST_CONDITIONS:]


def told(old: AITrainingJobStatus, job: Job, status: Status, now: Time) -> ConditionHistory:
    """The story after this pass; `old` is what is stored of it."""
    known = tuple(one for one in old.conditions or () if one.type != UNAPPLIED)
    # A restart that another controller left half done is not ours to finish.
    story = ConditionHistory(known, now, old.restart_replica_name if old.trainwright.phase is not Phase.NEW else "")
    outcome = status.ledger.outcome
    if outcome is not None:
        _end(story, outcome, job, status)
    elif status.ledger.phase is Phase.SUSPENDED:
        story.restarting = ""
        story.put("Suspended", f"job {job.key.name} is suspended")
    else:
        _live(story, old, job, status)
    return story


def _end(story: ConditionHistory, outcome: Outcome, job: Job, status: Status) -> None:
    """Terminating for as long as pods that must go are there."""
    story.restarting = ""
    message = ended_text(job, status.ledger, outcome)
    if outcome.reason is Reason.INVALID:
        story.put(end_text(outcome), message)
    elif status.cleaning:
        story.put("Terminating", _joined(message, "deleting pods"))
    else:
        story.put(end_text(outcome), _joined(message, "kept pods" if kept_text(job, outcome) else "deleted pods"))


def _live(story: ConditionHistory, old: AITrainingJobStatus, job: Job, status: Status) -> None:
    ledger, before = status.ledger, old.trainwright
    name, message = restarted_text(before, ledger)
    if name:
        story.restarting = name
        story.put("Terminating", message)
        return
    runs = ledger.phase is Phase.RUNNING
    if story.restarting and (runs or not _leaving(status)):
        story.put("Restarting", restarting_text(job, story.restarting))
        story.restarting = ""
    elif scaled := resized_text(before, ledger):
        # Whatever restarted before starts anew with it.
        story.restarting = ""
        story.put("Restarting", scaled)
    if runs:
        story.put("Running", RUNNING)
    elif not story.restarting:
        _waits(story, status)


def _waits(story: ConditionHistory, status: Status) -> None:
    """Not every pod runs: pods are placed, made, or made anew."""
    trouble = trouble_text(status)
    if story.phase == "Restarting":
        # What is restarting was said when it began; what keeps it from running follows.
        said = story.conditions[-1].message.split("; pod ")[0]
        story.put("Restarting", _joined(said, trouble))
    elif not _scheduled(status):
        story.put("Pending", _joined(PENDING, trouble))
    elif _creating(status) or not story.phase:
        story.put("Creating", trouble or CREATING)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _leaving(status: Status) -> bool:
    """Pods of an older attempt are still there."""
    return any(seen.old is not None for group in status.roles if not group.all_running for seen in group.replicas)


def _scheduled(status: Status) -> bool:
    """Every pod has its node, or has ended."""
    return all(
        seen.final or (seen.pod is not None and bool(seen.pod.spec.node_name))
        for group in status.roles
        if not group.all_running
        for seen in group.replicas
    )


def _creating(status: Status) -> bool:
    """A pod has its node, and does not run yet."""
    return any(
        seen.pod is not None and seen.pod.status.phase == "Pending" and not seen.final
        for group in status.roles
        if not group.all_running
        for seen in group.replicas
    )


SOURCE = "TrainingJobOperator"


def worded(job: Job, status: Status, event: JobEvent) -> Emit:
    """An event in this kind's words; `job` still has the ledger from before."""
    emit = default_emit(event, SOURCE)
    word, message = str(emit.event_reason), emit.message
    match event:
        case JobStep(EventReason.RUNNING):
            message = RUNNING
        case Restarting():
            message = restarted_text(job.ledger, status.ledger)[1] or message
        case JobEnded(outcome):
            word = end_text(outcome)
            # The condition has the annotation's value alone, as in the original; the event also names the annotation.
            if outcome.reason is not Reason.EXTERNAL:
                message = ended_text(job, status.ledger, outcome)
        case JobStep() | Resized():
            pass
        case ChildEvent():
            return with_child_kind(event, SOURCE)
        case _:
            return emit
    return replace(emit, message=message, reason=f"TrainingJob{word}")
