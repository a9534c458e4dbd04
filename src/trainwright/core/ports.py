# SPDX-License-Identifier: Apache-2.0
"""Ports of shared machines, handed out: each replica that shares one has a block of its own. A step of `reconcile`.

They are in the ledger, which is stored before any pod is made, so a pod and its peers agree on them whatever dies. The
first candidate comes from the job's UID; blocks that other jobs hold are skipped for as long as there are others.
`endpoints` is asked before a pass: where names do not resolve, the engine reserves hosts and single ports for these.
"""

from collections.abc import Iterator
from hashlib import blake2b

from msgspec.structs import replace

from trainwright.core import autosize
from trainwright.core.observe import Snapshot
from trainwright.model.job import Job
from trainwright.model.site import Endpoints, Site


def endpoints(job: Job) -> tuple[Endpoints, ...]:
    """The replicas that pods may be told of in the next pass; none where that pass makes no pods."""
    if job.ledger.outcome is not None or job.lifecycle.suspended or job.deleting or job.unmanaged:
        return ()
    largest = autosize.at_largest_size(job)
    told = job.dialect.endpoints(largest)
    roles = [role for role in largest.roles if role.name in told]
    return tuple(Endpoints(job.key.replica_prefix(role.name), role.replicas, told[role.name]) for role in roles)


def needs_ports(job: Job, site: Site) -> bool:
    """Whether a replica still needs ports: only then must be known which ones others hold."""
    return any(name not in job.ledger.ports for name, _ in _needed_ports(autosize.within_bounds(job), site))


def assign_ports(view: Snapshot) -> Snapshot:
    """The pass in which every replica that needs ports has some, and no other."""
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
    """Replicas that were given ports in this pass which another job has as well: there were no others."""
    if view.ledger.ports == view.stored.ports or not view.observed.ports:
        return []
    sizes = dict(_needed_ports(view.job, view.site))
    size = max(sizes.values(), default=1)
    taken = _blocks(view.site, size, view.observed.ports)
    new = {name: base for name, base in view.ledger.ports.items() if name not in view.stored.ports}
    return [name for name, base in new.items() if (base - view.site.host_ports[0]) // size in taken]


def _needed_ports(job: Job, site: Site) -> Iterator[tuple[str, int]]:
    """The names of replicas that need ports, each with how many."""
    for role in job.roles:
        if role.ports and (role.uses_host_ports or not site.names_resolve):
            for index in range(role.replicas):
                yield job.key.replica_name(role.name, index), role.ports


def _blocks(site: Site, size: int, bases: frozenset[int]) -> set[int]:
    """Which places of the range these blocks touch; another range or size may have been in force when they were."""
    low = site.host_ports[0]
    return {(port - low) // size for base in bases for port in (base, base + size - 1)}


def _candidate_ports(uid: str, site: Site, size: int, taken: set[int]) -> Iterator[int]:
    """First ports of blocks, for ever: first those that nobody holds, then the others."""
    low, high = site.host_ports
    count = max((high - low + 1) // size, 1)
    start = int.from_bytes(blake2b(uid.encode(), digest_size=8).digest()) % count
    order = [(start + step) % count for step in range(count)]
    for place in (place for place in order if place not in taken):
        yield low + place * size
    while True:
        yield from (low + place * size for place in order)
