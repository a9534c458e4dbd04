# SPDX-License-Identifier: Apache-2.0
"""Checks that compare fields of a TFJob, the same checks as CEL rules, and the patches of `suspend` and `scale`.

The checks refuse what the original controller's webhook refuses. They also refuse jobs that this webhook accepts, but
that cannot work: unknown or duplicate types, and names that a service cannot have. With the CEL rules, an API server
refuses an invalid job without a webhook. A test compares the results of the rules with the results of `check`. The
rules use only CEL that every server since 1.29 has. They cannot check pod templates: the schema accepts any template.
"""

from collections.abc import Iterator

from msgspec import UNSET

from trainwright.kinds.cel import CelRule, CombinedRule
from trainwright.kinds.scalars import (
    MAX_NAME_LENGTH,
    MAX_REPLICAS,
    check_gang,
    check_name,
    check_replica_names,
    check_total,
    check_variable,
    under,
    unknown_role,
    unusable_count,
)
from trainwright.kinds.template import check_image, check_written, entries, pod_spec
from trainwright.kinds.tfjob.policies import ALL_WORKERS, POD_POLICIES, restart_policy
from trainwright.kinds.tfjob.wire import (
    CHIEFS,
    CONTAINER,
    PORT,
    PS,
    TYPES,
    WORKER,
    ReplicaSpec,
    RunPolicy,
    SchedulingPolicy,
    TFJob,
    TFJobSpec,
    canonical,
    chief_of,
    defaults_version,
)
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest, shown

_SPECS, _POLICY = "spec.tfReplicaSpecs", "spec.runPolicy"
#: Fields that older versions had directly under `spec`.
_MOVED = ("clean_pod_policy", "ttl_seconds_after_finished", "active_deadline_seconds", "backoff_limit")


def check(job: TFJob) -> tuple[Problem, ...]:
    """All problems, in document order."""
    spec = job.spec
    return (
        *check_name(job.metadata.name),
        *_types(spec),
        *_replicas(job),
        *_variable_size(job),
        *_policies(spec),
        *_moved(spec),
        *_scheduling(spec),
    )


def check_edit(stored: TFJob, edited: TFJob) -> tuple[Problem, ...]:
    """A problem for each changed field that must stay the same after creation; the CRD refuses the same changes."""
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
        if name is not None and len(job.metadata.name) <= MAX_NAME_LENGTH:
            yield from check_replica_names(job.metadata.name, name, one.replicas, path)
        if name in CHIEFS and one.replicas > 1:
            message = f"TensorFlow knows one {name.lower()}; with {one.replicas} all of them must succeed"
            yield Problem(f"{path}.replicas", message, warning=True)
        policy = restart_policy(job.spec, name) if name is not None else str(one.restart_policy)
        yield from _template(one, POD_POLICIES[policy], f"{path}.template")


def _template(one: ReplicaSpec, wanted: str, path: str) -> Iterator[Problem]:
    """Check a template. It may have any shape: the module `template` reports a wrong shape."""
    spec = pod_spec(one.template)
    containers = [*entries(spec, "containers", f"{path}.spec")]
    names = [str(container.get("name")) for _, container in containers]
    if containers and CONTAINER not in names:
        message = f"no container is called {CONTAINER!r}, which is the one that trains; found {', '.join(names[:8])}"
        yield Problem(f"{path}.spec.containers", message, CONTAINER if nearest(CONTAINER, names) else "")
    for place, container in containers:
        yield from check_image(container, place)
        if container.get("name") == CONTAINER:
            yield from check_written(container, place, ("TF_CONFIG",))
    given = spec.get("restartPolicy")
    if given not in (None, wanted):
        message = f"{shown(given)} is overwritten by restartPolicy of the replica spec, which makes it {wanted}"
        yield Problem(f"{path}.spec.restartPolicy", message, warning=True)


def _variable_size(job: TFJob) -> Iterator[Problem]:
    """Check the size of `TF_CONFIG`, which contains all replicas: the size of an environment variable is limited."""
    stem = len(f'"{job.metadata.name}--.{job.metadata.namespace or "default"}.svc:{PORT}",')
    types = [(name, one.replicas) for key, one in job.spec.tf_replica_specs.items() if (name := canonical(key))]
    listed = [(name, count) for name, count in types if name == PS or not job.spec.enable_dynamic_worker]
    size = sum(count * (stem + len(name) + len(str(count))) for name, count in listed)
    if sum(count for _, count in types) <= MAX_REPLICAS:
        yield from check_variable("TF_CONFIG", size, _SPECS)


def _policies(spec: TFJobSpec) -> Iterator[Problem]:
    types = {canonical(key): one for key, one in spec.tf_replica_specs.items()}
    if spec.success_policy not in ("", ALL_WORKERS):
        message = f"{spec.success_policy!r} is not known and means the same as nothing; expected {ALL_WORKERS} or none"
        yield Problem("spec.successPolicy", message, nearest(spec.success_policy, [ALL_WORKERS]), warning=True)
    leading = chief_of((name, one.replicas) for name, one in types.items() if name is not None) or WORKER
    decider = types.get(leading)
    if not any(one.replicas for one in types.values()):
        return  # a job without replicas has its own error
    if None in types and (decider is None or not decider.replicas):
        return  # an unknown type has its own error, and may be a misspelt chief or worker
    if decider is None or not decider.replicas:
        message = "there is neither a chief nor a worker, so the job can never succeed"
        yield Problem(_SPECS, message, warning=True)
    elif decider.restart_policy == "Always" and defaults_version(spec) == "v1":
        key = next(key for key in spec.tf_replica_specs if canonical(key) == leading)
        message = f"Always restarts {leading} also after success, so the job never succeeds"
        yield Problem(f"{under(_SPECS, key)}.restartPolicy", message, "OnFailure", warning=True)


def _moved(spec: TFJobSpec) -> Iterator[Problem]:
    """Fields that have different values in their old place and in `runPolicy`."""
    policy = spec.run_policy or RunPolicy()
    for name in _MOVED:
        old, new = getattr(spec, name), getattr(policy, name)
        if old is not UNSET and old != new:
            field = "".join(part.title() if place else part for place, part in enumerate(name.split("_")))
            message = f"{shown(old)} is ignored: {_POLICY}.{field} is {shown(new)}"
            yield Problem(f"spec.{field}", message, warning=True)


def _scheduling(spec: TFJobSpec) -> Iterator[Problem]:
    policy = spec.run_policy.scheduling_policy if spec.run_policy is not None else None
    if policy is not None:
        total = sum(one.replicas for one in spec.tf_replica_specs.values())
        yield from check_gang(policy.min_available, total, f"{_POLICY}.schedulingPolicy.minAvailable")


# -- the same checks as CEL ------------------------------------------------------------------------------------------

_CEL_SPECS = "self.tfReplicaSpecs"
_SPELLINGS = {name: name.lower() for name in TYPES} | {"Evaluator": "eval(uator)?"}


def _named(pattern: str) -> str:
    """CEL: the keys that match the pattern, in upper or lower case."""
    return f"{_CEL_SPECS}.filter(t, t.matches('^(?i)({pattern})$'))"


def _policy(root: str, path: str, otherwise: str = "''") -> str:
    """CEL: a field of the run policy, or `otherwise` if a step of its path is missing."""
    steps = f"runPolicy.{path}".split(".")
    given = " && ".join(f"has({root}.{'.'.join(steps[: end + 1])})" for end in range(len(steps)))
    return f"({given} ? {root}.{'.'.join(steps)} : {otherwise})"


_MANAGED = " == ".join(_policy(root, "managedBy") for root in ("self", "oldSelf"))
_QUEUES = [_policy(root, "schedulingPolicy.queue") for root in ("self", "oldSelf")]

_TYPE_RULES: tuple[CelRule, ...] = (
    (
        f"{_CEL_SPECS}.all(t, t.matches('^(?i)({'|'.join(_SPELLINGS.values())})$'))",
        f"tfReplicaSpecs may only have the types {', '.join(TYPES)}",
    ),
    *(
        (f"size({_named(spelling)}) <= 1", f"tfReplicaSpecs may have {name} once")
        for name, spelling in _SPELLINGS.items()
    ),
    (f"size({_named('chief')}) + size({_named('master')}) <= 1", "must not have more than 1 Chief or Master role"),
    (f"{_CEL_SPECS}.exists(t, {_CEL_SPECS}[t].replicas > 0)", "tfReplicaSpecs must have at least one replica in all"),
)
_EDIT_RULES: tuple[CelRule, ...] = (
    (_MANAGED, "spec.runPolicy.managedBy is immutable"),
    (
        f"{_QUEUES[0]} == '' || {_QUEUES[1]} == '' || {_QUEUES[0]} == {_QUEUES[1]}",
        "spec.runPolicy.schedulingPolicy.queue is immutable",
    ),
)
#: CEL: every type has its usual spelling, there is only one chief, and a type has replicas.
_USUAL_TYPES = (
    f"[{_CEL_SPECS}].all(specs, specs.all(t, t in {list(TYPES)}) && !('Chief' in specs && 'Master' in specs)"
    " && specs.exists(t, specs[t].replicas > 0))"
)
#: CEL: neither version of the job has a field that must stay the same.
_NOTHING_FIXED = "[?self.?runPolicy, ?oldSelf.?runPolicy].all(p, !has(p.managedBy) && !has(p.schedulingPolicy))"

#: In the order in which a server reports them.
CEL_RULES: tuple[CombinedRule, ...] = (
    CombinedRule(_USUAL_TYPES, _TYPE_RULES),
    CombinedRule(_NOTHING_FIXED, _EDIT_RULES),
)


# -- edits -----------------------------------------------------------------------------------------------------------


def suspend(_document: Body, on: bool) -> Body:
    """The merge patch that suspends or resumes a job."""
    return {"spec": {"runPolicy": {"suspend": on}}}


def scale(document: Body, role: str, replicas: int) -> Body | Problem:
    """The merge patch that sets the replicas of a type, under the key that the document uses for the type."""
    specs, wanted = document["spec"]["tfReplicaSpecs"], canonical(role)
    key = next((one for one in specs if wanted is not None and canonical(one) == wanted), None)
    if key is None:
        return unknown_role(_SPECS, role, specs)
    problem = unusable_count(f"{under(_SPECS, key)}.replicas", replicas)
    return problem or {"spec": {"tfReplicaSpecs": {key: {"replicas": replicas}}}}
