# SPDX-License-Identifier: Apache-2.0
"""Explain a job that has ended, or that nothing manages: what decided its end, and the first failed replica."""

from trainwright.core import diagnose
from trainwright.core.budget_report import BudgetOwner, budget_states
from trainwright.core.explanation import Answer, JobFacts, Situation, as_sentence
from trainwright.core.failure_text import FailureAccount, replica_names
from trainwright.model.cause import CauseKind
from trainwright.model.job import Job
from trainwright.model.ledger import Outcome, Phase, Reason
from trainwright.model.rule import Result
from trainwright.model.units import spell_exactly
from trainwright.model.verdict import FailureClass


def left_alone(facts: JobFacts) -> Answer | None:
    """Explain a job that Trainwright does not manage."""
    job = facts.job
    if job.unmanaged:
        text = "is managed by another controller, as its manifest says: Trainwright changes nothing"
        return Answer(Situation.LEFT_ALONE, text, action="look at the status that the other controller writes")
    if job.unreadable:
        text = f"is left alone: {job.invalid}"
        return Answer(Situation.LEFT_ALONE, text, action="use the version of Trainwright that wrote the status")
    if job.foreign and facts.status.ledger.phase is Phase.NEW:
        text = f"is left alone: {job.foreign} wrote its status, and nothing in it is Trainwright's"
        return Answer(Situation.LEFT_ALONE, text, action="the event ManagedElsewhere says how to hand the job over")
    return None


def ended(facts: JobFacts) -> Answer | None:
    """Explain a job that has an outcome."""
    outcome, verdict = facts.status.ledger.outcome, facts.status.ledger.verdict
    if outcome is None:
        return None
    if outcome.result is Result.SUCCEEDED:
        why = f"rule {outcome.rule} is fulfilled" if outcome.rule else _message(facts.job, outcome)
        return Answer(Situation.SUCCEEDED, f"succeeded{': ' * bool(why)}{why}")
    account = facts.account
    if outcome.reason in (Reason.DEADLINE, Reason.START_DEADLINE):
        return _overdue(facts, outcome, account)
    if account is None or outcome.reason in (Reason.EXTERNAL, Reason.INVALID):
        found = verdict.failure_class if verdict is not None else FailureClass.NONE
        action = verdict.action if verdict is not None else ""
        cause = verdict.message if verdict is not None and verdict.replica else _message(facts.job, outcome)
        what = "its manifest cannot be run: " if outcome.reason is Reason.INVALID else ""
        named = verdict is None or not verdict.replica or outcome.message in verdict.message
        decided = () if named else (as_sentence(_decided(facts, outcome)),)
        return Answer(Situation.FAILED, f"failed: {what}{cause}", decided, found, action)
    sentences = (as_sentence(_decided(facts, outcome)), _replica_sentence(account), _others_sentence(facts, account))
    known = account.diagnosis
    return Answer(Situation.FAILED, f"failed: {account.text()}", sentences, known.failure_class, known.action)


def _overdue(facts: JobFacts, outcome: Outcome, account: FailureAccount | None) -> Answer:
    """Explain a job that a deadline ended: what it still waited for, and the last failure before."""
    life = facts.job.lifecycle
    limit = life.deadline.seconds if life.deadline is not None else None
    if outcome.reason is Reason.START_DEADLINE:
        limit = life.start_deadline
    text = f"failed: {outcome.message}" + (f" ({spell_exactly(limit)})" if limit is not None else "")
    text += f": {facts.unsettled[0]}" if facts.unsettled and outcome.reason is Reason.START_DEADLINE else ""
    states = f"When it ended: {'; '.join(facts.unsettled)}." if facts.unsettled else ""
    before = f"The last failure before: {account.text()}." if account is not None else ""
    action = diagnose.ACTIONS[FailureClass.DEADLINE]
    return Answer(Situation.FAILED, text, (states, before), FailureClass.DEADLINE, action)


def _message(job: Job, outcome: Outcome) -> str:
    """Return what decided the outcome; for a requested end, also who asked for it."""
    if outcome.reason is Reason.EXTERNAL and job.lifecycle.ending is not None:
        return job.lifecycle.ending.describe(outcome.message)
    return outcome.message


def _decided(facts: JobFacts, outcome: Outcome) -> str:
    """Return what made this failure the end of the job: the rule or limit, and why no restart followed."""
    text = f"rule {outcome.rule} ended the job" if outcome.rule else f"what decided: {outcome.message}"
    one = facts.failure
    role = next((role for role in facts.job.roles if one is not None and role.name == one.role), None)
    if one is None or role is None or outcome.reason is Reason.BACKOFF_LIMIT:
        return text
    names = {BudgetOwner.ROLE: role.name, BudgetOwner.REPLICA: f"{one.role}-{one.index}"}
    states = budget_states(facts.job, facts.status, facts.now)
    used = next((state for state in states if names.get(state.owner) == state.name), None)
    if used is not None and used.limit and used.used >= used.limit:
        amount = f"all {used.limit} allowed restarts" if used.limit > 1 else "the only allowed restart"
        return f"{text}; {amount} of {used.name} {'were' if used.limit > 1 else 'was'} used"
    if role.restart.limit == 0:
        return f"{text}; {role.name} may not be restarted (limit 0)"
    codes = " code" if role.restart.codes is not None and one.cause.why is CauseKind.EXIT else ""
    return f"{text}; the restart policy of {role.name} does not restart it after this{codes}"


def _replica_sentence(account: FailureAccount) -> str:
    """Return which pod it was, and how it ended, exactly."""
    one = account.failure
    again = f", attempt {one.attempt}" if one.attempt else ""
    return f"{account.replica} (pod {one.pod}{again}): {one.cause}."


def _others_sentence(facts: JobFacts, account: FailureAccount) -> str:
    """Return which other replicas failed after the first one."""
    first = account.failure
    others = {
        f"{one.role}-{one.index}" for one in facts.status.ledger.failures if one.at >= first.at and one != first
    } - {account.replica}
    return f"After it, these failed too: {replica_names(sorted(others))}." if others else ""


def stopped(facts: JobFacts) -> Answer | None:
    """Explain a job without an outcome that is being deleted or was deleted, or whose run has ended."""
    job = facts.job
    if facts.was_deleted or (job.deleting and not facts.stopped):
        text = "was deleted before it ended" if facts.was_deleted else "is being deleted"
        return Answer(Situation.DELETED, text, failure_class=FailureClass.REQUESTED)
    if not facts.stopped:
        return None
    states = f"When it stopped: {'; '.join(facts.unsettled)}." if facts.unsettled else ""
    states = "It was suspended." if facts.status.ledger.phase is Phase.SUSPENDED else states
    account = facts.account
    before = f"The last failure before: {account.text()}." if account is not None else ""
    known = facts.status.ledger.phase is not Phase.NEW
    last = f"The last event about it: {facts.last_event}" if facts.last_event and not known else ""
    return Answer(Situation.STOPPED, f"did not end: {facts.stopped}", (states, before, last))
