# SPDX-License-Identifier: Apache-2.0
"""The status of a PaddleJob in its own words: phase, mode, counts and pods by role, times, conditions.

`core` concludes, this renders; called by the engines after every pass.
"""

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds.paddlejob.conditions import conditions, unapplied
from trainwright.kinds.paddlejob.wire import (
    MOST_REFS,
    PaddleJobSpec,
    PaddleJobStatus,
    PodRef,
    RoleStatus,
    elastic,
    mode,
)
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


def render(before: PaddleJobStatus | None, job: Job, status: Status, now: Time) -> Body:
    """The whole `status`."""
    outcome, old = status.ledger.outcome, before or PaddleJobStatus()
    if job.unreadable or (job.invalid and old.phase and (outcome is None or outcome.reason is not Reason.INVALID)):
        new = replace(old, conditions=unapplied(old.conditions, status, now))
    else:
        new = _rendered(old, job, status, now)
    body: Body = msgspec.to_builtins(new)
    if job.unreadable:
        # What cannot be read is not ours to write over.
        body.pop("trainwright", None)
    return body


def _rendered(old: PaddleJobStatus, job: Job, status: Status, now: Time) -> PaddleJobStatus:
    spec, ledger = _spec(job), status.ledger
    counts = {group.name: _counts(group, status) for group in status.roles}
    began = ledger.times.running
    return PaddleJobStatus(
        phase=_phase(job, status),
        mode=mode(spec) if spec is not None else old.mode,
        ps=counts.get("ps", UNSET),
        worker=counts.get("worker", UNSET),
        heter=counts.get("heter", UNSET),
        elastic=_elastic(status) if spec is not None and elastic(spec) else "",
        start_time=rfc3339(began) if old.start_time is UNSET and began is not None else old.start_time,
        completion_time=rfc3339(ledger.outcome.at) if ledger.outcome is not None else UNSET,
        observed_generation=job.generation,
        conditions=conditions(old.conditions, job, status, now),
        trainwright=ledger,
    )


def _spec(job: Job) -> PaddleJobSpec | None:
    """None of a job that cannot be run."""
    return getattr(job.dialect, "spec", None)


def _phase(job: Job, status: Status) -> str:
    ledger = status.ledger
    if job.deleting and ledger.outcome is None:
        return "Terminating"
    if ledger.phase in (Phase.PENDING, Phase.RESUMING) and any(role.running for role in status.roles):
        return STARTING
    return PHASES[ledger.phase]


def _elastic(status: Status) -> str:
    """Whether as many run as there should be, since they first did."""
    ledger = status.ledger
    if ledger.outcome is not None:
        return "DONE" if ledger.outcome.result is Result.SUCCEEDED else "ERROR"
    if ledger.times.running is None:
        return "NONE"
    return "DONE" if all(role.all_running for role in status.roles) else "DOING"


def _counts(group: RoleState, status: Status) -> RoleStatus | UnsetType:
    """Nothing where there is no pod and never was one that ended."""
    counts = dict.fromkeys(("pending", "starting", "running", "failed", "succeeded", "unknown"), 0)
    refs: list[PodRef] = []
    for seen in group.replicas:
        pod = seen.pod or (seen.old if status.ledger.outcome is not None else None)
        word = _word(seen, pod)
        if word:
            counts[word] += 1
        if pod is not None and len(refs) < MOST_REFS:
            meta = pod.metadata
            refs.append(PodRef("Pod", meta.namespace, meta.name, meta.uid, "v1"))
    if not refs and not any(counts.values()):
        return UNSET
    return RoleStatus(**counts, refs=tuple(refs) or None)


def _word(seen: ReplicaState, pod: Pod | None) -> str:
    """How one replica is counted; one that is not there, or on its way out, is not."""
    match seen.state:
        case State.RUNNING:
            return "running"
        case State.SUCCEEDED:
            return "succeeded"
        case State.FAILED:
            return "failed"
        case State.LOST:
            return "unknown"
        case State.STARTING if pod is not None:
            return "starting" if pod.spec.node_name else "pending"
    return ""
