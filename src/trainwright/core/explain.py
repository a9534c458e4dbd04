# SPDX-License-Identifier: Apache-2.0
"""Why a job is as it is, in a few sentences: what decided its end, or what it waits for, and what to do.

The headline names the cause. Everything comes from values that already exist: the ledger with its verdict and history,
the state of the replicas, the obstacles, and the last log lines of one failure. Nothing here decides anything.
"""

from collections.abc import Iterable

from trainwright.core import budget, classify, diagnose, explain_end, explain_live, history
from trainwright.core.explanation import Explanation, JobFacts, Quote, TimeReport, WaitReason
from trainwright.core.failure_text import loss_text
from trainwright.core.waiting import Obstacle
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Pod
from trainwright.model.ledger import Failure, Ledger, Phase, Reason
from trainwright.model.meta import ATTEMPT, INDEX, ROLE
from trainwright.model.rule import Result
from trainwright.model.units import spell
from trainwright.model.verdict import Verdict

#: Why replicas were restarted, in words.
_RESTARTED = {
    CauseKind.EXIT.value: "after a failure",
    CauseKind.COMPLETED.value: "after success",
    CauseKind.NODE_LOST.value: "after the loss of a node",
    CauseKind.DEVICE.value: "after a failure of GPUs",
    CauseKind.DELETED.value: "after a pod was deleted",
    CauseKind.EVICTED.value: "after an eviction",
    CauseKind.DISRUPTED.value: "after a disruption",
    CauseKind.CREATE_ERROR.value: "because a container could not be created",
    CauseKind.REJECTED.value: "because a node rejected a pod",
    CauseKind.IN_PLACE.value: "inside its pod, by its node",
}
#: At most this many replicas are listed for each obstacle.
_MAX_REPLICAS = 64


def explain(facts: JobFacts) -> Explanation:
    """Explain the job. The first situation that applies is explained."""
    idle = (
        explain_end.left_alone(facts)
        or explain_end.ended(facts)
        or explain_end.stopped(facts)
        or explain_live.suspended(facts)
    )
    obstacles = () if idle is not None else explain_live.find_obstacles(facts)
    answer = (
        idle
        or explain_live.restarting(facts, obstacles)
        or explain_live.running(facts, obstacles)
        or explain_live.awaiting(facts, obstacles)
    )
    job, ledger = facts.job, facts.status.ledger
    shares = history.time_shares(ledger, facts.now)
    goodput = shares.goodput
    time = TimeReport(shares.wall, shares.productive, round(goodput, 4), shares.lost) if goodput is not None else None
    told = " ".join((answer.text, *answer.sentences))
    general = (_quote_sentence(facts, told), _restart_sentence(facts), _time_sentence(time))
    return Explanation(
        job.key.namespace,
        job.key.name,
        job.owner.kind,
        answer.situation,
        f"{job.key.name} {answer.text}",
        tuple(text for text in (*answer.sentences, *general) if text),
        answer.action,
        answer.failure_class,
        _quote(facts),
        tuple(_wait_reason(one) for one in obstacles[: explain_live.MAX_OBSTACLES]),
        facts.admission,
        _restarts(facts),
        time,
        ledger.verdict,
        facts.gaps,
    )


# -- the failure to quote --------------------------------------------------------------------------------------------


def failure_to_quote(ledger: Ledger, pods: Iterable[Pod] = ()) -> Failure | None:
    """Return the failure whose log an explanation quotes: the first failure of the last restart or of the end.

    After a deadline, it is the latest failure before the end. None if no replica caused the restart or the end, if the
    job has succeeded, or if it is suspended. With `pods`, a container that its node restarts in place counts as a
    failure too.
    """
    outcome, verdict = ledger.outcome, ledger.verdict
    if (outcome is not None and outcome.result is Result.SUCCEEDED) or ledger.phase is Phase.SUSPENDED:
        return None
    if outcome is None:
        in_place = [one for pod in pods if (one := _in_place_failure(pod)) is not None]
        latest = max(in_place, key=lambda one: one.at, default=None)
        if latest is not None and (verdict is None or latest.at > verdict.at):
            return latest
    if outcome is not None and outcome.reason in (Reason.DEADLINE, Reason.START_DEADLINE):
        return ledger.failures[-1] if ledger.failures else None
    if verdict is None or not verdict.pod:
        return outcome.failure if outcome is not None and verdict is None else None
    known = [*ledger.failures, *([outcome.failure] if outcome is not None and outcome.failure is not None else [])]
    same = (one for one in reversed(known) if (one.pod, one.attempt) == (verdict.pod, verdict.attempt))
    return next(same, None) or _failure_of(verdict)


def failures_to_quote(ledger: Ledger, pods: Iterable[Pod] = ()) -> tuple[Failure, ...]:
    """Return the failure to quote, and after it the other failures that the same pass saw.

    Many end times are whole seconds, and a pass reads no logs. So any of these failures may be the true cause.
    """
    first = failure_to_quote(ledger, pods)
    if first is None:
        return ()
    return first, *(one for one in ledger.failures if one.at == first.at and one.pod != first.pod)


def _failure_of(verdict: Verdict) -> Failure | None:
    """Return the failure of a verdict that the ledger no longer lists, because many replicas failed together."""
    role, _, index = verdict.replica.rpartition("-")
    if not isinstance(verdict.code, int) or not index.isdecimal():
        return None
    reason = "OOMKilled" if "OOMKilled" in verdict.message else ""
    cause = Cause(CauseKind.EXIT, verdict.code, verdict.signal, reason, container=verdict.container, node=verdict.node)
    return Failure(role, int(index), verdict.pod, verdict.attempt, verdict.at, cause)


def _in_place_failure(pod: Pod) -> Failure | None:
    """Return the last end of a container that the pod's node restarts in place."""
    cause, labels = classify.last_in_place_end(pod), pod.metadata.labels or {}
    if cause is None or cause.code == 0 or not {ROLE, INDEX} <= labels.keys():
        return None
    ends = [
        state.terminated.finished_at
        for one in pod.status.container_statuses or ()
        for state in (one.state, one.last_state)
        if one.name == cause.container and state is not None and state.terminated is not None
    ]
    at = max((end for end in ends if end is not None), default=pod.metadata.creation_timestamp)
    attempt = labels.get(ATTEMPT, "0")
    if at is None or not attempt.isdecimal():
        return None
    return Failure(labels[ROLE], int(labels[INDEX]), pod.metadata.name, int(attempt), at, cause)


def _quote(facts: JobFacts) -> Quote | None:
    one, account = facts.failure, facts.account
    if one is None or account is None:
        return None
    last = next((line.strip() for line in reversed(facts.lines) if line.strip()), "")
    line = account.diagnosis.line or last[: diagnose.LONGEST_LINE]
    return Quote(account.replica, one.pod, one.attempt, one.cause.container, line) if line else None


def _quote_sentence(facts: JobFacts, told: str) -> str:
    if facts.failure is not None and facts.log_problem:
        return f"The log of {facts.failure.role}-{facts.failure.index} could not be read: {facts.log_problem}."
    quote = _quote(facts)
    if quote is None or quote.line in told:
        return ""
    return f"The log of {quote.replica} says: {quote.line}"


def _wait_reason(one: Obstacle) -> WaitReason:
    names = one.replicas[:_MAX_REPLICAS]
    return WaitReason(names, len(one.replicas), one.message, one.failure_class, one.since, one.action)


# -- sentences that every explanation may have -----------------------------------------------------------------------


def _restarts(facts: JobFacts) -> int:
    """Return the restarts so far, including those that nodes made inside pods."""
    status, ledger = facts.status, facts.status.ledger
    if facts.restarts is not None:
        return facts.restarts
    made = sum(entry.made() + entry.inside for entry in ledger.roles)
    return made + (sum(budget.in_place_restarts(r.replicas) for r in status.roles) if ledger.outcome is None else 0)


def _restart_sentence(facts: JobFacts) -> str:
    number = _restarts(facts)
    if not number:
        return ""
    causes: dict[str, int] = {}
    for entry in facts.status.ledger.roles:
        for cause, times in entry.restarts.items():
            shown = times - entry.hidden.get(cause, 0)
            causes |= {cause: causes.get(cause, 0) + shown} if shown else {}
    inside = number - sum(causes.values())
    parts = [f"{times} {_RESTARTED.get(cause, f'after {cause}')}" for cause, times in causes.items()]
    parts += [f"{inside} inside its pod, by its node"] * (inside > 0)
    if number == 1 and parts:
        return f"It was restarted once, {parts[0].removeprefix('1 ')}."
    times_text = "once" if number == 1 else f"{number} times"
    causes_text = f" ({', '.join(parts)})" if parts else ""
    return f"It was restarted {times_text}{causes_text}."


def _time_sentence(time: TimeReport | None) -> str:
    if time is None or time.wall < 0.05:
        return ""
    lost = {cause: spent for cause, spent in time.lost.items() if spent >= 0.05}
    parts = [f"{spell(spent)} {loss_text(cause)}" for cause, spent in lost.items()]
    text = f"It was productive for {spell(time.productive)} of {spell(time.wall)} ({time.goodput:.0%})"
    return f"{text}; lost: {', '.join(parts)}." if parts else f"{text}."
