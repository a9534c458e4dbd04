# SPDX-License-Identifier: Apache-2.0
"""The wire types of a GenericJob: every field of the API reference, and old spellings.

The CRD is generated from these types; its limits and descriptions come from `msgspec.Meta`. The pod template stays a
plain dict.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from trainwright.kinds.scalars import MAX_REPLICAS, Manifest, Spec
from trainwright.model.ledger import Ledger

Policy = Annotated[
    Literal["Always", "OnFailure", "Never"],
    Meta(description="After which ends of a replica it is restarted."),
]
CleanUpPolicy = Annotated[
    Literal["None", "Unfinished", "All"],
    Meta(description="Which pods are removed after the job has ended: none, the unfinished ones, or all."),
]
Count = Annotated[int, Meta(ge=0, le=100_000)]
TypeName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z",
        description="Lower-case letters, digits and `-`, with a letter or digit at both ends.",
    ),
]
Words = Annotated[tuple[Annotated[str, Meta(max_length=8192)], ...], Meta(max_length=128)]
Rank = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(max_length=5, pattern=r"^[0-9]+\Z")]
# An API server multiplies rules x types x ranks to estimate the cost of checking them, and refuses the CRD if the cost
# is too high: 128 x 8 x 1024 is within its budget. One of the three limits can grow only if another shrinks.
Ranks = Annotated[tuple[Rank, ...], Meta(min_length=1, max_length=1024)]
FinishRule = Annotated[
    dict[str, Ranks],
    Meta(
        min_length=1,
        max_length=8,
        description="Replica type to ranks; the rule is met when all replicas that it names have ended that way.",
    ),
]


class ServicePort(Spec, frozen=True):
    """core/v1 ServicePort."""

    port: Annotated[int, Meta(ge=1, le=65535)]
    name: Annotated[str, Meta(max_length=63)] = ""
    protocol: Literal["TCP", "UDP", "SCTP"] | UnsetType = UNSET
    app_protocol: Annotated[str, Meta(max_length=253)] | UnsetType = UNSET
    target_port: int | Annotated[str, Meta(max_length=63)] | UnsetType = UNSET
    node_port: Annotated[int, Meta(ge=0, le=65535)] | UnsetType = UNSET


class ServiceOption(Spec, frozen=True):
    """If present, each replica has a headless service with the replica's name."""

    ports: Annotated[tuple[ServicePort, ...], Meta(max_length=64)] = ()


class ReplicaDebugSet(Spec, frozen=True):
    """How the replicas of one type wait for a debugger."""

    type: TypeName
    skip_init_container: bool = False
    command: Words = ()


class DebugMode(Spec, frozen=True):
    """While enabled, all pods are created but the training does not start."""

    enabled: bool = False
    enable: Annotated[bool, Meta(description="Old spelling of `enabled`.")] | UnsetType = UNSET
    replica_specs: Annotated[tuple[ReplicaDebugSet, ...], Meta(max_length=64)] = ()


class ResumeSpec(Spec, frozen=True):
    """How the replicas of one type start after a pause."""

    type: TypeName
    skip_init_container: bool = False
    command: Words = ()
    args: Words = ()


class PauseMode(Spec, frozen=True):
    """While enabled, no replica runs; `resumeSpecs` cannot be changed after creation."""

    enabled: bool = False
    enable: Annotated[bool, Meta(description="Old spelling of `enabled`.")] | UnsetType = UNSET
    resume_specs: Annotated[tuple[ResumeSpec, ...], Meta(max_length=64)] = ()


class RunMode(Spec, frozen=True):
    """The job starts at once unless one of these is enabled; pause takes precedence over debug."""

    debug: DebugMode | None = None
    pause: PauseMode | None = None


class T9kScheduler(Spec, frozen=True):
    """Queue and priority of the job's PodGroup."""

    queue: Annotated[str, Meta(max_length=63, description="Becomes a label of the pods.")] = ""
    priority: Annotated[int, Meta(ge=0, le=100)] = 0


class SchedulePolicy(Spec, frozen=True):
    """Which scheduler places the pods; empty: the cluster's default."""

    t9k_scheduler: T9kScheduler | None = field(name="t9kScheduler", default=None)


class RestartPolicy(Spec, frozen=True):
    """When, and how often, replicas of a type are restarted."""

    policy: Policy = "OnFailure"
    limit: Annotated[Count, Meta(description="How often each replica of the type may be restarted.")] = 0


class ReplicaSpec(Spec, frozen=True):
    """One type of replica."""

    type: TypeName
    template: Annotated[
        dict[str, Any], Meta(description="The pod template (core/v1) of each replica; variables are filled in.")
    ]
    replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS, description="Number of replicas; ranks count from 0.")] = 1
    restart_policy: RestartPolicy = RestartPolicy()


class GenericJobSpec(Spec, frozen=True):
    """The job that the user wants."""

    replica_specs: Annotated[
        tuple[ReplicaSpec, ...],
        Meta(min_length=1, max_length=64, description="The replica types; each may be given once."),
    ]
    success_rules: Annotated[
        tuple[FinishRule, ...],
        Meta(
            max_length=128,
            description="The job succeeds when one of these rules is met; without rules, when all replicas succeed.",
        ),
    ] = ()
    failure_rules: Annotated[
        tuple[FinishRule, ...],
        Meta(
            max_length=128,
            description="The job fails when one of these rules is met; without rules, when one replica fails.",
        ),
    ] = ()
    service: ServiceOption | None = None
    run_mode: RunMode | None = None
    clean_up_policy: CleanUpPolicy = "None"
    scheduler: SchedulePolicy | None = None


class JobCondition(Spec, frozen=True):
    """One condition of the job."""

    type: Annotated[str, Meta(max_length=64)]
    status: Annotated[str, Meta(max_length=16)]
    reason: Annotated[str, Meta(max_length=256)] = ""
    message: Annotated[str, Meta(max_length=4096)] = ""
    last_transition_time: Annotated[str, Meta(max_length=64)] = ""


class ContainerStatus(Spec, frozen=True):
    """The state of a container of a replica, and its exit code if it has ended."""

    name: str = ""
    state: str = ""
    exit_code: int | UnsetType = UNSET


class ReplicaStatus(Spec, frozen=True):
    """One replica and its pod."""

    name: str = ""
    uid: str = ""
    phase: str = ""
    containers: tuple[ContainerStatus, ...] | None = None


class Task(Spec, frozen=True):
    """The replicas of one type; `status` is the old name of `replicas`."""

    type: str = ""
    restart_count: int = 0
    replicas: tuple[ReplicaStatus, ...] | None = None
    status: tuple[ReplicaStatus, ...] | None = None


class Aggregate(Spec, frozen=True, omit_defaults=False):
    """The number of replicas in each phase; the sum is the number of all replicas."""

    creating: int = 0
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    deleted: int = 0


class GenericJobStatus(Spec, frozen=True):
    """The status that the controller writes."""

    # Any text is accepted: a value from another controller must not make the job invalid.
    phase: Annotated[str, Meta(max_length=64)] = ""
    conditions: tuple[JobCondition, ...] | None = None
    tasks: tuple[Task, ...] | None = None
    aggregate: Aggregate | None = None
    trainwright: Ledger = Ledger()


class GenericJob(Manifest[GenericJobSpec, GenericJobStatus], frozen=True):
    """The whole object."""
