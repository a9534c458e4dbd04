# SPDX-License-Identifier: Apache-2.0
"""Apply restarts: back-off, scope, new attempts.

Only the ledger changes here. A higher attempt makes the old pods stale, and stale pods are deleted and replaced. The
status is stored before the pods are deleted, so neither the count nor the restart is lost if our process is killed.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.core import attempts, budget, diagnose, quarantine, rate_budget
from trainwright.core.budget import EndedReplica
from trainwright.core.observe import Snapshot
from trainwright.core.outcomes import SettledJob, with_failures
from trainwright.model.cause import CauseKind
from trainwright.model.job import RestartScope
from trainwright.model.ledger import RoleLedger
from trainwright.model.plan import ReplicaState
from trainwright.model.units import Time, after


def apply_restarts(settled: SettledJob) -> Snapshot:
    """Restart replicas: raise their attempts, count the restarts, set the back-offs. Then classify the pods again."""
    view = settled.view
    if not settled.retries:
        return view
    ledger = with_failures(view.ledger, view.job, list(settled.retries), view.now)
    ledger = rate_budget.charge(view, ledger, settled.retries)
    ledger = quarantine.add_failed_nodes(ledger, [retry.cause for retry in settled.retries], view.now)
    single, wide = _by_scope(settled.retries)
    entries = {entry.name: entry for entry in ledger.roles}
    for name, group in single.items():
        entries[name] = _retry_replicas(view, entries[name], group)
    counted = {(name, retry.replica.index) for name, group in single.items() for retry in group}
    for retry in wide:
        _restart_scope(view, entries, retry, counted)
    verdict = diagnose.restart_verdict(view, settled.retries)
    return view.with_ledger(replace(ledger, roles=tuple(entries.values()), verdict=verdict)).reobserve()


def _by_scope(retries: tuple[EndedReplica, ...]) -> tuple[dict[str, list[EndedReplica]], list[EndedReplica]]:
    """Separate restarts of single replicas (by role) from wider restarts; drop restarts that a wider one includes."""
    single: dict[str, list[EndedReplica]] = {}
    wide: list[EndedReplica] = []
    along = budget.RestartCascade()
    for retry in retries:
        if retry.role not in along:
            if retry.scope is RestartScope.POD:
                single.setdefault(retry.role.name, []).append(retry)
            else:
                wide.append(retry)
            along.add(retry)
    return single, wide


def _retry_replicas(view: Snapshot, entry: RoleLedger, group: list[EndedReplica]) -> RoleLedger:
    """Restart single replicas of one role, all in one edit, because thousands may fail together."""
    holds: dict[float, list[int]] = {}
    for retry in group:
        holds.setdefault(restart_delay(entry, retry, view.now), []).append(retry.replica.index)
    entry = attempts.retry_replicas(entry, [retry.replica.index for retry in group])
    for seconds, indexes in holds.items():
        entry = attempts.hold(entry, indexes, after(view.now, seconds))
    by_cause: dict[CauseKind, list[int]] = {}
    for retry in group:
        by_cause.setdefault(retry.counted_as, []).append(retry.replica.index)
    for why, indexes in by_cause.items():
        entry = attempts.decide_restarts(entry, why, indexes)
    entry = _charged(entry, group)
    return keep_in_place_counts(view, entry, [retry.replica for retry in group])


def _charged(entry: RoleLedger, group: Iterable[EndedReplica]) -> RoleLedger:
    """Charge the restarts to the replicas that caused them, if each replica has its own budget."""
    charged = [retry.replica.index for retry in group if retry.role.restart.per_replica and not retry.is_free]
    return attempts.charge_replicas(entry, charged) if charged else entry


def _restart_scope(
    view: Snapshot, entries: dict[str, RoleLedger], cause: EndedReplica, counted: set[tuple[str, int]]
) -> None:
    """Restart a role or job. The causing role counts the restart; with `Restart.shared`, all restarted roles do.

    A restart that uses no budget of the causing role uses no budget of another role either.
    """
    until = after(view.now, restart_delay(entries[cause.role.name], cause, view.now))
    for role, group in zip(view.job.roles, view.roles, strict=True):
        if cause.scope is RestartScope.JOB or role.name == cause.role.name:
            entry = attempts.hold(attempts.next_epoch(entries[role.name]), range(role.replicas), until)
            if role.name == cause.role.name:
                entry = _charged(attempts.decide_role_restart(entry, cause.counted_as, role.replicas), [cause])
            elif cause.role.restart.shared:
                counted_as = attempts.FREE_CASCADE if cause.is_free else cause.counted_as
                entry = attempts.count_hidden_restarts(entry, counted_as)
            going = [replica for replica in group.replicas if (role.name, replica.index) not in counted]
            entries[role.name] = keep_in_place_counts(view, entry, going)
            counted |= {(role.name, replica.index) for replica in going}


def keep_in_place_counts(view: Snapshot, entry: RoleLedger, going: Iterable[ReplicaState]) -> RoleLedger:
    """Add the kubelets' restart counts of pods that will be deleted: to the budget, or to a number only for display."""
    lost = budget.in_place_restarts(going)
    if not lost:
        return entry
    if view.job.lifecycle.counts_in_place:
        return attempts.count_restarts(entry, CauseKind.IN_PLACE, lost)
    return replace(entry, inside=entry.inside + lost)


def restart_delay(entry: RoleLedger, retry: EndedReplica, now: Time) -> float:
    """Return the back-off of a restart in seconds. If the replica ran long enough, this is the first delay again."""
    if retry.cause.why is CauseKind.DELETED and retry.scope is RestartScope.POD:
        # A deleted pod did not fail: replace it as soon as its name is free.
        return 0.0
    pod = retry.replica.pod
    born = pod.status.start_time if pod is not None else None
    if born is not None and now >= after(born, attempts.BACKOFF_RESET_SECONDS):
        return attempts.FIRST_BACKOFF_SECONDS
    tries = retry.replica.attempt - entry.epoch if retry.scope is RestartScope.POD else sum(entry.restarts.values())
    return attempts.backoff_seconds(tries)
