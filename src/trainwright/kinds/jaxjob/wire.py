# SPDX-License-Identifier: Apache-2.0
"""The wire types of a JAXJob, `kubeflow.org/v1`, and its replica type."""

from typing import Annotated

from msgspec import Meta, field

from trainwright.kinds.kubeflow.replicas import WORKER, MainContainer, ReplicaTypes
from trainwright.kinds.kubeflow.wire import KubeflowStatus, ReplicaSpec, RunPolicy
from trainwright.kinds.scalars import Manifest, Spec


class JAXJobSpec(Spec, frozen=True):
    """The job that the user wants."""

    replica_specs: Annotated[
        dict[str, ReplicaSpec], Meta(min_length=1, max_length=16, description="Replica specs by type: only Worker.")
    ] = field(name="jaxReplicaSpecs")
    run_policy: RunPolicy | None = None


class JAXJob(Manifest[JAXJobSpec, KubeflowStatus], frozen=True):
    """The whole object."""


REPLICA_TYPES = ReplicaTypes((WORKER,), leaders=())
MAIN = MainContainer("jax", "jaxjob-port", 6666)
