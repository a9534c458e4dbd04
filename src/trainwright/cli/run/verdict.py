# SPDX-License-Identifier: Apache-2.0
"""Explains the end of a job: the rule, the replica, its exit, its last log lines, and a hint what to do.

The verdict uses the ledger of the job, the state of its replicas, and the log files.
"""

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import chain

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trainwright.cli.flags import span
from trainwright.cli.policy_text import because
from trainwright.cli.record import PodCount, count_restarts
from trainwright.cli.run.model import JobRow
from trainwright.cli.show.news import JobVerdict, ReplicaNews
from trainwright.core import attempts
from trainwright.kinds.base import load
from trainwright.model.cause import NOT_STARTED, Cause, CauseKind, implied_signal, signal_name
from trainwright.model.job import Job, Role
from trainwright.model.ledger import Failure, Outcome, Reason
from trainwright.model.rule import Result
from trainwright.model.units import parse_row

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


class VerdictInput(Struct, frozen=True):
    """What `find_verdict` needs in addition to the job."""

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


def find_verdict(job_row: JobRow, context: VerdictInput) -> JobVerdict:
    """The verdict on a job at the end of the run."""
    outcome = job_row.ledger.outcome
    restarts = count_restarts(job_row.ledger, context.pods)
    where = (job_row.key.namespace, job_row.key.name)
    if outcome is None:
        name, code, reason = _unfinished(context)
        unsettled = tuple(_unsettled(context.replicas))
        return JobVerdict(*where, name, code, context.took, restarts, reason, unsettled=unsettled)
    if outcome.result is Result.SUCCEEDED:
        rule = f"rule {outcome.rule} is fulfilled" if outcome.rule else ""
        because = rule or (_requested_end(job_row, outcome) if outcome.reason is Reason.EXTERNAL else "")
        return JobVerdict(*where, "Succeeded", 0, context.took, restarts, because, outcome.rule)
    return _failed(job_row, outcome, context, JobVerdict(*where, "Failed", 1, context.took, restarts, ""))


def _unfinished(context: VerdictInput) -> tuple[str, int, str]:
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


def _failed(job_row: JobRow, outcome: Outcome, context: VerdictInput, blank: JobVerdict) -> JobVerdict:
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
    explained = bool(_node_message(cause, lines)) and cause.started
    evidence = Evidence(
        code, signal, cause.reason, lines, context.runtime, cause.message, explained, context.by_command
    )
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
        hint=hint(evidence),
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


def _message_lines(cause: Cause) -> tuple[str, ...]:
    """The last lines of the node's message, which are shown if there is no log."""
    return tuple(cause.message.splitlines()[-10:]) if cause.why is CauseKind.EXIT else ()


_INSTALL_ADVICE = "a local run uses no images, so it must be installed on this machine"
_PORT_IN_USE = re.compile(r"address (is )?already in use|EADDRINUSE", re.IGNORECASE)
_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_NOT_FOUND = re.compile(r"not found|no such file", re.IGNORECASE)
_SIGBUS = 7
_BUS_ERROR = re.compile(r"bus error|insufficient shared memory", re.IGNORECASE)
#: By signal: the text that a shell prints after this signal has ended its command.
_SHELL_TEXTS = {6: "Aborted", 9: "Killed", 11: "Segmentation fault", 15: "Terminated"}
_SIGNAL_HINTS = {
    4: "it ran an instruction that this processor does not have: it was built for another processor",
    6: "the program aborted: the last lines should say why",
    9: "a user or another process sent SIGKILL, or the kernel did because memory ran out (see `dmesg`)",
    11: "it used an invalid memory address: a defect in native code",
    15: "another process asked it to end",
}
_UNRESOLVED = re.compile(
    r"name or service not known|temporary failure in name resolution|nodename nor servname|could not resolve host|"
    r"no address associated with hostname",
    re.IGNORECASE,
)


class Evidence(Struct, frozen=True):
    """What is known about the exit of a container."""

    code: int | None
    #: The signal that ended the container; 0: no signal; None: it is not known whether a signal ended it.
    signal: int | None
    reason: str
    lines: tuple[str, ...]
    runtime: str
    #: The message of the node about the exit.
    message: str = ""
    #: Whether this message says why the node ended the container.
    explained: bool = False
    #: Whether the job was made from a command, so that its limits come from options.
    by_command: bool = False

    @property
    def text(self) -> str:
        """The last log lines as one text."""
        return "\n".join(self.lines)

    @property
    def killed_by(self) -> int:
        """The signal that ended the container; 0: none. If the signal is not known, it is guessed from the code."""
        return implied_signal(self.code or 0) if self.signal is None else self.signal

    @property
    def started(self) -> bool:
        """Whether the program has started. If not, the exit code comes from the node and not from the program."""
        return self.reason not in NOT_STARTED


def hint(evidence: Evidence) -> str:
    """One sentence that says what to do: the first hint that matches; empty if no hint matches."""
    return next(chain(_program_hints(evidence), _machine_hints(evidence)), "")


def _program_hints(one: Evidence) -> Iterator[str]:
    if _PORT_IN_USE.search(one.text):
        if one.runtime == "process":
            yield "replicas share the ports of this machine; with `--runtime sandbox` each replica has its own network"
        yield "another process in the same replica already listens on this port, or hostNetwork is set"
    if found := _MODULE.search(one.text):
        yield f"Python did not find {found[1]}: {_INSTALL_ADVICE}, for the Python of the command"
    if one.reason == "OOMKilled":
        limit = "--memory-per-replica" if one.by_command else "resources.limits.memory"
        yield f"it used more memory than its limit: raise {limit}"
    if not one.started and one.code == 127:
        yield f"the command was not found: {_INSTALL_ADVICE} and be on the PATH"
    is_clear = "directory" in one.message or "interpreter" in one.message  # the message explains code 126 already
    if not one.started and one.code == 126 and not is_clear:
        yield "the command cannot be executed: it needs `chmod +x`, and a first line `#!…` if it is a script"
    # A shell exits with the exit code of its last command. So a code can have several causes; look in the log.
    if one.started and one.code == 127 and _NOT_FOUND.search(one.text):
        yield f"a shell did not find a command (see the last lines): {_INSTALL_ADVICE} and be on the PATH"
    killed = implied_signal(one.code or 0) if one.signal == 0 else 0
    if (word := _SHELL_TEXTS.get(killed)) and re.search(rf"\b{word}\b", one.text):
        yield f"a command of the shell was ended by {signal_name(killed)}"


def _machine_hints(one: Evidence) -> Iterator[str]:
    if one.killed_by == _SIGBUS or _BUS_ERROR.search(one.text):
        why = "there was no space left for shared memory, or a file that it had mapped became shorter"
        if one.runtime == "process":
            yield f"{why}: replicas share /dev/shm of this machine; `df -h /dev/shm` shows how full it is"
        larger = "mount an emptyDir with `medium: Memory` and a larger `sizeLimit` there"
        yield f"{why}: /dev/shm was probably full; {larger}, or start fewer data loader workers"
    if _UNRESOLVED.search(one.text):
        if one.runtime == "process":
            yield "names of replicas resolve only with `--runtime sandbox`; without it, use $(service.TYPE[RANK].host)"
        yield "replicas have host names only if the job has `spec.service`; other names must resolve on this machine"
    if "No space left on device" in one.text:
        yield "a disk is full: free some space, or move the state folder to another disk (TRAINWRIGHT_STATE)"
    if (text := _SIGNAL_HINTS.get(one.killed_by)) and not one.explained:
        yield f"if it was {signal_name(one.killed_by)}: {text}" if one.signal is None else text
