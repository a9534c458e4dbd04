# SPDX-License-Identifier: Apache-2.0
"""What the two versions write down, and what is filled in by them: a job goes by the version it was created in.

An API server stamps the defaults of the version that a request is made in, also when somebody merely labels a `v1` job
through `v1alpha2`. What is stamped already stays, so both versions stamp the same places. The clean-up policy is not
stamped: it may be said in two places, and a stamp in one would contradict the user's word in the other.
"""

from typing import TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds.base import Version
from trainwright.kinds.tfjob.wire import ReplicaSpec, RunPolicy, TFJob, TFJobSpec

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
