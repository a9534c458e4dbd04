# SPDX-License-Identifier: Apache-2.0
"""TFJobs under the real controller: the budget of writes, events in their words, and jobs that are not ours."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from runtime_rig import VIRTUAL, Call, Run, Stage, at_work, key

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


def submitted(stage: Stage, document: Body) -> Stage:
    admission.install(stage.store)
    stage.store.create(TFJOBS, document)
    return stage


def conditions(stage: Stage) -> list[str]:
    status = stage.store.get(TFJOBS, key()).get("status") or {}
    return [one["type"] for one in status.get("conditions") or () if one["status"] == "True"]


def written(stage: Stage) -> Counter[str]:
    return Counter(f"{call.verb} {call.resource}" for call in stage.wire.calls if call.verb not in ("list", "watch"))


@pytest.mark.parametrize("workers", [1, 4, 30])
async def test_a_job_runs_to_success_within_its_budget_of_writes(workers: int) -> None:
    stage = Stage(lambda pod: Run(starts=0.1 + int(pod["metadata"]["name"].rpartition("-")[2]) / 7, lasts=20))
    async with submitted(stage, tfjob(workers)).running():
        await stage.until(lambda: "Succeeded" in conditions(stage))
        await asyncio.sleep(600)

    assert conditions(stage) == ["Created", "Succeeded"]
    made = {"create pods": workers, "create services": workers}
    assert written(stage) == made | {"status tfjobs.kubeflow.org": 3, "create events": 2}
    assert stage.events() == ["TFJobRunning", "TFJobSucceeded"]


async def test_a_job_of_which_only_some_pods_run_says_that_it_runs_within_seconds() -> None:
    stage = Stage(lambda pod: Run(starts=0.1 if pod["metadata"]["name"].endswith("0") else 1e6, lasts=None))
    async with submitted(stage, tfjob(2)).running():
        await asyncio.sleep(12)

    assert conditions(stage) == ["Created", "Running"]


def crash(stage: Stage, name: str) -> None:
    """The container has failed and waits to be started again by its kubelet."""
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    told = {"name": "tensorflow", "restartCount": 1, "state": waits, "lastState": {"terminated": {"exitCode": 1}}}
    stage.store.patch(PODS, key(name), {"status": {"containerStatuses": [told]}}, status=True)


async def test_a_pod_that_outlives_its_job_is_not_restarted_in_place() -> None:
    """Also hours after the end, when nothing else about the job happens, and by a controller that is started then."""
    stage = Stage(lambda pod: Run(lasts=5 if pod["metadata"]["name"] == "train-worker-0" else None))
    submitted(stage, tfjob(3))
    async with at_work(stage.kubelet.run()):
        async with at_work(stage.controller.run()):
            await stage.until(lambda: "Succeeded" in conditions(stage))
            await asyncio.sleep(9000)
            assert len(stage.pods()) == 3
            crash(stage, "train-worker-1")
            await stage.until(lambda: "train-worker-1" not in stage.pods())
        async with at_work(stage.made().run()):
            await asyncio.sleep(9000)
            assert len(stage.pods()) == 2
            crash(stage, "train-worker-2")
            await stage.until(lambda: "train-worker-2" not in stage.pods())

    assert stage.pods() == {"train-worker-0": "Succeeded"}
    assert conditions(stage) == ["Created", "Succeeded"]


async def test_a_job_that_another_controller_looks_after_is_neither_written_to_nor_told_of() -> None:
    stage = Stage()
    document = tfjob(2, runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    async with submitted(stage, document).running():
        await asyncio.sleep(1000)

    assert written(stage) == {}
    assert "status" not in stage.store.get(TFJOBS, key())


async def test_not_even_a_status_that_cannot_be_read() -> None:
    stage = submitted(Stage(), tfjob(2, runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}))
    odd = {"conditions": [{"type": 7}], "startTime": "now"}
    stage.store.patch(TFJOBS, key(), {"status": odd}, status=True)
    async with stage.running():
        await asyncio.sleep(1000)

    assert stage.store.get(TFJOBS, key())["status"] == odd


async def test_events_of_children_have_the_reasons_of_the_original() -> None:
    stage = Stage(child_events=True)
    stage.site = Site(gangs=frozenset({T9K_API}))
    document = tfjob(1, runPolicy={"cleanPodPolicy": "All", "schedulingPolicy": {}})
    async with submitted(stage, document).running():
        await stage.until(lambda: "Succeeded" in conditions(stage) and not stage.pods())
        await asyncio.sleep(1)

    told = {(one["reason"], one["message"], one["source"]["component"]) for one in stage.store.list(EVENTS)[0]}
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
    stage = Stage(lambda pod: Run(lasts=5, code=3) if pod["metadata"]["name"].endswith("1") else Run(lasts=None))
    document = tfjob(2)
    document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    async with submitted(stage, document).running():
        await stage.until(lambda: "Failed" in conditions(stage))
        await asyncio.sleep(1)

    told = [(one["reason"], one["message"]) for one in stage.store.list(EVENTS)[0]]
    assert ("ExitedWithCode", "Pod: default.train-worker-1 exited with code 3") in told
    assert sorted(reason for reason, _ in told) == ["ExitedWithCode", "TFJobFailed", "TFJobRunning"]


async def test_what_pods_wait_for_is_told_once_for_each_reason() -> None:
    """trainer#1598: a job that does not start says nothing of the image that cannot be pulled."""
    stage = Stage(lambda _pod: Run(starts=1e6))
    async with submitted(stage, tfjob(2)).running():
        await stage.until(lambda: len(stage.pods()) == 2)
        for turn in range(20):
            reason = ("ErrImagePull", "ImagePullBackOff")[turn % 2]
            for name in stage.pods():
                state = {"waiting": {"reason": reason, "message": f"no such image {turn}"}}
                said = {"containerStatuses": [{"name": "tensorflow", "state": state}]}
                stage.store.patch(PODS, key(name), {"status": said}, status=True)
            await asyncio.sleep(13)

    told = [(one["reason"], one["type"], one["message"].rstrip("0123456789")) for one in stage.store.list(EVENTS)[0]]
    what = "Error pod train-worker-0 container tensorflow waiting message: no such image "
    assert sorted(told) == [("ErrImagePull", "Warning", what), ("ImagePullBackOff", "Warning", what)]


async def test_a_child_that_is_refused_is_told_of_in_the_words_of_the_original() -> None:
    stage = Stage()
    submitted(stage, tfjob(1))

    async def refuse(call: Call) -> None:
        if (call.verb, call.resource) == ("create", "pods"):
            raise ForbiddenError("exceeded quota")

    stage.wire.before = refuse
    async with stage.running():
        await asyncio.sleep(1)

    said = [one["message"] for one in stage.store.list(EVENTS)[0] if one["reason"] == "FailedCreatePod"]
    assert said == ["Error creating: Pod train-worker-0 could not be created: Forbidden: exceeded quota"]


async def test_a_job_whose_time_to_live_is_over_is_removed_and_that_is_told_once() -> None:
    stage = Stage(lambda _: Run(lasts=5))
    async with submitted(stage, tfjob(1, runPolicy={"ttlSecondsAfterFinished": 60})).running():
        await stage.until(lambda: "Succeeded" in conditions(stage))
        await asyncio.sleep(59)
        there = len(stage.store.list(TFJOBS)[0])
        await asyncio.sleep(600)

    assert (there, stage.store.list(TFJOBS)[0]) == (1, ())
    assert written(stage)["delete tfjobs.kubeflow.org"] == 1
    told = [one for one in stage.store.list(EVENTS)[0] if one["reason"] == "SuccessfulDeleteJob"]
    assert [(one["message"], one["type"]) for one in told] == [("Deleted job: train", "Normal")]
    assert told[0]["source"]["component"] == "tfjob-controller"
