# SPDX-License-Identifier: Apache-2.0
"""Rules in three values: fulfilled, out of reach for good, still open. `verdict` asks, with what has ended for good.

A rule over nothing stays open: an AND over no replica must not fulfil, and an unknown role or rank can never be met.

What has ended, split in two: over for good, and to be tried again. Between `observe` and the rules.

What is over for good is remembered in the ledger, so a collected pod is not run again, and counted for the rules;
what will be tried again is handed to `restart`. A replica that may still be restarted has not failed.

Whether the job has come to its end, and what decided it. Called by `reconcile` once what has ended is settled.

The order is the meaning; the first that answers wins: 1 success, for work that is done is done; 2 somebody asked for
the end; 3 the deadline; 4 the start deadline; 5 a failure rule; 6 success out of reach; 7 the restart budget.
"""

from collections.abc import Iterator, Mapping, Set
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from trainwright.core import attempts, budget, classify
from trainwright.core.budget import EndedReplica, restarts_used
from trainwright.core.observe import Snapshot
from trainwright.model.cause import Cause, CauseKind, brief
from trainwright.model.job import Job, Role, Since
from trainwright.model.ledger import KEPT_FAILURES, LONGEST_TEXT, Failure, Ledger, Outcome, Phase, Reason, RoleLedger
from trainwright.model.plan import ReplicaState, RoleState, State
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which
from trainwright.model.units import Time, after, format_indexes, parse_indexes, whole


class Truth(Enum):
    """The three values."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


class RoleTally(Struct, frozen=True, gc=False):
    """What has ended for good in one role."""

    replicas: int
    succeeded: Set[int] = frozenset()
    failed: Set[int] = frozenset()


class Judgement(Struct, frozen=True, gc=False):
    """A truth, and what decided it: the rule as its user wrote it, and the first replica it rests on."""

    truth: Truth
    text: str = ""
    role: str = ""
    index: int = -1


_OPEN = Judgement(Truth.OPEN)


def evaluate(rule: Rule, tallies: Mapping[str, RoleTally]) -> Judgement:
    """The truth of a rule, given what has ended."""
    match rule:
        case Atom():
            return _atom(rule, tallies.get(rule.role))
        case AllOf(rules, text):
            return _combine([evaluate(part, tallies) for part in rules], text, decides=Truth.NO)
        case AnyOf(rules, text):  # pragma: no branch - there is no fourth
            return _combine([evaluate(part, tallies) for part in rules], text, decides=Truth.YES)


def _combine(parts: list[Judgement], text: str, *, decides: Truth) -> Judgement:
    """One part can decide alone (a NO under All, a YES under Any); the other value needs every part."""
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


_ENDED = (State.FAILED, State.LOST, State.SUCCEEDED)


class SettledJob(Struct, frozen=True, gc=False):
    """The pass with what is over remembered, the tallies for the rules, and the retries."""

    view: Snapshot
    tallies: dict[str, RoleTally]
    retries: tuple[EndedReplica, ...] = ()
    #: The restart that the job's own budget does not allow; where kubelets have overspent it, the worst of theirs.
    refused: EndedReplica | None = None
    overspent: bool = False


def settle(view: Snapshot) -> SettledJob:
    """Split what has ended."""
    if view.all_running:
        overspent = budget.is_overspent(view)
        return SettledJob(view, {}, refused=budget.most_restarted(view) if overspent else None, overspent=overspent)
    ended = [
        EndedReplica(role, replica, cause)
        for role, group in zip(view.job.roles, view.roles, strict=True)
        if not group.all_running
        for replica, cause in _ended(view, role, group)
    ]
    retries, finals = budget.split_ended(view.ledger, ended)
    view = _remember(view, finals)
    allowed, refused = budget.within_backoff_limit(view, retries)
    overspent = refused is not None or budget.is_overspent(view)
    if overspent and refused is None:
        refused = budget.most_restarted(view)
    return SettledJob(view, tallies(view.job), allowed, refused, overspent)


def _ended(view: Snapshot, role: Role, group: RoleState) -> Iterator[tuple[ReplicaState, Cause]]:
    """Replicas that have ended and are not yet remembered, each with its cause."""
    for replica in group.replicas:
        if replica.state in _ENDED:
            if not replica.final and replica.cause is not None:
                yield replica, replica.cause
        elif role.recreates_pods and replica.cause is not None and _is_replacement_due(view, role, replica):
            yield replica, replica.cause
        elif _was_removed(view, role, replica):
            yield replica, Cause(CauseKind.DELETED)


def _is_replacement_due(view: Snapshot, role: Role, replica: ReplicaState) -> bool:
    """Its containers cannot be made, and it is time for another try."""
    entry = attempts.find_entry(view.ledger, role.name)
    return classify.is_stuck(role, replica) and classify.is_replacement_due(
        entry, replica, view.site.creating, view.now
    )


def _was_removed(view: Snapshot, role: Role, replica: ReplicaState) -> bool:
    """Somebody removed its pod, and that means more than making it again.

    Its scope restarts with it, since its peers hold its old address; or the kubelet's count goes with the pod, and must
    be kept.
    """
    if replica.state is State.STOPPING:
        return (
            view.job.lifecycle.counts_in_place
            and replica.pod is not None
            and budget.pod_in_place_restarts(replica.pod) > 0
        )
    if replica.state is not State.WAITING or not role.restart.answers_removal:
        return False
    return replica.index < attempts.find_entry(view.ledger, role.name).reached


def _remember(view: Snapshot, finals: list[EndedReplica]) -> Snapshot:
    """Note what is over for good, on the ledger and on the replicas of this pass."""
    if not finals:
        return view
    done: dict[str, list[EndedReplica]] = {}
    for final in finals:
        done.setdefault(final.role.name, []).append(final)
    entries = tuple(_with_finals(entry, done.get(entry.name, [])) for entry in view.ledger.roles)
    ledger = replace(with_failures(view.ledger, view.job, finals, view.now), roles=entries)
    roles = tuple(
        _mark_final(group, {final.replica.index for final in done.get(group.name, [])}) for group in view.roles
    )
    return replace(view.with_ledger(ledger), roles=roles)


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


def _mark_final(group: RoleState, done: set[int]) -> RoleState:
    if not done:
        return group
    return replace(
        group,
        replicas=tuple(
            replace(replica, final=True) if replica.index in done else replica for replica in group.replicas
        ),
    )


def with_failures(ledger: Ledger, job: Job, ended: list[EndedReplica], now: Time) -> Ledger:
    """The ledger with these failures among the latest ones."""
    new = [failure(job, retry, now) for retry in ended if retry.cause.why is not CauseKind.COMPLETED]
    return replace(ledger, failures=(*ledger.failures, *new)[-KEPT_FAILURES:]) if new else ledger


def failure(job: Job, retry: EndedReplica, now: Time) -> Failure:
    """One failure in full."""
    role, replica = retry.role.name, retry.replica
    return Failure(
        role, replica.index, job.key.replica_name(role, replica.index), replica.attempt, whole(now), retry.cause
    )


def tallies(job: Job) -> dict[str, RoleTally]:
    """What is over for good, by role."""
    entries = {entry.name: entry for entry in job.ledger.roles}
    return {role.name: _tally(role, entries.get(role.name)) for role in job.roles}


def _tally(role: Role, entry: RoleLedger | None) -> RoleTally:
    if entry is None or not (entry.succeeded or entry.failed):
        return RoleTally(role.replicas)
    return RoleTally(role.replicas, parse_indexes(entry.succeeded), parse_indexes(entry.failed))


def success(settled: SettledJob) -> Outcome | None:
    """Success alone; a suspension asks for it before it puts a job down."""
    judged = evaluate(settled.view.job.success, settled.tallies)
    return _outcome(settled.view, Result.SUCCEEDED, Reason.RULE, judged) if judged.truth is Truth.YES else None


def decide(settled: SettledJob) -> Outcome | None:
    """The outcome, if there is one now."""
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
    """A failure rule first, since a user wrote it; then that there is no hope of success."""
    view = settled.view
    judged = evaluate(view.job.failure, settled.tallies)
    if judged.truth is Truth.YES:
        return _outcome(view, Result.FAILED, Reason.RULE, judged)
    return _outcome(view, Result.FAILED, Reason.UNREACHABLE, hope) if hope.truth is Truth.NO else None


def _outcome(view: Snapshot, result: Result, reason: Reason, judged: Judgement) -> Outcome:
    who = f"{judged.role} {judged.index}" if judged.index >= 0 else ""
    if reason is Reason.RULE:
        rule, message = brief(judged.text, LONGEST_TEXT), _rule_message(judged.text, who, result)
    else:
        rule, message = "", "no success rule can be fulfilled any more" + (f", since {who} failed" if who else "")
    failed = _failure(view, judged.role, judged.index) if result is Result.FAILED else None
    return Outcome(result, reason, view.now, rule, brief(message, LONGEST_TEXT), failure=failed)


def _rule_message(text: str, who: str, result: Result) -> str:
    """In the user's own words, where there are any."""
    if text:
        return f"rule {text} fulfilled by {who}"
    return f"{who} failed for good" if result is Result.FAILED else "every replica that counts has succeeded"


def _failure(view: Snapshot, name: str, index: int) -> Failure | None:
    """The failure of that replica: from its pod, or from memory if the pod is gone."""
    with_failures = [one for one in view.ledger.failures if (one.role, one.index) == (name, index)]
    if with_failures:
        return with_failures[-1]
    for role, group in zip(view.job.roles, view.roles, strict=True):
        for replica in group.replicas:
            if (role.name, replica.index) == (name, index):
                return failure(
                    view.job, EndedReplica(role, replica, replica.cause or Cause(CauseKind.REJECTED)), view.now
                )
    return None


def end_requested(view: Snapshot) -> Outcome | None:
    """The end that somebody asked for, also of a suspended job."""
    ending = view.job.lifecycle.ending
    if ending is None:
        return None
    result = Result.SUCCEEDED if ending.succeeded else Result.FAILED
    return Outcome(result, Reason.EXTERNAL, view.now, message=brief(ending.message, LONGEST_TEXT), word=ending.word)


def deadline(view: Snapshot) -> Time | None:
    """When the job's time is up."""
    limit = view.job.lifecycle.deadline
    if limit is None:
        return None
    times = view.ledger.times
    begun = times.started if limit.since is Since.STARTED else times.running
    return None if begun is None else after(begun, limit.seconds)


def start_deadline(view: Snapshot) -> Time | None:
    """By when every replica must have run once; no longer asked once they have."""
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
    return Outcome(
        Result.FAILED,
        Reason.BACKOFF_LIMIT,
        view.now,
        message=_budget_message(view),
        failure=failed,
    )


def _budget_message(view: Snapshot) -> str:
    """What a limit on the restarts of all roles together has come to."""
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
