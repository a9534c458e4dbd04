# SPDX-License-Identifier: Apache-2.0
"""Checks that compare fields of an AITrainingJob, the same checks as CEL rules, and patches for `suspend` and `scale`.

The original controller checked nothing; jobs on which it would fail or wait for ever get an error or warning here. With
the CEL rules, an API server refuses an invalid job without a webhook. A test compares the results of the rules with the
results of `check`. The rules use only CEL that every server since 1.29 has. The rules cannot check pod templates and
exit codes, because the schema accepts any value there.
"""

import re
from collections.abc import Iterator

from msgspec import UNSET

from trainwright.kinds.aitrainingjob import policies
from trainwright.kinds.aitrainingjob.environment import PREFIX, has_prefix, main_ports
from trainwright.kinds.aitrainingjob.policies import ending, replicas
from trainwright.kinds.aitrainingjob.wire import AITrainingJob, AITrainingJobSpec, ReplicaSpec
from trainwright.kinds.base import key_of
from trainwright.kinds.scalars import (
    MAX_NAME_LENGTH,
    MAX_REPLICAS,
    check_name,
    check_replica_names,
    check_total,
    check_variable,
    under,
    unknown_role,
    unusable_count,
)
from trainwright.kinds.template import check_image, entries, pod_spec
from trainwright.model.job import Body
from trainwright.model.problem import Problem, shown

_TYPE = re.compile(r"[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
SPECS = "spec.replicaSpecs"


def check(job: AITrainingJob) -> tuple[Problem, ...]:
    """All problems, in document order."""
    spec = job.spec
    return (
        *check_name(job.metadata.name),
        *_requested_end(job),
        *policies.exit_code_problems(spec.restarting_exit_code),
        *_job(spec),
        *_types(job),
    )


def check_edit(stored: AITrainingJob, edited: AITrainingJob) -> tuple[Problem, ...]:
    """A problem for each changed field that must stay the same after creation; the CRD refuses the same changes."""
    problems = []
    for name, one in edited.spec.replica_specs.items():
        before = stored.spec.replica_specs.get(name)
        if before is None or {before.edl_policy, one.edl_policy} != {"Never"} or replicas(before) == replicas(one):
            continue
        message = f"cannot be changed while edlPolicy is Never: it is {replicas(before)}"
        problems.append(Problem(f"{under(SPECS, name)}.replicas", message))
    return tuple(problems)


def _requested_end(job: AITrainingJob) -> Iterator[Problem]:
    asked = ending(job.metadata.annotations)
    if asked is not None and (job.status is None or not job.status.phase):
        message = f"the annotation asks for the end {asked.word}: the job ends before it creates any pod"
        yield Problem("metadata.annotations", message, warning=True)


def _job(spec: AITrainingJobSpec) -> Iterator[Problem]:
    if spec.priority and not _LABEL.fullmatch(spec.priority):
        message = f"{spec.priority[:60]!r} cannot be the value of a label: use letters, digits, dashes, dots"
        yield Problem("spec.priority", f"{message} and underscores, with a letter or digit at both ends")
    if spec.clean_pod_policy.startswith("CleanPodPolicy"):
        plain = spec.clean_pod_policy.removeprefix("CleanPodPolicy")
        yield Problem("spec.cleanPodPolicy", f"counts as {plain}, which is what it is called", plain, warning=True)
    for path, policy, never in (
        ("spec.completePolicy", spec.complete_policy, "completes"),
        ("spec.failPolicy", spec.fail_policy, "fails because of its replica types"),
    ):
        if policy == "Rank0" or (policy == "None" and never == "completes"):
            message = f"{policy} never decides over replica types, so the job never {never}"
            yield Problem(path, message, "All" if never == "completes" else "Any", warning=True)
    yield from _endless(spec)


def _endless(spec: AITrainingJobSpec) -> Iterator[Problem]:
    """Replica types that never complete although the job waits for them."""
    deciding = {name: one.complete_policy for name, one in spec.replica_specs.items() if replicas(one)}
    never = [name for name, policy in deciding.items() if policy == "None"]
    if (spec.complete_policy == "Any" and len(never) < len(deciding)) or spec.complete_policy not in ("All", "Any"):
        return
    for name in never:
        message = f"None never completes, and the job's completePolicy {spec.complete_policy} waits for it"
        yield Problem(f"{under(SPECS, name)}.completePolicy", message, warning=True)


def _types(job: AITrainingJob) -> Iterator[Problem]:
    specs, first = job.spec.replica_specs, dict[str, str]()
    for name, one in specs.items():
        path = under(SPECS, name)
        if not _TYPE.fullmatch(name):
            message = f"{name[:60]!r} becomes part of object names: use letters, digits and dashes"
            yield Problem(path, f"{message}, with a letter first and no dash at the end")
        elif first.setdefault(name.lower(), name) != name:
            yield Problem(path, f"{name!r} and {first[name.lower()]!r} give their pods the same names; rename one")
        elif name.lower() == "trainingjob":
            message = "its variable TRAININGJOB_PORTS is overridden by the container's own variable of that name"
            yield Problem(path, message, warning=True)
        yield from _replica(job, name, one, path)
    total = sum(replicas(one) for one in specs.values())
    if not total and not any(one.min_replicas for one in specs.values() if one.min_replicas is not UNSET):
        yield Problem(SPECS, "every type has 0 replicas; a job needs at least one")
    yield from check_total(total, SPECS)


def _replica(job: AITrainingJob, name: str, one: ReplicaSpec, path: str) -> Iterator[Problem]:
    yield from _bounds(one, path)
    if len(job.metadata.name) <= MAX_NAME_LENGTH:
        most = replicas(one) if one.max_replicas is UNSET else one.max_replicas
        yield from check_replica_names(job.metadata.name, name, most, path, " or the replica's name")
    yield from _variable_size(job, name, one, path)
    given = job.spec.restarting_exit_code
    if (
        one.restart_policy.endswith("ExitCode")
        and not any(policies.exit_codes(given))
        and not policies.exit_code_problems(given)
    ):
        message = f"{one.restart_policy} restarts only the codes of {policies.EXIT_CODE_PATH}, which lists none"
        yield Problem(f"{path}.restartPolicy", message, warning=True)
    yield from _template(one.template, f"{path}.template")


def _bounds(one: ReplicaSpec, path: str) -> Iterator[Problem]:
    least, most, count = one.min_replicas, one.max_replicas, replicas(one)
    if least is not UNSET and most is not UNSET and least > most:
        yield Problem(f"{path}.minReplicas", f"{least} is more than maxReplicas, which is {most}")
    elif least is not UNSET and count < least:
        yield Problem(f"{path}.replicas", f"{count} is less than minReplicas, which is {least}")
    elif most is not UNSET and count > most:
        yield Problem(f"{path}.replicas", f"{count} is more than maxReplicas, which is {most}")


def _variable_size(job: AITrainingJob, name: str, one: ReplicaSpec, path: str) -> Iterator[Problem]:
    """Check the size of the variables that list all replicas: the size of an environment variable is limited."""
    most = replicas(one) if one.max_replicas is UNSET else one.max_replicas
    stem = len(f"{job.metadata.name}-{name}-.{key_of(job.metadata).namespace}:65535,")
    if most <= MAX_REPLICAS:
        size = most * (stem + len(str(most))) * max(len(_all_ports(one.template)), 1)
        yield from check_variable(f"{name.upper()}_HOSTS", size, path)


def _all_ports(template: Body) -> tuple[int, ...]:
    """The main ports of a template; empty if its shape is wrong, because another check reports the shape."""
    try:
        return main_ports(template)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def _template(template: Body, path: str) -> Iterator[Problem]:
    """Check a template. It may have any shape: the module `template` reports a wrong shape."""
    spec = pod_spec(template)
    containers = [*entries(spec, "containers", f"{path}.spec")]
    for place, one in containers:
        yield from check_image(one, place)
    if containers and not any(has_prefix(one) for _, one in containers):
        name = str(containers[0][1].get("name", ""))
        message = f"no container is called {PREFIX}…, so the first one counts, with all its ports"
        yield Problem(f"{path}.spec.containers", message, PREFIX + name if name else "", warning=True)
    for place, one in containers:
        yield from _ports(one, place)
    if spec.get("restartPolicy") not in (None, "Never"):
        message = f"{shown(spec['restartPolicy'])} is overwritten with Never: only the controller restarts pods"
        yield Problem(f"{path}.spec.restartPolicy", message, warning=True)


def _ports(container: Body, path: str) -> Iterator[Problem]:
    """Warn if a main container has only ports without the prefix: its peers do not learn such ports."""
    given = [port for _, port in entries(container, "ports", path)] if has_prefix(container) else []
    if given and not any(has_prefix(port) for port in given):
        names = ", ".join(str(port.get("name", "one without a name")) for port in given[:8])
        message = f"no port is called {PREFIX}…, so its peers learn none; found {names}"
        yield Problem(f"{path}.ports", message, f"{PREFIX}{given[0].get('containerPort', '')}", warning=True)


# -- the same checks as CEL ------------------------------------------------------------------------------------------

_SPECS = "self.replicaSpecs"
_CEL_NAME = "^[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$"


def _field(root: str, name: str, otherwise: str) -> str:
    """CEL: a field, or `otherwise` if it is missing."""
    return f"(has({root}.{name}) ? {root}.{name} : {otherwise})"


def _count(root: str) -> str:
    """CEL: the number of replicas that the user wants."""
    least = _field(root, "minReplicas", "1")
    return _field(root, "replicas", f"({least} > 1 ? {least} : 1)")


def _each(demand: str) -> str:
    return f"{_SPECS}.all(r, {demand.replace('@', f'{_SPECS}[r]')})"


def _policy(root: str) -> str:
    return _field(root, "edlPolicy", "''")


#: (rule, message), in the order in which a server reports them.
CEL_RULES: tuple[tuple[str, str], ...] = (
    (
        f"{_SPECS}.all(r, r.matches('{_CEL_NAME}'))",
        "replicaSpecs may only have names of letters, digits and dashes, with a letter first and no dash at the end",
    ),
    (
        f"{_SPECS}.all(r, !r.matches('{_CEL_NAME}') || {_SPECS}.exists_one(o, o.matches('^(?i)' + r + '$')))",
        "replicaSpecs may not have names that differ only in case",
    ),
    (f"{_SPECS}.exists(r, {_count(f'{_SPECS}[r]')} > 0)", "replicaSpecs must have at least one replica in all"),
    (
        _each("!has(@.minReplicas) || !has(@.maxReplicas) || @.minReplicas <= @.maxReplicas"),
        "minReplicas may not be more than maxReplicas",
    ),
    (_each(f"!has(@.minReplicas) || {_count('@')} >= @.minReplicas"), "replicas may not be less than minReplicas"),
    (_each(f"!has(@.maxReplicas) || {_count('@')} <= @.maxReplicas"), "replicas may not be more than maxReplicas"),
    (
        f"{_SPECS}.all(r, !(r in oldSelf.replicaSpecs) || {_policy(f'{_SPECS}[r]')} != 'Never'"
        f" || {_policy('oldSelf.replicaSpecs[r]')} != 'Never'"
        f" || {_count(f'{_SPECS}[r]')} == {_count('oldSelf.replicaSpecs[r]')})",
        "replicas cannot be changed while edlPolicy is Never",
    ),
    (
        "!has(self.priority) || self.priority.matches('^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$')",
        "priority must be able to be the value of a label",
    ),
)


# -- edits -----------------------------------------------------------------------------------------------------------


def suspend(_document: Body, on: bool) -> Body:
    """The merge patch that suspends or resumes a job."""
    return {"spec": {"suspend": on}}


def scale(document: Body, role: str, replicas: int) -> Body | Problem:
    """The merge patch that sets the replicas of a type, within its bounds and if its edlPolicy allows it."""
    specs = document["spec"]["replicaSpecs"]
    key = next((one for one in specs if one.lower() == role.lower()), None)
    if key is None:
        return unknown_role(SPECS, role, specs)
    spec, path = specs[key], f"{under(SPECS, key)}.replicas"
    if spec.get("edlPolicy") == "Never":
        return Problem(path, "cannot be changed while edlPolicy is Never")
    most = spec.get("maxReplicas")
    problem = unusable_count(path, replicas, spec.get("minReplicas") or 0, MAX_REPLICAS if most is None else most)
    return problem or {"spec": {"replicaSpecs": {key: {"replicas": replicas}}}}
