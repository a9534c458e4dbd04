# SPDX-License-Identifier: Apache-2.0
"""The durable state of a job: `status.trainwright`, one closed schema that all kinds share.

Everything that must not be lost when our process is killed is here or on a child object. `core` reads the stored
ledger and returns the next ledger; the engines write it. Sets of replicas are short texts (`model.units`), so the
ledger stays small.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta as Limits
from msgspec import field

from trainwright.model.cause import Cause, CauseKind
from trainwright.model.meta import Wire
from trainwright.model.rule import Result
from trainwright.model.verdict import History, Verdict

#: The number of latest failures that are kept in full.
KEPT_FAILURES = 8
#: Maximum number of nodes in the quarantine list.
KEPT_NODES = 64
#: Maximum number of refilling restart budgets.
KEPT_BUDGETS = 16
#: Longest text in a ledger, in characters, except messages of causes.
LONGEST_TEXT = 4096

Indexes = Annotated[str, Limits(max_length=131072, pattern=r"^[0-9,:-]*$")]
Row = Annotated[str, Limits(max_length=131072, pattern=r"^[0-9,x]*$")]
Text = Annotated[str, Limits(max_length=LONGEST_TEXT)]


class Phase(StrEnum):
    """The phase of a job. `core.observe` has the table of transitions; each kind has its own names for phases."""

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
    DEADLINE = "Deadline"  # the job was active for too long
    START_DEADLINE = "StartDeadline"  # the job did not start in time
    EXTERNAL = "External"  # the end was requested from outside
    INVALID = "Invalid"  # the manifest cannot be run


class Hold(Wire, frozen=True, gc=False):
    """These replicas are not created before `until` (back-off)."""

    until: datetime
    indexes: Indexes


class StuckPeriod(Wire, frozen=True, gc=False):
    """The containers of these replicas cannot be created since then, also in replaced pods."""

    since: datetime
    indexes: Indexes


class SizeCap(Wire, frozen=True, gc=False):
    """The last automatic size of a role, and the reason."""

    at: datetime
    #: Largest size for now; -1: the wanted size.
    most: int = -1
    why: Text = ""
    #: Whether the role grew when this size was chosen; otherwise it shrank.
    grew: bool = False
    #: How many times in a row a search for nodes failed, or a larger size did not last.
    tries: int = 0


class PendingRestart(Wire, frozen=True, gc=False):
    """A restart that is decided but not complete: no pod of the new attempt exists."""

    cause: CauseKind
    indexes: Indexes
    #: True: one restart of all these replicas, complete when the first new pod exists. False: one for each replica.
    together: bool = False


class RoleLedger(Wire, frozen=True, gc=False):
    """The state of a role. A replica's attempt is the role's epoch plus the retries of its index."""

    name: Text
    epoch: int = 0
    retries: Indexes = ""
    restarts: dict[str, int] = field(default_factory=dict)
    succeeded: Indexes = ""
    failed: Indexes = ""
    #: Replicas 0 to reached-1 have existed. If one of them has no pod, its pod was deleted.
    reached: int = 0
    holds: Annotated[tuple[Hold, ...], Limits(max_length=64)] = ()
    #: The size that the pods of this epoch know; -1: no size is stored.
    size: int = -1
    #: Replicas whose containers cannot be created, each with the start of that period, in roles that replace such pods.
    stuck: Annotated[tuple[StuckPeriod, ...], Limits(max_length=64)] = ()
    ceiling: SizeCap | None = None
    #: Restarts charged to each replica, if replicas have their own budget. After the end of the job: only the charges
    #: of the replica whose failure decided the outcome.
    charged: Row = ""
    pending: Annotated[tuple[PendingRestart, ...], Limits(max_length=64)] = ()
    #: Restarts by cause that `restarts` counts but we do not show: no new pod exists yet, or another role shows them.
    hidden: dict[str, int] = field(default_factory=dict)
    #: Restarts by kubelets in replaced pods, if `restarts` does not count them. After the job's end, the number
    #: also includes restarts in the pods that existed at the end.
    inside: int = 0

    def made(self, free: frozenset[CauseKind] = frozenset()) -> int:
        """Return the number of restarts that we show to users. Restarts for `free` causes do not count."""
        kept = [cause for cause in self.restarts if cause not in free]
        return sum(self.restarts[cause] - self.hidden.get(cause, 0) for cause in kept)


class Failure(Wire, frozen=True, gc=False):
    """One failure of a replica: which, when, why."""

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
    #: The kind's name for a requested end, such as `Preempted`.
    word: Text = ""
    failure: Failure | None = None


class Times(Wire, frozen=True, gc=False):
    """When the job was accepted, was started (again, after a resume), first ran as a whole, and ended."""

    accepted: datetime | None = None
    started: datetime | None = None
    running: datetime | None = None
    ended: datetime | None = None


class Avoided(Wire, frozen=True, gc=False):
    """A node whose GPUs look unhealthy, or that has failed a replica and gets no other for now."""

    node: Text
    since: datetime
    why: CauseKind
    failed: bool = False
    #: Set when the node is healthy again: it leaves the list at this time if it stays healthy.
    until: datetime | None = None


class SpentBudget(Wire, frozen=True, gc=False):
    """How much of a refilling restart budget was used when it was last charged."""

    #: Thousandths of a restart.
    spent: int = 0
    #: Productive milliseconds of the job at that time.
    productive: int = 0
    #: How many restarts by kubelets inside the current pods are already charged.
    in_place: int = 0


class Ledger(Wire, frozen=True, gc=False):
    """The durable state of a job, which only the operator writes."""

    phase: Phase = Phase.NEW
    generation: int = 0
    roles: Annotated[tuple[RoleLedger, ...], Limits(max_length=64)] = ()
    outcome: Outcome | None = None
    times: Times = Times()
    #: How often the job was resumed. After the first resume, a GenericJob uses its `resumeSpecs`.
    resumes: int = 0
    failures: Annotated[tuple[Failure, ...], Limits(max_length=KEPT_FAILURES)] = ()
    #: The first port of each replica, by replica name; stored before the first pod that uses it.
    ports: dict[str, int] = field(default_factory=dict)
    avoided: Annotated[tuple[Avoided, ...], Limits(max_length=KEPT_NODES)] = ()
    #: Why the job was last restarted, or why it ended.
    verdict: Verdict | None = None
    history: History = History()
    #: Refilling restart budgets, by name.
    budgets: Annotated[dict[str, SpentBudget], Limits(max_length=KEPT_BUDGETS)] = field(default_factory=dict)
