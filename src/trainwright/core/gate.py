# SPDX-License-Identifier: Apache-2.0
"""The gate: a ConfigMap with the addresses of all pods of one attempt, which the pods wait for.

The gate is created when the dialect can build it, and stays for that attempt. No pod of the next attempt is created
before the gate is gone, so a pod never reads addresses of old peers.
"""

from functools import lru_cache
from hashlib import blake2b

from msgspec.structs import replace

from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Extra, Observed
from trainwright.model.job import Job, Role
from trainwright.model.ledger import RoleLedger
from trainwright.model.meta import ADDRESS_HASHES, WORLD
from trainwright.model.plan import ReplicaState, RoleState, State

#: The cause for a pod that counts as lost because its address has changed.
_MOVED = Cause(
    CauseKind.DISRUPTED, reason="AddressChanged", message="its peers were told the address that it had before"
)
#: Length of an address hash in characters.
_HASH_LENGTH = 6


def visible_to_dialect(job: Job, roles: tuple[RoleState, ...], observed: Observed) -> Observed:
    """Return the objects from which the dialect builds ConfigMaps and pod groups.

    If the job has a gate, pods of older attempts and pods that are being deleted are left out.
    """
    if not job.has_gate:
        return observed
    pods = [replica.pod for role in roles for replica in role.replicas if replica.pod is not None]
    return replace(observed, pods=tuple([pod for pod in pods if pod.metadata.deletion_timestamp is None]))


def is_current(job: Job, extra: Extra) -> bool:
    """Return whether this child is the current attempt's gate. That gate stays even if the dialect cannot build it."""
    return _is_gate(job, extra) and (extra.metadata.annotations or {}).get(WORLD) == job.world


def is_obsolete(job: Job, extra: Extra, roles: tuple[RoleState, ...]) -> bool:
    """Return whether to delete this child: it is the gate of an older attempt, and the current attempt has no pod.

    We do not overwrite such a gate, because old keys that are not in the next gate would stay. If the current
    attempt has pods, a stored status was lost, and the pods still need this gate.
    """
    if not _is_gate(job, extra) or is_current(job, extra):
        return False
    return all(replica.pod is None for role in roles for replica in role.replicas)


def blocks_creation(job: Job, observed: Observed) -> bool:
    """Return whether a gate of an older attempt or a terminating gate exists. New pods must not read such a gate."""
    return any(
        _is_gate(job, extra) and (extra.metadata.deletion_timestamp is not None or not is_current(job, extra))
        for extra in observed.extras
    )


def address_hashes(job: Job, roles: tuple[RoleState, ...]) -> str:
    """Return the hashes of all pod addresses, to store on the gate; empty if no role depends on fixed addresses."""
    if not any(_fixes_addresses(role) for role in job.roles):
        return ""
    return "".join([_address_hash(_pod_address(replica)) for role in roles for replica in role.replicas])


def mark_moved(job: Job, observed: Observed, roles: tuple[RoleState, ...]) -> tuple[RoleState, ...]:
    """Mark replicas as lost if the address of the pod differs from the address that is stored with the gate."""
    annotations = next((extra.metadata.annotations or {} for extra in observed.extras if is_current(job, extra)), {})
    stored, length = annotations.get(ADDRESS_HASHES, ""), _HASH_LENGTH * sum(len(role.replicas) for role in roles)
    if not stored or len(stored) != length or stored == address_hashes(job, roles):
        return roles
    found, at = [], 0
    for role, group in zip(job.roles, roles, strict=True):
        hashes = stored[at : at + _HASH_LENGTH * len(group.replicas)]
        found.append(_mark_moved_in_role(group, hashes) if _fixes_addresses(role) else group)
        at += len(hashes)
    return tuple(found)


def _mark_moved_in_role(group: RoleState, hashes: str) -> RoleState:
    stored = [hashes[at : at + _HASH_LENGTH] for at in range(0, len(hashes), _HASH_LENGTH)]
    replicas = tuple([_mark_if_moved(replica, stored[replica.index]) for replica in group.replicas])
    return replace(group, replicas=replicas, running=sum(replica.state is State.RUNNING for replica in replicas))


def _mark_if_moved(replica: ReplicaState, stored: str) -> ReplicaState:
    live = not replica.final and replica.state in (State.RUNNING, State.STARTING)
    if not live or _address_hash(_pod_address(replica)) in ("", stored):
        return replica
    return replace(replica, state=State.LOST, cause=_MOVED)


def _fixes_addresses(role: Role) -> bool:
    """Return whether a pod with a new address restarts its scope, because its peers have read the old address."""
    return bool(role.gate) and role.restart.answers_removal and role.restart.answers(CauseKind.DISRUPTED)


def _pod_address(replica: ReplicaState) -> str:
    return replica.pod.status.pod_ip if replica.pod is not None else ""


@lru_cache(maxsize=16384)
def _address_hash(address: str) -> str:
    return blake2b(address.encode(), digest_size=_HASH_LENGTH // 2).hexdigest() if address else ""


def reached_at_gate(role: Role, entry: RoleLedger) -> RoleLedger:
    """Record that every replica has existed. The gate proves this even if a status was lost: it has all addresses."""
    known = min(entry.size, role.replicas)
    if not (role.gate and role.restart.answers_removal) or entry.reached >= known:
        return entry
    return replace(entry, reached=known)


def _is_gate(job: Job, extra: Extra) -> bool:
    return extra.kind == "ConfigMap" and any(role.gate == extra.metadata.name for role in job.roles)
