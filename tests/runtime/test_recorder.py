# SPDX-License-Identifier: Apache-2.0
"""Events: how they look, which of them are tried again, and that none holds up its job for nothing."""

import asyncio

import pytest
from msgspec.structs import replace
from runtime_rig import VIRTUAL, Call, LoopClock, RecordingCluster, at_work, nothing

from trainwright.errors import ApiError, ForbiddenError, NotFoundError, TooManyRequestsError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.event import Emit, EventReason
from trainwright.model.job import Body
from trainwright.runtime.ports import EVENTS
from trainwright.runtime.recorder import Recorder, event
from trainwright.runtime.telemetry import Telemetry
from trainwright.testing.factories import NOW, UID, job

pytestmark = VIRTUAL
RUNNING, SUCCEEDED = Emit(EventReason.RUNNING, "job is running."), Emit(EventReason.SUCCEEDED, "all have succeeded")
FAILED = Emit(EventReason.FAILED, "job-worker-0 exited with 1", warning=True)


class RecorderRig:
    def __init__(self) -> None:
        self.store = Store(LoopClock())
        self.wire = RecordingCluster(LocalCluster(self.store))
        self.telemetry = Telemetry()
        self.recorder = Recorder(self.wire, LoopClock(), self.telemetry)

    def told(self) -> list[Body]:
        return list(self.store.list(EVENTS)[0])

    def refuse(self, error: ApiError, times: int = 10**6) -> None:
        async def before(call: Call) -> None:
            if len(self.wire.calls) <= times:
                raise error

        self.wire.before = before


def test_an_event_says_about_which_object_what_and_when() -> None:
    body = event(job(), FAILED, NOW, "1a")
    assert body["metadata"] == {"name": "job.1a", "namespace": "default"}
    assert body["involvedObject"] == {
        "apiVersion": "example.com/v1",
        "kind": "Example",
        "namespace": "default",
        "name": "job",
        "uid": UID,
    }
    assert (body["type"], body["reason"], body["message"]) == ("Warning", "Failed", FAILED.message)
    assert body["firstTimestamp"] == body["lastTimestamp"] == "2026-11-15T12:00:00Z"
    assert body["count"] == 1
    assert event(job(), RUNNING, NOW, "1a")["type"] == "Normal"
    assert body["source"] == {"component": "trainwright"}


def test_an_event_may_be_in_the_words_of_its_kind() -> None:
    body = event(job(), replace(FAILED, reason="TFJobFailed", source="tfjob-controller"), NOW, "1a")

    assert (body["reason"], body["source"]) == ("TFJobFailed", {"component": "tfjob-controller"})


async def test_events_of_one_moment_have_names_of_their_own() -> None:
    rig = RecorderRig()
    for emit in (RUNNING, RUNNING, SUCCEEDED):
        await rig.recorder.record(job(), emit)
    assert [one["reason"] for one in rig.told()] == ["Running", "Running", "Succeeded"]
    assert rig.telemetry.writes["create", "events", "done"] == 3


@pytest.mark.parametrize("emit", [SUCCEEDED, FAILED], ids=["succeeded", "failed"])
@pytest.mark.parametrize(
    "error",
    [UnavailableError("no"), ApiError("broken"), TooManyRequestsError("later")],
    ids=["no answer", "500", "429"],
)
async def test_how_a_job_ended_is_told_until_it_is_taken(emit: Emit, error: ApiError) -> None:
    rig = RecorderRig()
    rig.refuse(error, times=6)
    async with at_work(rig.recorder.run()):
        await rig.recorder.record(job(), emit)
        await asyncio.sleep(60)
    assert [one["reason"] for one in rig.told()] == [emit.event_reason]
    assert len(rig.wire.calls) == 7
    assert rig.telemetry.writes["create", "events", error.reason] == 6


async def test_what_is_not_taken_is_told_ever_more_rarely_and_all_of_it_in_the_end() -> None:
    rig = RecorderRig()
    rig.refuse(UnavailableError("no"))
    async with at_work(rig.recorder.run()):
        for emit in (SUCCEEDED, FAILED, RUNNING):
            await rig.recorder.record(job(), emit)
        await asyncio.sleep(600)
        assert len(rig.wire.calls) < 30
        rig.wire.before = nothing
        await asyncio.sleep(31)
        assert sorted(one["reason"] for one in rig.told()) == ["Failed", "Succeeded"]
        asked = len(rig.wire.calls)
        await asyncio.sleep(600)
    assert len(rig.wire.calls) == asked


async def test_nobody_waits_for_a_server_that_takes_no_events() -> None:
    rig = RecorderRig()
    rig.refuse(UnavailableError("no"))
    async with asyncio.timeout(0.01):
        for _ in range(1000):
            await rig.recorder.record(job(), RUNNING)
            await rig.recorder.record(job(), SUCCEEDED)
    assert len(rig.wire.calls) == 1
    await asyncio.sleep(5)
    rig.wire.before = nothing
    await rig.recorder.record(job(), RUNNING)
    assert [one["reason"] for one in rig.told()] == ["Running"]


@pytest.mark.parametrize("error", [ForbiddenError("no"), NotFoundError("no namespace")], ids=["403", "404"])
async def test_what_will_never_be_taken_is_not_tried_again(error: ApiError) -> None:
    """A namespace that is going takes no events: its jobs, and the worker, must not wait for that."""
    rig = RecorderRig()
    rig.refuse(error)
    async with asyncio.timeout(0.01):
        await rig.recorder.record(job(), SUCCEEDED)
    assert len(rig.wire.calls) == 1


async def test_an_event_whose_answer_was_lost_is_taken() -> None:
    rig = RecorderRig()

    async def after(call: Call) -> None:
        if len(rig.wire.calls) == 1:
            raise UnavailableError("the connection broke")

    rig.wire.after = after
    async with at_work(rig.recorder.run()):
        await rig.recorder.record(job(), SUCCEEDED)
        await asyncio.sleep(1)
    assert [one["reason"] for one in rig.told()] == ["Succeeded"]
    assert len(rig.wire.calls) == 2
