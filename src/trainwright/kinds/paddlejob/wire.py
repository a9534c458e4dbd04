# SPDX-License-Identifier: Apache-2.0
"""PaddleJob on the wire: every field of `batch.paddlepaddle.org/v1`, and `runPolicy`, which is ours.

`decode` reads manifests into these, `crd.schema` generates the CRD from them, the other modules of this package work on
them. Words that the original never checked are plain text here too: manifests with misspelt ones exist, and must run.

The words of a PaddleJob: its roles, its modes, how pods find each other. Used wherever `spec` is read.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trainwright.kinds.scalars import Count, Seconds, Spec, Timestamp, Word, doc
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

#: Pods of a role that are listed one by one.
MOST_REFS = 256
SuccessPolicy = Literal["All", "Workers"]


class SchedulingPolicy(Spec, frozen=True):
    """How the gang's group is made; the number of pods that must start together is all of them unless it says."""

    min_available: Annotated[Count, doc("Pods that must start together; unset: all.")] | UnsetType = UNSET
    queue: Annotated[Word, doc("The queue of the group.")] = ""
    priority_class: Annotated[Word, doc("The PriorityClass of the group.")] = ""
    min_resources: Annotated[dict[str, int | Annotated[str, Meta(max_length=64)]], Meta(max_length=64)] | UnsetType = (
        UNSET
    )


class ResourceSpec(Spec, frozen=True):
    """One role: parameter servers, workers, or heterogeneous workers."""

    replicas: Annotated[Count, doc("How many; indexes count from 0.")]
    requests: Annotated[Count, doc("The fewest that an elastic job runs with.")] | UnsetType = UNSET
    limits: Annotated[Count, doc("The most that an elastic job runs with.")] | UnsetType = UNSET
    template: (
        Annotated[dict[str, Any], doc("The pod of each replica, as core/v1 has it; the container `paddle` trains.")]
        | UnsetType
    ) = UNSET


class RunPolicy(Spec, frozen=True):
    """What holds for the job as a whole; the original has none of it."""

    backoff_limit: (
        Annotated[Seconds, doc("So many restarts are made, of all roles together, those inside pods included.")]
        | UnsetType
    ) = UNSET
    active_deadline_seconds: (
        Annotated[Seconds, doc("Seconds after it was accepted at which the job fails.")] | UnsetType
    ) = UNSET
    ttl_seconds_after_finished: (
        Annotated[Seconds, doc("Seconds after its end at which the job itself is removed; unset: never.")] | UnsetType
    ) = UNSET
    suspend: Annotated[bool, doc("While true no pod runs; what had finished runs again afterwards.")] = False
    success_policy: Annotated[
        SuccessPolicy, doc("All: every pod must succeed; Workers: the workers, and the servers are ended then.")
    ] = "All"


class PaddleJobSpec(Spec, frozen=True):
    """What the user asks for."""

    clean_pod_policy: Annotated[
        str,
        Meta(max_length=64, description="When pods are removed at the end: Always, Never, OnFailure, OnCompletion."),
    ] = ""
    scheduling_policy: SchedulingPolicy | None = None
    intranet: Annotated[
        str,
        Meta(max_length=64, description="How pods find each other: PodIP (also where nothing is said), Service, Host."),
    ] = ""
    with_gloo: (
        Annotated[int, Meta(ge=0, le=2, description="Gloo: 0 off, 1 workers, 2 workers and servers; unset: 1 with ps.")]
        | UnsetType
    ) = UNSET
    ps: ResourceSpec | None = None
    worker: ResourceSpec | None = None
    heter: ResourceSpec | None = None
    elastic: (
        Annotated[
            int,
            Meta(ge=-(2**31), le=2**31 - 1, description="Whatever the number: workers may come and go while it runs."),
        ]
        | UnsetType
    ) = UNSET
    run_policy: RunPolicy | None = None


class JobCondition(Spec, frozen=True):
    """One condition; an addition to the original."""

    type: Annotated[str, Meta(max_length=64)]
    status: Annotated[str, Meta(max_length=16)]
    reason: Annotated[str, Meta(max_length=256)] = ""
    message: Annotated[str, Meta(max_length=8192)] = ""
    last_transition_time: Timestamp | UnsetType = UNSET


class PodRef(Spec, frozen=True):
    """One pod. Its resourceVersion is not here: it would make a write of every change of a pod."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""


class RoleStatus(Spec, frozen=True):
    """How many pods of a role are how, and which they are; none is not written."""

    pending: int = 0
    starting: int = 0
    running: int = 0
    failed: int = 0
    succeeded: int = 0
    unknown: int = 0
    refs: tuple[PodRef, ...] | None = None


class PaddleJobStatus(Spec, frozen=True):
    """What the controller reports."""

    phase: str = ""
    mode: str = ""
    ps: RoleStatus | UnsetType = UNSET
    worker: RoleStatus | UnsetType = UNSET
    heter: RoleStatus | UnsetType = UNSET
    elastic: str = ""
    start_time: Timestamp | UnsetType = UNSET
    completion_time: Timestamp | UnsetType = UNSET
    observed_generation: int = 0
    conditions: tuple[JobCondition, ...] | None = None
    trainwright: Ledger = Ledger()


class PaddleJob(Struct, frozen=True, rename="camel"):
    """The whole object."""

    metadata: ObjectMeta
    spec: PaddleJobSpec
    api_version: str = "batch.paddlepaddle.org/v1"
    kind: str = "PaddleJob"
    status: PaddleJobStatus | None = None


PS, WORKER, HETER = "ps", "worker", "heter"
#: In the order in which they are made, and in which everything is walked.
ROLES = (PS, WORKER, HETER)
#: What Paddle calls them.
TRAINING = {PS: "PSERVER", WORKER: "TRAINER", HETER: "HETER_TRAINER"}
POD_IP, SERVICE, HOST = "PodIP", "Service", "Host"
INTRANETS = (POD_IP, SERVICE, HOST)
CLEAN = ("Always", "Never", "OnFailure", "OnCompletion")
#: The container that trains, where one is called so; else it is the first.
CONTAINER = "paddle"
_BY_LOWER = {word.lower(): word for word in INTRANETS} | {"hostnetwork": HOST}


def roles(spec: PaddleJobSpec) -> dict[str, ResourceSpec]:
    """Those that the job has, in order."""
    found = {PS: spec.ps, WORKER: spec.worker, HETER: spec.heter}
    return {name: one for name, one in found.items() if one is not None}


def intranet(spec: PaddleJobSpec) -> str:
    """How pods find each other; the design's `HostNetwork` is `Host`, and what means nothing is `PodIP`."""
    return _BY_LOWER.get(spec.intranet.lower(), POD_IP)


def elastic(spec: PaddleJobSpec) -> bool:
    """Workers may come and go. Only among themselves: parameter servers need to know everybody."""
    return spec.elastic is not UNSET and spec.ps is None


def mode(spec: PaddleJobSpec) -> str:
    """`PS`, `Collective` or `Single`."""
    if spec.ps is not None:
        return "PS"
    return "Collective" if spec.worker is not None and spec.worker.replicas > 1 else "Single"


def gloo(spec: PaddleJobSpec) -> int:
    """Who meets by Gloo: with servers the workers do, unless it is said otherwise; without servers nobody can."""
    if spec.ps is None or not spec.ps.replicas:
        return 0
    return 1 if spec.with_gloo is UNSET else spec.with_gloo


def main_of(containers: list[Body]) -> int:
    """Which container trains."""
    return next((place for place, one in enumerate(containers) if one.get("name") == CONTAINER), 0)
