# SPDX-License-Identifier: Apache-2.0
"""The wire types of a PaddleJob of `kubeflow.org/v1`, and its replica types."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from trainwright.kinds.kubeflow.replicas import MASTER, WORKER, MainContainer, ReplicaTypes
from trainwright.kinds.kubeflow.wire import KubeflowStatus, ReplicaSpec, RunPolicy
from trainwright.kinds.scalars import Count, Manifest, Seconds, Spec


class PaddleElasticPolicy(Spec, frozen=True):
    """Fields that the original controller accepts and ignores."""

    min_replicas: Count | UnsetType = UNSET
    max_replicas: Count | UnsetType = UNSET
    max_restarts: Seconds | UnsetType = UNSET
    metrics: Annotated[tuple[dict[str, Any], ...], Meta(max_length=64)] | None = None


class KubeflowPaddleJobSpec(Spec, frozen=True):
    """The job that the user wants."""

    replica_specs: Annotated[
        dict[str, ReplicaSpec],
        Meta(
            min_length=1,
            max_length=16,
            description="Replica specs by type: Worker, and Master for parameter servers.",
        ),
    ] = field(name="paddleReplicaSpecs")
    run_policy: RunPolicy | None = None
    elastic_policy: PaddleElasticPolicy | None = None


class KubeflowPaddleJob(Manifest[KubeflowPaddleJobSpec, KubeflowStatus], frozen=True):
    """The whole object."""


REPLICA_TYPES = ReplicaTypes((MASTER, WORKER))
MAIN = MainContainer("paddle", "master", 36543)
