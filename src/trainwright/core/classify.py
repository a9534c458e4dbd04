# SPDX-License-Identifier: Apache-2.0
"""Classify one pod: the state of its replica, and the cause of an end.

The first match wins: 1. A pod that has ended keeps its result, even if its node is lost. Main containers that have
succeeded decide like an ended pod, even if other containers still run. 2. A pod that is being deleted has not failed: a
new pod follows. 3. A pod on a lost node is lost. 4. A pod has failed if all its main containers have ended and one of
them has failed, even if other containers still run. 5. A pod that holds failed GPUs is lost, if the policy of its role
allows a restart. 6. The pod's phase decides.

Some roles replace a pod whose containers cannot be created (no such image, a missing Secret), because a new pod may
start on another node. A stuck pod is replaced after `CreationRules.duration_period`. The replacements end
`restart_period` seconds after the replica became stuck; then the replica fails or waits. The ledger stores the time at
which the replica became stuck.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.core.nodes import NodeHealth
from trainwright.model.cause import LONGEST_MESSAGE, Cause, CauseKind, brief, implied_signal
from trainwright.model.child import ContainerState, ContainerStatus, Pod, Terminated
from trainwright.model.job import Role
from trainwright.model.ledger import RoleLedger, StuckPeriod
from trainwright.model.meta import CONTAINER_SCHEME
from trainwright.model.plan import ReplicaState, State
from trainwright.model.site import CreationRules, Site
from trainwright.model.units import Time, after, due, format_indexes, parse_indexes

Conclusion = tuple[State, Cause | None]

#: Waiting reasons of a container that cannot be created. Other reasons mean that it is not created yet.
CREATE_ERRORS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ImagePullBackOff",
        "ImageInspectError",
        "ErrImagePull",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "InvalidImageName",
    }
)
#: Reasons of failed pods for which the node is responsible, not the program in the pod.
DISRUPTIONS = frozenset(
    {
        "NodeShutdown",
        "Terminated",
        "Shutdown",
        "Preempting",
        "NodeLost",
        "SupervisorLost",  # reported by `trainwright` nodes when the supervisor process has ended
        # The node did not admit the pod, and nothing ran:
        "NodeAffinity",
        "NodePorts",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfephemeral-storage",
        "OutOfpods",
        "UnexpectedAdmissionError",
    }
)

#: The reason of every `DisruptionTarget` condition that a kubelet sets.
_BY_KUBELET = "TerminationByKubelet"

#: Seconds that a kubelet may need to clean up a pod before it reports the end.
KUBELET_CLEANUP_SECONDS = 10.0

_RUNNING: Conclusion = (State.RUNNING, None)
_STARTING: Conclusion = (State.STARTING, None)
_STOPPING: Conclusion = (State.STOPPING, None)
_SUCCEEDED: Conclusion = (State.SUCCEEDED, Cause(CauseKind.COMPLETED))


def classify_pod(pod: Pod, role: Role, health: NodeHealth | None, site: Site, now: Time) -> Conclusion:
    """Return the state of the pod's replica, and the cause if there is one."""
    phase = pod.status.phase
    if phase in ("Succeeded", "Failed"):
        return _classify_ended(pod, role)
    end = _mains_ended(pod, role) if role.main_containers else None
    if end is _SUCCEEDED:
        return end
    if pod.metadata.deletion_timestamp is not None:
        return _STOPPING
    if health is not None and health.is_lost(now):
        return State.LOST, Cause(CauseKind.NODE_LOST, message=brief(health.not_ready_message), node=pod.spec.node_name)
    if end is not None:
        return end
    if health is not None and health.devices_have_failed(role.name, now) and role.may_retry(CauseKind.DEVICE):
        # A replica that must not be restarted continues to run, because the report of failed GPUs can be wrong.
        return State.LOST, Cause(CauseKind.DEVICE, message=brief(health.device_message), node=pod.spec.node_name)
    return _RUNNING if phase == "Running" else _starting(pod, role, create_error_timeout(role, site), now)


def _classify_ended(pod: Pod, role: Role) -> Conclusion:
    if pod.status.phase == "Succeeded":
        return _STOPPING if _ended_by_deletion(pod, _main_ends(pod, role), failed=False) else _SUCCEEDED
    deleted = pod.metadata.deletion_timestamp is not None
    if deleted and _ended_by_deletion(pod, [end for _, end in _terminated(pod) if end.exit_code], failed=True):
        return _STOPPING
    cause = _cause(pod, role)
    if role.main_containers and cause.why is CauseKind.EXIT:
        codes = [end.exit_code for end in _main_ends(pod, role)]
        # The pod has succeeded if all main containers succeeded before another container failed.
        if len(codes) == len(role.main_containers) and not any(codes):
            return _SUCCEEDED
    return State.FAILED, cause


def _ended_by_deletion(pod: Pod, ends: list[Terminated], *, failed: bool) -> bool:
    """Return whether the pod ended because of its deletion: its containers ended after the deletion request.

    A program that saves its work on SIGTERM and exits with 0 has not finished. `failed` says whether the pod failed; a
    failed pod without end times counts as ended by the deletion.
    """
    deletion = pod.metadata.deletion_timestamp
    if deletion is None:
        return False
    grace: float = pod.metadata.deletion_grace_period_seconds or 0
    if not grace and pod.spec.termination_grace_period_seconds:
        # The kubelet's own delete request has overwritten the deletion time and set the grace period to 0. Estimate
        # the time of the first delete request.
        grace = pod.spec.termination_grace_period_seconds + KUBELET_CLEANUP_SECONDS
    asked = deletion - timedelta(seconds=grace)
    times = [end.finished_at for end in ends if end.finished_at is not None]
    if not times:
        return failed
    # A failed pod ended with its first failed container, a successful pod with its last container.
    return (min(times) if failed else max(times)) >= asked


def _cause(pod: Pod, role: Role) -> Cause:
    """Return why a failed pod failed."""
    status, node = pod.status, pod.spec.node_name
    if (disrupted := disruption(pod)) is not None:
        return disrupted
    blamed = CauseKind.EVICTED if status.reason == "Evicted" else CauseKind.REJECTED
    why = CauseKind.DISRUPTED if status.reason in DISRUPTIONS else blamed
    cause = Cause(why, reason=status.reason, message=brief(status.message), node=node)
    return cause if why is not CauseKind.REJECTED else _first_failed_exit(pod, role) or cause


def disruption(pod: Pod) -> Cause | None:
    """Return why the cluster ends or has ended this pod, if the pod says that: a preemption, an eviction, a drain."""
    status = pod.status
    for condition in status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            # A kubelet sets the same reason for evictions, preemptions and node shutdowns. `status.reason` of the pod
            # is different for each of them.
            told = condition.reason if condition.reason != _BY_KUBELET else status.reason or condition.reason
            message = brief(condition.message or status.message)
            return Cause(CauseKind.DISRUPTED, reason=told, message=message, node=pod.spec.node_name)
    return None


def _first_failed_exit(pod: Pod, role: Role) -> Cause | None:
    """Return the end of the container that failed first, because later failures are often consequences."""
    bad = [(container, end) for container, end in _terminated(pod) if end.exit_code]
    bad = [pair for pair in bad if pair[0].name in role.main_containers] or bad
    if not bad:
        return None
    dated = [(end.finished_at, place) for place, (_, end) in enumerate(bad) if end.finished_at is not None]
    return exit_cause(pod, *bad[min(dated)[1] if len(dated) == len(bad) else 0])


def awaits_restart(pod: Pod) -> bool:
    """Return whether the kubelet will restart a container: the container has ended, or waits for its back-off.

    A running container does not count, however often it was restarted.
    """
    if pod.status.phase in ("Succeeded", "Failed"):
        return False
    policy = pod.spec.restart_policy
    init, main = pod.status.init_container_statuses or (), pod.status.container_statuses or ()
    # With `Always`, the kubelet restarts main containers even after success. Init containers that succeeded stay ended.
    again = {one.name for one in main} if policy == "Always" else set()
    for container in (*init, *main):
        state = container.state or ContainerState()
        if state.terminated is not None and policy != "Never":
            if state.terminated.exit_code or container.name in again:
                return True
        elif state.waiting is not None:
            before = container.last_state or ContainerState()
            if container.restart_count or before.terminated is not None:
                return True
    return False


def last_in_place_end(pod: Pod) -> Cause | None:
    """Return the last end of the container that the kubelet restarted most often."""
    groups = (pod.status.init_container_statuses, pod.status.container_statuses)
    often = max((one for group in groups for one in group or ()), key=lambda one: one.restart_count, default=None)
    for state in (often.state, often.last_state) if often is not None and often.restart_count else ():
        if often is not None and state is not None and state.terminated is not None:
            return exit_cause(pod, often, state.terminated)
    return None


def exit_cause(pod: Pod, container: ContainerStatus, end: Terminated) -> Cause:
    """Return this end of a container as a cause."""
    return Cause(
        CauseKind.EXIT,
        code=end.exit_code,
        signal=_signal(end),
        reason=end.reason,
        # Keep the end of the message: with FallbackToLogsOnError it is the end of the log, which has the error.
        message=brief(end.message[-LONGEST_MESSAGE:]),
        container=container.name,
        node=pod.spec.node_name,
    )


def _signal(end: Terminated) -> int | UnsetType:
    """Return the signal that ended the container; 0: no signal; UNSET: unknown, because kubelets report no signals."""
    if end.signal:
        return end.signal
    return 0 if implied_signal(end.exit_code) and end.container_id.startswith(CONTAINER_SCHEME) else UNSET


def _terminated(pod: Pod) -> list[tuple[ContainerStatus, Terminated]]:
    """Return the ended containers in the order in which they ran: init containers first."""
    status = pod.status
    return [
        (container, container.state.terminated)
        for group in (status.init_container_statuses, status.container_statuses)
        for container in group or ()
        if container.state is not None and container.state.terminated is not None
    ]


def _main_ends(pod: Pod, role: Role) -> list[Terminated]:
    """Return the ends of the main containers, or of all containers if the role has no main containers."""
    mains = role.main_containers
    return [end for container, end in _terminated(pod) if not mains or container.name in mains]


def _mains_ended(pod: Pod, role: Role) -> Conclusion | None:
    """Return the result of the main containers once all of them have ended; sidecars may still run.

    An end after which the kubelet restarts the container does not count.
    """
    again = pod.spec.restart_policy
    ends = [end for end in _main_ends(pod, role) if again == "Never" or (again == "OnFailure" and not end.exit_code)]
    if len(ends) < len(role.main_containers):
        return None
    if any(end.exit_code for end in ends):
        return State.FAILED, _cause(pod, role)
    return None if _ended_by_deletion(pod, ends, failed=False) else _SUCCEEDED


def _starting(pod: Pod, role: Role, most: float | None, now: Time) -> Conclusion:
    """Return Starting, with a cause if a container cannot be created, or Failed after the timeout."""
    cause = _create_error(pod, role)
    if cause is None:
        return _STARTING
    due = given_up_at(pod, most)
    return (State.FAILED if due is not None and now >= due else State.STARTING), cause


def _create_error(pod: Pod, role: Role) -> Cause | None:
    status = pod.status
    for group in (status.init_container_statuses, status.container_statuses):
        for container in group or ():
            waiting = container.state.waiting if container.state is not None else None
            # A container that waits only for its gate has no creation error.
            if waiting is not None and waiting.reason in CREATE_ERRORS and role.gate not in waiting.missing:
                message, node = brief(waiting.message), pod.spec.node_name
                return Cause(
                    CauseKind.CREATE_ERROR, reason=waiting.reason, message=message, container=container.name, node=node
                )
    return None


def create_error_timeout(role: Role, site: Site) -> float | None:
    """Return the number of seconds after which a replica fails because a container cannot be created.

    The role's own setting wins over the site's. None: no timeout. A role that replaces such pods has no timeout here;
    `is_given_up` decides for it.
    """
    return None if role.recreates_pods else site.patience if role.patience is None else role.patience


def given_up_at(pod: Pod, most: float | None) -> Time | None:
    """Return when a pod fails if its containers still cannot be created: `most` seconds after the pod started."""
    begun = pod.status.start_time or pod.metadata.creation_timestamp
    return None if most is None or begun is None else due(begun, most)


#: Maximum number of stuck periods per role. If there are more, the two newest are merged: the ledger stays small.
MAX_STUCK_PERIODS = 32


def is_stuck(role: Role, replica: ReplicaState) -> bool:
    """Return whether the replica's containers cannot be created and its role replaces such pods."""
    return role.recreates_pods and replica.state is State.STARTING and replica.cause is not None


def is_given_up(entry: RoleLedger, index: int, pod: Pod, creating: CreationRules, now: Time) -> bool:
    """Return whether a stuck replica has failed, because its pods are no longer replaced."""
    return creating.fail and now >= _replacing_ends_at(entry, index, pod, creating, now)


def is_replacement_due(entry: RoleLedger, replica: ReplicaState, creating: CreationRules, now: Time) -> bool:
    """Return whether a stuck pod must be replaced now."""
    time = _replaced_at(entry, replica, creating, now)
    return time is not None and now >= time


def stuck_wakes(entry: RoleLedger, replica: ReplicaState, creating: CreationRules, now: Time) -> list[Time]:
    """Return the times at which a stuck pod is replaced or fails."""
    if replica.pod is None:
        return []
    time = _replaced_at(entry, replica, creating, now)
    times = [time] if time is not None else []
    return times + ([_replacing_ends_at(entry, replica.index, replica.pod, creating, now)] if creating.fail else [])


def _begun_at(pod: Pod, now: Time) -> Time:
    return pod.status.start_time or pod.metadata.creation_timestamp or now


def _replacing_ends_at(entry: RoleLedger, index: int, pod: Pod, creating: CreationRules, now: Time) -> Time:
    """Return the time until which pods of a stuck replica are replaced."""
    return due(stuck_since(entry).get(index, _begun_at(pod, now)), creating.restart_period)


def _replaced_at(entry: RoleLedger, replica: ReplicaState, creating: CreationRules, now: Time) -> Time | None:
    if replica.pod is None:
        return None
    time = after(_begun_at(replica.pod, now), creating.duration_period)
    return time if time < _replacing_ends_at(entry, replica.index, replica.pod, creating, now) else None


def stuck_since(entry: RoleLedger) -> Mapping[int, Time]:
    """Return for each stuck replica the time at which it became stuck."""
    return {index: one.since for one in entry.stuck for index in parse_indexes(one.indexes)}


def update_stuck(entry: RoleLedger, role: Role, replicas: Iterable[ReplicaState], now: Time) -> RoleLedger:
    """Add replicas that are stuck; remove replicas that run, have succeeded or are final."""
    known, kept = stuck_since(entry), dict[int, Time]()
    for replica in replicas:
        if is_stuck(role, replica) and replica.pod is not None:
            kept[replica.index] = known.get(replica.index, _begun_at(replica.pod, now))
        elif replica.index in known and not replica.final and replica.state not in (State.RUNNING, State.SUCCEEDED):
            kept[replica.index] = known[replica.index]
    return entry if kept == known else replace(entry, stuck=_stuck_periods(kept))


def _stuck_periods(kept: Mapping[int, Time]) -> tuple[StuckPeriod, ...]:
    groups: dict[Time, set[int]] = {}
    for index, time in kept.items():
        groups.setdefault(time, set()).add(index)
    while len(groups) > MAX_STUCK_PERIODS:
        # The merged group gets the earlier of the two times, so no replica waits longer than its period.
        second, last = sorted(groups)[-2:]
        groups[second] |= groups.pop(last)
    return tuple(StuckPeriod(time, format_indexes(groups[time])) for time in sorted(groups))
