# SPDX-License-Identifier: Apache-2.0
"""What there is to show of a run, as values. `run.board` makes them from objects; every view reads them."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from trainwright.model.ledger import Outcome, Phase
from trainwright.model.meta import Key

#: Phases of a replica from which nothing follows.
OVER = frozenset({"Succeeded", "Failed", "Stopped"})


class ReplicaNews(Struct, frozen=True, gc=False):
    """One replica as it now is."""

    job: Key
    role: str
    index: int
    #: How it is called in this run: `worker-0`, with the job's name before it where there are several.
    label: str
    phase: str = "Waiting"
    pod: str = ""
    uid: str = ""
    attempt: int = 0
    node: str = ""
    restarts: int = 0
    reason: str = ""
    #: Since when it is there, as Kubernetes writes times.
    since: str = ""
    #: Its pod is gone; what is told of it is how it last was.
    removed: bool = False

    @property
    def name(self) -> str:
        """`worker-0`."""
        return f"{self.role}-{self.index}"


class JobNews(Struct, frozen=True):
    """One job as it now is."""

    key: Key
    kind: str
    #: In the kind's own words.
    phase: str
    #: In ours.
    step: Phase
    #: How many replicas it should have.
    total: int
    #: How many of them are in each phase.
    counts: Mapping[str, int]
    restarts: int = 0
    outcome: Outcome | None = None
    deleted: bool = False
    #: Seconds since it was submitted; once it is decided, until then.
    took: float = 0.0

    @property
    def over(self) -> bool:
        """Nothing more is to come of it."""
        return self.outcome is not None or self.deleted


class EventNews(Struct, frozen=True, gc=False):
    """One event of the API."""

    job: Key
    about: str
    reason: str
    message: str
    warning: bool = False


class LogSource(Struct, frozen=True, gc=False):
    """Where a log line comes from."""

    job: Key
    replica: str
    pod: str
    container: str
    #: What stands before its lines.
    label: str


class JobVerdict(Struct, frozen=True, rename="camel", omit_defaults=True):
    """How a job's run ended, for people and programs: `run.verdict` finds it out."""

    namespace: str
    name: str
    #: `Succeeded`, `Failed`, `Interrupted`, `TimedOut`, `Deleted`, `Broken`.
    outcome: str
    exit_code: int
    #: Seconds.
    duration: float
    restarts: int
    #: One sentence: what decided.
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
    #: Replicas that were not where they should be when it ended, and why.
    unsettled: tuple[str, ...] = ()
    #: Replicas whose pods the end of the run itself has terminated; the job's status does not tell of that.
    terminated: tuple[str, ...] = ()


News = ReplicaNews | JobNews | EventNews
Line = tuple[LogSource, str]


class Frame(Protocol):
    """What a view may ask of the board when it paints: the whole picture, now."""

    def jobs(self) -> tuple[JobNews, ...]:
        """All jobs, in the order they were given."""
        ...

    def pick(self, most: int) -> tuple[ReplicaNews, ...]:
        """At most that many replicas: those in trouble first, then what is not over, in order."""
        ...

    def count(self) -> int:
        """How many replicas there are in all."""
        ...


class RunView(Protocol):
    """A way of showing a run. Nothing here may block for long or raise because of its reader."""

    @property
    def busy(self) -> bool:
        """The reader has enough to read; logs had better wait."""
        ...

    @property
    def gone(self) -> bool:
        """There is no reader any more."""
        ...

    def news(self, items: list[News]) -> None:
        """Something changed."""
        ...

    def logs(self, lines: list[Line]) -> None:
        """Replicas printed this."""
        ...

    def notice(self, text: str) -> None:
        """Something that people should know, told once."""
        ...

    def tick(self, frame: Frame) -> None:
        """A moment has passed; a view that paints may do so now."""
        ...

    def end(self, endings: list[JobVerdict], folder: str) -> None:
        """The run is over."""
        ...

    def close(self, patience: float) -> bool:
        """Write what is left, for so long at most; whether all of it is written. May be called again."""
        ...
