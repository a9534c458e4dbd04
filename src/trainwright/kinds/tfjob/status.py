# SPDX-License-Identifier: Apache-2.0
"""The status of a TFJob: conditions, counts by type, times.

The counts follow the pods until the job ends and do not change afterwards.
"""

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds.tfjob.conditions import INVALID, TRUE, conditions, failed_count
from trainwright.kinds.tfjob.wire import JobCondition, ReplicaStatus, TFJobStatus
from trainwright.model.cause import brief
from trainwright.model.job import Body, Job
from trainwright.model.ledger import LONGEST_TEXT, Ledger, Phase, Reason
from trainwright.model.plan import RoleState, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time, rfc3339

Counts = dict[str, ReplicaStatus]
#: The type of our own condition for an edit that cannot be applied.
UNAPPLIED = "Invalid"


def render(before: TFJobStatus | None, job: Job, status: Status, now: Time) -> Body:
    """The whole `status`."""
    if job.unmanaged:
        return _builtins(before) if before is not None else {}
    outcome = status.ledger.outcome
    old = before or TFJobStatus()
    if job.unreadable or (job.invalid and old.conditions and outcome is None):
        new = _unapplied(old, status, now)
    elif job.invalid and outcome is not None and outcome.reason is not Reason.INVALID:
        # The job has ended, so an edit has no effect.
        new = replace(old, trainwright=status.ledger, last_reconcile_time=UNSET)
    else:
        new = _rendered(old, job, status, now)
    if new == replace(old, last_reconcile_time=UNSET):
        return _builtins(old)
    body = _builtins(replace(new, last_reconcile_time=rfc3339(now)))
    if job.unreadable:
        # A ledger that we cannot read must not be overwritten.
        body.pop("trainwright", None)
    return body


def phase_of(status: Body) -> str:
    """The phase of a job: the type of its last condition that is true."""
    types = [one["type"] for one in status.get("conditions") or () if one.get("status") == TRUE]
    return types[-1] if types else ""


def _builtins(status: TFJobStatus) -> Body:
    body: Body = msgspec.to_builtins(status)
    return body


def _rendered(old: TFJobStatus, job: Job, status: Status, now: Time) -> TFJobStatus:
    known = tuple(one for one in old.conditions or () if one.type != UNAPPLIED)
    ledger = status.ledger
    counts = _counts(old, status)
    return TFJobStatus(
        conditions=conditions(replace(old, conditions=known), job, status, now),
        replica_statuses=counts,
        tf_replica_statuses=counts if _is_v1alpha2(job) else UNSET,
        start_time=_started(old, ledger),
        completion_time=old.completion_time if ledger.outcome is None else rfc3339(ledger.outcome.at),
        trainwright=ledger,
    )


def _is_v1alpha2(job: Job) -> bool:
    spec = getattr(job.dialect, "spec", None)
    return spec is not None and spec.trainwright.defaults == "v1alpha2"


def _started(old: TFJobStatus, ledger: Ledger) -> str | UnsetType:
    """When the job was accepted or last resumed; a suspension does not change it."""
    started = ledger.times.started
    return rfc3339(started) if started is not None else old.start_time


def _counts(old: TFJobStatus, status: Status) -> Counts:
    stored, outcome = old.replica_statuses or {}, status.ledger.outcome
    # Another controller that ended the job has counted, and its pods are not among ours.
    is_final = outcome is not None and (old.trainwright.outcome is not None or outcome.reason is Reason.EXTERNAL)
    if is_final and stored:
        return dict(stored)
    if status.ledger.phase is Phase.SUSPENDED:
        return {role.name: replace(stored.get(role.name, ReplicaStatus()), active=0) for role in status.roles}
    counts = {role.name: _count(role) for role in status.roles}
    if outcome is None or outcome.result is not Result.SUCCEEDED:
        return counts
    # Replicas that still run when the job succeeds count as succeeded.
    return {name: replace(one, active=0, succeeded=one.succeeded + one.active) for name, one in counts.items()}


def _count(role: RoleState) -> ReplicaStatus:
    if role.all_running:
        return ReplicaStatus(active=role.running)
    return ReplicaStatus(role.running, role.count(State.SUCCEEDED), failed_count(role))


def _unapplied(old: TFJobStatus, status: Status, now: Time) -> TFJobStatus:
    """The status after an edit that cannot be applied: as it was, with a condition that has the errors."""
    known = [one for one in old.conditions or () if one.type != UNAPPLIED]
    message = brief(status.invalid, LONGEST_TEXT)
    before = next((one for one in old.conditions or () if one.type == UNAPPLIED), None)
    if before is not None and before.message == message:
        return replace(old, last_reconcile_time=UNSET)
    since = rfc3339(now)
    new = JobCondition(UNAPPLIED, TRUE, INVALID, message, since, since)
    # It is the first, because the last condition is the phase of the job, which has not changed.
    return replace(old, conditions=(new, *known), last_reconcile_time=UNSET)
