# SPDX-License-Identifier: Apache-2.0
"""The result of a simulation as values: everything that the text, the JSON and the chart show. Times are seconds."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from trainwright.core.budget_report import BudgetState
from trainwright.model.verdict import Verdict


class EntryKind(StrEnum):
    """What a line of the timeline is about."""

    SUBMITTED = "submitted"
    FAULT = "fault"
    PODS = "pods"
    RESTART = "restart"
    BUDGET = "budget"
    PHASE = "phase"
    EVENT = "event"
    END = "end"
    REMOVED = "removed"


class Entry(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One line of the timeline."""

    at: float
    what: EntryKind
    text: str
    #: The indexes of the replicas by role, such as `{"worker": "0-3,7"}`.
    replicas: dict[str, str] = {}
    #: The option that caused a fault.
    option: str = ""
    #: What is restarted together: `Pod`, `Role`, `Job`, or `Container` for a restart inside the pod.
    scope: str = ""
    #: The class of the failure that caused a restart or the end.
    cause: str = ""
    #: The budgets that the restart used, after it.
    budgets: tuple[BudgetState, ...] = ()
    #: The phase in the word of the kind.
    phase: str = ""
    #: The reason of an event.
    reason: str = ""


class AttemptResult(StrEnum):
    """How one run of a replica ended."""

    PENDING = "Pending"  # it has not started yet
    RUNNING = "Running"  # it still runs
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"  # with its node
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    DELETED = "Deleted"  # by a user
    STOPPED = "Stopped"  # by the operator: restarted with others, suspended, cleaned up


class AttemptBar(Struct, frozen=True, rename="camel"):
    """One run of one replica: of a pod, or of a container that its kubelet has restarted inside the pod."""

    role: str
    index: int
    attempt: int
    #: How often the kubelet had restarted the container before.
    restart: int
    node: str
    created: float
    started: float | None
    ended: float | None
    result: AttemptResult
    detail: str = ""

    @property
    def replica(self) -> str:
        """The name of the replica."""
        return f"{self.role}-{self.index}"


class PhaseSpan(Struct, frozen=True):
    """A phase of the job in the word of its kind; `end` None: it is the last one."""

    phase: str
    start: float
    end: float | None = None


class RoleAssumption(Struct, frozen=True):
    """A role, and how long the simulation lets its programs run; None: until they are ended."""

    name: str
    replicas: int
    duration: float | None


class TimeSummary(Struct, frozen=True):
    """Where the time of the job went, in seconds, and the productive share of it."""

    wall: float
    productive: float
    lost: dict[str, float]
    #: None if no time has passed.
    goodput: float | None


class JobEnd(Struct, frozen=True):
    """How the job ended, and why."""

    result: str
    phase: str
    at: float
    #: What decided it: a rule, in the words of the user or in ours, or the message of the outcome.
    because: str
    #: As `status.trainwright.verdict` has it.
    verdict: Verdict

    @property
    def reasons(self) -> list[str]:
        """The message of the verdict. If it does not name the rule or limit that ended the job, that text follows."""
        return [self.verdict.message, *([self.because] if self.because not in self.verdict.message else ())]


class Timeline(Struct, frozen=True, rename="camel"):
    """Everything about one simulation."""

    file: str
    kind: str
    namespace: str
    name: str
    roles: tuple[RoleAssumption, ...]
    nodes: int
    start_time: float
    #: The simulated date of the submission; events and the verdict have dates.
    begun: datetime
    #: When the simulation stopped.
    simulated: float
    timeline: tuple[Entry, ...]
    phases: tuple[PhaseSpan, ...]
    attempts: tuple[AttemptBar, ...]
    budgets: tuple[BudgetState, ...]
    time: TimeSummary
    #: None: the job did not end in the simulated time.
    end: JobEnd | None
    notes: tuple[str, ...]
