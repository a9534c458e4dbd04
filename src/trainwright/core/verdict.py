# SPDX-License-Identifier: Apache-2.0
"""Whether the job has come to its end, and what decided it. Called by `reconcile` once what has ended is settled.

The order is the meaning; the first that answers wins: 1 success, for work that is done is done; 2 somebody asked for
the end; 3 the deadline; 4 the start deadline; 5 a failure rule; 6 success out of reach; 7 the restart budget.
"""

from trainwright.core.budget import Retry, spent
from trainwright.core.observe import View
from trainwright.core.rules import Judgement, Truth, judge
from trainwright.core.settle import Settled, failure
from trainwright.model.cause import Cause, Why, brief
from trainwright.model.job import Since
from trainwright.model.ledger import LONGEST_TEXT, Failure, Outcome, Phase, Reason
from trainwright.model.rule import Result
from trainwright.model.units import Time, after


def success(settled: Settled) -> Outcome | None:
    """Success alone; a suspension asks for it before it puts a job down."""
    judged = judge(settled.view.job.success, settled.tallies)
    return _outcome(settled.view, Result.SUCCEEDED, Reason.RULE, judged) if judged.truth is Truth.YES else None


def decide(settled: Settled) -> Outcome | None:
    """The outcome, if there is one now."""
    view, life = settled.view, settled.view.job.lifecycle
    if view.calm and not (life.ending or life.deadline or life.start_deadline is not None or settled.overspent):
        return None
    anything = any(tally.succeeded or tally.failed for tally in settled.tallies.values())
    judged = judge(view.job.success, settled.tallies) if anything else None
    if judged is not None and judged.truth is Truth.YES:
        return _outcome(view, Result.SUCCEEDED, Reason.RULE, judged)
    return (
        asked(view)
        or _overdue(view, deadline(view), Reason.DEADLINE, "it was active longer than its deadline")
        or _overdue(view, start_deadline(view), Reason.START_DEADLINE, "not every replica had started in time")
        or (_failed(settled, judged) if judged is not None else None)
        or _spent(settled)
    )


def _failed(settled: Settled, hope: Judgement) -> Outcome | None:
    """A failure rule first, since a user wrote it; then that there is no hope of success."""
    view = settled.view
    judged = judge(view.job.failure, settled.tallies)
    if judged.truth is Truth.YES:
        return _outcome(view, Result.FAILED, Reason.RULE, judged)
    return _outcome(view, Result.FAILED, Reason.UNREACHABLE, hope) if hope.truth is Truth.NO else None


def _outcome(view: View, result: Result, reason: Reason, judged: Judgement) -> Outcome:
    who = f"{judged.role} {judged.index}" if judged.index >= 0 else ""
    if reason is Reason.RULE:
        rule, message = brief(judged.text, LONGEST_TEXT), _fulfilled(judged.text, who, result)
    else:
        rule, message = "", "no success rule can be fulfilled any more" + (f", since {who} failed" if who else "")
    failed = _failure(view, judged.role, judged.index) if result is Result.FAILED else None
    return Outcome(result, reason, view.now, rule, brief(message, LONGEST_TEXT), failure=failed)


def _fulfilled(text: str, who: str, result: Result) -> str:
    """In the user's own words, where there are any."""
    if text:
        return f"rule {text} fulfilled by {who}"
    return f"{who} failed for good" if result is Result.FAILED else "every replica that counts has succeeded"


def _failure(view: View, name: str, index: int) -> Failure | None:
    """The failure of that replica: from its pod, or from memory if the pod is gone."""
    kept = [one for one in view.ledger.failures if (one.role, one.index) == (name, index)]
    if kept:
        return kept[-1]
    for role, group in zip(view.job.roles, view.roles, strict=True):
        for seen in group.replicas:
            if (role.name, seen.index) == (name, index):
                return failure(view.job, Retry(role, seen, seen.cause or Cause(Why.REJECTED)), view.now)
    return None


def asked(view: View) -> Outcome | None:
    """The end that somebody asked for, also of a suspended job."""
    ending = view.job.lifecycle.ending
    if ending is None:
        return None
    result = Result.SUCCEEDED if ending.succeeded else Result.FAILED
    return Outcome(result, Reason.EXTERNAL, view.now, message=brief(ending.message, LONGEST_TEXT), word=ending.word)


def deadline(view: View) -> Time | None:
    """When the job's time is up."""
    limit = view.job.lifecycle.deadline
    if limit is None:
        return None
    times = view.ledger.times
    begun = times.started if limit.since is Since.STARTED else times.running
    return None if begun is None else after(begun, limit.seconds)


def start_deadline(view: View) -> Time | None:
    """By when every replica must have run once; no longer asked once they have."""
    seconds = view.job.lifecycle.start_deadline
    if seconds is None or view.ledger.phase not in (Phase.PENDING, Phase.RESUMING):
        return None
    begun = view.ledger.times.started
    return None if begun is None else after(begun, seconds)


def _overdue(view: View, due: Time | None, reason: Reason, message: str) -> Outcome | None:
    if due is None or view.now < due:
        return None
    return Outcome(Result.FAILED, reason, view.now, message=message)


def _spent(settled: Settled) -> Outcome | None:
    if not settled.overspent:
        return None
    view, refused = settled.view, settled.refused
    failed = failure(view.job, refused, view.now) if refused is not None else None
    return Outcome(
        Result.FAILED,
        Reason.BACKOFF_LIMIT,
        view.now,
        message=_reached(view),
        failure=failed,
    )


def _reached(view: View) -> str:
    """What a limit on the restarts of all roles together has come to."""
    limit, made = view.job.lifecycle.backoff_limit or 0, spent(view)
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
