# SPDX-License-Identifier: Apache-2.0
"""Assign port blocks to replicas that share the ports of a machine.

The ledger stores the blocks before any pod is created, so a pod and its peers always know the same ports. The job's UID
selects the block at which the search begins; blocks of other jobs are skipped while free blocks are left. If the names
of replicas do not resolve, the engine reserves a host and ports for each replica that `endpoints` returns, before the
engine starts the pass.
"""

from collections.abc import Iterator
from hashlib import blake2b

from msgspec.structs import replace

from trainwright.core import autosize
from trainwright.core.observe import Snapshot
from trainwright.model.job import Job
from trainwright.model.site import Endpoints, Site


def endpoints(job: Job) -> tuple[Endpoints, ...]:
    """Return the replicas whose addresses the next pass may write into pods; none if it creates no pods."""
    if job.ledger.outcome is not None or job.lifecycle.suspended or job.deleting or job.unmanaged:
        return ()
    largest = autosize.at_largest_size(job)
    told = job.dialect.endpoints(largest)
    roles = [role for role in largest.roles if role.name in told]
    return tuple(Endpoints(job.key.replica_prefix(role.name), role.replicas, told[role.name]) for role in roles)


def needs_ports(job: Job, site: Site) -> bool:
    """Return whether a replica still needs ports. Only then the engine must collect the ports of other jobs."""
    if not job.has_ports:
        return False
    return any(name not in job.ledger.ports for name, _ in _needed_ports(autosize.within_bounds(job), site))


def assign_ports(view: Snapshot) -> Snapshot:
    """Give ports to every replica that needs ports, and take the ports of other replicas back."""
    before = view.ledger.ports
    if not (before or view.job.has_ports):
        return view
    needs = dict(_needed_ports(view.job, view.site))
    if needs.keys() == before.keys():
        return view
    known = {name: base for name, base in before.items() if name in needs}
    new = [name for name in needs if name not in known]
    if new:
        size = max(needs.values())
        taken = _blocks(view.site, size, view.observed.ports | frozenset(known.values()))
        known |= zip(new, _candidate_ports(view.job.uid, view.site, size, taken), strict=False)
    return view.with_ledger(replace(view.ledger, ports=known))


def shared_ports(view: Snapshot) -> list[str]:
    """Return the replicas that got ports of another job in this pass, because no free ports were left."""
    if view.ledger.ports == view.stored.ports or not view.observed.ports:
        return []
    sizes = dict(_needed_ports(view.job, view.site))
    size = max(sizes.values(), default=1)
    taken = _blocks(view.site, size, view.observed.ports)
    new = {name: base for name, base in view.ledger.ports.items() if name not in view.stored.ports}
    return [name for name, base in new.items() if (base - view.site.host_ports[0]) // size in taken]


def _needed_ports(job: Job, site: Site) -> Iterator[tuple[str, int]]:
    """Yield the names of replicas that need ports, each with the number of ports."""
    for role in job.roles:
        if role.ports and (role.uses_host_ports or not site.names_resolve):
            for index in range(role.replicas):
                yield job.key.replica_name(role.name, index), role.ports


def _blocks(site: Site, size: int, bases: frozenset[int]) -> set[int]:
    """Return the numbers of all blocks that are (partly) in use. `bases` are the first ports of the used blocks."""
    low = site.host_ports[0]
    return {(port - low) // size for base in bases for port in (base, base + size - 1)}


def _candidate_ports(uid: str, site: Site, size: int, taken: set[int]) -> Iterator[int]:
    """Yield the first port of each free block, then of all blocks again and again, without end."""
    low, high = site.host_ports
    count = max((high - low + 1) // size, 1)
    start = int.from_bytes(blake2b(uid.encode(), digest_size=8).digest()) % count
    order = [(start + step) % count for step in range(count)]
    for place in (place for place in order if place not in taken):
        yield low + place * size
    while True:
        yield from (low + place * size for place in order)
