# SPDX-License-Identifier: Apache-2.0
"""The wire types of an AITrainingJob: every field of `elasticdeeplearning.ai/v1`.

An empty value of a policy means the same as no value, as in the original controller.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from trainwright.kinds.scalars import Condition, Count, Manifest, Seconds, ShortText, Spec, Timestamp, doc
from trainwright.model.ledger import Ledger

#: Maximum number of conditions in the history; the newest are kept.
MAX_CONDITIONS = 20
EndPolicy = Literal["", "Any", "Rank0", "All", "None"]
RestartPolicy = Literal["", "Never", "OnFailure", "ExitCode", "OnNodeFail", "OnNodeFailWithExitCode", "Always"]
RestartScope = Literal["", "All", "Replica", "Pod"]
#: The last two values are the names in the README of the original controller.
CleanPodPolicy = Literal["", "All", "None", "CleanPodPolicyAll", "CleanPodPolicyNone"]
EdlPolicy = Literal["", "Auto", "Manual", "Never"]


class ReplicaSpec(Spec, frozen=True):
    """One type of replica."""

    template: Annotated[
        dict[str, Any],
        doc("The pod template (core/v1) of each replica; containers and ports called `aitj-…` are the main ones."),
    ]
    replicas: Annotated[Count, doc("Number of replicas; unset: 1, or `minReplicas` if higher.")] | UnsetType = UNSET
    min_replicas: Annotated[Count, doc("The minimum number of replicas.")] | UnsetType = UNSET
    max_replicas: Annotated[Count, doc("The maximum number of replicas.")] | UnsetType = UNSET
    restart_limit: (
        Annotated[
            Annotated[int, Meta(ge=0, le=2**31 - 1)],
            doc("How often this type may be restarted; the next failure is final; unset: unlimited."),
        ]
        | UnsetType
    ) = UNSET
    restart_policy: Annotated[
        RestartPolicy, doc("After which failures replicas are restarted; succeeded replicas are never restarted.")
    ] = "Never"
    restart_scope: Annotated[
        RestartScope, doc("What is restarted: the whole job, the replica type, or only the pod.")
    ] = "All"
    fail_policy: Annotated[
        EndPolicy, doc("The type has failed when these replicas have: any, the first, or all; None: never.")
    ] = "Any"
    complete_policy: Annotated[
        EndPolicy, doc("The type has completed when these replicas have: any, the first, or all.")
    ] = "All"
    edl_policy: Annotated[
        EdlPolicy,
        doc(
            "Auto: as many of `replicas` as have room on the cluster, at least `minReplicas`; Manual or unset:"
            " `replicas` may be edited within the bounds; Never: `replicas` may not be edited."
        ),
    ] = ""


class AITrainingJobSpec(Spec, frozen=True):
    """The job that the user wants."""

    replica_specs: Annotated[
        dict[str, ReplicaSpec],
        Meta(min_length=1, max_length=16, description="Replica types by name, such as `trainer` or `pserver`."),
    ]
    restarting_exit_code: Annotated[
        Any, doc("Exit codes for ExitCode and OnNodeFailWithExitCode: a number, a list, or a text such as `137,128`.")
    ] = None
    framework_type: Annotated[ShortText, doc("For information only; it has no effect.")] = ""
    fault_tolerant: Annotated[bool, doc("For information only; it has no effect.")] = False
    priority: Annotated[
        str, Meta(max_length=63, description="The label `priority` of every pod; not a PriorityClass.")
    ] = ""
    scheduler_name: Annotated[ShortText, doc("The scheduler of every pod; it overrides the template.")] = ""
    time_limit: (
        Annotated[Seconds, doc("Seconds after `status.startRunningTime` until the job ends in Timeout.")] | UnsetType
    ) = UNSET
    clean_pod_policy: Annotated[
        CleanPodPolicy, doc("Whether pods and services are removed after the job has succeeded or failed.")
    ] = "All"
    fail_policy: Annotated[
        EndPolicy, doc("The job has failed when any, or all, of its replica types have; Rank0, None: never.")
    ] = "Any"
    complete_policy: Annotated[
        EndPolicy, doc("The job has completed when any, or all, of its replica types have; Rank0, None: never.")
    ] = "All"
    suspend: Annotated[bool, doc("While true, no pod runs; finished pods run again afterwards.")] = False


class TrainingJobCondition(Condition, frozen=True):
    """One phase in the history of the job. The last one is the current phase."""

    last_probe_time: Timestamp | UnsetType = UNSET
    last_transition_time: Timestamp | UnsetType = UNSET


class ReplicaStatus(Spec, frozen=True):
    """The number of pods of a type in each phase; 0 is not written."""

    pending: int = 0
    scheduled: int = 0
    active: int = 0
    succeeded: int = 0
    restarting: int = 0
    failed: int = 0


class AITrainingJobStatus(Struct, frozen=True, rename="camel"):
    """The status that the controller writes. Two keys begin with a capital letter, as in the original controller."""

    phase: Annotated[str, Meta(max_length=64)] = ""
    conditions: tuple[TrainingJobCondition, ...] | None = None
    replica_statuses: dict[str, ReplicaStatus] | None = None
    restart_count: dict[str, int] | UnsetType = field(name="RestartCount", default=UNSET)
    restart_replica_name: str = field(name="RestartReplicaName", default="")
    start_time: Timestamp | UnsetType = UNSET
    start_running_time: Timestamp | UnsetType = UNSET
    end_time: Timestamp | UnsetType = UNSET
    last_reconcile_time: Timestamp | UnsetType = UNSET
    #: Our addition, for a column of `kubectl get`.
    restarts: Annotated[int, doc("How often the job or a part of it was restarted.")] = 0
    trainwright: Ledger = Ledger()


class AITrainingJob(Manifest[AITrainingJobSpec, AITrainingJobStatus], frozen=True):
    """The whole object."""
