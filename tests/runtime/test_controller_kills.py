# SPDX-License-Identifier: Apache-2.0
"""A controller that is killed between any two writes, whose watches lag, or whose answers get lost: the job ends alike.

A killed one hears nothing more and does nothing more; the next one begins with what is stored.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from runtime_rig import JOB, VIRTUAL, WRITES, Call, ControllerRig, RecordingCluster, Run, at_work, key

from trainwright.errors import UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT
from trainwright.runtime.ports import PODS, SERVICES

pytestmark = VIRTUAL


def eventful(pod: Body) -> Run:
    """Worker 1 fails once, worker 2 never ends by itself."""
    name, attempt = pod["metadata"]["name"], pod["metadata"]["labels"][ATTEMPT]
    if name.endswith("-2"):
        return Run(lasts=None)
    return Run(lasts=4.0 + int(name[-1]), code=1 if name.endswith("-1") and attempt == "0" else 0)


def submitted() -> ControllerRig:
    """Three workers with services; it succeeds when two have, and the third is cleaned up then."""
    rig = ControllerRig(eventful)
    body = rig.submit(replicas=3, limit=2, cleans="Unfinished", service=True)
    rig.store.patch(JOB, key(), {"spec": body["spec"] | {"successRules": [{"worker": [0, 1]}]}})
    return rig


def settled(rig: ControllerRig) -> bool:
    return rig.phase() == "Succeeded" and len(rig.pods()) == 2


def state(rig: ControllerRig) -> dict[str, Any]:
    """Everything that must not depend on who looked after the job, and when."""
    status = rig.status()
    (role,) = status["trainwright"]["roles"]
    labels = {one["metadata"]["name"]: one["metadata"]["labels"][ATTEMPT] for one in rig.store.list(PODS)[0]}
    return {
        "phase": status["phase"],
        "outcome": status["trainwright"]["outcome"] | {"at": "", "message": ""},
        "restarts": role["restarts"],
        "retries": role["retries"],
        "pods": rig.pods(),
        "attempts": labels,
        "services": [one["metadata"]["name"] for one in rig.store.list(SERVICES)[0]],
        "ever": Counter(name for name, _ in rig.kubelet.born),
    }


def dies_after(wire: RecordingCluster, writes: int) -> asyncio.Event:
    """From then on nothing goes over this wire any more, neither request nor answer; set once it is so."""
    dead, done = asyncio.Event(), 0

    async def after(call: Call) -> None:
        nonlocal done
        done += call.verb in WRITES
        if done >= writes:
            dead.set()
        await before(call)

    async def before(call: Call) -> None:
        if dead.is_set() and call.verb in (*WRITES, "get"):
            await asyncio.Event().wait()

    if not writes:
        dead.set()
    wire.before, wire.after = before, after
    return dead


async def undisturbed() -> tuple[dict[str, Any], int, Counter[str]]:
    """How the job ends, after how many writes, with which events."""
    rig = submitted()
    async with rig.running():
        await rig.until(lambda: settled(rig))
        await asyncio.sleep(20)
    return state(rig), len(rig.wire.made()), Counter(rig.events())


async def lives(rig: ControllerRig, *writes: int, pause: float = 0.0) -> None:
    """One controller after the other, each killed after so many writes; the last one is left alone."""
    async with at_work(rig.kubelet.run()):
        for many in writes:
            rig.wire = RecordingCluster(LocalCluster(rig.store))
            dead = dies_after(rig.wire, many)
            async with at_work(rig.made().run()):
                await rig.until(lambda dead=dead: dead.is_set() or settled(rig))  # type: ignore[misc]
                await asyncio.sleep(0.1)
            await asyncio.sleep(pause)
        rig.wire = RecordingCluster(LocalCluster(rig.store))
        async with at_work(rig.made().run()):
            await rig.until(lambda: settled(rig))
            await asyncio.sleep(20)


async def test_the_story_is_as_told_here() -> None:
    end, writes, events = await undisturbed()
    assert (end["phase"], end["restarts"], end["retries"]) == ("Succeeded", {"Exit": 1}, "1:1")
    assert end["pods"] == {"train-worker-0": "Succeeded", "train-worker-1": "Succeeded"}
    assert end["ever"] == {"train-worker-0": 1, "train-worker-1": 2, "train-worker-2": 1}
    assert events == {"Running": 1, "Restarting": 1, "Succeeded": 1}
    assert 15 <= writes <= 22


@pytest.mark.parametrize("pause", [0.0, 20.0], ids=["at once", "after a while"])
async def test_killed_between_any_two_writes_the_job_ends_alike(pause: float) -> None:
    expected, writes, events = await undisturbed()
    for many in range(writes + 1):
        rig = submitted()
        await lives(rig, many, pause=pause)
        assert state(rig) == expected, f"killed after {many} writes"
        assert not Counter(rig.events()) - events, f"killed after {many} writes: events doubled"


@pytest.mark.parametrize("each", [1, 2, 3])
async def test_killed_again_and_again_the_job_ends_alike(each: int) -> None:
    expected, writes, _ = await undisturbed()
    rig = submitted()
    await lives(rig, *[each] * (2 * writes))
    assert state(rig) == expected


@pytest.mark.parametrize("lag", [0.01, 0.3, 3.0, 30.0])
async def test_watches_that_lag_delay_the_job_and_repeat_nothing(lag: float) -> None:
    expected, _, events = await undisturbed()
    rig = submitted()
    rig.wire.lag = lag
    async with rig.running():
        await rig.until(lambda: settled(rig), 1000)
        await asyncio.sleep(200)
    assert state(rig) == expected
    assert not Counter(rig.events()) - events
    creates = [call for call in rig.wire.made("create") if " pods " in call]
    assert len(creates) == expected["ever"].total()


async def test_killed_with_watches_that_lag_the_job_ends_alike() -> None:
    expected, writes, _ = await undisturbed()
    for many in range(1, writes, 3):
        rig = submitted()
        async with at_work(rig.kubelet.run()):
            rig.wire.lag = 2.0
            dead = dies_after(rig.wire, many)
            async with at_work(rig.controller.run()):
                await rig.until(dead.is_set)
            rig.wire = RecordingCluster(LocalCluster(rig.store))
            rig.wire.lag = 2.0
            async with at_work(rig.made().run()):
                await rig.until(lambda rig=rig: settled(rig), 300)  # type: ignore[misc]
                await asyncio.sleep(60)
        assert state(rig) == expected, f"killed after {many} writes"


def every(many: int) -> Callable[[int], bool]:
    return lambda number: number % many == 0


@pytest.mark.parametrize("lost", [every(1), every(2), every(3), every(5)], ids=["all", "half", "a third", "a fifth"])
async def test_answers_that_get_lost_repeat_nothing(lost: Callable[[int], bool]) -> None:
    """The write was made; who wrote does not know."""
    expected, _, events = await undisturbed()
    rig = submitted()
    number = 0

    async def after(call: Call) -> None:
        nonlocal number
        if call.verb in WRITES and call.at < 60:
            number += 1
            if lost(number):
                raise UnavailableError("the connection broke")

    rig.wire.after = after
    async with rig.running():
        await rig.until(lambda: settled(rig), 300)
        await asyncio.sleep(60)
    assert state(rig) == expected
    # That a creation is not answered, time and again, may be told.
    assert not Counter(one for one in rig.events() if one != "FailedCreate") - events


async def test_a_controller_that_is_stopped_and_started_in_an_orderly_way_repeats_nothing() -> None:
    expected, _, events = await undisturbed()
    rig = submitted()
    async with at_work(rig.kubelet.run()):
        for _ in range(40):
            async with at_work(rig.made().run()):
                await asyncio.sleep(0.33)
        async with at_work(rig.made().run()):
            await rig.until(lambda: settled(rig))
            await asyncio.sleep(20)
    assert state(rig) == expected
    assert not Counter(rig.events()) - events
