# SPDX-License-Identifier: Apache-2.0
"""The status of a TFJob in its own words: conditions, counts by type, times. Called by the engines after every pass.

`core` concludes, this renders. Counts follow the pods while the job lives and stay as they were when it ended.
"""

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds.tfjob import conditions
from trainwright.kinds.tfjob.conditions import TRUE, updated_conditions
from trainwright.kinds.tfjob.wire import JobCondition, ReplicaStatus, TFJobStatus
from trainwright.model.cause import brief
from trainwright.model.job import Body, Job
from trainwright.model.ledger import LONGEST_TEXT, Ledger, Phase, Reason
from trainwright.model.plan import RoleState, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time, rfc3339

Counts = dict[str, ReplicaStatus]
#: Not one of the original's: an edit that cannot be applied has to be told somewhere.
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
        # It has ended: there is nothing left that an edit could change.
        new = replace(old, trainwright=status.ledger, last_reconcile_time=UNSET)
    else:
        new = _rendered(old, job, status, now)
    if new == replace(old, last_reconcile_time=UNSET):
        return _builtins(old)
    body = _builtins(replace(new, last_reconcile_time=rfc3339(now)))
    if job.unreadable:
        # What cannot be read is not ours to write over.
        body.pop("trainwright", None)
    return body


def word(status: Body) -> str:
    """Where the job is, in one word: the last condition that holds."""
    said = [one["type"] for one in status.get("conditions") or () if one.get("status") == TRUE]
    return said[-1] if said else ""


def _builtins(status: TFJobStatus) -> Body:
    body: Body = msgspec.to_builtins(status)
    return body


def _rendered(old: TFJobStatus, job: Job, status: Status, now: Time) -> TFJobStatus:
    known = tuple(one for one in old.conditions or () if one.type != UNAPPLIED)
    ledger = status.ledger
    counts = _counts(old, status)
    return TFJobStatus(
        conditions=updated_conditions(known, old.trainwright, job, status, now),
        replica_statuses=counts,
        tf_replica_statuses=counts if _old_form(job) else UNSET,
        start_time=_started(old, ledger),
        completion_time=old.completion_time if ledger.outcome is None else rfc3339(ledger.outcome.at),
        trainwright=ledger,
    )


def _old_form(job: Job) -> bool:
    spec = getattr(job.dialect, "spec", None)
    return spec is not None and spec.trainwright.defaults == "v1alpha2"


def _started(old: TFJobStatus, ledger: Ledger) -> str | UnsetType:
    """When it was accepted, or last resumed; a suspension does not change it."""
    began = ledger.times.started
    return rfc3339(began) if began is not None else old.start_time


def _counts(old: TFJobStatus, status: Status) -> Counts:
    said = old.replica_statuses or {}
    ledger = status.ledger
    if ledger.outcome is not None and (old.trainwright.outcome is not None or _ended_elsewhere(ledger)) and said:
        return dict(said)
    if ledger.phase is Phase.SUSPENDED:
        return {group.name: replace(said.get(group.name, ReplicaStatus()), active=0) for group in status.roles}
    counts = {group.name: _count(group) for group in status.roles}
    if ledger.outcome is None or ledger.outcome.result is not Result.SUCCEEDED:
        return counts
    # Who still ran when the job had done its work has done his.
    return {name: replace(one, active=0, succeeded=one.succeeded + one.active) for name, one in counts.items()}


def _ended_elsewhere(ledger: Ledger) -> bool:
    """Whoever brought it to its end has counted, and its pods are not ours to count again."""
    return ledger.outcome is not None and ledger.outcome.reason is Reason.EXTERNAL


def _count(group: RoleState) -> ReplicaStatus:
    if group.all_running:
        return ReplicaStatus(active=group.running)
    return ReplicaStatus(group.running, group.count(State.SUCCEEDED), conditions.counted_text(group))


def _unapplied(old: TFJobStatus, status: Status, now: Time) -> TFJobStatus:
    """An edit that cannot be applied: everything stays as it was told, and one condition says what is wrong."""
    known = [one for one in old.conditions or () if one.type != UNAPPLIED]
    message = brief(status.invalid, LONGEST_TEXT)
    before = next((one for one in old.conditions or () if one.type == UNAPPLIED), None)
    if before is not None and before.message == message:
        return replace(old, last_reconcile_time=UNSET)
    since = rfc3339(now)
    said = JobCondition(UNAPPLIED, TRUE, conditions.INVALID, message, since, since)
    # In front: the last one says where the job is, and that has not changed.
    return replace(old, conditions=(said, *known), last_reconcile_time=UNSET)
