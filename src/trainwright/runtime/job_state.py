# SPDX-License-Identifier: Apache-2.0
"""What the controller remembers of a job between two passes. All of it can be lost: it saves work, it decides nothing.

What was concluded and may be stored later is here too; should the process die, it is concluded again.

Which ports of shared machines are whose, over all jobs: from what is stored, and from what was just decided.

`controller` asks before a pass over a job that needs some, and notes what that pass has handed out before anything else
is looked at: two jobs that are looked at in the same moment must not be given the same.

Keeps what replicas of elastic jobs look up in step with the plan. `controller` calls it at the end of a pass.

Replicas keep the keys, we only put values right; so every pass looks, and a value that somebody put back is put right
again. A server that does not answer holds up nothing else: people are told once, and it is asked again, ever more
rarely.
"""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from trainwright.errors import ApiError
from trainwright.kinds.base import Kind, Loaded, load, reload
from trainwright.model.child import Refusal
from trainwright.model.event import Emit, EventReason, JobEvent, Notice
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger
from trainwright.model.plan import Announce
from trainwright.runtime.cache import Cache
from trainwright.runtime.ports import Registry
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import LogMessage

#: Kind and role of children that will fare alike.
Like = tuple[str, str]
#: Kind and name of a child.
Place = tuple[str, str]
#: What complaints about the job itself go by.
ITSELF: Like = ("", "")
#: What complaints about a pass that is refused as a whole go by.
STUCK: Like = ("", "pass")
#: What complaints about the elastic server go by.
MEETING: Like = ("", "elastic")
#: What is said of a job that another controller looks after goes by.
FOREIGN: Like = ("", "foreign")
#: These are not about children.
_LASTING = (ITSELF, STUCK, MEETING, FOREIGN)
#: Seconds between two looks at what pods wait for.
_LOOKS = 10.0
_NUMBERS = re.compile(r"\d+")


class JobState:
    """One job, from one pass to the next."""

    def __init__(self, kind: Kind, uid: str) -> None:
        self.kind = kind
        self.uid = uid
        #: A ledger that has not been stored yet, and what to tell people once it is.
        self.pending: Ledger | None = None
        self.untold: tuple[Emit | JobEvent, ...] = ()
        #: Children that the API would not make, by kind and name.
        self.refusals: dict[Place, Refusal] = {}
        #: Children of this kind and role are not asked for before then: one of them was refused.
        self.barred: dict[Like, datetime] = {}
        #: Seconds that children which were refused were last made to wait.
        self.waits: dict[Place, float] = {}
        #: Since when children wait for their name to become free.
        self.awaits: dict[Place, datetime] = {}
        #: What people were last told to be wrong, by what it is about: not told again while it lasts.
        self.complaints: dict[Like, str] = {}
        #: Seconds after which the last pass wants to be followed by another, because of what it met.
        self.again: float | None = None
        #: Since when the stored status has been out of date.
        self.lags: datetime | None = None
        #: What people have been told that pods wait for, by role and reason; and when that was last looked for.
        self.waited: set[tuple[str, str]] = set()
        self._looked: datetime | None = None
        #: Pods that must go were still there: when they have gone, that is told at once.
        self.cleaning = False
        #: The job has ended, its clean-up is over, and the status that follows from that is stored.
        self.cleaned_up = False
        #: Seconds between the last double check and the next (0: begin anew), and when the last was.
        self.period = 0.0
        self.checked: datetime | None = None
        #: Seconds of CPU time that the last decision took. On a busy machine it lasts longer, but is no larger.
        self.effort = 0.0
        #: Seconds to the next try after a failed pass.
        self.pause = 0.0
        #: The elastic server did not answer: it is asked again then, and after how many seconds next time.
        self.unheard: datetime | None = None
        self.hush = 0.0
        #: When the last pass was.
        self._seen: datetime | None = None
        self._document: Body = {}
        self._loaded: Loaded | None = None

    def load(self, document: Body) -> Loaded:
        """The job as it was last seen; read once per version, and its manifest only when that has changed."""
        if self._loaded is None or document is not self._document:
            self._loaded, self._document = self._read(document), document
        return self._loaded

    def _read(self, document: Body) -> Loaded:
        alike = self._loaded is not None and _manifest(self._document) == _manifest(document)
        if not alike:
            # Whoever mends a manifest should not wait for what the old one had to wait for.
            self.refusals, self.barred, self.waits = {}, {}, {}
        again = reload(self.kind, self._loaded, document.get("status")) if self._loaded is not None and alike else None
        return again or load(self.kind, document)

    def rest(self) -> None:
        """Nothing more is expected: thousands of finished jobs must not weigh on memory."""
        self._loaded, self._document = None, {}

    def job(self, loaded: Loaded) -> Job:
        """The job with what has been concluded of it since it was last stored."""
        return loaded.job if self.pending is None else replace(loaded.job, ledger=self.pending)

    def complain(self, about: Like, event: JobEvent) -> None:
        """Have people told of a trouble, once."""
        if self.is_news(about, event):
            self.untold += (event,)

    def is_news(self, about: Like, event: JobEvent) -> bool:
        """Whether people have yet to be told of a trouble; one that differs in numbers only is the same."""
        before, said = self.complaints.get(about), _NUMBERS.sub("", repr(event))
        self.complaints[about] = said
        return before != said

    def may_look(self, now: datetime) -> bool:
        """Whether it is time to look for what pods wait for: of thousands that takes a while."""
        if self._looked is not None and 0 <= (now - self._looked).total_seconds() < _LOOKS:
            return False
        self._looked = now
        return True

    def went_well(self) -> None:
        """The pass has come to its end."""
        self.pause = 0.0
        self.complaints.pop(STUCK, None)

    def begin(self, now: datetime) -> None:
        """A pass begins. What waits for a time does not wait for longer because the clock was set back."""
        if self._seen is not None and now < self._seen:
            self.barred, self.unheard = {}, None
            self.refusals = {place: replace(one, retry_at=now) for place, one in self.refusals.items()}
        self._seen, self.again = now, None

    def look_again(self, seconds: float) -> None:
        """This pass met something that another must look at, so soon."""
        self.again = seconds if self.again is None else min(self.again, seconds)

    def next_check(self, now: datetime, first: float, most: float, *, changed: bool) -> float:
        """Seconds to the next double check: twice as long as the last time if nothing has changed all the while."""
        since = (now - self.checked).total_seconds() if self.checked is not None else -1.0
        if changed or not self.period or since < 0:
            self.period, self.checked, since = first, now, 0.0
        elif since > 0.9 * self.period:
            self.period, self.checked, since = min(self.period * 2, most), now, 0.0
        return self.period - since

    def expire(self, now: datetime, wanted: Collection[Place]) -> None:
        """Forget a refusal when its time is over and its child, by kind and name, is no longer wanted.

        One that is still wanted is told of until it is made: what people read must not change to and fro meanwhile.
        """
        self.barred = {like: until for like, until in self.barred.items() if until > now}
        self.refusals = {
            place: one
            for place, one in self.refusals.items()
            if place in wanted or (one.retry_at is not None and one.retry_at > now)
        }
        self.waits = {place: wait for place, wait in self.waits.items() if place in self.refusals}
        if self.awaits:
            self.awaits = {at: since for at, since in self.awaits.items() if at in wanted or at in self.refusals}
        if not self.refusals:
            self.complaints = {about: text for about, text in self.complaints.items() if about in _LASTING}


def _manifest(document: Body) -> tuple[object, Body]:
    """All of a job but its status, and what changes with that."""
    meta = document["metadata"]
    return document.get("spec"), {key: meta[key] for key in meta if key not in ("resourceVersion", "managedFields")}


class HostPortIndex:
    """The ports of every job that has not ended."""

    def __init__(self, jobs: Mapping[str, Cache]) -> None:
        self._jobs = jobs
        self._decided: dict[str, frozenset[int]] = {}

    def others(self, uid: str) -> frozenset[int]:
        """Those that other jobs have."""
        found: set[int] = set()
        for cache in self._jobs.values():
            for document in cache.items():
                if document["metadata"].get("uid") != uid:
                    found |= _stored(document)
        for other, ports in self._decided.items():
            found |= ports if other != uid else frozenset()
        return frozenset(found)

    def note(self, uid: str, ledger: Ledger) -> None:
        """A pass has come to this."""
        if ledger.ports and ledger.outcome is None:
            self._decided[uid] = frozenset(ledger.ports.values())
        else:
            self._decided.pop(uid, None)

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._decided.pop(uid, None)


def _stored(document: Body) -> set[int]:
    """What its status says; anything may stand there."""
    status = document.get("status")
    ledger = status.get("trainwright") if isinstance(status, dict) else None
    ports = ledger.get("ports") if isinstance(ledger, dict) and not ledger.get("outcome") else None
    return {port for port in ports.values() if isinstance(port, int)} if isinstance(ports, dict) else set()


_LOG = logging.getLogger(__name__)


class ElasticSizePublisher:
    """Writes to the registry, if there is one."""

    def __init__(self, registry: Registry | None, settings: ControllerSettings) -> None:
        self._registry = registry
        self._first, self._most = settings.refused, settings.refused_most

    async def announce(self, job: Job, announces: Sequence[Announce], track: JobState, now: datetime) -> None:
        """Put right what differs, unless the server did not answer a moment ago."""
        if self._registry is None or not announces:
            return
        if track.unheard is not None and now < track.unheard:
            track.look_again((track.unheard - now).total_seconds())
            return
        try:
            for one in announces:
                await self._revise(self._registry, job, one)
        except ApiError as error:
            self._unheard(track, now, error)
        else:
            track.unheard, track.hush = None, 0.0
            track.complaints.pop(MEETING, None)

    async def _revise(self, registry: Registry, job: Job, one: Announce) -> None:
        before = await registry.revise(one.key, one.value)
        if before not in (None, one.value):
            _LOG.info(LogMessage("announced", job=job.key, key=one.key, value=one.value, before=before))

    def _unheard(self, track: JobState, now: datetime, error: ApiError) -> None:
        """Replicas may go on with the old size: whoever changed it should know."""
        track.hush = min(2 * track.hush or self._first, self._most)
        track.unheard = now + timedelta(seconds=track.hush)
        track.look_again(track.hush)
        text = f"the elastic server cannot be told of the size, and is asked again: {error}"
        track.complain(MEETING, Notice(EventReason.STUCK, text))
