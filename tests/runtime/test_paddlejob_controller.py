# SPDX-License-Identifier: Apache-2.0
"""PaddleJobs under the real controller: what a life costs, whose ports are whose, and finalizers nobody answers for."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from runtime_rig import VIRTUAL, Call, Run, Stage, key

from trainwright.errors import NotFoundError
from trainwright.local.checks import admission
from trainwright.model.job import Body
from trainwright.model.site import Site
from trainwright.runtime.ports import CONFIG_MAPS, JOBS, PODS

pytestmark = VIRTUAL
PADDLEJOBS = JOBS["paddlejob"]


def paddlejob(name: str = "train", workers: int = 2, **spec: Any) -> Body:
    template = {"spec": {"containers": [{"name": "paddle", "image": "x"}]}}
    metadata = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": metadata,
        "spec": {"worker": {"replicas": workers, "template": template}, "cleanPodPolicy": "Never", **spec},
    }


def submitted(stage: Stage, *documents: Body) -> Stage:
    admission.install(stage.store)
    for document in documents:
        stage.store.create(PADDLEJOBS, document)
    return stage


def status(stage: Stage, name: str = "train") -> Body:
    found: Body = stage.store.get(PADDLEJOBS, key(name)).get("status") or {}
    return found


def written(stage: Stage) -> Counter[str]:
    return Counter(f"{call.verb} {call.resource}" for call in stage.wire.calls if call.verb not in ("list", "watch"))


@pytest.mark.parametrize("workers", [1, 4, 30])
async def test_a_job_runs_to_its_end_within_its_budget_of_writes(workers: int) -> None:
    stage = Stage(lambda pod: Run(starts=0.1 + int(pod["metadata"]["name"].rpartition("-")[2]) / 7, lasts=20))
    async with submitted(stage, paddlejob(workers=workers, intranet="Service")).running():
        await stage.until(lambda: status(stage).get("phase") == "Completed")
        await asyncio.sleep(600)

    made = {"create pods": workers, "create services": workers, "create configmaps": 1}
    assert written(stage) == made | {"status paddlejobs.batch.paddlepaddle.org": 3, "create events": 2}
    assert stage.events() == ["Running", "Completed"]


async def test_a_start_that_takes_long_is_told_and_a_short_one_costs_no_write() -> None:
    """`Starting` is a phase of moments: it is stored along with counts that have been out of date for a while."""
    stage = Stage(lambda pod: Run(starts=1.0 if pod["metadata"]["name"].endswith("0") else 30.0, lasts=None))
    async with submitted(stage, paddlejob(intranet="Service")).running():
        await asyncio.sleep(5)
        assert status(stage)["phase"] == "Pending"
        await asyncio.sleep(10)
        assert (status(stage)["phase"], status(stage)["worker"]["running"]) == ("Starting", 1)
        await stage.until(lambda: status(stage)["phase"] == "Running")


async def test_jobs_that_are_looked_at_in_the_same_moment_have_ports_of_their_own() -> None:
    """So few ports that both would choose the same, did neither know of the other."""
    stage = Stage(lambda _: Run(starts=1.0, lasts=None))
    stage.site = Site(host_ports=(40000, 40079))

    async def slow(call: Call) -> None:
        await asyncio.sleep(1.0 if call.verb == "status" else 0.0)

    stage.wire.before = slow
    documents = [paddlejob(name, intranet="Host") for name in ("one", "two")]
    async with submitted(stage, *documents).running():
        await stage.until(lambda: all(status(stage, name).get("trainwright") for name in ("one", "two")))

    ports = [port for name in ("one", "two") for port in status(stage, name)["trainwright"]["ports"].values()]
    assert len(set(ports)) == 4


async def test_the_finalizer_of_the_original_goes_and_others_stay() -> None:
    document = paddlejob(intranet="Service")
    document["metadata"]["finalizers"] = ["finalizers.paddlepaddle.org", "theirs/too"]
    stage = Stage(lambda _: Run(starts=0.1, lasts=None))
    async with submitted(stage, document).running():
        await stage.until(lambda: status(stage).get("phase") == "Running")
        stage.store.delete(PADDLEJOBS, key())
        await stage.until(lambda: status(stage).get("phase") == "Terminating")
        await asyncio.sleep(5)
        assert stage.store.get(PADDLEJOBS, key())["metadata"]["finalizers"] == ["theirs/too"]
        stage.store.patch(PADDLEJOBS, key(), {"metadata": {"finalizers": []}})
        await asyncio.sleep(5)
        with pytest.raises(NotFoundError):
            stage.store.get(PADDLEJOBS, key())

    assert stage.wire.made("patch") == ["patch paddlejobs.batch.paddlepaddle.org train"]
    for resource in (PODS, CONFIG_MAPS):
        assert not stage.store.list(resource)[0]
