# SPDX-License-Identifier: Apache-2.0
"""Whether a process that does not answer is stopped, hung or only slow: a pure decision from one look after the other.

Three things must not be taken for a dead process: a machine with more work than CPUs, a disk or a network file system
that is slow, and a watcher that was itself suspended (Ctrl-Z, a laptop that slept) and so heard nothing. Therefore
silence is not the time since the last answer, but the part of it in which the watcher ran and the process could have
answered.
"""

from enum import StrEnum

from msgspec import Struct

#: Seconds between two looks; a short grace is looked at ten times.
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.05, 1.0
_LOOKS = 10
#: A look counts for so many intervals at the most. One that comes later says that the watcher itself did not run.
_COUNTED = 2
#: A process that is not stopped, but silent, is given so many times the grace: nothing proves that it will not answer.
_PATIENCE = 6
#: Seconds until a process must have answered for the first time, unless it is stopped.
_START = 60.0


class Liveness(StrEnum):
    """What silence says about a process."""

    ALIVE = "alive"
    #: It waits for a disk or a network file system. It may answer again, and could not be killed before that anyway.
    BLOCKED = "blocked"
    #: Somebody stopped it (SIGSTOP) and has not let it go on.
    STOPPED = "stopped"
    #: It neither waits for a CPU nor for a disk, and says nothing all the same.
    HUNG = "hung"


class SilenceLimits(Struct, frozen=True):
    """How many seconds of silence mean what, and how often to look."""

    interval: float
    stopped: float
    hung: float
    start: float

    @classmethod
    def of(cls, grace: float) -> "SilenceLimits":
        """Those that belong to a grace: what a stopped process is given."""
        interval = min(max(_SHORTEST_INTERVAL, grace / _LOOKS), _LONGEST_INTERVAL)
        hung = _PATIENCE * max(grace, interval)
        return cls(interval, max(grace, interval), hung, max(hung, _START))


class Look(Struct, frozen=True):
    """What was seen of the process, and how long after the look before."""

    elapsed: float
    #: It has answered since the look before.
    answered: bool = False
    #: The state of its main thread as /proc has it: R, S, D, T, t, Z; empty where there is no /proc.
    state: str = ""
    #: Seconds of CPU time that it used since the look before.
    cpu: float = 0.0


class Silence(Struct, frozen=True):
    """What the looks since the last answer add up to, in seconds."""

    #: Without an answer although it could have given one.
    seconds: float = 0.0
    #: Of these, the last ones: all the time stopped.
    stopped: float = 0.0
    #: Waiting for a disk or a network file system.
    blocked: float = 0.0
    #: It has answered before.
    begun: bool = False
    liveness: Liveness = Liveness.ALIVE


def judge(before: Silence, look: Look, limits: SilenceLimits) -> Silence:
    """The silence after one more look."""
    if look.answered:
        return Silence(begun=True)
    counted = min(look.elapsed, _COUNTED * limits.interval)
    seconds, stopped, blocked = before.seconds, 0.0, before.blocked
    match look.state:
        case "T":
            seconds, stopped = seconds + counted, before.stopped + counted
        case "R":  # it waits for a CPU, and could answer only while it had one
            seconds += min(counted, look.cpu)
        case "D":
            blocked += counted
        case "Z" | "X":  # it has ended, which is noticed elsewhere
            pass
        case _:
            seconds += counted
    liveness = _liveness(seconds, stopped, blocked, limits.hung if before.begun else limits.start, limits)
    return Silence(seconds, stopped, blocked, before.begun, liveness)


def _liveness(seconds: float, stopped: float, blocked: float, hung: float, limits: SilenceLimits) -> Liveness:
    if stopped >= limits.stopped:
        return Liveness.STOPPED
    if seconds >= hung:
        return Liveness.HUNG
    return Liveness.BLOCKED if blocked >= hung else Liveness.ALIVE
