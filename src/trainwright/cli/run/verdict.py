# SPDX-License-Identifier: Apache-2.0
"""Why a job ended as it did: the rule, the replica, its exit, its last words, and a hint. Called by `session`.

Everything comes from the job's ledger, its pods as the board saw them, and the log files.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trainwright.cli.duration import span
from trainwright.cli.restarts import PodCount, shown
from trainwright.cli.run.board import Sheet
from trainwright.cli.run.hints import Evidence, hint
from trainwright.cli.show.news import Ending, Replica
from trainwright.cli.terms import because
from trainwright.core import attempts, counting
from trainwright.kinds.base import load
from trainwright.model.cause import Cause, Why
from trainwright.model.indexes import row
from trainwright.model.job import Job, Role
from trainwright.model.ledger import Failure, Outcome, Reason
from trainwright.model.rule import Result

#: Replicas that are named when a job did not get where it should.
_MOST = 5


class End(StrEnum):
    """Why a run is over."""

    DONE = "Done"
    INTERRUPTED = "Interrupted"
    TERMINATED = "Terminated"
    HUNG_UP = "HungUp"
    TIMED_OUT = "TimedOut"
    READER_GONE = "ReaderGone"
    BROKEN = "Broken"


CODES = {
    End.INTERRUPTED: 130,
    End.TERMINATED: 143,
    End.HUNG_UP: 129,
    End.TIMED_OUT: 124,
    End.READER_GONE: 141,
    End.BROKEN: 3,
}


class Scene(Struct, frozen=True):
    """What a verdict is found from, besides the job itself."""

    end: End
    runtime: str
    #: Seconds that the job has taken.
    took: float
    replicas: list[Replica]
    #: The last lines of a container: (pod, attempt, container) -> lines.
    words: Callable[[str, int, str], tuple[str, ...]]
    #: The pods that tell of restarts beyond what the ledger says.
    pods: tuple[PodCount, ...] = ()


def ending(sheet: Sheet, scene: Scene) -> Ending:
    """How a job's run ended."""
    outcome = sheet.ledger.outcome
    restarts = shown(sheet.ledger, scene.pods)
    where = (sheet.key.namespace, sheet.key.name)
    if outcome is None:
        word, code, why = _unfinished(scene)
        waiting = tuple(_unsettled(scene.replicas))
        return Ending(*where, word, code, scene.took, restarts, why, unsettled=waiting)
    if outcome.result is Result.SUCCEEDED:
        rule = f"rule {outcome.rule} is fulfilled" if outcome.rule else ""
        why = rule or (_asked(sheet, outcome) if outcome.reason is Reason.EXTERNAL else "")
        return Ending(*where, "Succeeded", 0, scene.took, restarts, why, outcome.rule)
    return _failed(sheet, outcome, scene, Ending(*where, "Failed", 1, scene.took, restarts, ""))


def _unfinished(scene: Scene) -> tuple[str, int, str]:
    """The word, the exit code, and the reason of a run that ended before its job did."""
    if scene.end is End.DONE:
        return "Deleted", 1, "somebody deleted the job before it ended"
    word = scene.end.value if scene.end in (End.TIMED_OUT, End.BROKEN) else "Interrupted"
    why = {
        End.TERMINATED: "SIGTERM came",
        End.HUNG_UP: "the terminal is gone",
        End.READER_GONE: "nobody reads the output any more",
        End.TIMED_OUT: "--timeout passed",
    }
    return word, CODES[scene.end], why.get(scene.end, "")


def _unsettled(replicas: list[Replica]) -> Iterator[str]:
    """Replicas that have a reason not to run."""
    found = [one for one in replicas if one.reason and one.phase not in ("Succeeded", "Stopped", "Terminating")]
    for one in found[:_MOST]:
        yield f"{one.label} {one.phase}: {one.reason}"
    if len(found) > _MOST:
        yield f"… and {len(found) - _MOST} more"


def _asked(sheet: Sheet, outcome: Outcome) -> str:
    """Who asked for an end that no rule decided."""
    ending = load(sheet.kind, sheet.body).job.lifecycle.ending
    return outcome.message if ending is None else ending.told(outcome.message)


def _failed(sheet: Sheet, outcome: Outcome, scene: Scene, blank: Ending) -> Ending:
    job = load(sheet.kind, sheet.body).job
    rule = (outcome.rule or because(job, outcome)) if outcome.reason is Reason.RULE else ""
    if outcome.reason is Reason.EXTERNAL:
        return replace(blank, because=_asked(sheet, outcome))
    failure = outcome.failure or next(iter(sheet.ledger.failures[-1:]), None)
    if failure is None:
        waiting = tuple(_unsettled(scene.replicas))
        return replace(blank, because=_decided(outcome, None, job), rule=rule, unsettled=waiting)
    cause = failure.cause
    code, signal = (None if value is UNSET else value for value in (cause.code, cause.signal))
    lines = (scene.words(failure.pod, failure.attempt, cause.container) or _last(cause)) if cause.started else ()
    told = bool(_said(cause, lines)) and cause.started
    evidence = Evidence(code, signal, cause.reason, lines, scene.runtime, cause.message, told)
    return replace(
        blank,
        because=_decided(outcome, failure, job),
        rule=rule,
        replica=f"{failure.role}-{failure.index}",
        pod=failure.pod,
        container=cause.container,
        code=code,
        signal=signal or None,
        cause=_cause(cause, lines) + _budget(sheet, failure, job.roles),
        last_lines=lines,
        hint=hint(evidence),
    )


def _decided(outcome: Outcome, failure: Failure | None, job: Job) -> str:
    if outcome.reason is not Reason.RULE or failure is None:
        return outcome.message + _limit(outcome, job)
    return f"{failure.role}-{failure.index} failed" + (f", which rule {outcome.rule} names" if outcome.rule else "")


def _limit(outcome: Outcome, job: Job) -> str:
    """How long the time was that has passed; the kinds' own texts do not all say it."""
    life = job.lifecycle
    if outcome.reason is Reason.DEADLINE and life.deadline is not None:
        return f" of {span(life.deadline.seconds)}"
    if outcome.reason is Reason.START_DEADLINE and life.start_deadline is not None:
        return f" ({span(life.start_deadline)})"
    return ""


def _cause(cause: Cause, lines: tuple[str, ...]) -> str:
    said = _said(cause, lines)
    return str(cause) + (f": {said}" if said else "")


def _said(cause: Cause, lines: tuple[str, ...]) -> str:
    """What the node says of the end, unless that is what the container printed itself."""
    first = next(iter(cause.message.splitlines()), "") if cause.why is Why.EXIT else ""
    return "" if any(first in line for line in lines) else first


def _budget(sheet: Sheet, failure: Failure, roles: tuple[Role, ...]) -> str:
    """Whether restarts were used up: those of the replica or of its role, as the limit goes."""
    role = next((role for role in roles if role.name == failure.role), None)
    if role is None or not role.restart.limit:
        return ""
    book = attempts.of_role(sheet.ledger, role.name)
    if role.restart.per_replica:
        used = row(book.charged or counting.attributed(role, book).charged).get(failure.index, 0)
    else:
        used = attempts.restarts(book, role.uncounted)
    limit = role.restart.limit
    return f"; {used} of {limit} restart{'s' * (limit != 1)} {'was' if used == 1 else 'were'} used"


def _last(cause: Cause) -> tuple[str, ...]:
    """Where there is no log, the message may tell."""
    return tuple(cause.message.splitlines()[-10:]) if cause.why is Why.EXIT else ()
