# SPDX-License-Identifier: Apache-2.0
"""An unfinished job of another controller: it is left alone, people are told once, and it can be handed over."""

import asyncio
from collections import Counter

import pytest
from runtime_rig import VIRTUAL, ControllerRig, Run, key

from trainwright.local.checks import admission
from trainwright.model.job import Body
from trainwright.model.meta import ADOPT, KIND
from trainwright.runtime.ports import EVENTS, JOBS, PODS, SERVICES

pytestmark = VIRTUAL
TFJOBS = JOBS["tfjob"]
#: As training-operator 1.9 leaves it.
SAID: Body = {
    "conditions": [
        {"type": "Created", "status": "True", "reason": "TFJobCreated", "message": "TFJob train is created."},
        {"type": "Running", "status": "True", "reason": "TFJobRunning", "message": "TFJob default/train is running."},
    ],
    "replicaStatuses": {"Worker": {"active": 2}},
    "startTime": "2026-11-15T11:00:00Z",
}


def begun(rig: ControllerRig) -> Body:
    """A TFJob that another operator runs: its status, its pods and their services."""
    admission.install(rig.store)
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "x"}]}}
    specs = {"Worker": {"replicas": 2, "template": template, "restartPolicy": "OnFailure"}}
    head = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "train", "namespace": "default"}}
    job = rig.store.create(TFJOBS, head | {"spec": {"tfReplicaSpecs": specs}})
    for index in range(2):
        for resource in (PODS, SERVICES):
            rig.store.create(resource, _theirs(resource.kind, f"train-worker-{index}", job["metadata"]["uid"]))
    rig.store.patch(TFJOBS, key(), {"status": SAID}, status=True)
    return job


def _theirs(kind: str, name: str, uid: str) -> Body:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "train", "uid": uid, "controller": True}
    labels = {"training.kubeflow.org/job-name": "train", "training.kubeflow.org/operator-name": "tfjob-controller"}
    meta = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    spec: Body = {"containers": [{"name": "tensorflow", "image": "x"}]} if kind == "Pod" else {"clusterIP": "None"}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, "spec": spec}


def uids(rig: ControllerRig) -> dict[str, str]:
    found = [*rig.store.list(PODS)[0], *rig.store.list(SERVICES)[0]]
    return {f"{one['kind']} {one['metadata']['name']}": one["metadata"]["uid"] for one in found}


def written(rig: ControllerRig) -> Counter[str]:
    return Counter(f"{call.verb} {call.resource}" for call in rig.wire.calls if call.verb not in ("list", "watch"))


def hand_over(rig: ControllerRig) -> None:
    rig.store.patch(TFJOBS, key(), {"metadata": {"annotations": {ADOPT: "true"}}})


async def test_nothing_of_it_is_touched_and_people_are_told_once_also_by_the_next_operator() -> None:
    rig = ControllerRig(lambda _: Run(lasts=None))
    begun(rig)
    before = uids(rig)
    for _ in range(3):
        async with rig.running():
            await asyncio.sleep(1000)
            rig.store.patch(TFJOBS, key(), {"status": {"lastReconcileTime": rig.clock.now().isoformat()}}, status=True)
            await asyncio.sleep(1000)
        assert rig.controller.telemetry.foreign == {"tfjob": 1}
        rig.made()

    assert set(written(rig)) == {"create events"}
    assert written(rig)["create events"] == 3  # one by each operator; the server refused the last two
    (event,) = rig.store.list(EVENTS)[0]
    assert (event["reason"], event["type"], event["source"]) == (
        "ManagedElsewhere",
        "Warning",
        {"component": "trainwright"},
    )
    assert f"kubectl annotate tfjob.kubeflow.org train -n default {ADOPT}=true" in event["message"]
    assert uids(rig) == before
    status = rig.store.get(TFJOBS, key())["status"]
    assert {name: part for name, part in status.items() if name != "lastReconcileTime"} == SAID


async def test_one_that_is_handed_over_starts_anew_and_what_the_other_made_gives_way() -> None:
    rig = ControllerRig(lambda _: Run(lasts=None))
    begun(rig)
    before = uids(rig)
    async with rig.running():
        await asyncio.sleep(60)
        assert uids(rig) == before
        hand_over(rig)
        await rig.until(lambda: "trainwright" in rig.store.get(TFJOBS, key())["status"])
        await rig.until(lambda: not set(uids(rig).values()) & set(before.values()))
        await rig.until(lambda: list(rig.pods().values()) == ["Running"] * 2)
        await asyncio.sleep(30)

    assert set(uids(rig)) == set(before)
    assert all(one["metadata"]["labels"][KIND] == "tfjob" for one in rig.store.list(PODS)[0])
    assert rig.store.get(TFJOBS, key())["status"]["trainwright"]["phase"] == "Running"
    assert "restarts" not in str(rig.store.get(TFJOBS, key())["status"]["trainwright"])
    assert rig.controller.telemetry.foreign == {"tfjob": 0}


@pytest.mark.parametrize(
    "spared",
    [
        pytest.param({"labels": {f"{KIND}x": "mine"}}, id="somebody took a label of ours away"),
        pytest.param({"ownerReferences": []}, id="nobody controls it"),
    ],
)
async def test_a_pod_that_another_controller_did_not_make_for_this_job_never_gives_way(spared: Body) -> None:
    rig = ControllerRig(lambda _: Run(lasts=None))
    job = begun(rig)
    rig.store.delete(PODS, key("train-worker-1"))
    pod = _theirs("Pod", "train-worker-1", job["metadata"]["uid"])
    mine = rig.store.create(PODS, pod | {"metadata": pod["metadata"] | spared})
    async with rig.running():
        hand_over(rig)
        await asyncio.sleep(200)
        assert rig.store.get(PODS, key("train-worker-1"))["metadata"]["uid"] == mine["metadata"]["uid"]
        assert "FailedCreatePod" in rig.events()
        rig.store.delete(PODS, key("train-worker-1"), uid=mine["metadata"]["uid"])
        await rig.until(lambda: list(rig.pods().values()) == ["Running"] * 2)


async def test_one_that_ends_under_the_other_controller_is_no_longer_counted_as_foreign() -> None:
    rig = ControllerRig(lambda _: Run(lasts=None))
    begun(rig)
    async with rig.running():
        await asyncio.sleep(10)
        done = [*SAID["conditions"][:1], {"type": "Succeeded", "status": "True"}]
        rig.store.patch(TFJOBS, key(), {"status": {"conditions": done}}, status=True)
        await rig.until(lambda: rig.controller.telemetry.foreign == {"tfjob": 0})
        await asyncio.sleep(10)

    assert rig.store.get(TFJOBS, key())["status"]["trainwright"]["outcome"]["reason"] == "External"
