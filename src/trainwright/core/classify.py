# SPDX-License-Identifier: Apache-2.0
"""One pod → what it means for its replica, and why. Called by `observe` for every pod, so the healthy path is short.

Order matters. 1 A pod that ended keeps its end, wherever its node went, and so do containers that count and succeeded
although others still run. 2 A pod that somebody is removing has not failed: a new one follows. 3 A lost node takes its
pods with it. 4 The containers that count may have failed although others still run. 5 Failed GPUs take pods along that
hold some and may be tried again. 6 The phase.

Pods whose containers cannot be made (no such image, a missing Secret), in roles that replace such pods.

For a while (`Creating.restart_period`) each is replaced when it has been stuck for so long (`duration_period`), since
another node may have better luck; after that its replica fails, or is only waited for. The while begins with the
replica's first such pod and goes on over its successors: the ledger knows since when. `observe` asks whether a
replica is given up, `settle` whether its pod is replaced, `lifecycle` keeps the ledger, `create` asks when to look.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.core import gate
from trainwright.core.nodes import NodeHealth
from trainwright.model.cause import Cause, CauseKind, brief, implied_signal
from trainwright.model.child import ContainerState, ContainerStatus, Pod, Terminated
from trainwright.model.job import Role
from trainwright.model.ledger import RoleLedger, Spell
from trainwright.model.meta import CONTAINER_SCHEME
from trainwright.model.plan import ReplicaState, State
from trainwright.model.site import CreationRules, Site
from trainwright.model.units import Time, after, due, members, spell

Conclusion = tuple[State, Cause | None]

#: Waiting reasons that mean a container cannot be made, as opposed to not yet.
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
#: Pod reasons that say the node, not the pod, was the matter.
DISRUPTIONS = frozenset(
    {
        "NodeShutdown",
        "Terminated",
        "Shutdown",
        "Preempting",
        "NodeLost",
        "SupervisorLost",  # what `trainwright` nodes say when the process that holds all containers has gone
        # Its node would not admit it, and nothing ran:
        "NodeAffinity",
        "NodePorts",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfephemeral-storage",
        "OutOfpods",
        "UnexpectedAdmissionError",
    }
)

#: Seconds that a kubelet may take to clear away what is left of a pod, before it says so.
LAST_WORD = 10.0

_RUNNING: Conclusion = (State.RUNNING, None)
_STARTING: Conclusion = (State.STARTING, None)
_STOPPING: Conclusion = (State.STOPPING, None)
_SUCCEEDED: Conclusion = (State.SUCCEEDED, Cause(CauseKind.COMPLETED))


def conclude(pod: Pod, role: Role, doubt: NodeHealth | None, site: Site, now: Time) -> Conclusion:
    """The state of the replica that this pod is, and the cause where there is one."""
    phase = pod.status.phase
    if phase in ("Succeeded", "Failed"):
        return _ended(pod, role)
    end = _mains_ended(pod, role) if role.mains else None
    if end is _SUCCEEDED:
        return end
    if pod.metadata.deletion_timestamp is not None:
        return _STOPPING
    if doubt is not None and doubt.lost(now):
        return State.LOST, Cause(CauseKind.NODE_LOST, message=brief(doubt.words), node=pod.spec.node_name)
    if end is not None:
        return end
    if doubt is not None and doubt.failed(role.name, now) and role.survives(CauseKind.DEVICE):
        # One that may not be tried again goes on for as long as it can: detectors have been wrong.
        return State.LOST, Cause(CauseKind.DEVICE, message=brief(doubt.sick), node=pod.spec.node_name)
    return _RUNNING if phase == "Running" else _starting(pod, role, patience(role, site), now)


def _ended(pod: Pod, role: Role) -> Conclusion:
    if pod.status.phase == "Succeeded":
        ends = [end for container, end in _ends(pod) if not role.mains or container.name in role.mains]
        return _STOPPING if _fell_with_deletion(pod, ends, unsure=False) else _SUCCEEDED
    if _fell_with_deletion(pod, [end for _, end in _ends(pod) if end.exit_code], unsure=True):
        return _STOPPING
    cause = _cause(pod, role)
    # What counts had ended well, and would have been seen to, had we looked while the rest still ran.
    return _SUCCEEDED if cause.why is CauseKind.EXIT and _mains_did_well(pod, role) else (State.FAILED, cause)


def _mains_did_well(pod: Pod, role: Role) -> bool:
    ends = {container.name: end.exit_code for container, end in _ends(pod) if container.name in role.mains}
    return bool(ends) and len(ends) == len(role.mains) and not any(ends.values())


def _fell_with_deletion(pod: Pod, ends: list[Terminated], *, unsure: bool) -> bool:
    """Whether the pod ended because it was being deleted: its containers ended only once that had been asked for.

    A program that saves its work on SIGTERM and exits with 0 has not done its work. `unsure`: what to say when no
    container tells its time.
    """
    deletion = pod.metadata.deletion_timestamp
    if deletion is None:
        return False
    grace: float = pod.metadata.deletion_grace_period_seconds or 0
    if not grace and pod.spec.termination_grace_period_seconds:
        # Its kubelet's last word: a deletion without grace, dated when that was said and not when it was asked to go.
        grace = pod.spec.termination_grace_period_seconds + LAST_WORD
    asked = deletion - timedelta(seconds=grace)
    times = [end.finished_at for end in ends if end.finished_at is not None]
    if not times:
        return unsure
    # A failed pod fell when its first container did, a successful one when its last did.
    return (min(times) if unsure else max(times)) >= asked


def _cause(pod: Pod, role: Role) -> Cause:
    """Why a failed pod failed."""
    status, node = pod.status, pod.spec.node_name
    for condition in status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return Cause(CauseKind.DISRUPTED, reason=condition.reason, message=brief(condition.message), node=node)
    why = (
        CauseKind.DISRUPTED
        if status.reason in DISRUPTIONS
        else CauseKind.EVICTED
        if status.reason == "Evicted"
        else CauseKind.REJECTED
    )
    told = Cause(why, reason=status.reason, message=brief(status.message), node=node)
    return told if why is not CauseKind.REJECTED else _exit(pod, role) or told


def _exit(pod: Pod, role: Role) -> Cause | None:
    """The first container to end badly: what follows it is often only its echo."""
    bad = [(container, end) for container, end in _ends(pod) if end.exit_code]
    bad = [pair for pair in bad if pair[0].name in role.mains] or bad
    if not bad:
        return None
    dated = [(end.finished_at, place) for place, (_, end) in enumerate(bad) if end.finished_at is not None]
    return _exited(pod, *bad[min(dated)[1] if len(dated) == len(bad) else 0])


def awaits_restart(pod: Pod) -> bool:
    """Whether the kubelet will start a container of this pod again: it has ended, or waits out its back-off.

    A container that runs is not one of them, however often it was restarted before.
    """
    if pod.status.phase in ("Succeeded", "Failed"):
        return False
    policy = pod.spec.restart_policy
    init, main = pod.status.init_container_statuses or (), pod.status.container_statuses or ()
    # An init container that succeeded is not run again, not even under Always.
    again = {one.name for one in main} if policy == "Always" else set()
    for container in (*init, *main):
        state = container.state or ContainerState()
        if state.terminated is not None and policy != "Never":
            if state.terminated.exit_code or container.name in again:
                return True
        elif state.waiting is not None and (container.restart_count or _ended_before(container)):
            return True
    return False


def _ended_before(container: ContainerStatus) -> bool:
    return container.last_state is not None and container.last_state.terminated is not None


def restarted(pod: Pod) -> Cause | None:
    """How the container that its kubelet restarted most often last ended."""
    groups = (pod.status.init_container_statuses, pod.status.container_statuses)
    often = max((one for group in groups for one in group or ()), key=lambda one: one.restart_count, default=None)
    for state in (often.state, often.last_state) if often is not None and often.restart_count else ():
        if often is not None and state is not None and state.terminated is not None:
            return _exited(pod, often, state.terminated)
    return None


def _exited(pod: Pod, container: ContainerStatus, end: Terminated) -> Cause:
    return Cause(
        CauseKind.EXIT,
        code=end.exit_code,
        signal=_signal(end),
        reason=end.reason,
        message=brief(end.message),
        container=container.name,
        node=pod.spec.node_name,
    )


def _signal(end: Terminated) -> int | UnsetType:
    """The signal, where it is known. A kubelet never tells; our own supervisor always does."""
    if end.signal:
        return end.signal
    return 0 if implied_signal(end.exit_code) and end.container_id.startswith(CONTAINER_SCHEME) else UNSET


def _ends(pod: Pod) -> list[tuple[ContainerStatus, Terminated]]:
    """The containers that have ended, init containers first: the order in which they ran."""
    status = pod.status
    return [
        (container, container.state.terminated)
        for group in (status.init_container_statuses, status.container_statuses)
        for container in group or ()
        if container.state is not None and container.state.terminated is not None
    ]


def _mains_ended(pod: Pod, role: Role) -> Conclusion | None:
    """The end of the containers that count, once all of them have ended; sidecars may go on for ever.

    An end that the kubelet answers with a restart in place is none.
    """
    mains = [c for c in pod.status.container_statuses or () if c.name in role.mains]
    again = pod.spec.restart_policy
    ends = [
        c.state.terminated
        for c in mains
        if c.state is not None
        and c.state.terminated is not None
        and (again == "Never" or (again == "OnFailure" and not c.state.terminated.exit_code))
    ]
    if not mains or len(ends) < len(role.mains):
        return None
    if any(end.exit_code for end in ends):
        return State.FAILED, _cause(pod, role)
    return None if _fell_with_deletion(pod, ends, unsure=False) else _SUCCEEDED


def _starting(pod: Pod, role: Role, most: float | None, now: Time) -> Conclusion:
    """Not running yet; with a cause if it cannot run as things are, failed once patience with it is over."""
    cause = _create_error(pod, role)
    if cause is None:
        return _STARTING
    due = impatient_at(pod, most)
    return (State.FAILED if due is not None and now >= due else State.STARTING), cause


def _create_error(pod: Pod, role: Role) -> Cause | None:
    status = pod.status
    for group in (status.init_container_statuses, status.container_statuses):
        for container in group or ():
            waiting = container.state.waiting if container.state is not None else None
            if waiting is not None and waiting.reason in CREATE_ERRORS and not gate.excuses(role, waiting):
                message = brief(waiting.message)
                return Cause(CauseKind.CREATE_ERROR, reason=waiting.reason, message=message, container=container.name)
    return None


def patience(role: Role, site: Site) -> float | None:
    """Seconds that containers which cannot be made are waited for: as the role says, else as the operator does.

    Of roles that replace such pods `creation` decides, which knows how long it has been over all of them.
    """
    return None if role.recreates else site.patience if role.patience is None else role.patience


def impatient_at(pod: Pod, most: float | None) -> Time | None:
    """When a pod whose containers cannot be made is given up, with that much patience."""
    begun = pod.status.start_time or pod.metadata.creation_timestamp
    return None if most is None or begun is None else due(begun, most)


#: More groups of stuck replicas than this are merged: the durable state stays bounded.
MOST_SPELLS = 32


def stuck_in_creation(role: Role, seen: ReplicaState) -> bool:
    """Its containers cannot be made, and its role replaces such pods."""
    return role.recreates and seen.state is State.STARTING and seen.cause is not None


def creation_given_up(book: RoleLedger, index: int, pod: Pod, creating: CreationRules, now: Time) -> bool:
    """Whether a stuck replica has failed."""
    return creating.fail and now >= _creation_ends(book, index, pod, creating, now)


def creation_overdue(book: RoleLedger, seen: ReplicaState, creating: CreationRules, now: Time) -> bool:
    """Whether a stuck pod is to be replaced."""
    time = _replaced_at(book, seen, creating, now)
    return time is not None and now >= time


def creation_wakes(book: RoleLedger, seen: ReplicaState, creating: CreationRules, now: Time) -> list[Time]:
    """When something becomes of a stuck pod by time alone."""
    if seen.pod is None:
        return []
    time = _replaced_at(book, seen, creating, now)
    times = [time] if time is not None else []
    return times + ([_creation_ends(book, seen.index, seen.pod, creating, now)] if creating.fail else [])


def _begun(pod: Pod, now: Time) -> Time:
    return pod.status.start_time or pod.metadata.creation_timestamp or now


def _creation_ends(book: RoleLedger, index: int, pod: Pod, creating: CreationRules, now: Time) -> Time:
    """When the while is over in which a replica's pods are replaced."""
    return due(since(book).get(index, _begun(pod, now)), creating.restart_period)


def _replaced_at(book: RoleLedger, seen: ReplicaState, creating: CreationRules, now: Time) -> Time | None:
    if seen.pod is None:
        return None
    time = after(_begun(seen.pod, now), creating.duration_period)
    return time if time < _creation_ends(book, seen.index, seen.pod, creating, now) else None


def since(book: RoleLedger) -> Mapping[int, Time]:
    """By replica: since when its containers have not been made."""
    return {index: one.since for one in book.stuck for index in members(one.indexes)}


def note_creation(book: RoleLedger, role: Role, replicas: Iterable[ReplicaState], now: Time) -> RoleLedger:
    """The book with those that are stuck, and without those that have run or ended meanwhile."""
    known, kept = since(book), dict[int, Time]()
    for seen in replicas:
        if stuck_in_creation(role, seen) and seen.pod is not None:
            kept[seen.index] = known.get(seen.index, _begun(seen.pod, now))
        elif seen.index in known and not seen.final and seen.state not in (State.RUNNING, State.SUCCEEDED):
            kept[seen.index] = known[seen.index]
    return book if kept == known else replace(book, stuck=_spells(kept))


def _spells(kept: Mapping[int, Time]) -> tuple[Spell, ...]:
    groups: dict[Time, set[int]] = {}
    for index, time in kept.items():
        groups.setdefault(time, set()).add(index)
    while len(groups) > MOST_SPELLS:
        # Those whose time is over last are given less of it: nothing waits longer than it should.
        second, last = sorted(groups)[-2:]
        groups[second] |= groups.pop(last)
    return tuple(Spell(time, spell(groups[time])) for time in sorted(groups))
