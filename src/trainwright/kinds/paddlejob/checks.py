# SPDX-License-Identifier: Apache-2.0
"""Checks that compare fields of a PaddleJob, the same checks as CEL rules, and the patches of `suspend` and `scale`.

The original controller checked nothing, and manifests with unknown values exist: they run as before, with a warning.
Only jobs that cannot work are refused. With the CEL rules, an API server refuses such a job without a webhook. A test
compares the results of the rules with the results of `check`. The rules cannot check pod templates, because the schema
accepts any template.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from trainwright.kinds.paddlejob.wire import (
    CLEAN,
    CONTAINER,
    HOST,
    INTRANETS,
    PS,
    ROLES,
    SERVICE,
    WORKER,
    PaddleJob,
    PaddleJobSpec,
    ResourceSpec,
    intranet,
    is_elastic,
    main_of,
    role_specs,
)
from trainwright.kinds.scalars import (
    MAX_NAME_LENGTH,
    MAX_REPLICAS,
    check_gang,
    check_name,
    check_replica_names,
    check_total,
    unknown_role,
    unusable_count,
)
from trainwright.kinds.template import Place, check_image, check_written, entries, pod_spec
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest, shown

#: Variables that the controller writes on each pod, after the user's own.
WRITTEN = (
    "POD_IP",
    "PADDLE_TRAINER_ID",
    "TRAINING_ROLE",
    "PADDLE_TRAINING_ROLE",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_ELASTIC_JOB_ID",
    "PADDLE_ELASTIC_NP",
)
#: Variables in the job's ConfigMap; a pod's own variables override them.
SHARED = (
    "PADDLE_PORT",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_TRAINERS",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_HETER_ENDPOINTS",
    "PADDLE_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_WITH_GLOO",
    "PADDLE_GLOO_RENDEZVOUS",
    "PADDLE_GLOO_HTTP_ENDPOINT",
    "TRAINER_PORTS_NUM",
)


def _template(body: Body, path: str, *, host_network: bool) -> Iterator[Problem]:
    """Check a template. It may have any shape: the module `template` reports a wrong shape."""
    spec = pod_spec(body)
    yield from _containers([*entries(spec, "containers", f"{path}.spec")], f"{path}.spec.containers")
    yield from _restart_policy(spec.get("restartPolicy"), f"{path}.spec.restartPolicy")
    if spec.get("restartPolicy") == "Always":
        message = "Always restarts containers also after success, so the job never succeeds"
        yield Problem(f"{path}.spec.restartPolicy", message, "OnFailure", warning=True)
    if spec.get("hostNetwork") and not host_network:
        message = "pods on the same node would share ports; `intranet: Host` gives each pod its own ports"
        yield Problem(f"{path}.spec.hostNetwork", message, warning=True)


def _restart_policy(given: Any, path: str) -> Iterator[Problem]:
    """Check the restart policy. Pods get it unchanged, and an API server accepts only these values."""
    known = ("Always", "Never", "OnFailure")
    if given not in (None, "", *known):
        near = nearest(given, known) if isinstance(given, str) else ""
        yield Problem(path, f"expected one of {', '.join(known)}, found {shown(given)}", near)


def _containers(containers: list[Place], path: str) -> Iterator[Problem]:
    names = [str(one.get("name")) for _, one in containers]
    if len(containers) > 1 and CONTAINER not in names:
        message = f"no container is called {CONTAINER!r}, so the first one, {names[0]!r}, gets the peers' addresses"
        yield Problem(path, message, CONTAINER if nearest(CONTAINER, names) else "", warning=True)
    for place, one in containers:
        yield from check_image(one, place)
    if containers:
        place, main = containers[main_of([one for _, one in containers])]
        yield from check_written(main, place, WRITTEN)
        for where, entry in entries(main, "env", place):
            if (name := entry.get("name")) in SHARED:
                message = f"{name} overrides the value in the job's ConfigMap, which the other pods use"
                yield Problem(where, message, warning=True)


#: Largest list of endpoints in bytes; Linux allows 131,072 for a variable together with its name.
_MAX_LIST_BYTES = 131_000


def check(job: PaddleJob) -> tuple[Problem, ...]:
    """All problems, in document order."""
    spec = job.spec
    names = check_name(job.metadata.name, hosts="services" if intranet(spec) == SERVICE else "hosts")
    sizes = (*_sizes(spec), *_variable_sizes(job))
    return (*names, *_unknown_values(spec), *sizes, *_roles(job), *_elastic(spec), *_scheduling(spec))


def check_edit(stored: PaddleJob, edited: PaddleJob) -> tuple[Problem, ...]:
    """A problem for each changed field that must stay the same after creation; the CRD refuses the same changes."""
    before, after = stored.spec, edited.spec
    problems = [
        Problem(f"spec.{name}", "roles cannot be added or removed after the job was created")
        for name in ROLES
        if (name in role_specs(before)) != (name in role_specs(after))
    ]
    # Running pods have received these two values in their environment.
    if before.intranet != after.intranet:
        problems.append(Problem("spec.intranet", "cannot be changed after the job was created"))
    if before.with_gloo != after.with_gloo:
        problems.append(Problem("spec.withGloo", "cannot be changed after the job was created"))
    if (before.elastic is UNSET) != (after.elastic is UNSET):
        problems.append(Problem("spec.elastic", "cannot be added or removed after the job was created"))
    return tuple(problems)


def _unknown_values(spec: PaddleJobSpec) -> Iterator[Problem]:
    """Warn about unknown values. They have the same effect as in the original controller."""
    policy = spec.clean_pod_policy
    if policy not in ("", *CLEAN):
        message = f"{policy!r} is not known and means the same as Never; expected {', '.join(CLEAN)}"
        yield Problem("spec.cleanPodPolicy", message, nearest(policy, CLEAN), warning=True)
    given, means = spec.intranet, intranet(spec)
    if given not in ("", *INTRANETS):
        known = given.lower() in (means.lower(), "hostnetwork")
        text = f"is taken for {means}" if known else f"is not known and means the same as {means}"
        message = f"{given!r} {text}; expected {', '.join(INTRANETS)}"
        yield Problem("spec.intranet", message, means if known else nearest(given, INTRANETS), warning=True)
    if spec.with_gloo is not UNSET and spec.with_gloo and (spec.ps is None or not spec.ps.replicas):
        yield Problem("spec.withGloo", "has no effect: Gloo needs a parameter server", warning=True)


def _sizes(spec: PaddleJobSpec) -> Iterator[Problem]:
    if spec.worker is None:
        yield Problem("spec.worker", "missing; a job needs at least one worker")
    elif not spec.worker.replicas:
        yield Problem("spec.worker.replicas", "a job needs at least one worker; found 0")
    yield from check_total(sum(one.replicas for one in role_specs(spec).values()), "spec")


def _variable_sizes(job: PaddleJob) -> Iterator[Problem]:
    """Check the size of the variable that lists the endpoints of a role: the size of a variable is limited."""
    by_name = f"{job.metadata.name}-worker-9999.{job.metadata.namespace or 'default'}:36000,"
    each = len(by_name) if intranet(job.spec) == SERVICE else len("255.255.255.255:36000,")
    for name, one in role_specs(job.spec).items() if not is_elastic(job.spec) else ():
        if each * one.replicas > _MAX_LIST_BYTES:
            most = _MAX_LIST_BYTES // each
            message = f"the list of {one.replicas} endpoints may be too long for an environment variable"
            yield Problem(f"spec.{name}.replicas", f"{message}: at most {most} are safe", warning=True)


def _roles(job: PaddleJob) -> Iterator[Problem]:
    for name, one in role_specs(job.spec).items():
        path = f"spec.{name}"
        if len(job.metadata.name) <= MAX_NAME_LENGTH:
            yield from check_replica_names(job.metadata.name, name, one.replicas, path)
        yield from _bounds(one, path)
        if one.template is UNSET:
            yield Problem(f"{path}.template", "missing; expected the pod of each replica")
        else:
            yield from _template(one.template, f"{path}.template", host_network=intranet(job.spec) == HOST)


def _bounds(one: ResourceSpec, path: str) -> Iterator[Problem]:
    least, most = one.requests, one.limits
    if least is not UNSET and most is not UNSET and least > most:
        yield Problem(f"{path}.requests", f"{least} is more than limits, which is {most}")
        return
    if least is not UNSET and one.replicas < least:
        message = f"{one.replicas} is less than requests: an elastic job runs with {least}"
        yield Problem(f"{path}.replicas", message, warning=True)
    if most is not UNSET and one.replicas > most:
        message = f"{one.replicas} is more than limits: an elastic job runs with {most}"
        yield Problem(f"{path}.replicas", message, warning=True)


def _elastic(spec: PaddleJobSpec) -> Iterator[Problem]:
    if spec.elastic is not UNSET and spec.ps is not None:
        message = "has no effect: an elastic job cannot have parameter servers, which must know all workers"
        yield Problem("spec.elastic", message, warning=True)
    elif spec.elastic is not UNSET and not spec.elastic:
        message = "0 makes the job elastic, like any other number; remove the field if that is not wanted"
        yield Problem("spec.elastic", message, warning=True)
    for name, one in role_specs(spec).items():
        used = spec.elastic is not UNSET and name == WORKER and spec.ps is None
        for field, value in (("requests", one.requests), ("limits", one.limits)):
            if value is not UNSET and not used:
                message = "has no effect: only the workers of an elastic job have bounds"
                yield Problem(f"spec.{name}.{field}", message, warning=True)


def _scheduling(spec: PaddleJobSpec) -> Iterator[Problem]:
    complete = spec.worker is not None and spec.worker.replicas  # a job without workers has its own error
    if complete and spec.scheduling_policy is not None:
        total = sum(one.replicas for one in role_specs(spec).values())
        yield from check_gang(spec.scheduling_policy.min_available, total, "spec.schedulingPolicy.minAvailable")
    by_workers = spec.run_policy is not None and spec.run_policy.success_policy == "Workers"
    if by_workers and PS not in role_specs(spec) and len(role_specs(spec)) == 1:
        yield Problem("spec.runPolicy.successPolicy", "has no effect: the job has only workers", warning=True)


# -- the same checks as CEL ------------------------------------------------------------------------------------------


def _unchanged(field: str, otherwise: str) -> str:
    """CEL: a field is the same before and after an edit; `otherwise` is its value if the field is missing."""
    return " == ".join(f"(has({one}.{field}) ? {one}.{field} : {otherwise})" for one in ("self", "oldSelf"))


_TOTAL = " + ".join(f"(has(self.{name}) ? self.{name}.replicas : 0)" for name in ROLES)
_ROLES = " && ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in ROLES)

#: (rule, message), in the order in which a server reports them.
CEL_RULES: tuple[tuple[str, str], ...] = (
    ("has(self.worker) && self.worker.replicas >= 1", "spec.worker must have at least one replica"),
    (f"{_TOTAL} <= {MAX_REPLICAS}", f"a job may have {MAX_REPLICAS} replicas in all"),
    *((f"!has(self.{name}) || has(self.{name}.template)", f"spec.{name}.template is missing") for name in ROLES),
    *(
        (
            f"!has(self.{name}) || !has(self.{name}.requests) || !has(self.{name}.limits)"
            f" || self.{name}.requests <= self.{name}.limits",
            f"spec.{name}.requests may not be more than spec.{name}.limits",
        )
        for name in ROLES
    ),
    (_ROLES, "roles cannot be added or removed after the job was created"),
    (_unchanged("intranet", "''"), "spec.intranet is immutable"),
    (_unchanged("withGloo", "-1"), "spec.withGloo is immutable"),
    ("has(self.elastic) == has(oldSelf.elastic)", "spec.elastic cannot be added or removed after the job was created"),
)


# -- edits -----------------------------------------------------------------------------------------------------------


def suspend(_document: Body, on: bool) -> Body:
    """The merge patch that suspends or resumes a job."""
    return {"spec": {"runPolicy": {"suspend": on}}}


def scale(document: Body, role: str, replicas: int) -> Body | Problem:
    """The merge patch that sets the replicas of a role."""
    known = [name for name in ROLES if document["spec"].get(name)]
    name = role.lower()
    if name not in known:
        return unknown_role("spec", role, known, "role")
    problem = unusable_count(f"spec.{name}.replicas", replicas, least=1 if name == WORKER else 0)
    return problem or {"spec": {name: {"replicas": replicas}}}
