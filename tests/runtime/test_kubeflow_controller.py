# SPDX-License-Identifier: Apache-2.0
"""Jobs of Kubeflow v1 under the real controller: the budget of writes, and the event of a job that is removed."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from runtime_rig import VIRTUAL, ControllerRig, Run, key

from trainwright.local.checks import admission
from trainwright.model.job import Body
from trainwright.runtime.ports import JOBS

pytestmark = VIRTUAL
#: Kind -> its name, its replica specs, its container, the types of a job with four replicas, and the event of its TTL.
KINDS: dict[str, tuple[str, str, str, dict[str, int], str]] = {
    "jaxjob": ("JAXJob", "jaxReplicaSpecs", "jax", {"Worker": 4}, "SuccessfulDeletePod"),
    "xgboostjob": ("XGBoostJob", "xgbReplicaSpecs", "xgboost", {"Master": 1, "Worker": 3}, "SuccessfulDeleteJob"),
    "pytorchjob": ("PyTorchJob", "pytorchReplicaSpecs", "pytorch", {"Master": 1, "Worker": 3}, "SuccessfulDeletePod"),
    "paddlejob.kubeflow.org": ("PaddleJob", "paddleReplicaSpecs", "paddle", {"Worker": 4}, "SuccessfulDeletePod"),
}
each = pytest.mark.parametrize("kind", KINDS)


def submitted(kind: str, **run_policy: Any) -> ControllerRig:
    name, field, container, types, _ = KINDS[kind]
    template = {"spec": {"containers": [{"name": container, "image": "x"}]}}
    specs = {role: {"replicas": count, "template": template} for role, count in types.items()}
    document: Body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": name,
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {field: specs, "runPolicy": run_policy},
    }
    rig = ControllerRig(lambda pod: Run(starts=0.1 + int(pod["metadata"]["name"].rpartition("-")[2]) / 7, lasts=20))
    admission.install(rig.store)
    rig.store.create(JOBS[kind], document)
    return rig


def conditions(rig: ControllerRig, kind: str) -> list[str]:
    status = rig.store.get(JOBS[kind], key()).get("status") or {}
    return [one["type"] for one in status.get("conditions") or () if one["status"] == "True"]


@each
async def test_a_job_runs_to_success_within_its_budget_of_writes(kind: str) -> None:
    rig = submitted(kind)
    async with rig.running():
        await rig.until(lambda: "Succeeded" in conditions(rig, kind))
        await asyncio.sleep(600)

    calls = Counter(f"{call.verb} {call.resource}" for call in rig.wire.calls if call.verb not in ("list", "watch"))
    assert conditions(rig, kind) == ["Created", "Succeeded"]
    # The master of an XGBoostJob ends before its workers, whose end changes nothing.
    children = {"create pods": 4, "create services": 4}
    assert calls == children | {f"status {JOBS[kind].id}": 2, "create events": 1}
    assert rig.events() == [f"{KINDS[kind][0]}Succeeded"]


@each
async def test_the_event_of_a_removed_job_has_the_reason_of_the_original(kind: str) -> None:
    """A quirk that is kept: some kinds use the reason of a deleted pod."""
    rig = submitted(kind, ttlSecondsAfterFinished=60)
    async with rig.running():
        await rig.until(lambda: not rig.store.list(JOBS[kind])[0])
        await asyncio.sleep(1)

    assert rig.events()[-1] == KINDS[kind][4]
