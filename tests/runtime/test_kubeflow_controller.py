# SPDX-License-Identifier: Apache-2.0
"""Jobs of Kubeflow v1 under the real controller: writes, the event of a removed job, the metrics of the original."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
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


def ends_well(pod: Body) -> Run:
    """How pods run: they start one after the other."""
    return Run(starts=0.1 + int(pod["metadata"]["name"].rpartition("-")[2]) / 7, lasts=20)


def submitted(kind: str, runs: Callable[[Body], Run] = ends_well, **run_policy: Any) -> ControllerRig:
    name, field, container, types, _ = KINDS[kind]
    template = {"spec": {"containers": [{"name": container, "image": "x"}]}}
    specs = {
        role: {"replicas": count, "template": template, "restartPolicy": "ExitCode"} for role, count in types.items()
    }
    document: Body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": name,
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {field: specs, "runPolicy": run_policy},
    }
    rig = ControllerRig(runs)
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


#: The metrics of training-operator 1.9.4 without a label; those with labels begin with `training_operator_jobs_`.
PLAIN = (
    "created_pods",
    "deleted_pods",
    "failed_pods",
    "succeeded_service_creation",
    "failed_service_creation",
    "created_pod_groups",
    "deleted_pod_groups",
)


@each
async def test_the_metrics_of_the_original_have_its_names_and_labels(kind: str) -> None:
    rig = submitted(kind, ttlSecondsAfterFinished=60, cleanPodPolicy="All")
    rig.controller.telemetry.by_namespace = Counter()
    async with rig.running():
        await rig.until(lambda: not rig.store.list(JOBS[kind])[0])
    found = exposed(rig)
    labels = frozenset({("job_namespace", "default"), ("framework", KINDS[kind][2])})

    assert {key: count for key, count in found.items() if key[0].startswith("training_operator_")} == {
        ("training_operator_jobs_created_total", labels): 1,
        ("training_operator_jobs_deleted_total", labels): 1,
        ("training_operator_jobs_successful_total", labels): 1,
    }
    plain = {name: found[f"{name}_total", frozenset()] for name in PLAIN}
    assert plain == dict.fromkeys(PLAIN, 0) | {"created_pods": 4, "deleted_pods": 4, "succeeded_service_creation": 4}


async def test_restarts_and_failures_are_counted_for_the_namespace() -> None:
    rig = submitted("jaxjob", lambda _pod: Run(lasts=1, code=137), backoffLimit=6)
    rig.controller.telemetry.by_namespace = Counter()
    async with rig.running():
        await rig.until(lambda: "Failed" in conditions(rig, "jaxjob"))
    found = {name: count for (name, labels), count in exposed(rig).items() if labels}

    assert found["training_operator_jobs_failed_total"] == 1
    restarts = rig.controller.telemetry.restarts.total()
    assert found["training_operator_jobs_restarted_total"] == restarts > 0


async def test_nobody_gets_them_unasked() -> None:
    rig = submitted("jaxjob")
    async with rig.running():
        await rig.until(lambda: "Succeeded" in conditions(rig, "jaxjob"))

    assert {name for name, _ in exposed(rig) if not name.startswith("trainwright_")} == set()


def test_the_document_has_them_all() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operator.md").read_text(encoding="utf-8")
    jobs = [f"training_operator_jobs_{one}" for one in ("created", "deleted", "successful", "failed", "restarted")]

    assert [name for name in (*jobs, *PLAIN) if f"`{name}_total`" not in text] == []


def exposed(rig: ControllerRig) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(rig.controller.telemetry.expose())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}
