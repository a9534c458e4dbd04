# SPDX-License-Identifier: Apache-2.0
"""The variables by which the replicas of an AITrainingJob know themselves and find each other.

The names of the variables are part of the contract; their values are set when a pod is created. Main containers and
ports have names that begin with `aitj-`; if no container has the prefix, the first container is main, with all ports.
"""

from collections.abc import Iterator
from functools import lru_cache

from trainwright.kinds.aitrainingjob.wire import AITrainingJobSpec
from trainwright.model.job import Body, Job, Replica
from trainwright.model.meta import Key
from trainwright.model.site import Site

PREFIX = "aitj-"


#: Name, replicas and ports of each replica type.
Sizes = tuple[tuple[str, int, tuple[int, ...]], ...]
Pairs = tuple[tuple[str, str], ...]


def variables(job: Job, _spec: AITrainingJobSpec, replica: Replica, site: Site) -> list[Body]:
    """The variables of every container of a pod, including init containers."""
    sizes = tuple((role.name, role.replicas, main_ports(role.template)) for role in job.roles)
    peers = _peers_by_name(job.key, sizes) if site.names_resolve else _peers(job.key, sizes, replica, site)
    return [{"name": name, "value": value} for name, value in peers + _own(job, replica, site)]


def ports_variable(job: Job, replica: Replica, site: Site, ports: tuple[int, ...]) -> Body:
    """The variable that lists a container's own ports."""
    reserved = [str(site.port(job.key, replica.name, port)) for port in ports]
    return {"name": "TRAININGJOB_PORTS", "value": ",".join(reserved)}


def restarts(job: Job, role: str) -> int:
    """How often a replica type has been restarted."""
    return next((sum(one.restarts.values()) for one in job.ledger.roles if one.name == role), 0)


def main_containers(template: Body) -> tuple[Body, ...]:
    """The main containers of a pod."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return tuple(one for one in containers if has_prefix(one)) or tuple(containers[:1])


def main_ports(template: Body) -> tuple[int, ...]:
    """The ports of a replica that its peers know."""
    return tuple(dict.fromkeys(port for one in main_containers(template) for port in container_ports(one)))


def container_ports(container: Body) -> tuple[int, ...]:
    """The ports of a main container that peers know, in template order, each once."""
    ports = container.get("ports") or ()
    known = [port for port in ports if has_prefix(port)] if has_prefix(container) else ports
    return tuple(dict.fromkeys(int(port["containerPort"]) for port in known))


def has_prefix(body: Body) -> bool:
    """Whether the name of a container or port has the prefix."""
    return str(body.get("name", "")).startswith(PREFIX)


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
def _peers_by_name(job: Key, sizes: Sizes) -> Pairs:
    """The lists of peers if names resolve: the same for every pod of the job."""
    found: Pairs = ()
    for name, count, ports in sizes:
        # The type stays as the user wrote it, with upper-case letters: DNS does not distinguish upper and lower case.
        instances = [f"{job.name}-{name}-{index}.{job.namespace}" for index in range(count)]
        hosts = [f"{instance}:{port}" for instance in instances for port in ports]
        found += _lists(name, instances, [str(port) for port in ports], hosts)
    return found


def _peers(job: Key, sizes: Sizes, replica: Replica, site: Site) -> Pairs:
    """The lists of peers if names do not resolve. Then the ports differ between replicas: only HOSTS has every port.

    PORTS has the ports of one replica: for the pod's own type, of the pod itself; for another type, of replica 0.
    """
    found: Pairs = ()
    for name, count, ports in sizes:
        names = [job.replica_name(name, index) for index in range(count)]
        instances = [site.host(job, one) for one in names]
        hosts = [f"{site.host(job, one)}:{site.port(job, one, port)}" for one in names for port in ports]
        shown = replica.name if name == replica.role.name else job.replica_name(name, 0)
        found += _lists(name, instances, [str(site.port(job, shown, port)) for port in ports], hosts)
    return found


def _lists(name: str, instances: list[str], ports: list[str], hosts: list[str]) -> Pairs:
    lists = (("INSTANCES", instances), ("PORTS", ports), ("HOSTS", hosts))
    upper = name.upper()
    # Shells do not allow a dash in a variable name, so such a type has a second set of variables.
    prefixes = dict.fromkeys((upper, upper.replace("-", "_")))
    return tuple(pair for prefix in prefixes for suffix, many in lists for pair in _listed(f"{prefix}_{suffix}", many))


def _listed(name: str, many: list[str]) -> Iterator[tuple[str, str]]:
    yield name, ",".join(many)
    yield f"{name}_NUM", str(len(many))
