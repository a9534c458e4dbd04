# SPDX-License-Identifier: Apache-2.0
"""AITrainingJob's policies in the one model, from its reference, sections 8, 9, 11 and 12. Only values."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from trainwright.model.cause import Why
from trainwright.model.job import Clean, CleanUp, Deadline, Ending, Job, Lifecycle, Restart, Scope, Since
from trainwright.model.rule import NEVER, All, Any, Atom, Result, Rule, Which
from trainwright.testing import factories

#: A pod that Kubernetes calls Failed.
FAILED_POD = frozenset({Why.EXIT, Why.EVICTED, Why.DISRUPTED, Why.REJECTED})
NODE = frozenset({Why.NODE_LOST})
#: Annotations that end a job, in the order in which they are looked for.
ENDINGS = ("Preempted", "Failed", "NodeFail", "Timeout", "Succeed")


class Replicas(Struct, frozen=True):
    """What of a replica spec is policy, with its defaults."""

    replicas: int = 1
    complete: str = "All"
    fail: str = "Any"
    restart: str = "Never"
    scope: str = "All"
    limit: int | None = None


class AITrainingJob(Struct, frozen=True):
    """What of an AITrainingJob is policy, with its defaults."""

    roles: dict[str, Replicas]
    complete: str = "All"
    fail: str = "Any"
    exit_codes: str = ""
    clean_pod_policy: str = "All"
    time_limit: int | None = None
    annotations: Mapping[str, str] = {}


def of_role(name: str, policy: str, result: Result) -> Rule:
    """The end policy of a replica type; an unknown word never decides."""
    which: dict[str, Which | tuple[int, ...]] = {"Any": Which.SOME, "Rank0": (0,), "All": Which.EVERY}
    return Atom(name, which[policy], result) if policy in which else NEVER


def of_job(policy: str, rules: tuple[Rule, ...]) -> Rule:
    """The end policy of the job, over its replica types; here even Rank0 never decides."""
    make: dict[str, Callable[[tuple[Rule, ...]], Rule]] = {"Any": Any, "All": All}
    return make[policy](rules) if policy in make else NEVER


def success(job: AITrainingJob) -> Rule:
    """Complete policies on both levels."""
    rules = tuple(of_role(name, role.complete, Result.SUCCEEDED) for name, role in job.roles.items())
    return of_job(job.complete, rules)


def failure(job: AITrainingJob) -> Rule:
    """Fail policies on both levels."""
    return of_job(job.fail, tuple(of_role(name, role.fail, Result.FAILED) for name, role in job.roles.items()))


def codes(text: str) -> tuple[tuple[int, int], ...]:
    """`137,128`, blanks allowed."""
    return tuple((int(word), int(word)) for word in text.split(",") if word.strip())


def restart(role: Replicas, exit_codes: str) -> Restart:
    """The six policies; none of them restarts what has succeeded."""
    causes, listed = {
        "Never": (frozenset[Why](), None),
        "OnFailure": (FAILED_POD, None),
        "ExitCode": (frozenset({Why.EXIT}), codes(exit_codes)),
        "OnNodeFail": (NODE, None),
        "OnNodeFailWithExitCode": (NODE | {Why.EXIT}, codes(exit_codes)),
        "Always": (FAILED_POD | NODE, None),
    }[role.restart]
    scope = {"All": Scope.JOB, "Replica": Scope.ROLE, "Pod": Scope.POD}[role.scope]
    return Restart(causes, codes=listed, limit=role.limit, scope=scope, shared=True)


def ending(job: AITrainingJob) -> Ending | None:
    """The annotation that asks for an end; its value is the message."""
    asked = [key for key in ENDINGS if key in job.annotations]
    return Ending(asked[0], job.annotations[asked[0]], succeeded=asked[0] == "Succeed") if asked else None


def clean_up(job: AITrainingJob) -> CleanUp:
    """What timed out, was preempted or lost its node is removed in any case, also where pods are to be kept."""
    level = Clean(job.clean_pod_policy)
    asked = ending(job)
    kept = asked is not None and asked.word in ("Failed", "Succeed")
    return CleanUp(level, level, level if kept else Clean.ALL, lost=Clean.ALL)


def compiled(job: AITrainingJob) -> Job:
    """The job in the one model."""
    roles = [
        factories.role(name, role.replicas, restart=restart(role, job.exit_codes), service=True)
        for name, role in job.roles.items()
    ]
    lifecycle = Lifecycle(
        clean=clean_up(job),
        deadline=None if job.time_limit is None else Deadline(job.time_limit, Since.RUNNING),
        ending=ending(job),
    )
    return factories.job(*roles, success=success(job), failure=failure(job), lifecycle=lifecycle)
