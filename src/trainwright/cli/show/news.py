# SPDX-License-Identifier: Apache-2.0
"""The values that views show: jobs, replicas, events, log lines and endings; and the interface of a view."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from trainwright.model.ledger import Outcome, Phase
from trainwright.model.meta import Key

#: Phases of a replica that has ended.
OVER = frozenset({"Succeeded", "Failed", "Stopped"})


class ReplicaNews(Struct, frozen=True, gc=False):
    """One replica in its current state."""

    job: Key
    role: str
    index: int
    #: The name of the replica in this run, for example `worker-0`, or `demo/worker-0` if the run has several jobs.
    label: str
    phase: str = "Waiting"
    pod: str = ""
    uid: str = ""
    attempt: int = 0
    node: str = ""
    restarts: int = 0
    reason: str = ""
    #: The time at which the replica's pod started, in the time format of Kubernetes.
    since: str = ""
    #: Whether the replica's pod no longer exists; the other fields then contain its last state.
    removed: bool = False

    @property
    def name(self) -> str:
        """Role and index, for example `worker-0`."""
        return f"{self.role}-{self.index}"


class JobNews(Struct, frozen=True):
    """One job in its current state."""

    key: Key
    kind: str
    #: The phase of the job, in the words of its kind.
    phase: str
    #: The same phase, in the words that all kinds share.
    step: Phase
    #: The wanted number of replicas.
    total: int
    #: The number of replicas in each phase.
    counts: Mapping[str, int]
    restarts: int = 0
    outcome: Outcome | None = None
    deleted: bool = False
    #: Seconds from the submission of the job until now or until its outcome.
    took: float = 0.0

    @property
    def over(self) -> bool:
        """Whether the job has an outcome or is deleted."""
        return self.outcome is not None or self.deleted


class EventNews(Struct, frozen=True, gc=False):
    """One Event object."""

    job: Key
    about: str
    reason: str
    message: str
    warning: bool = False


class LogSource(Struct, frozen=True, gc=False):
    """The container that has written a log line."""

    job: Key
    replica: str
    pod: str
    container: str
    #: The text that is printed before each line of this container.
    label: str


class JobEnding(Struct, frozen=True, rename="camel", omit_defaults=True):
    """How the run of a job ended, for people and programs."""

    namespace: str
    name: str
    #: One of `Succeeded`, `Failed`, `Interrupted`, `TimedOut`, `Deleted`, `Broken`.
    outcome: str
    exit_code: int
    #: The duration of the job in seconds.
    duration: float
    restarts: int
    #: One sentence that says what decided the outcome.
    because: str
    rule: str = ""
    replica: str = ""
    pod: str = ""
    container: str = ""
    code: int | None = None
    signal: int | None = None
    cause: str = ""
    last_lines: tuple[str, ...] = ()
    hint: str = ""
    #: Replicas that had failed, waited or were not ready when the run ended, each with its phase and the reason.
    unsettled: tuple[str, ...] = ()
    #: Replicas whose pods the run itself has ended; the status of the job does not show this.
    terminated: tuple[str, ...] = ()


News = ReplicaNews | JobNews | EventNews
Line = tuple[LogSource, str]


class Frame(Protocol):
    """The current state of the whole run, for a view that draws it."""

    def jobs(self) -> tuple[JobNews, ...]:
        """All jobs in the order of the input."""

    def pick(self, most: int) -> tuple[ReplicaNews, ...]:
        """At most `most` replicas, in order. If there are more, prefer failed replicas, then unfinished replicas."""

    def count(self) -> int:
        """The number of all replicas."""


class RunView(Protocol):
    """Shows a run. If the reader of the output is slow or gone, methods must not block for long or raise errors."""

    @property
    def busy(self) -> bool:
        """Whether much output waits for the reader, so that the caller should delay logs."""

    @property
    def gone(self) -> bool:
        """Whether the reader has closed the pipe."""

    def news(self, items: list[News]) -> None:
        """Show changes."""

    def logs(self, lines: list[Line]) -> None:
        """Show log lines."""

    def notice(self, text: str) -> None:
        """Show a message of the run itself."""

    def tick(self, frame: Frame) -> None:
        """Draw the current state, if the view draws. The run calls this regularly."""

    def end(self, endings: list[JobEnding], folder: str) -> None:
        """Show the endings at the end of the run."""

    def close(self, timeout: float) -> bool:
        """Wait until all output is written. Return False if this takes over `timeout` seconds. Can be called again."""
