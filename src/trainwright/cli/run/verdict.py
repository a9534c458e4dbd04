# SPDX-License-Identifier: Apache-2.0
"""What to do about a failure, as far as its exit code and last words tell. `verdict` asks; the first match wins.

Why a job ended as it did: the rule, the replica, its exit, its last words, and a hint. Called by `session`.

Everything comes from the job's ledger, its pods as the board saw them, and the log files.
"""

import re
from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trainwright.cli.flags import span
from trainwright.cli.policy_text import because
from trainwright.cli.record import PodCount, shown
from trainwright.cli.run.model import JobRow
from trainwright.cli.show.news import JobVerdict, ReplicaNews
from trainwright.core import attempts
from trainwright.kinds.base import load
from trainwright.model.cause import NOT_STARTED, Cause, CauseKind, implied_signal, signal_name
from trainwright.model.job import Job, Role
from trainwright.model.ledger import Failure, Outcome, Reason
from trainwright.model.rule import Result
from trainwright.model.units import row

_HERE = "images are not used here, so it must be installed on this machine"
_IN_USE = re.compile(r"address (is )?already in use|EADDRINUSE", re.IGNORECASE)
_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_NOT_FOUND = re.compile(r"not found|no such file", re.IGNORECASE)
_SIGBUS = 7
_BUS_ERROR = re.compile(r"bus error|insufficient shared memory", re.IGNORECASE)
#: What shells print when a command of theirs was ended by a signal.
_OF_SHELLS = {6: "Aborted", 9: "Killed", 11: "Segmentation fault", 15: "Terminated"}
_UNRESOLVED = re.compile(
    r"name or service not known|temporary failure in name resolution|nodename nor servname|could not resolve host|"
    r"no address associated with hostname",
    re.IGNORECASE,
)


class Evidence(Struct, frozen=True):
    """What is known of the end of a container."""

    code: int | None
    #: 0: none; None: it is not known whether the exit code stands for one.
    signal: int | None
    reason: str
    lines: tuple[str, ...]
    runtime: str
    #: What the node says of the end.
    message: str = ""
    #: The node has said itself why it ended the container.
    told: bool = False
    #: The job was made from a command, so its limits come from options.
    by_command: bool = False

    @property
    def text(self) -> str:
        """Its last words in one."""
        return "\n".join(self.lines)

    @property
    def killed_by(self) -> int:
        """The signal; where that is not known, the one that the exit code may stand for."""
        return implied_signal(self.code or 0) if self.signal is None else self.signal

    @property
    def started(self) -> bool:
        """Its program ran, so that the exit code is not the node's."""
        return self.reason not in NOT_STARTED


def hint(evidence: Evidence) -> str:
    """One sentence, or nothing."""
    return next((text for look in _LOOKS if (text := look(evidence))), "")


def _port(one: Evidence) -> str:
    if not _IN_USE.search(one.text):
        return ""
    if one.runtime == "process":
        return "replicas share this machine's ports here; `--runtime sandbox` gives each a network of its own"
    return "something in the same replica listens on that port already, or hostNetwork is set"


def _module(one: Evidence) -> str:
    found = _MODULE.search(one.text)
    return f"Python did not find {found[1]}: {_HERE}, for the Python that the command runs" if found else ""


def _memory(one: Evidence) -> str:
    limit = "--memory-per-replica" if one.by_command else "resources.limits.memory"
    return f"it used more memory than its limit: raise {limit}" if one.reason == "OOMKilled" else ""


def _missing(one: Evidence) -> str:
    if one.started or one.code != 127:
        return ""
    return f"the command was not found: {_HERE} and be on the PATH"


def _forbidden(one: Evidence) -> str:
    clear = "directory" in one.message or "interpreter" in one.message  # the node has said it all
    if one.started or one.code != 126 or clear:
        return ""
    return "the command cannot be executed: it needs `chmod +x`, and a first line `#!…` if it is a script"


def _by_shell(one: Evidence) -> str:
    """A shell passes on how its last command ended; only what it printed tells that from a code of its own."""
    if one.started and one.code == 127 and _NOT_FOUND.search(one.text):
        return f"a shell did not find a command, which the last lines name: {_HERE} and be on the PATH"
    killed = implied_signal(one.code or 0) if one.signal == 0 else 0
    if killed and (word := _OF_SHELLS.get(killed)) and re.search(rf"\b{word}\b", one.text):
        return f"a shell passed on that a command of it was ended by {signal_name(killed)}"
    return ""


def _shared_memory(one: Evidence) -> str:
    if one.killed_by != _SIGBUS and not _BUS_ERROR.search(one.text):
        return ""
    why = "there was no room left for the shared memory that it wrote to, or a file it had mapped became shorter"
    if one.runtime == "process":
        return f"{why}: /dev/shm is this machine's here, `df -h /dev/shm` shows how full it is"
    larger = "mount an emptyDir with `medium: Memory` and a larger `sizeLimit` there"
    return f"{why}: /dev/shm was probably full; {larger}, or start fewer data loader workers"


def _unresolved(one: Evidence) -> str:
    if not _UNRESOLVED.search(one.text):
        return ""
    if one.runtime == "process":
        return (
            "names of replicas resolve in the sandbox only (`--runtime sandbox`); here use $(service.TYPE[RANK].host)"
        )
    return "replicas have names only if the job has `spec.service`; others must resolve on this machine"


def _disk(one: Evidence) -> str:
    return "a disk is full: free some room, or put the state folder elsewhere (TRAINWRIGHT_STATE)" * (
        "No space left on device" in one.text
    )


def _signalled(one: Evidence) -> str:
    text = {
        4: "it ran an instruction that this processor does not have: it was built for another one",
        6: "it aborted itself: the lines above should say why",
        9: "SIGKILL comes from somebody, or from the kernel when memory runs out (`dmesg` tells)",
        11: "it touched memory that is not its own: a defect in native code",
        15: "it was asked to end from outside",
    }.get(one.killed_by, "") * (not one.told)
    return f"if it was {signal_name(one.killed_by)}: {text}" if text and one.signal is None else text


_LOOKS: tuple[Callable[[Evidence], str], ...] = (
    _port,
    _module,
    _memory,
    _missing,
    _forbidden,
    _by_shell,
    _shared_memory,
    _unresolved,
    _disk,
    _signalled,
)


#: Replicas that are named when a job did not get where it should.
_MOST = 5


class RunEnd(StrEnum):
    """Why a run is over."""

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
    """What a verdict is found from, besides the job itself."""

    end: RunEnd
    runtime: str
    #: Seconds that the job has taken.
    took: float
    replicas: list[ReplicaNews]
    #: The last lines of a container: (pod, attempt, container) -> lines.
    words: Callable[[str, int, str], tuple[str, ...]]
    #: The pods that tell of restarts beyond what the ledger says.
    pods: tuple[PodCount, ...] = ()
    #: The job was made from a command.
    by_command: bool = False


def ending(sheet: JobRow, scene: VerdictInput) -> JobVerdict:
    """How a job's run ended."""
    outcome = sheet.ledger.outcome
    restarts = shown(sheet.ledger, scene.pods)
    where = (sheet.key.namespace, sheet.key.name)
    if outcome is None:
        word, code, why = _unfinished(scene)
        waiting = tuple(_unsettled(scene.replicas))
        return JobVerdict(*where, word, code, scene.took, restarts, why, unsettled=waiting)
    if outcome.result is Result.SUCCEEDED:
        rule = f"rule {outcome.rule} is fulfilled" if outcome.rule else ""
        why = rule or (_asked(sheet, outcome) if outcome.reason is Reason.EXTERNAL else "")
        return JobVerdict(*where, "Succeeded", 0, scene.took, restarts, why, outcome.rule)
    return _failed(sheet, outcome, scene, JobVerdict(*where, "Failed", 1, scene.took, restarts, ""))


def _unfinished(scene: VerdictInput) -> tuple[str, int, str]:
    """The word, the exit code, and the reason of a run that ended before its job did."""
    if scene.end is RunEnd.DONE:
        return "Deleted", 1, "somebody deleted the job before it ended"
    word = scene.end.value if scene.end in (RunEnd.TIMED_OUT, RunEnd.BROKEN) else "Interrupted"
    why = {
        RunEnd.TERMINATED: "SIGTERM came",
        RunEnd.HUNG_UP: "the terminal is gone",
        RunEnd.READER_GONE: "nobody reads the output any more",
        RunEnd.TIMED_OUT: "--timeout passed",
    }
    return word, CODES[scene.end], why.get(scene.end, "")


def _unsettled(replicas: list[ReplicaNews]) -> Iterator[str]:
    """Replicas that have a reason not to run."""
    found = [one for one in replicas if one.reason and one.phase not in ("Succeeded", "Stopped", "Terminating")]
    for one in found[:_MOST]:
        yield f"{one.label} {one.phase}: {one.reason}"
    if len(found) > _MOST:
        yield f"… and {len(found) - _MOST} more"


def _asked(sheet: JobRow, outcome: Outcome) -> str:
    """Who asked for an end that no rule decided."""
    ending = load(sheet.kind, sheet.body).job.lifecycle.ending
    return outcome.message if ending is None else ending.told(outcome.message)


def _failed(sheet: JobRow, outcome: Outcome, scene: VerdictInput, blank: JobVerdict) -> JobVerdict:
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
    evidence = Evidence(code, signal, cause.reason, lines, scene.runtime, cause.message, told, scene.by_command)
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
    first = next(iter(cause.message.splitlines()), "") if cause.why is CauseKind.EXIT else ""
    return "" if any(first in line for line in lines) else first


def _budget(sheet: JobRow, failure: Failure, roles: tuple[Role, ...]) -> str:
    """Whether restarts were used up: those of the replica or of its role, as the limit goes."""
    role = next((role for role in roles if role.name == failure.role), None)
    if role is None or not role.restart.limit:
        return ""
    book = attempts.of_role(sheet.ledger, role.name)
    if role.restart.per_replica:
        used = row(book.charged or attempts.attributed(role, book).charged).get(failure.index, 0)
    else:
        used = attempts.restarts(book, role.uncounted)
    limit = role.restart.limit
    return f"; {used} of {limit} restart{'s' * (limit != 1)} {'was' if used == 1 else 'were'} used"


def _last(cause: Cause) -> tuple[str, ...]:
    """Where there is no log, the message may tell."""
    return tuple(cause.message.splitlines()[-10:]) if cause.why is CauseKind.EXIT else ()
