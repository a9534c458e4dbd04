# SPDX-License-Identifier: Apache-2.0
"""The words of a timeline: replicas, the scope and cause of a restart, and the use of budgets."""

from collections.abc import Iterable

from trainwright.cli.simulate.faults import ReplicaId
from trainwright.core.budget_report import BudgetOwner, BudgetState
from trainwright.model.job import BUDGETS, Job, RestartScope
from trainwright.model.ledger import Ledger
from trainwright.model.units import format_indexes, spell
from trainwright.model.verdict import FailureClass, Verdict

#: The scope of a restart inside a pod.
CONTAINER = "Container"
#: The cause of a restart after success.
COMPLETED = "Completed"


def clock(seconds: float) -> str:
    """A time of the job: `30s`, `1.5s`, `10m05s`."""
    return f"{seconds:g}s" if seconds < 60 else spell(seconds)


def names(who: Iterable[ReplicaId]) -> str:
    """`worker-1`, or `worker 0-3` for several."""
    ranks: dict[str, list[int]] = {}
    for role, index in who:
        ranks.setdefault(role, []).append(index)
    texts = [
        f"{role}-{indexes[0]}" if len(indexes) == 1 else f"{role} {format_indexes(indexes)}"
        for role, indexes in ranks.items()
    ]
    return " and ".join(part for part in (", ".join(texts[:-1]), texts[-1]) if part)


def are(who: Iterable[object]) -> str:
    """The verb for one or several replicas."""
    return "are" if len(list(who)) > 1 else "is"


def restart_scope(before: Ledger, after: Ledger, verdict: Verdict | None) -> str:
    """What is restarted together, as the verdict says or as the epochs of the roles show."""
    if verdict is not None and verdict.reason:
        return verdict.reason
    epochs = {entry.name: entry.epoch for entry in before.roles}
    moved = [entry.name for entry in after.roles if entry.epoch > epochs.get(entry.name, entry.epoch)]
    if not moved:
        return RestartScope.POD
    return RestartScope.ROLE if len(moved) < len(after.roles) else RestartScope.JOB


def restart_cause(before: Ledger, after: Ledger, verdict: Verdict | None) -> str:
    """The class of the failure; `Resized` or `Completed` if nothing failed."""
    if verdict is not None:
        return str(verdict.failure_class)
    sizes = [role.size for role in before.roles] != [role.size for role in after.roles]
    return str(FailureClass.RESIZED) if sizes or _counts(before) == _counts(after) else COMPLETED


def _counts(ledger: Ledger) -> int:
    return sum(sum(entry.restarts.values()) for entry in ledger.roles)


def extent(scope: str, raised: dict[ReplicaId, None]) -> str:
    """What is restarted, with the verb."""
    whole = {RestartScope.JOB.value: "the whole job", RestartScope.ROLE.value: "the whole role"}.get(scope)
    return f"{whole} ({names(raised)}) is" if whole else f"{names(raised)} {are(raised)}"


def spent_text(job: Job, used: tuple[BudgetState, ...]) -> str:
    """What a restart has used of the budgets."""
    if used:
        return ": " + budgets_text(used)
    limits = [role.restart.limit for role in job.roles] + [job.lifecycle.backoff_limit]
    limited = bool(job.restart_rates) or any(limit is not None for limit in limits)
    return "; it uses no budget" if limited else "; restarts have no limit"


def budgets_text(budgets: Iterable[BudgetState]) -> str:
    """All budgets in one text."""
    return ", ".join(budget_lines(budgets))


def budget_lines(budgets: Iterable[BudgetState]) -> list[str]:
    """`2 of 3 restarts of worker are used`. Replicas of a role with the same use share a text."""
    groups: dict[tuple[BudgetOwner, str, int, int, float, float], list[int]] = {}
    for one in budgets:
        role, _, index = one.name.rpartition("-") if one.owner is BudgetOwner.REPLICA else (one.name, "", "0")
        groups.setdefault((one.owner, role, one.used, one.limit, one.window, one.refill), []).append(int(index))
    lines = []
    for (owner, name, used, limit, window, refill), indexes in groups.items():
        whose = {
            BudgetOwner.JOB: "the job",
            BudgetOwner.RATE: BUDGETS.get(name, name),
            BudgetOwner.REPLICA: "each of " * (len(indexes) > 1) + names((name, index) for index in indexes),
        }.get(owner, name)
        rate = f" per {spell(window)}" if window else ""
        verb, plural = ("is", "") if limit == 1 else ("are", "s")
        later = f" (the next one refills after {spell(refill)} of productive time)" if refill else ""
        lines.append(f"{used} of {limit} restart{plural}{rate} of {whose} {verb} used{later}")
    return lines
