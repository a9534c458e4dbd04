# SPDX-License-Identifier: Apache-2.0
"""`TF_CONFIG`: the addresses of all replicas, and the type and index of the replica itself.

The strings are part of the contract, byte for byte. The value is set when a pod is created; scaling later does not
change it in running pods. The part that all pods of a job share is computed once and cached.
"""

from functools import lru_cache
from typing import Any

import msgspec

from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.kinds.tfjob.wire import CHIEFS, MAIN, PS, TFJobSpec
from trainwright.model.job import Body, Job, Replica
from trainwright.model.meta import Key
from trainwright.model.site import Site

#: Type, replicas and port of each role.
Sizes = tuple[tuple[str, int, int], ...]


def variables(job: Job, spec: TFJobSpec, replica: Replica, site: Site) -> list[Body]:
    """`TF_CONFIG` of one pod, if the job needs it."""
    sizes = sizes_of(job)
    if not sizes:
        return []
    task = _json({"type": replica.role.name.lower(), "index": replica.index})
    if spec.enable_dynamic_worker:
        value = f'{{"cluster":{_sparse_cluster(job.key, sizes, replica, site)},"task":{task}}}'
    else:
        by_name = site.names_resolve
        cluster = _cluster_by_name(job.key, sizes, site.domain) if by_name else _cluster(job.key, sizes, site)
        value = f'{{"cluster":{cluster},"task":{task},"environment":"cloud"}}'
    return [{"name": "TF_CONFIG", "value": value}]


def sizes_of(job: Job) -> Sizes:
    """The roles that `TF_CONFIG` lists; none for a job with a single replica, which needs no `TF_CONFIG`."""
    if sum(role.replicas for role in job.roles) == 1:
        return ()
    # Omit a chief without replicas: TensorFlow uses worker 0 as the chief only if there is no entry for a chief.
    listed = [role for role in job.roles if role.replicas or role.name not in CHIEFS]
    return tuple((role.name, role.replicas, MAIN.port_of(role)) for role in listed)


def endpoints(job: Job, _spec: TFJobSpec) -> dict[str, tuple[int, ...]]:
    """The roles that `TF_CONFIG` lists, each with its port."""
    return {name: (port,) for name, _, port in sizes_of(job)}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


@lru_cache(maxsize=64)
def _cluster_by_name(job: Key, sizes: Sizes, domain: str) -> str:
    """The cluster if names resolve: the same text for every pod of the job."""
    return _json({role.lower(): [_name(job, role, i, port, domain) for i in range(n)] for role, n, port in sizes})


def _name(job: Key, role: str, index: int, port: int, domain: str) -> str:
    return f"{job.replica_name(role, index)}.{job.namespace}.svc{f'.{domain}' if domain else ''}:{port}"


def _cluster(job: Key, sizes: Sizes, site: Site) -> str:
    return _json({role.lower(): _addresses(job, (role, count, port), site) for role, count, port in sizes})


def _addresses(job: Key, size: tuple[str, int, int], site: Site) -> list[str]:
    role, count, port = size
    return [_address(job, role, index, port, site) for index in range(count)]


def _address(job: Key, role: str, index: int, port: int, site: Site) -> str:
    """The address of a replica; if names do not resolve, the host and port that were reserved for it."""
    if site.names_resolve:
        return _name(job, role, index, port, site.domain)
    name = job.replica_name(role, index)
    return f"{site.host(job, name)}:{site.port(job, name, port)}"


def _sparse_cluster(job: Key, sizes: Sizes, replica: Replica, site: Site) -> str:
    """The cluster with dynamic workers. A worker knows only itself and the parameter servers, so workers may join."""
    own, index = replica.role.name, replica.index
    by_type = {size[0]: size for size in sizes}
    here = _address(job, own, index, by_type[own][2], site)
    if own == WORKER:
        servers = _addresses(job, by_type[PS], site) if PS in by_type else None
        return _json({"worker": {str(index): here}, "ps": servers})
    return _json({"worker": {}, "ps": [here] if own == PS else []})
