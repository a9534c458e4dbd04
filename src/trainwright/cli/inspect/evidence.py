# SPDX-License-Identifier: Apache-2.0
"""What is known about one job, wherever it runs: the job with its status, and the objects around it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from pathlib import Path

from msgspec import Struct

from trainwright.cli.show.news import JobEnding
from trainwright.core.diagnose import diagnose, doubt
from trainwright.kinds.base import Kind
from trainwright.model.job import Body
from trainwright.model.ledger import Failure

#: How many of the last lines of a log an excerpt has.
LOG_LINES = 400


class Wanted(IntEnum):
    """What a command needs to know about a job. Each value includes those before it."""

    JOB = 0
    EVENTS = 1
    #: The objects around the job, and the log of the failure to quote, too.
    EVERYTHING = 2


class LogExcerpt(Struct, frozen=True):
    """The last log lines of a container whose failure an explanation quotes."""

    failure: Failure
    lines: tuple[str, ...] = ()
    #: Why the log could not be read, for example because the caller may not read logs; empty if it was read.
    problem: str = ""

    @property
    def doubt(self) -> int:
        """How likely it is that the failure of another replica caused this one, see `core.diagnose.doubt`."""
        return doubt(diagnose(self.failure.cause, self.lines))


def true_cause(excerpts: Sequence[LogExcerpt]) -> LogExcerpt | None:
    """Return the failure that is least likely a consequence of another one. Of several, the first is returned."""
    return min(excerpts, key=lambda one: one.doubt, default=None)


class JobEvidence(Struct, frozen=True, kw_only=True):
    """Everything that is known about one job. All objects are as the API returns them, in JSON."""

    kind: Kind
    #: The job with its status. After a killed run, the submitted job without a status.
    body: Body
    #: When the objects were read. For a past run: the end of the run.
    now: datetime
    #: Where the job is, as a user would say it: `run 20261117-062951-6520, live` or `cluster production`.
    place: str
    #: The runtime of a run on this machine; empty: the job is on a cluster.
    runtime: str = ""
    #: Whether the job is still managed: by the engine of a live run, or by the operator of a cluster.
    live: bool = True
    #: Whether the job is unfinished and its replicas run on without the background engine.
    waits_for_engine: bool = False
    #: The pods that exist. A past run has none.
    pods: tuple[Body, ...] = ()
    #: None if the caller may not list nodes.
    nodes: tuple[Body, ...] | None = None
    #: The events about the job and its children, oldest first.
    events: tuple[Body, ...] = ()
    #: Objects of a scheduler or of a quota system that decide when the job may start: PodGroup, Workload of Kueue.
    admission: tuple[Body, ...] = ()
    #: What is missing on which node for pods that kube-scheduler cannot place, by the name of the pod. Empty for a run
    #: on this machine, because the messages of the embedded scheduler already contain the missing amounts.
    shortages: Mapping[str, str] = {}
    #: Log lines of the failure that `core.explain.failure_to_quote` names; None if there is none, or if not wanted.
    log: LogExcerpt | None = None
    #: How the run of a past job ended; None: the run is live or was killed, or the job is on a cluster.
    ending: JobEnding | None = None
    #: What could not be read, one sentence each: a forbidden list, a run that was killed.
    gaps: tuple[str, ...] = ()
    #: The folder of a past run, with the record of its pods and their logs.
    folder: Path | None = None


def event_time(event: Body) -> str:
    """When the event last happened, as text that sorts by time."""
    series = event.get("series") or {}
    found = event.get("lastTimestamp") or series.get("lastObservedTime") or event.get("eventTime")
    found = found or event.get("firstTimestamp") or (event.get("metadata") or {}).get("creationTimestamp")
    return str(found or "")
