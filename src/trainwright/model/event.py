# SPDX-License-Identifier: Apache-2.0
"""Events as values: what happened, and to which object. Each kind turns them into its own text.

`str(event)` is the text for kinds that have no text of their own. No code parses these texts.
"""

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct, UnsetType

from trainwright.model.cause import brief
from trainwright.model.job import RequestedEnd
from trainwright.model.ledger import Failure, Outcome, Reason
from trainwright.model.rule import Result


class EventReason(StrEnum):
    """What an event is about. A kind may use its own reason."""

    RUNNING = "Running"
    RESTARTING = "Restarting"
    RESIZED = "Scaled"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    REFUSED = "FailedCreate"  # the reason that Kubernetes' own controllers use
    UNFIT = "Invalid"
    STUCK = "FailedSync"  # the API server refuses the next action, and the status cannot show that
    CREATED = "SuccessfulCreate"  # a child was created; only reported on request
    DELETED = "SuccessfulDelete"
    EXITED = "ExitedWithCode"
    WAITING = "Waiting"  # a pod waits; reported with the pod's own reason
    REMOVED = "SuccessfulDeleteJob"
    GANG_MISSING = "GangUnavailable"
    OTHER_SCHEDULER = "OtherScheduler"
    REMARK = "Remark"
    FOREIGN = "ManagedElsewhere"


class JobStep(Struct, frozen=True, gc=False):
    """The job is running, suspended or resumed."""

    event_reason: EventReason
    job: str
    warning: ClassVar = False

    def __str__(self) -> str:
        return f"{self.job} is {self.event_reason.lower()}."


class JobEnded(Struct, frozen=True, gc=False):
    """The job has ended. `ending` is a requested end. It decided the outcome only if the reason is EXTERNAL."""

    outcome: Outcome
    ending: RequestedEnd | None = None

    @property
    def event_reason(self) -> EventReason:
        """Succeeded or failed."""
        return EventReason.FAILED if self.warning else EventReason.SUCCEEDED

    @property
    def warning(self) -> bool:
        """Whether the job has failed."""
        return self.outcome.result is not Result.SUCCEEDED

    def __str__(self) -> str:
        outcome, failure = self.outcome, self.outcome.failure
        if outcome.reason is Reason.EXTERNAL and self.ending is not None:
            return brief(self.ending.describe(outcome.message))
        return outcome.message if failure is None else brief(f"{outcome.message}; {failure.pod}: {failure.cause}")


class Restarting(Struct, frozen=True, gc=False):
    """Pods are replaced after `failure`. If it is None, pods had succeeded, and the policy restarts after success."""

    failure: Failure | None = None
    event_reason: ClassVar = EventReason.RESTARTING

    @property
    def warning(self) -> bool:
        """Whether something has failed."""
        return self.failure is not None

    def __str__(self) -> str:
        if self.failure is None:
            return "restarting what had completed, as its policy says"
        return brief(f"restarting after {self.failure.pod}: {self.failure.cause}")


class Resized(Struct, frozen=True, gc=False):
    """A role has a new size. `before` is -1 if the old size is not known; `after` is -1 for the full wanted size."""

    role: str
    before: int
    after: int
    #: The reason, if the user did not ask for the new size.
    why: str = ""
    event_reason: ClassVar = EventReason.RESIZED
    warning: ClassVar = False

    def __str__(self) -> str:
        size = f"{self.after} replica{'s' * (self.after != 1)}" if self.after >= 0 else "its full size"
        start = f"from {self.before} " if self.before >= 0 else ""
        return brief(f"{self.role} is scaled {start}to {size}{': ' * bool(self.why)}{self.why}")


class ChildEvent(Struct, frozen=True, gc=False):
    """A child was created, deleted, or refused by the API server. `why` says why it was deleted or refused."""

    event_reason: EventReason
    kind: str
    name: str
    why: str = ""

    @property
    def warning(self) -> bool:
        """Whether the child was refused."""
        return self.event_reason is EventReason.REFUSED

    def __str__(self) -> str:
        match self.event_reason:
            case EventReason.CREATED:
                return f"Created {self.kind.lower()}: {self.name}"
            case EventReason.DELETED:
                return f"Deleted {self.kind.lower()}: {self.name} ({self.why})"
        return brief(f"{self.kind} {self.name} could not be created: {self.why}")


class PodExited(Struct, frozen=True, gc=False):
    """A pod has exited. `code` is 0, or the exit code of the container that failed."""

    pod: str
    code: int | UnsetType
    event_reason: ClassVar = EventReason.EXITED
    warning: ClassVar = False

    def __str__(self) -> str:
        return f"{self.pod} exited with code {self.code}"


class PodWaiting(Struct, frozen=True, gc=False):
    """A pod does not start. The message is from the status of `container`; if that is empty, from a pod condition."""

    pod: str
    reason: str
    message: str
    container: str = ""
    event_reason: ClassVar = EventReason.WAITING
    warning: ClassVar = True

    def __str__(self) -> str:
        teller = f"container {self.container} waiting" if self.container else "condition"
        return brief(f"{self.pod} {teller} message: {self.message}")


class Notice(Struct, frozen=True, gc=False):
    """Any other event, with the same text for every kind."""

    event_reason: EventReason
    message: str
    reason: str = ""
    warning: bool = True
    #: The event is sent once per job: all operators use the same event name, so the server refuses a second event.
    once: bool = False

    def __str__(self) -> str:
        return brief(self.message)


#: Each event has an `event_reason`, and a `warning` that says whether something is wrong.
JobEvent = JobStep | JobEnded | Restarting | Resized | ChildEvent | PodExited | PodWaiting | Notice


class Emit(Struct, frozen=True, gc=False):
    """An event in the text of its kind. It is sent only after the status of the same pass is stored."""

    event_reason: EventReason
    message: str
    warning: bool = False
    #: The kind's own reason and component name; empty: use ours.
    reason: str = ""
    source: str = ""
    once: bool = False


def default_emit(event: JobEvent, source: str = "") -> Emit:
    """Return the event with our own text."""
    reason = event.reason if isinstance(event, PodWaiting | Notice) else ""
    once = isinstance(event, Notice) and event.once
    return Emit(event.event_reason, str(event), event.warning, reason, source, once)


def with_child_kind(event: ChildEvent, source: str) -> Emit:
    """Return a child's event as Kubernetes' own controllers write it: the reason contains the kind."""
    kind = event.kind if event.kind == "PodGroup" else event.kind.lower()
    done = {EventReason.CREATED: "Created", EventReason.DELETED: "Deleted"}.get(event.event_reason)
    message = f"{done} {kind}: {event.name}" if done else f"Error creating: {event}"
    return Emit(event.event_reason, message, event.warning, f"{event.event_reason}{event.kind}", source)
