# SPDX-License-Identifier: Apache-2.0
"""Write a job of any kind as an AITrainingJob."""

from collections.abc import Callable, Iterator
from itertools import product

from trainwright.kinds.aitrainingjob import policies
from trainwright.kinds.writing import Templates, Writer, alternatives, least_clean_up, restart_limit
from trainwright.model.cause import CauseKind
from trainwright.model.job import Body, CleanPods, Job, RestartScope, Role, Since
from trainwright.model.rule import Rule

_SCOPES = {RestartScope.JOB: "All", RestartScope.ROLE: "Replica", RestartScope.POD: "Pod"}
_OF_TYPE, _OF_JOB = ("All", "Any", "Rank0", "None"), ("All", "Any")
#: With more replica types, no policies are searched that say the same as the job's rules.
_MAX_TYPES = 4
#: Above this number, exit codes do not come from programs.
_MAX_EXIT_CODE = 255


def write(job: Job, templates: Templates) -> Iterator[Body]:
    """The AITrainingJob that is nearest to the job."""
    life = job.lifecycle
    completes = _end_policies(job, job.success, policies.success_rule)
    fails = _end_policies(job, job.failure, policies.failure_rule)
    spec: Body = {"cleanPodPolicy": "None" if least_clean_up(job) is CleanPods.NONE else "All"}
    spec |= {"completePolicy": completes[0], "failPolicy": fails[0]}
    if life.deadline is not None and life.deadline.since is Since.RUNNING:
        spec["timeLimit"] = int(life.deadline.seconds)
    if life.suspended:
        spec["suspend"] = True
    codes = sorted({code for role in job.roles for low, high in role.restart.codes or () for code in _range(low, high)})
    spec |= {"restartingExitCode": codes} if codes else {}
    spec["replicaSpecs"] = {
        role.name.lower(): _replica_spec(job, role, templates[role.name])
        | {"completePolicy": complete, "failPolicy": fail}
        for role, complete, fail in zip(job.roles, completes[1], fails[1], strict=True)
    }
    yield {"spec": spec}


def _range(low: int, high: int) -> range:
    return range(low, min(high, _MAX_EXIT_CODE) + 1)


def _end_policies(job: Job, rule: Rule, make: Callable[..., Rule]) -> tuple[str, tuple[str, ...]]:
    """The policy of the job and of each type that say the same as a rule; the defaults if there are none."""
    wanted, names = alternatives(rule, job.sizes), [role.name for role in job.roles]
    if len(names) <= _MAX_TYPES:
        for of_job, of_types in product(_OF_JOB, product(_OF_TYPE, repeat=len(names))):
            known = {name: one for name, one in zip(names, of_types, strict=True) if job.sizes[name]}
            if alternatives(make(of_job, known), job.sizes) == wanted:
                return of_job, of_types
    return "All", ("All",) * len(names)


def _replica_spec(job: Job, role: Role, template: Body) -> Body:
    restart, limit = role.restart, restart_limit(job, role)
    found = {"replicas": role.replicas, "restartPolicy": _restart_policy(role), "restartScope": _SCOPES[restart.scope]}
    found |= {"restartLimit": limit} if limit is not None else {}
    if role.elastic is not None:
        found |= {"minReplicas": role.elastic.least, "maxReplicas": role.elastic.most}
        found |= {"edlPolicy": "Auto"} if role.elastic.auto else {}
    return found | {"template": template}


def _restart_policy(role: Role) -> str:
    causes, by_code = role.restart.causes, role.restart.codes is not None
    node = CauseKind.NODE_LOST in causes
    if CauseKind.EXIT not in causes:
        return "OnNodeFail" if node else "Never"
    if by_code:
        return "OnNodeFailWithExitCode" if node else "ExitCode"
    return "Always" if node else "OnFailure"


WRITER = Writer(
    write,
    {
        "role": ("spec.replicaSpecs.{role}",),
        "template": ("spec.replicaSpecs.{role}.template",),
        "restart": ("spec.replicaSpecs.{role}.restartPolicy",),
        "limit": ("spec.replicaSpecs.{role}.restartLimit",),
        "scope": ("spec.replicaSpecs.{role}.restartScope",),
        "elastic": (
            "spec.replicaSpecs.{role}.edlPolicy",
            "spec.replicaSpecs.{role}.minReplicas",
            "spec.replicaSpecs.{role}",
        ),
        "success": ("spec.completePolicy", "spec.replicaSpecs"),
        "failure": ("spec.failPolicy", "spec.replicaSpecs"),
        "clean-up": ("spec.cleanPodPolicy",),
        "deadline": ("spec.timeLimit",),
        "suspend": ("spec.suspend",),
        "ending": ("metadata.annotations",),
        "rate": ("metadata.annotations",),
    },
)
