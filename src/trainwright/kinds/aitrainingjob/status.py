# SPDX-License-Identifier: Apache-2.0
"""The status of an AITrainingJob in its own words: phase, conditions, counts, restarts, times.

`core` concludes, this renders; called by the engines after every pass.
"""

from collections import Counter

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds.aitrainingjob.conditions import ENDS, TRUE, UNAPPLIED, ConditionHistory, told
from trainwright.kinds.aitrainingjob.environment import restarts
from trainwright.kinds.aitrainingjob.wire import AITrainingJobStatus, ReplicaStatus, TrainingJobCondition
from trainwright.model.cause import brief
from trainwright.model.job import Body, Job, RestartScope
from trainwright.model.ledger import LONGEST_TEXT, Ledger, Reason
from trainwright.model.plan import ReplicaState, RoleState, State, Status
from trainwright.model.units import Time, rfc3339

_PHASES = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed", "Unknown": "failed"}


def render(before: AITrainingJobStatus | None, job: Job, status: Status, now: Time) -> Body:
    """The whole `status`."""
    outcome = status.ledger.outcome
    old = before or AITrainingJobStatus()
    if job.unreadable or (job.invalid and old.conditions and outcome is None):
        new = _unapplied(old, status, now)
    elif outcome is not None and (old.phase in ENDS or (job.invalid and outcome.reason is not Reason.INVALID)):
        # It has ended, here or under another controller: all has been said.
        new = replace(
            old,
            end_time=old.end_time or rfc3339(outcome.at),
            restarts=_restarts(old, job, status.ledger),
            trainwright=status.ledger,
        )
    else:
        new = _rendered(old, replace(job, ledger=status.ledger), status, now)
    body: Body = msgspec.to_builtins(new)
    if job.unreadable:
        # What cannot be read is not ours to write over.
        body.pop("trainwright", None)
    return body


def _rendered(old: AITrainingJobStatus, job: Job, status: Status, now: Time) -> AITrainingJobStatus:
    """`job` carries the ledger that was concluded."""
    story = told(old, job, status, now)
    times = status.ledger.times
    counts = {role.name: count for role in job.roles if (count := restarts(job, role.name))}
    return AITrainingJobStatus(
        phase=story.phase,
        conditions=story.conditions,
        replica_statuses={group.name: _count(group, counts.get(group.name, 0)) for group in status.roles},
        restart_count=counts or UNSET,
        restart_replica_name=story.restarting,
        start_time=_spelled(times.accepted, old.start_time),
        start_running_time=_spelled(times.running),
        end_time=_ended(old, story, status.ledger, now),
        restarts=_restarts(old, job, status.ledger),
        trainwright=status.ledger,
    )


def _spelled(time: Time | None, otherwise: str | UnsetType = UNSET) -> str | UnsetType:
    return rfc3339(time) if time is not None else otherwise


def _ended(old: AITrainingJobStatus, story: ConditionHistory, ledger: Ledger, now: Time) -> str | UnsetType:
    """When its last pod was gone; if pods are kept, when that was decided."""
    if story.phase not in ENDS:
        return UNSET
    decided = ledger.outcome.at if ledger.outcome is not None else now
    return rfc3339(now if old.phase == "Terminating" else decided)


def _restarts(old: AITrainingJobStatus, job: Job, ledger: Ledger) -> int:
    """Those that have happened. A version that does not know `pending` drops it, and never shows what was pending.

    So an unfinished job has at least as many as its types are charged with: one that takes the whole job along is
    charged to every type, all others to one.
    """
    shown = old.restarts + _more(old.trainwright, ledger)
    if ledger.outcome is not None:
        return shown
    counts = [book.made() for book in ledger.roles]
    shared = any(role.restart.shared and role.restart.scope is RestartScope.JOB for role in job.roles)
    return max(shown, max(counts, default=0) if shared else sum(counts))


def _more(before: Ledger, after: Ledger) -> int:
    """Restarts that have happened since; one that takes the whole job along counts on every type, and is shown once."""
    return max(_shown(after) - _shown(before), 0)


def _shown(ledger: Ledger) -> int:
    return sum(book.made() + book.inside for book in ledger.roles)


def _count(group: RoleState, restarted: int) -> ReplicaStatus:
    if group.all_running:
        return ReplicaStatus(active=group.running)
    counts = Counter(word for seen in group.replicas if (word := _place(seen, restarted)))
    return ReplicaStatus(**counts)


def _place(seen: ReplicaState, restarted: int) -> str:
    """Where a replica is counted, by its pod, or by what is remembered of it."""
    pod = seen.pod or seen.old
    if seen.final and (pod is None or seen.state is State.SUCCEEDED):
        return "succeeded" if seen.state is State.SUCCEEDED else "failed"
    if pod is None:
        return ""
    if pod.status.phase != "Pending":
        return _PHASES.get(pod.status.phase, "failed")
    return "restarting" if restarted else "scheduled" if pod.spec.node_name else "pending"


def _unapplied(old: AITrainingJobStatus, status: Status, now: Time) -> AITrainingJobStatus:
    """An edit that cannot be applied: everything stays as it was told, and one condition says what is wrong."""
    message = brief(status.invalid, LONGEST_TEXT)
    before = next((one for one in old.conditions or () if one.type == UNAPPLIED), None)
    if before is not None and before.message == message:
        return old
    known = [one for one in old.conditions or () if one.type != UNAPPLIED]
    since = rfc3339(now)
    said = TrainingJobCondition(UNAPPLIED, TRUE, "TrainingJobInvalid", message, since, since)
    # In front: the last one says where the job is, and that has not changed.
    return replace(old, conditions=(said, *known))
