# SPDX-License-Identifier: Apache-2.0
"""Decides when the status of a job is written, and sends the events of a pass after the status is stored.

Changes of decisions, of the phase and of conditions are written at once, and so are the final counts after a clean-up.
Other counts are written together with the next such change, or after they have been out of date for `count_delay`
seconds. The acceptance of a job is written after `accept_delay` seconds or together with the next such change: most
jobs run by then, and one write less is a quarter of what a small job costs the API server.
"""

import logging
from datetime import datetime
from functools import partial

import msgspec
from msgspec.structs import replace

from trainwright.core.report import exit_events
from trainwright.core.report import waiting_events as wait_events
from trainwright.errors import ApiError, TooManyRequestsError, UnavailableError
from trainwright.kinds.base import Kind, Loaded
from trainwright.kinds.registry import KINDS
from trainwright.model.event import Emit, EventReason, Notice, default_emit
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.plan import Plan, Status, Write
from trainwright.runtime.executor import Executor
from trainwright.runtime.job_state import FOREIGN_TOPIC, MANIFEST_TOPIC, STUCK_TOPIC, JobState
from trainwright.runtime.recorder import Recorder
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import LogMessage, Telemetry

_LOG = logging.getLogger(__name__)
_EMPTY = Ledger()
#: Each second that a write takes delays the acceptance of a job by this many seconds more, up to the maximum.
_ACCEPT_PER_LATENCY_SECOND = 300.0
_MAX_ACCEPT_SECONDS = 30.0


class Publisher:
    """Writes the status and the events of jobs."""

    def __init__(
        self, executor: Executor, recorder: Recorder, settings: ControllerSettings, telemetry: Telemetry
    ) -> None:
        self._executor = executor
        self._recorder = recorder
        self._telemetry = telemetry
        self._count_delay, self._accept_delay = settings.count_delay, settings.accept_delay
        self._child_events = settings.child_events
        self._owned = {kind.id: _status_fields(kind) for kind in KINDS}

    async def store(self, document: Body, loaded: Loaded, plan: Plan, state: JobState, now: datetime) -> float | None:
        """Write the status if it is urgent. Returns the seconds after which a delayed status is due, or None."""
        job = state.current_job(loaded)
        if plan.untouched:
            state.unsent_events += tuple(
                default_emit(event) for event in plan.events if state.is_new_warning(FOREIGN_TOPIC, event)
            )
            return None
        events = self._events(job, plan, state)
        found = document.get("status")
        stored = found if isinstance(found, dict) else {}  # a CRD that is not ours may allow any value here
        if stored:
            state.accepted_status = None
        render = partial(self._rendered, loaded, stored, state, now)
        status = render(plan.status)
        if status == stored or (
            state.dropped and render(_without(plan.status, state.dropped, loaded.job.ledger)) == stored
        ):
            state.pending = state.stale_since = state.accepted_status = None
            return None
        if plan.write is Write.ACCEPTED:
            state.accepted_status = status
        delay = self._remaining_delay(state, now)
        waits = plan.write is not Write.NOW and delay > 0 and not _is_urgent(job, plan.status, state, stored, status)
        if waits:
            state.pending = plan.status.ledger
            if state.accepted_status is not None:
                state.accepted_status = status
        else:
            written = await self._executor.store(job, document, status)
            state.stored_version = written["metadata"]["resourceVersion"]
            self._note_dropped(job, plan.status.ledger, written, state)
            state.pending = state.stale_since = state.accepted_status = None
            if job.invalid and not stored:  # the next pass adds the edit that cannot be applied to this status
                state.requeue_in(0.0)
        state.cleaning = plan.status.cleaning
        state.unsent_events += events
        return delay if waits else None

    def _events(self, job: Job, plan: Plan, state: JobState) -> tuple[Emit, ...]:
        """The events of a pass, in the words of the kind."""
        every = self._child_events
        exits = (
            exit_events(job, job.ledger, plan.status.ledger, every=every) if every or state.kind.reports_pods else ()
        )
        events = [event for event in (*exits, *plan.events) if every or state.kind.reports(event.event_reason)]
        return tuple(state.kind.event(job, plan.status, event) for event in events)

    def _rendered(self, loaded: Loaded, stored: Body, state: JobState, now: datetime, result: Status) -> Body:
        """The whole new status. The conditions of an acceptance that is not stored keep their times."""
        job, accepted = state.current_job(loaded), state.accepted_status
        before = loaded.status if accepted is None else msgspec.convert(accepted, state.kind.status)
        # The API server returns JSON, which has lists but no tuples: convert before the comparison.
        body: Body = msgspec.json.decode(msgspec.json.encode(state.kind.render(before, job, result, now)))
        body = {name: value for name, value in body.items() if value is not None}
        return with_foreign_fields(stored, body, self._owned[job.kind])

    def _note_dropped(self, job: Job, ledger: Ledger, written: Body, state: JobState) -> None:
        """Remember which fields of the ledger the API server did not keep, so that they cause no more writes."""
        kept = (written.get("status") or {}).get("trainwright") or {}
        sent = () if job.unreadable else Ledger.__struct_fields__
        names = frozenset(name for name in sent if name not in kept and getattr(ledger, name) != getattr(_EMPTY, name))
        if names - state.dropped:
            text = "the API server drops parts of the durable state: its definition is older than this operator"
            _LOG.warning(LogMessage(text, job=job.key, kind=job.kind, fields=",".join(sorted(names))))
        state.dropped = names

    def _remaining_delay(self, state: JobState, now: datetime) -> float:
        """Seconds until a delayed status must be written. If the clock was set back, the delay begins again."""
        if state.stale_since is None or state.stale_since > now:
            state.stale_since = now
        most = self._count_delay
        if state.accepted_status is not None:
            # A slow API server is busy with changes that are more important than an acceptance.
            more = _ACCEPT_PER_LATENCY_SECOND * self._telemetry.write_seconds
            most = self._accept_delay and min(self._accept_delay + more, _MAX_ACCEPT_SECONDS)
        return most - (now - state.stale_since).total_seconds()

    def add_wait_events(self, job: Job, status: Status, state: JobState, now: datetime) -> None:
        """If the kind sets `reports_pods`, add an event for each new reason why pods wait. Checks every few seconds."""
        if not state.kind.reports_pods or job.unmanaged or job.foreign or not state.is_wait_check_due(now):
            return
        for role_and_reason, event in wait_events(status, now).items():
            if role_and_reason not in state.reported_waits:
                state.reported_waits.add(role_and_reason)
                state.unsent_events += (state.kind.event(job, status, event),)

    async def send_events(self, job: Job, state: JobState) -> None:
        """Send the collected events if the status that they belong to is stored."""
        if not job.invalid or job.unmanaged:
            state.warnings.pop(MANIFEST_TOPIC, None)
        elif (job.unreadable or job.ledger.phase is not Phase.NEW) and job.ledger.outcome is None:
            # The manifest is invalid now, but the job has begun, or we cannot read its ledger. In both cases the job
            # must not fail, so only warn.
            state.warn(MANIFEST_TOPIC, Notice(EventReason.UNFIT, job.invalid))
        if state.unsent_events and state.pending is None:
            events, state.unsent_events = state.unsent_events, ()
            for one in events:
                # The executor adds events without a text; the kind formulates the text here.
                emit = one if isinstance(one, Emit) else state.kind.event(job, Status(job.ledger, ()), one)
                await self._recorder.record(job, emit)

    async def report_stuck(self, job: Job, state: JobState, error: ApiError) -> None:
        """Report by an event, not in the status, that the API server refuses a write: it may refuse the status too."""
        text = f"the API server refuses the next step of this job, and the operator retries it: {error.reason}: {error}"
        event = Notice(EventReason.STUCK, text)
        transient = isinstance(error, UnavailableError | TooManyRequestsError)
        if not transient and state.is_new_warning(STUCK_TOPIC, event):
            await self._recorder.record(job, default_emit(event))


def _status_fields(kind: Kind) -> frozenset[str]:
    """The status fields of a kind, without the ledger: the publisher never removes the ledger."""
    names = (field.encode_name for field in msgspec.structs.fields(kind.status))
    return frozenset(name for name in names if name != "trainwright")


def _is_urgent(job: Job, result: Status, state: JobState, stored: Body, status: Body) -> bool:
    """Whether a status must be written now, although no decision depends on it."""
    if (state.cleaning and not result.cleaning) or (job.invalid and not stored):
        return True
    accepted, patient = state.accepted_status, state.kind.deferrable
    if accepted is None:
        return _changes_phase(stored, status, patient)
    # Until the acceptance is stored, a change is urgent if users cannot conclude it from the acceptance.
    return bool(result.refused) or _changes_phase(accepted, status, patient)


def _changes_phase(before: Body, after: Body, patient: tuple[str, ...]) -> bool:
    """Whether the phase or a condition changes. Phases and condition types in `patient` do not count as changes."""
    phase = after.get("phase")
    if phase != before.get("phase") and phase not in patient:
        return True
    old, new = (
        [one for one in status.get("conditions") or () if one.get("type") not in patient] for status in (before, after)
    )
    return old != new


def _without(status: Status, names: frozenset[str], stored: Ledger) -> Status:
    """The result of a pass, in which these fields of the ledger have the stored values."""
    return replace(status, ledger=replace(status.ledger, **{name: getattr(stored, name) for name in names}))


def with_foreign_fields(stored: Body, rendered: Body, owned: frozenset[str]) -> Body:
    """The rendered status, with those fields of the stored status that are not ours (`owned`)."""
    foreign = {name: value for name, value in stored.items() if name not in rendered and name not in owned}
    return foreign | rendered if foreign else rendered
