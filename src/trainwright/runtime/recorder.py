# SPDX-License-Identifier: Apache-2.0
"""Events for people: `kubectl describe` and `trainwright events` show them. `executor` hands them over.

An event that says how a job ended is tried until it is taken, or refused for good: a namespace that is going takes
none. Any other may be lost with a server that does not answer. No job waits for that: large clusters keep events in a
store of their own, which may be away alone.
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
#: What whoever looks after the operator should read as well; the steps of a job's life are logged by `job_metrics`.
_TROUBLE = (
    EventReason.REFUSED,
    EventReason.UNFIT,
    EventReason.GANG_MISSING,
    EventReason.OTHER_SCHEDULER,
    EventReason.FOREIGN,
)
#: So many that are to be tried again are kept, the newest.
_KEPT = 10_000
#: Seconds between two tries, doubling; for so long after one that failed, passes do not try.
_FIRST, _MOST, _SPARED = 0.2, 30.0, 5.0
#: A status from here on is the server's trouble and may pass, and so may 429.
_SERVERS, _LATER = 500, 429


class Recorder:
    """Writes events."""

    def __init__(self, cluster: Cluster, clock: Clock, telemetry: Telemetry) -> None:
        self._cluster = cluster
        self._clock = clock
        self._telemetry = telemetry
        self._numbers = count(1)
        #: How jobs ended, as far as that has not been taken yet.
        self._late: deque[Body] = deque(maxlen=_KEPT)
        self._some = asyncio.Event()
        self._spared = -inf

    async def run(self) -> None:
        """Try again what says how a job ended, until cancelled."""
        pause = _FIRST
        while True:
            await self._some.wait()
            await asyncio.sleep(pause)
            body = self._late.popleft()
            if await self._sent(body):
                pause = _FIRST if not self._late else 0.0
            else:
                self._late.appendleft(body)
                pause = min(max(pause * 2, _FIRST), _MOST)
            if not self._late:
                self._some.clear()

    async def tell(self, job: Job, emit: Emit) -> None:
        """One event: sent at once, if events are taken at all."""
        now = self._clock.now()
        if emit.moment in _TROUBLE:
            _LOG.warning(
                LogMessage("trouble", job=str(job.key), kind=job.kind, reason=emit.moment.value, why=emit.message)
            )
        suffix = f"{int(now.timestamp() * 1e6):x}{next(self._numbers):x}"
        body = event(job, emit, now, _once(job, emit) if emit.once else suffix)
        if asyncio.get_running_loop().time() >= self._spared and await self._sent(body):
            return
        if emit.moment in _TERMINAL:
            self._late.append(body)
            self._some.set()

    async def _sent(self, body: Body) -> bool:
        """Send it once; whether there is no use in doing so again."""
        result, over = "done", True
        try:
            await self._cluster.create(EVENTS, body)
        except AlreadyExistsError as error:
            # It was taken before: that answer was lost, or an operator before this one told it.
            result = error.reason
        except ApiError as error:
            about = body["involvedObject"]
            job, kind = f"{about['namespace']}/{about['name']}", about["kind"].lower()
            _LOG.warning(LogMessage("event not taken", job=job, kind=kind, reason=body["reason"], error=error))
            result, over = error.reason, error.status < _SERVERS and error.status != _LATER
        self._telemetry.writes["create", EVENTS.id, result] += 1
        self._spared = -inf if over else asyncio.get_running_loop().time() + _SPARED
        return over


def _once(job: Job, emit: Emit) -> str:
    """The end of the name that this event has, whoever tells it and whenever."""
    return blake2b(f"{job.uid} {emit.moment}".encode(), digest_size=8).hexdigest()


def event(job: Job, emit: Emit, now: Time, suffix: str) -> Body:
    """The event as an API server takes it."""
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
        "reason": emit.reason or str(emit.moment),
        "message": emit.message,
        "source": {"component": emit.source or "trainwright"},
        "firstTimestamp": rfc3339(now),
        "lastTimestamp": rfc3339(now),
        "count": 1,
    }
