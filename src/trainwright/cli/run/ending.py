# SPDX-License-Identifier: Apache-2.0
"""Explains the end of a job: the rule, the replica, its exit, its last log lines, and a hint about what to do.

The ending uses the ledger of the job, the state of its replicas, and the log files.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trainwright.cli.flags import span
from trainwright.cli.policy_text import because
from trainwright.cli.record import PodCount, count_restarts
from trainwright.cli.run.model import JobRow
from trainwright.cli.show.news import JobEnding, ReplicaNews
from trainwright.core import attempts
from trainwright.core.advice import RunPlace, advise
from trainwright.core.diagnose import ACTIONS, diagnose
from trainwright.kinds.base import load
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.job import Job, Role
from trainwright.model.ledger import Failure, Outcome, Reason
from trainwright.model.rule import Result
from trainwright.model.units import parse_row
from trainwright.model.verdict import FailureClass

#: Maximum number of replicas that `_unsettled` lists.
_MAX_UNSETTLED = 5


class RunEnd(StrEnum):
    """The reason why a run ends."""

    DONE = "Done"
    INTERRUPTED = "Interrupted"
    TERMINATED = "Terminated"
    HUNG_UP = "HungUp"
    TIMED_OUT = "TimedOut"
    READER_GONE = "ReaderGone"
    BROKEN = "Broken"


CODES = {
    RunEnd.INTERRUPTED: 130,
    RunEnd.TERMINATED: 143,
    RunEnd.HUNG_UP: 129,
    RunEnd.TIMED_OUT: 124,
    RunEnd.READER_GONE: 141,
    RunEnd.BROKEN: 3,
}


class EndingInput(Struct, frozen=True):
    """What `find_ending` needs in addition to the job."""

    end: RunEnd
    runtime: str
    #: Seconds from the start to the end of the job.
    took: float
    replicas: list[ReplicaNews]
    #: A function that returns the last log lines of a container. Its arguments are pod, attempt and container.
    last_lines: Callable[[str, int, str], tuple[str, ...]]
    #: The pods that have restarts which the ledger does not count yet.
    pods: tuple[PodCount, ...] = ()
    #: Whether the job was made from a command.
    by_command: bool = False


def find_ending(job_row: JobRow, context: EndingInput) -> JobEnding:
    """The ending of a job: what the run says about the job at its end."""
    outcome = job_row.ledger.outcome
    restarts = count_restarts(job_row.ledger, context.pods)
    where = (job_row.key.namespace, job_row.key.name)
    if outcome is None:
        name, code, reason = _unfinished(context)
        unsettled = tuple(_unsettled(context.replicas))
        return JobEnding(*where, name, code, context.took, restarts, reason, unsettled=unsettled)
    if outcome.result is Result.SUCCEEDED:
        rule = f"rule {outcome.rule} is fulfilled" if outcome.rule else ""
        because = rule or (_requested_end(job_row, outcome) if outcome.reason is Reason.EXTERNAL else "")
        return JobEnding(*where, "Succeeded", 0, context.took, restarts, because, outcome.rule)
    return _failed(job_row, outcome, context, JobEnding(*where, "Failed", 1, context.took, restarts, ""))


def _unfinished(context: EndingInput) -> tuple[str, int, str]:
    """The outcome, the exit code and the reason of a run that ended before its job."""
    if context.end is RunEnd.DONE:
        return "Deleted", 1, "the job was deleted before it ended"
    name = context.end.value if context.end in (RunEnd.TIMED_OUT, RunEnd.BROKEN) else "Interrupted"
    reasons = {
        RunEnd.TERMINATED: "the run received SIGTERM",
        RunEnd.HUNG_UP: "the terminal was closed",
        RunEnd.READER_GONE: "the reader of the output has closed the pipe",
        RunEnd.TIMED_OUT: "--timeout passed",
    }
    return name, CODES[context.end], reasons.get(context.end, "")


def _unsettled(replicas: list[ReplicaNews]) -> Iterator[str]:
    """Replicas that failed, wait or are not ready, each with its phase and the reason."""
    found = [one for one in replicas if one.reason and one.phase not in ("Succeeded", "Stopped", "Terminating")]
    for one in found[:_MAX_UNSETTLED]:
        yield f"{one.label} {one.phase}: {one.reason}"
    if len(found) > _MAX_UNSETTLED:
        yield f"… and {len(found) - _MAX_UNSETTLED} more"


def _requested_end(job_row: JobRow, outcome: Outcome) -> str:
    """A text that says who requested the end of the job, if no rule decided it."""
    ending = load(job_row.kind, job_row.body).job.lifecycle.ending
    return outcome.message if ending is None else ending.describe(outcome.message)


def _failed(job_row: JobRow, outcome: Outcome, context: EndingInput, blank: JobEnding) -> JobEnding:
    job = load(job_row.kind, job_row.body).job
    rule = (outcome.rule or because(job, outcome)) if outcome.reason is Reason.RULE else ""
    if outcome.reason is Reason.EXTERNAL:
        return replace(blank, because=_requested_end(job_row, outcome))
    failure = outcome.failure or next(iter(job_row.ledger.failures[-1:]), None)
    if failure is None:
        unsettled = tuple(_unsettled(context.replicas))
        return replace(blank, because=_because(outcome, None, job), rule=rule, unsettled=unsettled)
    cause = failure.cause
    code, signal = (None if value is UNSET else value for value in (cause.code, cause.signal))
    lines: tuple[str, ...] = ()
    if cause.started:
        lines = context.last_lines(failure.pod, failure.attempt, cause.container) or _message_lines(cause)
    return replace(
        blank,
        because=_because(outcome, failure, job),
        rule=rule,
        replica=f"{failure.role}-{failure.index}",
        pod=failure.pod,
        container=cause.container,
        code=code,
        signal=signal or None,
        cause=_cause(cause, lines) + _budget(job_row, failure, job.roles),
        last_lines=lines,
        hint=_hint(cause, lines, RunPlace(context.runtime, by_command=context.by_command)),
    )


def _because(outcome: Outcome, failure: Failure | None, job: Job) -> str:
    if outcome.reason is not Reason.RULE or failure is None:
        return outcome.message + _deadline_text(outcome, job)
    return f"{failure.role}-{failure.index} failed" + (f", which rule {outcome.rule} names" if outcome.rule else "")


def _deadline_text(outcome: Outcome, job: Job) -> str:
    """The length of the exceeded deadline as a text, because the messages of some kinds do not contain it."""
    life = job.lifecycle
    if outcome.reason is Reason.DEADLINE and life.deadline is not None:
        return f" of {span(life.deadline.seconds)}"
    if outcome.reason is Reason.START_DEADLINE and life.start_deadline is not None:
        return f" ({span(life.start_deadline)})"
    return ""


def _cause(cause: Cause, lines: tuple[str, ...]) -> str:
    message = _node_message(cause, lines)
    return str(cause) + (f": {message}" if message else "")


def _node_message(cause: Cause, lines: tuple[str, ...]) -> str:
    """The first line of the node's message about the exit; empty if the container has printed this line itself."""
    first = next(iter(cause.message.splitlines()), "") if cause.why is CauseKind.EXIT else ""
    return "" if any(first in line for line in lines) else first


def _budget(job_row: JobRow, failure: Failure, roles: tuple[Role, ...]) -> str:
    """A text that says how many of the allowed restarts were used. The limit is per replica or per role."""
    role = next((role for role in roles if role.name == failure.role), None)
    if role is None or not role.restart.limit:
        return ""
    book = attempts.find_entry(job_row.ledger, role.name)
    if role.restart.per_replica:
        used = parse_row(book.charged or attempts.attribute_charges(role, book).charged).get(failure.index, 0)
    else:
        used = attempts.budget_used(book, role.uncounted)
    limit = role.restart.limit
    return f"; {used} of {limit} restart{'s' * (limit != 1)} {'was' if used == 1 else 'were'} used"


def _hint(cause: Cause, lines: tuple[str, ...], place: RunPlace) -> str:
    """What to do about the failure; empty if the lines above the hint say all."""
    found = diagnose(cause, lines)
    if found.failure_class is FailureClass.PROGRAM_ERROR:
        return ""
    by_signal = found.failure_class in (FailureClass.KILLED, FailureClass.CRASHED)
    if by_signal and found.action == ACTIONS[found.failure_class] and _node_message(cause, lines):
        return ""  # the node has said why it sent the signal, and a hint would be a guess
    return advise(cause, found, place)


def _message_lines(cause: Cause) -> tuple[str, ...]:
    """The last lines of the node's message, which are shown if there is no log."""
    return tuple(cause.message.splitlines()[-10:]) if cause.why is CauseKind.EXIT else ()
