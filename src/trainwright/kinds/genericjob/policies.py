# SPDX-License-Identifier: Apache-2.0
"""GenericJob's policies in the one model: finish rules, restart policies, clean-up. Called by `translate`."""

from collections.abc import Mapping

import msgspec

from trainwright.kinds.genericjob.wire import FinishRule, GenericJobSpec, Rank, RestartPolicy
from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Restart, RestartScope
from trainwright.model.meta import PREFIX
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which

#: Not the replica's doing: made again under every policy, and never counted against the limit.
DISRUPTIONS = frozenset({CauseKind.DISRUPTED, CauseKind.NODE_LOST})
#: The annotation of a job whose replicas can only work together: one restart is a restart of all. Not the original's.
RESTART_SCOPE = f"{PREFIX}/restart-scope"
SCOPES = ("Job", "Replica")
FAILURES = frozenset({CauseKind.EXIT, CauseKind.EVICTED, CauseKind.REJECTED})


def number(rank: Rank) -> int:
    """A rank as given, `0` or `"0"`."""
    return int(rank)


def spelled(rule: FinishRule) -> str:
    """The rule as messages print it: compact JSON of what the user wrote."""
    return msgspec.json.encode(rule).decode()


def finish(rules: tuple[FinishRule, ...], result: Result) -> Rule:
    """Any rule; within a rule, all the replicas it names."""
    return AnyOf(
        tuple(
            AllOf(
                tuple(Atom(name, tuple(sorted({number(r) for r in ranks})), result) for name, ranks in rule.items()),
                spelled(rule),
            )
            for rule in rules
        )
    )


def success(spec: GenericJobSpec) -> Rule:
    """The user's rules; without any, every replica of every type."""
    if spec.success_rules:
        return finish(spec.success_rules, Result.SUCCEEDED)
    return AllOf(tuple(Atom(one.type, Which.EVERY, Result.SUCCEEDED) for one in spec.replica_specs if one.replicas))


def failure(spec: GenericJobSpec) -> Rule:
    """The user's rules; without any, one replica that has failed for good."""
    if spec.failure_rules:
        return finish(spec.failure_rules, Result.FAILED)
    return AnyOf(tuple(Atom(one.type, Which.SOME, Result.FAILED) for one in spec.replica_specs if one.replicas))


def scope(annotations: Mapping[str, str] | None) -> RestartScope:
    """What a restart takes along: the replica alone, unless the annotation says `Job`."""
    return RestartScope.JOB if (annotations or {}).get(RESTART_SCOPE) == "Job" else RestartScope.POD


def restart(policy: RestartPolicy, scope: RestartScope = RestartScope.POD) -> Restart:
    """What each policy answers; the limit is that of each replica, as the manual says.

    Where replicas restart together it is the limit of such restarts: it does not matter who failed.
    """
    causes = {
        "Never": DISRUPTIONS,
        "OnFailure": DISRUPTIONS | FAILURES,
        "Always": DISRUPTIONS | FAILURES | {CauseKind.COMPLETED},
    }[policy.policy]
    free = DISRUPTIONS
    if scope is not RestartScope.POD:
        # The peers of a pod that somebody removed wait for it in vain: they are restarted along with it, too.
        causes, free = causes | {CauseKind.DELETED}, free | {CauseKind.DELETED}
    return Restart(causes=causes, free=free, limit=policy.limit, per_replica=scope is RestartScope.POD, scope=scope)


def clean_up(spec: GenericJobSpec) -> CleanUp:
    """The same after every end."""
    level = CleanPods(spec.clean_up_policy)
    return CleanUp(level, level, level)
