# SPDX-License-Identifier: Apache-2.0
"""Decides when the status of a job is written, and sends the events of a pass after the status is stored.

Changes of decisions, of the phase and of conditions are written at once, and so are the final counts after a clean-up.
Other counts are written together with the next such change, or after they have been out of date for `count_delay`
seconds.
"""

import logging
from datetime import datetime

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
from trainwright.runtime.telemetry import LogMessage

_LOG = logging.getLogger(__name__)
_EMPTY = Ledger()


class Publisher:
    """Writes the status and the events of jobs."""

    def __init__(self, executor: Executor, recorder: Recorder, settings: ControllerSettings) -> None:
        self._executor = executor
        self._recorder = recorder
        self._count_delay = settings.count_delay
        self._child_events = settings.child_events
        self._owned = {kind.singular: _status_fields(kind) for kind in KINDS}

    async def store(self, document: Body, loaded: Loaded, plan: Plan, state: JobState, now: datetime) -> float | None:
        """Write the status if it is urgent. Returns the seconds after which a delayed status is due, or None."""
        job = state.current_job(loaded)
        if plan.untouched:
            state.unsent_events += tuple(
                default_emit(event) for event in plan.events if state.is_new_warning(FOREIGN_TOPIC, event)
            )
            return None
        every = self._child_events
        pod_exits = (
            exit_events(job, job.ledger, plan.status.ledger, every=every) if every or state.kind.reports_pods else ()
        )
        events = tuple(state.kind.event(job, plan.status, event) for event in (*pod_exits, *plan.events))
        status = document.get("status")
        stored = status if isinstance(status, dict) else {}  # a CRD that is not ours may allow any value here

        def changed_by(result: Status) -> Body:
            # The API server returns JSON, which has lists but no tuples: convert before the comparison.
            body = msgspec.json.decode(msgspec.json.encode(state.kind.render(loaded.status, job, result, now)))
            return difference(stored, body, self._owned[job.kind])

        change = changed_by(plan.status)
        if not change or (state.dropped and not changed_by(_without(plan.status, state.dropped, loaded.job.ledger))):
            state.pending = state.stale_since = None
            return None
        delay = self._remaining_delay(state, now)
        cleanup_done = state.cleaning and not plan.status.cleaning
        urgent = cleanup_done or _is_urgent(stored, change, state.kind.deferrable)
        waits = plan.write is not Write.NOW and delay > 0 and not urgent
        if waits:
            state.pending = plan.status.ledger
        else:
            written = await self._executor.store(job, document["metadata"]["resourceVersion"], change)
            self._note_dropped(job, plan.status.ledger, written, state)
            state.pending = state.stale_since = None
        state.cleaning = plan.status.cleaning
        state.unsent_events += events
        return delay if waits else None

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
        """Seconds until changed counts must be written. If the clock was set back, the delay begins again."""
        if state.stale_since is None or state.stale_since > now:
            state.stale_since = now
        return self._count_delay - (now - state.stale_since).total_seconds()

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


def _is_urgent(stored: Body, change: Body, patient: tuple[str, ...]) -> bool:
    """Whether the phase or a condition changes. Phases and condition types in `patient` do not count as changes."""
    if "phase" in change and change["phase"] not in patient:
        return True
    if "conditions" not in change:
        return False
    before, after = (
        [one for one in conditions or () if one.get("type") not in patient]
        for conditions in (stored.get("conditions"), change["conditions"])
    )
    return before != after


def _without(status: Status, names: frozenset[str], stored: Ledger) -> Status:
    """The result of a pass, in which these fields of the ledger have the stored values."""
    return replace(status, ledger=replace(status.ledger, **{name: getattr(stored, name) for name in names}))


def difference(before: Body, after: Body, owned: frozenset[str] | None = None) -> Body:
    """The merge patch from the stored status to the rendered status. In a merge patch, null removes a key.

    The patch never removes a field that is not in `owned`; without `owned`, it can remove every field.
    """
    patch: Body = {key: None for key in before if key not in after and (owned is None or key in owned)}
    for key, value in after.items():
        old = before.get(key)
        if old != value:
            patch[key] = difference(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return patch
