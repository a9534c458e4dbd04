# SPDX-License-Identifier: Apache-2.0
"""`TF_CONFIG`: who is in the cluster, and who one is. The strings are the contract, to the byte. For `dialect`.

Computed when a pod is made; scaling later does not reach pods that run. The part that all pods share is spelled once.
"""

from functools import lru_cache
from typing import Any

import msgspec

from trainwright.kinds.tfjob.wire import CHIEFS, CONTAINER, PORT, PORT_NAME, PS, WORKER
from trainwright.model.job import Body, Job, Replica, Role
from trainwright.model.meta import Key
from trainwright.model.site import Site

#: Type, replicas and port of each role.
Sizes = tuple[tuple[str, int, int], ...]


def tf_config(job: Job, replica: Replica, site: Site, *, dynamic: bool) -> str | None:
    """The value for one pod; None for a job of a single replica, which needs none."""
    sizes = _sizes(job)
    if sum(count for _, count, _ in sizes) == 1:
        return None
    task = _json({"type": replica.role.name.lower(), "index": replica.index})
    if dynamic:
        return f'{{"cluster":{_sparse(job.key, sizes, replica, site)},"task":{task}}}'
    whole = _named(job.key, sizes, site.domain) if site.names_resolve else _mapped(job.key, sizes, site)
    return f'{{"cluster":{whole},"task":{task},"environment":"cloud"}}'


def endpoints(job: Job) -> dict[str, tuple[int, ...]]:
    """The roles that `config` lists, each with its port."""
    return {name: (port,) for name, _, port in _sizes(job)} if sum(role.replicas for role in job.roles) != 1 else {}


def _sizes(job: Job) -> Sizes:
    # TensorFlow takes worker 0 for the chief only where none is listed, not even an empty list of them.
    listed = [role for role in job.roles if role.replicas or role.name not in CHIEFS]
    return tuple((role.name, role.replicas, port_of(role)) for role in listed)


def port_of(role: Role) -> int:
    """The port of its type: what the container that trains calls `tfjob-port`."""
    for port in container_of(role.template).get("ports") or ():
        if port.get("name") == PORT_NAME:
            return int(port["containerPort"])
    return PORT


def container_of(template: Body) -> Body:
    """The container that trains."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((one for one in containers if one.get("name") == CONTAINER), {})


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


@lru_cache(maxsize=64)
def _named(job: Key, sizes: Sizes, domain: str) -> str:
    """The cluster where names resolve: the same text for every pod of the job."""
    return _json({role.lower(): [_name(job, role, i, port, domain) for i in range(n)] for role, n, port in sizes})


def _name(job: Key, role: str, index: int, port: int, domain: str) -> str:
    return f"{job.replica_name(role, index)}.{job.namespace}.svc{f'.{domain}' if domain else ''}:{port}"


def _mapped(job: Key, sizes: Sizes, site: Site) -> str:
    return _json({role.lower(): _all(job, (role, count, port), site) for role, count, port in sizes})


def _all(job: Key, size: tuple[str, int, int], site: Site) -> list[str]:
    role, count, port = size
    return [_address(job, role, index, port, site) for index in range(count)]


def _address(job: Key, role: str, index: int, port: int, site: Site) -> str:
    """Where a replica is reached; where names do not resolve, at the host and port that stand for it."""
    if site.names_resolve:
        return _name(job, role, index, port, site.domain)
    name = job.replica_name(role, index)
    return f"{site.host(job, name)}:{site.port(job, name, port)}"


def _sparse(job: Key, sizes: Sizes, replica: Replica, site: Site) -> str:
    """With dynamic workers each knows itself and the servers, so that others may come and go."""
    own, index = replica.role.name, replica.index
    by_type = {size[0]: size for size in sizes}
    here = _address(job, own, index, by_type[own][2], site)
    if own == WORKER:
        servers = _all(job, by_type[PS], site) if PS in by_type else None
        return _json({"worker": {str(index): here}, "ps": servers})
    return _json({"worker": {}, "ps": [here] if own == PS else []})
