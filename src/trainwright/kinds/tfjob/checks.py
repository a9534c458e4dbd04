# SPDX-License-Identifier: Apache-2.0
"""Everything that is wrong with a TFJob beyond its shape, all at once. Called by `base.load` and the webhook.

What the original's webhook refuses, and what it lets in although it can never work: keys that mean nothing or the same,
names that no service can have, groups that can never be admitted.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from trainwright.kinds.limits import (
    LONGEST_NAME,
    LONGEST_VARIABLE,
    MOST_REPLICAS,
    check_name,
    check_replica_names,
    check_total,
)
from trainwright.kinds.paths import item, under
from trainwright.kinds.tfjob.policies import ALL_WORKERS, POD_POLICIES, restarts
from trainwright.kinds.tfjob.types import CHIEFS, CONTAINER, PORT, PS, TYPES, WORKER, canonical, chief_of
from trainwright.kinds.tfjob.versions import form
from trainwright.kinds.tfjob.wire import ReplicaSpec, RunPolicy, SchedulingPolicy, TFJob, TFJobSpec
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest, shown

_SPECS, _POLICY = "spec.tfReplicaSpecs", "spec.runPolicy"
#: Fields that once stood directly under `spec`.
_MOVED = ("clean_pod_policy", "ttl_seconds_after_finished", "active_deadline_seconds", "backoff_limit")


def check(job: TFJob) -> tuple[Problem, ...]:
    """All problems, in document order."""
    spec = job.spec
    return (
        *check_name(job.metadata.name),
        *_types(spec),
        *_replicas(job),
        *_told(job),
        *_policies(spec),
        *_moved(spec),
        *_scheduling(spec),
    )


def check_edit(stored: TFJob, edited: TFJob) -> tuple[Problem, ...]:
    """What may not be changed once the job exists; the CRD refuses the same."""
    before, after = (one.spec.run_policy or RunPolicy() for one in (stored, edited))
    problems = []
    if before.managed_by != after.managed_by:
        problems.append(Problem(f"{_POLICY}.managedBy", "cannot be changed after the job was created"))
    queues = [(policy.scheduling_policy or SchedulingPolicy()).queue for policy in (before, after)]
    if all(queues) and queues[0] != queues[1]:
        problems.append(Problem(f"{_POLICY}.schedulingPolicy.queue", f"{_POLICY}.schedulingPolicy.queue is immutable"))
    return tuple(problems)


def _types(spec: TFJobSpec) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for key in spec.tf_replica_specs:
        name = canonical(key)
        if name is None:
            message = f"{key[:60]!r} is not a type of replica; expected {', '.join(TYPES)}"
            yield Problem(under(_SPECS, key), message, nearest(key, TYPES))
        elif first.setdefault(name, key) != key:
            yield Problem(under(_SPECS, key), f"{key!r} and {first[name]!r} are the same type; give it once")
    if all(name in first for name in CHIEFS):
        yield Problem(_SPECS, "must not have more than 1 Chief or Master role: found both")
    total = sum(one.replicas for one in spec.tf_replica_specs.values())
    if not total:
        yield Problem(_SPECS, "every type has 0 replicas; a job needs at least one")
    yield from check_total(total, _SPECS)


def _replicas(job: TFJob) -> Iterator[Problem]:
    for key, one in job.spec.tf_replica_specs.items():
        path, name = under(_SPECS, key), canonical(key)
        if name is not None and len(job.metadata.name) <= LONGEST_NAME:
            yield from check_replica_names(job.metadata.name, name, one.replicas, path)
        if name in CHIEFS and one.replicas > 1:
            message = f"TensorFlow knows one {name.lower()}; with {one.replicas} all of them must succeed"
            yield Problem(f"{path}.replicas", message, warning=True)
        policy = restarts(job.spec, name) if name is not None else str(one.restart_policy)
        yield from _template(one, POD_POLICIES[policy], f"{path}.template")


def _template(one: ReplicaSpec, wanted: str, path: str) -> Iterator[Problem]:
    """The template may be of any shape still; what its fields must be has been said."""
    spec = one.template.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    found = spec.get("containers")
    containers = [entry if isinstance(entry, dict) else {} for entry in found] if isinstance(found, list) else []
    yield from _containers(containers, f"{path}.spec.containers")
    given = spec.get("restartPolicy")
    if given not in (None, wanted):
        message = f"{shown(given)} is overwritten by restartPolicy of the replica spec, which makes it {wanted}"
        yield Problem(f"{path}.spec.restartPolicy", message, warning=True)


def _containers(containers: list[Body], path: str) -> Iterator[Problem]:
    names = [str(one.get("name")) for one in containers]
    if containers and CONTAINER not in names:
        message = f"no container is called {CONTAINER!r}, which is the one that trains; found {', '.join(names[:8])}"
        yield Problem(path, message, CONTAINER if nearest(CONTAINER, names) else "")
    for place, one in enumerate(containers):
        if not one.get("image"):
            yield Problem(f"{item(path, place)}.image", "missing; expected the name of an image")
        if names[place] == CONTAINER:
            yield from _environment(one.get("env"), f"{item(path, place)}.env")


def _environment(env: Any, path: str) -> Iterator[Problem]:
    for place, entry in enumerate(env if isinstance(env, list) else ()):
        if isinstance(entry, dict) and entry.get("name") == "TF_CONFIG":
            message = "TF_CONFIG is written by the controller, whose value comes after this one and wins"
            yield Problem(item(path, place), message, warning=True)


def _told(job: TFJob) -> Iterator[Problem]:
    """`TF_CONFIG` names everybody, and a program gets only so much in one variable."""
    stem = len(f'"{job.metadata.name}--.{job.metadata.namespace or "default"}.svc:{PORT}",')
    types = [(name, one.replicas) for key, one in job.spec.tf_replica_specs.items() if (name := canonical(key))]
    listed = [(name, count) for name, count in types if name == PS or not job.spec.enable_dynamic_worker]
    size = sum(count * (stem + len(name) + len(str(count))) for name, count in listed)
    if size > LONGEST_VARIABLE and sum(count for _, count in types) <= MOST_REPLICAS:
        message = f"TF_CONFIG would have about {size} bytes to name every replica, and Linux starts no program with"
        yield Problem(_SPECS, f"{message} a variable of more than {LONGEST_VARIABLE}", warning=True)


def _policies(spec: TFJobSpec) -> Iterator[Problem]:
    types = {canonical(key): one for key, one in spec.tf_replica_specs.items()}
    if spec.success_policy not in ("", ALL_WORKERS):
        message = f"{spec.success_policy!r} is not known and means the same as nothing; expected {ALL_WORKERS} or none"
        yield Problem("spec.successPolicy", message, nearest(spec.success_policy, [ALL_WORKERS]), warning=True)
    decides = chief_of((name, one.replicas) for name, one in types.items() if name is not None) or WORKER
    decider = types.get(decides)
    if not any(one.replicas for one in types.values()):
        return  # which has been said
    if decider is None or not decider.replicas:
        message = "there is neither a chief nor a worker, so the job can never succeed"
        yield Problem(_SPECS, message, warning=True)
    elif decider.restart_policy == "Always" and form(spec) == "v1":
        key = next(key for key in spec.tf_replica_specs if canonical(key) == decides)
        message = f"Always restarts {decides} also after success, so the job never succeeds by itself"
        yield Problem(f"{under(_SPECS, key)}.restartPolicy", message, "OnFailure", warning=True)


def _moved(spec: TFJobSpec) -> Iterator[Problem]:
    """Said in the old place and in the new, and not the same."""
    policy = spec.run_policy or RunPolicy()
    for name in _MOVED:
        old, new = getattr(spec, name), getattr(policy, name)
        if old is not UNSET and old != new:
            word = "".join(part.title() if place else part for place, part in enumerate(name.split("_")))
            message = f"{shown(old)} is passed over: {_POLICY}.{word} says {shown(new)}"
            yield Problem(f"spec.{word}", message, warning=True)


def _scheduling(spec: TFJobSpec) -> Iterator[Problem]:
    policy = spec.run_policy.scheduling_policy if spec.run_policy is not None else None
    total = sum(one.replicas for one in spec.tf_replica_specs.values())
    if total and policy is not None and policy.min_available is not UNSET and policy.min_available > total:
        message = (
            f"{policy.min_available} is more than the job's {total} replica{'s' * (total != 1)}:"
            " the group is never admitted"
        )
        yield Problem(f"{_POLICY}.schedulingPolicy.minAvailable", message, warning=True)
