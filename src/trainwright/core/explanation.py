# SPDX-License-Identifier: Apache-2.0
"""The question and the answer of `core.explain`: what is known about a job, and the explanation of its situation."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from trainwright.core import failure_text
from trainwright.core.advice import ON_CLUSTER, RunPlace
from trainwright.core.failure_text import FailureAccount
from trainwright.model.child import Extra, Refusal
from trainwright.model.job import Job
from trainwright.model.ledger import Failure
from trainwright.model.meta import Wire
from trainwright.model.plan import Status
from trainwright.model.units import Time
from trainwright.model.verdict import FailureClass, Verdict


class Situation(StrEnum):
    """What an explanation explains."""

    WAITING = "Waiting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"
    #: The run that worked on the job ended or was killed before the job ended.
    STOPPED = "Stopped"
    #: Trainwright changes nothing: another controller manages the job, or the stored status cannot be read.
    LEFT_ALONE = "LeftAlone"


class JobFacts(Struct, frozen=True, kw_only=True):
    """What is known about a job, as plain values."""

    job: Job
    status: Status
    now: Time
    place: RunPlace = ON_CLUSTER
    #: The failure that `failure_to_quote` names, the last lines of its log, and why the log could not be read.
    failure: Failure | None = None
    lines: tuple[str, ...] = ()
    log_problem: str = ""
    refusals: tuple[Refusal, ...] = ()
    #: The pod groups of the job.
    extras: tuple[Extra, ...] = ()
    #: What a quota system or a gang scheduler says about the job, one sentence each.
    admission: tuple[str, ...] = ()
    #: The last warning about each pod: reason and message, by the name of the pod.
    warnings: Mapping[str, tuple[str, str]] = {}
    #: Which node is nearest for each pod that no node has room for, and what is missing there, by the name of the pod.
    shortages: Mapping[str, str] = {}
    #: Who suspended the job, if that is known.
    suspended_by: str = ""
    #: The command that resumes the job where it runs.
    resume_command: str = ""
    #: Why the run of the job ended although the job has no outcome; empty: the job is still managed, or it has ended.
    stopped: str = ""
    #: The last event about the job, with its time. The explanation quotes it if nothing better is known.
    last_event: str = ""
    #: The job was deleted before it ended.
    was_deleted: bool = False
    #: What could not be read, one sentence each.
    gaps: tuple[str, ...] = ()
    #: Replicas that had not ended when the run ended, each with its state and the reason.
    unsettled: tuple[str, ...] = ()
    #: The restarts that a past run has counted, including those inside pods; None: the ledger and the pods say it.
    restarts: int | None = None

    @property
    def account(self) -> FailureAccount | None:
        """The failure to quote, diagnosed with the lines of its log."""
        if self.failure is None:
            return None
        return failure_text.account_for(self.job, self.failure, self.lines, self.place)


class Quote(Wire, frozen=True, gc=False):
    """The line of a log that shows the failure; the last line if no line shows it."""

    replica: str
    pod: str
    attempt: int
    container: str
    line: str


class WaitReason(Wire, frozen=True, gc=False):
    """One reason for which replicas do not run."""

    replicas: tuple[str, ...]
    #: How many replicas wait for this reason; `replicas` lists the first of them.
    count: int
    message: str
    failure_class: FailureClass = field(name="class", default=FailureClass.NONE)
    since: datetime | None = None
    action: str = ""


class TimeReport(Wire, frozen=True, gc=False):
    """Where the time of the job went, in seconds; `goodput` is productive ÷ wall."""

    wall: float
    productive: float
    goodput: float
    lost: dict[str, float]


class Explanation(Wire, frozen=True, gc=False):
    """The answer. `headline` names the cause; `sentences` give the details; `action` says what to do."""

    namespace: str
    name: str
    kind: str
    situation: Situation
    headline: str
    sentences: tuple[str, ...] = ()
    action: str = ""
    failure_class: FailureClass = field(name="class", default=FailureClass.NONE)
    quote: Quote | None = None
    obstacles: tuple[WaitReason, ...] = ()
    #: What the quota system or the gang scheduler says.
    admission: tuple[str, ...] = ()
    restarts: int = 0
    time: TimeReport | None = None
    verdict: Verdict | None = None
    #: What could not be read, one sentence each.
    gaps: tuple[str, ...] = ()


class Answer(Struct, frozen=True, gc=False):
    """The part of an explanation that depends on the situation. `text` follows the name of the job."""

    situation: Situation
    text: str
    sentences: tuple[str, ...] = ()
    failure_class: FailureClass = FailureClass.NONE
    action: str = ""


def as_sentence(text: str) -> str:
    """Begin with an upper-case letter unless a name of a replica begins the text, and end with a full stop."""
    first = text.partition(" ")[0]
    text = text if "-" in first else text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
