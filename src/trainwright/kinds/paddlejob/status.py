# SPDX-License-Identifier: Apache-2.0
"""The status of a PaddleJob: phase, mode, counts and pods by role, times, conditions."""

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds.paddlejob.conditions import conditions, unapplied
from trainwright.kinds.paddlejob.wire import (
    MAX_REFS,
    PaddleJobSpec,
    PaddleJobStatus,
    PodRef,
    RoleStatus,
    is_elastic,
    mode,
)
from trainwright.kinds.rendering import status_body
from trainwright.model.child import Pod
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Phase, Reason
from trainwright.model.plan import ReplicaState, RoleState, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time, rfc3339

STARTING = "Starting"
PHASES = {
    Phase.NEW: "Pending",
    Phase.PENDING: "Pending",
    Phase.RUNNING: "Running",
    Phase.RESTARTING: "Restarting",
    Phase.SUSPENDED: "Suspended",
    Phase.RESUMING: "Pending",
    Phase.SUCCEEDED: "Completed",
    Phase.FAILED: "Failed",
}
_COUNTED = {State.RUNNING: "running", State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.LOST: "unknown"}


def render(before: PaddleJobStatus | None, job: Job, status: Status, now: Time) -> Body:
    """The whole `status`."""
    outcome, old = status.ledger.outcome, before or PaddleJobStatus()
    if job.unreadable or (job.invalid and old.phase and (outcome is None or outcome.reason is not Reason.INVALID)):
        new = replace(old, conditions=unapplied(old, status, now))
    else:
        new = _rendered(old, job, status, now)
    return status_body(new, job)


def _rendered(old: PaddleJobStatus, job: Job, status: Status, now: Time) -> PaddleJobStatus:
    spec: PaddleJobSpec | None = getattr(job.dialect, "spec", None)  # None for an invalid job
    ledger = status.ledger
    counts = {role.name: _counts(role, status) for role in status.roles}
    running_since = ledger.times.running
    return PaddleJobStatus(
        phase=_phase(job, status),
        mode=mode(spec) if spec is not None else old.mode,
        ps=counts.get("ps", UNSET),
        worker=counts.get("worker", UNSET),
        heter=counts.get("heter", UNSET),
        elastic=_elastic_state(status) if spec is not None and is_elastic(spec) else "",
        start_time=rfc3339(running_since) if old.start_time is UNSET and running_since is not None else old.start_time,
        completion_time=rfc3339(ledger.outcome.at) if ledger.outcome is not None else UNSET,
        observed_generation=job.generation,
        conditions=conditions(old, job, status, now),
        trainwright=ledger,
    )


def _phase(job: Job, status: Status) -> str:
    ledger = status.ledger
    if job.deleting and ledger.outcome is None:
        return "Terminating"
    if ledger.phase in (Phase.PENDING, Phase.RESUMING) and any(role.running for role in status.roles):
        return STARTING
    return PHASES[ledger.phase]


def _elastic_state(status: Status) -> str:
    """`NONE` until the job first runs, then `DONE` if all replicas run now, else `DOING`. Ended: `DONE` or `ERROR`."""
    ledger = status.ledger
    if ledger.outcome is not None:
        return "DONE" if ledger.outcome.result is Result.SUCCEEDED else "ERROR"
    if ledger.times.running is None:
        return "NONE"
    return "DONE" if all(role.all_running for role in status.roles) else "DOING"


def _counts(role: RoleState, status: Status) -> RoleStatus | UnsetType:
    """The counts and pods of a role; UNSET if there is nothing to count or list."""
    counts: dict[str, int] = {}
    refs: list[PodRef] = []
    for replica in role.replicas:
        pod = replica.pod or (replica.old if status.ledger.outcome is not None else None)
        if field := _count_field(replica, pod):
            counts[field] = counts.get(field, 0) + 1
        if pod is not None and len(refs) < MAX_REFS:
            meta = pod.metadata
            refs.append(PodRef("Pod", meta.namespace, meta.name, meta.uid, "v1"))
    return RoleStatus(**counts, refs=tuple(refs) or None) if refs or counts else UNSET


def _count_field(replica: ReplicaState, pod: Pod | None) -> str:
    """The field that counts a replica; empty if its pod does not exist or is being deleted."""
    if replica.state is State.STARTING and pod is not None:
        return "starting" if pod.spec.node_name else "pending"
    return _COUNTED.get(replica.state, "")
