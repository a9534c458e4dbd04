# SPDX-License-Identifier: Apache-2.0
"""PaddleJobs under the real controller: what a life costs, whose ports are whose, and finalizers nobody answers for."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from runtime_rig import VIRTUAL, Call, ControllerRig, Run, key

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


def submitted(rig: ControllerRig, *documents: Body) -> ControllerRig:
    admission.install(rig.store)
    for document in documents:
        rig.store.create(PADDLEJOBS, document)
    return rig


def status(rig: ControllerRig, name: str = "train") -> Body:
    found: Body = rig.store.get(PADDLEJOBS, key(name)).get("status") or {}
    return found


def written(rig: ControllerRig) -> Counter[str]:
    return Counter(f"{call.verb} {call.resource}" for call in rig.wire.calls if call.verb not in ("list", "watch"))


@pytest.mark.parametrize("workers", [1, 4, 30])
async def test_a_job_runs_to_its_end_within_its_budget_of_writes(workers: int) -> None:
    rig = ControllerRig(lambda pod: Run(starts=0.1 + int(pod["metadata"]["name"].rpartition("-")[2]) / 7, lasts=20))
    async with submitted(rig, paddlejob(workers=workers, intranet="Service")).running():
        await rig.until(lambda: status(rig).get("phase") == "Completed")
        await asyncio.sleep(600)

    made = {"create pods": workers, "create services": workers, "create configmaps": 1}
    assert written(rig) == made | {"status paddlejobs.batch.paddlepaddle.org": 3, "create events": 2}
    assert rig.events() == ["Running", "Completed"]


async def test_a_start_that_takes_long_is_told_and_a_short_one_costs_no_write() -> None:
    """`Starting` is a phase of moments: it is stored along with counts that have been out of date for a while."""
    rig = ControllerRig(lambda pod: Run(starts=1.0 if pod["metadata"]["name"].endswith("0") else 30.0, lasts=None))
    async with submitted(rig, paddlejob(intranet="Service")).running():
        await asyncio.sleep(5)
        assert status(rig)["phase"] == "Pending"
        await asyncio.sleep(10)
        assert (status(rig)["phase"], status(rig)["worker"]["running"]) == ("Starting", 1)
        await rig.until(lambda: status(rig)["phase"] == "Running")


async def test_jobs_that_are_looked_at_in_the_same_moment_have_ports_of_their_own() -> None:
    """So few ports that both would choose the same, did neither know of the other."""
    rig = ControllerRig(lambda _: Run(starts=1.0, lasts=None))
    rig.site = Site(host_ports=(40000, 40079))

    async def slow(call: Call) -> None:
        await asyncio.sleep(1.0 if call.verb == "status" else 0.0)

    rig.wire.before = slow
    documents = [paddlejob(name, intranet="Host") for name in ("one", "two")]
    async with submitted(rig, *documents).running():
        await rig.until(lambda: all(status(rig, name).get("trainwright") for name in ("one", "two")))

    ports = [port for name in ("one", "two") for port in status(rig, name)["trainwright"]["ports"].values()]
    assert len(set(ports)) == 4


async def test_the_finalizer_of_the_original_goes_and_others_stay() -> None:
    document = paddlejob(intranet="Service")
    document["metadata"]["finalizers"] = ["finalizers.paddlepaddle.org", "theirs/too"]
    rig = ControllerRig(lambda _: Run(starts=0.1, lasts=None))
    async with submitted(rig, document).running():
        await rig.until(lambda: status(rig).get("phase") == "Running")
        rig.store.delete(PADDLEJOBS, key())
        await rig.until(lambda: status(rig).get("phase") == "Terminating")
        await asyncio.sleep(5)
        assert rig.store.get(PADDLEJOBS, key())["metadata"]["finalizers"] == ["theirs/too"]
        rig.store.patch(PADDLEJOBS, key(), {"metadata": {"finalizers": []}})
        await asyncio.sleep(5)
        with pytest.raises(NotFoundError):
            rig.store.get(PADDLEJOBS, key())

    assert rig.wire.made("patch") == ["patch paddlejobs.batch.paddlepaddle.org train"]
    for resource in (PODS, CONFIG_MAPS):
        assert not rig.store.list(resource)[0]
