# SPDX-License-Identifier: Apache-2.0
"""The ConfigMap that pods wait for before they start: which attempt it speaks of, and what follows from that.

It holds the addresses of one attempt at the whole job. `run` makes it once the dialect can spell it, keeps it for as
long as that attempt lasts, and makes no pod of another before it is gone; so nobody ever reads of peers that are no
more. `conclude` asks whether a container merely waits for it, `observe` whether a pod is still where it says.
"""

from functools import lru_cache
from hashlib import blake2b

from msgspec.structs import replace

from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Extra, Observed, Waiting
from trainwright.model.job import Job, Role
from trainwright.model.ledger import RoleLedger
from trainwright.model.meta import ADDRESS_HASHES, WORLD
from trainwright.model.plan import ReplicaState, RoleState, State

#: Why a pod that is still there counts as lost.
_MOVED = Cause(
    CauseKind.DISRUPTED, reason="AddressChanged", message="its peers were told the address that it had before"
)
#: So long is the print of an address.
_HASH_LENGTH = 6


def visible_to_dialect(job: Job, roles: tuple[RoleState, ...], observed: Observed) -> Observed:
    """What a dialect may spell extras from: of pods only those that count."""
    if not job.has_gate:
        return observed
    pods = [replica.pod for role in roles for replica in role.replicas if replica.pod is not None]
    return replace(observed, pods=tuple([pod for pod in pods if pod.metadata.deletion_timestamp is None]))


def is_current(job: Job, extra: Extra) -> bool:
    """It is the ConfigMap of the current attempt: it stays, also when the dialect could not spell it any more."""
    return _is_gate(job, extra) and (extra.metadata.annotations or {}).get(WORLD) == job.world


def is_obsolete(job: Job, extra: Extra, roles: tuple[RoleState, ...]) -> bool:
    """It is of an older attempt, of which no pod is left that counts: it goes, whatever the next one will hold.

    Written over it would keep keys that the next one has not. Where pods count, a status was lost: they may ask for it.
    """
    if not _is_gate(job, extra) or is_current(job, extra):
        return False
    return all(replica.pod is None for role in roles for replica in role.replicas)


def blocks_creation(job: Job, observed: Observed) -> bool:
    """One of an older attempt is still there: a pod that is made now might read it."""
    return any(
        _is_gate(job, extra) and (extra.metadata.deletion_timestamp is not None or not is_current(job, extra))
        for extra in observed.extras
    )


def is_open(job: Job, observed: Observed) -> bool:
    """The ConfigMap of the current attempt is there."""
    return job.has_gate and any(is_current(job, extra) for extra in observed.extras)


def address_hashes(job: Job, roles: tuple[RoleState, ...]) -> str:
    """Where the pods are of which it tells, as it is noted on it; nothing where addresses may change."""
    if not any(_fixes_addresses(role) for role in job.roles):
        return ""
    return "".join([_address_hash(_pod_address(replica)) for role in roles for replica in role.replicas])


def mark_moved(job: Job, observed: Observed, roles: tuple[RoleState, ...]) -> tuple[RoleState, ...]:
    """The replicas; those whose pods have got other addresses since, as after a reboot of their node, are lost."""
    told = next((extra.metadata.annotations or {} for extra in observed.extras if is_current(job, extra)), {}).get(
        ADDRESS_HASHES
    )
    if (
        not told
        or len(told) != _HASH_LENGTH * sum(len(role.replicas) for role in roles)
        or told == address_hashes(job, roles)
    ):
        return roles
    found, at = [], 0
    for role, group in zip(job.roles, roles, strict=True):
        hashes = told[at : at + _HASH_LENGTH * len(group.replicas)]
        found.append(_mark_moved_in_role(group, hashes) if _fixes_addresses(role) else group)
        at += len(hashes)
    return tuple(found)


def _mark_moved_in_role(group: RoleState, hashes: str) -> RoleState:
    replicas = tuple(
        [
            _mark_if_moved(replica, hashes[_HASH_LENGTH * replica.index : _HASH_LENGTH * (replica.index + 1)])
            for replica in group.replicas
        ]
    )
    return replace(group, replicas=replicas, running=sum(replica.state is State.RUNNING for replica in replicas))


def _mark_if_moved(replica: ReplicaState, told: str) -> ReplicaState:
    if (
        replica.final
        or replica.state not in (State.RUNNING, State.STARTING)
        or _address_hash(_pod_address(replica)) in ("", told)
    ):
        return replica
    return replace(replica, state=State.LOST, cause=_MOVED)


def _fixes_addresses(role: Role) -> bool:
    """Its peers hold addresses, and are made anew where one is another."""
    return bool(role.gate) and role.restart.answers_removal and role.restart.answers(CauseKind.DISRUPTED)


def _pod_address(replica: ReplicaState) -> str:
    return replica.pod.status.pod_ip if replica.pod is not None else ""


@lru_cache(maxsize=16384)
def _address_hash(address: str) -> str:
    return blake2b(address.encode(), digest_size=_HASH_LENGTH // 2).hexdigest() if address else ""


def reached_at_gate(role: Role, entry: RoleLedger) -> RoleLedger:
    """Past the gate: every replica has existed, where it takes all their addresses to open, whatever was stored."""
    known = min(entry.size, role.replicas)
    if not (role.gate and role.restart.answers_removal) or entry.reached >= known:
        return entry
    return replace(entry, reached=known)


def is_waiting_for_gate(role: Role, waiting: Waiting) -> bool:
    """The container waits for nothing but the gate; anything else that is missing is a mistake of somebody's."""
    return bool(role.gate) and role.gate in waiting.missing


def _is_gate(job: Job, extra: Extra) -> bool:
    return extra.kind == "ConfigMap" and any(role.gate == extra.metadata.name for role in job.roles)
