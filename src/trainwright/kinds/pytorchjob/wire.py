# SPDX-License-Identifier: Apache-2.0
"""The wire types of a PyTorchJob, `kubeflow.org/v1`, and its replica types."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from trainwright.kinds.kubeflow.replicas import MASTER, WORKER, MainContainer, ReplicaTypes
from trainwright.kinds.kubeflow.wire import KubeflowStatus, ReplicaSpec, RunPolicy
from trainwright.kinds.scalars import MAX_REPLICAS, Manifest, Seconds, ShortText, Spec, doc

Bound = Annotated[int, Meta(ge=1, le=MAX_REPLICAS)]


class RendezvousSetting(Spec, frozen=True):
    """One setting of the rendezvous."""

    key: ShortText = ""
    value: Annotated[str, Meta(max_length=1024)] = ""


class TorchElasticPolicy(Spec, frozen=True):
    """The rendezvous of torchrun, and the bounds for the number of workers."""

    min_replicas: Annotated[Bound, doc("Fewest workers; unset: maxReplicas, or the workers' replicas.")] | UnsetType = (
        UNSET
    )
    max_replicas: Annotated[Bound, doc("Most workers; unset: minReplicas, or the workers' replicas.")] | UnsetType = (
        UNSET
    )
    rdzv_backend: Annotated[ShortText, doc("c10d (the default), etcd or etcd-v2.")] = ""
    rdzv_port: (
        Annotated[int, Meta(ge=1, le=65535, description="Port of the rendezvous; unset: the port of the workers.")]
        | UnsetType
    ) = UNSET
    rdzv_host: Annotated[ShortText, doc("Host of the rendezvous; empty: worker 0.")] = ""
    rdzv_id: Annotated[ShortText, doc("The id of the rendezvous.")] = ""
    rdzv_conf: Annotated[tuple[RendezvousSetting, ...], Meta(max_length=64)] | None = None
    standalone: Annotated[bool, doc("Each worker is a job of its own for torchrun.")] = False
    n_proc_per_node: (
        Annotated[int, Meta(ge=1, le=2**31 - 1, description="Deprecated: use spec.nprocPerNode.")] | UnsetType
    ) = UNSET
    max_restarts: Annotated[Seconds, doc("How often torchrun restarts its processes.")] | UnsetType = UNSET
    metrics: (
        Annotated[
            tuple[dict[str, Any], ...],
            Meta(max_length=64, description="Metrics (autoscaling/v2) by which the number of workers is scaled."),
        ]
        | None
    ) = None


class PyTorchJobSpec(Spec, frozen=True):
    """The job that the user wants."""

    replica_specs: Annotated[
        dict[str, ReplicaSpec],
        Meta(min_length=1, max_length=16, description="Replica specs by type: one Master, Worker, or both."),
    ] = field(name="pytorchReplicaSpecs")
    run_policy: RunPolicy | None = None
    elastic_policy: TorchElasticPolicy | None = None
    nproc_per_node: (
        Annotated[ShortText, doc("Processes per replica: auto (the default), cpu, gpu or a number.")] | UnsetType
    ) = UNSET


class PyTorchJob(Manifest[PyTorchJobSpec, KubeflowStatus], frozen=True):
    """The whole object."""


REPLICA_TYPES = ReplicaTypes((MASTER, WORKER))
MAIN = MainContainer("pytorch", "pytorchjob-port", 23456)
