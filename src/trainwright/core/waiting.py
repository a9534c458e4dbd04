# SPDX-License-Identifier: Apache-2.0
"""Why a job does not run: what keeps each replica from running, grouped by reason.

The answer uses only values of a pass: the state of the replicas, their pods, and the refusals of the API server. It
decides nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from trainwright.core import diagnose
from trainwright.core.attempts import find_entry, held_replicas
from trainwright.core.classify import exit_cause
from trainwright.core.observe import is_up
from trainwright.model.cause import brief
from trainwright.model.child import BACKING_OFF, Extra, ObjectCondition, Pod, Refusal
from trainwright.model.job import Job, RestartScope, Role
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.plan import ReplicaState, RoleState, State, Status
from trainwright.model.units import Time, rfc3339
from trainwright.model.verdict import FailureClass


class Obstacle(Struct, frozen=True, gc=False):
    """One reason for which replicas do not run, the replicas, since when, and what to do."""

    failure_class: FailureClass
    message: str
    replicas: tuple[str, ...]
    since: Time | None = None
    action: str = ""


class _Reason(Struct, frozen=True, gc=False):
    """What keeps one replica from running: the class, one sentence, since when, and the node of its pod."""

    failure_class: FailureClass
    message: str
    since: Time | None = None
    node: str = ""
    #: What to do about it; empty: the usual action for the class.
    action: str = ""


#: At most this many names are listed in a sentence.
_LISTED_NAMES = 3


def obstacles(
    job: Job, status: Status, refusals: Iterable[Refusal], now: Time, extras: Iterable[Extra] = ()
) -> tuple[Obstacle, ...]:
    """Return what keeps replicas from running, most replicas first. An ended or suspended job has no obstacles.

    `extras` are the pod groups of the job: a gang scheduler may keep pods from being created.
    """
    ledger = status.ledger
    if ledger.outcome is not None or ledger.phase is Phase.SUSPENDED or job.unmanaged:
        return ()
    view = _View(job, status, tuple(refusals), now, tuple(extras))
    found: dict[tuple[FailureClass, str], list[tuple[str, _Reason]]] = {}
    # A pass that leaves the job alone observes no replicas.
    for role, group in zip(job.roles, status.roles, strict=bool(status.roles)):
        for replica, reason in view.role_reasons(role, group):
            name = f"{role.name}-{replica.index}"
            found.setdefault((reason.failure_class, reason.message), []).append((name, reason))
    listed = [_obstacle(kind, message, members) for (kind, message), members in found.items()]
    return tuple(sorted(listed, key=lambda one: -len(one.replicas)))


def first_obstacle(job: Job, roles: tuple[RoleState, ...], refusals: Iterable[Refusal], now: Time) -> str:
    """Return the obstacle of the most replicas as a sentence; empty if nothing keeps replicas from running."""
    found = next(iter(obstacles(job, Status(job.ledger, roles), refusals, now)), None)
    return "" if found is None else f"{_listed(found.replicas)}: {found.message}"


def _obstacle(kind: FailureClass, message: str, members: list[tuple[str, _Reason]]) -> Obstacle:
    nodes = sorted({reason.node for _, reason in members} - {""})
    place = f", on node{'s' * (len(nodes) > 1)} {_listed(nodes)}" if nodes else ""
    since = min((reason.since for _, reason in members if reason.since is not None), default=None)
    names, action = tuple(name for name, _ in members), members[0][1].action or diagnose.ACTIONS.get(kind, "")
    return Obstacle(kind, brief(message + place), names, since, action)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED_NAMES
    return ", ".join(names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


class _View(Struct, frozen=True, gc=False):
    """The values of a pass from which the reasons are read."""

    job: Job
    status: Status
    refusals: tuple[Refusal, ...]
    now: Time
    extras: tuple[Extra, ...]

    def role_reasons(self, role: Role, group: RoleState) -> Iterator[tuple[ReplicaState, _Reason]]:
        """Yield the replicas of a role that do not run, each with the reason."""
        held = held_replicas(find_entry(self.status.ledger, role.name), self.now)
        # A replica can have a refused service and a refused pod. The pod matters more.
        refused = {one.name: one for one in sorted(self.refusals, key=lambda one: one.kind == "Pod")}
        absent = any(replica.pod is None for replica in group.replicas)
        not_created = self._not_created(role) if absent else None
        for replica in group.replicas:
            if replica.final or replica.state is State.SUCCEEDED:
                continue
            if replica.pod is not None:
                reason = _of_pod(role, replica, replica.pod)
            elif replica.index in held:
                reason = _of_hold(held[replica.index], self.now)
            elif replica.old is not None:
                reason = _of_old_pod(replica.old)
            else:
                name = self.job.key.replica_name(role.name, replica.index)
                reason = self._refusal(refused.get(name), name) or not_created
            if reason is not None:
                yield replica, reason

    def _refusal(self, refusal: Refusal | None, name: str) -> _Reason | None:
        if refusal is None:
            told = self.status.refused.get(name, "")
            return _Reason(FailureClass.REFUSED, f"its pod cannot be created: {told}") if told else None
        kind = FailureClass.QUOTA if refusal.quota else FailureClass.REFUSED
        what = brief(f"the API server refuses its {refusal.kind.lower()}: {refusal.message}")
        return _Reason(kind, what, refusal.since)

    def _not_created(self, role: Role) -> _Reason:
        """Return why no pod exists although nothing refuses it."""
        pairs = list(zip(self.job.roles, self.status.roles, strict=True))
        earlier = [
            f"{group.name}-{one.index}"
            for other, group in pairs
            if role.awaits_running and other.stage < role.stage
            for one in group.replicas
            if not is_up(one)
        ]
        if earlier:
            verb = "run" if len(earlier) > 1 else "runs"
            return _Reason(FailureClass.NONE, f"its pod is created when {_listed(earlier)} {verb}")
        leaving = [
            f"{group.name}-{one.index}"
            for _, group in pairs
            if role.barrier_scope is RestartScope.JOB
            or (role.barrier_scope is RestartScope.ROLE and group.name == role.name)
            for one in group.replicas
            if one.old is not None and one.old.status.phase not in ("Succeeded", "Failed")
        ]
        if leaving:
            return _Reason(FailureClass.NONE, f"its pod is created when the old pods of {_listed(leaving)} have ended")
        return self._of_group() or _Reason(FailureClass.NONE, "its pod is not created yet")

    def _of_group(self) -> _Reason | None:
        """Return whether the pod group of the job keeps pods from being created."""
        for refusal in self.refusals:
            if refusal.kind not in ("Pod", "Service"):
                what = brief(f"the API server refuses the job's {refusal.kind} {refusal.name}: {refusal.message}")
                return _Reason(FailureClass.QUOTA if refusal.quota else FailureClass.REFUSED, what, refusal.since)
        gang = self.job.gang
        for one in self.extras:
            choice = next((each for each in gang.choices() if each.api == one.api_version), None) if gang else None
            phase = one.status.phase if one.status is not None else ""
            if choice is not None and choice.admitting_phases and phase not in choice.admitting_phases:
                told = f"is in phase {phase}" if phase else "has no phase yet"
                what = f"its pod is created when the scheduler admits the {one.kind} {one.metadata.name}, which {told}"
                return _Reason(FailureClass.NONE, what, one.metadata.creation_timestamp)
        return None


def _of_hold(until: Time, now: Time) -> _Reason:
    seconds = (until - now).total_seconds()
    return _Reason(FailureClass.NONE, f"its restart waits for its back-off: {seconds:.0f} s, until {rfc3339(until)}")


def _of_old_pod(old: Pod) -> _Reason:
    return _Reason(FailureClass.NONE, "its old pod still ends", old.metadata.deletion_timestamp, old.spec.node_name)


def _of_pod(role: Role, replica: ReplicaState, pod: Pod) -> _Reason | None:
    """Return what a pod waits for; None if it runs."""
    status, since, node = pod.status, pod.metadata.creation_timestamp, pod.spec.node_name
    if replica.state is State.STOPPING:
        return _of_old_pod(pod)
    if (crashed := _crash_loop(pod)) is not None or replica.state is State.RUNNING:
        return crashed
    if replica.cause is not None:
        found = diagnose.diagnose(replica.cause)
        return _Reason(found.failure_class, brief(str(replica.cause)), since, node)
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return _unscheduled(role, condition, since)
    for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        waiting = container.state.waiting if container.state is not None else None
        if waiting is not None and role.gate and role.gate in waiting.missing:
            return _Reason(FailureClass.NONE, "its pod starts when every replica has an address", since)
        if waiting is not None and waiting.reason and waiting.message:
            text = f"container {container.name} waits ({waiting.reason}: {waiting.message})"
            return _Reason(FailureClass.NONE, brief(text), since, node)
    return _Reason(FailureClass.NONE, "its containers start" if node else "its pod waits for a node", since, node)


def _unscheduled(role: Role, condition: ObjectCondition, since: Time | None) -> _Reason:
    since, told = condition.last_transition_time or since, condition.message or condition.reason
    if condition.reason != "Unschedulable":
        return _Reason(FailureClass.NONE, brief(f"it is not scheduled ({told})"), since)
    requests = f" (each requests {found})" if (found := _requests(role)) else ""
    return _Reason(FailureClass.UNSCHEDULABLE, brief(told + requests), since)


def _requests(role: Role) -> str:
    """Return what the containers of one replica request, such as `cpu 4, nvidia.com/gpu 8`."""
    found: dict[str, list[str]] = {}
    for container in (role.template.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        for name, amount in ((resources.get("limits") or {}) | (resources.get("requests") or {})).items():
            found.setdefault(str(name), []).append(str(amount))
    return ", ".join(f"{name} {' + '.join(amounts)}" for name, amounts in sorted(found.items()))


def _crash_loop(pod: Pod) -> _Reason | None:
    """Return why the kubelet waits before it restarts a container."""
    for container in (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())):
        state, last = container.state, container.last_state
        if state is None or state.waiting is None or state.waiting.reason != BACKING_OFF:
            continue
        again = f"its node waits before it restarts it (restart {container.restart_count + 1})"
        if last is None or last.terminated is None:
            return _Reason(FailureClass.PROGRAM_ERROR, f"container {container.name}: {again}", node=pod.spec.node_name)
        cause = exit_cause(pod, container, last.terminated)
        found, since = diagnose.diagnose(cause), last.terminated.finished_at
        text = f"{cause}{': ' * bool(found.line)}{found.line}; {again}"
        return _Reason(found.failure_class, text, since, pod.spec.node_name, found.action)
    return None


def is_waiting(ledger: Ledger) -> bool:
    """Return whether a job should run but does not."""
    return ledger.phase in (Phase.PENDING, Phase.RESTARTING, Phase.RESUMING)
