# SPDX-License-Identifier: Apache-2.0
"""Decides whether a process that does not answer is stopped, hung or only slow. Pure.

A silent process may still be alive: the machine may have more work than CPUs, a disk or a network file system may be
slow, or the watcher itself may have been suspended (Ctrl-Z, a sleeping laptop). So this module does not use the time
since the last answer. It counts only the time in which the watcher ran and the process could have answered.
"""

from enum import StrEnum

from msgspec import Struct

#: The watcher looks at the process ten times per grace period; the interval stays within these bounds.
_MIN_INTERVAL_SECONDS, _MAX_INTERVAL_SECONDS = 0.05, 1.0
_LOOKS_PER_GRACE = 10
#: The time between two looks counts as at most this many intervals: in the rest of the time, the watcher did not run.
_MAX_COUNTED_INTERVALS = 2
#: A process that is silent but not stopped gets this multiple of the grace period, since it may still answer.
_HUNG_GRACE_FACTOR = 6
#: A process that was not stopped (SIGSTOP) has at least this many seconds for its first answer.
_MIN_START_SECONDS = 60.0


class Liveness(StrEnum):
    """The state of a process, concluded from its silence."""

    ALIVE = "alive"
    #: The process waits for a disk or a network file system. It may answer again, and SIGKILL has no effect until then.
    BLOCKED = "blocked"
    #: The process was stopped (SIGSTOP) and has not been continued.
    STOPPED = "stopped"
    #: The process does not answer, although it waits neither for a CPU nor for a disk.
    HUNG = "hung"


class SilenceLimits(Struct, frozen=True):
    """The seconds between two looks at a process, and the seconds of silence after which the process counts as dead."""

    interval: float
    #: The limits for a stopped process, for any other process, and for any other process before its first answer.
    stopped: float
    hung: float
    start: float

    @classmethod
    def of(cls, grace: float) -> "SilenceLimits":
        """The limits for a grace period, which is the number of seconds that a stopped process gets."""
        interval = min(max(_MIN_INTERVAL_SECONDS, grace / _LOOKS_PER_GRACE), _MAX_INTERVAL_SECONDS)
        hung = _HUNG_GRACE_FACTOR * max(grace, interval)
        return cls(interval, max(grace, interval), hung, max(hung, _MIN_START_SECONDS))


class Look(Struct, frozen=True):
    """One observation of the process, `elapsed` seconds after the previous look."""

    elapsed: float
    #: Whether the process has answered since the previous look.
    answered: bool = False
    #: The state of the main thread in /proc: R, S, D, T, t, Z; empty without /proc.
    state: str = ""
    #: Seconds of CPU time that the process used since the previous look.
    cpu: float = 0.0


class Silence(Struct, frozen=True):
    """How long a process has been silent: the sum of the seconds of all looks since its last answer."""

    #: Seconds in which the process did not answer although it could have answered.
    seconds: float = 0.0
    #: Seconds for which the process has been stopped without interruption; a part of `seconds`.
    stopped: float = 0.0
    #: Seconds in which the process waited for a disk or a network file system.
    blocked: float = 0.0
    #: Whether the process has answered at least once.
    has_answered: bool = False
    liveness: Liveness = Liveness.ALIVE


def judge(before: Silence, look: Look, limits: SilenceLimits) -> Silence:
    """The silence after one more look."""
    if look.answered:
        return Silence(has_answered=True)
    counted = min(look.elapsed, _MAX_COUNTED_INTERVALS * limits.interval)
    seconds, stopped, blocked = before.seconds, 0.0, before.blocked
    match look.state:
        case "T":
            seconds, stopped = seconds + counted, before.stopped + counted
        case "R":  # the process runs or waits for a CPU: only the time in which it ran counts
            seconds += min(counted, look.cpu)
        case "D":
            blocked += counted
        case "Z" | "X":  # the process has ended: its parent process notices the end
            pass
        case _:
            seconds += counted
    hung, liveness = limits.hung if before.has_answered else limits.start, Liveness.ALIVE
    if stopped >= limits.stopped:
        liveness = Liveness.STOPPED
    elif seconds >= hung:
        liveness = Liveness.HUNG
    elif blocked >= hung:
        liveness = Liveness.BLOCKED
    return Silence(seconds, stopped, blocked, before.has_answered, liveness)
