# SPDX-License-Identifier: Apache-2.0
"""Children of the whole job, a pod group or a ConfigMap: made, kept in step, removed. Called by `create` in every pass.

Keeping a live job going: make what is missing, remove what is left over. The last step of `reconcile`.

A replica is made when nothing bears its name, its back-off is over, the roles before it are up, its gang is admitted,
and no ConfigMap is left that speaks of another attempt. A stale pod that has ended stays until its replica's back-off
is over, for its log; one that still lives goes at once.
"""

from msgspec.structs import replace

from trainwright.core import attempts, autosize, classify, gate, quarantine, removal, render
from trainwright.core.classify import impatient_at, patience
from trainwright.core.observe import Snapshot, StalePod, up
from trainwright.core.report import StepActions
from trainwright.core.verdict import deadline, start_deadline
from trainwright.model.child import Extra
from trainwright.model.job import Body, Job, Replica, RestartScope, Role
from trainwright.model.meta import DIGEST, PLACES, WORLD
from trainwright.model.plan import Create, Delete, Patch, ReplicaState, RoleState, State
from trainwright.model.units import Time

Address = tuple[str, str, str]


def keep_extras(view: Snapshot) -> tuple[list[Create], list[Patch], list[Delete]]:
    """What the dialect wants and is not there, what is out of step by its digest, what nobody wants any more."""
    bodies = view.job.dialect.extras(view.job, gate.basis(view.job, view.roles, view.observed), view.site)
    if not bodies and not view.observed.extras:
        return [], [], []
    gang = view.job.gang.at(view.site) if view.job.gang is not None else None
    # The group of a gang may only be out of sight: what is there stays there.
    unseen = "PodGroup" if view.job.gang is not None and gang is None else ""
    places = gate.places(view.job, view.roles)
    made = [render.extra(view.job, body, places) for body in bodies if body["kind"] != unseen]
    wanted = {render.address(view.job, create.body): create for create in made}
    present = {removal.address(extra): extra for extra in view.observed.extras if extra.kind != unseen}
    old = {key for key, extra in present.items() if gate.outlived(view.job, extra, view.roles)}
    lasting = {key: create for key, create in wanted.items() if key not in old}
    return (
        [create for key, create in lasting.items() if key not in present],
        _patches(lasting, present, gang.keeps if gang is not None else frozenset()),
        _surplus(view, lasting, present),
    )


def _patches(wanted: dict[Address, Create], present: dict[Address, Extra], keeps: frozenset[str]) -> list[Patch]:
    patches = []
    for key, create in wanted.items():
        extra, noted = present.get(key), create.body["metadata"]["annotations"]
        if extra is None or removal.going(extra) or (extra.metadata.annotations or {}).get(DIGEST) == noted[DIGEST]:
            continue
        body = _update(create.body, keeps)
        body["metadata"] = {"annotations": {name: noted[name] for name in (DIGEST, WORLD, PLACES) if name in noted}}
        meta, why = extra.metadata, "kept in step with the job"
        patches.append(Patch(extra.kind, meta.name, meta.uid, body, why, api=extra.api_version))
    return patches


def _surplus(view: Snapshot, wanted: dict[Address, Create], present: dict[Address, Extra]) -> list[Delete]:
    surplus = [
        extra
        for key, extra in sorted(present.items())
        if key not in wanted and not removal.going(extra) and not gate.holds(view.job, extra)
    ]
    return [removal.of_extra(extra, "the job no longer has it") for extra in surplus]


def _update(body: Body, keeps: frozenset[str]) -> Body:
    """What a child of the whole job should be, without what is said only once."""
    parts = {name: part for name, part in body.items() if name not in ("apiVersion", "kind", "metadata")}
    if keeps and "spec" in parts:
        parts["spec"] = {name: value for name, value in parts["spec"].items() if name not in keeps}
    return parts


_ENDED = ("Succeeded", "Failed")


def create_missing(view: Snapshot) -> StepActions:
    """Everything that is missing or too much."""
    holds = _holds(view)
    creates, patches, deletes = keep_extras(view)
    if view.leftovers or view.doubts:
        deletes = _leftovers(view, holds) + _stuck(view) + deletes
    made, surplus = _services(view)
    creates = creates + made + _pods(view, holds)
    actions = StepActions(tuple(deletes + surplus), tuple(creates), tuple(patches), _wake(view, holds))
    if view.site.elastic_server:
        actions = replace(actions, announces=autosize.announced_sizes(view))
    return _after_refusals(view, actions) if view.observed.refusals else actions


def _after_refusals(view: Snapshot, actions: StepActions) -> StepActions:
    """What was refused is not asked for again before its time."""
    refused = [one for one in view.observed.refusals if one.retry_at is not None and one.retry_at > view.now]
    later = {(one.kind, one.name): one.retry_at for one in refused}
    creates = tuple(create for create in actions.creates if (create.body["kind"], create.name) not in later)
    wakes = [moment for moment in (actions.wake, *later.values()) if moment is not None]
    return replace(actions, creates=creates, wake=min(wakes, default=None))


def _holds(view: Snapshot) -> dict[str, dict[int, Time]]:
    """By role: which replicas must wait, and until when."""
    return {book.name: attempts.held(book, view.now) for book in view.ledger.roles if book.holds}


def _leftovers(view: Snapshot, holds: dict[str, dict[int, Time]]) -> list[Delete]:
    stay = autosize.spares_kept(view)
    gone = [one for one in view.leftovers if one.pod.metadata.uid not in stay]
    return removal.of_pods(view, ((one.pod, one.why) for one in gone if not _shown(one, holds.get(one.role, {}))))


def _shown(one: StalePod, held: dict[int, Time]) -> bool:
    """A failed pod whose replica waits anyway: its log may be read until then."""
    return one.index in held and one.pod.status.phase in _ENDED


def _stuck(view: Snapshot) -> list[Delete]:
    """Pods that somebody else deletes and that cannot go because their node is lost."""
    if not view.doubts:
        return []
    stopping = [seen.pod for role in view.roles for seen in role.replicas if seen.state is State.STOPPING]
    return removal.of_pods(view, ((pod, "being deleted") for pod in stopping if pod is not None))


def _pods(view: Snapshot, holds: dict[str, dict[int, Time]]) -> list[Create]:
    if view.calm:
        return autosize.spares_missing(view) if view.job.resizing else []
    missing = [
        (role, seen)
        for role, group in _in_order(view)
        if not group.calm
        for seen in group.replicas
        if seen.state is State.WAITING and seen.index not in holds.get(role.name, {})
    ]
    if not missing:
        return autosize.spares_missing(view) if view.job.resizing else []
    if not _admitted(view) or gate.shut(view.job, view.observed):
        return []
    taken = {pod.metadata.name for pod in view.observed.pods}
    leaving = {one.role for one in view.leftovers if not one.spare and one.pod.status.phase not in _ENDED}
    startable = [role.name for role in view.job.roles if _startable(view, role) and not _met(role, leaving)]
    replicas = [_replica(view.job, role, seen) for role, seen in missing if role.name in startable]
    terms = {role.name: quarantine.node_terms(view, role) for role in view.job.roles} if view.ledger.avoided else {}
    return [
        render.pod(view.job, replica, view.site, terms.get(replica.role.name))
        for replica in replicas
        if replica.name not in taken
    ]


def _in_order(view: Snapshot) -> list[tuple[Role, RoleState]]:
    """Roles with what is seen of them, lower stages first, else as the document has them."""
    return sorted(zip(view.job.roles, view.roles, strict=True), key=lambda pair: pair[0].stage)


def _startable(view: Snapshot, role: Role) -> bool:
    """The roles before it are up, where it waits for that."""
    if not role.awaits_running:
        return True
    before = [group for other, group in zip(view.job.roles, view.roles, strict=True) if other.stage < role.stage]
    return all(up(seen) for group in before for seen in group.replicas)


def _met(role: Role, leaving: set[str]) -> bool:
    """A pod that is made now would meet one of an older attempt that has not ended, and take it for its peer."""
    return (
        bool(leaving) and role.bond is not RestartScope.POD and (role.bond is RestartScope.JOB or role.name in leaving)
    )


def _admitted(view: Snapshot) -> bool:
    """The gang's scheduler lets pods be made, where it is one that is asked first."""
    gang = view.job.gang.at(view.site) if view.job.gang is not None else None
    if gang is None or not gang.admits:
        return True
    groups = [extra for extra in view.observed.extras if extra.api_version == gang.api]
    return any(group.status is not None and group.status.phase in gang.admits for group in groups)


def _replica(job: Job, role: Role, seen: ReplicaState) -> Replica:
    return Replica(role, seen.index, seen.attempt, job.key.replica_name(role.name, seen.index))


def _services(view: Snapshot) -> tuple[list[Create], list[Delete]]:
    """One service per replica, where the role has them; none for what is no longer wanted."""
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
    surplus = [present[name] for name in sorted(present.keys() - wanted) if not removal.going(present[name])]
    return (
        [render.service(view.job, replica, view.site) for replica in missing if replica.name not in present],
        [removal.of_service(service, "no replica of this name is wanted") for service in surplus],
    )


def _wake(view: Snapshot, holds: dict[str, dict[int, Time]]) -> Time | None:
    """The next moment at which something changes by time alone."""
    life = view.job.lifecycle
    growing = autosize.fit_wakes(view) if view.job.resizing else []
    anxious = holds or growing or view.doubts or view.ledger.avoided
    if view.calm and not (anxious or life.deadline or life.start_deadline is not None):
        return None
    times = growing + [moment for held in holds.values() for moment in held.values()]
    times += [due for due in (deadline(view), start_deadline(view)) if due is not None] + quarantine.wakes(view)
    if not view.calm:
        times += _impatient(view)
    if view.doubts:
        pods = [seen.pod for role in view.roles for seen in role.replicas if seen.pod is not None and not seen.final]
        doubt = removal.overdue_at(view, pods + [one.pod for one in view.leftovers])
        times += [doubt] if doubt is not None else []
    return min((moment for moment in times if moment > view.now), default=None) if times else None


def _impatient(view: Snapshot) -> list[Time]:
    """When pods that cannot start are given up."""
    stuck = [
        impatient_at(seen.pod, patience(role, view.site))
        for role, group in zip(view.job.roles, view.roles, strict=True)
        if patience(role, view.site) is not None and not group.calm
        for seen in group.replicas
        if seen.state is State.STARTING and seen.cause is not None and seen.pod is not None
    ]
    return [due for due in stuck if due is not None] + [
        due
        for role, group in zip(view.job.roles, view.roles, strict=True)
        if role.recreates and not group.calm
        for seen in group.replicas
        if classify.stuck_in_creation(role, seen)
        for due in classify.creation_wakes(attempts.of_role(view.ledger, role.name), seen, view.site.creating, view.now)
    ]
