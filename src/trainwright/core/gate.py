# SPDX-License-Identifier: Apache-2.0
"""The ConfigMap that pods wait for before they start: which attempt it speaks of, and what follows from that.

It holds the addresses of one attempt at the whole job. `create` makes it once the dialect can spell it, keeps it for as
long as that attempt lasts, and makes no pod of another before it is gone; so nobody ever reads of peers that are no
more. `classify` asks whether a container merely waits for it, `observe` whether a pod is still where it says.
"""

from functools import lru_cache
from hashlib import blake2b

from msgspec.structs import replace

from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Extra, Observed, Waiting
from trainwright.model.job import Job, Role
from trainwright.model.ledger import RoleLedger
from trainwright.model.meta import PLACES, WORLD
from trainwright.model.plan import ReplicaState, RoleState, State

#: Why a pod that is still there counts as lost.
_MOVED = Cause(
    CauseKind.DISRUPTED, reason="AddressChanged", message="its peers were told the address that it had before"
)
#: So long is the print of an address.
_PRINT = 6


def basis(job: Job, roles: tuple[RoleState, ...], observed: Observed) -> Observed:
    """What a dialect may spell extras from: of pods only those that count."""
    if not job.gated:
        return observed
    pods = [seen.pod for role in roles for seen in role.replicas if seen.pod is not None]
    return replace(observed, pods=tuple([pod for pod in pods if pod.metadata.deletion_timestamp is None]))


def holds(job: Job, extra: Extra) -> bool:
    """It is the ConfigMap of the current attempt: it stays, also when the dialect could not spell it any more."""
    return _gates(job, extra) and (extra.metadata.annotations or {}).get(WORLD) == job.world


def outlived(job: Job, extra: Extra, roles: tuple[RoleState, ...]) -> bool:
    """It is of an older attempt, of which no pod is left that counts: it goes, whatever the next one will hold.

    Written over it would keep keys that the next one has not. Where pods count, a status was lost: they may ask for it.
    """
    if not _gates(job, extra) or holds(job, extra):
        return False
    return all(seen.pod is None for role in roles for seen in role.replicas)


def shut(job: Job, observed: Observed) -> bool:
    """One of an older attempt is still there: a pod that is made now might read it."""
    return any(
        _gates(job, extra) and (extra.metadata.deletion_timestamp is not None or not holds(job, extra))
        for extra in observed.extras
    )


def passed(job: Job, observed: Observed) -> bool:
    """The ConfigMap of the current attempt is there."""
    return job.gated and any(holds(job, extra) for extra in observed.extras)


def places(job: Job, roles: tuple[RoleState, ...]) -> str:
    """Where the pods are of which it tells, as it is noted on it; nothing where addresses may change."""
    if not any(_settled(role) for role in job.roles):
        return ""
    return "".join([_print(_address(seen)) for role in roles for seen in role.replicas])


def moved(job: Job, observed: Observed, roles: tuple[RoleState, ...]) -> tuple[RoleState, ...]:
    """The replicas; those whose pods have got other addresses since, as after a reboot of their node, are lost."""
    told = next((extra.metadata.annotations or {} for extra in observed.extras if holds(job, extra)), {}).get(PLACES)
    if not told or len(told) != _PRINT * sum(len(role.replicas) for role in roles) or told == places(job, roles):
        return roles
    found, at = [], 0
    for role, group in zip(job.roles, roles, strict=True):
        prints = told[at : at + _PRINT * len(group.replicas)]
        found.append(_without_moved(group, prints) if _settled(role) else group)
        at += len(prints)
    return tuple(found)


def _without_moved(group: RoleState, prints: str) -> RoleState:
    replicas = tuple(
        [_judged(seen, prints[_PRINT * seen.index : _PRINT * (seen.index + 1)]) for seen in group.replicas]
    )
    return replace(group, replicas=replicas, running=sum(seen.state is State.RUNNING for seen in replicas))


def _judged(seen: ReplicaState, told: str) -> ReplicaState:
    if seen.final or seen.state not in (State.RUNNING, State.STARTING) or _print(_address(seen)) in ("", told):
        return seen
    return replace(seen, state=State.LOST, cause=_MOVED)


def _settled(role: Role) -> bool:
    """Its peers hold addresses, and are made anew where one is another."""
    return bool(role.gate) and role.restart.answers_removal and role.restart.answers(CauseKind.DISRUPTED)


def _address(seen: ReplicaState) -> str:
    return seen.pod.status.pod_ip if seen.pod is not None else ""


@lru_cache(maxsize=16384)
def _print(address: str) -> str:
    return blake2b(address.encode(), digest_size=_PRINT // 2).hexdigest() if address else ""


def reached(role: Role, book: RoleLedger) -> RoleLedger:
    """Past the gate: every replica has existed, where it takes all their addresses to open, whatever was stored."""
    known = min(book.size, role.replicas)
    if not (role.gate and role.restart.answers_removal) or book.reached >= known:
        return book
    return replace(book, reached=known)


def excuses(role: Role, waiting: Waiting) -> bool:
    """The container waits for nothing but the gate; anything else that is missing is a mistake of somebody's."""
    return bool(role.gate) and role.gate in waiting.missing


def _gates(job: Job, extra: Extra) -> bool:
    return extra.kind == "ConfigMap" and any(role.gate == extra.metadata.name for role in job.roles)
