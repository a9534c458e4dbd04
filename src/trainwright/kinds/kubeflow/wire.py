# SPDX-License-Identifier: Apache-2.0
"""The wire types that all kinds of Kubeflow v1 share: run policy, replica spec and status."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from msgspec import UNSET, Meta, UnsetType

from trainwright.kinds.scalars import MAX_REPLICAS, Condition, Seconds, ShortText, Spec, Timestamp, doc
from trainwright.model.ledger import Ledger

#: A 64-bit number. The upper bound is not in the schema, because a schema would round it.
Long = Annotated[int, Meta(ge=0)]
Policy = Literal["", "Always", "OnFailure", "Never", "ExitCode"]
CleanPodPolicy = Literal["", "None", "Running", "All"]
ManagedBy = Literal["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]


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
        dict[str, Any],
        doc("The pod template (core/v1) of each replica; the container that has the framework's name trains."),
    ]
    replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS, description="Number of replicas; indexes count from 0.")] = 1
    restart_policy: (
        Annotated[Policy, doc("When a replica is restarted; ExitCode: when its exit code is 128 or above.")] | UnsetType
    ) = UNSET


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


class KubeflowStatus(Spec, frozen=True):
    """The status that the controller writes."""

    conditions: tuple[JobCondition, ...] | None = None
    replica_statuses: dict[str, ReplicaStatus] | UnsetType = UNSET
    start_time: Timestamp | UnsetType = UNSET
    completion_time: Timestamp | UnsetType = UNSET
    last_reconcile_time: Timestamp | UnsetType = UNSET
    trainwright: Ledger = Ledger()


class KubeflowSpec(Protocol):
    """The fields that the spec of every kind has. Each kind has its own name for `replica_specs` in its manifests."""

    @property
    def replica_specs(self) -> Mapping[str, ReplicaSpec]:
        """Return the replica specs by type."""
        ...

    @property
    def run_policy(self) -> RunPolicy | None:
        """Return the policies for the job as a whole."""
        ...
