# SPDX-License-Identifier: Apache-2.0
"""Which finished jobs and events are removed: by age, by number, by disk space."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import Struct
from store_objects import Clock, body, names

from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.retention import RetentionLimits, prune_events, surplus
from trainwright.local.storage.store import Store
from trainwright.runtime.ports import EVENTS

NOW = Clock().time
NO_LIMITS = {"age": None, "jobs": None, "size": None}


class Ended(Struct, frozen=True):
    name: str
    ended: datetime
    size: int


def ended(hours: float, size: int = 0) -> Ended:
    """A job that ended this many hours ago; its name says when."""
    return Ended(f"j-{hours:g}", NOW - timedelta(hours=hours), size)


JOBS = [ended(3, 10), ended(1, 30), ended(48, 500), ended(2, 5), ended(0, 1)]


@pytest.mark.parametrize(
    ("limits", "removed"),
    [
        ({}, []),
        ({"age": timedelta(hours=48)}, []),
        ({"age": timedelta(hours=47)}, ["j-48"]),
        ({"age": timedelta(hours=1.5)}, ["j-48", "j-3", "j-2"]),
        ({"jobs": 5}, []),
        ({"jobs": 2}, ["j-48", "j-3", "j-2"]),
        ({"jobs": 0}, ["j-48", "j-3", "j-2", "j-1", "j-0"]),
        ({"size": 546}, []),
        ({"size": 545}, ["j-48"]),
        ({"size": 35}, ["j-48", "j-3", "j-2"]),
        ({"age": timedelta(hours=2.5), "jobs": 4, "size": 1000}, ["j-48", "j-3"]),
    ],
)
def test_the_oldest_jobs_go_first(limits: dict[str, Any], removed: list[str]) -> None:
    found = surplus(JOBS, RetentionLimits(**{**NO_LIMITS, **limits}), NOW)
    assert [job.name for job in found] == removed


def event(name: str, **times: str) -> dict[str, Any]:
    return {**body(name, EVENTS), **times, "involvedObject": {}}


async def test_events_are_kept_for_an_hour_after_they_happened_last() -> None:
    clock = Clock()
    items = Store(clock)
    items.create(EVENTS, event("first"))
    items.create(EVENTS, event("again", lastTimestamp="2026-11-15T14:00:00Z"))
    clock.later(2.5 * 3600)
    items.create(EVENTS, event("late"))
    await prune_events(LocalCluster(items), clock.now())
    assert names(items, EVENTS) == ["again", "late"]
