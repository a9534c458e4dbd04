# SPDX-License-Identifier: Apache-2.0
"""The wire types of an XGBoostJob, `kubeflow.org/v1`, and its replica types."""

from typing import Annotated

from msgspec import Meta, field

from trainwright.kinds.kubeflow.replicas import MASTER, WORKER, MainContainer, ReplicaTypes
from trainwright.kinds.kubeflow.wire import KubeflowStatus, ReplicaSpec, RunPolicy
from trainwright.kinds.scalars import Manifest, Spec


class XGBoostJobSpec(Spec, frozen=True):
    """The job that the user wants."""

    replica_specs: Annotated[
        dict[str, ReplicaSpec],
        Meta(min_length=1, max_length=16, description="Replica specs by type: one Master, and Worker."),
    ] = field(name="xgbReplicaSpecs")
    run_policy: RunPolicy | None = None


class XGBoostJob(Manifest[XGBoostJobSpec, KubeflowStatus], frozen=True):
    """The whole object."""


REPLICA_TYPES = ReplicaTypes((MASTER, WORKER))
MAIN = MainContainer("xgboost", "xgboostjob-port", 9999)
