# SPDX-License-Identifier: Apache-2.0
"""When the controller looks at a job: its own timers, the double check, and that what is over costs nothing."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from runtime_rig import JOB, VIRTUAL, ControllerRig, Run, at_work, key

from trainwright.model.meta import ATTEMPT, Key
from trainwright.runtime.ports import NODES, PODS

pytestmark = VIRTUAL
#: So rare that only other timers can be seen at work.
NEVER = {"resync": 1e6, "resync_most": 1e6}
NODE = Key("", "node-1")


def for_ever(pod: object) -> Run:
    return Run(lasts=None)


async def looks(rig: ControllerRig, seconds: float) -> list[int]:
    """When there were passes, to the second, from now on."""
    loop = asyncio.get_running_loop()
    found: list[int] = []
    began, before = loop.time(), rig.passes()
    while loop.time() < began + seconds:
        await asyncio.sleep(0.5)
        found += [round(loop.time() - began)] * (rig.passes() - before)
        before = rig.passes()
    return found


# -- the double check ------------------------------------------------------------------------------------------------


async def test_a_job_that_does_not_change_is_looked_at_ever_more_rarely() -> None:
    rig = ControllerRig(for_ever)
    async with rig.running():
        rig.submit()
        await rig.until(lambda: rig.phase() == "Running")
        assert await looks(rig, 1400) == [15, 45, 105, 225, 465, 765, 1065, 1365]


async def test_a_change_begins_the_double_checks_anew() -> None:
    rig = ControllerRig(for_ever)
    async with rig.running():
        rig.submit()
        await rig.until(lambda: rig.phase() == "Running")
        await asyncio.sleep(500)
        rig.store.patch(PODS, key("train-worker-0"), {"status": {"message": "something"}}, status=True)
        assert (await looks(rig, 50)) == [0, 15, 45]


async def test_the_period_can_be_set() -> None:
    rig = ControllerRig(for_ever, resync=2.0, resync_most=6.0)
    async with rig.running():
        rig.submit()
        await rig.until(lambda: rig.phase() == "Running")
        assert await looks(rig, 25) == [2, 6, 12, 18, 24]


# -- what is over ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cleans", ["None", "All"])
async def test_a_finished_job_costs_nothing(cleans: str) -> None:
    rig = ControllerRig()
    async with rig.running():
        rig.submit(cleans=cleans)
        await rig.finished()
        await asyncio.sleep(60)
        before, writes = rig.passes(), len(rig.wire.calls)
        await asyncio.sleep(10_000)
        assert rig.passes() == before
        assert len(rig.wire.calls) == writes
        assert rig.controller._queue._due == {}
        assert [state._loaded for state in rig.controller._states.values()] == [None]


async def test_a_new_controller_looks_at_what_is_finished_once() -> None:
    rig = ControllerRig()
    names = [f"job{number}" for number in range(5)]
    async with at_work(rig.kubelet.run()):
        async with at_work(rig.controller.run()):
            for name in names:
                rig.submit(name, replicas=1)
            await rig.finished(*names)
        rig.wire.calls.clear()
        async with at_work(rig.made().run()):
            await asyncio.sleep(10_000)
    assert rig.passes() == 5
    assert rig.wire.made() == []


def weight(rig: ControllerRig) -> int:
    """The number of objects that the controller remembers."""
    entries: list[Any] = [rig.controller, rig.controller._queue, *rig.controller._cache.children.values()]
    entries += [*rig.controller._cache.jobs.values()]
    return sum(len(part) for entry in entries for part in vars(entry).values() if isinstance(part, dict | set | list))


async def test_jobs_that_come_and_go_leave_nothing_behind() -> None:
    rig = ControllerRig(lambda pod: Run(code=0 if pod["metadata"]["labels"][ATTEMPT] == "1" else 1))
    async with rig.running():
        await asyncio.sleep(1)
        before = weight(rig)
        for number in range(20):
            rig.submit(f"job{number}", replicas=2, limit=2, cleans="All" if number % 2 else "None", service=True)
        await asyncio.sleep(5)
        for number in range(20):
            if number % 3 == 0:
                rig.store.delete(JOB, key(f"job{number}"))
        await rig.finished(*[f"job{number}" for number in range(20) if number % 3])
        for number in range(20):
            if number % 3:
                rig.store.delete(JOB, key(f"job{number}"))
        await asyncio.sleep(400)
        assert rig.pods() == {}
        assert weight(rig) == before


# -- timers of its own -----------------------------------------------------------------------------------------------


async def test_a_back_off_ends_by_its_own_timer() -> None:
    rig = ControllerRig(lambda pod: Run(lasts=2, code=0 if pod["metadata"]["labels"][ATTEMPT] == "3" else 1), **NEVER)
    async with rig.running():
        rig.submit(replicas=1, limit=5)
        await rig.finished()
    made = [call.at for call in rig.wire.calls if str(call).startswith("create pods")]
    gaps = [later - earlier for earlier, later in pairwise(made)]
    assert [round(gap - 2.5) for gap in gaps] == [1, 2, 4]


async def test_a_node_that_falls_silent_is_given_up_by_its_own_timer() -> None:
    rig = ControllerRig(for_ever, **NEVER)
    node(rig, "True")
    async with rig.running():
        rig.submit(replicas=2)
        await rig.until(lambda: rig.phase() == "Running")
        first = {one["metadata"]["uid"] for one in rig.store.list(PODS)[0]}
        node(rig, "Unknown")
        began = asyncio.get_running_loop().time()
        await rig.until(lambda: not first & {uid for _, uid in rig.kubelet.born[2:]} and len(rig.kubelet.born) > 2)
        assert 60 <= asyncio.get_running_loop().time() - began < 125


async def test_a_node_that_comes_back_in_time_costs_nobody_anything() -> None:
    rig = ControllerRig(for_ever, **NEVER)
    node(rig, "True")
    async with rig.running():
        rig.submit(replicas=2)
        await rig.until(lambda: rig.phase() == "Running")
        node(rig, "Unknown")
        await asyncio.sleep(50)
        node(rig, "True")
        await asyncio.sleep(500)
        assert len(rig.kubelet.born) == 2


async def test_a_silent_node_is_given_up_only_while_another_answers() -> None:
    rig = ControllerRig(for_ever, **NEVER)
    node(rig, "True")
    async with rig.running():
        rig.submit(replicas=2)
        await rig.until(lambda: rig.phase() == "Running")
        another(rig, "False")
        node(rig, "Unknown")
        await asyncio.sleep(500)
        assert len(rig.kubelet.born) == 2
        another(rig, "True")
        await rig.until(lambda: len(rig.kubelet.born) > 2, 5)


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"conditions": [{"type": "XIDErrors", "status": "True"}]}, id="a detector says so"),
        pytest.param({"allocatable": {"nvidia.com/gpu": "1"}}, id="the device plugin has taken one out"),
    ],
)
async def test_pods_whose_gpus_fail_are_made_again_elsewhere(trouble: dict[str, Any]) -> None:
    rig = ControllerRig(for_ever, **NEVER)
    node(rig, "True", allocatable={"nvidia.com/gpu": "2"})
    async with rig.running():
        rig.submit(replicas=2, gpus=1)
        await rig.until(lambda: rig.phase() == "Running")
        began = asyncio.get_running_loop().time()
        node(rig, "True", **trouble)
        await rig.until(lambda: len(rig.kubelet.born) > 2, 200)
        assert 60 <= asyncio.get_running_loop().time() - began < 70
        (avoided,) = rig.status()["trainwright"]["avoided"]
        assert (avoided["node"], avoided["why"], avoided["failed"]) == ("node-1", "DeviceFailed", True)
        affinity = rig.store.list(PODS)[0][0]["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == ["node-1"]


def node(rig: ControllerRig, ready: str, **more: Any) -> None:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": rig.clock.now().isoformat()[:19] + "Z"}
    if not rig.store.list(NODES)[0]:
        rig.store.create(NODES, {"metadata": {"name": "node-1"}})
        rig.store.create(NODES, {"metadata": {"name": "node-2"}})
        another(rig, "True")
    conditions = [*more.pop("conditions", []), condition]
    rig.store.patch(NODES, NODE, {"status": {"conditions": conditions, **more}}, status=True)


def another(rig: ControllerRig, ready: str) -> None:
    """What the other node says, where no pod is."""
    body = {"status": {"conditions": [{"type": "Ready", "status": ready}]}}
    rig.store.patch(NODES, Key("", "node-2"), body, status=True)


# -- counts ----------------------------------------------------------------------------------------------------------


def one_ends_early(pod: dict[str, Any]) -> Run:
    return Run(lasts=3.0 if pod["metadata"]["name"].endswith("-0") else 100.0)


def stored(rig: ControllerRig) -> list[float]:
    return [call.at for call in rig.wire.calls if call.verb == "status"]


@pytest.mark.parametrize("resync", [15.0, 1e6])
async def test_counts_are_stored_ten_seconds_after_they_changed(resync: float) -> None:
    rig = ControllerRig(one_ends_early, resync=resync, resync_most=1e6)
    async with rig.running():
        rig.submit(replicas=3)
        await asyncio.sleep(13)
        assert rig.status()["aggregate"]["succeeded"] == 0
        await asyncio.sleep(1)
        assert rig.status()["aggregate"]["succeeded"] == 1
        await rig.finished()
    assert [round(at) for at in stored(rig)] == [1, 14, 101]


async def test_many_changes_of_counts_are_one_write() -> None:
    rig = ControllerRig(lambda pod: Run(lasts=3.0 + int(pod["metadata"]["name"].rpartition("-")[2])))
    async with rig.running():
        rig.submit(replicas=9)
        await rig.finished()
    assert [round(at) for at in stored(rig)] == [1, 12]


async def test_something_more_important_takes_the_counts_along() -> None:
    rig = ControllerRig(
        lambda pod: Run(lasts=3.0) if pod["metadata"]["name"].endswith("-0") else Run(lasts=6.0, code=1)
    )
    async with rig.running():
        rig.submit(replicas=2, limit=1)
        await asyncio.sleep(7)
        (role,) = rig.status()["trainwright"]["roles"]
        assert (role["succeeded"], role["retries"]) == ("0", "1:1")
        assert rig.status()["aggregate"]["succeeded"] == 1
    assert [round(at) for at in stored(rig)] == [1, 7]


async def test_what_is_not_stored_yet_is_remembered_all_the_same() -> None:
    """A replica that has succeeded is not run again although its pod vanishes before anything is stored."""
    rig = ControllerRig(one_ends_early)
    async with rig.running():
        rig.submit(replicas=2)
        await asyncio.sleep(5)
        assert "succeeded" not in rig.status()["trainwright"]["roles"][0]
        rig.store.delete(PODS, key("train-worker-0"), grace=0)
        await asyncio.sleep(3)
        assert sorted(rig.pods()) == ["train-worker-1"]
        await rig.finished()
    assert len(rig.kubelet.born) == 2


async def test_a_clock_that_is_set_back_does_not_keep_counts_for_an_hour() -> None:
    rig = ControllerRig(one_ends_early)
    async with rig.running():
        rig.submit(replicas=2)
        await asyncio.sleep(5)
        rig.clock.offset = -3600.0
        await asyncio.sleep(30)
        assert rig.status()["aggregate"]["succeeded"] == 1
        await rig.finished()


async def test_a_clock_that_jumps_ahead_leads_to_no_flood() -> None:
    rig = ControllerRig(for_ever)
    async with rig.running():
        rig.submit(replicas=2)
        await rig.until(lambda: rig.phase() == "Running")
        rig.clock.offset = 1e6
        before = rig.passes()
        await asyncio.sleep(1000)
        assert rig.passes() - before < 15
