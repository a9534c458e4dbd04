# SPDX-License-Identifier: Apache-2.0
"""GenericJob's policies in the internal model: finish rules, restart policies, pause and clean-up."""

import msgspec

from trainwright.kinds.genericjob.wire import FinishRule, GenericJobSpec, RestartPolicy
from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Lifecycle, Restart, RestartScope, Role
from trainwright.model.meta import PREFIX, ObjectMeta
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which

#: Causes outside the replica: the replica is restarted under every policy, and no limit counts the restart.
DISRUPTIONS = frozenset({CauseKind.DISRUPTED, CauseKind.NODE_LOST})
#: Our own annotation. `Job`: the replicas depend on each other, so a restart of one replica restarts all.
RESTART_SCOPE = f"{PREFIX}/restart-scope"
SCOPES = ("Job", "Replica")
FAILURES = frozenset({CauseKind.EXIT, CauseKind.EVICTED, CauseKind.REJECTED})


def success(spec: GenericJobSpec) -> Rule:
    """The user's rules; without rules, every replica of every type must succeed."""
    if spec.success_rules:
        return _any_of(spec.success_rules, Result.SUCCEEDED)
    return AllOf(tuple(Atom(one.type, Which.EVERY, Result.SUCCEEDED) for one in spec.replica_specs if one.replicas))


def failure(spec: GenericJobSpec) -> Rule:
    """The user's rules; without rules, one replica that fails and is not restarted is enough."""
    if spec.failure_rules:
        return _any_of(spec.failure_rules, Result.FAILED)
    return AnyOf(tuple(Atom(one.type, Which.SOME, Result.FAILED) for one in spec.replica_specs if one.replicas))


def _any_of(rules: tuple[FinishRule, ...], result: Result) -> Rule:
    """One of the rules must hold. A rule holds if all its replicas have `result`. Messages print the rule as JSON.

    Users write a rank as `0` or `"0"`.
    """
    return AnyOf(
        tuple(
            AllOf(
                tuple(Atom(name, tuple(sorted({int(rank) for rank in ranks})), result) for name, ranks in rule.items()),
                msgspec.json.encode(rule).decode(),
            )
            for rule in rules
        )
    )


def roles(spec: GenericJobSpec, meta: ObjectMeta) -> tuple[Role, ...]:
    """The replica types, in document order."""
    together = (meta.annotations or {}).get(RESTART_SCOPE) == "Job"
    scope, service = RestartScope.JOB if together else RestartScope.POD, spec.service is not None
    return tuple(
        Role(one.type, one.replicas, one.template, _restart(one.restart_policy, scope), service=service)
        for one in spec.replica_specs
    )


def _restart(policy: RestartPolicy, scope: RestartScope) -> Restart:
    """The causes after which a policy restarts, and its limit. As the manual says, the limit is for each replica.

    If replicas restart together, the limit is for the whole job: it does not matter which replica failed.
    """
    causes = {
        "Never": DISRUPTIONS,
        "OnFailure": DISRUPTIONS | FAILURES,
        "Always": DISRUPTIONS | FAILURES | {CauseKind.COMPLETED},
    }[policy.policy]
    free = DISRUPTIONS
    if scope is not RestartScope.POD:
        # If a user deletes a pod, its peers would wait for the new pod without end, so they restart too.
        causes, free = causes | {CauseKind.DELETED}, free | {CauseKind.DELETED}
    return Restart(causes=causes, free=free, limit=policy.limit, per_replica=scope is RestartScope.POD, scope=scope)


def lifecycle(spec: GenericJobSpec, _meta: ObjectMeta) -> Lifecycle:
    """Pause and clean-up; the clean-up is the same after success and failure."""
    level, mode = CleanPods(spec.clean_up_policy), spec.run_mode
    paused = mode is not None and mode.pause is not None and mode.pause.enabled
    return Lifecycle(suspended=paused, clean=CleanUp(level, level, level))
