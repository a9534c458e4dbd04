# SPDX-License-Identifier: Apache-2.0
"""PyTorchJob, `kubeflow.org/v1`, as a `Kind`: a master whose success decides the job, workers, and elastic jobs."""

from msgspec import UNSET
from msgspec.structs import replace

from trainwright.kinds.kubeflow.framework import Framework, leader_texts, worker_texts
from trainwright.kinds.kubeflow.kind import make_kind
from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.kinds.pytorchjob import checks, dialect, environment, policies
from trainwright.kinds.pytorchjob.wire import MAIN, REPLICA_TYPES, PyTorchJob, PyTorchJobSpec, TorchElasticPolicy


def default(spec: PyTorchJobSpec) -> PyTorchJobSpec:
    """Set the bounds of an elastic job, and the processes per node, unless they are in their old place."""
    policy = spec.elastic_policy
    if policy is not None:
        spec = replace(spec, elastic_policy=_with_bounds(spec, policy))
    old = UNSET if policy is None else policy.n_proc_per_node
    return replace(spec, nproc_per_node=spec.nproc_per_node or ("auto" if old is UNSET else UNSET))


def _with_bounds(spec: PyTorchJobSpec, policy: TorchElasticPolicy) -> TorchElasticPolicy:
    """A bound that is not set is equal to the other bound, or to the number of workers."""
    workers = spec.replica_specs.get(WORKER)
    size = workers.replicas if workers is not None and workers.replicas else UNSET
    least = policy.min_replicas or policy.max_replicas or size
    return replace(policy, min_replicas=least, max_replicas=policy.max_replicas or least)


PYTORCH = Framework(
    name="PyTorchJob",
    field="pytorchReplicaSpecs",
    types=REPLICA_TYPES,
    main=MAIN,
    texts=leader_texts("PyTorchJob"),
    texts_without_leader=worker_texts("PyTorchJob"),
    wire=PyTorchJob,
    variables=environment.variables,
    endpoints=environment.endpoints,
    init_containers=dialect.init_containers,
    awaits_leader=True,
    extras=dialect.extras,
    variable_names=(
        *("MASTER_PORT", "PET_MASTER_PORT", "MASTER_ADDR", "PET_MASTER_ADDR", "WORLD_SIZE", "RANK", "PET_NODE_RANK"),
        *(
            "PET_NPROC_PER_NODE",
            "PET_NNODES",
        ),  # PET_RDZV_* and others are often the user's own: only some jobs have ours
    ),
    restart_policy="OnFailure",
    has_scale=True,
    removed_reason="SuccessfulDeletePod",
    default=default,
    success=policies.success,
    check_replicas=checks.check_replicas,
    check=checks.check,
    cel_rules=checks.CEL_RULES,
)
PYTORCHJOB = make_kind(PYTORCH, has_autoscaler=True)
