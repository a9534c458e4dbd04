# SPDX-License-Identifier: Apache-2.0
"""Spares: pods that hold places for a role that wants to grow. `fitting` counts them, `run` makes and removes them.

A role that was made smaller must not be disturbed for a guess that there is room again: where peers are told of each
other, growing starts all of them anew. So pods of the missing replicas are made first, with everything a scheduler
looks at, but their containers wait for a ConfigMap that nobody makes. Once they have their places the role grows into
them. They are no replicas: no rule, no count and no phase knows of them.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from trainwright.core import avoid, render
from trainwright.core.observe import Leftover, View
from trainwright.core.phases import up
from trainwright.model.action import Create
from trainwright.model.child import Pod
from trainwright.model.job import Replica, Role, Scope
from trainwright.model.ledger import Ceiling, RoleLedger
from trainwright.model.status import RoleSeen
from trainwright.model.units import BEGINNING, Time, after

#: So many places are looked for at once.
MOST_SPARES = 64
#: The pause between two tries is doubled so often at most.
_DOUBLED = 4


def capped(role: Role, book: RoleLedger) -> Ceiling | None:
    """What keeps the role below what is asked for, if anything does."""
    ceiling = book.ceiling
    if not role.resizes or ceiling is None or role.wanted is None or not 0 <= ceiling.most < role.wanted:
        return None
    return ceiling


def due(view: View, ceiling: Ceiling) -> Time:
    """When places may be looked for: ever more rarely where there were none, but soon if a node has come since."""
    cooldown = view.site.sizing.cooldown
    if ceiling.tries and any(_came(view, ceiling.at)):
        return after(ceiling.at, cooldown)
    return after(ceiling.at, cooldown * 2.0 ** min(ceiling.tries, _DOUBLED))


def _came(view: View, since: Time) -> Iterator[bool]:
    for node in (view.observed.nodes or {}).values():
        times = [c.last_transition_time for c in node.status.conditions or () if c.type == "Ready"]
        yield node.ready and max((time for time in times if time is not None), default=BEGINNING) > since


def room(role: Role) -> int:
    """How many more are asked for, at once."""
    return min((role.wanted or 0) - role.replicas, MOST_SPARES)


def of_role(view: View, role: Role) -> list[Pod]:
    """The spares of a role that are not on their way out."""
    pods = [one.pod for one in view.leftovers if one.spare and one.role == role.name and _wanted(role, one)]
    return [pod for pod in pods if pod.metadata.deletion_timestamp is None]


def _wanted(role: Role, one: Leftover) -> bool:
    return role.replicas <= one.index < role.replicas + room(role)


def placed(view: View, pod: Pod) -> bool:
    """It has a place where it could run."""
    ended = pod.status.phase in ("Succeeded", "Failed")
    return bool(pod.spec.node_name) and not ended and pod.spec.node_name not in view.doubts


def kept(view: View) -> frozenset[str]:
    """The UIDs of those that go on holding their places."""
    if not any(one.spare for one in view.leftovers):
        return frozenset()
    return frozenset(pod.metadata.uid for role in _looking(view) for pod in of_role(view, role))


def missing(view: View) -> list[Create]:
    """Those that are to be made, while nothing is on its way: what does not run has ended for good."""
    looking = list(_looking(view))
    if not looking or not at_rest(view):
        return []
    taken = {pod.metadata.name for pod in view.observed.pods}
    made = (create for role in looking for create in _made(view, role))
    return [create for create in made if create.name not in taken]


def _looking(view: View) -> Iterator[Role]:
    """The roles for which places are looked for now."""
    for role, group, book in zip(view.job.roles, view.roles, view.ledger.roles, strict=True):
        ceiling = capped(role, book) if role.resizes else None
        if ceiling is not None and view.now >= due(view, ceiling) and not keeps_size(view, role, group):
            yield role


def at_rest(view: View) -> bool:
    """Whether every replica runs or has ended for good: no pod of any role is still to come."""
    return view.calm or all(up(seen) for role in view.roles for seen in role.replicas)


def keeps_size(view: View, role: Role, group: RoleSeen) -> bool:
    """Whether growth would start a replica anew that has ended for good: then the role does not grow."""
    restarted = view.roles if role.resize is Scope.JOB else (group,)
    return any(seen.final for one in restarted for seen in one.replicas)


def _made(view: View, role: Role) -> Iterator[Create]:
    terms = avoid.terms(view, role)
    grown = replace(role, replicas=role.replicas + room(role))
    job = replace(view.job, roles=tuple(grown if one.name == role.name else one for one in view.job.roles))
    for index in range(role.replicas, grown.replicas):
        yield render.spare(job, Replica(grown, index, 0, job.key.replica_name(role.name, index)), view.site, terms)


def wakes(view: View) -> list[Time]:
    """When places may be looked for, or have been for long enough; and meanwhile now and then, should a node come."""
    times: list[Time] = []
    for role, book in zip(view.job.roles, view.ledger.roles, strict=True):
        ceiling = capped(role, book) if role.resizes else None
        if ceiling is None:
            continue
        begun = [time for pod in of_role(view, role) if (time := pod.metadata.creation_timestamp) is not None]
        if begun:
            times.append(after(min(begun), view.site.sizing.patience))
        else:
            times.append(min(due(view, ceiling), after(view.now, view.site.sizing.cooldown)))
    return times
