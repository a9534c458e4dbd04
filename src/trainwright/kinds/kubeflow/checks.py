# SPDX-License-Identifier: Apache-2.0
"""Checks that compare fields of a job, the same checks as CEL rules, and the patches of `suspend` and `scale`.

The checks refuse what the original controller's webhook refuses. They also refuse jobs that this webhook accepts, but
that cannot work: unknown or duplicate types, and names that a service cannot have. With the CEL rules, an API server
refuses an invalid job without a webhook. A test compares the results of the rules with the results of `check`. The
rules use only CEL that every server since 1.29 has. They cannot check pod templates: the schema accepts any template.
"""

from collections.abc import Iterator
from typing import Any

from trainwright.kinds.cel import CelRule, CombinedRule
from trainwright.kinds.kubeflow.framework import Framework
from trainwright.kinds.kubeflow.policies import POD_POLICIES
from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.kinds.kubeflow.wire import KubeflowSpec, ReplicaSpec, RunPolicy, SchedulingPolicy
from trainwright.kinds.scalars import (
    MAX_NAME_LENGTH,
    check_gang,
    check_name,
    check_replica_names,
    check_total,
    under,
    unknown_role,
    unusable_count,
)
from trainwright.kinds.template import check_image, check_written, entries, pod_spec
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest, shown

POLICY = "spec.runPolicy"


def check(framework: Framework, job: Any) -> tuple[Problem, ...]:
    """All problems, in document order."""
    spec = job.spec
    return (
        *check_name(job.metadata.name),
        *_types(framework, spec),
        *_replicas(framework, job),
        *framework.check(job),
        *_decider(framework, spec),
        *_scheduling(spec),
    )


def check_edit(stored: Any, edited: Any) -> tuple[Problem, ...]:
    """A problem for each changed field that must stay the same after creation; the CRD refuses the same changes."""
    before, after = (one.spec.run_policy or RunPolicy() for one in (stored, edited))
    problems = []
    if before.managed_by != after.managed_by:
        problems.append(Problem(f"{POLICY}.managedBy", "cannot be changed after the job was created"))
    queues = [(policy.scheduling_policy or SchedulingPolicy()).queue for policy in (before, after)]
    if all(queues) and queues[0] != queues[1]:
        problems.append(Problem(f"{POLICY}.schedulingPolicy.queue", f"{POLICY}.schedulingPolicy.queue is immutable"))
    return tuple(problems)


def _types(framework: Framework, spec: KubeflowSpec) -> Iterator[Problem]:
    path = framework.path
    first: dict[str, str] = {}
    for key in spec.replica_specs:
        name = framework.types.canonical(key)
        if name is None:
            message = f"{key[:60]!r} is not a type of replica; expected {', '.join(framework.types.names)}"
            yield Problem(under(path, key), message, nearest(key, framework.types.names))
        elif first.setdefault(name, key) != key:
            yield Problem(under(path, key), f"{key!r} and {first[name]!r} are the same type; give it once")
    if len(framework.types.leaders) > 1 and all(name in first for name in framework.types.leaders):
        yield Problem(path, f"must not have more than 1 {' or '.join(framework.types.leaders)} role: found both")
    total = sum(one.replicas for one in spec.replica_specs.values())
    if not total:
        yield Problem(path, "every type has 0 replicas; a job needs at least one")
    yield from check_total(total, path)


def _replicas(framework: Framework, job: Any) -> Iterator[Problem]:
    for key, one in job.spec.replica_specs.items():
        path, name = under(framework.path, key), framework.types.canonical(key)
        if name is not None and len(job.metadata.name) <= MAX_NAME_LENGTH:
            yield from check_replica_names(job.metadata.name, name, one.replicas, path)
        if name is not None:
            yield from framework.check_replicas(name, one, path)
        policy = framework.policy_of(job.spec, name) if name is not None else str(one.restart_policy)
        yield from _template(framework, one, POD_POLICIES[policy], f"{path}.template")


def _template(framework: Framework, one: ReplicaSpec, wanted: str, path: str) -> Iterator[Problem]:
    """Check a template. It may have any shape: the module `template` reports a wrong shape."""
    spec, main = pod_spec(one.template), framework.main.name
    containers = [*entries(spec, "containers", f"{path}.spec")]
    names = [str(container.get("name")) for _, container in containers]
    if containers and main not in names:
        message = f"no container is called {main!r}, which is the one that trains; found {', '.join(names[:8])}"
        yield Problem(f"{path}.spec.containers", message, main if nearest(main, names) else "")
    for place, container in containers:
        yield from check_image(container, place)
        if container.get("name") == main or framework.in_all_containers:
            yield from check_written(container, place, framework.variable_names)
    given = spec.get("restartPolicy")
    if given not in (None, wanted):
        message = f"{shown(given)} is overwritten by restartPolicy of the replica spec, which makes it {wanted}"
        yield Problem(f"{path}.spec.restartPolicy", message, warning=True)


def _decider(framework: Framework, spec: KubeflowSpec) -> Iterator[Problem]:
    """Check whether the type whose success decides the job exists and can succeed."""
    types = {framework.types.canonical(key): one for key, one in spec.replica_specs.items()}
    sizes = ((name, one.replicas) for name, one in types.items() if name is not None)
    leading = framework.types.leader_of(sizes) or WORKER
    decider = types.get(leading)
    if not any(one.replicas for one in types.values()):
        return  # a job without replicas has its own error
    if None in types and (decider is None or not decider.replicas):
        return  # an unknown type has its own error, and may be a misspelt leader or worker
    if decider is None or not decider.replicas:
        leader = framework.types.leaders[0].lower() if framework.types.leaders else "master"
        message = f"there is neither a {leader} nor a worker, so the job can never succeed"
        yield Problem(framework.path, message, warning=True)
    elif framework.policy_of(spec, leading) == "Always":
        key = next(key for key in spec.replica_specs if framework.types.canonical(key) == leading)
        message = f"Always restarts {leading} also after success, so the job never succeeds"
        yield Problem(f"{under(framework.path, key)}.restartPolicy", message, "OnFailure", warning=True)


def _scheduling(spec: KubeflowSpec) -> Iterator[Problem]:
    policy = spec.run_policy.scheduling_policy if spec.run_policy is not None else None
    if policy is not None:
        total = sum(one.replicas for one in spec.replica_specs.values())
        yield from check_gang(policy.min_available, total, f"{POLICY}.schedulingPolicy.minAvailable")


# -- the same checks as CEL ------------------------------------------------------------------------------------------


def cel_rules(framework: Framework) -> tuple[CelRule | CombinedRule, ...]:
    """The rules, in the order in which a server reports them."""
    specs = f"self.{framework.field}"
    leaders = framework.types.leaders if len(framework.types.leaders) > 1 else ()
    present = " && ".join(f"'{name}' in specs" for name in leaders)
    one_leader = f" && !({present})" if leaders else ""
    # Every type has its usual spelling, there is only one leading type, and a type has replicas.
    usual = (
        f"[{specs}].all(specs, specs.all(t, t in {list(framework.types.names)}){one_leader}"
        " && specs.exists(t, specs[t].replicas > 0))"
    )
    return (
        CombinedRule(usual, _type_rules(framework, specs)),
        *framework.cel_rules,
        CombinedRule(_NOTHING_FIXED, _EDIT_RULES),
    )


def _type_rules(framework: Framework, specs: str) -> tuple[CelRule, ...]:
    expected = f"{framework.field} may only have the types {', '.join(framework.types.names)}"
    some = (f"{specs}.exists(t, {specs}[t].replicas > 0)", f"{framework.field} must have at least one replica in all")
    if framework.types.spellings is None:
        return ((f"{specs}.all(t, t in {list(framework.types.names)})", expected), some)
    patterns = {
        name: "|".join(lower for lower, meant in framework.types.spellings.items() if meant == name)
        for name in framework.types.names
    }

    def named(pattern: str) -> str:
        """CEL: the number of keys that match the pattern, in upper or lower case."""
        return f"size({specs}.filter(t, t.matches('^(?i)({pattern})$')))"

    leaders = framework.types.leaders
    one_leader = (" + ".join(named(patterns[name]) for name in leaders) + " <= 1",)
    return (
        (f"{specs}.all(t, t.matches('^(?i)({'|'.join(patterns.values())})$'))", expected),
        *((f"{named(pattern)} <= 1", f"{framework.field} may have {name} once") for name, pattern in patterns.items()),
        *((rule, f"must not have more than 1 {' or '.join(leaders)} role") for rule in one_leader if len(leaders) > 1),
        some,
    )


def _policy(root: str, path: str, otherwise: str = "''") -> str:
    """CEL: a field of the run policy, or `otherwise` if a step of its path is missing."""
    steps = f"runPolicy.{path}".split(".")
    given = " && ".join(f"has({root}.{'.'.join(steps[: end + 1])})" for end in range(len(steps)))
    return f"({given} ? {root}.{'.'.join(steps)} : {otherwise})"


_MANAGED = " == ".join(_policy(root, "managedBy") for root in ("self", "oldSelf"))
_QUEUES = [_policy(root, "schedulingPolicy.queue") for root in ("self", "oldSelf")]
_EDIT_RULES: tuple[CelRule, ...] = (
    (_MANAGED, "spec.runPolicy.managedBy is immutable"),
    (
        f"{_QUEUES[0]} == '' || {_QUEUES[1]} == '' || {_QUEUES[0]} == {_QUEUES[1]}",
        "spec.runPolicy.schedulingPolicy.queue is immutable",
    ),
)
#: CEL: neither version of the job has a field that must stay the same.
_NOTHING_FIXED = "[?self.?runPolicy, ?oldSelf.?runPolicy].all(p, !has(p.managedBy) && !has(p.schedulingPolicy))"


# -- edits -----------------------------------------------------------------------------------------------------------


def suspend(_document: Body, on: bool) -> Body:
    """The merge patch that suspends or resumes a job."""
    return {"spec": {"runPolicy": {"suspend": on}}}


def scale(framework: Framework, document: Body, role: str, replicas: int) -> Body | Problem:
    """The merge patch that sets the replicas of a type, under the key that the document uses for the type."""
    specs, wanted = document["spec"][framework.field], framework.types.canonical(role)
    same = (one for one in specs if one.lower() == role.lower() or framework.types.canonical(one) == (wanted or ""))
    key = next(same, None)
    if key is None:
        return unknown_role(framework.path, role, specs)
    problem = unusable_count(f"{under(framework.path, key)}.replicas", replicas)
    return problem or {"spec": {framework.field: {key: {"replicas": replicas}}}}
