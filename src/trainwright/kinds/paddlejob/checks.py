# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with the template of a role, beyond what holds for every pod. Called by `checks`.

A template may be of any shape still; what its fields must be has been said.

Everything that is wrong with a PaddleJob beyond its shape, all at once. Called by `base.load` and the webhook.

The original checked nothing, and manifests with words that mean nothing exist: those run as they did there, with a
warning. Refused is what can never work.

What `checks` demands of `spec`, as CEL, so that an API server refuses it too where our webhook is not installed.

`crd.schema` writes the rules into the CRD; a test demands the verdict of `checks`. Pod templates are open, so what
is wrong inside of them is not seen here.

Edits that people ask for by name, as merge patches: `suspend`, `resume`, `scale`. Called by the command line.
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
    elastic,
    intranet,
    main_of,
    roles,
)
from trainwright.kinds.scalars import LONGEST_NAME, MOST_REPLICAS, check_name, check_replica_names, check_total, item
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest, shown

#: Written on each pod, after whatever the user says.
WRITTEN = (
    "POD_IP",
    "PADDLE_TRAINER_ID",
    "TRAINING_ROLE",
    "PADDLE_TRAINING_ROLE",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_ELASTIC_JOB_ID",
    "PADDLE_ELASTIC_NP",
)
#: In the ConfigMap, which a pod's own variables go before.
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


def template(body: Body, path: str, *, hosted: bool) -> Iterator[Problem]:
    """Everything of this sort in one template."""
    found = body.get("spec")
    spec = found if isinstance(found, dict) else {}
    listed = spec.get("containers")
    containers = [one if isinstance(one, dict) else {} for one in listed] if isinstance(listed, list) else []
    yield from _containers(containers, f"{path}.spec.containers")
    yield from _restart_policy(spec.get("restartPolicy"), f"{path}.spec.restartPolicy")
    if spec.get("restartPolicy") == "Always":
        message = "Always starts containers again also after success, so the job never succeeds by itself"
        yield Problem(f"{path}.spec.restartPolicy", message, "OnFailure", warning=True)
    if spec.get("hostNetwork") and not hosted:
        message = "pods of one node share their ports then; `intranet: Host` gives each its own"
        yield Problem(f"{path}.spec.hostNetwork", message, warning=True)


def _restart_policy(given: Any, path: str) -> Iterator[Problem]:
    """The pods get the word as it is, and an API server takes these alone."""
    known = ("Always", "Never", "OnFailure")
    if given not in (None, "", *known):
        near = nearest(given, known) if isinstance(given, str) else ""
        yield Problem(path, f"expected one of {', '.join(known)}, found {shown(given)}", near)


def _containers(containers: list[Body], path: str) -> Iterator[Problem]:
    names = [str(one.get("name")) for one in containers]
    if len(containers) > 1 and CONTAINER not in names:
        message = f"no container is called {CONTAINER!r}, so the first of them, {names[0]!r}, is told of its peers"
        yield Problem(path, message, CONTAINER if nearest(CONTAINER, names) else "", warning=True)
    for place, one in enumerate(containers):
        if not one.get("image"):
            yield Problem(f"{item(path, place)}.image", "missing; expected the name of an image")
    if containers:
        main = main_of(containers)
        yield from _environment(containers[main].get("env"), f"{item(path, main)}.env")


def _environment(env: Any, path: str) -> Iterator[Problem]:
    for place, entry in enumerate(env if isinstance(env, list) else ()):
        name = entry.get("name") if isinstance(entry, dict) else None
        if name in WRITTEN:
            message = f"{name} is written by the controller, whose value comes after this one and wins"
            yield Problem(item(path, place), message, warning=True)
        elif name in SHARED:
            message = f"{name} is in the job's ConfigMap, before which this one goes: peers are told something else"
            yield Problem(item(path, place), message, warning=True)


#: Bytes of one variable of a process.
_LONGEST_VARIABLE = 131_000
#: By field: what may not change, since pods that run were told of it.
_FIXED = ("intranet", "withGloo")


def check(job: PaddleJob) -> tuple[Problem, ...]:
    """All problems, in document order."""
    spec = job.spec
    names = check_name(job.metadata.name, hosts="services" if intranet(spec) == SERVICE else "hosts")
    sizes = (*_sizes(spec), *_lists(job))
    return (*names, *_words(spec), *sizes, *_roles(job), *_elastic(spec), *_scheduling(spec))


def check_edit(stored: PaddleJob, edited: PaddleJob) -> tuple[Problem, ...]:
    """What may not be changed once the job exists; the CRD refuses the same."""
    before, after = stored.spec, edited.spec
    problems = [
        Problem(f"spec.{name}", "roles cannot be added or removed after the job was created")
        for name in ROLES
        if (name in roles(before)) != (name in roles(after))
    ]
    for name, old, new in zip(_FIXED, _fixed(before), _fixed(after), strict=True):
        if old != new:
            problems.append(Problem(f"spec.{name}", "cannot be changed after the job was created"))
    if (before.elastic is UNSET) != (after.elastic is UNSET):
        problems.append(Problem("spec.elastic", "cannot be added or removed after the job was created"))
    return tuple(problems)


def _fixed(spec: PaddleJobSpec) -> tuple[Any, ...]:
    return spec.intranet, spec.with_gloo


def _words(spec: PaddleJobSpec) -> Iterator[Problem]:
    """Words that mean nothing run as they do in the original, whatever was meant."""
    word = spec.clean_pod_policy
    if word not in ("", *CLEAN):
        message = f"{word!r} is not known and means the same as Never; expected {', '.join(CLEAN)}"
        yield Problem("spec.cleanPodPolicy", message, nearest(word, CLEAN), warning=True)
    word, means = spec.intranet, intranet(spec)
    if word not in ("", *INTRANETS):
        known = word.lower() in (means.lower(), "hostnetwork")
        text = f"is taken for {means}" if known else f"is not known and means the same as {means}"
        message = f"{word!r} {text}; expected {', '.join(INTRANETS)}"
        yield Problem("spec.intranet", message, means if known else nearest(word, INTRANETS), warning=True)
    if spec.with_gloo is not UNSET and spec.with_gloo and (spec.ps is None or not spec.ps.replicas):
        yield Problem("spec.withGloo", "without a parameter server there is nobody to meet at: not used", warning=True)


def _sizes(spec: PaddleJobSpec) -> Iterator[Problem]:
    if spec.worker is None:
        yield Problem("spec.worker", "missing; a job needs at least one worker")
    elif not spec.worker.replicas:
        yield Problem("spec.worker.replicas", "a job needs at least one worker; found 0")
    total = sum(one.replicas for one in roles(spec).values())
    yield from check_total(total, "spec")


def _lists(job: PaddleJob) -> Iterator[Problem]:
    """Endpoints are handed over as one variable, and Linux takes only so much of one."""
    by_name = f"{job.metadata.name}-worker-9999.{job.metadata.namespace or 'default'}:36000,"
    each = len(by_name) if intranet(job.spec) == SERVICE else len("255.255.255.255:36000,")
    for name, one in roles(job.spec).items() if not elastic(job.spec) else ():
        if each * one.replicas > _LONGEST_VARIABLE:
            most = _LONGEST_VARIABLE // each
            message = f"the list of {one.replicas} endpoints may be longer than a program can be handed"
            yield Problem(f"spec.{name}.replicas", f"{message}: {most} are safe", warning=True)


def _roles(job: PaddleJob) -> Iterator[Problem]:
    for name, one in roles(job.spec).items():
        path = f"spec.{name}"
        if len(job.metadata.name) <= LONGEST_NAME:
            yield from check_replica_names(job.metadata.name, name, one.replicas, path)
        yield from _bounds(one, path)
        if one.template is UNSET:
            yield Problem(f"{path}.template", "missing; expected the pod of each replica")
        else:
            yield from template(one.template, f"{path}.template", hosted=intranet(job.spec) == HOST)


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
        message = "not used: with parameter servers everybody must know everybody; elastic jobs have workers alone"
        yield Problem("spec.elastic", message, warning=True)
    elif spec.elastic is not UNSET and not spec.elastic:
        yield Problem("spec.elastic", "0 means elastic as any number does; leave it out if that is meant", warning=True)
    for name, one in roles(spec).items():
        heeded = spec.elastic is not UNSET and name == WORKER and spec.ps is None
        for field, value in (("requests", one.requests), ("limits", one.limits)):
            if value is not UNSET and not heeded:
                message = "only the workers of an elastic job have bounds: not used"
                yield Problem(f"spec.{name}.{field}", message, warning=True)


def _scheduling(spec: PaddleJobSpec) -> Iterator[Problem]:
    policy, total = spec.scheduling_policy, sum(one.replicas for one in roles(spec).values())
    complete = spec.worker is not None and spec.worker.replicas  # else that is what is wrong
    if complete and policy is not None and policy.min_available is not UNSET and policy.min_available > total:
        message = f"{policy.min_available} is more than the job's {total} replica{'s' * (total != 1)}"
        yield Problem("spec.schedulingPolicy.minAvailable", f"{message}: the group is never admitted", warning=True)
    by_workers = spec.run_policy is not None and spec.run_policy.success_policy == "Workers"
    if by_workers and PS not in roles(spec) and len(roles(spec)) == 1:
        yield Problem("spec.runPolicy.successPolicy", "the job has workers alone: the same as All", warning=True)


def _given(field: str, otherwise: str) -> tuple[str, str]:
    """A field before and after an edit, or nothing: CEL cannot step over what is missing."""
    return tuple(f"(has({one}.{field}) ? {one}.{field} : {otherwise})" for one in ("self", "oldSelf"))  # type: ignore[return-value]


_TOTAL = " + ".join(f"(has(self.{name}) ? self.{name}.replicas : 0)" for name in ROLES)
_ROLES = " && ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in ROLES)

#: (rule, message), in the order in which a server reports them.
RULES: tuple[tuple[str, str], ...] = (
    ("has(self.worker) && self.worker.replicas >= 1", "spec.worker must have at least one replica"),
    (f"{_TOTAL} <= {MOST_REPLICAS}", f"a job may have {MOST_REPLICAS} replicas in all"),
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
    (" == ".join(_given("intranet", "''")), "spec.intranet is immutable"),
    (" == ".join(_given("withGloo", "-1")), "spec.withGloo is immutable"),
    ("has(self.elastic) == has(oldSelf.elastic)", "spec.elastic cannot be added or removed after the job was created"),
)


def suspend(_document: Body, on: bool) -> Body:
    """Suspend the job, or let it go on."""
    return {"spec": {"runPolicy": {"suspend": on}}}


def scale(document: Body, role: str, replicas: int) -> Body | Problem:
    """Give a role that many replicas."""
    known = [name for name in ROLES if document["spec"].get(name)]
    name = role.lower()
    if name not in known:
        return Problem("spec", f"there is no role {role!r}; the job has {', '.join(known)}", nearest(role, known))
    least = 1 if name == WORKER else 0
    if not least <= replicas <= MOST_REPLICAS:
        message = f"expected a whole number from {least} to {MOST_REPLICAS}, found the number {replicas}"
        return Problem(f"spec.{name}.replicas", message)
    return {"spec": {name: {"replicas": replicas}}}
