# SPDX-License-Identifier: Apache-2.0
"""The variables of an XGBoostJob: where the tracker listens, the rank of the process, and the workers for LightGBM."""

from trainwright.kinds.kubeflow.framework import plain_variables
from trainwright.kinds.kubeflow.replicas import MASTER, WORKER
from trainwright.kinds.xgboostjob.wire import MAIN, XGBoostJobSpec
from trainwright.model.job import Body, Job, Replica
from trainwright.model.site import Site


def variables(job: Job, spec: XGBoostJobSpec, replica: Replica, site: Site) -> list[Body]:
    """The variables of one replica, in the order of the original controller."""
    ports, sizes = endpoints(job, spec), job.sizes
    master, first = job.key.replica_name(MASTER, 0), job.key.replica_name(WORKER, 0)
    values: dict[str, object] = {
        "MASTER_PORT": site.port(job.key, master, *ports[MASTER]),
        "MASTER_ADDR": site.host(job.key, master),
        "WORLD_SIZE": sum(sizes.values()),
        "RANK": replica.index + (sizes[MASTER] if replica.role.name == WORKER else 0),
        "PYTHONUNBUFFERED": 1,
    }
    if sizes.get(WORKER):
        # There is one port for all workers. Each worker has its own host, so the port of worker 0 is free on all hosts
        # if names do not resolve.
        names = (job.key.replica_name(WORKER, index) for index in range(sizes[WORKER]))
        values["WORKER_PORT"] = site.port(job.key, first, *ports[WORKER])
        values["WORKER_ADDRS"] = ",".join(site.host(job.key, name) for name in names)
    return plain_variables(values)


def endpoints(job: Job, _spec: XGBoostJobSpec) -> dict[str, tuple[int, ...]]:
    """The ports of the master and the workers."""
    return {role.name: (MAIN.port_of(role),) for role in job.roles}
