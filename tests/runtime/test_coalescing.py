# SPDX-License-Identifier: Apache-2.0
"""How long a pass waits for more events: longer if the API server is slow, and if only counts change."""

import asyncio

import pytest
from msgspec.structs import replace
from runtime_rig import JOB, VIRTUAL, Call, ControllerRig, Run, key

from trainwright.core.observe import is_minor_change
from trainwright.model.child import ObjectCondition, Pod, PodStatus
from trainwright.model.job import Body
from trainwright.model.meta import SPARE
from trainwright.runtime.ports import PODS
from trainwright.runtime.telemetry import Telemetry
from trainwright.testing.factories import NOW, container, pod

pytestmark = VIRTUAL
WAITS = pod(0, "Pending", node="")
SCHEDULED = (ObjectCondition("PodScheduled", "True"),)
RESTARTED = replace(container(), restart_count=1)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(pod(0, "Pending", node="node-1", conditions=SCHEDULED), True, id="bound"),
        pytest.param(pod(0, "Pending", node="", conditions=SCHEDULED), False, id="no node"),
        pytest.param(pod(0, "Running", node="node-1"), False, id="runs at once"),
        pytest.param(pod(0, "Pending", node="node-1", reason="Evicted"), False, id="another reason"),
        pytest.param(pod(0, "Pending", node="node-1", deleting=NOW), False, id="being deleted"),
        pytest.param(pod(0, "Pending", node="node-1", labels={}), False, id="its labels are gone"),
        pytest.param(pod(0, "Pending", node="node-1", owners=()), False, id="its owner is gone"),
        pytest.param(pod(0, "Pending", node="node-1", uid="new"), False, id="another pod of this name"),
    ],
)
def test_a_pod_that_only_got_a_node(after: Pod, *, expected: bool) -> None:
    assert is_minor_change(WAITS, after, ()) is expected


def test_a_pod_that_had_a_node_before_did_not_get_one() -> None:
    after = pod(0, "Pending", node="node-1", conditions=SCHEDULED)
    assert not is_minor_change(pod(0, "Pending", node="node-1"), after, ())


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(WAITS, True, id="new"),
        pytest.param(None, False, id="deleted"),
        pytest.param(pod(0, "Pending", node="", deleting=NOW), False, id="being deleted"),
        pytest.param(pod(0, "Pending", node="node-1"), False, id="has a node already"),
        pytest.param(pod(0, "Running", node=""), False, id="runs already"),
        pytest.param(pod(0, "Pending", node="", conditions=SCHEDULED), False, id="has a condition already"),
        pytest.param(pod(0, "Pending", node="", owners=()), False, id="to be adopted"),
        pytest.param(pod(0, "Pending", node="", attempt=SPARE), False, id="a spare"),
    ],
)
def test_a_pod_that_appears(after: Pod | None, *, expected: bool) -> None:
    assert is_minor_change(None, after, ()) is expected


STARTED = pod(0, "Running")
OTHER_WAITS = pod(1, "Pending")


@pytest.mark.parametrize(
    ("after", "others", "expected"),
    [
        pytest.param(STARTED, [OTHER_WAITS], True, id="another pod still waits"),
        pytest.param(pod(0, "Running", containers=(container(),)), [OTHER_WAITS], True, id="its container runs"),
        pytest.param(STARTED, [], False, id="the only pod"),
        pytest.param(STARTED, [pod(1, "Running"), pod(2, "Succeeded")], False, id="the last one"),
        pytest.param(STARTED, [pod(1, "Pending", role="ps")], False, id="only another role waits"),
        pytest.param(STARTED, [pod(1, "Pending", deleting=NOW)], False, id="the other one is being deleted"),
        pytest.param(STARTED, [pod(1, "Pending", attempt=SPARE)], False, id="the other one is a spare"),
        pytest.param(STARTED, [OTHER_WAITS] * 300, False, id="too many pods to search"),
        pytest.param(pod(0, "Running", inits=(RESTARTED,)), [OTHER_WAITS], False, id="an init container was restarted"),
        pytest.param(
            replace(STARTED, status=PodStatus("Running", pod_ip="10.0.0.2")), [OTHER_WAITS], False, id="moved"
        ),
        pytest.param(pod(0, "Running", code=1), [OTHER_WAITS], False, id="a container has ended"),
        pytest.param(pod(0, "Running", containers=(RESTARTED,)), [OTHER_WAITS], False, id="a container was restarted"),
        pytest.param(pod(0, "Failed"), [OTHER_WAITS], False, id="it has failed"),
        pytest.param(pod(0, "Succeeded"), [OTHER_WAITS], False, id="it has succeeded"),
        pytest.param(pod(0, "Running", labels={}), [OTHER_WAITS], False, id="its labels are gone"),
    ],
)
def test_a_pod_that_runs_for_the_first_time(after: Pod, others: list[Pod], *, expected: bool) -> None:
    before = pod(0, "Pending")
    if after.status.pod_ip:
        before = replace(before, status=PodStatus("Pending", pod_ip="10.0.0.1"))
    assert is_minor_change(before, after, [after, *others]) is expected


def never_starts(_: Body) -> Run:
    return Run(starts=10_000)


async def seconds_to_pass(rig: ControllerRig) -> float:
    """Seconds until the next pass begins."""
    loop = asyncio.get_running_loop()
    began, before = loop.time(), rig.passes()
    while rig.passes() == before:
        await asyncio.sleep(0.005)
    return loop.time() - began


async def quiet(rig: ControllerRig) -> None:
    """Submit a job and wait until its acceptance is stored and nothing is due soon."""
    rig.submit()
    await rig.until(lambda: rig.phase() == "Pending")
    await asyncio.sleep(16)


async def test_a_pod_that_got_a_node_causes_a_pass_a_second_later() -> None:
    rig = ControllerRig(never_starts, resync=0.0)
    async with rig.running():
        await quiet(rig)
        rig.store.bind(key("train-worker-0"), "node-1")
        assert await seconds_to_pass(rig) == pytest.approx(1.0, abs=0.05)


async def test_a_pod_that_got_a_node_waits_longer_if_the_server_is_slow() -> None:
    rig = ControllerRig(never_starts, resync=0.0)
    async with rig.running():
        await quiet(rig)
        rig.controller.telemetry.write_seconds = 0.05
        rig.store.bind(key("train-worker-0"), "node-1")
        assert await seconds_to_pass(rig) == pytest.approx(3.5, abs=0.05)


async def test_another_change_in_this_second_is_handled_at_once() -> None:
    rig = ControllerRig(never_starts, resync=0.0)
    async with rig.running():
        await quiet(rig)
        rig.store.bind(key("train-worker-0"), "node-1")
        await asyncio.sleep(0.1)
        rig.store.patch(PODS, key("train-worker-0"), {"status": {"phase": "Failed"}}, status=True)
        assert await seconds_to_pass(rig) == pytest.approx(0.02, abs=0.02)


@pytest.mark.parametrize(("write", "delay"), [(0.0, 0.02), (0.1, 0.6), (10.0, 1.0)])
async def test_a_pass_waits_longer_if_the_server_is_slow(write: float, delay: float) -> None:
    rig = ControllerRig(never_starts, resync=0.0)
    async with rig.running():
        await quiet(rig)
        rig.controller.telemetry.write_seconds = write
        rig.store.patch(PODS, key("train-worker-0"), {"status": {"phase": "Running"}}, status=True)
        assert await seconds_to_pass(rig) == pytest.approx(delay, abs=0.03)


@pytest.mark.parametrize(("write", "delay"), [(0.0, 5), (0.05, 20), (10.0, 30)])
async def test_an_acceptance_waits_longer_if_the_server_is_slow(write: float, delay: float) -> None:
    rig = ControllerRig(never_starts)
    rig.controller.telemetry.write_seconds = write
    async with rig.running():
        rig.submit()
        await asyncio.sleep(delay - 0.5)
        assert rig.status() == {}
        await asyncio.sleep(1.5)
        assert rig.phase() == "Pending"


def test_the_duration_of_writes_follows_the_last_ones() -> None:
    telemetry = Telemetry()
    for _ in range(100):
        telemetry.called("list", "pods", 200, 9.0)
        telemetry.called("create", "pods", 201, 0.2)
    assert telemetry.write_seconds == pytest.approx(0.2, abs=0.01)
    telemetry.called("create", "pods", 0, 30.0)  # there was no answer
    telemetry.called("create", "pods", 201, 30.0)
    assert telemetry.write_seconds < 0.25
    for _ in range(100):
        telemetry.called("update", "tfjobs.kubeflow.org/status", 200, 0.01)
    assert telemetry.write_seconds == pytest.approx(0.01, abs=0.002)


@pytest.mark.parametrize(("edits", "passes"), [(False, 1), (True, 2)], ids=["our own write", "an edit at that time"])
async def test_a_watch_may_report_our_status_before_the_server_answers(*, edits: bool, passes: int) -> None:
    async def slow_answer(call: Call) -> None:
        if call.verb == "status":
            await asyncio.sleep(0.5)

    rig = ControllerRig(never_starts, resync=0.0)
    rig.wire.after = slow_answer
    async with rig.running():
        rig.submit()
        await rig.until(lambda: rig.phase() == "Pending")
        before = rig.passes()
        await asyncio.sleep(0.2)
        if edits:
            rig.store.patch(JOB, key(), {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(3)
        assert rig.passes() - before == passes
