# SPDX-License-Identifier: Apache-2.0
"""TFJob on the wire: every field of `kubeflow.org/v1`, and the places where older versions had some of them.

`decode` reads manifests into these, `crd.schema` generates the CRD from them, the other modules of this package work on
them. `v1` and `v1alpha2` share these fields; only what is stamped into them differs (`versions`).
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trainwright.kinds.limits import MOST_REPLICAS, Seconds, Spec, Timestamp, Word, doc
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

#: Of 64 bits; the bound is not written down, since a schema holds it as a rounded number.
Long = Annotated[int, Meta(ge=0)]
Policy = Literal["", "Always", "OnFailure", "Never", "ExitCode"]
CleanPodPolicy = Literal["", "None", "Running", "All"]
ManagedBy = Literal["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]
Form = Literal["v1", "v1alpha2"]
_OLD_PLACE = "Where versions before 1.0 had it; now in `runPolicy`."


class SchedulingPolicy(Spec, frozen=True):
    """How the gang's group is made; the number of pods that must start together is all of them unless it says."""

    min_available: (
        Annotated[int, Meta(ge=0, le=MOST_REPLICAS, description="Pods that must start together; unset: all.")]
        | UnsetType
    ) = UNSET
    queue: Annotated[Word, doc("The queue of the group, where its scheduler has queues; cannot be changed.")] = ""
    min_resources: Annotated[dict[str, int | Annotated[str, Meta(max_length=64)]], Meta(max_length=64)] | UnsetType = (
        UNSET
    )
    priority_class: Annotated[Word, doc("The PriorityClass of the group.")] = ""
    schedule_timeout_seconds: (
        Annotated[Seconds, doc("How long the scheduler tries to start the group.")] | UnsetType
    ) = UNSET


class RunPolicy(Spec, frozen=True):
    """What holds for the job as a whole."""

    clean_pod_policy: (
        Annotated[CleanPodPolicy, doc("Which pods are removed at the end: none, those that run, or all.")] | UnsetType
    ) = UNSET
    ttl_seconds_after_finished: (
        Annotated[Seconds, doc("Seconds after its end at which the job itself is removed; unset: never.")] | UnsetType
    ) = UNSET
    active_deadline_seconds: Annotated[Long, doc("Seconds after startTime at which the job fails.")] | UnsetType = UNSET
    backoff_limit: (
        Annotated[Seconds, doc("The job fails when its restarts, of all types together, reach this.")] | UnsetType
    ) = UNSET
    scheduling_policy: SchedulingPolicy | None = None
    suspend: Annotated[bool, doc("While true no pod runs; what had finished runs again afterwards.")] = False
    managed_by: (
        Annotated[ManagedBy, doc("Who looks after the job; if it is another controller, it is left to that one.")]
        | UnsetType
    ) = UNSET


class ReplicaSpec(Spec, frozen=True):
    """One type of replica."""

    template: Annotated[
        dict[str, Any], doc("The pod of each replica, as core/v1 has it; the container `tensorflow` trains.")
    ]
    replicas: Annotated[int, Meta(ge=0, le=MOST_REPLICAS, description="How many; indexes count from 0.")] = 1
    restart_policy: (
        Annotated[Policy, doc("When a replica is tried again; ExitCode: when it ended with 128 or above.")] | UnsetType
    ) = UNSET


class Own(Spec, frozen=True):
    """What trainwright adds: the version by whose defaults the job goes, which is the one it was created in."""

    defaults: Annotated[Form, doc("Written when the job is created; nobody needs to.")] | UnsetType = UNSET


class TFJobSpec(Spec, frozen=True):
    """What the user asks for."""

    tf_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        Meta(min_length=1, max_length=16, description="By type: Chief or Master, Worker, PS, Evaluator."),
    ]
    run_policy: RunPolicy | None = None
    success_policy: Annotated[
        str, Meta(max_length=64, description="AllWorkers: every worker must succeed; else worker 0, or the chief.")
    ] = ""
    enable_dynamic_worker: Annotated[
        bool, doc("Workers know only themselves and the servers, and may fail without failing the job.")
    ] = False
    clean_pod_policy: Annotated[CleanPodPolicy, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    ttl_seconds_after_finished: Annotated[Seconds, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    active_deadline_seconds: Annotated[Long, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    backoff_limit: Annotated[Seconds, Meta(description=_OLD_PLACE)] | UnsetType = UNSET
    trainwright: Own = Own()


class JobCondition(Spec, frozen=True):
    """One condition. Their order is part of the contract: people see the last one."""

    type: Annotated[str, Meta(max_length=64)]
    status: Annotated[str, Meta(max_length=16)]
    reason: Annotated[str, Meta(max_length=256)] = ""
    message: Annotated[str, Meta(max_length=8192)] = ""
    last_update_time: Timestamp | UnsetType = UNSET
    last_transition_time: Timestamp | UnsetType = UNSET


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
    start_time: Timestamp | UnsetType = UNSET
    completion_time: Timestamp | UnsetType = UNSET
    last_reconcile_time: Timestamp | UnsetType = UNSET
    trainwright: Ledger = Ledger()


class TFJob(Struct, frozen=True, rename="camel"):
    """The whole object."""

    metadata: ObjectMeta
    spec: TFJobSpec
    api_version: str = "kubeflow.org/v1"
    kind: str = "TFJob"
    status: TFJobStatus | None = None
