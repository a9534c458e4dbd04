# SPDX-License-Identifier: Apache-2.0
"""TFJob's policies in the one model, from its reference, sections 6.3 to 6.10. Only values."""

from msgspec import Struct

from trainwright.model.cause import Why
from trainwright.model.job import Clean, CleanUp, Deadline, Job, Lifecycle, Restart
from trainwright.model.rule import NEVER, Any, Atom, Result, Rule, Which
from trainwright.testing import factories

#: A pod that Kubernetes calls Failed, for whatever reason, or whose node is gone.
FAILED_POD = frozenset({Why.EXIT, Why.EVICTED, Why.DISRUPTED, Why.REJECTED, Why.NODE_LOST})
CHIEFS = ("Chief", "Master")


class TFJob(Struct, frozen=True):
    """What of a TFJob's spec is policy. Roles: type to (replicas, restartPolicy)."""

    roles: dict[str, tuple[int, str]]
    success_policy: str = ""
    dynamic_worker: bool = False
    backoff_limit: int | None = None
    clean_pod_policy: str = "None"
    active_deadline: int | None = None
    ttl: int | None = None
    suspend: bool = False


def success(job: TFJob) -> Rule:
    """The chief's replicas; without a chief worker 0, or all workers; without workers nothing."""
    for name in CHIEFS:
        if name in job.roles:
            return Atom(name, Which.EVERY, Result.SUCCEEDED)
    if "Worker" not in job.roles:
        return NEVER
    return Atom("Worker", Which.EVERY if job.success_policy == "AllWorkers" else (0,), Result.SUCCEEDED)


def failure(job: TFJob) -> Rule:
    """Any replica of any type; with dynamic workers those do not count."""
    named = [name for name in job.roles if not (job.dynamic_worker and name == "Worker")]
    return Any(tuple(Atom(name, Which.SOME, Result.FAILED) for name in named))


def restart(policy: str) -> Restart:
    """By the operator: what the kubelet restarts in place never shows as a failed pod."""
    return {
        "Never": Restart(),
        "OnFailure": Restart(FAILED_POD),
        "Always": Restart(FAILED_POD | {Why.COMPLETED}),
        "ExitCode": Restart(FAILED_POD, codes=((128, 255),)),
    }[policy]


def backoff_limit(limit: int | None) -> int | None:
    """The job fails *at* the limit, not beyond it: three restarts of three are too many. 0 and 1 mean the same."""
    return None if limit is None else max(limit - 1, 0)


def clean_up(policy: str) -> CleanUp:
    """The same after every end; anything but the three words acts like All."""
    level = {"None": Clean.NONE, "Running": Clean.UNFINISHED}.get(policy, Clean.ALL)
    return CleanUp(level, level, level)


def lifecycle(job: TFJob) -> Lifecycle:
    """The run policy."""
    return Lifecycle(
        suspended=job.suspend,
        clean=clean_up(job.clean_pod_policy),
        backoff_limit=backoff_limit(job.backoff_limit),
        counts_in_place=True,
        deadline=None if job.active_deadline is None else Deadline(job.active_deadline),
        ttl=job.ttl,
    )


def compiled(job: TFJob) -> Job:
    """The job in the one model."""
    roles = [
        factories.role(name, replicas, restart=restart(policy), service=True)
        for name, (replicas, policy) in job.roles.items()
    ]
    return factories.job(*roles, success=success(job), failure=failure(job), lifecycle=lifecycle(job))
