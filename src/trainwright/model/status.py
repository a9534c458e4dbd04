# SPDX-License-Identifier: Apache-2.0
"""What one pass concluded: each replica's state, counts, and the next ledger. `core` makes it, a kind renders it."""

from enum import StrEnum

from msgspec import Struct

from trainwright.model.cause import Cause
from trainwright.model.child import Pod
from trainwright.model.ledger import Ledger


class State(StrEnum):
    """What is concluded of a replica from what is observed of it."""

    WAITING = "Waiting"  # no pod of its attempt yet
    STARTING = "Starting"  # a pod, not running yet
    RUNNING = "Running"
    STOPPING = "Stopping"  # its pod is being removed by somebody else; a new one follows
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"  # its node is


class Seen(Struct, frozen=True, gc=False):
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


class RoleSeen(Struct, frozen=True, gc=False):
    """The replicas of one role, by index, and how many of them run."""

    name: str
    replicas: tuple[Seen, ...]
    running: int = 0

    @property
    def calm(self) -> bool:
        """Every replica runs: most passes over most jobs need to know no more."""
        return self.running == len(self.replicas)

    def count(self, *states: State) -> int:
        """How many replicas are in one of these states."""
        return sum(seen.state in states for seen in self.replicas)


class Status(Struct, frozen=True, gc=False):
    """The conclusion of a pass."""

    ledger: Ledger
    roles: tuple[RoleSeen, ...]
    #: Children that could not be made, by name: what the engine was told.
    refused: dict[str, str] = {}
    #: The outcome is decided but pods that must go are still there.
    cleaning: bool = False
    #: What is wrong with an edit that cannot be applied; the job goes on as it was.
    invalid: str = ""
