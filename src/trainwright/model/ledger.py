# SPDX-License-Identifier: Apache-2.0
"""The durable state of a job: `status.trainwright`, one closed schema that all kinds share.

Everything that must outlive a kill -9 is here or on a child object. `core` reads the stored one and returns the next;
the engines write it; nothing else decides. Replica sets are index text (`model.indexes`), so size stays bounded.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta as Limits
from msgspec import field

from trainwright.model.cause import Cause, CauseKind
from trainwright.model.meta import Wire
from trainwright.model.rule import Result

#: How many of the latest failures are kept word for word.
KEPT_FAILURES = 8
#: How many nodes are remembered.
KEPT_NODES = 64
#: Longest text in a ledger that is not a message of a cause.
LONGEST_TEXT = 4096

Indexes = Annotated[str, Limits(max_length=131072, pattern=r"^[0-9,:-]*$")]
Row = Annotated[str, Limits(max_length=131072, pattern=r"^[0-9,x]*$")]
Text = Annotated[str, Limits(max_length=LONGEST_TEXT)]


class Phase(StrEnum):
    """Where a job is. `core.observe` has the table of moves; each kind has its own words for them."""

    NEW = ""
    PENDING = "Pending"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    RESUMING = "Resuming"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Reason(StrEnum):
    """What decided the outcome."""

    RULE = "Rule"  # a success or failure rule was fulfilled
    UNREACHABLE = "Unreachable"  # no success rule can be fulfilled any more
    BACKOFF_LIMIT = "BackoffLimit"  # the job's restart budget is used up
    DEADLINE = "Deadline"  # it ran longer than it may
    START_DEADLINE = "StartDeadline"  # it did not start in time
    EXTERNAL = "External"  # somebody asked for this end
    INVALID = "Invalid"  # the manifest cannot be run


class Hold(Wire, frozen=True, gc=False):
    """These replicas are not created before then (back-off)."""

    until: datetime
    indexes: Indexes


class Spell(Wire, frozen=True, gc=False):
    """The containers of these replicas have not been made since then, whichever pod it was."""

    since: datetime
    indexes: Indexes


class SizeCap(Wire, frozen=True, gc=False):
    """What a role that resizes itself was last resized to, and why."""

    at: datetime
    #: Not more than so many for now; -1: as many as are wanted.
    most: int = -1
    why: Text = ""
    #: It was made larger then, not smaller.
    grew: bool = False
    #: How often in a row there was no room for more, or not for long.
    tries: int = 0


class PendingRestart(Wire, frozen=True, gc=False):
    """A restart that is decided and has not happened: no pod of the new attempt exists."""

    cause: CauseKind
    indexes: Indexes
    #: One restart of all these replicas, which has happened once the first of them has its pod; else one for each.
    together: bool = False


class RoleLedger(Wire, frozen=True, gc=False):
    """What is remembered of a role. A replica's attempt is the role's epoch plus the retries of its index."""

    name: Text
    epoch: int = 0
    retries: Indexes = ""
    restarts: dict[str, int] = field(default_factory=dict)
    succeeded: Indexes = ""
    failed: Indexes = ""
    #: Replicas 0 … reached-1 have existed; one of them that is missing has been taken away.
    reached: int = 0
    holds: Annotated[tuple[Hold, ...], Limits(max_length=64)] = ()
    #: The size that the pods of this epoch were made for, where peers are told of it; -1: nobody is, or not yet.
    size: int = -1
    #: Where pods are replaced whose containers cannot be made: which, and since when.
    stuck: Annotated[tuple[Spell, ...], Limits(max_length=64)] = ()
    ceiling: SizeCap | None = None
    #: Restarts that each replica was charged with, where the budget is the replica's own. Once the job has ended, only
    #: those of the replica whose failure decided it.
    charged: Row = ""
    pending: Annotated[tuple[PendingRestart, ...], Limits(max_length=64)] = ()
    #: Of `restarts`, by cause: those that people are not shown. No pod was made for them, or another role shows them.
    hidden: dict[str, int] = field(default_factory=dict)
    #: Restarts inside pods (by the kubelet) that `restarts` leaves out: of pods that were replaced, and of all pods
    #: once the job has ended.
    inside: int = 0

    def made(self, free: frozenset[CauseKind] = frozenset()) -> int:
        """Restarts that have happened, those for these causes left out. The one number that people are shown."""
        kept = [cause for cause in self.restarts if cause not in free]
        return sum(self.restarts[cause] - self.hidden.get(cause, 0) for cause in kept)


class Failure(Wire, frozen=True, gc=False):
    """One failure of a replica, kept for people: which, when, why."""

    role: Text
    index: int
    pod: Text
    attempt: int
    at: datetime
    cause: Cause


class Outcome(Wire, frozen=True, gc=False):
    """How the job ended, and what decided it. Final."""

    result: Result
    reason: Reason
    at: datetime
    rule: Text = ""
    message: Text = ""
    #: The word a kind ends with when somebody asked for the end (`Preempted`).
    word: Text = ""
    failure: Failure | None = None


class Times(Wire, frozen=True, gc=False):
    """When the job was accepted, was started (again, after a resume), first ran as a whole, and ended."""

    accepted: datetime | None = None
    started: datetime | None = None
    running: datetime | None = None
    ended: datetime | None = None


class Avoided(Wire, frozen=True, gc=False):
    """A node that is under suspicion, or that has failed a replica and gets no other for now."""

    node: Text
    since: datetime
    why: CauseKind
    failed: bool = False
    #: It is well again, and forgotten then if it stays so.
    until: datetime | None = None


class Ledger(Wire, frozen=True, gc=False):
    """`status.trainwright`."""

    phase: Phase = Phase.NEW
    generation: int = 0
    roles: Annotated[tuple[RoleLedger, ...], Limits(max_length=64)] = ()
    outcome: Outcome | None = None
    times: Times = Times()
    #: How often the job has left suspension; from the first time on, resume settings are in force.
    resumes: int = 0
    failures: Annotated[tuple[Failure, ...], Limits(max_length=KEPT_FAILURES)] = ()
    #: Ports handed out, by name; written before the first pod that uses them.
    ports: dict[str, int] = field(default_factory=dict)
    avoided: Annotated[tuple[Avoided, ...], Limits(max_length=KEPT_NODES)] = ()
