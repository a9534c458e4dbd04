# SPDX-License-Identifier: Apache-2.0
"""What the controller remembers about jobs between passes: the state of each job, host ports, elastic sizes.

A controller can lose this memory without harm, because the memory only saves work. Even a ledger that a pass has
decided but not stored can be lost: if the process dies, the next controller makes the same decisions again.
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

_LOG = logging.getLogger(__name__)
#: Kind and role of children. If the API server refuses one child of such a group, it usually refuses the whole group.
ChildGroup = tuple[str, str]
#: Kind and name of a child.
ChildKey = tuple[str, str]
#: What a warning is about: a group of children, or one of the four topics below.
Topic = tuple[str, str]
MANIFEST_TOPIC: Topic = ("", "")
STUCK_TOPIC: Topic = ("", "pass")
ELASTIC_TOPIC: Topic = ("", "elastic")
FOREIGN_TOPIC: Topic = ("", "foreign")
_JOB_TOPICS = (MANIFEST_TOPIC, STUCK_TOPIC, ELASTIC_TOPIC, FOREIGN_TOPIC)
#: Seconds between two checks of what pods wait for. Checks are rare, because a check of thousands of pods is slow.
_WAIT_CHECK_SECONDS = 10.0
_NUMBERS = re.compile(r"\d+")


class JobState:
    """What the controller remembers of one job between two passes."""

    def __init__(self, kind: Kind, uid: str) -> None:
        self.kind = kind
        self.uid = uid
        #: A ledger that is not stored yet, and the events to send once it is stored.
        self.pending: Ledger | None = None
        self.unsent_events: tuple[Emit | JobEvent, ...] = ()
        #: Children that the API server refused to create.
        self.refusals: dict[ChildKey, Refusal] = {}
        #: After a refusal, no child of the same kind and role is created before this time.
        self.blocked_until: dict[ChildGroup, datetime] = {}
        #: Seconds of the last wait after a refusal.
        self.refusal_waits: dict[ChildKey, float] = {}
        #: For each child that waits because another object has its name: the time at which the wait began.
        self.name_taken_since: dict[ChildKey, datetime] = {}
        #: The text of the last warning on each topic, without digits. A new warning with an equal text is not sent.
        self.warnings: dict[Topic, str] = {}
        #: The current pass requests another pass after this many seconds.
        self.requeue_seconds: float | None = None
        #: The time at which the stored status became out of date.
        self.stale_since: datetime | None = None
        #: The status that says that the job was accepted, while it is not stored.
        self.accepted_status: Body | None = None
        #: Whether a status is being stored, whether a watch reported a change of the job in that time, and the version
        #: of the job after the last status was stored.
        self.is_storing = self.changed_while_storing = False
        self.stored_version = ""
        #: Fields of the ledger that the API server did not store, because its CRD is older than this operator.
        self.dropped: frozenset[str] = frozenset()
        #: Pairs (role, reason) for which an event has reported that pods wait, and the time of the last check.
        self.reported_waits: set[tuple[str, str]] = set()
        self._waits_checked_at: datetime | None = None
        #: Whether pods that must be deleted existed in the last pass. When none is left, the status is due at once.
        self.cleaning = False
        #: Whether the job has ended, its clean-up is over, and its final status is stored.
        self.cleaned_up = False
        #: Seconds from the last resync to the next (0: begin with the shortest time), and the time of the last resync.
        self.resync_seconds = 0.0
        self.resynced_at: datetime | None = None
        #: CPU seconds of the last decision: unlike elapsed time, CPU time does not depend on the load of the machine.
        self.decision_seconds = 0.0
        #: Seconds until the next try after a failed pass.
        self.retry_pause = 0.0
        #: If the elastic registry did not answer: the time of the next request to it, and the last pause in seconds.
        self.registry_retry_at: datetime | None = None
        self.registry_pause = 0.0
        self._last_pass: datetime | None = None
        self._document: Body = {}
        self._loaded: Loaded | None = None

    def load(self, document: Body) -> Loaded:
        """The decoded job. Each version of the job is decoded once; an unchanged manifest is not decoded again."""
        if self._loaded is None or document is not self._document:
            self._loaded, self._document = self._decode(document), document
        return self._loaded

    def _decode(self, document: Body) -> Loaded:
        before = self._loaded
        same_manifest = before is not None and _manifest(self._document) == _manifest(document)
        if not same_manifest:
            # A corrected manifest must be tried at once, without the back-off that belongs to the old manifest.
            self.refusals, self.blocked_until, self.refusal_waits = {}, {}, {}
        reloaded = reload(self.kind, before, document.get("status")) if before is not None and same_manifest else None
        return reloaded or load(self.kind, document)

    def release_memory(self) -> None:
        """Drop the decoded job if no pass is scheduled: thousands of finished jobs would use too much memory."""
        self._loaded, self._document = None, {}

    def current_job(self, loaded: Loaded) -> Job:
        """The job with its newest ledger: the pending ledger if there is one, otherwise the stored ledger."""
        return loaded.job if self.pending is None else replace(loaded.job, ledger=self.pending)

    def warn(self, topic: Topic, event: JobEvent) -> None:
        """Send an event about a problem, unless the last event on this topic was the same."""
        if self.is_new_warning(topic, event):
            self.unsent_events += (event,)

    def is_new_warning(self, topic: Topic, event: JobEvent) -> bool:
        """Whether this event differs, apart from numbers, from the last event on the topic. Remembers this event."""
        before, text = self.warnings.get(topic), _NUMBERS.sub("", repr(event))
        self.warnings[topic] = text
        return before != text

    def is_wait_check_due(self, now: datetime) -> bool:
        """Whether to check now what pods wait for."""
        last = self._waits_checked_at
        if last is not None and 0 <= (now - last).total_seconds() < _WAIT_CHECK_SECONDS:
            return False
        self._waits_checked_at = now
        return True

    def begin_pass(self, now: datetime) -> None:
        """Begin a pass. If the clock was set back, allow all retries now: the stored retry times are wrong."""
        if self._last_pass is not None and now < self._last_pass:
            self.blocked_until, self.registry_retry_at = {}, None
            self.refusals = {key: replace(one, retry_at=now) for key, one in self.refusals.items()}
        self._last_pass, self.requeue_seconds = now, None

    def requeue_in(self, seconds: float) -> None:
        """Request another pass after at most this many seconds."""
        self.requeue_seconds = seconds if self.requeue_seconds is None else min(self.requeue_seconds, seconds)

    def next_resync(self, now: datetime, first: float, most: float, *, changed: bool) -> float:
        """Seconds until the next resync. The period doubles from `first` to `most` while nothing changes."""
        since = (now - self.resynced_at).total_seconds() if self.resynced_at is not None else -1.0
        if changed or not self.resync_seconds or since < 0:
            self.resync_seconds, self.resynced_at, since = first, now, 0.0
        elif since > 0.9 * self.resync_seconds:
            self.resync_seconds, self.resynced_at, since = min(self.resync_seconds * 2, most), now, 0.0
        return self.resync_seconds - since

    def expire(self, now: datetime, wanted: Collection[ChildKey]) -> None:
        """Forget a refusal if its retry time is over and the plan no longer creates the refused child.

        If the plan still creates the child, the refusal stays until the child exists, so that conditions are stable.
        """
        self.blocked_until = {group: until for group, until in self.blocked_until.items() if until > now}
        self.refusals = {
            key: one
            for key, one in self.refusals.items()
            if key in wanted or (one.retry_at is not None and one.retry_at > now)
        }
        self.refusal_waits = {key: wait for key, wait in self.refusal_waits.items() if key in self.refusals}
        if self.name_taken_since:
            self.name_taken_since = {
                key: since for key, since in self.name_taken_since.items() if key in wanted or key in self.refusals
            }
        if not self.refusals:
            self.warnings = {topic: text for topic, text in self.warnings.items() if topic in _JOB_TOPICS}


def _manifest(document: Body) -> tuple[object, Body]:
    """The job without its status and without the metadata that changes with the status."""
    meta = document["metadata"]
    return document.get("spec"), {key: meta[key] for key in meta if key not in ("resourceVersion", "managedFields")}


class HostPortIndex:
    """The host ports of all unfinished jobs, from the stored ledgers and from plans that are not stored yet.

    A pass notes its ports before another pass can begin, so two jobs never get the same port.
    """

    def __init__(self, jobs: Mapping[str, Cache]) -> None:
        self._jobs = jobs
        self._planned: dict[str, frozenset[int]] = {}

    def others(self, uid: str) -> frozenset[int]:
        """The ports of all jobs except this job."""
        documents = [document for cache in self._jobs.values() for document in cache.items()]
        stored = [_stored_ports(one) for one in documents if one["metadata"].get("uid") != uid]
        planned = [ports for other, ports in self._planned.items() if other != uid]
        return frozenset[int]().union(*stored, *planned)

    def note(self, uid: str, ledger: Ledger) -> None:
        """Remember the ports that a pass has decided."""
        if ledger.ports and ledger.outcome is None:
            self._planned[uid] = frozenset(ledger.ports.values())
        else:
            self._planned.pop(uid, None)

    def forget(self, uid: str) -> None:
        """Drop a job that was deleted."""
        self._planned.pop(uid, None)


def _stored_ports(document: Body) -> set[int]:
    """The ports in a stored status. If the CRD is not ours, the status can contain any value."""
    status = document.get("status")
    ledger = status.get("trainwright") if isinstance(status, dict) else None
    ports = ledger.get("ports") if isinstance(ledger, dict) and not ledger.get("outcome") else None
    return {port for port in ports.values() if isinstance(port, int)} if isinstance(ports, dict) else set()


class ElasticSizePublisher:
    """Writes the sizes of elastic jobs to the registry (etcd) that their replicas read, if there is a registry.

    The replicas own the keys and can change a value, so every pass compares each value with the size in its plan.
    If the registry does not answer, the publisher sends one event and retries with increasing pauses, and the pass
    continues.
    """

    def __init__(self, registry: Registry | None, settings: ControllerSettings) -> None:
        self._registry = registry
        self._first_pause, self._max_pause = settings.refused, settings.refused_most

    async def publish(self, job: Job, announces: Sequence[Announce], state: JobState, now: datetime) -> None:
        """Write each value that the registry does not have yet. After a failed request, do nothing during the pause."""
        if self._registry is None or not announces:
            return
        if state.registry_retry_at is not None and now < state.registry_retry_at:
            state.requeue_in((state.registry_retry_at - now).total_seconds())
            return
        try:
            for one in announces:
                before = await self._registry.revise(one.key, one.value)
                if before not in (None, one.value):
                    _LOG.info(LogMessage("announced", job=job.key, key=one.key, value=one.value, before=before))
        except ApiError as error:
            self._retry_later(state, now, error)
        else:
            state.registry_retry_at, state.registry_pause = None, 0.0
            state.warnings.pop(ELASTIC_TOPIC, None)

    def _retry_later(self, state: JobState, now: datetime, error: ApiError) -> None:
        """Schedule a retry and warn the user, because replicas may continue with the old size."""
        state.registry_pause = min(2 * state.registry_pause or self._first_pause, self._max_pause)
        state.registry_retry_at = now + timedelta(seconds=state.registry_pause)
        state.requeue_in(state.registry_pause)
        text = f"the new size cannot be written to the elastic server, and the operator retries: {error}"
        state.warn(ELASTIC_TOPIC, Notice(EventReason.STUCK, text))
