# SPDX-License-Identifier: Apache-2.0
"""Decide whether the job has ended, and why.

First, ended replicas are split: each is final or is restarted. The ledger stores final replicas, so that they do not
run again if their pods are deleted. Rules see only final replicas: a replica that is restarted has not failed.

Rules have three values: yes (fulfilled), no (impossible), open. A rule over no replicas stays open, so an empty AND is
not fulfilled. An atom (a rule about one role) is impossible if its role or rank is unknown.

The first match decides the outcome: 1. success, so that finished work is never lost; 2. a requested end; 3. the
deadline; 4. the start deadline; 5. a failure rule; 6. success is impossible; 7. the restart budget is used up.
"""

from collections.abc import Iterator, Mapping, Set
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from trainwright.core import attempts, budget, classify, history, rate_budget
from trainwright.core.budget import EndedReplica, restarts_used
from trainwright.core.observe import Snapshot
from trainwright.model.cause import Cause, CauseKind, brief
from trainwright.model.job import PROGRAM_BUDGET, Job, Role, Since
from trainwright.model.ledger import KEPT_FAILURES, LONGEST_TEXT, Failure, Ledger, Outcome, Phase, Reason, RoleLedger
from trainwright.model.plan import ReplicaState, RoleState, State
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which
from trainwright.model.units import Time, after, format_indexes, parse_indexes, whole
from trainwright.model.verdict import FailureClass


class Truth(Enum):
    """Whether a rule holds: yes, no, or not decided yet."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


class RoleTally(Struct, frozen=True, gc=False):
    """The final replicas of one role."""

    replicas: int
    succeeded: Set[int] = frozenset()
    failed: Set[int] = frozenset()


class Judgement(Struct, frozen=True, gc=False):
    """The value of a rule, the text that the user wrote, and the first replica that decided it."""

    truth: Truth
    text: str = ""
    role: str = ""
    index: int = -1


_OPEN = Judgement(Truth.OPEN)


def evaluate(rule: Rule, tallies: Mapping[str, RoleTally]) -> Judgement:
    """Return the value of a rule for these final replicas."""
    match rule:
        case Atom():
            return _atom(rule, tallies.get(rule.role))
        case AllOf(rules, text):
            return _combine([evaluate(part, tallies) for part in rules], text, decides=Truth.NO)
        case AnyOf(rules, text):  # pragma: no branch - there is no fourth type of rule
            return _combine([evaluate(part, tallies) for part in rules], text, decides=Truth.YES)


def _combine(parts: list[Judgement], text: str, *, decides: Truth) -> Judgement:
    """Combine the values of parts. One NO decides AllOf, one YES decides AnyOf; the opposite value needs all parts."""
    first = next((part for part in parts if part.truth is decides), None)
    if first is None and parts and all(part.truth is not Truth.OPEN for part in parts):
        first = parts[0]
    if first is None:
        return _OPEN
    return Judgement(first.truth, text or first.text, first.role, first.index)


def _atom(atom: Atom, tally: RoleTally | None) -> Judgement:
    if tally is None:
        return Judgement(Truth.NO, role=atom.role)
    hits, misses = tally.succeeded, tally.failed
    if atom.result is Result.FAILED:
        hits, misses = misses, hits
    truth = (
        _ranks(atom.which, tally, hits, misses)
        if isinstance(atom.which, tuple)
        else _which(atom.which, tally, hits, misses)
    )
    ended = hits if truth is Truth.YES else misses
    named = [rank for rank in atom.which if rank in ended] if isinstance(atom.which, tuple) else ended
    return Judgement(truth, role=atom.role, index=min(named, default=-1)) if truth is not Truth.OPEN else _OPEN


def _which(which: Which, tally: RoleTally, hits: Set[int], misses: Set[int]) -> Truth:
    if not tally.replicas:
        return Truth.OPEN
    if which is Which.EVERY:
        return Truth.NO if misses else Truth.YES if len(hits) >= tally.replicas else Truth.OPEN
    return Truth.YES if hits else Truth.NO if len(misses) >= tally.replicas else Truth.OPEN


def _ranks(ranks: tuple[int, ...], tally: RoleTally, hits: Set[int], misses: Set[int]) -> Truth:
    if any(rank in misses or not 0 <= rank < tally.replicas for rank in ranks):
        return Truth.NO
    return Truth.YES if ranks and all(rank in hits for rank in ranks) else Truth.OPEN


#: The classes of deletions that the cluster made, not a user.
_DISRUPTIONS = (FailureClass.PREEMPTED, FailureClass.DISRUPTED)
_ENDED = (State.FAILED, State.LOST, State.SUCCEEDED)


class SettledJob(Struct, frozen=True, gc=False):
    """The snapshot with final replicas in its ledger, these replicas by role, and the replicas to restart."""

    view: Snapshot
    tallies: dict[str, RoleTally]
    retries: tuple[EndedReplica, ...] = ()
    #: The first replica whose restart would exceed the job's budget. If in-place restarts have exceeded the budget: the
    #: replica with the most in-place restarts.
    refused: EndedReplica | None = None
    overspent: bool = False
    #: The refilling budget that is used up; empty: none is.
    rate: str = ""
    #: Every replica that ended in this pass.
    ended: tuple[EndedReplica, ...] = ()


def settle(view: Snapshot) -> SettledJob:
    """Split the ended replicas into final replicas and replicas to restart."""
    view = rate_budget.charge_in_place(view) if view.job.restart_rates else view
    if view.all_running:
        rate = PROGRAM_BUDGET if rate_budget.is_overspent(view) else ""
        overspent = bool(rate) or budget.is_overspent(view)
        refused = budget.most_restarted(view) if overspent else None
        return SettledJob(view, {}, refused=refused, overspent=overspent, rate=rate)
    ended = [
        EndedReplica(role, replica, cause)
        for role, group in zip(view.job.roles, view.roles, strict=True)
        if not group.all_running
        for replica, cause in _ended(view, role, group)
    ]
    retries, finals = budget.split_ended(view.ledger, ended)
    view = _remember(view, finals)
    allowed, refused = budget.within_backoff_limit(view, retries)
    rate = PROGRAM_BUDGET if rate_budget.is_overspent(view) else ""
    if refused is None:
        allowed, refused = rate_budget.within_rates(view, allowed)
        rate = rate or (rate_budget.budget_of(view.job, refused) if refused is not None else "")
    overspent = refused is not None or bool(rate) or budget.is_overspent(view)
    if overspent and refused is None:
        refused = budget.most_restarted(view)
    return SettledJob(view, tallies(view.job), allowed, refused, overspent, rate, tuple(ended))


def _ended(view: Snapshot, role: Role, group: RoleState) -> Iterator[tuple[ReplicaState, Cause]]:
    """Yield ended replicas that are not yet stored as final, each with its cause."""
    for replica in group.replicas:
        if replica.state in _ENDED:
            if not replica.final and replica.cause is not None:
                yield replica, replica.cause
        elif replica.cause is not None and classify.is_stuck(role, replica):
            entry = attempts.find_entry(view.ledger, role.name)
            if classify.is_replacement_due(entry, replica, view.site.creating, view.now):
                yield replica, replica.cause
        elif _was_removed(view, role, replica):
            yield replica, _removal(view, replica)


def _removal(view: Snapshot, replica: ReplicaState) -> Cause:
    """Return the cause of a deletion. Its reason is the disruption that the pod reported, if it reported one.

    If the pod is gone, the reason comes from the history, which records why pods of a running job were deleted.
    """
    told = classify.disruption(replica.pod) if replica.pod is not None else None
    known = history.unanswered_removal(view.stored.history)
    return Cause(CauseKind.DELETED, reason=told.reason if told is not None else known if known in _DISRUPTIONS else "")


def _was_removed(view: Snapshot, role: Role, replica: ReplicaState) -> bool:
    """Return whether a deleted pod needs more than a new pod.

    Either its scope restarts, because peers hold its old address, or the kubelet's restart count must be kept.
    """
    if replica.state is State.STOPPING:
        return view.job.lifecycle.counts_in_place and budget.in_place_restarts([replica]) > 0
    if replica.state is not State.WAITING or not role.restart.answers_removal:
        return False
    return replica.index < attempts.find_entry(view.ledger, role.name).reached


def _remember(view: Snapshot, finals: list[EndedReplica]) -> Snapshot:
    """Store final replicas in the ledger and mark them in the snapshot."""
    if not finals:
        return view
    entries = tuple(
        _with_finals(entry, [final for final in finals if final.role.name == entry.name]) for entry in view.ledger.roles
    )
    ledger = replace(with_failures(view.ledger, view.job, finals, view.now), roles=entries)
    done = {(final.role.name, final.replica.index) for final in finals}
    return replace(view.with_ledger(ledger), roles=tuple(_mark_final(group, done) for group in view.roles))


def _with_finals(entry: RoleLedger, finals: list[EndedReplica]) -> RoleLedger:
    if not finals:
        return entry
    succeeded = {final.replica.index for final in finals if final.cause.why is CauseKind.COMPLETED}
    failed = {final.replica.index for final in finals} - succeeded
    return replace(
        entry,
        succeeded=format_indexes(parse_indexes(entry.succeeded) | succeeded),
        failed=format_indexes(parse_indexes(entry.failed) | failed),
    )


def _mark_final(group: RoleState, done: set[tuple[str, int]]) -> RoleState:
    replicas = [replace(one, final=True) if (group.name, one.index) in done else one for one in group.replicas]
    return replace(group, replicas=tuple(replicas))


def with_failures(ledger: Ledger, job: Job, ended: list[EndedReplica], now: Time) -> Ledger:
    """Add failures to the list of the latest failures."""
    now = whole(now)
    new = [_failure_at(job, retry, now) for retry in ended if retry.cause.why is not CauseKind.COMPLETED]
    return replace(ledger, failures=(*ledger.failures, *new)[-KEPT_FAILURES:]) if new else ledger


def failure(job: Job, retry: EndedReplica, now: Time) -> Failure:
    """Return the record of one failure."""
    return _failure_at(job, retry, whole(now))


def _failure_at(job: Job, retry: EndedReplica, second: Time) -> Failure:
    role, replica = retry.role.name, retry.replica
    name = job.key.replica_name(role, replica.index)
    return Failure(role, replica.index, name, replica.attempt, second, retry.cause)


def tallies(job: Job) -> dict[str, RoleTally]:
    """Return the final replicas by role."""
    pairs = [(role, attempts.find_entry(job.ledger, role.name)) for role in job.roles]
    return {
        role.name: RoleTally(role.replicas, parse_indexes(entry.succeeded), parse_indexes(entry.failed))
        for role, entry in pairs
    }


def success(settled: SettledJob) -> Outcome | None:
    """Return the outcome if the job has succeeded; also checked before a job is suspended."""
    judged = evaluate(settled.view.job.success, settled.tallies)
    return _outcome(settled.view, Result.SUCCEEDED, Reason.RULE, judged) if judged.truth is Truth.YES else None


def decide(settled: SettledJob) -> Outcome | None:
    """Return the outcome if there is one now."""
    view, life = settled.view, settled.view.job.lifecycle
    if view.all_running and not (life.ending or life.deadline or life.start_deadline is not None or settled.overspent):
        return None
    anything = any(tally.succeeded or tally.failed for tally in settled.tallies.values())
    judged = evaluate(view.job.success, settled.tallies) if anything else None
    if judged is not None and judged.truth is Truth.YES:
        return _outcome(view, Result.SUCCEEDED, Reason.RULE, judged)
    return (
        end_requested(view)
        or _overdue(view, deadline(view), Reason.DEADLINE, "it was active longer than its deadline")
        or _overdue(view, start_deadline(view), Reason.START_DEADLINE, "not every replica had started in time")
        or (_failed(settled, judged) if judged is not None else None)
        or _budget_outcome(settled)
    )


def _failed(settled: SettledJob, hope: Judgement) -> Outcome | None:
    """Check the failure rule first, because the user wrote it, then whether success is impossible."""
    view = settled.view
    judged = evaluate(view.job.failure, settled.tallies)
    if judged.truth is Truth.YES:
        return _outcome(view, Result.FAILED, Reason.RULE, judged)
    return _outcome(view, Result.FAILED, Reason.UNREACHABLE, hope) if hope.truth is Truth.NO else None


def _outcome(view: Snapshot, result: Result, reason: Reason, judged: Judgement) -> Outcome:
    who = f"{judged.role} {judged.index}" if judged.index >= 0 else ""
    text = judged.text if reason is Reason.RULE else ""
    if text:
        message = f"rule {text} fulfilled by {who}"
    elif reason is not Reason.RULE:
        message = "no success rule can be fulfilled any more" + (f", since {who} failed" if who else "")
    else:
        message = f"{who} failed for good" if result is Result.FAILED else "every replica that counts has succeeded"
    failed = _failure(view, judged.role, judged.index) if result is Result.FAILED else None
    return Outcome(result, reason, view.now, brief(text, LONGEST_TEXT), brief(message, LONGEST_TEXT), failure=failed)


def _failure(view: Snapshot, name: str, index: int) -> Failure | None:
    """Return the failure of a replica, from the ledger or from its pod."""
    with_failures = [one for one in view.ledger.failures if (one.role, one.index) == (name, index)]
    if with_failures:
        return with_failures[-1]
    for role, group in zip(view.job.roles, view.roles, strict=True):
        for replica in group.replicas:
            if (role.name, replica.index) == (name, index):
                cause = replica.cause or Cause(CauseKind.REJECTED)
                return failure(view.job, EndedReplica(role, replica, cause), view.now)
    return None


def end_requested(view: Snapshot) -> Outcome | None:
    """Return the outcome that was requested from outside, also for a suspended job."""
    ending = view.job.lifecycle.ending
    if ending is None:
        return None
    result = Result.SUCCEEDED if ending.succeeded else Result.FAILED
    return Outcome(result, Reason.EXTERNAL, view.now, message=brief(ending.message, LONGEST_TEXT), word=ending.word)


def deadline(view: Snapshot) -> Time | None:
    """Return the time of the job's deadline."""
    limit = view.job.lifecycle.deadline
    if limit is None:
        return None
    times = view.ledger.times
    begun = times.started if limit.since is Since.STARTED else times.running
    return None if begun is None else after(begun, limit.seconds)


def start_deadline(view: Snapshot) -> Time | None:
    """Return the time until which every replica must have run once; None after all have run."""
    seconds = view.job.lifecycle.start_deadline
    if seconds is None or view.ledger.phase not in (Phase.PENDING, Phase.RESUMING):
        return None
    begun = view.ledger.times.started
    return None if begun is None else after(begun, seconds)


def _overdue(view: Snapshot, due: Time | None, reason: Reason, message: str) -> Outcome | None:
    if due is None or view.now < due:
        return None
    return Outcome(Result.FAILED, reason, view.now, message=message)


def _budget_outcome(settled: SettledJob) -> Outcome | None:
    if not settled.overspent:
        return None
    view, refused = settled.view, settled.refused
    failed = failure(view.job, refused, view.now) if refused is not None else None
    message = rate_budget.used_up(view.job, settled.rate) if settled.rate else _budget_message(view)
    return Outcome(Result.FAILED, Reason.BACKOFF_LIMIT, view.now, message=brief(message, LONGEST_TEXT), failure=failed)


def _budget_message(view: Snapshot) -> str:
    """Explain why the restart limit is reached."""
    limit, made = view.job.lifecycle.backoff_limit or 0, restarts_used(view)
    counted = "1 restart counts against it" if made == 1 else f"{made} restarts count against it"
    if not limit and not made:
        return "the restart limit (backoffLimit) is 0: no restart is made"
    if made >= limit:
        why = counted
    elif made:
        why = f"{counted}, and one more would reach it"
    else:
        why = "the first restart would reach it, so none was made"
    return f"the restart limit (backoffLimit) of {limit} is reached: {why}"
