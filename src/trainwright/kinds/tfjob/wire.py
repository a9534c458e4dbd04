# SPDX-License-Identifier: Apache-2.0
"""TFJob on the wire: every field of `kubeflow.org/v1`, and the places where older versions had some of them.

`decode` reads manifests into these, `crd.schema` generates the CRD from them, the other modules of this package work on
them. `v1` and `v1alpha2` share these fields; only what is stamped into them differs (`versions`).

The types of replica, and how people spell them. Used wherever a key of `tfReplicaSpecs` is read.

What the two versions write down, and what is filled in by them: a job goes by the version it was created in.

An API server stamps the defaults of the version that a request is made in, also when somebody merely labels a `v1` job
through `v1alpha2`. What is stamped already stays, so both versions stamp the same places. The clean-up policy is not
stamped: it may be said in two places, and a stamp in one would contradict the user's word in the other.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from trainwright.kinds.base import Version
from trainwright.kinds.scalars import MOST_REPLICAS, Seconds, Spec, Timestamp, Word, doc
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


CHIEFS = ("Chief", "Master")
WORKER, PS = "Worker", "PS"
#: In the order in which everything is walked.
TYPES = ("Chief", "Evaluator", "Master", "PS", "Worker")
#: The container that trains, and the port at which it is reached.
CONTAINER, PORT_NAME, PORT = "tensorflow", "tfjob-port", 2222
_BY_LOWER = {name.lower(): name for name in TYPES} | {"eval": "Evaluator"}


def canonical(key: str) -> str | None:
    """The type that a key means: in any case, and `Eval` as the design had it; None for anything else."""
    return _BY_LOWER.get(key.lower())


def typed(spec: TFJobSpec) -> dict[str, ReplicaSpec]:
    """The replica specs by type, in order; of a job that was found to be right."""
    found = {canonical(key): one for key, one in spec.tf_replica_specs.items()}
    return {name: found[name] for name in TYPES if name in found}


def chief_of(sizes: Iterable[tuple[str, int]]) -> str | None:
    """The type that leads, if there is one; one without replicas is none."""
    return next((name for name, replicas in sizes if name in CHIEFS and replicas), None)


def leader(spec: TFJobSpec) -> str:
    """The type whose success is the job's: the chief's, or the workers'."""
    return chief_of((name, one.replicas) for name, one in typed(spec).items()) or WORKER


T = TypeVar("T")
_DEFAULTS, _RESTART = "spec.trainwright.defaults", "spec.tfReplicaSpecs.*.restartPolicy"
VERSIONS = (
    Version("v1", {_DEFAULTS: "v1", _RESTART: "Never"}),
    # As its design says, although its first release restarted nothing.
    Version("v1alpha2", {_DEFAULTS: "v1alpha2", _RESTART: "Always"}),
)
_RESTARTS = {version.name: version.stamps[_RESTART] for version in VERSIONS}
_CLEAN = {"v1": "None", "v1alpha2": "Running"}


def form(spec: TFJobSpec) -> str:
    """The version by whose defaults a job goes."""
    return spec.trainwright.defaults or "v1"


def default(job: TFJob) -> TFJob:
    """Fill in what the user left out; what stands in its old place moves to `runPolicy`."""
    spec = job.spec
    replicas = {key: _replica(one, _RESTARTS[form(spec)]) for key, one in spec.tf_replica_specs.items()}
    return replace(job, spec=replace(spec, tf_replica_specs=replicas, run_policy=_policy(spec)))


def _replica(one: ReplicaSpec, otherwise: str) -> ReplicaSpec:
    return one if one.restart_policy else replace(one, restart_policy=otherwise)


def _policy(spec: TFJobSpec) -> RunPolicy:
    given = spec.run_policy or RunPolicy()
    clean = _first(given.clean_pod_policy, spec.clean_pod_policy)
    return replace(
        given,
        clean_pod_policy=_CLEAN[form(spec)] if clean is UNSET else clean,
        ttl_seconds_after_finished=_first(given.ttl_seconds_after_finished, spec.ttl_seconds_after_finished),
        active_deadline_seconds=_first(given.active_deadline_seconds, spec.active_deadline_seconds),
        backoff_limit=_first(given.backoff_limit, spec.backoff_limit),
    )


def _first(new: T | UnsetType, old: T | UnsetType) -> T | UnsetType:
    return old if new is UNSET else new
