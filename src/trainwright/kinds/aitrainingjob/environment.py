# SPDX-License-Identifier: Apache-2.0
"""Which containers of a pod count, and which of their ports: by the prefix `aitj-`. For policies, dialect and checks.

Where no container carries the prefix the first one counts, with all of its ports: that is what its author meant.

The variables by which replicas find each other and know themselves. The names are the contract. For `dialect`.

Written when a pod is made. What all pods of a job are told is spelled once; where names do not resolve (process
runtime), hosts and ports are those that stand for each replica.
"""

from collections.abc import Iterator
from functools import lru_cache

from trainwright.model.job import Body, Job, Replica
from trainwright.model.meta import Key
from trainwright.model.site import Site

PREFIX = "aitj-"


def counting(template: Body) -> tuple[Body, ...]:
    """The containers that count."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return tuple(one for one in containers if str(one.get("name", "")).startswith(PREFIX)) or tuple(containers[:1])


def prefixed(container: Body) -> bool:
    """It carries the prefix."""
    return str(container.get("name", "")).startswith(PREFIX)


def ports_of(container: Body) -> tuple[int, ...]:
    """The ports of a container that counts at which it is reached, in template order, each once."""
    ports = container.get("ports") or ()
    told = [port for port in ports if str(port.get("name", "")).startswith(PREFIX)] if prefixed(container) else ports
    return tuple(dict.fromkeys(int(port["containerPort"]) for port in told))


def ports(template: Body) -> tuple[int, ...]:
    """The ports at which a replica is reached."""
    return tuple(dict.fromkeys(port for one in counting(template) for port in ports_of(one)))


#: Name, replicas and ports of each replica type.
Sizes = tuple[tuple[str, int, tuple[int, ...]], ...]
Pairs = tuple[tuple[str, str], ...]


def variables(job: Job, replica: Replica, site: Site) -> list[Body]:
    """What every container of a pod is told, its init containers included."""
    sizes = tuple((role.name, role.replicas, ports(role.template)) for role in job.roles)
    peers = _named(job.key, sizes) if site.names_resolve else _mapped(job.key, sizes, replica, site)
    return _entries(peers + _own(job, replica, site))


def own_ports(job: Job, replica: Replica, site: Site, told: tuple[int, ...]) -> Body:
    """What one container is told of its own ports."""
    return {"name": "TRAININGJOB_PORTS", "value": _commas(site.port(job.key, replica.name, port) for port in told)}


def restarts(job: Job, role: str) -> int:
    """How often a replica type has been restarted."""
    return next((sum(book.restarts.values()) for book in job.ledger.roles if book.name == role), 0)


def _own(job: Job, replica: Replica, site: Site) -> Pairs:
    name, key = replica.role.name, job.key
    service = f"{replica.name}.{key.namespace}" if site.names_resolve else site.host(key, replica.name)
    return (
        ("TRAININGJOB_REPLICA_NAME", name.lower()),
        ("TRAININGJOB_REPLICA_TYPE", name.lower()),
        ("TRAININGJOB_REPLICA_INDEX", str(replica.index)),
        ("TRAININGJOB_REPLICA_RESTARTCOUNT", str(restarts(job, name))),
        ("TRAININGJOB_SERVICE", service),
        ("TRAININGJOB_NAME", key.name),
        ("TRAININGJOB_NAMESPACE", key.namespace),
    )


@lru_cache(maxsize=64)
def _named(job: Key, sizes: Sizes) -> Pairs:
    """Where names resolve: the same for every pod of the job."""
    found: Pairs = ()
    for name, count, open_at in sizes:
        # As the replica type is written: names of hosts do not mind the case.
        instances = [f"{job.name}-{name}-{index}.{job.namespace}" for index in range(count)]
        hosts = [f"{instance}:{port}" for instance in instances for port in open_at]
        found += _block(name, instances, [str(port) for port in open_at], hosts)
    return found


def _mapped(job: Key, sizes: Sizes, replica: Replica, site: Site) -> Pairs:
    """Where they do not: each replica has an address and ports of its own, so that only the hosts tell all of it.

    As the ports of a type, a replica is told its own; of another type, those of the first one.
    """
    found: Pairs = ()
    for name, count, open_at in sizes:
        names = [job.replica_name(name, index) for index in range(count)]
        instances = [site.host(job, one) for one in names]
        hosts = [f"{site.host(job, one)}:{site.port(job, one, port)}" for one in names for port in open_at]
        shown = replica.name if name == replica.role.name else job.replica_name(name, 0)
        told = [str(site.port(job, shown, port)) for port in open_at]
        found += _block(name, instances, told, hosts)
    return found


def _block(name: str, instances: list[str], told: list[str], hosts: list[str]) -> Pairs:
    lists = (("INSTANCES", instances), ("PORTS", told), ("HOSTS", hosts))
    upper = name.upper()
    # Shells have no names with a dash, so such types are told under a second one.
    prefixes = dict.fromkeys((upper, upper.replace("-", "_")))
    return tuple(pair for prefix in prefixes for word, many in lists for pair in _listed(f"{prefix}_{word}", many))


def _listed(name: str, many: list[str]) -> Iterator[tuple[str, str]]:
    yield name, ",".join(many)
    yield f"{name}_NUM", str(len(many))


def _commas(many: Iterator[int]) -> str:
    return ",".join(map(str, many))


def _entries(pairs: Pairs) -> list[Body]:
    return [{"name": name, "value": value} for name, value in pairs]
