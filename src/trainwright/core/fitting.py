# SPDX-License-Identifier: Apache-2.0
"""Roles that resize themselves: fitted to what can run. A step of `reconcile`, after restarts are decided.

Smaller: once every replica has a pod, and some of these have found no place for a while, the role does without so many,
down to its least. Larger again: after a cool-down `spares` look for places; the role grows by as many as they found.
What is decided is a ceiling in the ledger, which `elastic.bounded` heeds; a user's edit changes what is wanted, and is
not undone. A role of which some have finished is left alone: a new size could mean to do their work again.
"""

from msgspec.structs import replace

from trainwright.core import elastic, spares
from trainwright.core.observe import View
from trainwright.model.cause import brief
from trainwright.model.child import Condition, Pod, Refusal
from trainwright.model.job import Role
from trainwright.model.ledger import Ceiling, RoleLedger
from trainwright.model.status import RoleSeen, Seen, State
from trainwright.model.units import Time, after

#: A size that lasted so many cool-downs was not a mistake.
LASTING = 10.0


def fit(view: View) -> View:
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
    return replace(view, job=elastic.bounded(view.job)).again()


def _fitted(view: View, role: Role, group: RoleSeen, book: RoleLedger) -> RoleLedger:
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
    return book if spares.keeps_size(view, role, group) else _grown(view, role, book)


def _homeless(view: View, role: Role, group: RoleSeen) -> list[str]:
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


def _without_place(view: View, seen: Seen, refused: Refusal | None) -> tuple[Time | None, str]:
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


def _refusal(view: View, role: Role, group: RoleSeen) -> Refusal | None:
    """The answer of an API server that will not have one of its pods, nor any other like it: a quota is used up."""
    told = [one for one in view.observed.refusals if one.kind == "Pod" and one.quota]
    if not told:
        return None
    missing = {
        view.job.key.replica_name(role.name, seen.index) for seen in group.replicas if seen.state is State.WAITING
    }
    return next((one for one in told if one.name in missing and one.since is not None), None)


def wakes(view: View) -> list[Time]:
    """When pods have been without a place for long enough, or spares."""
    times = spares.wakes(view)
    for role, group in zip(view.job.roles, view.roles, strict=True):
        if role.resizes and not group.calm:
            refused = _refusal(view, role, group)
            since = [time for seen in group.replicas if (time := _without_place(view, seen, refused)[0]) is not None]
            times += [after(time, view.site.sizing.patience) for time in since if time < view.now]
    return times


def _unplaced(pod: Pod) -> Condition | None:
    """The scheduler's word that there is no node for it."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable":
            return condition
    return None


def _shrunk(view: View, role: Role, book: RoleLedger, homeless: list[str]) -> RoleLedger:
    least = role.elastic.least if role.elastic is not None else 0
    before = book.ceiling
    hasty = before is not None and before.grew and view.now < after(before.at, LASTING * view.site.sizing.cooldown)
    why = f"{len(homeless)} of {role.replicas} pods found no place for {view.site.sizing.patience:g} s: {homeless[0]}"
    ceiling = Ceiling(
        view.now,
        max(least, role.replicas - len(homeless)),
        brief(why),
        tries=before.tries + 1 if before is not None and hasty else 0,
    )
    return replace(book, ceiling=ceiling)


def _grown(view: View, role: Role, book: RoleLedger) -> RoleLedger:
    """Larger by as many places as were found, once all were or they were looked for long enough."""
    ceiling = spares.capped(role, book)
    waiting = spares.of_role(view, role) if ceiling is not None else []
    if ceiling is None or not waiting:
        return book
    placed = sum(spares.placed(view, pod) for pod in waiting)
    over = view.now >= _given_up_at(view, waiting)
    if placed and spares.at_rest(view) and (over or placed == spares.room(role)):
        size = role.replicas + placed
        most = size if size < (role.wanted or 0) else -1
        why = f"there is room for {placed} more"
        return replace(book, ceiling=Ceiling(view.now, most, why, grew=True, tries=ceiling.tries))
    if over:
        return replace(book, ceiling=replace(ceiling, at=view.now, tries=ceiling.tries + 1))
    return book


def _given_up_at(view: View, waiting: list[Pod]) -> Time:
    """When places have been looked for long enough."""
    begun = [pod.metadata.creation_timestamp or view.now for pod in waiting]
    return after(min(begun), view.site.sizing.patience)
