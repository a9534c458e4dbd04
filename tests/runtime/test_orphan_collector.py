# SPDX-License-Identifier: Apache-2.0
"""Children whose job is gone, and children that an operator finds when it comes back."""

import asyncio

import pytest
from runtime_rig import JOB, VIRTUAL, Call, ControllerRig, Run, key

from trainwright.errors import ForbiddenError, UnavailableError
from trainwright.model.job import Body
from trainwright.model.meta import JOB_UID, KIND
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import PODS, SERVICES

pytestmark = VIRTUAL
FOR_EVER = Run(lasts=None)


def ghost(rig: ControllerRig, name: str, owners: list[Body]) -> None:
    """A pod that this operator knows of, and a job that nobody knows: the store's own collector is too quick for us."""
    meta = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "resourceVersion": "1000000",
        "creationTimestamp": rfc3339(rig.clock.now()),
        "labels": {KIND: "genericjob", JOB_UID: "gone"},
        "ownerReferences": owners,
    }
    rig.controller._cache.children["v1", "Pod"].add_written(PODS.decode({"metadata": meta}))


OWNER: Body = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": "gone", "uid": "gone", "controller": True}


async def with_pods(rig: ControllerRig) -> Body:
    rig.submit(replicas=1, service=True)
    await rig.until(lambda: rig.phase() == "Running")
    return rig.store.get(PODS, key("train-worker-0"))


async def test_a_child_whose_job_is_gone_is_removed_and_no_other() -> None:
    rig = ControllerRig(lambda _: FOR_EVER, orphan_period=100.0)
    async with rig.running():
        await with_pods(rig)
        ghost(rig, "gone-1", [OWNER])
        ghost(rig, "let-go", [])
        ghost(rig, "other", [OWNER | {"kind": "Other"}])
        await asyncio.sleep(290)
        assert rig.wire.made("delete") == []
        await asyncio.sleep(1000)

    assert rig.wire.made("delete") == ["delete pods gone-1"]
    assert next(call.body["uid"] for call in rig.wire.calls if call.verb == "delete") == "gone-1"
    assert "list genericjobs.batch.tensorstack.dev" in rig.wire.made("list")[-1]
    assert set(rig.pods()) == {"train-worker-0"}


async def test_a_job_that_only_the_cache_has_lost_keeps_its_children() -> None:
    rig = ControllerRig(lambda _: FOR_EVER, orphan_period=100.0)
    async with rig.running():
        await with_pods(rig)
        rig.controller._cache.jobs["genericjob"]._items.clear()
        await asyncio.sleep(1000)

    assert set(rig.pods()) == {"train-worker-0"}
    assert rig.wire.made("delete") == []


async def test_a_server_that_is_away_does_not_end_the_search() -> None:
    rig = ControllerRig(lambda _: FOR_EVER, orphan_period=100.0)

    async def away(call: Call) -> None:
        if call.verb == "list" and call.at < 700:
            raise UnavailableError("away")

    async with rig.running():
        await with_pods(rig)
        ghost(rig, "gone-1", [OWNER])
        rig.wire.before = away
        await rig.until(lambda: bool(rig.wire.made("delete")), 1000)
        assert asyncio.get_running_loop().time() > 700
        assert not rig.controller.broken


async def test_an_operator_that_comes_back_finds_its_pods_and_writes_nothing() -> None:
    rig = ControllerRig(lambda _: FOR_EVER)
    async with rig.running():
        rig.submit(replicas=3, service=True)
        await rig.until(lambda: rig.phase() == "Running")
        await asyncio.sleep(30)
    rig.made()
    rig.wire.calls.clear()
    async with rig.running():
        await asyncio.sleep(1000)

    assert rig.wire.made() == []
    assert len(rig.kubelet.born) == 3


async def test_one_that_may_not_be_removed_does_not_keep_the_others() -> None:
    rig = ControllerRig(lambda _: FOR_EVER, orphan_period=100.0)

    async def guarded(call: Call) -> None:
        if str(call) == "delete pods gone-1":
            raise ForbiddenError("the webhook says no")

    rig.wire.before = guarded
    async with rig.running():
        await with_pods(rig)
        ghost(rig, "gone-1", [OWNER])
        ghost(rig, "gone-2", [OWNER])
        await asyncio.sleep(500)

    assert "delete pods gone-2" in rig.wire.made("delete")


async def test_a_pod_that_has_lost_its_owner_meanwhile_is_adopted_and_goes_on() -> None:
    rig = ControllerRig(lambda _: FOR_EVER)
    async with rig.running():
        await with_pods(rig)
        await asyncio.sleep(30)
    before = rig.store.get(PODS, key("train-worker-0"))["metadata"]["ownerReferences"]
    rig.store.patch(PODS, key("train-worker-0"), {"metadata": {"ownerReferences": None}})
    rig.made()
    rig.wire.calls.clear()
    async with rig.running():
        await asyncio.sleep(100)

    assert rig.wire.made("create", "patch", "delete") == ["patch pods train-worker-0"]
    assert rig.store.get(PODS, key("train-worker-0"))["metadata"]["ownerReferences"] == before


@pytest.mark.parametrize("wanted", [False, True])
async def test_each_child_is_told_of_only_if_somebody_wants_to_know(*, wanted: bool) -> None:
    rig = ControllerRig(child_events=wanted)
    async with rig.running():
        rig.submit(replicas=2, service=True, cleans="All")
        await rig.finished()
        await rig.until(lambda: not rig.pods())
        await asyncio.sleep(30)
        left = rig.store.list(SERVICES)[0]

    told = sorted(set(rig.events()))
    children = ("SuccessfulCreate", "SuccessfulDelete", "ExitedWithCode") if wanted else ()
    assert told == sorted({"Running", "Succeeded", *children})
    assert rig.events().count("SuccessfulCreate") == (4 if wanted else 0)
    assert rig.events().count("ExitedWithCode") == (2 if wanted else 0)
    assert left == ()
