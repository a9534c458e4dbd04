# SPDX-License-Identifier: Apache-2.0
"""Write a job of any kind as a GenericJob."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from trainwright.kinds import gangs
from trainwright.kinds.genericjob import policies
from trainwright.kinds.genericjob.environment import escape
from trainwright.kinds.writing import (
    Alternative,
    Notation,
    Templates,
    Writer,
    alternatives,
    least_clean_up,
    pod_group,
    restart_limit,
    service_ports,
)
from trainwright.model.cause import CauseKind
from trainwright.model.job import Body, CleanPods, Job, Restart, RestartScope, Role
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which

#: The highest limit of a replica, for jobs that restart without limit.
UNLIMITED = 100_000


def write(job: Job, templates: Templates) -> Iterator[Body]:
    """The GenericJob that is nearest to the job."""
    spec: Body = {}
    if rules := _rules(job, job.success, _default(AllOf, Which.EVERY, Result.SUCCEEDED, job)):
        spec["successRules"] = rules
    if rules := _rules(job, job.failure, _default(AnyOf, Which.SOME, Result.FAILED, job)):
        spec["failureRules"] = rules
    if any(role.service for role in job.roles) or any("$(service." in text for text in _texts(templates)):
        spec["service"] = _service(job)
    if job.lifecycle.suspended:
        spec["runMode"] = {"pause": {"enabled": True}}
    clean = least_clean_up(job)
    spec |= {"cleanUpPolicy": str(clean)} if clean is not CleanPods.NONE else {}
    spec |= _scheduler(job)
    spec["replicaSpecs"] = [_replica_spec(job, role, templates[role.name]) for role in job.roles]
    restarting = [role for role in job.roles if role.restart.causes]
    together = restarting and all(role.restart.scope is not RestartScope.POD for role in restarting)
    yield {"spec": spec} | ({"metadata": {"annotations": {policies.RESTART_SCOPE: "Job"}}} if together else {})


def _default(combine: Any, which: Which, result: Result, job: Job) -> Rule:
    """The rule of a GenericJob without rules, which also holds after a change of the number of replicas."""
    rule: Rule = combine(tuple(Atom(role.name, which, result) for role in job.roles if role.replicas))
    return rule


def _rules(job: Job, rule: Rule, default: Rule) -> list[Body]:
    found = alternatives(rule, job.sizes)
    if found is None or found == alternatives(default, job.sizes):
        return []
    return [_finish_rule(one) for one in sorted(found, key=sorted)]


def _finish_rule(replicas: Alternative) -> Body:
    rule: dict[str, list[int]] = {}
    for role, rank in sorted(replicas):
        rule.setdefault(role, []).append(rank)
    return rule


def _texts(part: object) -> Iterator[str]:
    """Every text in a part of a manifest."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping):
        yield from chain.from_iterable(map(_texts, part.values()))
    elif isinstance(part, list):
        yield from chain.from_iterable(map(_texts, part))


def _service(job: Job) -> Body:
    """The ports of all roles: a GenericJob has one list for all services. Each name and number is used once."""
    named: dict[tuple[int, str], str] = {}
    for role, ports in service_ports(job):
        for port in ports:
            number, name = port["port"], port.get("name") or f"port-{port['port']}"
            key = number, port.get("protocol") or "TCP"
            if key not in named:
                named[key] = name if name not in named.values() else f"{role.name.lower()}-{number}"
    ports = [
        {"name": name, "port": number} | ({"protocol": protocol} if protocol != "TCP" else {})
        for (number, protocol), name in named.items()
    ]
    return {"ports": ports} if ports else {}


def _scheduler(job: Job) -> Body:
    """Queue and priority of the pod group, if the job asks for a gang that the T9k scheduler may schedule."""
    if job.gang is None or not job.gang.asked or gangs.T9K_API not in [one.api for one in job.gang.choices()]:
        return {}
    group = pod_group(job, gangs.T9K_API)
    settings = {key: group[key] for key in ("queue", "priority") if group.get(key)}
    return {"scheduler": {"t9kScheduler": settings}}


def _replica_spec(job: Job, role: Role, template: Body) -> Body:
    spec = {key: part for key, part in (template.get("spec") or {}).items() if key != "restartPolicy"}
    return {
        "type": role.name.lower(),
        "replicas": role.replicas,
        "restartPolicy": _restart_policy(role.restart, restart_limit(job, role)),
        "template": template | {"spec": spec},
    }


def _restart_policy(restart: Restart, limit: int | None) -> Body:
    """The nearest policy. Never also restarts after disruptions, and no limit counts those restarts.

    If only some exit codes cause a restart, and without limit, a program that always fails must not restart for ever.
    """
    failures = restart.causes & (policies.FAILURES | {CauseKind.COMPLETED})
    if not failures or limit == 0 or (restart.codes is not None and limit is None):
        return {"policy": "Never"}
    policy = "Always" if CauseKind.COMPLETED in failures else "OnFailure"
    return {"policy": policy, "limit": UNLIMITED if limit is None else min(limit, UNLIMITED)}


WRITER = Writer(
    write,
    {
        "role": ("spec.replicaSpecs[{index}]",),
        "template": ("spec.replicaSpecs[{index}].template",),
        "restart": ("spec.replicaSpecs[{index}].restartPolicy",),
        "limit": ("spec.replicaSpecs[{index}].restartPolicy.limit",),
        "scope": ('metadata.annotations["trainwright.dev/restart-scope"]',),
        "success": ("spec.successRules",),
        "failure": ("spec.failureRules",),
        "clean-up": ("spec.cleanUpPolicy",),
        "suspend": ("spec.runMode.pause.enabled",),
        "gang": ("spec.scheduler.t9kScheduler",),
        "service": ("spec.service",),
        "mode": ("spec.runMode",),
    },
    Notation(
        "$(rank)",
        lambda role: f"$(replicas[{role.lower()}])",
        lambda role, index: f"$(service.{role.lower()}[{index}].host)",
        escape,
    ),
)
