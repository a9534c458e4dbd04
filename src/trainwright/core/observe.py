# SPDX-License-Identifier: Apache-2.0
"""Classify everything that exists for a job, once per pass: replicas by role and index, stale pods, foreign pods.

A child is ours if this job is its controller, by UID. A pod without a controller that has a replica's name and this
job's UID as a label is adopted. A pod that we control but whose labels were removed is released, not deleted. All other
pods are foreign. The result is a `Snapshot`, which all later steps use.

The phase of a live job is also decided here. `Pending` and `Resuming` last until every replica has run; after that, a
missing replica means `Restarting`. After `Succeeded` or `Failed`, the phase never changes.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from trainwright.core import attempts, classify, gate, nodes
from trainwright.core.classify import classify_pod
from trainwright.core.nodes import NodeHealth
from trainwright.model.child import Observed, Pod, PodStatus
from trainwright.model.job import Body, Job, Role
from trainwright.model.ledger import Ledger, Phase, RoleLedger
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE, SPARE, Meta
from trainwright.model.plan import Patch, ReplicaState, RoleState, State
from trainwright.model.site import Site
from trainwright.model.units import Time, parse_indexes

_NEW_POD = PodStatus()
#: `is_minor_change` searches for waiting pods only in jobs with at most this many pods.
_MAX_SEARCHED_PODS = 256


def is_ours(job: Job, pod: Pod) -> bool:
    """Return whether this job controls the pod and our labels are on it."""
    labels = pod.metadata.labels
    if not labels or labels.get(JOB_UID) != job.uid or ROLE not in labels or INDEX not in labels:
        return False
    return _is_controlled_by(pod.metadata, job.uid)


def ownership_patch(job: Job, pod: Pod) -> Patch | None:
    """Return the patch that adopts or releases a pod, or None. Pods that are being deleted are left alone."""
    if job.deleting or pod.metadata.deletion_timestamp is not None:
        return None
    labels = pod.metadata.labels or {}
    controller = pod.metadata.controller
    complete = labels.get(JOB_UID) == job.uid and ROLE in labels and INDEX in labels and ATTEMPT in labels
    owners = [owner for owner in pod.metadata.owner_references or () if owner.uid != job.uid]
    if complete and controller is None and _has_replica_name(job, pod.metadata.name, labels):
        owners, why = [*owners, job.owner], "adopted: it carries this job's UID and nobody controls it"
    elif not complete and KIND in labels and controller is not None and controller.uid == job.uid:
        why = "released: its labels no longer name a replica of this job"
    else:
        return None
    body: Body = {"metadata": {"ownerReferences": [to_builtins(owner) for owner in owners]}}
    return Patch("Pod", pod.metadata.name, pod.metadata.uid, body, why)


def _has_replica_name(job: Job, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether the pod has the name of the replica that its labels describe, and the job has that role."""
    index = labels[INDEX]
    if not index.isdecimal() or len(index) > 7 or all(role.name != labels[ROLE] for role in job.roles):
        return False
    return name == job.key.replica_name(labels[ROLE], int(index)) and index == str(int(index))


def owned_by(job: Job, observed: Observed) -> Observed:
    """Return the observed children, but leave out services and extras that this job does not control."""
    uid = job.uid
    services = tuple([one for one in observed.services if _is_controlled_by(one.metadata, uid)])
    extras = tuple([one for one in observed.extras if _is_controlled_by(one.metadata, uid)]) if observed.extras else ()
    if len(services) == len(observed.services) and len(extras) == len(observed.extras):
        return observed
    return replace(observed, services=services, extras=extras)


def _is_controlled_by(meta: Meta, uid: str) -> bool:
    owners = meta.owner_references
    if not owners:
        return False
    # The controller is nearly always the first owner. Checking it first is faster than the property `controller`.
    first = owners[0]
    if first.controller:
        return first.uid == uid
    controller = meta.controller
    return controller is not None and controller.uid == uid


def is_minor_change(before: Pod | None, after: Pod | None, pods: Collection[Pod]) -> bool:
    """Return whether the next pass can wait a little, because no decision depends on this change of a pod.

    Minor changes: a pod was created, or only got a node, or runs for the first time while another pod of its role still
    waits. `pods` are the pods of the same job. Changes of spares and of pods without a controller are never minor.
    """
    if after is None or after.metadata.deletion_timestamp is not None:
        return False
    if after.metadata.controller is None or _is_spare(after):
        return False
    if before is None:
        return not after.spec.node_name and after.status == _NEW_POD
    old, new = before.metadata, after.metadata
    if (old.uid, old.labels, old.owner_references) != (new.uid, new.labels, new.owner_references):
        return False
    if not before.spec.node_name:
        same_status = replace(before.status, conditions=None) == replace(after.status, conditions=None)
        return bool(after.spec.node_name) and same_status
    # A search in a large job costs too much, and events of large jobs are handled together anyway.
    if len(pods) > _MAX_SEARCHED_PODS or not _runs_first_time(before.status, after.status):
        return False
    return any(_waits_beside(pod, new) for pod in pods)


def _runs_first_time(before: PodStatus, after: PodStatus) -> bool:
    if before.phase != "Pending" or after.phase != "Running" or before.pod_ip not in ("", after.pod_ip):
        return False
    containers = after.container_statuses or ()
    restarted = any(one.restart_count for one in (*containers, *(after.init_container_statuses or ())))
    return not restarted and all(one.state is not None and one.state.running is not None for one in containers)


def _waits_beside(pod: Pod, other: Meta) -> bool:
    """Return whether a pod waits that has the same role as another pod."""
    meta = pod.metadata
    is_pending = pod.status.phase == "Pending" and meta.deletion_timestamp is None and not _is_spare(pod)
    return is_pending and (meta.labels or {}).get(ROLE) == (other.labels or {}).get(ROLE)


class StalePod(Struct, frozen=True, gc=False):
    """A pod of ours that no replica uses: a spare, a duplicate, or a pod of an old attempt or a removed replica."""

    pod: Pod
    role: str
    index: int
    why: str
    #: The pod is a spare: it reserves a node for growth.
    spare: bool = False


Slots = dict[int, tuple[int, Pod]]


class SortedPods(Struct, frozen=True, gc=False):
    """The pods of a job by role and index, and all other pods. Does not depend on the attempts in the ledger."""

    slots: dict[str, Slots]
    leftovers: list[StalePod]
    patches: tuple[Patch, ...]
    foreign: tuple[str, ...]


class Snapshot(Struct, frozen=True, gc=False):
    """What one pass knows. `job.ledger` is the working copy, `stored` is the ledger that was read."""

    job: Job
    stored: Ledger
    observed: Observed
    site: Site
    now: Time
    roles: tuple[RoleState, ...]
    pods: SortedPods
    stale_pods: tuple[StalePod, ...] = ()
    ownership_patches: tuple[Patch, ...] = ()
    #: Unhealthy nodes that hold pods of the job.
    unhealthy_nodes: Mapping[str, NodeHealth] = {}
    #: Every replica runs. True for most passes, so steps check it first to save time.
    all_running: bool = False
    #: Names of pods that are not ours, including pods that are adopted in this pass.
    foreign_pods: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The working copy of the ledger."""
        return self.job.ledger

    def with_ledger(self, ledger: Ledger) -> "Snapshot":
        """Return the snapshot with another working copy."""
        return self if ledger is self.job.ledger else replace(self, job=self.job.with_ledger(ledger))

    def reobserve(self) -> "Snapshot":
        """Classify again after attempts were raised: pods that were current are stale now."""
        unhealthy = self.unhealthy_nodes
        if unhealthy:
            unhealthy = nodes.unhealthy_nodes(self.job, self.observed, self.site, self.now)
        again = _observe_sorted(self.job, self.observed, self.site, self.now, self.pods, unhealthy)
        return replace(again, stored=self.stored)


RUNNING = State.RUNNING


def observe(job: Job, observed: Observed, site: Site, now: Time) -> Snapshot:
    """Classify every pod: replica, stale, or not ours."""
    observed = owned_by(job, observed)
    unhealthy = nodes.unhealthy_nodes(job, observed, site, now)
    return _observe_sorted(job, observed, site, now, _sort_pods(job, observed.pods), unhealthy)


def _sort_pods(job: Job, pods: tuple[Pod, ...]) -> SortedPods:
    """Find the role and index of each pod, and the pods that are not ours."""
    slots: dict[str, Slots] = {role.name: {} for role in job.roles}
    leftovers: list[StalePod] = []
    patches: list[Patch] = []
    foreign: list[str] = []
    for pod in pods:
        if is_ours(job, pod):
            _assign_slot(pod, slots, leftovers)
            continue
        foreign.append(pod.metadata.name)
        if (patch := ownership_patch(job, pod)) is not None:
            patches.append(patch)
    return SortedPods(slots, leftovers, tuple(patches), tuple(foreign))


def _observe_sorted(
    job: Job, observed: Observed, site: Site, now: Time, pods: SortedPods, unhealthy: Mapping[str, NodeHealth]
) -> Snapshot:
    """Compare the pods with the ledger: which replica each of them is, and which pods are stale."""
    stored, slots, stale = job.ledger, pods.slots, list(pods.leftovers)
    entries = {entry.name: entry for entry in stored.roles}
    gate_is_open = job.has_gate and any(gate.is_current(job, extra) for extra in observed.extras)
    observer = _RoleObserver(site, now, unhealthy, stale, gate_is_open, stored.outcome is None)
    roles = tuple([observer.observe_role(role, slots[role.name], entries) for role in job.roles])
    if gate_is_open:
        roles = gate.mark_moved(job, observed, roles)
    running = sum([role.running for role in roles])
    all_running = running > 0 and running == sum([role.replicas for role in job.roles])
    if (every := tuple([entries[role.name] for role in job.roles])) != stored.roles:
        job = job.with_ledger(replace(stored, roles=every))
    return Snapshot(
        job, stored, observed, site, now, roles, pods, tuple(stale), pods.patches, unhealthy, all_running, pods.foreign
    )


def _assign_slot(pod: Pod, slots: dict[str, Slots], leftovers: list[StalePod]) -> None:
    """Keep one pod for each role and index. If there are two such pods, the pod with the lower attempt is stale."""
    labels = pod.metadata.labels or {}
    role, index, attempt = labels[ROLE], _number(labels[INDEX]), _number(labels.get(ATTEMPT, "0"))
    slot = slots.get(role)
    if slot is None:
        leftovers.append(StalePod(pod, role, index, f"the job has no role {role}"))
        return
    other = slot.setdefault(index, (attempt, pod))
    if other[1] is not pod:
        # Equal attempts are ordered by UID, so that the order of the list does not matter.
        older, newer = sorted(((attempt, pod), other), key=lambda found: (found[0], found[1].metadata.uid))
        slot[index] = newer
        leftovers.append(StalePod(older[1], role, index, f"there is another pod for {role} {index}"))


@lru_cache(maxsize=16384)
def _number(text: str) -> int:
    """Parse a label's number; -1 if it is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


class _RoleObserver(Struct, frozen=True, gc=False):
    """Classifies the replicas of each role, and adds the stale pods that it finds to `stale_pods`."""

    site: Site
    now: Time
    unhealthy_nodes: Mapping[str, NodeHealth]
    stale_pods: list[StalePod]
    gate_is_open: bool = False
    job_is_live: bool = True

    def observe_role(self, role: Role, slot: Slots, entries: dict[str, RoleLedger]) -> RoleState:
        """Classify the replicas of one role, and correct its entry if pods show newer facts than the ledger."""
        entry = entries.get(role.name) or RoleLedger(role.name)
        if slot and (higher := _attempts_above(slot, entry)):
            entry = attempts.raise_attempts(entry, higher)
        if self.job_is_live and entry.restarts and role.restart.per_replica:
            entry = attempts.attribute_charges(role, entry)
        if slot and entry.pending:
            entry = attempts.note_happened(entry, _current(slot, entry))
        if slot and (max(slot) >= role.replicas or min(slot) < 0):
            entry = self._drop_surplus(role, slot, entry)
        if entry.reached > role.replicas or entry.succeeded or entry.failed:
            entry = attempts.forget_surplus(entry, role.replicas)
        if self.gate_is_open:
            entry = gate.reached_at_gate(role, entry)
        entries[role.name] = entry
        replicas = [self._replica(role, entry, index, slot.get(index)) for index in range(role.replicas)]
        return RoleState(role.name, tuple(replicas), sum([one.state is RUNNING for one in replicas]))

    def _drop_surplus(self, role: Role, slot: Slots, entry: RoleLedger) -> RoleLedger:
        """Make surplus pods stale. Raise the attempts of their indexes, so that later replicas there get new pods."""
        surplus = [(index, found) for index, found in sorted(slot.items()) if not 0 <= index < role.replicas]
        why = f"{role.name} has {role.replicas} replica{'s' * (role.replicas != 1)}"
        self.stale_pods.extend(StalePod(pod, role.name, index, why, _is_spare(pod)) for index, (_, pod) in surplus)
        current = [
            index for index, (found, _) in surplus if index >= 0 and found >= attempts.current_attempt(entry, index)
        ]
        return attempts.retry_replicas(entry, current) if current else entry

    def _replica(self, role: Role, entry: RoleLedger, index: int, found: tuple[int, Pod] | None) -> ReplicaState:
        """Return one replica: from its pod if the pod has the current attempt, otherwise from the ledger."""
        if found is not None and found[0] == entry.epoch and not (entry.retries or entry.succeeded or entry.failed):
            pod = found[1]
            # The common case. `classify_pod` gives the same result, but is slower.
            if (
                pod.status.phase == "Running"
                and pod.metadata.deletion_timestamp is None
                and pod.spec.node_name not in self.unhealthy_nodes
                and not (role.main_containers and _any_ended(pod))
            ):
                return ReplicaState(index, entry.epoch, RUNNING, pod)
        return self._classify_replica(role, entry, index, found)

    def _classify_replica(
        self, role: Role, entry: RoleLedger, index: int, found: tuple[int, Pod] | None
    ) -> ReplicaState:
        current = attempts.current_attempt(entry, index)
        pod = old = None
        state, cause = State.WAITING, None
        if found is not None and found[0] >= current:
            pod = found[1]
            state, cause = classify_pod(pod, role, self.unhealthy_nodes.get(pod.spec.node_name), self.site, self.now)
            if state is State.STARTING and cause is not None and role.recreates_pods:
                over = classify.is_given_up(entry, index, pod, self.site.creating, self.now)
                state = State.FAILED if over else state
        elif found is not None:
            old = found[1]
            why = "its place is needed" if _is_spare(old) else f"attempt {found[0]} has been replaced by {current}"
            self.stale_pods.append(StalePod(old, role.name, index, why))
        if entry.succeeded and index in parse_indexes(entry.succeeded):
            return ReplicaState(index, current, State.SUCCEEDED, pod, cause, True, old)
        if entry.failed and index in parse_indexes(entry.failed):
            return ReplicaState(index, current, State.FAILED, pod, cause, True, old)
        return ReplicaState(index, current, state, pod, cause, False, old)


def _is_spare(pod: Pod) -> bool:
    return (pod.metadata.labels or {}).get(ATTEMPT) == SPARE


def _any_ended(pod: Pod) -> bool:
    """Return whether any container of the pod has ended."""
    for container in pod.status.container_statuses or ():
        if container.state is not None and container.state.terminated is not None:
            return True
    return False


def _current(slot: Slots, entry: RoleLedger) -> frozenset[int]:
    """Return the replicas that have a pod of their current attempt."""
    return frozenset(index for index, (found, _) in slot.items() if found >= attempts.current_attempt(entry, index))


def _attempts_above(slot: Slots, entry: RoleLedger) -> dict[int, int]:
    """Return, by index, pod attempts that are higher than in the ledger. They exist only after a status was lost."""
    epoch = entry.epoch
    return {
        index: found
        for index, (found, _) in slot.items()
        if found > epoch and index >= 0 and found > attempts.current_attempt(entry, index)
    }


_ENDS: Mapping[Phase, str] = {
    Phase.SUCCEEDED: "the success rule is fulfilled, or this end was requested",
    Phase.FAILED: "a failure rule is fulfilled, success is impossible, or a deadline, a budget or a request ended it",
}
_SUSPEND = {Phase.SUSPENDED: "the job is suspended: every pod is deleted, and results of finished replicas are dropped"}
_RUN = {Phase.RUNNING: "every replica runs or has finished"}

TRANSITIONS: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.NEW: {
        Phase.PENDING: "the job is accepted",
        Phase.SUSPENDED: "the job is created suspended",
        Phase.RUNNING: "the job is accepted and its pods already run (a status was lost)",
        Phase.SUCCEEDED: "the job is accepted and its pods have already fulfilled the success rule (a status was lost)",
        Phase.FAILED: "the manifest cannot be run, or its end was requested before it began",
    },
    Phase.PENDING: {**_RUN, **_SUSPEND, **_ENDS},
    Phase.RUNNING: {Phase.RESTARTING: "a replica that ran is being replaced", **_SUSPEND, **_ENDS},
    Phase.RESTARTING: {**_RUN, **_SUSPEND, **_ENDS},
    Phase.SUSPENDED: {
        Phase.RESUMING: "the job is resumed: every replica is created again",
        Phase.SUCCEEDED: "this end was requested",
        Phase.FAILED: "this end was requested",
    },
    Phase.RESUMING: {**_RUN, **_SUSPEND, **_ENDS},
    Phase.SUCCEEDED: {},
    Phase.FAILED: {},
}

FINAL_PHASES = frozenset(phase for phase, moves in TRANSITIONS.items() if not moves)


def is_up(replica: ReplicaState) -> bool:
    """Return whether the replica runs or has finished."""
    return replica.state is State.RUNNING or replica.final


def all_present(role: RoleState) -> bool:
    """Return whether every replica of the role has a pod or has finished."""
    return all(replica.pod is not None or replica.final for replica in role.replicas)


def all_reached(view: Snapshot, role: RoleState) -> bool:
    """Return whether every replica of the role has a pod or has finished; in a running job, whether all are up.

    If a starting replica counted in a running job, the next pass would treat it like a replica that went down.
    """
    return all(is_up(replica) for replica in role.replicas) if view.ledger.phase is Phase.RUNNING else all_present(role)


def phase_of(view: Snapshot) -> Phase:
    """Return the phase of a job that is neither suspended nor ended."""
    before = view.ledger.phase
    if view.all_running:
        return Phase.RUNNING
    if all(role.all_running or all(is_up(replica) for replica in role.replicas) for role in view.roles):
        # If all replicas have finished but no rule has decided, keep the phase.
        return Phase.RUNNING if any(role.running for role in view.roles) else before
    return Phase.RESTARTING if before is Phase.RUNNING and _is_replacing(view) else before


def _is_replacing(view: Snapshot) -> bool:
    """Return whether a replica that once existed is not up. New replicas from growth do not count."""
    reached = {entry.name: entry.reached for entry in view.stored.roles}
    return any(
        not is_up(replica) and replica.index < reached.get(role.name, 0)
        for role in view.roles
        for replica in role.replicas
    )
