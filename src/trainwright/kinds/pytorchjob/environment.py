# SPDX-License-Identifier: Apache-2.0
"""The variables of a PyTorchJob: those of `torch.distributed`, and as `PET_*` the options of torchrun.

They are set when a pod is created; scaling later does not change them in running pods.
"""

from collections.abc import Iterator

from msgspec import UNSET

from trainwright.kinds.kubeflow.framework import plain_variables
from trainwright.kinds.kubeflow.replicas import MASTER, WORKER
from trainwright.kinds.pytorchjob.wire import MAIN, PyTorchJobSpec, TorchElasticPolicy
from trainwright.model.job import Body, Job, Replica
from trainwright.model.site import Site

Values = Iterator[tuple[str, object]]


def variables(job: Job, spec: PyTorchJobSpec, replica: Replica, site: Site) -> list[Body]:
    """The variables of one replica, in the order of the original controller."""
    values: dict[str, object] = {"PYTHONUNBUFFERED": 1}
    if MASTER in job.sizes or spec.elastic_policy is None:
        values |= _ranks(job, spec, replica, site)
    if spec.nproc_per_node is not UNSET:
        values["PET_NPROC_PER_NODE"] = spec.nproc_per_node
    if spec.elastic_policy is None:
        values["PET_NNODES"] = sum(job.sizes.values())
    else:
        values |= _elastic(job, spec.elastic_policy, site)
    return plain_variables(values)


def _ranks(job: Job, spec: PyTorchJobSpec, replica: Replica, site: Site) -> Values:
    """The address of the leader, and the rank of the replica.

    Without a master, worker 0 leads. The original controller gives such a job no address, so only one worker can work.
    """
    ports, masters = endpoints(job, spec), job.sizes.get(MASTER, 0)
    role = MASTER if masters else WORKER
    leader = job.key.replica_name(role, 0)
    port, host = site.port(job.key, leader, ports[role][0]), site.host(job.key, leader)
    rank = replica.index + (masters if replica.role.name == WORKER else 0)
    yield from (("MASTER_PORT", port), ("PET_MASTER_PORT", port), ("MASTER_ADDR", host), ("PET_MASTER_ADDR", host))
    yield "WORLD_SIZE", sum(job.sizes.values()) * _processes(spec)
    yield from (("RANK", rank), ("PET_NODE_RANK", rank))


def _processes(spec: PyTorchJobSpec) -> int:
    """The processes per replica as far as the manifest has a number; otherwise torchrun counts them."""
    try:
        return int(str(spec.nproc_per_node or ""))
    except ValueError:
        return 1


def _elastic(job: Job, policy: TorchElasticPolicy, site: Site) -> Values:
    """The rendezvous of an elastic job."""
    host = policy.rdzv_host or job.key.replica_name(WORKER, 0)
    own = next(MAIN.port_of(role) for role in job.roles if role.name == WORKER)
    port = own if policy.rdzv_port is UNSET else policy.rdzv_port
    yield "PET_RDZV_ENDPOINT", f"{site.host(job.key, host)}:{site.port(job.key, host, port)}"
    yield "PET_RDZV_BACKEND", policy.rdzv_backend or "c10d"
    yield "PET_NNODES", f"{policy.min_replicas}:{policy.max_replicas}"
    if policy.max_restarts is not UNSET:
        yield "PET_MAX_RESTARTS", policy.max_restarts
    if policy.n_proc_per_node is not UNSET:
        yield "PET_NPROC_PER_NODE", policy.n_proc_per_node
    if policy.rdzv_id:
        yield "PET_RDZV_ID", policy.rdzv_id
    if policy.rdzv_conf:
        yield "PET_RDZV_CONF", ",".join(f"{one.key}={one.value}" for one in policy.rdzv_conf)
    if policy.standalone:
        # The original controller writes an empty text, which torchrun refuses.
        yield "PET_STANDALONE", 1


def endpoints(job: Job, spec: PyTorchJobSpec) -> dict[str, tuple[int, ...]]:
    """The ports of the master and the workers; with `rdzvPort` the workers have a second port."""
    ports: dict[str, tuple[int, ...]] = {role.name: (MAIN.port_of(role),) for role in job.roles}
    policy = spec.elastic_policy
    if policy is not None and policy.rdzv_port is not UNSET and WORKER in ports:
        ports[WORKER] = tuple(dict.fromkeys((*ports[WORKER], policy.rdzv_port)))
    return ports
