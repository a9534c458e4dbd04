# SPDX-License-Identifier: Apache-2.0
"""PaddleJob's policies in the one model, from its reference, sections 6, 7, 10 and 17. Only values."""

from msgspec import Struct

from trainwright.model.cause import Why
from trainwright.model.job import Clean, CleanUp, Dialect, Job, Lifecycle, Restart, Scope
from trainwright.model.rule import All, Any, Atom, Result, Rule, Which
from trainwright.testing import factories

#: Paddle's own exit codes: 101 elastic restart, 102 auto-parallel relaunch.
RESTART_CODES = ((101, 102),)
#: Whatever replaces a pod gives it another address.
REPLACED = frozenset({Why.EXIT, Why.DISRUPTED, Why.DELETED, Why.NODE_LOST})
#: In this order they are made.
STAGES = {"ps": 0, "worker": 1, "heter": 2}


class PaddleJob(Struct, frozen=True):
    """What of a PaddleJob's spec is policy. Roles: name to replicas."""

    roles: dict[str, int]
    intranet: str = "PodIP"
    clean_pod_policy: str = ""
    #: An opt-in of ours (`trainwright.dev/success: workers`): servers rarely end by themselves.
    success_by_workers: bool = False


def success(job: PaddleJob) -> Rule:
    """Every pod of every role, the servers included, unless only the workers are asked for."""
    names = ["worker"] if job.success_by_workers else [name for name, replicas in job.roles.items() if replicas]
    return All(tuple(Atom(name, Which.EVERY, Result.SUCCEEDED) for name in names))


def failure(job: PaddleJob) -> Rule:
    """Any pod of any role."""
    return Any(tuple(Atom(name, Which.SOME, Result.FAILED) for name, replicas in job.roles.items() if replicas))


def restart(intranet: str) -> Restart:
    """Never for an ordinary failure. Where peers know each other by IP, a replaced pod takes all pods along."""
    scope = Scope.POD if intranet == "Service" else Scope.JOB
    return Restart(REPLACED, codes=RESTART_CODES, scope=scope)


def clean_up(policy: str) -> CleanUp:
    """Unset means on completion. A failed job's running pods go unless the user wrote Never: they would hold GPUs."""
    return {
        "": CleanUp(Clean.ALL, Clean.UNFINISHED),
        "OnCompletion": CleanUp(Clean.ALL, Clean.UNFINISHED),
        "Always": CleanUp(Clean.ALL, Clean.ALL),
        "OnFailure": CleanUp(Clean.NONE, Clean.ALL),
    }.get(policy, CleanUp(Clean.NONE, Clean.NONE))


def compiled(job: PaddleJob, dialect: Dialect | None = None) -> Job:
    """The job in the one model. Only by name can a server run before its peers exist: the IPs' map waits for all."""
    roles = [
        factories.role(
            name,
            replicas,
            restart=restart(job.intranet),
            stage=STAGES[name],
            awaits_running=job.intranet == "Service",
            service=True,
        )
        for name, replicas in job.roles.items()
    ]
    lifecycle = Lifecycle(clean=clean_up(job.clean_pod_policy))
    return factories.job(
        *roles,
        success=success(job),
        failure=failure(job),
        lifecycle=lifecycle,
        dialect=dialect or factories.PlainDialect(),
    )
