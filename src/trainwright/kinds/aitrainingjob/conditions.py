# SPDX-License-Identifier: Apache-2.0
"""The conditions of an AITrainingJob: a history, of which the last entry is true and says where the job is.

Called by `status`. Each pass makes the moves that lie between what is stored and what was concluded; a second pass over
the same finds none left. The phase is the type of the last condition.
"""

from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.aitrainingjob import words
from trainwright.kinds.aitrainingjob.wire import MOST_CONDITIONS, AITrainingJobStatus, TrainingJobCondition
from trainwright.model.job import Job
from trainwright.model.ledger import Outcome, Phase, Reason
from trainwright.model.status import Status
from trainwright.model.units import Time, rfc3339

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


class Story(Struct):
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


def told(old: AITrainingJobStatus, job: Job, status: Status, now: Time) -> Story:
    """The story after this pass; `old` is what is stored of it."""
    known = tuple(one for one in old.conditions or () if one.type != UNAPPLIED)
    # A restart that another controller left half done is not ours to finish.
    story = Story(known, now, old.restart_replica_name if old.trainwright.phase is not Phase.NEW else "")
    outcome = status.ledger.outcome
    if outcome is not None:
        _end(story, outcome, job, status)
    elif status.ledger.phase is Phase.SUSPENDED:
        story.restarting = ""
        story.put("Suspended", f"job {job.key.name} is suspended")
    else:
        _live(story, old, job, status)
    return story


def _end(story: Story, outcome: Outcome, job: Job, status: Status) -> None:
    """Terminating for as long as pods that must go are there."""
    story.restarting = ""
    message = words.ended(job, status.ledger, outcome)
    if outcome.reason is Reason.INVALID:
        story.put(words.end(outcome), message)
    elif status.cleaning:
        story.put("Terminating", _joined(message, "deleting pods"))
    else:
        story.put(words.end(outcome), _joined(message, "kept pods" if words.kept(job, outcome) else "deleted pods"))


def _live(story: Story, old: AITrainingJobStatus, job: Job, status: Status) -> None:
    ledger, before = status.ledger, old.trainwright
    name, message = words.restarted(before, ledger)
    if name:
        story.restarting = name
        story.put("Terminating", message)
        return
    runs = ledger.phase is Phase.RUNNING
    if story.restarting and (runs or not _leaving(status)):
        story.put("Restarting", words.restarting(job, story.restarting))
        story.restarting = ""
    elif scaled := words.resized(before, ledger):
        # Whatever restarted before starts anew with it.
        story.restarting = ""
        story.put("Restarting", scaled)
    if runs:
        story.put("Running", words.RUNNING)
    elif not story.restarting:
        _waits(story, status)


def _waits(story: Story, status: Status) -> None:
    """Not every pod runs: pods are placed, made, or made anew."""
    trouble = words.troubles(status)
    if story.phase == "Restarting":
        # What is restarting was said when it began; what keeps it from running follows.
        said = story.conditions[-1].message.split("; pod ")[0]
        story.put("Restarting", _joined(said, trouble))
    elif not _scheduled(status):
        story.put("Pending", _joined(words.PENDING, trouble))
    elif _creating(status) or not story.phase:
        story.put("Creating", trouble or words.CREATING)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _leaving(status: Status) -> bool:
    """Pods of an older attempt are still there."""
    return any(seen.old is not None for group in status.roles if not group.calm for seen in group.replicas)


def _scheduled(status: Status) -> bool:
    """Every pod has its node, or has ended."""
    return all(
        seen.final or (seen.pod is not None and bool(seen.pod.spec.node_name))
        for group in status.roles
        if not group.calm
        for seen in group.replicas
    )


def _creating(status: Status) -> bool:
    """A pod has its node, and does not run yet."""
    return any(
        seen.pod is not None and seen.pod.status.phase == "Pending" and not seen.final
        for group in status.roles
        if not group.calm
        for seen in group.replicas
    )
