# SPDX-License-Identifier: Apache-2.0
"""GenericJob on the wire: every field the API reference lists, and the spellings it once had.

`decode` reads manifests into these, `crd.schema` generates the CRD from them (limits and texts included), the other
modules of this package work on them. The pod template stays a plain dict: it is never re-modelled.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from trainwright.kinds.scalars import MOST_REPLICAS, Spec
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

Policy = Annotated[
    Literal["Always", "OnFailure", "Never"],
    Meta(description="Which ends of a replica are answered with a restart."),
]
CleanUpPolicy = Annotated[
    Literal["None", "Unfinished", "All"],
    Meta(description="Which pods are removed once the job has ended: none, those that have not, or all."),
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
# An API server multiplies rules x types x ranks to estimate what checking them may cost, and refuses the CRD when it is
# too much: 128 x 8 x 1024 is within its budget. One of the three can grow only if another shrinks.
Ranks = Annotated[tuple[Rank, ...], Meta(min_length=1, max_length=1024)]
FinishRule = Annotated[
    dict[str, Ranks],
    Meta(
        min_length=1,
        max_length=8,
        description="Replica type to ranks; fulfilled when all replicas it names have ended that way.",
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
    """Present: each replica has a headless service of its own name."""

    ports: Annotated[tuple[ServicePort, ...], Meta(max_length=64)] = ()


class ReplicaDebugSet(Spec, frozen=True):
    """How replicas of one type wait for the debugger."""

    type: TypeName
    skip_init_container: bool = False
    command: Words = ()


class DebugMode(Spec, frozen=True):
    """Everything is set up but the training does not start."""

    enabled: bool = False
    enable: Annotated[bool, Meta(description="Old spelling of `enabled`.")] | UnsetType = UNSET
    replica_specs: Annotated[tuple[ReplicaDebugSet, ...], Meta(max_length=64)] = ()


class ResumeSpec(Spec, frozen=True):
    """How replicas of one type start after a pause."""

    type: TypeName
    skip_init_container: bool = False
    command: Words = ()
    args: Words = ()


class PauseMode(Spec, frozen=True):
    """No replica runs while enabled; `resumeSpecs` cannot be changed after creation."""

    enabled: bool = False
    enable: Annotated[bool, Meta(description="Old spelling of `enabled`.")] | UnsetType = UNSET
    resume_specs: Annotated[tuple[ResumeSpec, ...], Meta(max_length=64)] = ()


class RunMode(Spec, frozen=True):
    """Immediate unless one of these is enabled; pause wins over debug."""

    debug: DebugMode | None = None
    pause: PauseMode | None = None


class T9kScheduler(Spec, frozen=True):
    """Queue and priority of the job's PodGroup."""

    queue: Annotated[str, Meta(max_length=63, description="Becomes a label of the pods.")] = ""
    priority: Annotated[int, Meta(ge=0, le=100)] = 0


class SchedulePolicy(Spec, frozen=True):
    """Which scheduler; empty: the cluster's default."""

    t9k_scheduler: T9kScheduler | None = field(name="t9kScheduler", default=None)


class RestartPolicy(Spec, frozen=True):
    """When, and how often in all, replicas of a type are restarted."""

    policy: Policy = "OnFailure"
    limit: Annotated[Count, Meta(description="Restarts of each replica of the type.")] = 0


class ReplicaSpec(Spec, frozen=True):
    """One type of replica."""

    type: TypeName
    template: Annotated[
        dict[str, Any], Meta(description="The pod of each replica, as core/v1 has it; variables are filled in.")
    ]
    replicas: Annotated[int, Meta(ge=0, le=MOST_REPLICAS, description="How many; ranks count from 0.")] = 1
    restart_policy: RestartPolicy = RestartPolicy()


class GenericJobSpec(Spec, frozen=True):
    """What the user asks for."""

    replica_specs: Annotated[
        tuple[ReplicaSpec, ...], Meta(min_length=1, max_length=64, description="The types of replica, each once.")
    ]
    success_rules: Annotated[
        tuple[FinishRule, ...],
        Meta(
            max_length=128, description="Any one that is fulfilled is success; without any, every replica must succeed."
        ),
    ] = ()
    failure_rules: Annotated[
        tuple[FinishRule, ...],
        Meta(max_length=128, description="Any one that is fulfilled is failure; without any, one failed replica is."),
    ] = ()
    service: ServiceOption | None = None
    run_mode: RunMode | None = None
    clean_up_policy: CleanUpPolicy = "None"
    scheduler: SchedulePolicy | None = None


class JobCondition(Spec, frozen=True):
    """One of the published conditions."""

    type: Annotated[str, Meta(max_length=64)]
    status: Annotated[str, Meta(max_length=16)]
    reason: Annotated[str, Meta(max_length=256)] = ""
    message: Annotated[str, Meta(max_length=4096)] = ""
    last_transition_time: Annotated[str, Meta(max_length=64)] = ""


class ContainerStatus(Spec, frozen=True):
    """How a container of a replica ended, or that it has not."""

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
    """The replicas of one type. `status` is the old name of `replicas`."""

    type: str = ""
    restart_count: int = 0
    replicas: tuple[ReplicaStatus, ...] | None = None
    status: tuple[ReplicaStatus, ...] | None = None


class Aggregate(Spec, frozen=True, omit_defaults=False):
    """How many replicas are in each phase; adds up to all of them."""

    creating: int = 0
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    deleted: int = 0


class GenericJobStatus(Spec, frozen=True):
    """What the controller reports."""

    # Any text is read: what another controller once wrote must not make the job invalid.
    phase: Annotated[str, Meta(max_length=64)] = ""
    conditions: tuple[JobCondition, ...] | None = None
    tasks: tuple[Task, ...] | None = None
    aggregate: Aggregate | None = None
    trainwright: Ledger = Ledger()


class GenericJob(Struct, frozen=True, rename="camel"):
    """The whole object."""

    metadata: ObjectMeta
    spec: GenericJobSpec
    api_version: str = "batch.tensorstack.dev/v1beta1"
    kind: str = "GenericJob"
    status: GenericJobStatus | None = None
