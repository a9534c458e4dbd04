# SPDX-License-Identifier: Apache-2.0
"""The wire types of a TFJob, its versions `v1` and `v1alpha2`, and its replica types.

Both versions have the same fields; only the defaults that an API server writes differ. A server writes the defaults of
the version of each request, for example when a user labels a `v1` job through `v1alpha2`. It does not overwrite
existing values, so both versions write defaults at the same paths, and a job keeps those of the version in which it was
created. The clean-up policy has no such default: it may be given in two places, and a default in one of them could
contradict the user's value in the other.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from trainwright.kinds.base import Version
from trainwright.kinds.scalars import MAX_REPLICAS, Condition, Manifest, Seconds, ShortText, Spec, Timestamp, doc
from trainwright.model.ledger import Ledger

#: A 64-bit number. The upper bound is not in the schema, because a schema would round it.
Long = Annotated[int, Meta(ge=0)]
Policy = Literal["", "Always", "OnFailure", "Never", "ExitCode"]
CleanPodPolicy = Literal["", "None", "Running", "All"]
ManagedBy = Literal["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]
DefaultsVersion = Literal["v1", "v1alpha2"]
_OLD_PLACE = "The place of this field before version 1.0; now in `runPolicy`."


class SchedulingPolicy(Spec, frozen=True):
    """How the pods are scheduled as a gang."""

    min_available: (
        Annotated[int, Meta(ge=0, le=MAX_REPLICAS, description="Number of pods that must start together; unset: all.")]
        | UnsetType
    ) = UNSET
    queue: Annotated[ShortText, doc("The queue of the group, if its scheduler has queues; cannot be changed.")] = ""
    min_resources: Annotated[dict[str, int | Annotated[str, Meta(max_length=64)]], Meta(max_length=64)] | UnsetType = (
        UNSET
    )
    priority_class: Annotated[ShortText, doc("The PriorityClass of the group.")] = ""
    schedule_timeout_seconds: (
        Annotated[Seconds, doc("How many seconds the scheduler tries to start the group.")] | UnsetType
    ) = UNSET


class RunPolicy(Spec, frozen=True):
    """Policies for the job as a whole."""

    clean_pod_policy: (
        Annotated[CleanPodPolicy, doc("Which pods are removed at the end: none, the running ones, or all.")] | UnsetType
    ) = UNSET
    ttl_seconds_after_finished: (
        Annotated[Seconds, doc("Seconds after its end until the job itself is removed; unset: never.")] | UnsetType
    ) = UNSET
    active_deadline_seconds: Annotated[Long, doc("Seconds after startTime until the job fails.")] | UnsetType = UNSET
    backoff_limit: (
        Annotated[Seconds, doc("The job fails when the restarts of all types together reach this number.")] | UnsetType
    ) = UNSET
    scheduling_policy: SchedulingPolicy | None = None
    suspend: Annotated[bool, doc("While true, no pod runs; finished pods run again afterwards.")] = False
    managed_by: (
        Annotated[ManagedBy, doc("The controller of the job; if it is another one, Trainwright ignores the job.")]
        | UnsetType
    ) = UNSET


class ReplicaSpec(Spec, frozen=True):
    """One type of replica."""

    template: Annotated[
        dict[str, Any], doc("The pod template (core/v1) of each replica; the container `tensorflow` trains.")
    ]
    replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS, description="Number of replicas; indexes count from 0.")] = 1
    restart_policy: (
        Annotated[Policy, doc("When a replica is restarted; ExitCode: when its exit code is 128 or above.")] | UnsetType
    ) = UNSET


class TrainwrightSettings(Spec, frozen=True):
    """Our own fields: the version whose defaults the job has, which is the version in which it was created."""

    defaults: Annotated[DefaultsVersion, doc("Written when the job is created; leave it out.")] | UnsetType = UNSET


class TFJobSpec(Spec, frozen=True):
    """The job that the user wants."""

    tf_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        Meta(min_length=1, max_length=16, description="Replica specs by type: Chief or Master, Worker, PS, Evaluator."),
    ]
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


class JobCondition(Condition, frozen=True):
    """One condition. The order of conditions is part of the contract: `kubectl get` shows the last one."""

    last_update_time: Timestamp | UnsetType = UNSET
    last_transition_time: Timestamp | UnsetType = UNSET


class ReplicaStatus(Spec, frozen=True):
    """The number of running, succeeded and failed pods of a type; 0 is not written."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    label_selector: dict[str, Any] | UnsetType = UNSET
    selector: str = ""


class TFJobStatus(Spec, frozen=True):
    """The status that the controller writes. Jobs of `v1alpha2` have the counts under the old name too."""

    conditions: tuple[JobCondition, ...] | None = None
    replica_statuses: dict[str, ReplicaStatus] | UnsetType = UNSET
    tf_replica_statuses: dict[str, ReplicaStatus] | UnsetType = UNSET
    start_time: Timestamp | UnsetType = UNSET
    completion_time: Timestamp | UnsetType = UNSET
    last_reconcile_time: Timestamp | UnsetType = UNSET
    trainwright: Ledger = Ledger()


class TFJob(Manifest[TFJobSpec, TFJobStatus], frozen=True):
    """The whole object."""


# -- replica types ---------------------------------------------------------------------------------------------------

CHIEFS = ("Chief", "Master")
WORKER, PS = "Worker", "PS"
#: The replica types, in the order in which pods are created and counted.
TYPES = ("Chief", "Evaluator", "Master", "PS", "Worker")
#: The name of the container that trains, and the name and number of its port.
CONTAINER, PORT_NAME, PORT = "tensorflow", "tfjob-port", 2222
_BY_LOWER = {name.lower(): name for name in TYPES} | {"eval": "Evaluator"}


def canonical(key: str) -> str | None:
    """The replica type for a key; upper and lower case are equal, `Eval` means `Evaluator`. None: unknown key."""
    return _BY_LOWER.get(key.lower())


def replica_specs(spec: TFJobSpec) -> dict[str, ReplicaSpec]:
    """The replica specs of a checked job by type, in the order of `TYPES`."""
    found = {canonical(key): one for key, one in spec.tf_replica_specs.items()}
    return {name: found[name] for name in TYPES if name in found}


def chief_of(sizes: Iterable[tuple[str, int]]) -> str | None:
    """The chief type of a job, if it has one with replicas."""
    return next((name for name, replicas in sizes if name in CHIEFS and replicas), None)


def leading_type(spec: TFJobSpec) -> str:
    """The type whose success decides the job: the chief, or the workers if there is none."""
    return chief_of((name, one.replicas) for name, one in replica_specs(spec).items()) or WORKER


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
