# SPDX-License-Identifier: Apache-2.0
"""The wire types of a PaddleJob, its roles and its modes: every field of `batch.paddlepaddle.org/v1`, and `runPolicy`.

`runPolicy` is our addition. Fields whose values the original controller did not check are plain text here too:
manifests with misspelt values exist, and must run.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from trainwright.kinds.scalars import Condition, Count, Manifest, Seconds, ShortText, Spec, Timestamp, doc
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger

#: Maximum number of pods of a role that the status lists.
MAX_REFS = 256
SuccessPolicy = Literal["All", "Workers"]


class SchedulingPolicy(Spec, frozen=True):
    """How the pods are scheduled as a gang."""

    min_available: Annotated[Count, doc("Number of pods that must start together; unset: all.")] | UnsetType = UNSET
    queue: Annotated[ShortText, doc("The queue of the group.")] = ""
    priority_class: Annotated[ShortText, doc("The PriorityClass of the group.")] = ""
    min_resources: Annotated[dict[str, int | Annotated[str, Meta(max_length=64)]], Meta(max_length=64)] | UnsetType = (
        UNSET
    )


class ResourceSpec(Spec, frozen=True):
    """One role: parameter servers, workers, or heterogeneous workers."""

    replicas: Annotated[Count, doc("Number of replicas; indexes count from 0.")]
    requests: Annotated[Count, doc("Minimum number of replicas of an elastic job.")] | UnsetType = UNSET
    limits: Annotated[Count, doc("Maximum number of replicas of an elastic job.")] | UnsetType = UNSET
    template: (
        Annotated[dict[str, Any], doc("The pod template (core/v1) of each replica; the container `paddle` trains.")]
        | UnsetType
    ) = UNSET


class RunPolicy(Spec, frozen=True):
    """Policies for the job as a whole; the original has none of them."""

    backoff_limit: (
        Annotated[Seconds, doc("Maximum number of restarts of all roles together, including restarts inside pods.")]
        | UnsetType
    ) = UNSET
    active_deadline_seconds: (
        Annotated[Seconds, doc("Seconds after the job was accepted until it fails.")] | UnsetType
    ) = UNSET
    ttl_seconds_after_finished: (
        Annotated[Seconds, doc("Seconds after its end until the job itself is removed; unset: never.")] | UnsetType
    ) = UNSET
    suspend: Annotated[bool, doc("While true, no pod runs; finished pods run again afterwards.")] = False
    success_policy: Annotated[
        SuccessPolicy, doc("All: every pod must succeed; Workers: only the workers; the servers are then stopped.")
    ] = "All"


class PaddleJobSpec(Spec, frozen=True):
    """The job that the user wants."""

    clean_pod_policy: Annotated[
        str,
        Meta(max_length=64, description="When pods are removed at the end: Always, Never, OnFailure, OnCompletion."),
    ] = ""
    scheduling_policy: SchedulingPolicy | None = None
    intranet: Annotated[
        str,
        Meta(max_length=64, description="How pods find each other: PodIP (the default), Service, Host."),
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
            Meta(
                ge=-(2**31),
                le=2**31 - 1,
                description="Any number: the number of workers may change during the run.",
            ),
        ]
        | UnsetType
    ) = UNSET
    run_policy: RunPolicy | None = None


class JobCondition(Condition, frozen=True):
    """One condition; the original has none."""

    last_transition_time: Timestamp | UnsetType = UNSET


class PodRef(Spec, frozen=True):
    """One pod. The resourceVersion is left out, because it would cause a status write for every change of a pod."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""


class RoleStatus(Spec, frozen=True):
    """The number of pods of a role in each phase, and the pods; 0 is not written."""

    pending: int = 0
    starting: int = 0
    running: int = 0
    failed: int = 0
    succeeded: int = 0
    unknown: int = 0
    refs: tuple[PodRef, ...] | None = None


class PaddleJobStatus(Spec, frozen=True):
    """The status that the controller writes."""

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


class PaddleJob(Manifest[PaddleJobSpec, PaddleJobStatus], frozen=True):
    """The whole object."""


# -- roles and modes -------------------------------------------------------------------------------------------------

PS, WORKER, HETER = "ps", "worker", "heter"
#: The roles, in the order in which pods are created and counted.
ROLES = (PS, WORKER, HETER)
#: The names of the roles in Paddle.
TRAINING = {PS: "PSERVER", WORKER: "TRAINER", HETER: "HETER_TRAINER"}
POD_IP, SERVICE, HOST = "PodIP", "Service", "Host"
INTRANETS = (POD_IP, SERVICE, HOST)
CLEAN = ("Always", "Never", "OnFailure", "OnCompletion")
#: The name of the container that trains; without a container of that name, the first container trains.
CONTAINER = "paddle"
_BY_LOWER = {word.lower(): word for word in INTRANETS} | {"hostnetwork": HOST}


def role_specs(spec: PaddleJobSpec) -> dict[str, ResourceSpec]:
    """The roles that the job has, in the order of `ROLES`."""
    found = {PS: spec.ps, WORKER: spec.worker, HETER: spec.heter}
    return {name: one for name, one in found.items() if one is not None}


def intranet(spec: PaddleJobSpec) -> str:
    """How pods find each other. `HostNetwork` (in the design document) means `Host`; an unknown value means `PodIP`."""
    return _BY_LOWER.get(spec.intranet.lower(), POD_IP)


def is_elastic(spec: PaddleJobSpec) -> bool:
    """Whether the number of workers may change. Never with parameter servers, because they must know all workers."""
    return spec.elastic is not UNSET and spec.ps is None


def mode(spec: PaddleJobSpec) -> str:
    """`PS`, `Collective` or `Single`."""
    if spec.ps is not None:
        return "PS"
    return "Collective" if spec.worker is not None and spec.worker.replicas > 1 else "Single"


def gloo(spec: PaddleJobSpec) -> int:
    """The Gloo mode: 1 by default for a job with parameter servers; 0 without servers, since Gloo needs a server."""
    if spec.ps is None or not spec.ps.replicas:
        return 0
    return 1 if spec.with_gloo is UNSET else spec.with_gloo


def main_of(containers: list[Body]) -> int:
    """The index of the container that trains."""
    return next((place for place, one in enumerate(containers) if one.get("name") == CONTAINER), 0)
