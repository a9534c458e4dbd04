# SPDX-License-Identifier: Apache-2.0
"""The variables of a PaddleJob: where the leader listens, and the number of nodes.

There is no rank: `paddle.distributed.launch` assigns the ranks when the nodes meet. The leader gets its own IP address,
because its name may not resolve to itself while it is not ready.
"""

from trainwright.kinds.kubeflow.framework import plain_variables
from trainwright.kinds.kubeflow.replicas import MASTER, WORKER
from trainwright.kinds.kubeflow_paddlejob.wire import MAIN, REPLICA_TYPES, KubeflowPaddleJobSpec
from trainwright.model.job import Body, Job, Replica
from trainwright.model.site import Site

_OWN_ADDRESS = "POD_IP_DUMMY"
#: With parameter servers: the variable with the number of servers or trainers in a pod, which is always 1.
_COUNTERS = {MASTER: "PADDLE_SERVER_NUM", WORKER: "PADDLE_TRAINER_NUM"}


def variables(job: Job, spec: KubeflowPaddleJobSpec, replica: Replica, site: Site) -> list[Body]:
    """The variables of one replica, in the order of the original controller."""
    leading = REPLICA_TYPES.leading(spec)
    leader = job.key.replica_name(leading, 0)
    port = site.port(job.key, leader, endpoints(job, spec)[leading][0])
    is_leader = replica.role.name == leading and replica.index == 0
    address: list[Body] = [{"name": _OWN_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    host = f"$({_OWN_ADDRESS})" if is_leader else site.host(job.key, leader)
    return [
        *plain_variables(
            {"PYTHONUNBUFFERED": 1, "PADDLE_JOB_ID": job.key.name, "PADDLE_NNODES": sum(job.sizes.values())}
        ),
        *(address if is_leader else ()),
        *plain_variables({"PADDLE_MASTER": f"{host}:{port}"}),
        *plain_variables({_COUNTERS[replica.role.name]: 1} if leading == MASTER else {}),
    ]


def endpoints(job: Job, _spec: KubeflowPaddleJobSpec) -> dict[str, tuple[int, ...]]:
    """The ports of all roles; the variables contain that of the leader."""
    return {role.name: (MAIN.port_of(role),) for role in job.roles}
