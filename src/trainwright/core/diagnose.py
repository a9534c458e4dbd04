# SPDX-License-Identifier: Apache-2.0
"""The class of a failure, what happened in one sentence, and what to do about it.

The cause of an end decides if it names the class (node lost, evicted, image). For a program that ended itself, the text
that it left decides: the termination message, and the last lines of its log if the caller may read it. `core.signs` has
the table of these texts, and `core.output` finds the line that shows the failure.

Nothing here changes what happens to a job. Restart policies see only causes and exit codes.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trainwright.core import rate_budget
from trainwright.core.budget import EndedReplica
from trainwright.core.classify import disruption
from trainwright.core.observe import Snapshot
from trainwright.core.outcomes import failure
from trainwright.core.output import CONSEQUENCES, LONGEST_LINE, FoundSign, find_sign, last_line
from trainwright.core.signs import ACTIONS, SIGNS
from trainwright.model.cause import Cause, CauseKind, brief, implied_signal
from trainwright.model.ledger import Failure, Outcome, Phase, Reason
from trainwright.model.plan import State
from trainwright.model.rule import Result
from trainwright.model.units import EARLIEST_TIME, Time, after, spell_exactly, whole
from trainwright.model.verdict import LONGEST_NAME, LONGEST_SENTENCE, Decision, FailureClass, Verdict

__all__ = ["ACTIONS", "LONGEST_LINE", "SIGNS", "Diagnosis", "diagnose", "doubt"]

#: Signals that come from outside the program: HUP, INT, QUIT, KILL, USR1, USR2, TERM.
_OUTSIDE_SIGNALS = frozenset({1, 2, 3, 9, 10, 12, 15})
_SIGABRT, _SIGBUS = 6, 7
#: What a shell prints after a signal has ended its command.
_SHELL_TEXTS = {4: "Illegal instruction", 6: "Aborted", 8: "Floating point exception", 9: "Killed"} | {
    11: "Segmentation fault",
    15: "Terminated",
}
#: How many failures of the same second are compared; thousands of replicas may fail together.
_COMPARED_FAILURES = 32


class Diagnosis(Struct, frozen=True, gc=False):
    """The class of a failure, the line that shows it, and the suggested action."""

    failure_class: FailureClass
    #: The line that shows the failure: of the program's output, or of the node; empty if the cause says all.
    line: str = ""
    action: str = ""
    #: The last line of the program's output, if no line shows the failure.
    last_line: str = ""
    #: The signal that ended a command of the program, which is a shell; 0: none.
    shell_signal: int = 0


#: Reasons of containers that cannot be created because of their image.
_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_PREEMPTION_REASONS = frozenset({"PreemptionByScheduler", "PreemptionByKueueScheduler", "Preempting", "Preempted"})
_BY_CAUSE = {
    CauseKind.NODE_LOST: FailureClass.NODE_LOST,
    CauseKind.DEVICE: FailureClass.DEVICE_FAILED,
    CauseKind.EVICTED: FailureClass.EVICTED,
    CauseKind.DELETED: FailureClass.DELETED,
    CauseKind.REJECTED: FailureClass.DISRUPTED,
    CauseKind.COMPLETED: FailureClass.COMPLETED,
}


#: The diagnosis of a program that ended itself and left no output.
_SILENT_EXIT = Diagnosis(FailureClass.PROGRAM_ERROR, action=ACTIONS[FailureClass.PROGRAM_ERROR])


def diagnose(cause: Cause, lines: Iterable[str] = ()) -> Diagnosis:
    """Return the diagnosis of an end. `lines` are the last lines of the program's log, if they are known."""
    if cause.why is not CauseKind.EXIT:
        found = _class_of_cause(cause)
        return Diagnosis(found, action=ACTIONS.get(found, ""))
    message, log = cause.message.splitlines() if cause.message else (), tuple(lines)
    if cause.reason == "OOMKilled":
        return Diagnosis(FailureClass.OUT_OF_MEMORY, action=ACTIONS[FailureClass.OUT_OF_MEMORY])
    if not cause.started:
        found = FailureClass.COMMAND_NOT_FOUND
        return Diagnosis(found, last_line(message), ACTIONS[found])
    if not (message or log or _signal_number(cause)):
        return _SILENT_EXIT
    shown = _find_sign(cause, message, log)
    by_signal = _class_of_signal(cause, (*log, *message))
    if by_signal is None or (shown is not None and _explains_signal(cause, shown)):
        return _by_output(shown, message, log)
    shell = _shell_line(cause, (*log, *message))
    crashed = shown is not None and by_signal is FailureClass.CRASHED and _is_general(shown)
    line = shown.text if shown is not None and crashed else shell
    return Diagnosis(by_signal, line, ACTIONS[by_signal], shell_signal=implied_signal(_code(cause)) if shell else 0)


def _find_sign(cause: Cause, message: Sequence[str], log: Sequence[str]) -> FoundSign | None:
    """Return the sign in the log, or that in the termination message if its class is another one and more special."""
    in_log, in_message = find_sign(log, _code(cause)), find_sign(message, _code(cause))
    if in_log is None or in_message is None:
        return in_log or in_message
    same = in_log.sign.failure_class is in_message.sign.failure_class
    return in_log if same or _is_general(in_message) else in_message


def _is_general(found: FoundSign) -> bool:
    return found.sign.failure_class is FailureClass.PROGRAM_ERROR


def _explains_signal(cause: Cause, found: FoundSign) -> bool:
    """Return whether a line explains the signal: a special error that aborts the program, a kill, or shared memory."""
    aborted = _signal_number(cause) == _SIGABRT and not _is_general(found)
    return aborted or found.sign.failure_class in (FailureClass.KILLED, FailureClass.SHARED_MEMORY)


def _by_output(found: FoundSign | None, message: Sequence[str], log: Sequence[str]) -> Diagnosis:
    if found is not None:
        return Diagnosis(found.sign.failure_class, found.text, found.sign.action)
    action = ACTIONS[FailureClass.PROGRAM_ERROR]
    return Diagnosis(FailureClass.PROGRAM_ERROR, last_line(message), action, last_line(log))


def _class_of_cause(cause: Cause) -> FailureClass:
    """Return the class of an end that the environment caused."""
    if cause.why is CauseKind.CREATE_ERROR:
        return FailureClass.IMAGE if cause.reason in _IMAGE_REASONS else FailureClass.MISSING_OBJECT
    if cause.why is CauseKind.DELETED and cause.reason:
        cause = replace(cause, why=CauseKind.DISRUPTED)
    if cause.why is CauseKind.DISRUPTED:
        if cause.reason in _PREEMPTION_REASONS:
            return FailureClass.PREEMPTED
        if cause.reason == "Evicted":
            return FailureClass.EVICTED
        return FailureClass.NODE_LOST if CauseKind.NODE_LOST in cause.kinds else FailureClass.DISRUPTED
    return _BY_CAUSE.get(cause.why, FailureClass.PROGRAM_ERROR)


def removal_class(view: Snapshot) -> FailureClass:
    """Return why pods are being deleted: the disruption that the first such pod reports, or else `DELETED`."""
    if view.ledger.phase is not Phase.RESTARTING or view.ledger.verdict is not view.stored.verdict:
        return FailureClass.DELETED  # no pod is being deleted, or the new verdict says why
    pods = (one.pod for role in view.roles for one in role.replicas if one.state is State.STOPPING)
    told = (disruption(pod) for pod in pods if pod is not None)
    return next((_class_of_cause(one) for one in told if one is not None), FailureClass.DELETED)


def _class_of_signal(cause: Cause, lines: Sequence[str]) -> FailureClass | None:
    """Return the class of the signal that ended the program, or that ended the command of a shell."""
    number = _signal_number(cause) or (implied_signal(_code(cause)) if _shell_line(cause, lines) else 0)
    if not number:
        return None
    if number == _SIGBUS:
        return FailureClass.SHARED_MEMORY
    return FailureClass.KILLED if number in _OUTSIDE_SIGNALS else FailureClass.CRASHED


def _shell_line(cause: Cause, lines: Sequence[str]) -> str:
    """Return the line with which a shell reports the signal that its exit code names; empty if there is none."""
    word = _SHELL_TEXTS.get(implied_signal(_code(cause)))
    if word is None or cause.signal is UNSET or cause.signal:
        return ""
    pattern = re.compile(rf"(?:^|\s\d+ ){word}(?: \(core dumped\))?(?:\s|$)")
    return last_line([line for line in lines if pattern.search(line)])


def _signal_number(cause: Cause) -> int:
    """Return the signal that ended the program; 0: none. If only the exit code is known, it may imply one."""
    return implied_signal(_code(cause)) if cause.signal is UNSET else cause.signal


def _code(cause: Cause) -> int:
    return cause.code if isinstance(cause.code, int) else 0


# -- verdicts --------------------------------------------------------------------------------------------------------


def restart_verdict(view: Snapshot, retries: tuple[EndedReplica, ...]) -> Verdict:
    """Return why a part of the job is restarted: the first failure among these, or else the first success."""
    first = first_failed(retries) or retries[0]
    return _verdict(Decision.RESTART, first.scope, failure(view.job, first, view.now), view.now)


def end_verdict(view: Snapshot, outcome: Outcome, ended: Iterable[EndedReplica] = (), obstacle: str = "") -> Verdict:
    """Return why the job ended. `ended` are the replicas of this pass, `obstacle` is what keeps others from running."""
    if outcome.result is Result.SUCCEEDED:
        return Verdict(Decision.SUCCEEDED, outcome.at, outcome.reason, message=_one_line(_end_message(view, outcome)))
    found = _decisive_failure(view, outcome, ended)
    if found is not None:
        verdict = _verdict(Decision.FAILED, outcome.reason, found, outcome.at)
        return _with_limit(view, outcome, verdict) if outcome.reason is Reason.BACKOFF_LIMIT else verdict
    failed = _WITHOUT_FAILURE.get(outcome.reason, FailureClass.RULE)
    message = _end_message(view, outcome) + (f"; {obstacle}" if obstacle else "")
    action = ACTIONS.get(failed) or _END_ACTIONS[failed]
    if outcome.reason is Reason.BACKOFF_LIMIT:
        action = brief(_raise_limit(view, outcome), LONGEST_SENTENCE)
    return Verdict(Decision.FAILED, outcome.at, outcome.reason, failed, message=_one_line(message), action=action)


def _with_limit(view: Snapshot, outcome: Outcome, verdict: Verdict) -> Verdict:
    """Add the restart limit that ended the job to the message, and the advice to raise this limit to the action."""
    # The text about the limit must be complete, so a long message of the program is cut instead.
    message = brief(verdict.message, max(LONGEST_SENTENCE - len(outcome.message) - 2, 1))
    action = f"{verdict.action}; {_raise_limit(view, outcome)}"
    message = _one_line(f"{message}; {outcome.message}")
    return replace(verdict, message=message, action=brief(action, LONGEST_SENTENCE))


def _raise_limit(view: Snapshot, outcome: Outcome) -> str:
    """Return the advice to raise the restart limit that ended the job."""
    job = view.job
    rates = [rate_budget.as_written(job, name) for name in job.restart_rates]
    limit = next((text for text in rates if text in outcome.message), f"backoffLimit: {job.lifecycle.backoff_limit}")
    return f"to allow more restarts, raise {limit}"


#: Ends that no replica has caused.
_WITHOUT_FAILURE = {
    Reason.EXTERNAL: FailureClass.REQUESTED,
    Reason.INVALID: FailureClass.INVALID,
    Reason.DEADLINE: FailureClass.DEADLINE,
    Reason.START_DEADLINE: FailureClass.DEADLINE,
}
_END_ACTIONS = {
    FailureClass.REQUESTED: "nothing in the program caused this; start the job again if the end was not intended",
    FailureClass.INVALID: "correct the manifest; `trainwright validate` checks it without a cluster",
    FailureClass.RULE: "compare the rules for success and failure with the replicas that have ended",
}


def _decisive_failure(view: Snapshot, outcome: Outcome, ended: Iterable[EndedReplica]) -> Failure | None:
    """Return the first failure of this pass, or the one that the outcome names; None if no failure ended the job."""
    if outcome.reason in _WITHOUT_FAILURE:
        return None
    first = first_failed(ended)
    if first is not None:
        return failure(view.job, first, view.now)
    if outcome.failure is not None and outcome.failure.cause.why is not CauseKind.COMPLETED:
        return outcome.failure
    if outcome.reason is not Reason.BACKOFF_LIMIT:
        return None  # a rule decided the end, and it names no failed replica
    # A pod keeps only the last end of each container, so an earlier failure is known only from the ledger.
    return next(reversed(view.ledger.failures), None)


def _end_message(view: Snapshot, outcome: Outcome) -> str:
    """Say what decided the end, with the limits that the outcome leaves out."""
    life = view.job.lifecycle
    if outcome.reason is Reason.EXTERNAL and life.ending is not None:
        return life.ending.describe(outcome.message)
    if outcome.reason is Reason.DEADLINE and life.deadline is not None:
        return f"the job was active longer than its deadline of {spell_exactly(life.deadline.seconds)}"
    if outcome.reason is Reason.START_DEADLINE and life.start_deadline is not None:
        return f"not every replica had started within {spell_exactly(life.start_deadline)}"
    return outcome.message


def _verdict(decision: Decision, reason: str, one: Failure, at: Time) -> Verdict:
    cause, found = one.cause, diagnose(one.cause)
    replica = f"{one.role}-{one.index}"
    why = "completed, and its policy restarts it" if cause.why is CauseKind.COMPLETED else str(cause)
    return Verdict(
        decision,
        at,
        reason,
        found.failure_class,
        replica[:LONGEST_NAME],
        one.pod[:LONGEST_NAME],
        one.attempt,
        cause.container[:LONGEST_NAME],
        cause.node[:LONGEST_NAME],
        cause.code,
        cause.signal,
        _one_line(f"{replica}: {why}" + (f": {found.line}" if found.line and found.line not in why else "")),
        found.action[:LONGEST_SENTENCE],
    )


def _one_line(text: str) -> str:
    return brief(" ".join(text.split()), LONGEST_SENTENCE)


def first_failed(ended: Iterable[EndedReplica]) -> EndedReplica | None:
    """Return the replica that failed first.

    Many end times are whole seconds, and some are not exact. So among the failures of the first second, the function
    prefers one that is rarely a consequence of another failure.
    """
    failed = [one for one in ended if one.cause.why is not CauseKind.COMPLETED]
    if len(failed) < 2:
        return failed[0] if failed else None
    timed = [(_ended_at(one), one) for one in failed]
    second = after(whole(min([at for at, _ in timed])), 1)
    same = sorted([pair for pair in timed if pair[0] < second], key=lambda pair: pair[0])
    return min((one for _, one in same[:_COMPARED_FAILURES]), key=lambda one: doubt(diagnose(one.cause)))


def doubt(found: Diagnosis) -> int:
    """Return how likely another replica's failure caused this one: 0 is unlikely, 1 is not known, 2 is likely."""
    if found.failure_class in CONSEQUENCES:
        return 2
    return int(found.failure_class is FailureClass.PROGRAM_ERROR and not found.line)


def _ended_at(one: EndedReplica) -> Time:
    """Return when the replica ended. A failure of its node comes before the exits that follow from it."""
    if one.replica.pod is None:
        return EARLIEST_TIME
    status = one.replica.pod.status
    if one.cause.why is not CauseKind.EXIT:
        told = [each.last_transition_time for each in status.conditions or () if each.type == "DisruptionTarget"]
        return told[0] if told and told[0] is not None else EARLIEST_TIME
    for group in (status.container_statuses, status.init_container_statuses):
        for container in group or ():
            if container.name == one.cause.container:
                for state in (container.state, container.last_state):
                    if state is not None and state.terminated is not None and state.terminated.finished_at is not None:
                        return state.terminated.finished_at
    return EARLIEST_TIME
