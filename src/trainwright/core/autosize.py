# SPDX-License-Identifier: Apache-2.0
"""Sizes: within their bounds, the first thing `reconcile` does; and what a change of size takes along, after restarts.

A role that may be resized while it runs has bounds; a wanted size outside them counts as the nearer bound. Where peers
are told of each other when they start, a change of size starts them anew: no failure, so nothing is counted for it.
Where they look the size up while they run, it is announced to them.

Spares: pods that hold places for a role that wants to grow. `fit` counts them, `create` makes and removes them.

A role that was made smaller must not be disturbed for a guess that there is room again: where peers are told of each
other, growing starts all of them anew. So pods of the missing replicas are made first, with everything a scheduler
looks at, but their containers wait for a ConfigMap that nobody makes. Once they have their places the role grows into
them. They are no replicas: no rule, no count and no phase knows of them.

Roles that resize themselves: fitted to what can run. A step of `reconcile`, after restarts are decided.

Smaller: once every replica has a pod, and some of these have found no place for a while, the role does without so many,
down to its least. Larger again: after a cool-down spares look for places; the role grows by as many as they found.
What is decided is a ceiling in the ledger, which `elastic.bounded` heeds; a user's edit changes what is wanted, and is
not undone. A role of which some have finished is left alone: a new size could mean to do their work again.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from trainwright.core import attempts, quarantine, render
from trainwright.core.observe import Snapshot, StalePod, up
from trainwright.core.restart import kept_in_place
from trainwright.model.cause import brief
from trainwright.model.child import ObjectCondition, Pod, Refusal
from trainwright.model.job import Job, Replica, RestartScope, Role
from trainwright.model.ledger import RoleLedger, SizeCap
from trainwright.model.plan import Announce, Create, ReplicaState, RoleState, State
from trainwright.model.units import BEGINNING, Time, after


def within_bounds(job: Job) -> Job:
    """The job with every elastic role at the size that is in force."""
    if all([role.elastic is None for role in job.roles]):  # noqa: C419 - asked on every pass, and a list is cheaper
        return job
    ceilings = {book.name: book.ceiling for book in job.ledger.roles}
    return replace(job, roles=tuple(_bounded(role, ceilings.get(role.name)) for role in job.roles))


def largest(job: Job) -> Job:
    """The job with every role at the largest size that a pass may decide on: as asked for, within the bounds."""
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


def resized(view: Snapshot) -> Snapshot:
    """The pass after its changes of size: whoever was told of the old world starts anew in the new one."""
    if not view.job.told:
        return view
    pairs = list(zip(view.job.roles, view.ledger.roles, strict=True))
    told = [pair for pair in pairs if pair[1].size != pair[0].replicas and pair[0].told]
    if not told:
        return view
    changed = {role.name: role for role, book in told if role.resize is not None and book.size >= 0}
    everything = any(role.resize is RestartScope.JOB for role in changed.values())
    books = tuple(
        _sized(role, _anew(view, book, group) if everything or role.name in changed else book)
        for (role, book), group in zip(pairs, view.roles, strict=True)
    )
    view = view.remember(replace(view.ledger, roles=books))
    return view.again() if changed else view


def _anew(view: Snapshot, book: RoleLedger, group: RoleState) -> RoleLedger:
    return attempts.next_epoch(kept_in_place(view, book, group.replicas))


def _sized(role: Role, book: RoleLedger) -> RoleLedger:
    return replace(book, size=role.replicas) if role.told else book


def announced_sizes(view: Snapshot) -> tuple[Announce, ...]:
    """What replicas should find where they look up the size of their role."""
    return tuple(Announce(role.size_key, str(role.replicas)) for role in view.job.roles if role.size_key)


#: So many places are looked for at once.
MOST_SPARES = 64
#: The pause between two tries is doubled so often at most.
_DOUBLED = 4


def spares_capped(role: Role, book: RoleLedger) -> SizeCap | None:
    """What keeps the role below what is asked for, if anything does."""
    ceiling = book.ceiling
    if not role.resizes or ceiling is None or role.wanted is None or not 0 <= ceiling.most < role.wanted:
        return None
    return ceiling


def due(view: Snapshot, ceiling: SizeCap) -> Time:
    """When places may be looked for: ever more rarely where there were none, but soon if a node has come since."""
    cooldown = view.site.sizing.cooldown
    if ceiling.tries and any(_came(view, ceiling.at)):
        return after(ceiling.at, cooldown)
    return after(ceiling.at, cooldown * 2.0 ** min(ceiling.tries, _DOUBLED))


def _came(view: Snapshot, since: Time) -> Iterator[bool]:
    for node in (view.observed.nodes or {}).values():
        times = [c.last_transition_time for c in node.status.conditions or () if c.type == "Ready"]
        yield node.ready and max((time for time in times if time is not None), default=BEGINNING) > since


def room_for_spares(role: Role) -> int:
    """How many more are asked for, at once."""
    return min((role.wanted or 0) - role.replicas, MOST_SPARES)


def spares_of(view: Snapshot, role: Role) -> list[Pod]:
    """The spares of a role that are not on their way out."""
    pods = [one.pod for one in view.leftovers if one.spare and one.role == role.name and _wanted(role, one)]
    return [pod for pod in pods if pod.metadata.deletion_timestamp is None]


def _wanted(role: Role, one: StalePod) -> bool:
    return role.replicas <= one.index < role.replicas + room_for_spares(role)


def spares_placed(view: Snapshot, pod: Pod) -> bool:
    """It has a place where it could run."""
    ended = pod.status.phase in ("Succeeded", "Failed")
    return bool(pod.spec.node_name) and not ended and pod.spec.node_name not in view.doubts


def spares_kept(view: Snapshot) -> frozenset[str]:
    """The UIDs of those that go on holding their places."""
    if not any(one.spare for one in view.leftovers):
        return frozenset()
    return frozenset(pod.metadata.uid for role in _looking(view) for pod in spares_of(view, role))


def spares_missing(view: Snapshot) -> list[Create]:
    """Those that are to be made, while nothing is on its way: what does not run has ended for good."""
    looking = list(_looking(view))
    if not looking or not spares_at_rest(view):
        return []
    taken = {pod.metadata.name for pod in view.observed.pods}
    made = (create for role in looking for create in _made(view, role))
    return [create for create in made if create.name not in taken]


def _looking(view: Snapshot) -> Iterator[Role]:
    """The roles for which places are looked for now."""
    for role, group, book in zip(view.job.roles, view.roles, view.ledger.roles, strict=True):
        ceiling = spares_capped(role, book) if role.resizes else None
        if ceiling is not None and view.now >= due(view, ceiling) and not keeps_size(view, role, group):
            yield role


def spares_at_rest(view: Snapshot) -> bool:
    """Whether every replica runs or has ended for good: no pod of any role is still to come."""
    return view.calm or all(up(seen) for role in view.roles for seen in role.replicas)


def keeps_size(view: Snapshot, role: Role, group: RoleState) -> bool:
    """Whether growth would start a replica anew that has ended for good: then the role does not grow."""
    restarted = view.roles if role.resize is RestartScope.JOB else (group,)
    return any(seen.final for one in restarted for seen in one.replicas)


def _made(view: Snapshot, role: Role) -> Iterator[Create]:
    terms = quarantine.node_terms(view, role)
    grown = replace(role, replicas=role.replicas + room_for_spares(role))
    job = replace(view.job, roles=tuple(grown if one.name == role.name else one for one in view.job.roles))
    for index in range(role.replicas, grown.replicas):
        yield render.spare(job, Replica(grown, index, 0, job.key.replica_name(role.name, index)), view.site, terms)


def spare_wakes(view: Snapshot) -> list[Time]:
    """When places may be looked for, or have been for long enough; and meanwhile now and then, should a node come."""
    times: list[Time] = []
    for role, book in zip(view.job.roles, view.ledger.roles, strict=True):
        ceiling = spares_capped(role, book) if role.resizes else None
        if ceiling is None:
            continue
        begun = [time for pod in spares_of(view, role) if (time := pod.metadata.creation_timestamp) is not None]
        if begun:
            times.append(after(min(begun), view.site.sizing.patience))
        else:
            times.append(min(due(view, ceiling), after(view.now, view.site.sizing.cooldown)))
    return times


#: A size that lasted so many cool-downs was not a mistake.
LASTING = 10.0


def fit(view: Snapshot) -> Snapshot:
    """The pass with every such role at the size that it should have now."""
    if not view.job.resizing and all([book.ceiling is None for book in view.ledger.roles]):  # noqa: C419 - cheaper
        return view
    books = tuple(
        _fitted(view, role, group, book)
        for role, group, book in zip(view.job.roles, view.roles, view.ledger.roles, strict=True)
    )
    if all(new is old for new, old in zip(books, view.ledger.roles, strict=True)):
        return view
    view = view.remember(replace(view.ledger, roles=books))
    return replace(view, job=within_bounds(view.job)).again()


def _fitted(view: Snapshot, role: Role, group: RoleState, book: RoleLedger) -> RoleLedger:
    if not role.resizes or role.elastic is None:
        # Its user sizes it. Should it do so itself again some day, that begins anew.
        return replace(book, ceiling=None) if book.ceiling is not None else book
    if any(seen.final for seen in group.replicas):
        return book
    ceiling = book.ceiling
    if ceiling is not None and ceiling.most >= (role.wanted or 0):
        # Less is asked for by now, so nothing is held back.
        return replace(book, ceiling=replace(ceiling, most=-1, why=""))
    homeless = _homeless(view, role, group)
    if homeless and role.replicas > role.elastic.least:
        return _shrunk(view, role, book, homeless)
    return book if keeps_size(view, role, group) else _grown(view, role, book)


def _homeless(view: Snapshot, role: Role, group: RoleState) -> list[str]:
    """Why pods have no place, if all have had time enough to find one; else nothing."""
    if group.calm:
        return []
    found: list[str] = []
    refused = _refusal(view, role, group)
    for seen in group.replicas:
        since, why = _without_place(view, seen, refused)
        if since is not None and view.now < after(since, view.site.sizing.patience):
            return []
        if why:
            found.append(why)
    return found


def _without_place(view: Snapshot, seen: ReplicaState, refused: Refusal | None) -> tuple[Time | None, str]:
    """Since when a replica has no place, and why; only since now, if it may still find one."""
    if seen.state is State.WAITING:
        return (view.now, "") if refused is None else (refused.since, f"{refused.reason}: {refused.message}")
    if seen.state is State.STOPPING:
        return view.now, ""
    if seen.state is not State.STARTING or seen.pod is None or seen.pod.spec.node_name:
        return None, ""
    told = _unplaced(seen.pod)
    if told is None or told.last_transition_time is None:
        return view.now, ""
    return told.last_transition_time, told.message or told.reason


def _refusal(view: Snapshot, role: Role, group: RoleState) -> Refusal | None:
    """The answer of an API server that will not have one of its pods, nor any other like it: a quota is used up."""
    told = [one for one in view.observed.refusals if one.kind == "Pod" and one.quota]
    if not told:
        return None
    missing = {
        view.job.key.replica_name(role.name, seen.index) for seen in group.replicas if seen.state is State.WAITING
    }
    return next((one for one in told if one.name in missing and one.since is not None), None)


def fit_wakes(view: Snapshot) -> list[Time]:
    """When pods have been without a place for long enough, or spares."""
    times = spare_wakes(view)
    for role, group in zip(view.job.roles, view.roles, strict=True):
        if role.resizes and not group.calm:
            refused = _refusal(view, role, group)
            since = [time for seen in group.replicas if (time := _without_place(view, seen, refused)[0]) is not None]
            times += [after(time, view.site.sizing.patience) for time in since if time < view.now]
    return times


def _unplaced(pod: Pod) -> ObjectCondition | None:
    """The scheduler's word that there is no node for it."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable":
            return condition
    return None


def _shrunk(view: Snapshot, role: Role, book: RoleLedger, homeless: list[str]) -> RoleLedger:
    least = role.elastic.least if role.elastic is not None else 0
    before = book.ceiling
    hasty = before is not None and before.grew and view.now < after(before.at, LASTING * view.site.sizing.cooldown)
    why = f"{len(homeless)} of {role.replicas} pods found no place for {view.site.sizing.patience:g} s: {homeless[0]}"
    ceiling = SizeCap(
        view.now,
        max(least, role.replicas - len(homeless)),
        brief(why),
        tries=before.tries + 1 if before is not None and hasty else 0,
    )
    return replace(book, ceiling=ceiling)


def _grown(view: Snapshot, role: Role, book: RoleLedger) -> RoleLedger:
    """Larger by as many places as were found, once all were or they were looked for long enough."""
    ceiling = spares_capped(role, book)
    waiting = spares_of(view, role) if ceiling is not None else []
    if ceiling is None or not waiting:
        return book
    placed = sum(spares_placed(view, pod) for pod in waiting)
    over = view.now >= _given_up_at(view, waiting)
    if placed and spares_at_rest(view) and (over or placed == room_for_spares(role)):
        size = role.replicas + placed
        most = size if size < (role.wanted or 0) else -1
        why = f"there is room for {placed} more"
        return replace(book, ceiling=SizeCap(view.now, most, why, grew=True, tries=ceiling.tries))
    if over:
        return replace(book, ceiling=replace(ceiling, at=view.now, tries=ceiling.tries + 1))
    return book


def _given_up_at(view: Snapshot, waiting: list[Pod]) -> Time:
    """When places have been looked for long enough."""
    begun = [pod.metadata.creation_timestamp or view.now for pod in waiting]
    return after(min(begun), view.site.sizing.patience)
