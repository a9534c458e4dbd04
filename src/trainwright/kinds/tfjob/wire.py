# SPDX-License-Identifier: Apache-2.0
"""TFJob on the wire: every field of `kubeflow.org/v1`, and the places where older versions had some of them.

`decode` reads manifests into these, `crd.schema` generates the CRD from them, the other modules of this package work on
them. `v1` and `v1alpha2` share these fields; only what is stamped into them differs (`versions`).
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

#: Replicas of a job in all: what its status must remember of them stays within what an API server stores.
MOST_REPLICAS = 10_000
Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Policy = Literal["", "Always", "OnFailure", "Never", "ExitCode"]
CleanPodPolicy = Literal["", "None", "Running", "All"]
ManagedBy = Literal["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]
Form = Literal["v1", "v1alpha2"]
Word = Annotated[str, Meta(max_length=253)]
Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
_OLD_PLACE = "Where versions before 1.0 had it; now in `runPolicy`."


class Spec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the parts of a manifest; they hold the user's dicts, so they are left to the garbage collector."""


class SchedulingPolicy(Spec, frozen=True):
    """How the gang's group is made; the number of pods that must start together is all of them unless it says."""

    min_available: Annotated[int, Meta(ge=0, le=MOST_REPLICAS)] | UnsetType = UNSET
    queue: Word = ""
    min_resources: Annotated[dict[str, int | Annotated[str, Meta(max_length=64)]], Meta(max_length=64)] | UnsetType = (
        UNSET
    )
    priority_class: Word = ""
    schedule_timeout_seconds: Seconds | UnsetType = UNSET


class RunPolicy(Spec, frozen=True):
    """What holds for the job as a whole."""

    clean_pod_policy: CleanPodPolicy | UnsetType = UNSET
    ttl_seconds_after_finished: Seconds | UnsetType = UNSET
    active_deadline_seconds: Seconds | UnsetType = UNSET
    backoff_limit: Seconds | UnsetType = UNSET
    scheduling_policy: SchedulingPolicy | None = None
    suspend: bool = False
    managed_by: ManagedBy | UnsetType = UNSET


class ReplicaSpec(Spec, frozen=True):
    """One type of replica."""

    template: dict[str, Any]
    replicas: Annotated[int, Meta(ge=0, le=MOST_REPLICAS)] = 1
    restart_policy: Policy | UnsetType = UNSET


class Own(Spec, frozen=True):
    """What trainwright adds: the version by whose defaults the job goes, which is the one it was created in."""

    defaults: Form | UnsetType = UNSET


class TFJobSpec(Spec, frozen=True):
    """What the user asks for."""

    tf_replica_specs: Annotated[dict[str, ReplicaSpec], Meta(min_length=1, max_length=16)]
    run_policy: RunPolicy | None = None
    success_policy: Annotated[str, Meta(max_length=64)] = ""
    enable_dynamic_worker: bool = False
    clean_pod_policy: Annotated[CleanPodPolicy, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    ttl_seconds_after_finished: Annotated[Seconds, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    active_deadline_seconds: Annotated[Seconds, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    backoff_limit: Annotated[Seconds, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    trainwright: Own = Own()


class JobCondition(Spec, frozen=True):
    """One condition. Their order is part of the contract: people see the last one."""

    type: Annotated[str, Meta(max_length=64)]
    status: Annotated[str, Meta(max_length=16)]
    reason: Annotated[str, Meta(max_length=256)] = ""
    message: Annotated[str, Meta(max_length=8192)] = ""
    last_update_time: Moment | UnsetType = UNSET
    last_transition_time: Moment | UnsetType = UNSET


class ReplicaStatus(Spec, frozen=True):
    """How many pods of a type run, have succeeded, have failed; none is not written."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    label_selector: dict[str, Any] | UnsetType = UNSET
    selector: str = ""


class TFJobStatus(Spec, frozen=True):
    """What the controller reports. Jobs of `v1alpha2` are told their counts under the old name as well."""

    conditions: tuple[JobCondition, ...] | None = None
    replica_statuses: dict[str, ReplicaStatus] | UnsetType = UNSET
    tf_replica_statuses: dict[str, ReplicaStatus] | UnsetType = UNSET
    start_time: Moment | UnsetType = UNSET
    completion_time: Moment | UnsetType = UNSET
    last_reconcile_time: Moment | UnsetType = UNSET
    trainwright: Ledger = Ledger()


class TFJob(Struct, frozen=True, rename="camel"):
    """The whole object."""

    metadata: ObjectMeta
    spec: TFJobSpec
    api_version: str = "kubeflow.org/v1"
    kind: str = "TFJob"
    status: TFJobStatus | None = None
