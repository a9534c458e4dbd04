# SPDX-License-Identifier: Apache-2.0
"""The status of a GenericJob: phase, conditions, tasks and aggregate.

The list of replicas is limited, so that the status of a job with 10,000 replicas stays far below the size that an API
server stores; the counts are always exact.
"""

from collections import Counter

import msgspec
from msgspec.structs import replace

from trainwright.kinds.genericjob.conditions import conditions
from trainwright.kinds.genericjob.wire import Aggregate, GenericJobStatus, ReplicaStatus, Task
from trainwright.kinds.rendering import status_body
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
#: Maximum number of replicas, and of their containers in total, that the status lists.
MAX_LISTED_REPLICAS = 256
MAX_LISTED_CONTAINERS = 256
#: A large job lists only some replicas: first those whose phase has the lowest number here.
_URGENCY = {"Failed": 0, "Unknown": 1, "Pending": 2, "Creating": 3, "Running": 4, "Succeeded": 5, "Deleted": 6}
_ENDED = {"state": "Terminated"}
#: A replica, and its phase.
Row = tuple[ReplicaState, str]


def render(before: GenericJobStatus | None, job: Job, status: Status, now: Time) -> Body:
    """The whole `status`."""
    outcome = status.ledger.outcome
    unapplied = job.invalid and before is not None and (outcome is None or outcome.reason is not Reason.INVALID)
    if job.unreadable or unapplied:
        # The edit cannot be applied, so the status stays as it was, with a condition that contains the errors.
        old = before or GenericJobStatus()
        return status_body(replace(old, conditions=conditions(old, job, status, now)), job)
    rows = {role.name: [(one, replica_phase(one, status.ledger)) for one in role.replicas] for role in status.roles}
    counts = Counter(phase.lower() for group in rows.values() for _, phase in group)
    aggregate = Aggregate(**counts)
    return {
        "phase": _phase(status, aggregate),
        "conditions": msgspec.to_builtins([*conditions(before, job, status, now)]),
        "tasks": _tasks(before, job, status, rows),
        "aggregate": msgspec.to_builtins(aggregate),
        "trainwright": msgspec.to_builtins(status.ledger),
    }


def _phase(status: Status, aggregate: Aggregate) -> str:
    """The phase; `Unknown` if none of the replicas that should run can be reached."""
    phase = PHASES[status.ledger.phase]
    out_of_reach = aggregate.unknown and not (aggregate.running or aggregate.pending or aggregate.creating)
    return "Unknown" if out_of_reach and phase in ("Pending", "Running", "Resuming") else phase


def replica_phase(replica: ReplicaState, ledger: Ledger) -> str:
    """The pod's phase. `Creating`: it has no node or does not exist yet. `Deleted`: it is gone, no new pod follows."""
    pod = shown_pod(replica, ledger)
    if pod is None:
        over = replica.final or ledger.outcome is not None or ledger.phase is Phase.SUSPENDED
        return "Deleted" if over else "Creating"
    phase = pod.status.phase
    if phase == "Pending" and not pod.spec.node_name:
        return "Creating"
    return phase if phase in _URGENCY else "Unknown"


def shown_pod(replica: ReplicaState, ledger: Ledger) -> Pod | None:
    """The replica's pod. After the end of the job, also an old pod: it will not be replaced any more."""
    return replica.pod or (replica.old if ledger.outcome is not None else None)


def _tasks(stored: GenericJobStatus | None, job: Job, status: Status, rows: dict[str, list[Row]]) -> list[Body]:
    listed = _listed(rows)
    containers_left = MAX_LISTED_CONTAINERS
    tasks: list[Body] = []
    ledgers = {one.name: one for one in status.ledger.roles}
    for role in status.roles:
        before, prefix = _before(stored, role.name), job.key.replica_prefix(role.name)
        task: Body = {"type": role.name}
        if restarts := _restarts(job, role, ledgers.get(role.name)):
            task["restartCount"] = restarts
        task["replicas"] = []
        for replica, phase in rows[role.name]:
            if (role.name, replica.index) in listed:
                pod = shown_pod(replica, status.ledger)
                body = _replica(f"{prefix}{replica.index}", pod, phase, before)
                body["containers"] = body["containers"][:containers_left]
                containers_left -= len(body["containers"])
                task["replicas"].append(body)
        tasks.append(task)
    return tasks


def _listed(rows: dict[str, list[Row]]) -> set[tuple[str, int]]:
    """Which replicas are listed: all, or for a large job the most urgent replicas, and among these the lowest ranks."""
    every = [(name, replica.index, phase) for name, group in rows.items() for replica, phase in group]
    if len(every) > MAX_LISTED_REPLICAS:
        every = sorted(every, key=lambda row: (_URGENCY[row[2]], row[1]))[:MAX_LISTED_REPLICAS]
    return {(name, index) for name, index, _ in every}


def _restarts(job: Job, role: RoleState, ledger: RoleLedger | None) -> int:
    """The number of restarts that count against the limit; `status.trainwright` also has restarts after disruptions."""
    free = next((one.restart.uncounted for one in job.roles if one.name == role.name), frozenset())
    return ledger.made(free) if ledger is not None else 0


def _before(stored: GenericJobStatus | None, role: str) -> dict[str, ReplicaStatus]:
    """The stored status of the role's replicas, by pod name; an old status calls the list `status`."""
    tasks = (stored.tasks if stored is not None else None) or ()
    found = next((task for task in reversed(tasks) if task.type == role), Task())
    return {replica.name: replica for replica in found.replicas or found.status or ()}


def _replica(name: str, pod: Pod | None, phase: str, before: dict[str, ReplicaStatus]) -> Body:
    if pod is not None:
        containers = [_container(one) for one in pod.status.container_statuses or ()]
        return {"name": name, "uid": pod.metadata.uid, "phase": phase, "containers": containers}
    if phase == "Deleted" and name in before:
        # The pod is gone, but users still want to see how it ended.
        body: Body = msgspec.to_builtins(before[name])
        return body | {"phase": phase, "containers": [one | _ENDED for one in body.get("containers") or ()]}
    return {"name": name, "phase": phase, "containers": []}


def _container(container: ContainerStatus) -> Body:
    state = container.state
    if state is None or state.waiting is not None:
        return {"name": container.name, "state": "Waiting"}
    if state.terminated is not None:
        return {"name": container.name, **_ENDED, "exitCode": state.terminated.exit_code}
    return {"name": container.name, "state": "Running"}
