# SPDX-License-Identifier: Apache-2.0
"""PaddleJob's policies in the one model: success and failure, restarts, sizes, clean-up. For `translate`."""

from msgspec import UNSET

from trainwright.kinds.paddlejob.environment import PORT_BLOCK
from trainwright.kinds.paddlejob.wire import (
    CONTAINER,
    HOST,
    ROLES,
    SERVICE,
    WORKER,
    PaddleJobSpec,
    ResourceSpec,
    RunPolicy,
    elastic,
    intranet,
    roles,
)
from trainwright.kinds.scalars import MOST_REPLICAS
from trainwright.model.cause import CauseKind
from trainwright.model.job import Body, CleanPods, CleanUp, Deadline, Elastic, Lifecycle, Restart, RestartScope, Role
from trainwright.model.meta import Key
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which

#: Paddle's own exit codes: 101 elastic restart, 102 auto-parallel relaunch.
RESTART_CODES = ((101, 102),)
#: Nobody's fault, and so without limit.
FREE = frozenset({CauseKind.DISRUPTED, CauseKind.DELETED, CauseKind.NODE_LOST})
#: Whatever replaces a pod gives it another address.
REPLACED = FREE | {CauseKind.EXIT}
#: How often pods that ask for it by their exit code are made again, where nobody says.
RESTARTS = 6
_CLEAN = {
    "": CleanUp(CleanPods.ALL, CleanPods.UNFINISHED, CleanPods.UNFINISHED),
    "OnCompletion": CleanUp(CleanPods.ALL, CleanPods.UNFINISHED, CleanPods.UNFINISHED),
    "Always": CleanUp(CleanPods.ALL, CleanPods.ALL, CleanPods.ALL),
    "OnFailure": CleanUp(CleanPods.UNFINISHED, CleanPods.ALL, CleanPods.ALL),
}
#: Any other word keeps what has ended. What still runs goes after every end: it would hold its GPUs for ever.
_KEEP = CleanUp(CleanPods.UNFINISHED, CleanPods.UNFINISHED, CleanPods.UNFINISHED)


def success(spec: PaddleJobSpec) -> Rule:
    """Every pod of every role, the servers included, unless only the workers are asked for."""
    by_workers = spec.run_policy is not None and spec.run_policy.success_policy == "Workers"
    names = [WORKER] if by_workers else _some(spec)
    return AllOf(tuple(Atom(name, Which.EVERY, Result.SUCCEEDED) for name in names))


def failure(spec: PaddleJobSpec) -> Rule:
    """Any pod of any role."""
    return AnyOf(tuple(Atom(name, Which.SOME, Result.FAILED) for name in _some(spec)))


def _some(spec: PaddleJobSpec) -> list[str]:
    return [name for name, one in roles(spec).items() if one.replicas]


def role(name: str, one: ResourceSpec, spec: PaddleJobSpec, job: Key) -> Role:
    """One role of the job of that name. Where peers know addresses, one that changes takes them all along."""
    by_name, alone = intranet(spec) == SERVICE, elastic(spec)
    template: Body = {} if one.template is UNSET else one.template
    scope = RestartScope.POD if by_name or alone else RestartScope.JOB
    return Role(
        name,
        one.replicas,
        template,
        Restart(REPLACED, codes=RESTART_CODES, free=FREE, scope=scope),
        elastic=_bounds(one) if alone and name == WORKER else None,
        resize=None if alone else RestartScope.JOB,
        stage=ROLES.index(name),
        main_containers=_mains(template),
        service=by_name,
        gate="" if alone else job.name,
        # Where Paddle before 2.3 looks for the number of its workers while it runs.
        size_key=f"/paddle/{job.namespace}-{job.name}/np" if alone and name == WORKER else "",
        ports=PORT_BLOCK,
        uses_host_ports=intranet(spec) == HOST,
    )


def _mains(template: Body) -> frozenset[str]:
    """Beside others, a container that is called `paddle` decides; else the pod's phase does, as in the original."""
    containers = (template.get("spec") or {}).get("containers") or ()
    named = len(containers) > 1 and any(one.get("name") == CONTAINER for one in containers)
    return frozenset({CONTAINER}) if named else frozenset()


def _bounds(one: ResourceSpec) -> Elastic:
    least = 1 if one.requests is UNSET else max(one.requests, 1)
    most = MOST_REPLICAS if one.limits is UNSET else one.limits
    return Elastic(least, max(most, least))


def _endless(spec: PaddleJobSpec) -> bool:
    """Whether the user wants kubelets to restart containers again and again: a template says so, or it is elastic."""
    templates = [one.template for one in roles(spec).values() if one.template is not UNSET]
    return elastic(spec) or any((one.get("spec") or {}).get("restartPolicy") for one in templates)


def lifecycle(spec: PaddleJobSpec) -> Lifecycle:
    """The run policy, and what is removed at the end."""
    policy = spec.run_policy or RunPolicy()
    limit, deadline, ttl = policy.backoff_limit, policy.active_deadline_seconds, policy.ttl_seconds_after_finished
    return Lifecycle(
        suspended=policy.suspend,
        clean=_CLEAN.get(spec.clean_pod_policy, _KEEP),
        backoff_limit=RESTARTS if limit is UNSET else limit,
        counts_in_place=limit is not UNSET or not _endless(spec),
        deadline=None if deadline is UNSET else Deadline(deadline),
        ttl=None if ttl is UNSET else ttl,
    )
