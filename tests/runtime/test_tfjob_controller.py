# SPDX-License-Identifier: Apache-2.0
"""TFJobs under the real controller: the budget of writes, events in their words, and jobs that are not ours."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from runtime_rig import VIRTUAL, Call, ControllerRig, Run, at_work, key

from trainwright.errors import ForbiddenError
from trainwright.kinds.gangs import T9K_API
from trainwright.local.checks import admission
from trainwright.model.job import Body
from trainwright.model.site import Site
from trainwright.runtime.ports import EVENTS, JOBS, PODS

pytestmark = VIRTUAL
TFJOBS = JOBS["tfjob"]


def tfjob(workers: int = 2, **spec: Any) -> Body:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "x"}]}}
    specs = {"Worker": {"replicas": workers, "template": template, "restartPolicy": "OnFailure"}}
    metadata = {"name": "train", "namespace": "default"}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata,
        "spec": {"tfReplicaSpecs": specs, **spec},
    }


def submitted(rig: ControllerRig, document: Body) -> ControllerRig:
    admission.install(rig.store)
    rig.store.create(TFJOBS, document)
    return rig


def conditions(rig: ControllerRig) -> list[str]:
    status = rig.store.get(TFJOBS, key()).get("status") or {}
    return [one["type"] for one in status.get("conditions") or () if one["status"] == "True"]


def written(rig: ControllerRig) -> Counter[str]:
    return Counter(f"{call.verb} {call.resource}" for call in rig.wire.calls if call.verb not in ("list", "watch"))


@pytest.mark.parametrize("workers", [1, 4, 30])
async def test_a_job_runs_to_success_within_its_budget_of_writes(workers: int) -> None:
    rig = ControllerRig(lambda pod: Run(starts=0.1 + int(pod["metadata"]["name"].rpartition("-")[2]) / 7, lasts=20))
    async with submitted(rig, tfjob(workers)).running():
        await rig.until(lambda: "Succeeded" in conditions(rig))
        await asyncio.sleep(600)

    assert conditions(rig) == ["Created", "Succeeded"]
    made = {"create pods": workers, "create services": workers}
    assert written(rig) == made | {"status tfjobs.kubeflow.org": 2, "create events": 1}
    assert rig.events() == ["TFJobSucceeded"]


async def test_a_job_of_which_only_some_pods_run_says_that_it_runs_within_seconds() -> None:
    rig = ControllerRig(lambda pod: Run(starts=0.1 if pod["metadata"]["name"].endswith("0") else 1e6, lasts=None))
    async with submitted(rig, tfjob(2)).running():
        await asyncio.sleep(12)

    assert conditions(rig) == ["Created", "Running"]


def crash(rig: ControllerRig, name: str) -> None:
    """The container has failed and waits to be started again by its kubelet."""
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    told = {"name": "tensorflow", "restartCount": 1, "state": waits, "lastState": {"terminated": {"exitCode": 1}}}
    rig.store.patch(PODS, key(name), {"status": {"containerStatuses": [told]}}, status=True)


async def test_a_pod_that_outlives_its_job_is_not_restarted_in_place() -> None:
    """Also hours after the end, when nothing else about the job happens, and by a controller that is started then."""
    rig = ControllerRig(lambda pod: Run(lasts=5 if pod["metadata"]["name"] == "train-worker-0" else None))
    submitted(rig, tfjob(3))
    async with at_work(rig.kubelet.run()):
        async with at_work(rig.controller.run()):
            await rig.until(lambda: "Succeeded" in conditions(rig))
            await asyncio.sleep(9000)
            assert len(rig.pods()) == 3
            crash(rig, "train-worker-1")
            await rig.until(lambda: "train-worker-1" not in rig.pods())
        async with at_work(rig.made().run()):
            await asyncio.sleep(9000)
            assert len(rig.pods()) == 2
            crash(rig, "train-worker-2")
            await rig.until(lambda: "train-worker-2" not in rig.pods())

    assert rig.pods() == {"train-worker-0": "Succeeded"}
    assert conditions(rig) == ["Created", "Succeeded"]


async def test_a_job_that_another_controller_looks_after_is_neither_written_to_nor_told_of() -> None:
    rig = ControllerRig()
    document = tfjob(2, runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    async with submitted(rig, document).running():
        await asyncio.sleep(1000)

    assert written(rig) == {}
    assert "status" not in rig.store.get(TFJOBS, key())


async def test_not_even_a_status_that_cannot_be_read() -> None:
    rig = submitted(ControllerRig(), tfjob(2, runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}))
    odd = {"conditions": [{"type": 7}], "startTime": "now"}
    rig.store.patch(TFJOBS, key(), {"status": odd}, status=True)
    async with rig.running():
        await asyncio.sleep(1000)

    assert rig.store.get(TFJOBS, key())["status"] == odd


async def test_events_of_children_have_the_reasons_of_the_original() -> None:
    rig = ControllerRig(child_events=True)
    rig.site = Site(gangs=frozenset({T9K_API}))
    document = tfjob(1, runPolicy={"cleanPodPolicy": "All", "schedulingPolicy": {}})
    async with submitted(rig, document).running():
        await rig.until(lambda: "Succeeded" in conditions(rig) and not rig.pods())
        await asyncio.sleep(1)

    told = {(one["reason"], one["message"], one["source"]["component"]) for one in rig.store.list(EVENTS)[0]}
    assert {(reason, message) for reason, message, _ in told} == {
        ("SuccessfulCreatePod", "Created pod: train-worker-0"),
        ("SuccessfulCreateService", "Created service: train-worker-0"),
        ("SuccessfulCreatePodGroup", "Created PodGroup: train"),
        ("ExitedWithCode", "Pod: default.train-worker-0 exited with code 0"),
        ("TFJobRunning", "TFJob default/train is running."),
        ("TFJobSucceeded", "TFJob default/train successfully completed."),
        ("SuccessfulDeletePod", "Deleted pod: train-worker-0"),
        ("SuccessfulDeleteService", "Deleted service: train-worker-0"),
        ("SuccessfulDeletePodGroup", "Deleted PodGroup: train"),
    }
    assert {component for *_, component in told} == {"tfjob-controller"}


async def test_which_replica_failed_and_how_is_told_in_any_case() -> None:
    """The original's own words for a restart and a failure name only the type."""
    rig = ControllerRig(lambda pod: Run(lasts=5, code=3) if pod["metadata"]["name"].endswith("1") else Run(lasts=None))
    document = tfjob(2)
    document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    async with submitted(rig, document).running():
        await rig.until(lambda: "Failed" in conditions(rig))
        await asyncio.sleep(1)

    told = [(one["reason"], one["message"]) for one in rig.store.list(EVENTS)[0]]
    assert ("ExitedWithCode", "Pod: default.train-worker-1 exited with code 3") in told
    assert sorted(reason for reason, _ in told) == ["ExitedWithCode", "TFJobFailed"]


async def test_what_pods_wait_for_is_told_once_for_each_reason() -> None:
    """trainer#1598: a job that does not start says nothing of the image that cannot be pulled."""
    rig = ControllerRig(lambda _pod: Run(starts=1e6))
    async with submitted(rig, tfjob(2)).running():
        await rig.until(lambda: len(rig.pods()) == 2)
        for turn in range(20):
            reason = ("ErrImagePull", "ImagePullBackOff")[turn % 2]
            for name in rig.pods():
                state = {"waiting": {"reason": reason, "message": f"no such image {turn}"}}
                said = {"containerStatuses": [{"name": "tensorflow", "state": state}]}
                rig.store.patch(PODS, key(name), {"status": said}, status=True)
            await asyncio.sleep(13)

    told = [(one["reason"], one["type"], one["message"].rstrip("0123456789")) for one in rig.store.list(EVENTS)[0]]
    what = "Error pod train-worker-0 container tensorflow waiting message: no such image "
    assert sorted(told) == [("ErrImagePull", "Warning", what), ("ImagePullBackOff", "Warning", what)]


async def test_a_child_that_is_refused_is_told_of_in_the_words_of_the_original() -> None:
    rig = ControllerRig()
    submitted(rig, tfjob(1))

    async def refuse(call: Call) -> None:
        if (call.verb, call.resource) == ("create", "pods"):
            raise ForbiddenError("exceeded quota")

    rig.wire.before = refuse
    async with rig.running():
        await asyncio.sleep(1)

    said = [one["message"] for one in rig.store.list(EVENTS)[0] if one["reason"] == "FailedCreatePod"]
    assert said == ["Error creating: Pod train-worker-0 could not be created: Forbidden: exceeded quota"]


async def test_a_job_whose_time_to_live_is_over_is_removed_and_that_is_told_once() -> None:
    rig = ControllerRig(lambda _: Run(lasts=5))
    async with submitted(rig, tfjob(1, runPolicy={"ttlSecondsAfterFinished": 60})).running():
        await rig.until(lambda: "Succeeded" in conditions(rig))
        await asyncio.sleep(59)
        there = len(rig.store.list(TFJOBS)[0])
        await asyncio.sleep(600)

    assert (there, rig.store.list(TFJOBS)[0]) == (1, ())
    assert written(rig)["delete tfjobs.kubeflow.org"] == 1
    told = [one for one in rig.store.list(EVENTS)[0] if one["reason"] == "SuccessfulDeleteJob"]
    assert [(one["message"], one["type"]) for one in told] == [("Deleted job: train", "Normal")]
    assert told[0]["source"]["component"] == "tfjob-controller"
