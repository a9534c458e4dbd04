# SPDX-License-Identifier: Apache-2.0
"""Explain a job that should run: it waits, restarts, runs, or is suspended."""

from msgspec.structs import replace

from trainwright.core import diagnose, waiting
from trainwright.core.explanation import Answer, JobFacts, Situation, as_sentence
from trainwright.core.failure_text import replica_names
from trainwright.core.waiting import Obstacle
from trainwright.model.ledger import Phase
from trainwright.model.plan import State
from trainwright.model.units import rfc3339, spell
from trainwright.model.verdict import Decision, FailureClass

#: At most this many obstacles are listed.
MAX_OBSTACLES = 8
#: Reasons of events about pods that cannot mount a volume.
_MOUNT_REASONS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")


def suspended(facts: JobFacts) -> Answer | None:
    """Explain a suspended job: who suspended it, or which quota it waits for."""
    job, ledger = facts.job, facts.status.ledger
    if not job.lifecycle.suspended and ledger.phase is not Phase.SUSPENDED:
        return None
    if facts.admission:
        action = diagnose.ACTIONS[FailureClass.QUOTA]
        return Answer(Situation.WAITING, f"waits: {facts.admission[0]}", (), FailureClass.QUOTA, action)
    if not job.lifecycle.suspended:
        return Answer(Situation.WAITING, "was resumed and is about to start again")
    who = f" by {facts.suspended_by}" if facts.suspended_by else ""
    left = [one for role in facts.status.roles for one in role.replicas if one.pod or one.old]
    ends = f"{len(left)} of its pods still end{'s' * (len(left) == 1)}." if left else ""
    action = f"resume it when it should run: `{facts.resume_command}`, or correct the field in its manifest"
    return Answer(Situation.SUSPENDED, f"is suspended{who}: it has no pods until it is resumed", (ends,), action=action)


def restarting(facts: JobFacts, obstacles: tuple[Obstacle, ...]) -> Answer | None:
    """Explain a job that a failure restarts, and what its replicas wait for."""
    ledger, account = facts.status.ledger, facts.account
    verdict = ledger.verdict
    if ledger.phase is not Phase.RESTARTING or verdict is None or verdict.decision is not Decision.RESTART:
        return None
    if ledger.history.now_lost_to not in ("", verdict.failure_class):
        return None  # it restarts for another reason, for example because a user deleted a pod
    what = account.text() if account is not None else verdict.message
    main = next(iter(obstacles), None)
    real = main is not None and main.failure_class is not FailureClass.NONE
    text = f"restarts after a failure: {what}" + (f"; now {_obstacle_text(facts, main)}" if main and real else "")
    rest = [as_sentence(_obstacle_text(facts, one)) for one in obstacles[1 if real else 0 : MAX_OBSTACLES]]
    scope = f"What restarts: {verdict.reason.lower()} {verdict.replica}." if verdict.reason == "Pod" else ""
    scope = scope or (f"What restarts: the whole {verdict.reason.lower()}." if verdict.reason else "")
    found = (main.failure_class, main.action) if main and real else (verdict.failure_class, verdict.action)
    if not real and account is not None:
        found = (account.diagnosis.failure_class, account.diagnosis.action)
    return Answer(Situation.RESTARTING, text, (scope, *rest), *found)


def running(facts: JobFacts, obstacles: tuple[Obstacle, ...]) -> Answer | None:
    """Explain a running job. A replica that its node restarts again and again is in the headline."""
    status, ledger = facts.status, facts.status.ledger
    if ledger.phase is not Phase.RUNNING:
        return None
    total = sum(len(role.replicas) for role in status.roles)
    running, done = (
        sum(role.count(*states) for role in status.roles) for states in ((State.RUNNING,), (State.SUCCEEDED,))
    )
    attempts = ledger.history.attempts
    since = attempts[-1].running if attempts else ledger.times.running
    how_long = f" for {spell((facts.now - since).total_seconds())}" if since is not None else ""
    counts = f"{running} of {total} replica{'s' * (total != 1)} run{'s' * (total == 1)}" + (
        f", {done} succeeded" if done else ""
    )
    edit = f"Its last edit cannot be applied: {facts.job.invalid}." if facts.job.invalid else ""
    account, main = facts.account, next(iter(obstacles), None)
    if main is None:
        before = f"The last failure before: {account.text()}." if account is not None else ""
        return Answer(
            Situation.RUNNING, f"has run{how_long}: {counts}" if how_long else f"runs: {counts}", (edit, before)
        )
    rest = tuple(as_sentence(_obstacle_text(facts, one)) for one in obstacles[1:MAX_OBSTACLES])
    in_place = account is not None and account.replica in main.replicas
    text = f"{account.text()}; its node restarts it in place" if account and in_place else _obstacle_text(facts, main)
    found = account.diagnosis if account and in_place else diagnose.Diagnosis(main.failure_class, action=main.action)
    sentences = (
        edit,
        f"The job has counted as running{how_long}." if how_long else "The job counts as running.",
        *rest,
    )
    return Answer(Situation.RUNNING, f"runs, but {text}", sentences, found.failure_class, found.action)


def awaiting(facts: JobFacts, obstacles: tuple[Obstacle, ...]) -> Answer:
    """Explain a job that should run but does not run yet."""
    job, status = facts.job, facts.status
    # The operator may create pods before it stores the acceptance, so a job with pods was accepted.
    has_pods = any(one.pod is not None for role in status.roles for one in role.replicas)
    if status.ledger.phase is Phase.NEW and not has_pods and not facts.job.invalid:
        action = "check that the operator runs and watches this namespace and kind"
        return Answer(Situation.WAITING, "waits: no operator has accepted it yet", (), action=action)
    if job.invalid:
        return Answer(Situation.WAITING, f"waits: its manifest cannot be run: {job.invalid}", (), FailureClass.INVALID)
    main = next(iter(obstacles), None)
    if facts.admission and (main is None or main.failure_class in (FailureClass.NONE, FailureClass.UNSCHEDULABLE)):
        rest = [as_sentence(_obstacle_text(facts, one)) for one in obstacles[:MAX_OBSTACLES]]
        more = [as_sentence(text) for text in facts.admission[1:]]
        action = diagnose.ACTIONS[FailureClass.QUOTA]
        return Answer(Situation.WAITING, f"waits: {facts.admission[0]}", (*more, *rest), FailureClass.QUOTA, action)
    if main is None:
        return Answer(Situation.WAITING, "is about to start: every replica runs now")
    rest = [as_sentence(_obstacle_text(facts, one)) for one in obstacles[1:MAX_OBSTACLES]]
    how_long = spell((facts.now - main.since).total_seconds()) if main.since else ""
    since = f"It has waited since {rfc3339(main.since)} ({how_long})." if main.since else ""
    text = f"waits: {_obstacle_text(facts, main)}"
    return Answer(Situation.WAITING, text, (since, *rest), main.failure_class, main.action)


# -- obstacles -------------------------------------------------------------------------------------------------------


def find_obstacles(facts: JobFacts) -> tuple[Obstacle, ...]:
    """Return what keeps replicas from running. Obstacles that a user must remove come first."""
    found = waiting.obstacles(facts.job, facts.status, facts.refusals, facts.now, facts.extras)
    told = [_with_warning(facts, one) for one in found]
    return tuple(sorted(told, key=lambda one: one.failure_class is FailureClass.NONE))


def _with_warning(facts: JobFacts, one: Obstacle) -> Obstacle:
    """Return the obstacle with the last warning about its first pod: only events say that a volume is missing.

    For an unschedulable pod, add what is missing on which node: kube-scheduler does not say it.
    """
    role, _, index = one.replicas[0].rpartition("-")
    pod = facts.job.key.replica_name(role, int(index))
    if one.failure_class is FailureClass.UNSCHEDULABLE and pod in facts.shortages:
        return replace(one, message=f"{one.message.partition('. ')[0]}; {facts.shortages[pod]}")
    warning = facts.warnings.get(pod)
    if one.failure_class is not FailureClass.NONE or warning is None:
        return one
    found = FailureClass.MISSING_OBJECT if warning[0] in _MOUNT_REASONS else FailureClass.NONE
    text = f"{one.message} ({': '.join(part for part in warning if part)})"
    return replace(one, failure_class=found, message=text, action=diagnose.ACTIONS.get(found, ""))


def _obstacle_text(facts: JobFacts, one: Obstacle) -> str:
    total = sum(len(role.replicas) for role in facts.status.roles)
    several = len(one.replicas) > 1
    who = replica_names(one.replicas) + (f" ({len(one.replicas)} of {total} replicas)" if several else "")
    if one.failure_class is FailureClass.UNSCHEDULABLE:
        return f"{who} {'have' if several else 'has'} no place: {one.message}"
    return f"{who}: {one.message}"
