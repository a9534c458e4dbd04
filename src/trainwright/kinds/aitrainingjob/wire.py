# SPDX-License-Identifier: Apache-2.0
"""AITrainingJob on the wire: every field of `elasticdeeplearning.ai/v1`, with the odd keys of its status.

`decode` reads manifests into these, `crd.schema` generates the CRD from them, the other modules of this package work on
them. Empty words mean the same as none, as they did in the original.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from trainwright.kinds.scalars import Count, Seconds, Spec, Timestamp, Word, doc
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

#: Conditions that are kept: the newest.
MOST_CONDITIONS = 20
EndPolicy = Literal["", "Any", "Rank0", "All", "None"]
RestartPolicy = Literal["", "Never", "OnFailure", "ExitCode", "OnNodeFail", "OnNodeFailWithExitCode", "Always"]
RestartScope = Literal["", "All", "Replica", "Pod"]
#: The longer two are how the README calls them.
CleanPodPolicy = Literal["", "All", "None", "CleanPodPolicyAll", "CleanPodPolicyNone"]
EdlPolicy = Literal["", "Auto", "Manual", "Never"]


class ReplicaSpec(Spec, frozen=True):
    """One type of replica."""

    template: Annotated[
        dict[str, Any],
        doc("The pod of each replica, as core/v1 has it; containers and ports called `aitj-…` are those that count."),
    ]
    replicas: Annotated[Count, doc("How many; unset: 1, or `minReplicas` if that is more.")] | UnsetType = UNSET
    min_replicas: Annotated[Count, doc("The fewest that it may be scaled to.")] | UnsetType = UNSET
    max_replicas: Annotated[Count, doc("The most that it may be scaled to.")] | UnsetType = UNSET
    restart_limit: (
        Annotated[
            Annotated[int, Meta(ge=0, le=2**31 - 1)],
            doc("So many restarts of this type, then its next failure is for good; unset: unlimited."),
        ]
        | UnsetType
    ) = UNSET
    restart_policy: Annotated[
        RestartPolicy, doc("Which failures are answered with a restart; what has succeeded is never restarted.")
    ] = "Never"
    restart_scope: Annotated[
        RestartScope, doc("What a restart takes along: the whole job, the replica type, or the pod alone.")
    ] = "All"
    fail_policy: Annotated[
        EndPolicy, doc("The type has failed when this many of its replicas have: any, the first, all; None: never.")
    ] = "Any"
    complete_policy: Annotated[
        EndPolicy, doc("The type has completed when this many of its replicas have: any, the first, all.")
    ] = "All"
    edl_policy: Annotated[
        EdlPolicy,
        doc(
            "Auto: as many of `replicas` as the cluster can hold, not fewer than `minReplicas`; Manual, or unset:"
            " `replicas` may be edited within the bounds; Never: it may not."
        ),
    ] = ""


class AITrainingJobSpec(Spec, frozen=True):
    """What the user asks for."""

    replica_specs: Annotated[
        dict[str, ReplicaSpec],
        Meta(min_length=1, max_length=16, description="By name, such as `trainer` or `pserver`."),
    ]
    restarting_exit_code: Annotated[
        Any, doc("Exit codes that ExitCode and OnNodeFailWithExitCode restart: a number, a list, or text: `137,128`.")
    ] = None
    framework_type: Annotated[Word, doc("For people; nothing depends on it.")] = ""
    fault_tolerant: Annotated[bool, doc("For people; nothing depends on it.")] = False
    priority: Annotated[
        str, Meta(max_length=63, description="The label `priority` of every pod; no PriorityClass.")
    ] = ""
    scheduler_name: Annotated[Word, doc("The scheduler of every pod, whatever its template says.")] = ""
    time_limit: (
        Annotated[Seconds, doc("Seconds after `status.startRunningTime` at which the job ends in Timeout.")] | UnsetType
    ) = UNSET
    clean_pod_policy: Annotated[
        CleanPodPolicy, doc("Whether pods and services of a job that has succeeded or failed are removed.")
    ] = "All"
    fail_policy: Annotated[
        EndPolicy, doc("The job has failed when any, or all, of its replica types have; Rank0, None: never.")
    ] = "Any"
    complete_policy: Annotated[
        EndPolicy, doc("The job has completed when any, or all, of its replica types have; Rank0, None: never.")
    ] = "All"
    suspend: Annotated[bool, doc("While true no pod runs; what had finished runs again afterwards.")] = False


class TrainingJobCondition(Spec, frozen=True):
    """One step of the job's life. The last one is where it is now."""

    type: Annotated[str, Meta(max_length=64)]
    status: Annotated[str, Meta(max_length=16)]
    reason: Annotated[str, Meta(max_length=256)] = ""
    message: Annotated[str, Meta(max_length=8192)] = ""
    last_probe_time: Timestamp | UnsetType = UNSET
    last_transition_time: Timestamp | UnsetType = UNSET


class ReplicaStatus(Spec, frozen=True):
    """How many pods of a type are where; none is not written."""

    pending: int = 0
    scheduled: int = 0
    active: int = 0
    succeeded: int = 0
    restarting: int = 0
    failed: int = 0


class AITrainingJobStatus(Struct, frozen=True, rename="camel"):
    """What the controller reports. Two keys begin with a capital: programs know them so."""

    phase: Annotated[str, Meta(max_length=64)] = ""
    conditions: tuple[TrainingJobCondition, ...] | None = None
    replica_statuses: dict[str, ReplicaStatus] | None = None
    restart_count: dict[str, int] | UnsetType = field(name="RestartCount", default=UNSET)
    restart_replica_name: str = field(name="RestartReplicaName", default="")
    start_time: Timestamp | UnsetType = UNSET
    start_running_time: Timestamp | UnsetType = UNSET
    end_time: Timestamp | UnsetType = UNSET
    last_reconcile_time: Timestamp | UnsetType = UNSET
    #: Ours: how often the job was restarted, for a column.
    restarts: Annotated[int, doc("How often something of the job was restarted.")] = 0
    trainwright: Ledger = Ledger()


class AITrainingJob(Struct, frozen=True, rename="camel"):
    """The whole object."""

    metadata: ObjectMeta
    spec: AITrainingJobSpec
    api_version: str = "elasticdeeplearning.ai/v1"
    kind: str = "AITrainingJob"
    status: AITrainingJobStatus | None = None
