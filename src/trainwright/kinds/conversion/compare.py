# SPDX-License-Identifier: Apache-2.0
"""The differences between a job and its conversion, in the internal model: ends, restarts, life, scheduling.

`compare_pods` has the differences between the pods.
"""

from collections.abc import Iterator

from trainwright.kinds.conversion.difference import Difference
from trainwright.kinds.conversion.pods import containers
from trainwright.kinds.writing import alternatives, pod_group, restart_limit
from trainwright.model.cause import CauseKind
from trainwright.model.child import Observed
from trainwright.model.job import CleanPods, Job, Lifecycle, RestartScope, Role, Since
from trainwright.model.rule import Rule
from trainwright.model.site import Site
from trainwright.model.units import spell

#: Causes outside the program. A restart after one of them, where the source has none, loses nothing.
_OUTSIDE = frozenset(
    {CauseKind.EVICTED, CauseKind.DISRUPTED, CauseKind.NODE_LOST, CauseKind.REJECTED, CauseKind.DELETED}
)
_CAUSES = {
    CauseKind.COMPLETED: "a success",
    CauseKind.EXIT: "a failure of the program",
    CauseKind.EVICTED: "an eviction for its own resource use",
    CauseKind.DISRUPTED: "a preemption or drain",
    CauseKind.NODE_LOST: "the loss of a node",
    CauseKind.REJECTED: "a refusal by the node",
    CauseKind.DELETED: "the deletion of a pod",
}
#: A limit that no job reaches.
_ENDLESS = 100_000
_SCOPES = {
    RestartScope.POD: "only the failed replica",
    RestartScope.ROLE: "all replicas of the role",
    RestartScope.JOB: "the whole job",
}
_CLEAN = {CleanPods.NONE: "no pods", CleanPods.UNFINISHED: "unfinished pods", CleanPods.ALL: "all pods"}


def compare(source: Job, result: Job) -> Iterator[Difference]:
    """Every difference between the jobs, except their pods."""
    yield from _rule("success", "succeeds", source, source.success, result, result.success)
    yield from _rule("failure", "fails", source, source.failure, result, result.failure)
    by_name = {role.name.lower(): role for role in result.roles}
    for role in source.roles:
        other = by_name.pop(role.name.lower(), None)
        if other is None or other.replicas != role.replicas:
            found = "does not have it" if other is None else f"has {other.replicas}"
            message = f"the role has {role.replicas} replica{'s' * (role.replicas != 1)}; the result {found}"
            yield Difference("role", message, role.name)
        else:
            yield from _restart(source, role, result, other)
            yield from _role(role, other)
    yield from _lifecycle(source.lifecycle, result.lifecycle)
    yield from _limits(source, result)
    yield from _gang(source, result)
    yield from _extras(source, result)
    if source.unmanaged and not result.unmanaged:
        yield Difference("managed", "another controller manages the job; Trainwright runs the result")


def _rule(setting: str, verb: str, source: Job, rule: Rule, result: Job, other: Rule) -> Iterator[Difference]:
    before, after = alternatives(rule, source.sizes), alternatives(other, result.sizes)
    if before is None:
        yield Difference(setting, f"the rule by which the job {verb} is too long; the result uses its own default")
    elif before != after:
        yield Difference(setting, f"the job {verb} {_when(before)}; the result {verb} {_when(after)}")
    elif any(alternatives(rule, sizes) != alternatives(other, sizes) for sizes in _other_sizes(source)):
        message = f"the rule by which the result {verb} names replicas by rank, and fits only this number of replicas"
        yield Difference(setting, message, lost=False)


def _other_sizes(job: Job) -> Iterator[dict[str, int]]:
    """The sizes after one more replica of each role that has several; names are in lower case, as in other kinds."""
    sizes = {name.lower(): size for name, size in job.sizes.items()}
    yield from ({**sizes, name: size + 1} for name, size in sizes.items() if size > 1)


def _when(found: frozenset[frozenset[tuple[str, int]]] | None) -> str:
    if found is None:
        return "by another rule"
    if not found:
        return "never by a rule"
    listed = [" and ".join(f"{role} {rank}" for role, rank in sorted(one)) for one in sorted(found, key=sorted)]
    more = f", or one of {len(listed) - 3} other rules" if len(listed) > 3 else ""
    return f"by {', or '.join(listed[:3])}{more}"


# -- restarts --------------------------------------------------------------------------------------------------------


def _restart(source: Job, role: Role, result: Job, other: Role) -> Iterator[Difference]:
    causes, others = _causes(source, role), _causes(result, other)
    if fewer := causes - others:
        message = f"replicas are restarted after {_listed(fewer, role)}; the result does not restart them"
        yield Difference("restart", message, role.name)
    more = others - causes
    if more - _OUTSIDE:
        message = f"replicas are not restarted after {_listed(more - _OUTSIDE, other)}; the result restarts them"
        yield Difference("restart", message, role.name)
    elif more:
        message = f"the result also restarts replicas after {_listed(more, other)}"
        yield Difference("restart", message, role.name, lost=False)
    if CauseKind.EXIT not in causes & others:
        return
    codes = role.restart.codes
    if codes != other.restart.codes:
        now = "after every failure" if other.restart.codes is None else f"after {_codes(other.restart.codes)}"
        before = "after every failure" if codes is None else f"only after {_codes(codes)}"
        yield Difference("restart", f"replicas are restarted {before}; the result restarts them {now}", role.name)
    if _scope(source, role) is not _scope(result, other):
        message = f"a restart restarts {_SCOPES[role.restart.scope]}; in the result {_SCOPES[other.restart.scope]}"
        yield Difference("scope", message, role.name)
    if not role.restart.retries_other_containers and other.restart.retries_other_containers and _has_others(role):
        message = "only the main container may cause a restart; in the result every container may"
        yield Difference("restart", message, role.name)


def _causes(job: Job, role: Role) -> frozenset[CauseKind]:
    """The causes after which a replica is restarted. With a limit of 0, only causes that no limit counts."""
    answered = frozenset(cause for cause in _CAUSES if role.may_retry(cause))
    if not role.restart.answers_removal:
        # Every kind replaces a deleted pod; this does not count as a restart.
        answered -= {CauseKind.DELETED}
    return answered & role.uncounted if restart_limit(job, role) == 0 else answered


def _listed(causes: frozenset[CauseKind], role: Role) -> str:
    texts = _CAUSES | ({} if role.restart.codes is None else {CauseKind.EXIT: _codes(role.restart.codes)})
    found = [text for cause, text in texts.items() if cause in causes]
    return " or ".join(part for part in (", ".join(found[:-1]), found[-1]) if part)


def _codes(codes: tuple[tuple[int, int], ...]) -> str:
    texts = [
        f"{low}" if low == high else f"{low} and above" if high > 255 else f"{low} to {high}" for low, high in codes
    ]
    return f"exit code {', '.join(texts)}"


def _scope(job: Job, role: Role) -> RestartScope:
    """What a restart includes. In a job with one replica, or one role, several scopes are the same."""
    sizes = [one.replicas for one in job.roles if one.replicas]
    if sum(sizes) == 1:
        return RestartScope.POD
    scope = role.restart.scope
    return RestartScope.JOB if scope is RestartScope.ROLE and len(sizes) == 1 else scope


def _has_others(role: Role) -> bool:
    return len(list(containers(role.template))) > 1


def _limits(source: Job, result: Job) -> Iterator[Difference]:
    """The limits of restarts: of a replica, of a role, of the job."""
    if not any(CauseKind.EXIT in _causes(source, role) for role in source.roles):
        return
    if source.restart_rates and not source.limits_all_restarts and result.limits_all_restarts:
        message = "the restart budget of the annotation applies; in the result a limit of the kind takes precedence"
        yield Difference("rate", message)
    by_name = {role.name.lower(): role for role in result.roles}
    pairs = [
        (role, by_name[role.name.lower()]) for role in source.roles if role.replicas and role.name.lower() in by_name
    ]
    if sum(role.replicas for role in source.roles) == 1:
        # The limits of a replica, a role and a job are the same here.
        before, after = (
            min(_bound(restart_limit(job, pair[at])) for pair in pairs) for at, job in ((0, source), (1, result))
        )
        if before != after:
            yield Difference("limit", f"the replica may be restarted {_times(before)}; in the result {_times(after)}")
        return
    yield from _job_limit(source, result)
    for role, other in pairs:
        yield from _role_limit(source, role, other)


def _bound(limit: int | None) -> int:
    return _ENDLESS if limit is None else min(limit, _ENDLESS)


def _job_limit(source: Job, result: Job) -> Iterator[Difference]:
    allowed, other = source.lifecycle.restarts_allowed, result.lifecycle.restarts_allowed
    limits = {(role.restart.limit, role.restart.per_replica) for role in result.roles if role.replicas}
    if _bound(allowed) != _bound(other) and not (limits == {(allowed, False)} and len(result.roles) == 1):
        each = (allowed, True) in limits
        now = "allows as many for each replica" if each else f"allows {'any number' if other is None else other}"
        yield Difference("backoff", f"all replicas together may be restarted {_times(allowed)}; the result {now}")


def _role_limit(source: Job, role: Role, other: Role) -> Iterator[Difference]:
    before, after, name = _bound(role.restart.limit), _bound(other.restart.limit), role.name
    # Without a limit of its own, a role may have the limit of the job; `_job_limit` reports that limit.
    endless = before == _ENDLESS and (after == _ENDLESS or source.lifecycle.restarts_allowed is not None)
    if endless or CauseKind.EXIT not in _causes(source, role) or other.restart.limit == 0:
        return
    which = {True: "each replica", False: "the whole role"}
    now = which[other.restart.per_replica]
    if before != after or (role.restart.per_replica != other.restart.per_replica and role.replicas > 1):
        message = (
            f"{which[role.restart.per_replica]} may be restarted {_times(before)}; in the result {now} {_times(after)}"
        )
        yield Difference("limit", message, name)
    elif (
        role.restart.shared != other.restart.shared
        and len(source.roles) > 1
        and role.restart.scope is not RestartScope.POD
    ):
        message = "a restart counts for every role that it restarts; in the result only for the role that failed"
        yield Difference("limit", message, name)


def _times(number: int | None) -> str:
    return "any number of times" if number in (None, _ENDLESS) else f"{number} time{'s' * (number != 1)}"


# -- the role, the life of the job, the gang -------------------------------------------------------------------------


def _role(role: Role, other: Role) -> Iterator[Difference]:
    name = role.name
    if role.elastic is not None and role.elastic != other.elastic:
        bounds = f"from {role.elastic.least} to {role.elastic.most}"
        who = "the controller" if role.elastic.auto else "a user"
        message = f"{who} may change the number of replicas {bounds} while the job runs; the result has no such bounds"
        yield Difference("elastic", message, name)
    if role.size_key and not other.size_key:
        yield Difference("elastic", "replicas look up a new size in etcd; the result does not write it there", name)
    if role.resize is not None and other.resize is None:
        message = (
            f"a change of `replicas` restarts {_SCOPES[role.resize]}; in the result the other replicas keep running"
        )
        yield Difference("role", message, name, lost=False)
    if (
        role.main_containers != other.main_containers
        and len((role.template.get("spec") or {}).get("containers") or ()) > 1
    ):
        mains = ", ".join(sorted(role.main_containers)) or "every container"
        now = ", ".join(sorted(other.main_containers)) or "every container"
        message = f"the end of {mains} decides about the replica; in the result the end of {now}"
        yield Difference("template", message, name)
    if role.gate and not other.gate:
        message = "pods wait for the addresses of all pods, and restart if an address changes; the result does neither"
        yield Difference("network", message, name)
    if role.uses_host_ports and not other.uses_host_ports:
        yield Difference("network", "each replica gets free ports of its node; the result does not reserve any", name)
    if role.service and not other.service:
        yield Difference("service", "each replica has a service with its name; in the result it has none", name)
    if (role.awaits_running, role.stage) != (other.awaits_running, other.stage) and role.awaits_running:
        message = "the replicas start when those before them run; in the result all start at once"
        yield Difference("role", message, name, lost=False)
    if role.recreates_pods and not other.recreates_pods:
        message = "a pod whose image or configuration is missing is replaced from time to time; in the result it waits"
        yield Difference("role", message, name, lost=False)


def _lifecycle(life: Lifecycle, other: Lifecycle) -> Iterator[Difference]:
    if life.suspended != other.suspended:
        yield Difference("suspend", f"the job is {'' if life.suspended else 'not '}suspended; the result differs")
    if life.deadline != other.deadline and life.deadline is not None:
        since = "it was accepted" if life.deadline.since is Since.STARTED else "all replicas ran"
        yield Difference(
            "deadline", f"the job ends {spell(life.deadline.seconds)} after {since}; the result has no deadline"
        )
    if life.start_deadline != other.start_deadline and life.start_deadline is not None:
        yield Difference(
            "deadline", f"the job fails if it does not run within {spell(life.start_deadline)}; the result waits"
        )
    if life.ttl != other.ttl and life.ttl is not None:
        yield Difference(
            "ttl", f"the job is removed {spell(life.ttl)} after its end; the result stays until you delete it"
        )
    if life.ending is not None and other.ending is None:
        yield Difference("ending", f"{life.ending.by} ends the job; it has no effect on the result")
    ends = [
        ("success", life.clean.succeeded, other.clean.succeeded),
        ("failure", life.clean.failed, other.clean.failed),
    ]
    if life.deadline is not None and other.deadline is not None:
        ends.append(("its deadline", life.clean.ended, other.clean.ended))
    for end, before, after in ends:
        if before is not after:
            yield Difference("clean-up", f"after {end}, {_CLEAN[before]} are removed; in the result {_CLEAN[after]}")
    lost, other_lost = life.clean.lost or life.clean.failed, other.clean.lost or other.clean.failed
    if lost is not other_lost and life.clean.failed is other.clean.failed:
        message = f"after a failure by a lost node, {_CLEAN[lost]} are removed; in the result {_CLEAN[other_lost]}"
        yield Difference("clean-up", message, lost=False)


def _gang(source: Job, result: Job) -> Iterator[Difference]:
    """The gang that the job asks for. An operator's own choice of a gang scheduler is not part of a job."""
    if source.gang is None or not source.gang.asked:
        return
    before = [one.api for one in source.gang.choices()]
    after = [one.api for one in result.gang.choices()] if result.gang is not None and result.gang.asked else []
    if missing := [api for api in before if api not in after]:
        lacking = f"the result is none with {' or '.join(missing)}"
        message = f"the pods are a gang on clusters with {' or '.join(before)}; {lacking}"
        yield Difference("gang", message)
    for api in (api for api in before if api in after):
        group, other = pod_group(source, api), pod_group(result, api)
        changed = [f"{key} {group[key]}" for key in sorted(group) if other.get(key) != group[key]]
        if changed:
            yield Difference("gang", f"the pod group has {', '.join(changed)}; the group of the result differs")


def _extras(source: Job, result: Job) -> Iterator[Difference]:
    """Objects of the whole job, such as an autoscaler; gates and pod groups are compared as parts of the model."""
    before, after = ({one["kind"] for one in job.dialect.extras(job, Observed(), Site())} for job in (source, result))
    for kind in sorted(before - after - {"ConfigMap", "PodGroup"}):
        yield Difference("elastic", f"the job has a {kind}; the result has none")
