# SPDX-License-Identifier: Apache-2.0
"""PaddleJob's policies in the internal model: success and failure rules, restarts, sizes, clean-up."""

from msgspec import UNSET

from trainwright.kinds.base import key_of
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
    intranet,
    is_elastic,
    role_specs,
)
from trainwright.kinds.scalars import MAX_REPLICAS
from trainwright.model.cause import CauseKind
from trainwright.model.job import Body, CleanPods, CleanUp, Deadline, Elastic, Lifecycle, Restart, RestartScope, Role
from trainwright.model.meta import ObjectMeta
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which

#: Exit codes with which Paddle asks for a restart: 101 elastic restart, 102 auto-parallel relaunch.
RESTART_CODES = ((101, 102),)
#: Causes outside the replica; their restarts do not count against the limit.
FREE = frozenset({CauseKind.DISRUPTED, CauseKind.DELETED, CauseKind.NODE_LOST})
#: The causes after which a pod is replaced.
REPLACED = FREE | {CauseKind.EXIT}
#: The default of `backoffLimit`.
DEFAULT_BACKOFF_LIMIT = 6
#: The clean-up of each policy that removes all pods after some ends.
CLEAN_UPS = {
    "": CleanUp(CleanPods.ALL, CleanPods.UNFINISHED, CleanPods.UNFINISHED),
    "OnCompletion": CleanUp(CleanPods.ALL, CleanPods.UNFINISHED, CleanPods.UNFINISHED),
    "Always": CleanUp(CleanPods.ALL, CleanPods.ALL, CleanPods.ALL),
    "OnFailure": CleanUp(CleanPods.UNFINISHED, CleanPods.ALL, CleanPods.ALL),
}
#: For any other policy: keep finished pods, but remove running pods, because they would hold their GPUs for ever.
_KEEP = CleanUp(CleanPods.UNFINISHED, CleanPods.UNFINISHED, CleanPods.UNFINISHED)


def success(spec: PaddleJobSpec) -> Rule:
    """Every pod of every role must succeed, including the servers, unless `successPolicy` is Workers."""
    by_workers = spec.run_policy is not None and spec.run_policy.success_policy == "Workers"
    names = [WORKER] if by_workers else _with_replicas(spec)
    return AllOf(tuple(Atom(name, Which.EVERY, Result.SUCCEEDED) for name in names))


def failure(spec: PaddleJobSpec) -> Rule:
    """One failed pod of any role is enough."""
    return AnyOf(tuple(Atom(name, Which.SOME, Result.FAILED) for name in _with_replicas(spec)))


def _with_replicas(spec: PaddleJobSpec) -> list[str]:
    return [name for name, one in role_specs(spec).items() if one.replicas]


def roles(spec: PaddleJobSpec, meta: ObjectMeta) -> tuple[Role, ...]:
    """The roles of the job."""
    return tuple(_role(name, one, spec, meta) for name, one in role_specs(spec).items())


def _role(name: str, role_spec: ResourceSpec, spec: PaddleJobSpec, meta: ObjectMeta) -> Role:
    """One role. If pods know each other by address, a new address of one pod restarts all pods."""
    by_name, elastic, key = intranet(spec) == SERVICE, is_elastic(spec), key_of(meta)
    template: Body = {} if role_spec.template is UNSET else role_spec.template
    scope = RestartScope.POD if by_name or elastic else RestartScope.JOB
    return Role(
        name,
        role_spec.replicas,
        template,
        Restart(REPLACED, codes=RESTART_CODES, free=FREE, scope=scope),
        elastic=_bounds(role_spec) if elastic and name == WORKER else None,
        resize=None if elastic else RestartScope.JOB,
        stage=ROLES.index(name),
        main_containers=_mains(template),
        service=by_name,
        gate="" if elastic else key.name,
        # While a job runs, Paddle before 2.3 reads the number of workers from this key in etcd.
        size_key=f"/paddle/{key.namespace}-{key.name}/np" if elastic and name == WORKER else "",
        ports=PORT_BLOCK,
        uses_host_ports=intranet(spec) == HOST,
    )


def _mains(template: Body) -> frozenset[str]:
    """The container that decides the result: `paddle`, if it is one of several. Empty: the phase of the pod decides."""
    containers = (template.get("spec") or {}).get("containers") or ()
    named = len(containers) > 1 and any(one.get("name") == CONTAINER for one in containers)
    return frozenset({CONTAINER}) if named else frozenset()


def _bounds(role_spec: ResourceSpec) -> Elastic:
    least = 1 if role_spec.requests is UNSET else max(role_spec.requests, 1)
    most = MAX_REPLICAS if role_spec.limits is UNSET else role_spec.limits
    return Elastic(least, max(most, least))


def _restarts_in_pods(spec: PaddleJobSpec) -> bool:
    """Whether kubelets may restart containers without limit: a template sets restartPolicy, or the job is elastic."""
    templates = [one.template for one in role_specs(spec).values() if one.template is not UNSET]
    return is_elastic(spec) or any((one.get("spec") or {}).get("restartPolicy") for one in templates)


def lifecycle(spec: PaddleJobSpec, _meta: ObjectMeta) -> Lifecycle:
    """The run policy and the clean-up."""
    policy = spec.run_policy or RunPolicy()
    limit, deadline, ttl = policy.backoff_limit, policy.active_deadline_seconds, policy.ttl_seconds_after_finished
    return Lifecycle(
        suspended=policy.suspend,
        clean=CLEAN_UPS.get(spec.clean_pod_policy, _KEEP),
        backoff_limit=DEFAULT_BACKOFF_LIMIT if limit is UNSET else limit,
        counts_in_place=limit is not UNSET or not _restarts_in_pods(spec),
        deadline=None if deadline is UNSET else Deadline(deadline),
        ttl=None if ttl is UNSET else ttl,
    )
