# SPDX-License-Identifier: Apache-2.0
"""Create missing children of a live job, and delete unnecessary children: pods, services, pod groups, ConfigMaps.

A replica's pod is created when the pod's name is free, the replica's back-off is over, the roles that must run first
are up, the job's gang is admitted, and no gate of another attempt is left. A stale pod that has ended stays until the
back-off is over, so that its log can be read; a stale pod that still runs is deleted at once.
"""

from msgspec.structs import replace

from trainwright.core import attempts, autosize, classify, gate, quarantine, removal, render
from trainwright.core.classify import create_error_timeout, given_up_at
from trainwright.core.observe import Snapshot, is_up
from trainwright.core.outcomes import deadline, start_deadline
from trainwright.core.report import StepActions
from trainwright.model.child import Extra
from trainwright.model.job import Body, Job, Replica, RestartScope, Role
from trainwright.model.meta import ADDRESS_HASHES, DIGEST, WORLD
from trainwright.model.plan import Announce, Create, Delete, Patch, ReplicaState, State
from trainwright.model.units import Time

Address = tuple[str, str, str]


def sync_extras(view: Snapshot) -> tuple[list[Create], list[Patch], list[Delete]]:
    """Return the actions for children of the whole job. A child whose digest differs is out of date."""
    bodies = view.job.dialect.extras(view.job, gate.visible_to_dialect(view.job, view.roles, view.observed), view.site)
    if not bodies and not view.observed.extras:
        return [], [], []
    gang = view.job.gang.at(view.site) if view.job.gang is not None else None
    # The gang's API may be unavailable for a moment, so do not delete existing groups.
    unseen = "PodGroup" if view.job.gang is not None and gang is None else ""
    places = gate.address_hashes(view.job, view.roles)
    made = [render.extra(view.job, body, places) for body in bodies if body["kind"] != unseen]
    wanted = {render.extra_key(view.job, create.body): create for create in made}
    present = {removal.extra_key(extra): extra for extra in view.observed.extras if extra.kind != unseen}
    old = {key for key, extra in present.items() if gate.is_obsolete(view.job, extra, view.roles)}
    lasting = {key: create for key, create in wanted.items() if key not in old}
    return (
        [create for key, create in lasting.items() if key not in present],
        _patches(lasting, present, gang.create_only_fields if gang is not None else frozenset()),
        _surplus(view, lasting, present),
    )


def _patches(wanted: dict[Address, Create], present: dict[Address, Extra], keeps: frozenset[str]) -> list[Patch]:
    patches = []
    for key, create in wanted.items():
        extra, noted = present.get(key), create.body["metadata"]["annotations"]
        if extra is None or removal.is_terminating(extra):
            continue
        if (extra.metadata.annotations or {}).get(DIGEST) == noted[DIGEST]:
            continue
        body = _update(create.body, keeps)
        kept = {name: noted[name] for name in (DIGEST, WORLD, ADDRESS_HASHES) if name in noted}
        body["metadata"] = {"annotations": kept}
        meta, why = extra.metadata, "kept in step with the job"
        patches.append(Patch(extra.kind, meta.name, meta.uid, body, why, api=extra.api_version))
    return patches


def _surplus(view: Snapshot, wanted: dict[Address, Create], present: dict[Address, Extra]) -> list[Delete]:
    surplus = [
        extra
        for key, extra in sorted(present.items())
        if key not in wanted and not removal.is_terminating(extra) and not gate.is_current(view.job, extra)
    ]
    return [removal.extra_delete(extra, "the job no longer has it") for extra in surplus]


def _update(body: Body, keeps: frozenset[str]) -> Body:
    """Return the patch for a child of the whole job, without the fields that are set only at creation."""
    parts = {name: part for name, part in body.items() if name not in ("apiVersion", "kind", "metadata")}
    if keeps and "spec" in parts:
        parts["spec"] = {name: value for name, value in parts["spec"].items() if name not in keeps}
    return parts


_ENDED = ("Succeeded", "Failed")


def create_missing(view: Snapshot) -> StepActions:
    """Return all creates, patches and deletes for a live job."""
    # The replicas in back-off by role, each with the end of its back-off.
    holds = {entry.name: attempts.held_replicas(entry, view.now) for entry in view.ledger.roles if entry.holds}
    creates, patches, deletes = sync_extras(view)
    if view.stale_pods or view.unhealthy_nodes:
        deletes = _stale_deletes(view, holds) + _forced_deletes(view) + deletes
    made, surplus = _services(view)
    creates = creates + made + _pods(view, holds)
    actions = StepActions(tuple(deletes + surplus), tuple(creates), tuple(patches), _wake(view, holds))
    if view.site.elastic_server:
        sizes = [Announce(role.size_key, str(role.replicas)) for role in view.job.roles if role.size_key]
        actions = replace(actions, announces=tuple(sizes))
    return _after_refusals(view, actions) if view.observed.refusals else actions


def _after_refusals(view: Snapshot, actions: StepActions) -> StepActions:
    """Leave out objects that the API server refused to create, until the time of the next try. Wake up at that time."""
    refused = [one for one in view.observed.refusals if one.retry_at is not None and one.retry_at > view.now]
    later = {(one.kind, one.name): one.retry_at for one in refused}
    creates = tuple(create for create in actions.creates if (create.body["kind"], create.name) not in later)
    wakes = [moment for moment in (actions.wake, *later.values()) if moment is not None]
    return replace(actions, creates=creates, wake=min(wakes, default=None))


def _stale_deletes(view: Snapshot, holds: dict[str, dict[int, Time]]) -> list[Delete]:
    stay = autosize.kept_spares(view)
    gone = [one for one in view.stale_pods if one.pod.metadata.uid not in stay]
    # An ended pod stays for its log while its replica is in back-off.
    gone = [one for one in gone if one.index not in holds.get(one.role, {}) or one.pod.status.phase not in _ENDED]
    return removal.pod_deletes(view, ((one.pod, one.why) for one in gone))


def _forced_deletes(view: Snapshot) -> list[Delete]:
    """Return forced deletes for pods on lost nodes, if another client is deleting the pods. Such pods never end."""
    stopping = [seen.pod for role in view.roles for seen in role.replicas if seen.state is State.STOPPING]
    return removal.pod_deletes(view, ((pod, "being deleted") for pod in stopping if pod is not None))


def _pods(view: Snapshot, holds: dict[str, dict[int, Time]]) -> list[Create]:
    pairs = () if view.all_running else zip(view.job.roles, view.roles, strict=True)
    missing = [
        (role, seen)
        for role, group in sorted(pairs, key=lambda pair: pair[0].stage)
        if not group.all_running
        for seen in group.replicas
        if seen.state is State.WAITING and seen.index not in holds.get(role.name, {})
    ]
    if not missing:
        return autosize.missing_spares(view) if view.job.has_autosized_role else []
    if not _is_admitted(view) or gate.blocks_creation(view.job, view.observed):
        return []
    taken = {pod.metadata.name for pod in view.observed.pods}
    leaving = {one.role for one in view.stale_pods if not one.spare and one.pod.status.phase not in _ENDED}
    startable = [role for role in view.job.roles if _may_start(view, role, leaving)]
    prefixes = {role.name: view.job.key.replica_prefix(role.name) for role in startable}
    replicas = [
        Replica(role, seen.index, seen.attempt, f"{prefixes[role.name]}{seen.index}")
        for role, seen in missing
        if role.name in prefixes
    ]
    terms = {role.name: quarantine.node_terms(view, role) for role in view.job.roles} if view.ledger.avoided else {}
    return [
        render.pod(view.job, replica, view.site, terms.get(replica.role.name))
        for replica in replicas
        if replica.name not in taken
    ]


def _may_start(view: Snapshot, role: Role, leaving: set[str]) -> bool:
    """Return whether pods of this role may be created: pods of older attempts have ended, and earlier roles are up."""
    scope = role.barrier_scope
    # A new pod could connect to a running pod of an older attempt, so the role must wait.
    if (scope is RestartScope.ROLE and role.name in leaving) or (scope is RestartScope.JOB and leaving):
        return False
    if not view.job.starts_later(role, view.site):
        return True
    before = [group for other, group in zip(view.job.roles, view.roles, strict=True) if other.stage < role.stage]
    return all(is_up(seen) for group in before for seen in group.replicas)


def _is_admitted(view: Snapshot) -> bool:
    """Return whether the gang's scheduler allows pods to be created."""
    gang = view.job.gang.at(view.site) if view.job.gang is not None else None
    if gang is None or not gang.admitting_phases:
        return True
    groups = [extra for extra in view.observed.extras if extra.api_version == gang.api]
    return any(group.status is not None and group.status.phase in gang.admitting_phases for group in groups)


def _replica(job: Job, role: Role, seen: ReplicaState) -> Replica:
    return Replica(role, seen.index, seen.attempt, job.key.replica_name(role.name, seen.index))


def _services(view: Snapshot) -> tuple[list[Create], list[Delete]]:
    """Return creates and deletes so that each replica has its service, if its role has services."""
    present = {service.metadata.name: service for service in view.observed.services}
    wanted: set[str] = set()
    for role in view.job.roles:
        if role.service:
            begins = view.job.key.replica_prefix(role.name)
            wanted.update([f"{begins}{index}" for index in range(role.replicas)])
    if present.keys() == wanted:
        return [], []
    missing = [
        _replica(view.job, role, seen)
        for role, group in zip(view.job.roles, view.roles, strict=True)
        if role.service
        for seen in group.replicas
    ]
    surplus = [present[name] for name in sorted(present.keys() - wanted) if not removal.is_terminating(present[name])]
    return (
        [render.service(view.job, replica, view.site) for replica in missing if replica.name not in present],
        [removal.service_delete(service, "no replica of this name is wanted") for service in surplus],
    )


def _wake(view: Snapshot, holds: dict[str, dict[int, Time]]) -> Time | None:
    """Return the next time at which a decision can change although no event arrives."""
    life = view.job.lifecycle
    growing = autosize.size_wakes(view) if view.job.has_autosized_role else []
    pending = holds or growing or view.unhealthy_nodes or view.ledger.avoided
    if view.all_running and not (pending or life.deadline or life.start_deadline is not None):
        return None
    times = growing + [moment for held in holds.values() for moment in held.values()]
    dues = [deadline(view), start_deadline(view), *(one.until for one in view.ledger.avoided)]
    times += [due for due in dues if due is not None]
    if not view.all_running:
        times += _create_error_times(view)
    if view.unhealthy_nodes:
        pods = [seen.pod for role in view.roles for seen in role.replicas if seen.pod is not None and not seen.final]
        check = removal.next_check_at(view, pods + [one.pod for one in view.stale_pods])
        times += [check] if check is not None else []
    return min((moment for moment in times if moment > view.now), default=None) if times else None


def _create_error_times(view: Snapshot) -> list[Time]:
    """Return the times at which pods fail or are replaced because their containers cannot be created."""
    times: list[Time | None] = []
    for role, group, entry in zip(view.job.roles, view.roles, view.ledger.roles, strict=True):
        most = create_error_timeout(role, view.site)
        timed = role.recreates_pods or most is not None
        for seen in group.replicas if timed and not group.all_running else ():
            if seen.state is State.STARTING and seen.cause is not None and seen.pod is not None:
                if role.recreates_pods:
                    times += classify.stuck_wakes(entry, seen, view.site.creating, view.now)
                else:
                    times.append(given_up_at(seen.pod, most))
    return [time for time in times if time is not None]
