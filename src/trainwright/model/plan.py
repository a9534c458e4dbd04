# SPDX-License-Identifier: Apache-2.0
"""The result of a pass: the state of each replica, the next ledger, and a `Plan` of what to do.

An engine executes a plan in this order: status (with its resourceVersion, unless it may be stored later), patches,
deletes (with UID), creates, announces, events. The engine stops when a write is refused as out of date. If our process
is killed between two writes, nothing is lost: a decision is either stored or made again.
"""

from enum import StrEnum

from msgspec import Struct

from trainwright.model.cause import Cause
from trainwright.model.child import Pod
from trainwright.model.event import JobEvent
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.units import Time


class State(StrEnum):
    """The state of a replica."""

    WAITING = "Waiting"  # no pod of the replica's current attempt exists
    STARTING = "Starting"  # the replica's pod does not run yet
    RUNNING = "Running"
    STOPPING = "Stopping"  # another client is deleting the replica's pod; a new pod follows
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"  # the replica's node or GPUs have failed, or its pod has a new address


class ReplicaState(Struct, frozen=True, gc=False):
    """One replica: its pod and its state."""

    index: int
    attempt: int
    state: State
    pod: Pod | None = None
    cause: Cause | None = None
    #: The replica has ended and is not restarted.
    final: bool = False
    #: The pod of an older attempt, while that pod exists.
    old: Pod | None = None


class RoleState(Struct, frozen=True, gc=False):
    """The replicas of one role, by index, and how many of them run."""

    name: str
    replicas: tuple[ReplicaState, ...]
    running: int = 0

    @property
    def all_running(self) -> bool:
        """Whether every replica runs. Most passes need to know only this."""
        return self.running == len(self.replicas)

    def count(self, *states: State) -> int:
        """Return how many replicas are in one of these states."""
        return sum(seen.state in states for seen in self.replicas)


class Status(Struct, frozen=True, gc=False):
    """The result of a pass that a kind renders into its status."""

    ledger: Ledger
    roles: tuple[RoleState, ...]
    #: Children that could not be created, by name, with the reason.
    refused: dict[str, str] = {}
    #: The outcome is decided, but pods that must be deleted still exist.
    cleaning: bool = False
    #: Why an edit cannot be applied; the job continues with the old manifest.
    invalid: str = ""


class Create(Struct, frozen=True, gc=False):
    """Create this object. If the name is taken: adopt our own object, wait for a terminating one, report a foreign one.

    If the job was handed over, a child of the previous controller is deleted first.
    """

    body: Body

    @property
    def name(self) -> str:
        """The object's name."""
        name: str = self.body["metadata"]["name"]
        return name


class Delete(Struct, frozen=True, gc=False):
    """Delete exactly this object (UID). `force`: do not wait for the node's answer."""

    kind: str
    name: str
    uid: str
    why: str
    force: bool = False
    api: str = "v1"


class Patch(Struct, frozen=True, gc=False):
    """Merge this body into exactly this object (UID)."""

    kind: str
    name: str
    uid: str
    body: Body
    why: str
    api: str = "v1"


class Announce(Struct, frozen=True, gc=False):
    """Publish a value under a key at the site's elastic server. Nothing happens if no replica uses the key.

    Every pass of a live job repeats the announcement, so nothing stores whether it was made.
    """

    key: str
    value: str


class Write(StrEnum):
    """Whether the ledger must be stored: at once, with the next write (or after a while), or not at all.

    `ACCEPTED` means that the job was accepted in this pass and that its pods and services will prove it, so that the
    engine may create them first. The engine stores the ledger with the next change, or after a short while.

    The kind's own status is rendered after each pass and may change although the ledger does not (an image cannot be
    pulled, a pod was cleaned up). An engine compares this status with the stored status. The engine writes a new
    phase or condition at once; it writes new numbers (such as running replicas) with the next write or after a while.
    Until an engine has written a delayed ledger, it gives that ledger to `reconcile`, not the stored ledger.
    """

    NOW = "Now"
    ACCEPTED = "Accepted"
    LATER = "Later"
    NOT = "Not"


class Plan(Struct, frozen=True, gc=False):
    """What to do, and what to report."""

    status: Status
    write: Write = Write.NOT
    patches: tuple[Patch, ...] = ()
    deletes: tuple[Delete, ...] = ()
    creates: tuple[Create, ...] = ()
    events: tuple[JobEvent, ...] = ()
    #: Reconcile again at this time, even if nothing happens.
    wake: Time | None = None
    #: The job's time to live is over: delete the job.
    remove_job: bool = False
    announces: tuple[Announce, ...] = ()
    #: Another controller manages the job: write nothing, not even its status.
    untouched: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do and no ledger to write. The rendered status may still be new.

        Announces do not count: usually the value is already published.
        """
        return self.write is Write.NOT and not self.changes_objects

    @property
    def changes_objects(self) -> bool:
        """Whether the plan changes objects besides the job's status."""
        return bool(self.patches or self.deletes or self.creates or self.remove_job)
