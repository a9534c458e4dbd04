# SPDX-License-Identifier: Apache-2.0
"""What a job remembers about its failures: the verdict on the last restart or end, and the history of its attempts.

Both are parts of the ledger. They change only together with a phase, a failure or an outcome, so they need no
additional write. All commands render these values; none of them computes its own.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, UnsetType, field
from msgspec import Meta as Limits

from trainwright.model.meta import Wire

#: How many of the latest attempts are kept in full.
KEPT_ATTEMPTS = 16
#: How many nodes an attempt lists.
KEPT_ATTEMPT_NODES = 16
#: How many kinds of lost time are told apart at most: one for each `FailureClass` and `LossKind`.
KEPT_LOSSES = 64
#: Longest text in a verdict, in characters.
LONGEST_SENTENCE = 1024

#: Longest name of an object in a verdict or history, in characters.
LONGEST_NAME = 512

Sentence = Annotated[str, Limits(max_length=LONGEST_SENTENCE)]
Name = Annotated[str, Limits(max_length=LONGEST_NAME)]


class FailureClass(StrEnum):
    """The classes of failures. `core.signs` has the table with the signs and the suggested action of each class."""

    PROGRAM_ERROR = "ProgramError"  # the program ended itself with an error
    IMPORT_ERROR = "ImportError"  # Python did not find a module
    COMMAND_NOT_FOUND = "CommandNotFound"  # the command does not exist or cannot be executed
    OUT_OF_MEMORY = "OutOfMemory"  # of the machine, of the cgroup, or of the process
    DEVICE_OUT_OF_MEMORY = "DeviceOutOfMemory"  # a GPU had no memory left
    KILLED = "Killed"  # a signal from outside
    CRASHED = "Crashed"  # a signal that the program caused: SIGSEGV, SIGABRT, SIGILL, SIGFPE
    SHARED_MEMORY = "SharedMemory"  # SIGBUS: /dev/shm was full, or a mapped file became shorter
    DISK_FULL = "DiskFull"
    PORT_IN_USE = "PortInUse"
    NAME_RESOLUTION = "NameResolution"  # a host name did not resolve
    RENDEZVOUS = "RendezvousTimeout"  # replicas did not find each other, or lost each other
    IMAGE = "Image"  # the image cannot be pulled or is not valid
    MISSING_OBJECT = "MissingObject"  # a Secret, a ConfigMap or a volume does not exist
    NODE_LOST = "NodeLost"
    DEVICE_FAILED = "DeviceFailed"  # a GPU has failed
    PREEMPTED = "Preempted"  # another pod needed the place
    EVICTED = "Evicted"  # the node had too few resources left
    DISRUPTED = "Disrupted"  # drained, or rejected by the node
    DELETED = "Deleted"  # a user or another controller deleted the pod
    DEADLINE = "Deadline"  # the job took too long
    QUOTA = "Quota"  # a quota refused its objects
    REFUSED = "Refused"  # the API server refused its objects for another reason
    UNSCHEDULABLE = "Unschedulable"  # no node had room
    RESIZED = "Resized"  # not a failure: the size of a role changed
    COMPLETED = "Completed"  # not a failure: a replica succeeded, and its policy restarts it
    RULE = "Rule"  # a rule was fulfilled or became impossible without a failed replica
    REQUESTED = "Requested"  # a user or another controller asked for the end
    INVALID = "Invalid"  # the manifest cannot be run
    NONE = ""  # nothing failed

    @classmethod
    def _missing_(cls, _value: object) -> "FailureClass":
        """Read a class of a newer version as none: the message still says what happened."""
        return cls.NONE


class Decision(StrEnum):
    """What a verdict explains."""

    RESTART = "Restart"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Verdict(Wire, frozen=True, gc=False):
    """Why the job was last restarted, or why it ended."""

    decision: Annotated[Decision, Limits(description="What is explained: the last restart, or the end of the job.")]
    at: datetime
    #: `model.ledger.Reason` for an end, the restart scope for a restart.
    reason: Annotated[Name, Limits(description="What decided it: for a restart, what was restarted.")] = ""
    failure_class: Annotated[FailureClass, Limits(description="The class of that failure; none after a success.")] = (
        field(name="class", default=FailureClass.NONE)
    )
    replica: Annotated[Name, Limits(description="The first replica that failed.")] = ""
    pod: Annotated[Name, Limits(description="The pod of that replica.")] = ""
    attempt: Annotated[int, Limits(description="Which attempt of that replica it was; the first is 0.")] = 0
    container: Annotated[Name, Limits(description="The container that failed.")] = ""
    node: Annotated[Name, Limits(description="The node on which it failed.")] = ""
    code: Annotated[int, Limits(description="Its exit code.")] | UnsetType = UNSET
    signal: (
        Annotated[int, Limits(description="The signal that ended it; 0: none. Unset: only the exit code is known.")]
        | UnsetType
    ) = UNSET
    message: Annotated[Sentence, Limits(description="What happened, in one sentence.")] = ""
    action: Annotated[Sentence, Limits(description="What to do about it, in one sentence.")] = ""


class LossKind(StrEnum):
    """Lost time that no failure caused. Lost time after a failure is counted under its `FailureClass`."""

    START = "Start"  # until all replicas ran for the first time, or again after a suspension
    SUSPENDED = "Suspended"


class AttemptRecord(Wire, frozen=True, gc=False):
    """One attempt of the job: from its start to the restart, the suspension or the end of the job that ended it."""

    number: int
    start: datetime
    running: Annotated[datetime, Limits(description="When all replicas ran; unset if they never did.")] | None = None
    end: datetime | None = None
    nodes: Annotated[
        tuple[Name, ...],
        Limits(max_length=KEPT_ATTEMPT_NODES, description="Nodes of its replicas at its end; the first 16, sorted."),
    ] = ()
    cause: Annotated[FailureClass, Limits(description="The class of the failure that closed it.")] = FailureClass.NONE
    scope: Annotated[Name, Limits(description="What was restarted with the failed replica.")] = ""
    replica: Annotated[Name, Limits(description="The replica that failed first.")] = ""
    lost: Annotated[int, Limits(description="Milliseconds of this attempt in which not all replicas ran.")] = 0


class History(Wire, frozen=True, gc=False):
    """Where the time of a job went, and its last attempts. Times are whole milliseconds, so that sums are exact."""

    begun: (
        Annotated[
            datetime, Limits(description="When the accounting began: when the job was accepted, or after an upgrade.")
        ]
        | None
    ) = None
    until: Annotated[datetime, Limits(description="Up to when the sums count.")] | None = None
    productive: Annotated[int, Limits(description="Milliseconds in which all replicas ran.")] = 0
    lost: Annotated[
        dict[str, int],
        Limits(max_length=KEPT_LOSSES, description="Lost milliseconds by class of failure, Start or Suspended."),
    ] = field(default_factory=dict)
    now_lost_to: Annotated[Name, Limits(description="What time after `until` counts as; empty: productive.")] = ""
    total: Annotated[int, Limits(description="Number of attempts since `begun`; the last of them are listed.")] = 0
    attempts: Annotated[tuple[AttemptRecord, ...], Limits(max_length=KEPT_ATTEMPTS)] = ()
