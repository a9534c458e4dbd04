# SPDX-License-Identifier: Apache-2.0
"""The status of the kinds of Kubeflow v1: conditions, counts by type, times.

The counts follow the pods until the job ends and do not change afterwards.
"""

from msgspec import UNSET
from msgspec.structs import replace

from trainwright.kinds.kubeflow.conditions import conditions, failed_count, invalid_reason
from trainwright.kinds.kubeflow.framework import Framework
from trainwright.kinds.kubeflow.labels import selector
from trainwright.kinds.kubeflow.wire import JobCondition, KubeflowStatus, ReplicaStatus
from trainwright.kinds.rendering import TRUE, UNAPPLIED, status_body, with_unapplied
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Phase, Reason
from trainwright.model.plan import RoleState, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time, rfc3339

Counts = dict[str, ReplicaStatus]


def render(framework: Framework, before: KubeflowStatus | None, job: Job, status: Status, now: Time) -> Body:
    """The whole `status`."""
    if job.unmanaged:
        return status_body(before, job) if before is not None else {}
    outcome = status.ledger.outcome
    old = before or framework.status()
    if job.unreadable or (job.invalid and old.conditions and outcome is None):
        known = with_unapplied(JobCondition, old.conditions, invalid_reason(framework), status, now)
        new = replace(old, conditions=known, last_reconcile_time=UNSET)
    elif outcome is not None and outcome.reason is Reason.EXTERNAL:
        # Another controller has ended the job: its status stays as it is. The original sometimes sets no end time.
        ended = old.completion_time or rfc3339(outcome.at)
        return status_body(replace(old, completion_time=ended, trainwright=status.ledger), job)
    elif job.invalid and outcome is not None and outcome.reason is not Reason.INVALID:
        # The job has ended, so an edit has no effect.
        new = replace(old, trainwright=status.ledger, last_reconcile_time=UNSET)
    else:
        new = _rendered(framework, old, job, status, now)
    same = new == replace(old, last_reconcile_time=UNSET)
    return status_body(old if same else replace(new, last_reconcile_time=rfc3339(now)), job)


def phase_of(status: Body) -> str:
    """The phase of a job: the type of its last condition that is true."""
    types = [one["type"] for one in status.get("conditions") or () if one.get("status") == TRUE]
    return types[-1] if types else ""


def _rendered(framework: Framework, old: KubeflowStatus, job: Job, status: Status, now: Time) -> KubeflowStatus:
    known = tuple(one for one in old.conditions or () if one.type != UNAPPLIED)
    ledger, started = status.ledger, status.ledger.times.started
    rendered = framework.status(
        conditions=conditions(framework, replace(old, conditions=known), job, status, now),
        replica_statuses=_counts(framework, old, job, status),
        # The time at which the job was accepted or last resumed; a suspension does not change it.
        start_time=old.start_time if started is None else rfc3339(started),
        completion_time=old.completion_time if ledger.outcome is None else rfc3339(ledger.outcome.at),
        trainwright=ledger,
    )
    completed: KubeflowStatus = framework.complete_status(rendered, job)
    return completed


def _counts(framework: Framework, old: KubeflowStatus, job: Job, status: Status) -> Counts:
    stored, outcome = old.replica_statuses or {}, status.ledger.outcome
    # If another controller ended the job, keep its counts: its pods are not among ours.
    is_final = outcome is not None and (old.trainwright.outcome is not None or outcome.reason is Reason.EXTERNAL)
    if is_final and stored:
        return dict(stored)
    if status.ledger.phase is Phase.SUSPENDED:
        return {role.name: replace(stored.get(role.name, ReplicaStatus()), active=0) for role in status.roles}
    counts = {role.name: _count(framework, job, role) for role in status.roles}
    if outcome is None or outcome.result is not Result.SUCCEEDED:
        return counts
    # Replicas that still run when the job succeeds count as succeeded.
    return {name: replace(one, active=0, succeeded=one.succeeded + one.active) for name, one in counts.items()}


def _count(framework: Framework, job: Job, role: RoleState) -> ReplicaStatus:
    pods = selector(framework, job.key.name, role.name) if framework.has_scale else ""
    if role.all_running:
        return ReplicaStatus(active=role.running, selector=pods)
    return ReplicaStatus(role.running, role.count(State.SUCCEEDED), failed_count(role), selector=pods)
