# SPDX-License-Identifier: Apache-2.0
"""Every restart budget of a job, and how much of it is used. These values are for people; no decision reads them."""

from enum import StrEnum

from msgspec import Struct

from trainwright.core import attempts, budget, rate_budget
from trainwright.model.job import PROGRAM_BUDGET, Job
from trainwright.model.plan import Status
from trainwright.model.units import Time, parse_row


class BudgetOwner(StrEnum):
    """Whose restarts a budget counts."""

    ROLE = "Role"
    REPLICA = "Replica"
    JOB = "Job"
    #: The budgets that refill, one for causes inside and one for causes outside the program.
    RATE = "Rate"


class BudgetState(Struct, frozen=True, gc=False):
    """One budget: its owner, the restarts that are used, and the restarts that are allowed."""

    owner: BudgetOwner
    name: str
    used: int
    #: The limit as the user wrote it. A job of some kinds fails with the restart that reaches its limit.
    limit: int
    #: Seconds of productive time in which a budget refills; 0: it does not refill.
    window: float = 0.0
    #: Seconds of productive time until the next restart is allowed again; 0: none is used, or it does not refill.
    refill: float = 0.0


def budget_states(job: Job, status: Status, now: Time) -> tuple[BudgetState, ...]:
    """Return all budgets of a job. A replica has its own budget only if its role says so; unused ones are left out."""
    found: list[BudgetState] = []
    ledger = status.ledger
    for role in job.roles:
        limit, entry = role.restart.limit, attempts.find_entry(ledger, role.name)
        if limit is None:
            continue
        if role.restart.per_replica:
            charged = sorted(parse_row(entry.charged).items())
            found += [BudgetState(BudgetOwner.REPLICA, f"{role.name}-{index}", used, limit) for index, used in charged]
        else:
            found.append(BudgetState(BudgetOwner.ROLE, role.name, attempts.budget_used(entry, role.uncounted), limit))
    allowed = job.lifecycle.backoff_limit
    if allowed is not None and ledger.roles:
        used = budget.restarts_counted(job, ledger, status.roles)
        found.append(BudgetState(BudgetOwner.JOB, "job", used, allowed))
    for name, rate in job.restart_rates.items():
        used, refill = rate_budget.restarts_spent(job, ledger, name, now)
        if used or name != PROGRAM_BUDGET or not job.limits_all_restarts:
            found.append(BudgetState(BudgetOwner.RATE, name, used, rate.restarts, rate.seconds, refill))
    return tuple(found)
