# SPDX-License-Identifier: Apache-2.0
"""Decides what an engine that runs for months removes: finished jobs by age, number and disk space, and old events.

A job's own `ttlSecondsAfterFinished` is the controller's work. These limits are the engine's.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from trainwright.errors import ConflictError, NotFoundError
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import EVENTS, Cluster

#: As in an API server, events are kept for one hour.
EVENT_AGE = timedelta(hours=1)
#: So many events are removed at the same time. The journal commits their removals together.
_REMOVALS_AT_ONCE = 64


class RetentionLimits(Struct, frozen=True, kw_only=True):
    """How much is kept. None: no limit."""

    #: How long a finished job is kept.
    age: timedelta | None = None
    #: The number of finished jobs that are kept.
    jobs: int | None = None
    #: The disk space in bytes of all finished jobs.
    size: int | None = None


class Finished(Protocol):
    """A finished job: when it ended, the disk space of its files in bytes, and its name."""

    @property
    def ended(self) -> datetime:
        """The time of its end."""

    @property
    def size(self) -> int:
        """The disk space of its files in bytes."""

    @property
    def name(self) -> str:
        """A name that orders jobs that ended at the same time."""


FinishedT = TypeVar("FinishedT", bound=Finished)


def surplus(finished: Iterable[FinishedT], limits: RetentionLimits, now: datetime) -> tuple[FinishedT, ...]:
    """The jobs to remove: all that are too old, and then the oldest ones until the other limits hold."""
    newest_first = sorted(finished, key=lambda job: (job.ended, job.name), reverse=True)
    size, kept = 0, 0
    for job in newest_first:
        size += job.size
        too_old = limits.age is not None and now - job.ended > limits.age
        too_many = limits.jobs is not None and kept >= limits.jobs
        if too_old or too_many or (limits.size is not None and size > limits.size):
            break
        kept += 1
    return tuple(reversed(newest_first[kept:]))


def old_events(bodies: Iterable[Body], now: datetime) -> tuple[Body, ...]:
    """The events to remove. The time of an event is the last time that it happened."""
    return tuple([body for body in bodies if (time := event_time(body)) is not None and now - time > EVENT_AGE])


def event_time(body: Body) -> datetime | None:
    """When an event happened for the last time."""
    given = (body.get("lastTimestamp"), body.get("eventTime"), body["metadata"].get("creationTimestamp"))
    return next((time for value in given if (time := _time(value)) is not None), None)


def _time(value: Any) -> datetime | None:
    """A time with its zone; None if the value is no time."""
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo is not None else None


async def prune_events(cluster: Cluster, now: datetime) -> None:
    """Remove old events."""

    async def delete(key: Key, uid: str) -> None:
        with suppress(NotFoundError, ConflictError):  # it is gone already
            await cluster.delete(EVENTS, key, uid=uid)

    events = old_events((await cluster.list(EVENTS.whole())).items, now)
    found = [(Key(one["namespace"], one["name"]), one["uid"]) for one in (body["metadata"] for body in events)]
    for start in range(0, len(found), _REMOVALS_AT_ONCE):
        await asyncio.gather(*[delete(key, uid) for key, uid in found[start : start + _REMOVALS_AT_ONCE]])
