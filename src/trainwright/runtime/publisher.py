# SPDX-License-Identifier: Apache-2.0
"""When the status of a job is written, and what people are told once it is. `controller` calls it in every pass.

What was decided, phase and conditions go out at once, and so does what is left once everything that must go has gone;
other counts ride along, or follow when they have been out of date for some seconds.
"""

from datetime import datetime
from typing import Any

import msgspec

from trainwright.core.report import exit_events, waiting_events
from trainwright.errors import ApiError, TooManyRequestsError, UnavailableError
from trainwright.kinds.base import Kind, Loaded
from trainwright.kinds.registry import KINDS
from trainwright.model.event import Emit, EventReason, Notice, default_emit
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Phase
from trainwright.model.plan import Plan, Status, Write
from trainwright.runtime.executor import Executor
from trainwright.runtime.job_state import FOREIGN, ITSELF, STUCK, JobState
from trainwright.runtime.recorder import Recorder
from trainwright.runtime.settings import ControllerSettings


class Publisher:
    """Writes statuses and events."""

    def __init__(self, executor: Executor, recorder: Recorder, settings: ControllerSettings) -> None:
        self._executor = executor
        self._recorder = recorder
        self._count_delay = settings.count_delay
        self._child_events = settings.child_events
        self._owned = {kind.singular: _fields(kind) for kind in KINDS}

    async def store(self, document: Body, loaded: Loaded, plan: Plan, track: JobState, now: datetime) -> float | None:
        """Write the status if it must be written now; else in how many seconds, if at all."""
        job = track.job(loaded)
        if plan.untouched:
            track.untold += tuple(default_emit(event) for event in plan.events if track.is_news(FOREIGN, event))
            return None
        every = self._child_events
        ends = exit_events(job, job.ledger, plan.status.ledger, every=every) if every or track.kind.tells_pods else ()
        events = tuple(track.kind.event(job, plan.status, event) for event in (*ends, *plan.events))
        said = document.get("status")
        stored = said if isinstance(said, dict) else {}  # a definition that is not ours may let anything pass
        # As a server will have it: a tuple is a list there.
        rendered = msgspec.json.decode(msgspec.json.encode(track.kind.render(loaded.status, job, plan.status, now)))
        change = difference(stored, rendered, self._owned[job.kind])
        if not change:
            track.pending = track.lags = None
            return None
        waiting_events = self._waits(track, now)
        cleared = track.cleaning and not plan.status.cleaning
        urgent = cleared or _urgent(stored, change, track.kind.patient)
        if plan.write is not Write.NOW and waiting_events > 0 and not urgent:
            track.cleaning = plan.status.cleaning
            track.pending = plan.status.ledger
            track.untold += events
            return waiting_events
        await self._executor.store(job, document["metadata"]["resourceVersion"], change)
        track.cleaning = plan.status.cleaning
        track.pending = track.lags = None
        track.untold += events
        return None

    def _waits(self, track: JobState, now: datetime) -> float:
        """How long counts may still wait; a clock that was set back does not make it longer."""
        if track.lags is None or track.lags > now:
            track.lags = now
        return self._count_delay - (now - track.lags).total_seconds()

    def notice(self, job: Job, status: Status, track: JobState, now: datetime) -> None:
        """What pods wait for, where people want to hear of it: each reason once, and not looked for all the time."""
        if not track.kind.reports_pods or job.unmanaged or job.foreign or not track.may_look(now):
            return
        for about, event in waiting_events(status, now).items():
            if about not in track.waited:
                track.waited.add(about)
                track.untold += (track.kind.event(job, status, event),)

    async def tell(self, job: Job, track: JobState) -> None:
        """Events, once the status that they speak of is stored."""
        if not job.invalid or job.unmanaged:
            track.complaints.pop(ITSELF, None)
        elif (job.unreadable or job.ledger.phase is not Phase.NEW) and job.ledger.outcome is None:
            # A new job fails for it, and says so with that; any other goes on as it was.
            track.complain(ITSELF, Notice(EventReason.UNFIT, job.invalid))
        if track.untold and track.pending is None:
            untold, track.untold = track.untold, ()
            for one in untold:
                # Events of the executor are not yet in the kind's words.
                emit = one if isinstance(one, Emit) else track.kind.event(job, Status(job.ledger, ()), one)
                await self._recorder.tell(job, emit)

    async def complain(self, job: Job, track: JobState, error: ApiError) -> None:
        """What the server will not have stops a job for good, and where it is the status, only an event can say so."""
        text = f"what has to be done next is refused, and is tried again: {error.reason}: {error}"
        event = Notice(EventReason.STUCK, text)
        passing = isinstance(error, UnavailableError | TooManyRequestsError)
        if not passing and track.is_news(STUCK, event):
            await self._recorder.tell(job, default_emit(event))


def _fields(kind: Kind) -> frozenset[str]:
    """The status fields of a kind; the durable state is only ever written whole, never dropped."""
    names = (field.encode_name for field in msgspec.structs.fields(kind.status))
    return frozenset(name for name in names if name != "trainwright")


def _urgent(stored: Body, change: Body, patient: tuple[str, ...]) -> bool:
    """Whether people and programs wait for some of it; everything else is a count."""
    if "phase" in change and change["phase"] not in patient:
        return True
    if "conditions" not in change:
        return False
    before, after = (
        [one for one in conditions or () if one.get("type") not in patient]
        for conditions in (stored.get("conditions"), change["conditions"])
    )
    return before != after


def difference(before: Body, after: Body, owned: frozenset[str]) -> Body:
    """The merge patch from the stored status to the rendered one. Fields that are not ours stay as they are."""
    changed: Body = {key: _change(before.get(key), value) for key, value in after.items() if before.get(key) != value}
    return changed | {key: None for key in before if key not in after and key in owned}


def _change(before: Any, after: Any) -> Any:
    """A merge patch keeps what it does not name, so what is gone is named as null."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    changed = {key: _change(before.get(key), value) for key, value in after.items() if before.get(key) != value}
    return changed | {key: None for key in before if key not in after}
