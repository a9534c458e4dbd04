# SPDX-License-Identifier: Apache-2.0
"""Where the time of a job goes: productive or lost, by cause, and the record of each attempt.

Time is productive while the job is `Running`: all its replicas run or have finished. All other time is lost: until the
first start, during a suspension, and from a failure until all replicas run again. The history is updated when the
phase changes or a new failure restarts a part of the job. The operator stores both changes at once in any case, so the
history needs no additional write.

An attempt of the job ends with each restart, whatever its scope and cause: also if a resize restarts replicas, or if
another client has deleted a pod of a running job. A suspension and the end of the job end it too. Lost + productive
time always equals the time since `begun`, because both are differences of the same points in time. If the clock was
ahead and goes back, all times of the history move back with it.
"""

from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from trainwright.model.ledger import Ledger, Phase
from trainwright.model.units import EARLIEST_TIME, Time
from trainwright.model.verdict import (
    KEPT_ATTEMPT_NODES,
    KEPT_ATTEMPTS,
    LONGEST_NAME,
    AttemptRecord,
    Decision,
    FailureClass,
    History,
    LossKind,
    Verdict,
)

_MILLISECOND = timedelta(milliseconds=1)
_NOT_LIVE = frozenset({Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED})


class TimeShares(Struct, frozen=True, gc=False):
    """The time of a job up to now, in seconds, and the productive share of it."""

    wall: float
    productive: float
    lost: dict[str, float]

    @property
    def goodput(self) -> float | None:
        """Productive time ÷ wall time, to four places; None if there is no time: the accounting has just begun."""
        return round(self.productive / self.wall, 4) if self.wall else None


def time_shares(ledger: Ledger, now: Time) -> TimeShares:
    """Return where the time of a job went, up to its end or up to `now`."""
    history = ledger.history
    if history.until is not None and ledger.outcome is None:
        history = _close_interval(history, now)
    lost = {why: spent / 1000 for why, spent in history.lost.items()}
    return TimeShares(_milliseconds(history.begun, history.until) / 1000, history.productive / 1000, lost)


def productive_until(ledger: Ledger, now: Time) -> int:
    """Return the productive milliseconds up to `now`."""
    history = ledger.history
    if history.until is None or history.now_lost_to or ledger.outcome is not None:
        return history.productive
    return _close_interval(history, now).productive


def record(
    stored: Ledger,
    ledger: Ledger,
    nodes: tuple[str, ...],
    now: Time,
    removed: FailureClass = FailureClass.DELETED,
) -> Ledger:
    """Return the ledger with its history up to date. Only necessary if `has_changed` is true.

    `nodes` are the nodes of the current pods, and `removed` says why pods are being deleted, if any are.
    """
    history, now = ledger.history, _whole_milliseconds(now)
    if history.until is None:
        if ledger.phase is Phase.NEW:
            return ledger
        # An older version has not recorded what happened before: then the accounting begins now.
        accepted = ledger.times.accepted if stored.phase is Phase.NEW else None
        begun = min(_whole_milliseconds(accepted or now), now)
        history = History(begun=begun, until=begun, now_lost_to=LossKind.START)
    history = _close_interval(history, now)
    new = ledger.verdict if ledger.verdict is not stored.verdict and ledger.verdict != stored.verdict else None
    lost_to = _lost_to(stored, ledger, new, removed)
    # Without a verdict, a running job restarts after a resize, or because another client has deleted a pod.
    restarts = new is not None or (stored.phase is Phase.RUNNING and ledger.phase is Phase.RESTARTING)
    attempts, total = history.attempts, history.total
    restart_class = new.failure_class if new is not None and new.decision is Decision.RESTART else FailureClass.NONE
    if new is not None and restart_class and restart_class is unanswered_removal(history):
        told = replace(attempts[-2], scope=new.reason, replica=new.replica)
        attempts = (*attempts[:-2], told, attempts[-1])
    elif (restarts or ledger.phase in _NOT_LIVE) and attempts and attempts[-1].end is None:
        attempts = (*attempts[:-1], _closed(attempts[-1], history.until, new, lost_to, nodes))
    if ledger.phase not in _NOT_LIVE and not (attempts and attempts[-1].end is None):
        total += 1
        attempts = (*attempts, AttemptRecord(total, history.until or now))[-KEPT_ATTEMPTS:]
    if ledger.phase is Phase.RUNNING and attempts[-1].running is None:
        attempts = (*attempts[:-1], replace(attempts[-1], running=history.until))
    return replace(ledger, history=replace(history, total=total, attempts=attempts, now_lost_to=lost_to))


def unanswered_removal(history: History) -> FailureClass:
    """Return why pods of a running job were deleted, if no restart has followed since; otherwise no class.

    The deletion has ended the attempt. The restart that follows when the pods are gone must not end the next attempt.
    """
    if len(history.attempts) < 2:
        return FailureClass.NONE
    ended, open_ = history.attempts[-2:]
    return ended.cause if open_.running is None and open_.end is None and not ended.replica else FailureClass.NONE


def has_changed(stored: Ledger, ledger: Ledger) -> bool:
    """Return whether the phase or the verdict has changed, so that the history must be updated."""
    return ledger is not stored and (ledger.phase is not stored.phase or ledger.verdict != stored.verdict)


def _close_interval(history: History, now: Time) -> History:
    """Add the time since the last change to the lost time of its cause, or to the productive time."""
    end = _whole_milliseconds(now)
    if history.until is not None and end < history.until:
        return _moved_back(history, history.begun or history.until, end - history.until)
    spent = _milliseconds(history.until, end)
    if not history.now_lost_to:
        return replace(history, until=end, productive=history.productive + spent)
    lost = {**history.lost, history.now_lost_to: history.lost.get(history.now_lost_to, 0) + spent}
    attempts = history.attempts
    if attempts and attempts[-1].end is None:
        attempts = (*attempts[:-1], replace(attempts[-1], lost=attempts[-1].lost + spent))
    return replace(history, until=end, lost=lost if spent else history.lost, attempts=attempts)


def _moved_back(history: History, begun: Time, shift: timedelta) -> History:
    """Move all times back, because the clock went back. Durations stay the same, and counting goes on from now."""
    shift = min(max(shift, EARLIEST_TIME - begun), timedelta())

    def moved(time: Time | None) -> Time | None:
        return max(time, EARLIEST_TIME - shift) + shift if time is not None else None

    attempts = tuple(
        replace(one, start=moved(one.start), running=moved(one.running), end=moved(one.end)) for one in history.attempts
    )
    return replace(history, begun=moved(begun), until=moved(history.until), attempts=attempts)


def _closed(
    one: AttemptRecord, end: Time | None, new: Verdict | None, lost_to: str, nodes: tuple[str, ...]
) -> AttemptRecord:
    """Return the attempt with its end and what ended it."""
    cause, scope, replica = lost_to if isinstance(lost_to, FailureClass) else FailureClass.NONE, "", ""
    if new is not None:
        cause, scope, replica = new.failure_class, new.reason if new.decision is Decision.RESTART else "", new.replica
    names = tuple([name[:LONGEST_NAME] for name in nodes[:KEPT_ATTEMPT_NODES]])
    return AttemptRecord(one.number, one.start, one.running, end, names, cause, scope, replica, one.lost)


def _lost_to(stored: Ledger, ledger: Ledger, new: Verdict | None, removed: FailureClass) -> str:
    """Return what the time from now on is lost to; empty: it is productive, or the job has ended."""
    if ledger.phase in (Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED):
        return ""
    if ledger.phase is Phase.SUSPENDED:
        return LossKind.SUSPENDED
    if new is not None:
        return new.failure_class
    if ledger.phase is not Phase.RESTARTING:
        return LossKind.START
    resized = [role.size for role in stored.roles] != [role.size for role in ledger.roles]
    # Nothing failed, but a replica is missing: somebody else deleted its pod, and `removed` says why.
    return FailureClass.RESIZED if resized else removed


def _whole_milliseconds(time: Time) -> Time:
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def _milliseconds(start: Time | None, end: Time | None) -> int:
    return 0 if start is None or end is None else (end - start) // _MILLISECOND
