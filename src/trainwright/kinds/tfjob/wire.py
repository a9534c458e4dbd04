# SPDX-License-Identifier: Apache-2.0
"""The wire types of a TFJob, its versions `v1` and `v1alpha2`, and its replica types.

Both versions have the same fields; only the defaults that an API server writes differ. A server writes the defaults of
the version of each request, for example when a user labels a `v1` job through `v1alpha2`. It does not overwrite
existing values, so both versions write defaults at the same paths, and a job keeps those of the version in which it was
created. The clean-up policy has no such default: it may be given in two places, and a default in one of them could
contradict the user's value in the other.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from trainwright.kinds.base import Version
from trainwright.kinds.kubeflow.replicas import MainContainer, ReplicaTypes
from trainwright.kinds.kubeflow.wire import (
    CleanPodPolicy,
    JobCondition,
    KubeflowStatus,
    Long,
    ReplicaSpec,
    ReplicaStatus,
    RunPolicy,
)
from trainwright.kinds.scalars import Manifest, Seconds, Spec, doc

__all__ = ["TYPES", "VERSIONS", "JobCondition", "RunPolicy", "TFJob", "TFJobSpec", "TFJobStatus"]

DefaultsVersion = Literal["v1", "v1alpha2"]
_OLD_PLACE = "The place of this field before version 1.0; now in `runPolicy`."


class TFReplicaSpec(ReplicaSpec, frozen=True, kw_only=True):
    """One type of replica."""

    template: Annotated[
        dict[str, Any], doc("The pod template (core/v1) of each replica; the container `tensorflow` trains.")
    ]


class TrainwrightSettings(Spec, frozen=True):
    """Our own fields: the version whose defaults the job has, which is the version in which it was created."""

    defaults: Annotated[DefaultsVersion, doc("Written when the job is created; leave it out.")] | UnsetType = UNSET


class TFJobSpec(Spec, frozen=True):
    """The job that the user wants."""

    replica_specs: Annotated[
        dict[str, TFReplicaSpec],
        Meta(min_length=1, max_length=16, description="Replica specs by type: Chief or Master, Worker, PS, Evaluator."),
    ] = field(name="tfReplicaSpecs")
    run_policy: RunPolicy | None = None
    success_policy: Annotated[
        str, Meta(max_length=64, description="AllWorkers: every worker must succeed; empty: the chief or worker 0.")
    ] = ""
    enable_dynamic_worker: Annotated[
        bool, doc("Workers know only themselves and the parameter servers, and may fail without failing the job.")
    ] = False
    clean_pod_policy: Annotated[CleanPodPolicy, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    ttl_seconds_after_finished: Annotated[Seconds, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    active_deadline_seconds: Annotated[Long, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    backoff_limit: Annotated[Seconds, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    trainwright: TrainwrightSettings = TrainwrightSettings()


class TFJobStatus(KubeflowStatus, frozen=True):
    """The status that the controller writes. Jobs of `v1alpha2` have the counts under the old name too."""

    tf_replica_statuses: dict[str, ReplicaStatus] | UnsetType = UNSET


class TFJob(Manifest[TFJobSpec, TFJobStatus], frozen=True):
    """The whole object."""


# -- replica types ---------------------------------------------------------------------------------------------------

CHIEFS = ("Chief", "Master")
PS = "PS"
#: The replica types, in the order in which pods are created and counted.
TYPES = ("Chief", "Evaluator", "Master", "PS", "Worker")
REPLICA_TYPES = ReplicaTypes(TYPES, CHIEFS, {name.lower(): name for name in TYPES} | {"eval": "Evaluator"})
MAIN = MainContainer("tensorflow", "tfjob-port", 2222)


# -- versions --------------------------------------------------------------------------------------------------------

_DEFAULTS, RESTART_POLICY = "spec.trainwright.defaults", "spec.tfReplicaSpecs.*.restartPolicy"
VERSIONS = (
    Version("v1", {_DEFAULTS: "v1", RESTART_POLICY: "Never"}),
    # The design document of v1alpha2 says Always, although the first release of v1alpha2 restarted nothing.
    Version("v1alpha2", {_DEFAULTS: "v1alpha2", RESTART_POLICY: "Always"}),
)


def defaults_version(spec: TFJobSpec) -> str:
    """The version whose defaults a job has."""
    return spec.trainwright.defaults or "v1"
