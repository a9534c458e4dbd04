# SPDX-License-Identifier: Apache-2.0
"""The status of a GenericJob in its own words: phase, conditions with the published texts, tasks, aggregate.

`core` concludes, this renders; called by the engines after every pass. Lists of replicas are cut to what matters, so
a job of 10,000 stays far below what an API server stores; the counts are always exact.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from trainwright.kinds.genericjob.conditions import conditions
from trainwright.kinds.genericjob.wire import Aggregate, GenericJobStatus, ReplicaStatus
from trainwright.model.child import ContainerStatus, Pod
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger, Phase, Reason, RoleLedger
from trainwright.model.plan import ReplicaState, RoleState, Status
from trainwright.model.units import Time

PHASES = {
    Phase.NEW: "Pending",
    Phase.PENDING: "Pending",
    Phase.RUNNING: "Running",
    Phase.RESTARTING: "Running",
    Phase.SUSPENDED: "Paused",
    Phase.RESUMING: "Resuming",
    Phase.SUCCEEDED: "Succeeded",
    Phase.FAILED: "Failed",
}
#: How many replicas, and containers in all, are listed one by one.
MOST_LISTED = 256
MOST_CONTAINERS = 256
_URGENCY = {"Failed": 0, "Unknown": 1, "Pending": 2, "Creating": 3, "Running": 4, "Succeeded": 5, "Deleted": 6}

Line = tuple[ReplicaState, str]


def render(before: GenericJobStatus | None, job: Job, status: Status, now: Time) -> Body:
    """The whole `status`."""
    outcome = status.ledger.outcome
    if job.unreadable or (
        job.invalid and before is not None and (outcome is None or outcome.reason is not Reason.INVALID)
    ):
        return _unapplied(before or GenericJobStatus(), job, status, now)
    lines = {role.name: [(seen, replica_phase(seen, status.ledger)) for seen in role.replicas] for role in status.roles}
    counts = Counter(phase.lower() for group in lines.values() for _, phase in group)
    aggregate = Aggregate(**counts)
    return {
        "phase": _phase(status, aggregate),
        "conditions": conditions(before.conditions if before is not None else None, job, status, now),
        "tasks": _tasks(before, job, status, lines),
        "aggregate": msgspec.to_builtins(aggregate),
        "trainwright": msgspec.to_builtins(status.ledger),
    }


def _unapplied(before: GenericJobStatus, job: Job, status: Status, now: Time) -> Body:
    """An edit that cannot be applied: everything stays as it was told, and one condition says what is wrong."""
    told: Body = msgspec.to_builtins(before)
    if job.unreadable:
        # What cannot be read is not ours to write over.
        told.pop("trainwright", None)
    return told | {"conditions": conditions(before.conditions, job, status, now)}


def _phase(status: Status, aggregate: Aggregate) -> str:
    """The phase; `Unknown` when no replica that should run can be reached."""
    phase = PHASES[status.ledger.phase]
    out_of_reach = aggregate.unknown and not (aggregate.running or aggregate.pending or aggregate.creating)
    return "Unknown" if out_of_reach and phase in ("Pending", "Running", "Resuming") else phase


def replica_phase(seen: ReplicaState, ledger: Ledger) -> str:
    """The five pod phases, `Creating` before a pod has a place, `Deleted` once it is gone for good."""
    pod = shown_pod(seen, ledger)
    if pod is None:
        over = seen.final or ledger.outcome is not None or ledger.phase is Phase.SUSPENDED
        return "Deleted" if over else "Creating"
    phase = pod.status.phase
    if phase == "Pending" and not pod.spec.node_name:
        return "Creating"
    return phase if phase in _URGENCY else "Unknown"


def shown_pod(seen: ReplicaState, ledger: Ledger) -> Pod | None:
    """The replica's pod; at the end of the job also one that was about to be replaced."""
    return seen.pod or (seen.old if ledger.outcome is not None else None)


def _tasks(stored: GenericJobStatus | None, job: Job, status: Status, lines: dict[str, list[Line]]) -> list[Body]:
    chosen = _chosen(lines)
    room = MOST_CONTAINERS
    tasks: list[Body] = []
    books = {book.name: book for book in status.ledger.roles}
    for role in status.roles:
        before, prefix = _before(stored, role.name), job.key.replica_prefix(role.name)
        task: Body = {"type": role.name}
        if restarts := _restarts(job, role, books.get(role.name)):
            task["restartCount"] = restarts
        task["replicas"] = []
        for seen, phase in lines[role.name]:
            if (role.name, seen.index) in chosen:
                pod = shown_pod(seen, status.ledger)
                line = _replica(f"{prefix}{seen.index}", pod, phase, before)
                line["containers"] = line["containers"][:room]
                room -= len(line["containers"])
                task["replicas"].append(line)
        tasks.append(task)
    return tasks


def _chosen(lines: dict[str, list[Line]]) -> set[tuple[str, int]]:
    """Which replicas are listed: all of a usual job; of a huge one those in trouble first, then the lowest ranks."""
    every = [(name, seen.index, phase) for name, group in lines.items() for seen, phase in group]
    if len(every) > MOST_LISTED:
        every = sorted(every, key=lambda line: (_URGENCY[line[2]], line[1]))[:MOST_LISTED]
    return {(name, index) for name, index, _ in every}


def _restarts(job: Job, role: RoleState, book: RoleLedger | None) -> int:
    """Restarts that have happened and count against the limit; disruptions are in `status.trainwright`."""
    free = next((one.restart.uncounted for one in job.roles if one.name == role.name), frozenset())
    return book.made(free) if book is not None else 0


def _before(stored: GenericJobStatus | None, role: str) -> dict[str, ReplicaStatus]:
    """What was last said of the role's replicas, by pod name; old statuses call the list `status`."""
    tasks = (stored.tasks if stored is not None else None) or ()
    found: Iterable[ReplicaStatus] = ()
    for task in tasks:
        if task.type == role:
            found = task.replicas or task.status or ()
    return {replica.name: replica for replica in found}


def _replica(name: str, pod: Pod | None, phase: str, before: dict[str, ReplicaStatus]) -> Body:
    if pod is not None:
        containers = [_container(one) for one in pod.status.container_statuses or ()]
        return {"name": name, "uid": pod.metadata.uid, "phase": phase, "containers": containers}
    if phase == "Deleted" and name in before:
        # The pod is gone, but how it ended is still worth telling.
        told: Body = msgspec.to_builtins(before[name])
        return told | {"phase": phase, "containers": [_over(one) for one in told.get("containers") or ()]}
    return {"name": name, "phase": phase, "containers": []}


def _over(told: Body) -> Body:
    """What was last said of a container whose pod is gone: it runs no more, however it ended."""
    return told if told.get("state") == "Terminated" else told | {"state": "Terminated"}


def _container(container: ContainerStatus) -> Body:
    state = container.state
    if state is None or state.waiting is not None:
        return {"name": container.name, "state": "Waiting"}
    if state.terminated is not None:
        return {"name": container.name, "state": "Terminated", "exitCode": state.terminated.exit_code}
    return {"name": container.name, "state": "Running"}
