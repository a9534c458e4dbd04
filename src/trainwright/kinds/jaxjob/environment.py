# SPDX-License-Identifier: Apache-2.0
"""The variables of a JAXJob: where process 0 listens, the number of processes, and the rank of the process.

Programs join address and port themselves for `jax.distributed.initialize`; JAX does not read these variables.
"""

from trainwright.kinds.jaxjob.wire import MAIN, JAXJobSpec
from trainwright.kinds.kubeflow.framework import plain_variables
from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.model.job import Body, Job, Replica
from trainwright.model.site import Site


def variables(job: Job, _spec: JAXJobSpec, replica: Replica, site: Site) -> list[Body]:
    """The variables of one replica, in the order of the original controller."""
    coordinator = job.key.replica_name(WORKER, 0)
    return plain_variables(
        {
            "PYTHONUNBUFFERED": 1,
            "COORDINATOR_PORT": site.port(job.key, coordinator, MAIN.port_of(replica.role)),
            "COORDINATOR_ADDRESS": site.host(job.key, coordinator),
            "NUM_PROCESSES": sum(job.sizes.values()),
            "PROCESS_ID": replica.index,
        }
    )


def endpoints(job: Job, _spec: JAXJobSpec) -> dict[str, tuple[int, ...]]:
    """The port of the coordinator; all workers have the same template."""
    return {role.name: (MAIN.port_of(role),) for role in job.roles}
