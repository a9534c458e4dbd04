# SPDX-License-Identifier: Apache-2.0
"""What one pass concluded: each replica's state, counts, and the next ledger. `core` makes it, a kind renders it.

Effects as values. `core.reconcile` returns a `Plan`; an engine carries it out in this order:

status (with its resourceVersion) → patches → deletes (with UID) → creates → announces → events, and nothing more once
one is refused as out of date. So a kill between any two writes loses nothing: what was decided is stored, or decided
again.
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
    """What is concluded of a replica from what is observed of it."""

    WAITING = "Waiting"  # no pod of its attempt yet
    STARTING = "Starting"  # a pod, not running yet
    RUNNING = "Running"
    STOPPING = "Stopping"  # its pod is being removed by somebody else; a new one follows
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"  # its node is


class ReplicaState(Struct, frozen=True, gc=False):
    """One replica: what there is of it, and what that means."""

    index: int
    attempt: int
    state: State
    pod: Pod | None = None
    cause: Cause | None = None
    #: Ended, and will not be tried again.
    final: bool = False
    #: The pod of an older attempt, while it is still there.
    old: Pod | None = None


class RoleState(Struct, frozen=True, gc=False):
    """The replicas of one role, by index, and how many of them run."""

    name: str
    replicas: tuple[ReplicaState, ...]
    running: int = 0

    @property
    def all_running(self) -> bool:
        """Every replica runs: most passes over most jobs need to know no more."""
        return self.running == len(self.replicas)

    def count(self, *states: State) -> int:
        """How many replicas are in one of these states."""
        return sum(seen.state in states for seen in self.replicas)


class Status(Struct, frozen=True, gc=False):
    """The conclusion of a pass."""

    ledger: Ledger
    roles: tuple[RoleState, ...]
    #: Children that could not be made, by name: what the engine was told.
    refused: dict[str, str] = {}
    #: The outcome is decided but pods that must go are still there.
    cleaning: bool = False
    #: What is wrong with an edit that cannot be applied; the job goes on as it was.
    invalid: str = ""


class Create(Struct, frozen=True, gc=False):
    """Make this object. If it exists: ours is adopted, a terminating one is waited for, a foreign one is a refusal.

    Of a job that was handed over, one that another controller made for this very job is removed first.
    """

    body: Body

    @property
    def name(self) -> str:
        """The object's name."""
        name: str = self.body["metadata"]["name"]
        return name


class Delete(Struct, frozen=True, gc=False):
    """Remove this object, and only this one (UID). `force`: do not wait for a node that will not answer."""

    kind: str
    name: str
    uid: str
    why: str
    force: bool = False
    api: str = "v1"


class Patch(Struct, frozen=True, gc=False):
    """Merge this into the object, and only this one (UID)."""

    kind: str
    name: str
    uid: str
    body: Body
    why: str
    api: str = "v1"


class Announce(Struct, frozen=True, gc=False):
    """Have replicas find this under the key that they keep at the site's elastic server; where they keep none, nothing.

    Asked for in every pass of a live job, so nothing has to remember whether it was done.
    """

    key: str
    value: str


class Write(StrEnum):
    """Whether the ledger must be stored: at once, along with the next write (or after a while), or not at all.

    The kind's own status is rendered after each pass and may differ although the ledger does not (an image cannot be
    pulled, a pod was cleaned up): an engine compares it with what is stored, and writes phase and conditions at once,
    counts with the next write or after a while. Until it has written what may wait, it passes its own latest ledger to
    `reconcile`, not the stored one.
    """

    NOW = "Now"
    LATER = "Later"
    NOT = "Not"


class Plan(Struct, frozen=True, gc=False):
    """What should happen, and what to report."""

    status: Status
    write: Write = Write.NOT
    patches: tuple[Patch, ...] = ()
    deletes: tuple[Delete, ...] = ()
    creates: tuple[Create, ...] = ()
    events: tuple[JobEvent, ...] = ()
    #: Look again then, even if nothing happens.
    wake: Time | None = None
    #: The job's time to live is over: remove it.
    remove_job: bool = False
    announces: tuple[Announce, ...] = ()
    #: The job is another controller's: nothing of it is written, not even its status.
    untouched: bool = False

    @property
    def empty(self) -> bool:
        """Nothing to do, and no ledger to write; the rendered status may still differ from the stored one.

        What is announced does not count: mostly it is known.
        """
        return self.write is Write.NOT and not self.changes_objects

    @property
    def changes_objects(self) -> bool:
        """It changes objects, besides the status of the job."""
        return bool(self.patches or self.deletes or self.creates or self.remove_job)
