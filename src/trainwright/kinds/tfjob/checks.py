# SPDX-License-Identifier: Apache-2.0
"""The checks that only a TFJob needs; `kinds.kubeflow.checks` has the checks of every kind of Kubeflow v1."""

from collections.abc import Iterator

from msgspec import UNSET

from trainwright.kinds.kubeflow.checks import POLICY
from trainwright.kinds.kubeflow.wire import ReplicaSpec, RunPolicy
from trainwright.kinds.scalars import MAX_REPLICAS, check_variable
from trainwright.kinds.tfjob.policies import ALL_WORKERS
from trainwright.kinds.tfjob.wire import CHIEFS, MAIN, PS, REPLICA_TYPES, TFJob, TFJobSpec
from trainwright.model.problem import Problem, nearest, shown

_SPECS = "spec.tfReplicaSpecs"
#: Fields that older versions had directly under `spec`.
_MOVED = ("clean_pod_policy", "ttl_seconds_after_finished", "active_deadline_seconds", "backoff_limit")


def check(job: TFJob) -> Iterator[Problem]:
    """Check the size of `TF_CONFIG`, the success policy and fields in their old place."""
    yield from _variable_size(job)
    yield from _success_policy(job.spec)
    yield from _moved(job.spec)


def check_replicas(name: str, one: ReplicaSpec, path: str) -> Iterator[Problem]:
    """Warn of several chiefs."""
    if name in CHIEFS and one.replicas > 1:
        message = f"TensorFlow knows one {name.lower()}; with {one.replicas} all of them must succeed"
        yield Problem(f"{path}.replicas", message, warning=True)


def _variable_size(job: TFJob) -> Iterator[Problem]:
    """Check the size of `TF_CONFIG`, which contains all replicas: the size of an environment variable is limited."""
    stem = len(f'"{job.metadata.name}--.{job.metadata.namespace or "default"}.svc:{MAIN.port}",')
    types = [
        (name, one.replicas) for key, one in job.spec.replica_specs.items() if (name := REPLICA_TYPES.canonical(key))
    ]
    listed = [(name, count) for name, count in types if name == PS or not job.spec.enable_dynamic_worker]
    size = sum(count * (stem + len(name) + len(str(count))) for name, count in listed)
    if sum(count for _, count in types) <= MAX_REPLICAS:
        yield from check_variable("TF_CONFIG", size, _SPECS)


def _success_policy(spec: TFJobSpec) -> Iterator[Problem]:
    if spec.success_policy not in ("", ALL_WORKERS):
        message = f"{spec.success_policy!r} is not known and means the same as nothing; expected {ALL_WORKERS} or none"
        yield Problem("spec.successPolicy", message, nearest(spec.success_policy, [ALL_WORKERS]), warning=True)


def _moved(spec: TFJobSpec) -> Iterator[Problem]:
    """Fields that have different values in their old place and in `runPolicy`."""
    policy = spec.run_policy or RunPolicy()
    for name in _MOVED:
        old, new = getattr(spec, name), getattr(policy, name)
        if old is not UNSET and old != new:
            field = "".join(part.title() if place else part for place, part in enumerate(name.split("_")))
            message = f"{shown(old)} is ignored: {POLICY}.{field} is {shown(new)}"
            yield Problem(f"spec.{field}", message, warning=True)
