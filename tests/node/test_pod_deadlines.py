# SPDX-License-Identifier: Apache-2.0
"""`activeDeadlineSeconds` never ends a pod early, in whatever part of a second the pod began; in virtual time.

An agent that is started anew reads when the pod began from the API, which cuts times to whole seconds.
"""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from node_agent import WHOLE, manifest, settings

from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.units import rfc3339
from trainwright.node.context import AgentContext, OnceNotices, StatusWriter
from trainwright.node.link import SupervisorLink
from trainwright.node.pod_devices import NodeDevices
from trainwright.node.watches import ConfigMapWaiter
from trainwright.node.worker import PodWorker
from trainwright.runtime.ports import Clock
from trainwright.testing.factories import NOW

pytestmark = pytest.mark.looptime

#: How long the pod may be active, in seconds.
ALLOWED = 10
#: The least before a moment; the loop's time has steps of a microsecond.
SHORT = 0.001
PARTS = [0.0, 0.3, 0.5, 0.999]


class LoopClock:
    """The time of the loop, which begins in that part of a second."""

    def __init__(self, part: float) -> None:
        self._first = NOW + timedelta(seconds=part - asyncio.get_running_loop().time())

    def now(self) -> datetime:
        return self._first + timedelta(seconds=asyncio.get_running_loop().time())


class NoSupervisor:
    """Stands for a supervisor that was just started: it has no container of this pod."""

    def claim(self, _pod: str) -> list[Body]:
        return []


def accompany(pod: Body, store: Store, clock: Clock, folder: Path) -> PodWorker:
    """Look after the pod. Its containers wait for an earlier pod of its name: no supervisor is needed."""
    given = settings(folder)
    cluster = LocalCluster(store)
    reports, awaited = StatusWriter(cluster, given.delays, print), ConfigMapWaiter(cluster, given.delays)
    nothing = cast("SupervisorLink", NoSupervisor())
    context = AgentContext(
        cluster, nothing, clock, given, reports, NodeDevices(given.devices), OnceNotices(print), awaited
    )
    return PodWorker(pod, context, before=asyncio.create_task(asyncio.sleep(100 * ALLOWED)))


def reason(store: Store) -> str | None:
    status: Body = store.get(WHOLE, Key("space", "pod"))["status"]
    return status.get("reason")


@pytest.mark.parametrize("part", PARTS)
async def test_a_pod_whose_start_was_read_from_the_api_has_its_whole_time(part: float, tmp_path: Path) -> None:
    """The pod began just now, and an agent is started anew at once."""
    clock = LoopClock(part)
    store = Store(clock)
    pod = store.create(WHOLE, manifest(activeDeadlineSeconds=ALLOWED))
    told = {"phase": "Pending", "startTime": rfc3339(clock.now())}
    accompany({**pod, "status": told}, store, clock, tmp_path)

    await asyncio.sleep(ALLOWED - SHORT)
    assert reason(store) is None
    await asyncio.sleep(1 - part + 2 * SHORT)  # up to a second late, since the part was cut from the stamp
    assert reason(store) == "DeadlineExceeded"


@pytest.mark.parametrize("part", PARTS[1:])  # a whole second might be a time that was cut
async def test_a_pod_that_begins_now_has_exactly_its_time(part: float, tmp_path: Path) -> None:
    clock = LoopClock(part)
    store = Store(clock)
    accompany(store.create(WHOLE, manifest(activeDeadlineSeconds=ALLOWED)), store, clock, tmp_path)

    await asyncio.sleep(ALLOWED - SHORT)
    assert reason(store) is None
    await asyncio.sleep(2 * SHORT)
    assert reason(store) == "DeadlineExceeded"
