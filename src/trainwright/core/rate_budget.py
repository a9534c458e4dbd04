# SPDX-License-Identifier: Apache-2.0
"""Restart budgets that refill: N restarts per time window, by annotations that every kind understands.

There is one budget for failures of the program and one for causes outside of it (node, preemption, eviction).
Productive time refills a budget: N restarts per window. So a job that runs well for a whole window has its full budget
again, and a job that fails soon after each start uses it up. A limit of the kind itself takes precedence: a restart
that such a limit counts uses no budget here.

The ledger stores thousandths of a restart and the productive milliseconds of the history, so all values are integers.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.core import budget, history
from trainwright.core.budget import EndedReplica, RestartCascade
from trainwright.core.observe import Snapshot
from trainwright.model.cause import CauseKind
from trainwright.model.job import BUDGETS, OUTSIDE_BUDGET, PROGRAM_BUDGET, Job, RestartRate
from trainwright.model.ledger import Ledger, SpentBudget
from trainwright.model.plan import RoleState
from trainwright.model.units import Time

#: Causes that lie outside the program.
OUTSIDE_CAUSES = frozenset(
    {
        CauseKind.NODE_LOST,
        CauseKind.DEVICE,
        CauseKind.DISRUPTED,
        CauseKind.EVICTED,
        CauseKind.DELETED,
        CauseKind.REJECTED,
    }
)
_UNIT = 1000


def within_rates(
    view: Snapshot, retries: tuple[EndedReplica, ...]
) -> tuple[tuple[EndedReplica, ...], EndedReplica | None]:
    """Return the restarts that the budgets allow, and the first one that they do not."""
    if not view.job.restart_rates or not retries:
        return retries, None
    left = {name: _left(view, name) for name in view.job.restart_rates}
    along = RestartCascade()
    for place, one in enumerate(retries):
        name = budget_of(view.job, one) if one.role not in along else ""
        if name:
            if left[name] < _UNIT:
                return retries[:place], one
            left[name] -= _UNIT
        along.add(one)
    return retries, None


def budget_of(job: Job, one: EndedReplica) -> str:
    """Return the name of the budget that a restart spends; empty: none. A restart after success spends none."""
    if one.cause.why is CauseKind.COMPLETED:
        return ""
    limited = one.role.restart.limit is not None or job.lifecycle.backoff_limit is not None
    name = OUTSIDE_BUDGET if OUTSIDE_CAUSES.intersection(one.cause.kinds) else PROGRAM_BUDGET
    return "" if name not in job.restart_rates or (limited and not one.is_free) else name


def charge(view: Snapshot, ledger: Ledger, retries: Iterable[EndedReplica]) -> Ledger:
    """Return the ledger with these restarts charged to their budgets."""
    if not view.job.restart_rates:
        return ledger
    along, spent = RestartCascade(), dict(ledger.budgets)
    productive = _productive(view)
    for one in retries:
        name = budget_of(view.job, one) if one.role not in along else ""
        if name:
            used = _used(spent.get(name, SpentBudget()), view.job.restart_rates[name], productive)
            spent[name] = replace(spent.get(name, SpentBudget()), spent=used + _UNIT, productive=productive)
        along.add(one)
    return replace(ledger, budgets=spent)


def charge_in_place(view: Snapshot) -> Snapshot:
    """Charge the restarts that kubelets made inside the current pods since the last pass.

    The first pass with the budget charges nothing: the pods of a running job may have made restarts before the job got
    its annotation, or while another version of the operator ran.
    """
    rate = view.job.restart_rates.get(PROGRAM_BUDGET)
    if rate is None or view.job.limits_all_restarts:
        return view
    made = _in_place(view.roles)
    known = view.ledger.budgets.get(PROGRAM_BUDGET)
    if known is not None and made == known.in_place:
        return view
    productive = _productive(view)
    known = known or SpentBudget(0, productive, made)
    used = _used(known, rate, productive) + max(made - known.in_place, 0) * _UNIT
    budgets = {**view.ledger.budgets, PROGRAM_BUDGET: SpentBudget(used, productive, made)}
    return view.with_ledger(replace(view.ledger, budgets=budgets))


def is_overspent(view: Snapshot) -> bool:
    """Return whether new restarts by kubelets, which the operator cannot prevent, have exceeded the budget.

    Without a new restart, a job that runs goes on, also if the user has lowered its budget.
    """
    known, before = view.ledger.budgets.get(PROGRAM_BUDGET), view.stored.budgets.get(PROGRAM_BUDGET)
    if PROGRAM_BUDGET not in view.job.restart_rates or known is None or before is None:
        return False
    return known.in_place > before.in_place and _left(view, PROGRAM_BUDGET) < 0


def used_up(job: Job, name: str) -> str:
    """Return that this budget is used up, as a sentence."""
    what = "outside the program" if name == OUTSIDE_BUDGET else "of the program"
    return f"the restart budget for causes {what}, {as_written(job, name)}, is used up"


def as_written(job: Job, name: str) -> str:
    """Return the annotation of this budget, as it is in the manifest."""
    return f"{BUDGETS[name]}: {job.restart_rates[name]}"


def restarts_spent(job: Job, ledger: Ledger, name: str, now: Time) -> tuple[int, float]:
    """Return how many restarts of a budget are not available now, and the productive seconds until the next is."""
    rate, known = job.restart_rates[name], ledger.budgets.get(name, SpentBudget())
    units = _used(known, rate, history.productive_until(ledger, now))
    used = -(-units // _UNIT)
    # If kubelets made more restarts than the budget allows, the excess must be refilled first.
    missing = units - (min(used, rate.restarts) - 1) * _UNIT
    return used, missing * rate.seconds / (rate.restarts * _UNIT) if used and rate.restarts else 0.0


def _in_place(roles: Iterable[RoleState]) -> int:
    return sum(budget.in_place_restarts(role.replicas) for role in roles)


def _left(view: Snapshot, name: str) -> int:
    rate = view.job.restart_rates[name]
    return rate.restarts * _UNIT - _used(view.ledger.budgets.get(name, SpentBudget()), rate, _productive(view))


def _used(known: SpentBudget, rate: RestartRate, productive: int) -> int:
    """Return the used thousandths of a restart: those at the last charge, minus the refill by productive time since."""
    paid = (productive - known.productive) * rate.restarts * _UNIT // int(rate.seconds * 1000)
    return max(known.spent - max(paid, 0), 0)


def _productive(view: Snapshot) -> int:
    """Return the productive milliseconds up to now."""
    return history.productive_until(view.ledger, view.now)
