# SPDX-License-Identifier: Apache-2.0
"""Sizes of elastic roles: bounds, restarts after a resize, and roles whose size follows the number of free nodes.

A wanted size outside a role's bounds counts as the nearer bound. If pods know the size only from their environment, a
resize restarts the pods; this is not a failure and is not counted. If pods can look up the size, it is announced
instead.

An automatically sized role shrinks when pods have found no node for a while, down to its minimum. It grows again after
a cool-down. Growing may restart every replica, so the operator first creates spares: pods with the same scheduling
requirements whose containers wait for a ConfigMap that never exists. When spares have nodes, the role grows by their
number. Spares are not replicas: rules, counts and phases ignore them. The chosen size is stored as a ceiling in the
ledger; a later edit of the manifest changes only the wanted size. A role with finished replicas keeps its size, because
a resize could restart them and repeat their work.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from trainwright.core import attempts, quarantine, render
from trainwright.core.observe import Snapshot, is_up
from trainwright.core.restart import keep_in_place_counts
from trainwright.model.cause import brief
from trainwright.model.child import ObjectCondition, Pod, Refusal
from trainwright.model.job import Job, Replica, RestartScope, Role
from trainwright.model.ledger import RoleLedger, SizeCap
from trainwright.model.plan import Create, ReplicaState, RoleState, State
from trainwright.model.units import EARLIEST_TIME, Time, after


def within_bounds(job: Job) -> Job:
    """Return the job with every elastic role at its current size."""
    if all([role.elastic is None for role in job.roles]):  # noqa: C419 - asked on every pass, and a list is cheaper
        return job
    ceilings = {entry.name: entry.ceiling for entry in job.ledger.roles}
    return replace(job, roles=tuple(_bounded(role, ceilings.get(role.name)) for role in job.roles))


def at_largest_size(job: Job) -> Job:
    """Return the job with every elastic role at the wanted size within its bounds. No pass chooses a larger size."""
    return replace(job, roles=tuple(_bounded(role, None) for role in job.roles))


def _bounded(role: Role, ceiling: SizeCap | None) -> Role:
    bounds = role.elastic
    if bounds is None:
        return role
    asked = role.replicas if role.wanted is None else role.wanted
    wanted = size = min(max(asked, bounds.least), bounds.most)
    if bounds.auto and ceiling is not None and ceiling.most >= 0:
        size = max(min(wanted, ceiling.most), bounds.least)
    return replace(role, replicas=size, wanted=wanted)


def apply_resizes(view: Snapshot) -> Snapshot:
    """Record changed sizes and restart the replicas that know only the old size."""
    if not view.job.records_size:
        return view
    pairs = list(zip(view.job.roles, view.ledger.roles, strict=True))
    told = [pair for pair in pairs if pair[1].size != pair[0].replicas and pair[0].records_size]
    if not told:
        return view
    changed = {role.name: role for role, entry in told if role.resize is not None and entry.size >= 0}
    everything = any(role.resize is RestartScope.JOB for role in changed.values())
    entries: list[RoleLedger] = []
    for (role, entry), group in zip(pairs, view.roles, strict=True):
        restarted = everything or role.name in changed
        new = attempts.next_epoch(keep_in_place_counts(view, entry, group.replicas)) if restarted else entry
        entries.append(replace(new, size=role.replicas) if role.records_size else new)
    view = view.with_ledger(replace(view.ledger, roles=tuple(entries)))
    return view.reobserve() if changed else view


#: Maximum number of spares per role.
MAX_SPARES = 64
#: The cool-down between two searches for nodes is doubled at most this many times.
_MAX_DOUBLINGS = 4


def active_cap(role: Role, entry: RoleLedger) -> SizeCap | None:
    """Return the ceiling that keeps the role below its wanted size; None if there is no such ceiling."""
    ceiling = entry.ceiling
    if not role.is_autosized or ceiling is None or role.wanted is None or not 0 <= ceiling.most < role.wanted:
        return None
    return ceiling


def next_search_at(view: Snapshot, ceiling: SizeCap) -> Time:
    """Return the time from which spares may be created.

    The cool-down doubles with each failed search. If a node has become ready after the last failed search, the
    cool-down has its normal length again.
    """
    cooldown = view.site.sizing.cooldown
    if ceiling.tries and any(_became_ready_since(view, ceiling.at)):
        return after(ceiling.at, cooldown)
    return after(ceiling.at, cooldown * 2.0 ** min(ceiling.tries, _MAX_DOUBLINGS))


def _became_ready_since(view: Snapshot, since: Time) -> Iterator[bool]:
    for node in (view.observed.nodes or {}).values():
        times = [c.last_transition_time for c in node.status.conditions or () if c.type == "Ready"]
        yield node.ready and max((time for time in times if time is not None), default=EARLIEST_TIME) > since


def missing_replicas(role: Role) -> int:
    """Return how many replicas are missing for the wanted size, at most `MAX_SPARES`."""
    return min((role.wanted or 0) - role.replicas, MAX_SPARES)


def spares_of(view: Snapshot, role: Role) -> list[Pod]:
    """Return the spares of a role that are not being deleted."""
    wanted = range(role.replicas, role.replicas + missing_replicas(role))
    pods = [one.pod for one in view.stale_pods if one.spare and one.role == role.name and one.index in wanted]
    return [pod for pod in pods if pod.metadata.deletion_timestamp is None]


def kept_spares(view: Snapshot) -> frozenset[str]:
    """Return the UIDs of the spares that must not be deleted."""
    return frozenset(pod.metadata.uid for role in _searching_roles(view) for pod in spares_of(view, role))


def missing_spares(view: Snapshot) -> list[Create]:
    """Return the spares to create. Spares wait until all replicas of the job run or have finished."""
    looking = list(_searching_roles(view))
    if not looking or not all_up(view):
        return []
    taken = {pod.metadata.name for pod in view.observed.pods}
    made = (create for role in looking for create in _spare_creates(view, role))
    return [create for create in made if create.name not in taken]


def _searching_roles(view: Snapshot) -> Iterator[Role]:
    """Yield the roles that need spares now."""
    for role, group, entry in zip(view.job.roles, view.roles, view.ledger.roles, strict=True):
        ceiling = active_cap(role, entry)
        if ceiling is not None and view.now >= next_search_at(view, ceiling) and not is_size_fixed(view, role, group):
            yield role


def all_up(view: Snapshot) -> bool:
    """Return whether every replica of the job runs or has finished."""
    return view.all_running or all(is_up(replica) for role in view.roles for replica in role.replicas)


def is_size_fixed(view: Snapshot, role: Role, group: RoleState) -> bool:
    """Return whether the role must not grow, because growth could restart a final replica of the role or the job."""
    restarted = view.roles if role.resize is RestartScope.JOB else (group,)
    return any(replica.final for one in restarted for replica in one.replicas)


def _spare_creates(view: Snapshot, role: Role) -> Iterator[Create]:
    terms = quarantine.node_terms(view, role)
    grown = replace(role, replicas=role.replicas + missing_replicas(role))
    job = replace(view.job, roles=tuple(grown if one.name == role.name else one for one in view.job.roles))
    for index in range(role.replicas, grown.replicas):
        yield render.spare(job, Replica(grown, index, 0, job.key.replica_name(role.name, index)), view.site, terms)


#: If a role shrinks within this many cool-downs after it grew, `SizeCap.tries` rises by 1. At any other shrink,
#: `SizeCap.tries` becomes 0.
STABLE_COOLDOWNS = 10.0


def fit_sizes(view: Snapshot) -> Snapshot:
    """Shrink or grow every automatically sized role to the number of replicas that can run now."""
    if not view.job.has_autosized_role and all([entry.ceiling is None for entry in view.ledger.roles]):  # noqa: C419 - cheaper
        return view
    entries = tuple(
        _fitted_entry(view, role, group, entry)
        for role, group, entry in zip(view.job.roles, view.roles, view.ledger.roles, strict=True)
    )
    if all(new is old for new, old in zip(entries, view.ledger.roles, strict=True)):
        return view
    view = view.with_ledger(replace(view.ledger, roles=entries))
    return replace(view, job=within_bounds(view.job)).reobserve()


def _fitted_entry(view: Snapshot, role: Role, group: RoleState, entry: RoleLedger) -> RoleLedger:
    if not role.is_autosized or role.elastic is None:
        # The role is no longer sized automatically. Forget the ceiling.
        return replace(entry, ceiling=None) if entry.ceiling is not None else entry
    if any(replica.final for replica in group.replicas):
        return entry
    ceiling = entry.ceiling
    if ceiling is not None and ceiling.most >= (role.wanted or 0):
        # The user now wants no more than the ceiling allows.
        return replace(entry, ceiling=replace(ceiling, most=-1, why=""))
    homeless = _unplaced_reasons(view, role, group)
    if homeless and role.replicas > role.elastic.least:
        return _shrunk(view, role, role.elastic.least, entry, homeless)
    return entry if is_size_fixed(view, role, group) else _grown(view, role, entry)


def _unplaced_reasons(view: Snapshot, role: Role, group: RoleState) -> list[str]:
    """Return why replicas have no node. If one of these replicas has not waited long enough, return an empty list."""
    if group.all_running:
        return []
    found: list[str] = []
    refused = _quota_refusal(view, role, group)
    for replica in group.replicas:
        since, why = _unplaced_since(view, replica, refused)
        if since is not None and view.now < after(since, view.site.sizing.patience):
            return []
        if why:
            found.append(why)
    return found


def _unplaced_since(view: Snapshot, replica: ReplicaState, refused: Refusal | None) -> tuple[Time | None, str]:
    """Return the time since which a replica has waited for a node, and the reason.

    The time is `view.now` if nothing says yet that no node fits, and None if the replica does not wait for a node.
    """
    if replica.state is State.WAITING:
        return (view.now, "") if refused is None else (refused.since, f"{refused.reason}: {refused.message}")
    if replica.state is State.STOPPING:
        return view.now, ""
    if replica.state is not State.STARTING or replica.pod is None or replica.pod.spec.node_name:
        return None, ""
    told = _unschedulable(replica.pod)
    if told is None or told.last_transition_time is None:
        return view.now, ""
    return told.last_transition_time, told.message or told.reason


def _quota_refusal(view: Snapshot, role: Role, group: RoleState) -> Refusal | None:
    """Return the API server's refusal of one of the role's pods if the reason is an exhausted quota."""
    told = [one for one in view.observed.refusals if one.kind == "Pod" and one.quota]
    if not told:
        return None
    missing = {
        view.job.key.replica_name(role.name, replica.index)
        for replica in group.replicas
        if replica.state is State.WAITING
    }
    return next((one for one in told if one.name in missing and one.since is not None), None)


def size_wakes(view: Snapshot) -> list[Time]:
    """Return the times at which a size may change: pods or spares have waited long enough, or spares may be created."""
    times: list[Time] = []
    sizing = view.site.sizing
    for role, group, entry in zip(view.job.roles, view.roles, view.ledger.roles, strict=True):
        if (ceiling := active_cap(role, entry)) is not None:
            waiting = spares_of(view, role)
            # Wake up after one normal cool-down at the latest: a new node ends the doubling of the cool-down.
            search = min(next_search_at(view, ceiling), after(view.now, sizing.cooldown))
            times.append(_search_ends_at(view, waiting) if waiting else search)
        if role.is_autosized and not group.all_running:
            refused = _quota_refusal(view, role, group)
            waits = [_unplaced_since(view, replica, refused) for replica in group.replicas]
            # A pod without a reason needs no timer: when the scheduler reports that no node fits, a pass follows.
            times += [after(since, sizing.patience) for since, why in waits if since is not None and why]
    return times


def _unschedulable(pod: Pod) -> ObjectCondition | None:
    """Return the scheduler's condition that no node fits the pod."""
    told = ("PodScheduled", "False", "Unschedulable")
    return next((one for one in pod.status.conditions or () if (one.type, one.status, one.reason) == told), None)


def _shrunk(view: Snapshot, role: Role, least: int, entry: RoleLedger, homeless: list[str]) -> RoleLedger:
    before = entry.ceiling
    hasty = (
        before is not None and before.grew and view.now < after(before.at, STABLE_COOLDOWNS * view.site.sizing.cooldown)
    )
    why = f"{len(homeless)} of {role.replicas} pods found no place for {view.site.sizing.patience:g} s: {homeless[0]}"
    most, tries = max(least, role.replicas - len(homeless)), before.tries + 1 if before is not None and hasty else 0
    return replace(entry, ceiling=SizeCap(view.now, most, brief(why), tries=tries))


def _grown(view: Snapshot, role: Role, entry: RoleLedger) -> RoleLedger:
    """Grow by the number of spares that are on healthy nodes and have not ended.

    The role grows only if all replicas of the job are up, and if every missing replica has such a spare or the search
    for nodes has ended. A search that ends without growth counts as a failed try.
    """
    ceiling = active_cap(role, entry)
    waiting = spares_of(view, role) if ceiling is not None else []
    if ceiling is None or not waiting:
        return entry
    healthy = [pod for pod in waiting if pod.spec.node_name and pod.spec.node_name not in view.unhealthy_nodes]
    placed = sum(pod.status.phase not in ("Succeeded", "Failed") for pod in healthy)
    over = view.now >= _search_ends_at(view, waiting)
    if placed and all_up(view) and (over or placed == missing_replicas(role)):
        size = role.replicas + placed
        most = size if size < (role.wanted or 0) else -1
        why = f"there is room for {placed} more"
        return replace(entry, ceiling=SizeCap(view.now, most, why, grew=True, tries=ceiling.tries))
    if over:
        return replace(entry, ceiling=replace(ceiling, at=view.now, tries=ceiling.tries + 1))
    return entry


def _search_ends_at(view: Snapshot, waiting: list[Pod]) -> Time:
    """Return the time at which the search for nodes ends."""
    begun = [pod.metadata.creation_timestamp or view.now for pod in waiting]
    return after(min(begun), view.site.sizing.patience)
