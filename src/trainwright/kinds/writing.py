# SPDX-License-Identifier: Apache-2.0
"""What a kind contributes to `trainwright convert`: a writer of manifests, and facts about a job that all writers need.

`kinds.conversion` calls the writers. A writer knows only its own kind and the internal model, so that a new kind needs
one writer, not one for each pair of kinds. A writer writes what its kind can express, and leaves out the rest:
`kinds.conversion` loads the result and reports every difference from the source.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product

from msgspec import Struct

from trainwright.model.child import Observed
from trainwright.model.job import Body, CleanPods, Job, Replica, Role
from trainwright.model.rule import AllOf, AnyOf, Atom, Rule, Which
from trainwright.model.site import Site

#: Templates by role name, for a writer: complete pod templates without the variables that the new kind sets itself.
Templates = Mapping[str, Body]
#: The replicas that must all have ended so: (role in lower case, index).
Alternative = frozenset[tuple[str, int]]
#: A rule with more alternatives is not expanded.
_MAX_ALTERNATIVES = 4096


class Notation(Struct, frozen=True):
    """How texts of a template contain facts about a replica, in a kind whose controller fills them in."""

    #: The index of the replica, and the texts for a number of replicas (role) and for a host (role, index).
    rank: str
    count: Callable[[str], str]
    host: Callable[[str, int], str]
    #: Returns a text that the controller leaves as it is, apart from `$$`, which the kubelet replaces by `$`.
    escape: Callable[[str], str]


class Writer(Struct, frozen=True):
    """How jobs of any kind become manifests of this kind, and where manifests of this kind have which setting."""

    #: (job, templates) -> parts of manifests, each with `spec` and, if needed, `metadata`. If there are several, the
    #: one that loses the least is used.
    write: Callable[[Job, Templates], Iterable[Body]]
    #: By setting (a name in `kinds.conversion`): the paths at which a manifest may have it, the usual one first.
    #: `{role}` is the name of a role, `{index}` its position.
    paths: Mapping[str, tuple[str, ...]]
    notation: Notation | None = None


# -- rules -----------------------------------------------------------------------------------------------------------


def alternatives(rule: Rule, sizes: Mapping[str, int]) -> frozenset[Alternative] | None:
    """The rule as a set of alternatives, without those that include another one. None: there are too many."""
    found = _expanded(rule, {name.lower(): size for name, size in sizes.items()})
    if found is None:
        return None
    return frozenset(one for one in found if not any(other < one for other in found))


def _expanded(rule: Rule, sizes: Mapping[str, int]) -> set[Alternative] | None:
    match rule:
        case Atom(role, which, _):
            return _atom(role.lower(), which, sizes)
        case AnyOf(rules, _):
            parts = [_expanded(one, sizes) for one in rules]
            merged = None if None in parts else {one for part in parts for one in part or ()}
            return merged if merged is not None and len(merged) <= _MAX_ALTERNATIVES else None
        case AllOf(rules, _):
            parts = [_expanded(one, sizes) for one in rules]
            number = 1
            for part in parts:
                number *= _MAX_ALTERNATIVES + 1 if part is None else len(part)
            if number > _MAX_ALTERNATIVES:
                return None
            # A rule over no replicas never decides anything.
            return {frozenset().union(*each) for each in product(*(part or () for part in parts))} if parts else set()


def _atom(role: str, which: Which | tuple[int, ...], sizes: Mapping[str, int]) -> set[Alternative]:
    ranks = range(sizes.get(role, 0)) if isinstance(which, Which) else which
    if which is Which.SOME:
        return {frozenset({(role, rank)}) for rank in ranks}
    return {frozenset((role, rank) for rank in ranks)} if ranks else set()


# -- facts about a job -----------------------------------------------------------------------------------------------


def replica_of(job: Job, role: Role, index: int) -> Replica:
    """A replica in its first attempt."""
    return Replica(role, index, 0, job.key.replica_name(role.name, index))


def restart_limit(job: Job, role: Role) -> int | None:
    """The most restarts that a replica of this role may have, by the limits of role and job; None: any number."""
    limits = [one for one in (role.restart.limit, job.lifecycle.restarts_allowed) if one is not None]
    return min(limits) if limits else None


def least_clean_up(job: Job) -> CleanPods:
    """The clean-up that removes the fewest pods after any end, for a kind that has one clean-up for every end."""
    order = tuple(CleanPods)
    clean = job.lifecycle.clean
    return min((clean.succeeded, clean.failed), key=order.index)


def service_ports(job: Job) -> Iterator[tuple[Role, list[Body]]]:
    """The ports of the services of each role that has services and replicas."""
    for role in job.roles:
        if role.service and role.replicas:
            body = job.dialect.service(job, replica_of(job, role, 0), Site())
            yield role, list(body["spec"].get("ports") or ())


def pod_group(job: Job, api: str) -> Body:
    """The spec of the job's pod group on a cluster with this gang API; empty if the job has none there."""
    groups = (
        one for one in job.dialect.extras(job, Observed(), Site(gangs=frozenset({api}))) if one["kind"] == "PodGroup"
    )
    return dict(next(groups, {}).get("spec") or {})
