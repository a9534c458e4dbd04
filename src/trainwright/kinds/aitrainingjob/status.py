# SPDX-License-Identifier: Apache-2.0
"""The status of an AITrainingJob: phase, conditions, counts, restarts, times."""

from collections import Counter

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds.aitrainingjob.conditions import FINAL_PHASES, ConditionHistory, conditions
from trainwright.kinds.aitrainingjob.environment import restarts
from trainwright.kinds.aitrainingjob.wire import AITrainingJobStatus, ReplicaStatus, TrainingJobCondition
from trainwright.kinds.rendering import status_body, with_unapplied
from trainwright.model.job import Body, Job, RestartScope
from trainwright.model.ledger import Ledger, Reason
from trainwright.model.plan import ReplicaState, RoleState, State, Status
from trainwright.model.units import Time, rfc3339

_PHASES = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed", "Unknown": "failed"}


def render(before: AITrainingJobStatus | None, job: Job, status: Status, now: Time) -> Body:
    """The whole `status`."""
    outcome = status.ledger.outcome
    old = before or AITrainingJobStatus()
    if job.unreadable or (job.invalid and old.conditions and outcome is None):
        reason = "TrainingJobInvalid"
        new = replace(old, conditions=with_unapplied(TrainingJobCondition, old.conditions, reason, status, now))
    elif outcome is not None and (old.phase in FINAL_PHASES or (job.invalid and outcome.reason is not Reason.INVALID)):
        # The job has ended, here or under another controller: the status is complete.
        new = replace(
            old,
            end_time=old.end_time or rfc3339(outcome.at),
            restarts=_restarts(old, job, status.ledger),
            trainwright=status.ledger,
        )
    else:
        new = _rendered(old, replace(job, ledger=status.ledger), status, now)
    return status_body(new, job)


def _rendered(old: AITrainingJobStatus, job: Job, status: Status, now: Time) -> AITrainingJobStatus:
    """The status of a valid job; `job` has the new ledger."""
    history = conditions(old, job, status, now)
    times = status.ledger.times
    counts = {role.name: count for role in job.roles if (count := restarts(job, role.name))}
    return AITrainingJobStatus(
        phase=history.phase,
        conditions=history.conditions,
        replica_statuses={role.name: _count(role, counts.get(role.name, 0)) for role in status.roles},
        restart_count=counts or UNSET,
        restart_replica_name=history.restarting,
        start_time=_time_text(times.accepted, old.start_time),
        start_running_time=_time_text(times.running),
        end_time=_ended(old, history, status.ledger, now),
        restarts=_restarts(old, job, status.ledger),
        trainwright=status.ledger,
    )


def _time_text(time: Time | None, otherwise: str | UnsetType = UNSET) -> str | UnsetType:
    return rfc3339(time) if time is not None else otherwise


def _ended(old: AITrainingJobStatus, history: ConditionHistory, ledger: Ledger, now: Time) -> str | UnsetType:
    """The time at which the last pod was gone; if pods are kept, the time at which the outcome was decided."""
    if history.phase not in FINAL_PHASES:
        return UNSET
    decided = ledger.outcome.at if ledger.outcome is not None else now
    return rfc3339(now if old.phase == "Terminating" else decided)


def _restarts(old: AITrainingJobStatus, job: Job, ledger: Ledger) -> int:
    """The number of restarts that have happened: the stored number, and the restarts that this pass adds.

    An older version of Trainwright removes `pending` and `hidden` from the ledger. After that, no pass adds the
    restarts that were pending. Therefore an unfinished job shows at least as many restarts as its ledger counts. If the
    ledger counts a restart of the whole job for every type, this minimum is the highest count of a type. Otherwise the
    minimum is the sum of the counts.
    """
    # A restart of the whole job is added once: `made` counts it only for the type that caused it.
    shown = old.restarts + max(_counted_once(ledger) - _counted_once(old.trainwright), 0)
    if ledger.outcome is not None:
        return shown
    counts = [one.made() for one in ledger.roles]
    shared = any(role.restart.shared and role.restart.scope is RestartScope.JOB for role in job.roles)
    return max(shown, max(counts, default=0) if shared else sum(counts))


def _counted_once(ledger: Ledger) -> int:
    return sum(one.made() + one.inside for one in ledger.roles)


def _count(role: RoleState, restarted: int) -> ReplicaStatus:
    if role.all_running:
        return ReplicaStatus(active=role.running)
    counts = Counter(field for replica in role.replicas if (field := _count_field(replica, restarted)))
    return ReplicaStatus(**counts)


def _count_field(replica: ReplicaState, restarted: int) -> str:
    """The field that counts a replica, by its pod or its stored result; empty if the replica has neither of them."""
    pod = replica.pod or replica.old
    if replica.final and (pod is None or replica.state is State.SUCCEEDED):
        return "succeeded" if replica.state is State.SUCCEEDED else "failed"
    if pod is None:
        return ""
    if pod.status.phase != "Pending":
        return _PHASES.get(pod.status.phase, "failed")
    return "restarting" if restarted else "scheduled" if pod.spec.node_name else "pending"
