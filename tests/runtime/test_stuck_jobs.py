# SPDX-License-Identifier: Apache-2.0
"""What keeps one job from going on, for long or for ever: people are told, it costs little, and is over when it is."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from runtime_rig import JOB, VIRTUAL, Call, ControllerRig, Run, key

from trainwright.errors import ApiError, ConflictError, ForbiddenError, InvalidError, NotFoundError, UnavailableError
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE
from trainwright.runtime.ports import EVENTS, PODS

pytestmark = VIRTUAL


def for_ever(_: Body) -> Run:
    return Run(lasts=None)


def refuse(rig: ControllerRig, verb: str, error: ApiError, until: float = 1e9) -> None:
    """Of these requests none is taken before then; `status` and `delete` are about the job and about pods."""

    async def before(call: Call) -> None:
        if call.verb == verb and call.resource != EVENTS.id and call.at < until:
            raise error

    rig.wire.before = before


# -- a neighbour who lies --------------------------------------------------------------------------------------------


def forged(victim: Body, *, owned: bool) -> Body:
    """A pod in a namespace of somebody else, who knows the UID of this job: it says that a later attempt succeeded."""
    uid = victim["metadata"]["uid"]
    owner = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": "train", "uid": uid, "controller": True}
    meta = {
        "name": "train-worker-0",
        "namespace": "elsewhere",
        "uid": "forged",
        "resourceVersion": "1000000",
        "labels": {KIND: "genericjob", JOB_UID: uid, ROLE: "worker", INDEX: "0", ATTEMPT: "7"},
        "ownerReferences": [owner] if owned else [],
    }
    ended = {"name": "main", "state": {"terminated": {"exitCode": 0}}}
    return {"metadata": meta, "status": {"phase": "Succeeded", "containerStatuses": [ended]}}


@pytest.mark.parametrize("owned", [True, False], ids=["with an owner", "to be adopted"])
async def test_a_pod_of_another_namespace_is_none_of_the_jobs_whatever_it_says(*, owned: bool) -> None:
    rig = ControllerRig(for_ever)
    async with rig.running():
        victim = rig.submit(replicas=1)
        await rig.until(lambda: rig.phase() == "Running")
        writes = len(rig.wire.made())
        rig.controller._cache.children["v1", "Pod"].add_written(PODS.decode(forged(victim, owned=owned)))
        rig.controller._requeue_owners({victim["metadata"]["uid"]})
        await asyncio.sleep(60)
        assert (rig.phase(), rig.pods()) == ("Running", {"train-worker-0": "Running"})
        assert len(rig.wire.made()) == writes


# -- a pass that is refused as a whole -------------------------------------------------------------------------------


async def test_a_status_that_is_never_taken_is_told_once_and_when_it_is_the_job_goes_on() -> None:
    rig = ControllerRig(lambda _: Run(lasts=250))
    refuse(rig, "status", InvalidError("etcdserver: request is too large"), until=200)
    async with rig.running():
        rig.submit(replicas=1)
        await asyncio.sleep(199)
        assert rig.events() == ["FailedSync"]
        (event,) = rig.store.list(EVENTS)[0]
        assert "the operator retries it: Invalid: etcdserver: request is too large" in event["message"]
        assert len(rig.wire.made("status")) < 20
        await rig.finished()
        assert rig.events() == ["FailedSync", "Running", "Succeeded"]


async def test_a_deletion_that_is_never_allowed_is_told_once() -> None:
    rig = ControllerRig(lambda pod: Run(code=1 if pod["metadata"]["labels"][ATTEMPT] == "0" else 0))
    refuse(rig, "delete", ForbiddenError("the webhook says no"), until=200)
    async with rig.running():
        rig.submit(replicas=1, limit=1)
        await asyncio.sleep(199)
        assert rig.events() == ["Running", "Restarting", "FailedSync"]
        await rig.finished()
    assert rig.phase() == "Succeeded"


async def test_a_server_that_is_away_is_no_news_to_those_who_made_jobs() -> None:
    rig = ControllerRig(lambda _: Run(lasts=250))
    refuse(rig, "status", UnavailableError("away"), until=200)
    async with rig.running():
        rig.submit(replicas=1)
        await asyncio.sleep(199)
        await rig.finished()
    assert rig.events() == ["Running", "Succeeded"]


@pytest.mark.parametrize("error", [ConflictError("stale"), NotFoundError("no such page")], ids=["409", "404"])
async def test_what_stays_out_of_date_is_asked_ever_more_rarely(
    error: ApiError, caplog: pytest.LogCaptureFixture
) -> None:
    """A watch that lags for minutes, or a definition that has lost its status: thousands of jobs feel it alike."""
    rig = ControllerRig()
    refuse(rig, "status", error, until=300)
    async with rig.running():
        rig.submit(replicas=1)
        await asyncio.sleep(299)
        assert len(rig.wire.made("status")) < 20
        tries = [call.at for call in rig.wire.calls if call.verb == "status"][:3]
        assert [round(later - earlier, 2) for earlier, later in pairwise(tries)] == [1, 1]
        assert "reconcile will be retried job=default/train" in caplog.text
        await rig.finished()


# -- children of an older job ----------------------------------------------------------------------------------------


async def test_pods_that_an_older_job_has_left_cost_no_requests_and_are_told_of() -> None:
    """Its node is dead, or the garbage collector stands still: that may last."""
    rig = ControllerRig()
    pods = rig.controller._cache.children["v1", "Pod"]
    async with rig.running():
        await asyncio.sleep(1)
        old = forged({"metadata": {"uid": "older"}}, owned=True)["metadata"]
        old |= {"namespace": "default", "resourceVersion": str(pods.newest_version + 1)}
        for index in range(20):
            name = f"train-worker-{index}"
            pods.add_written(PODS.decode({"metadata": {**old, "name": name, "uid": name}}))
        rig.submit(replicas=20)
        await asyncio.sleep(80)
        assert Counter(rig.wire.made("create", "get")) == {}
        await asyncio.sleep(40)
        assert rig.events() == ["FailedCreate"]
        assert "of an older job still exists" in str(rig.status()["conditions"])
        for index in range(20):
            pods.remove_deleted(key(f"train-worker-{index}"), f"train-worker-{index}")
        await rig.until(lambda: len(rig.pods()) == 20, 61)
        await rig.finished()


# -- time ------------------------------------------------------------------------------------------------------------


async def test_a_clock_that_is_set_back_does_not_make_a_refusal_last_for_hours() -> None:
    rig = ControllerRig()
    refuse(rig, "create", ForbiddenError("exceeded quota"), until=20)
    async with rig.running():
        rig.submit(replicas=2)
        await asyncio.sleep(21)
        rig.clock.offset = -7200
        await rig.until(lambda: len(rig.pods()) == 2, 60)


async def test_without_double_checks_a_job_is_looked_at_when_something_happens() -> None:
    rig = ControllerRig(resync=0.0)
    async with rig.running():
        rig.submit(replicas=2)
        await rig.until(lambda: rig.phase() == "Running")
        await rig.finished()
    assert rig.passes() < 20
