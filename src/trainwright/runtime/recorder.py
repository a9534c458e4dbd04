# SPDX-License-Identifier: Apache-2.0
"""The event recorder: writes the events that `kubectl describe` and `trainwright run` show.

The recorder retries an event about the end of a job until the API server stores it or refuses it permanently (for
example in a namespace that is being deleted). Any other event can be lost if the server does not answer. A pass never
waits for retries, because large clusters store events in a separate etcd, which can fail while everything else works.
"""

import asyncio
import logging
from collections import deque
from hashlib import blake2b
from itertools import count
from math import inf

from trainwright.errors import AlreadyExistsError, ApiError
from trainwright.model.event import Emit, EventReason
from trainwright.model.job import Body, Job
from trainwright.model.units import Time, rfc3339
from trainwright.runtime.ports import EVENTS, Clock, Cluster
from trainwright.runtime.telemetry import LogMessage, Telemetry

_LOG = logging.getLogger(__name__)
_TERMINAL = (EventReason.SUCCEEDED, EventReason.FAILED)
#: These events are also logged for the administrator of the operator. `job_metrics` logs phases and restarts.
_LOGGED = (
    EventReason.REFUSED,
    EventReason.UNFIT,
    EventReason.GANG_MISSING,
    EventReason.OTHER_SCHEDULER,
    EventReason.FOREIGN,
)
#: Upper bound on events that wait for a retry. Above it, the recorder drops the oldest events.
_MAX_UNSENT = 10_000
#: The pause between two retries doubles from the first to the second value.
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 30.0
#: After a request has failed temporarily, `record` sends nothing for this time; `run` still retries.
_SUSPEND_SECONDS = 5.0


class Recorder:
    """Writes events about jobs."""

    def __init__(self, cluster: Cluster, clock: Clock, telemetry: Telemetry) -> None:
        self._cluster = cluster
        self._clock = clock
        self._telemetry = telemetry
        self._numbers = count(1)
        #: Events about the end of jobs; the API server has not stored these events yet.
        self._unsent: deque[Body] = deque(maxlen=_MAX_UNSENT)
        self._has_unsent = asyncio.Event()
        #: Until this time of the event loop, `record` sends nothing, because the last request failed temporarily.
        self._suspended_until = -inf

    async def run(self) -> None:
        """Retry events about the end of jobs until cancelled."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await self._has_unsent.wait()
            await asyncio.sleep(pause)
            body = self._unsent.popleft()
            if await self._send(body):
                pause = _FIRST_PAUSE_SECONDS if not self._unsent else 0.0
            else:
                self._unsent.appendleft(body)
                pause = min(max(pause * 2, _FIRST_PAUSE_SECONDS), _MAX_PAUSE_SECONDS)
            if not self._unsent:
                self._has_unsent.clear()

    async def record(self, job: Job, emit: Emit) -> None:
        """Send one event, unless sending is suspended. `run` retries only unsent events about the end of jobs."""
        now = self._clock.now()
        if emit.event_reason in _LOGGED:
            _LOG.warning(
                LogMessage("trouble", job=str(job.key), kind=job.kind, reason=emit.event_reason.value, why=emit.message)
            )
        suffix = f"{int(now.timestamp() * 1e6):x}{next(self._numbers):x}"
        if emit.once:
            # Every operator gives this event the same name, so the API server stores it only once.
            suffix = blake2b(f"{job.uid} {emit.event_reason}".encode(), digest_size=8).hexdigest()
        body = event(job, emit, now, suffix)
        if asyncio.get_running_loop().time() >= self._suspended_until and await self._send(body):
            return
        if emit.event_reason in _TERMINAL:
            self._unsent.append(body)
            self._has_unsent.set()

    async def _send(self, body: Body) -> bool:
        """Send one request. Returns False if a retry may help."""
        result, final = "done", True
        try:
            await self._cluster.create(EVENTS, body)
        except AlreadyExistsError as error:
            # The event is stored already: the response to our request was lost, or a previous operator sent the event.
            result = error.reason
        except ApiError as error:
            involved = body["involvedObject"]
            job, kind = f"{involved['namespace']}/{involved['name']}", involved["kind"].lower()
            _LOG.warning(LogMessage("event not stored", job=job, kind=kind, reason=body["reason"], error=error))
            result = error.reason
            final = error.status < 500 and error.status != 429
        self._telemetry.writes["create", EVENTS.id, result] += 1
        self._suspended_until = -inf if final else asyncio.get_running_loop().time() + _SUSPEND_SECONDS
        return final


def event(job: Job, emit: Emit, now: Time, suffix: str) -> Body:
    """The event object for the API server."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.key.name[:200]}.{suffix}", "namespace": job.key.namespace},
        "involvedObject": {
            "apiVersion": job.owner.api_version,
            "kind": job.owner.kind,
            "namespace": job.key.namespace,
            "name": job.key.name,
            "uid": job.uid,
        },
        "type": "Warning" if emit.warning else "Normal",
        "reason": emit.reason or str(emit.event_reason),
        "message": emit.message,
        "source": {"component": emit.source or "trainwright"},
        "firstTimestamp": rfc3339(now),
        "lastTimestamp": rfc3339(now),
        "count": 1,
    }
