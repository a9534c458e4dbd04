# SPDX-License-Identifier: Apache-2.0
"""Measures `reconcile` against decoding the same pods: steady state, planning, many jobs, growth. See README.md.

Run: python bench/reconcile.py [--quick]
"""

import gc
import platform
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

import msgspec
from msgspec.structs import replace

import trainwright
from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.cause import CauseKind
from trainwright.model.child import Node, Observed, Pod, Service
from trainwright.model.job import Job, Restart
from trainwright.model.ledger import Ledger, Phase, RoleLedger
from trainwright.model.site import Site
from trainwright.testing import factories

NOW, SITE = factories.later(60), Site()
QUICK = "--quick" in sys.argv
NODES: dict[str, Node] = {f"node-{i}": factories.node(f"node-{i}") for i in range(100)}


def manifest(replicas: int, *, service: bool = True) -> dict[str, Any]:
    """Return a GenericJob with variables in its environment, as users write them."""
    hosts = ",".join(f"$(service.worker[{i}].host):$(service.port[http])" for i in range(min(replicas, 2)))
    container = {
        "name": "main",
        "image": "python:3.12-slim",
        "command": ["python", "/train.py", "--rank=$(rank)"],
        "env": [{"name": "HOSTS", "value": hosts}, {"name": "WORLD", "value": "$(replicas[worker])"}],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "8"}},
    }
    spec: dict[str, Any] = {
        "replicaSpecs": [{"type": "worker", "replicas": replicas, "template": {"spec": {"containers": [container]}}}],
        "service": {"ports": [{"name": "http", "port": 2222}]},
    }
    if not service:
        del spec["service"], container["env"]
    meta = {"name": "job", "namespace": "default", "uid": factories.UID}
    return {"apiVersion": "batch.tensorstack.dev/v1beta1", "kind": "GenericJob", "metadata": meta, "spec": spec}


def wire_pod(body: dict[str, Any], index: int) -> bytes:
    """Return a running pod as an API server sends it, with fields that we do not read: about 6 KB."""
    started = "2026-11-15T12:00:00Z"
    meta = body["metadata"] | {"uid": f"uid-{index}", "resourceVersion": str(index), "creationTimestamp": started}
    fields: dict[str, Any] = {f"f:field-{i}": {"f:nested": {}, "f:other": {}, ".": {}} for i in range(30)}
    meta["managedFields"] = [{"manager": "kubelet", "operation": "Update", "time": started, "fieldsV1": fields}]
    container = {
        "name": "main",
        "ready": True,
        "restartCount": 0,
        "image": "python:3.12-slim",
        "imageID": "sha256:" + "0" * 64,
        "containerID": "containerd://" + "0" * 64,
        "state": {"running": {"startedAt": started}},
        "lastState": {},
    }
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers")
    status = {
        "phase": "Running",
        "hostIP": "10.0.0.1",
        "podIP": f"10.1.{index // 250}.{index % 250}",
        "startTime": started,
        "qosClass": "Burstable",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": started} for kind in kinds],
        "containerStatuses": [container],
    }
    volumes = [{"name": f"volume-{i}", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} for i in range(20)]
    spec = body["spec"] | {"nodeName": f"node-{index % 100}", "volumes": volumes, "serviceAccountName": "default"}
    tolerations = [{"key": f"node.kubernetes.io/{i}", "operator": "Exists", "effect": "NoExecute"} for i in range(10)]
    return msgspec.json.encode(body | {"metadata": meta, "spec": spec | {"tolerations": tolerations}, "status": status})


def settled(replicas: int) -> tuple[Job, Observed, list[bytes], dict[str, Any]]:
    """Return a job with running pods and an up-to-date status, its children, their JSON, and its own document."""
    document = manifest(replicas)
    job = load(GENERICJOB, document).job
    plan = reconcile(job, Observed(), SITE, NOW)
    bodies = [create.body for create in plan.creates]
    raw = [wire_pod(body, i) for i, body in enumerate(body for body in bodies if body["kind"] == "Pod")]
    services = tuple(msgspec.convert(body, Service) for body in bodies if body["kind"] == "Service")
    observed = Observed(tuple(msgspec.json.decode(one, type=Pod) for one in raw), services, nodes=NODES)
    ledger: Ledger = plan.status.ledger
    for _ in range(2):
        job = replace(job, ledger=ledger)
        plan = reconcile(job, observed, SITE, NOW)
        ledger = plan.status.ledger
    assert plan.empty
    said = load(GENERICJOB, document).status
    document["status"] = GENERICJOB.render(said, job, plan.status, NOW)
    return job, observed, raw, document


def cpu(work: Callable[[], object], times: int, runs: int = 7) -> float:
    """Return the CPU seconds of one call, the smallest of several runs."""
    best = float("inf")
    for _ in range(1 if QUICK else runs):
        gc.collect()
        began = process_time()
        for _ in range(times):
            work()
        best = min(best, (process_time() - began) / times)
    return best


def steady() -> None:
    """Measure one job with 8 pods that do not change."""
    job, observed, raw, document = settled(8)
    encoded = msgspec.json.encode(document)
    said = load(GENERICJOB, document).status
    plan = reconcile(job, observed, SITE, NOW)
    decode = cpu(lambda: [msgspec.json.decode(one, type=Pod) for one in raw], 300)
    decide = cpu(lambda: reconcile(job, observed, SITE, NOW), 2000)
    render = cpu(lambda: GENERICJOB.render(said, job, plan.status, NOW), 500)
    whole = cpu(lambda: load(GENERICJOB, msgspec.json.decode(encoded)), 200)
    row("decode 8 pods of the API server (floor)", decode * 1e6, "µs", decode, decode)
    row("reconcile, steady state, 8 pods", decide * 1e6, "µs", decide, decode, "≤ 30")
    row("render the status, 8 pods", render * 1e6, "µs", render, decode)
    row("load the job from JSON (once per change)", whole * 1e6, "µs", whole, decode)


def planning() -> None:
    """Measure the first plan of a job of 1,000 pods."""
    for service in (False, True):
        job = load(GENERICJOB, manifest(1000, service=service)).job
        raw = settled(1000)[2]
        decode = cpu(lambda raw=raw: [msgspec.json.decode(one, type=Pod) for one in raw], 1)  # type: ignore[misc]
        plan = cpu(lambda job=job: reconcile(job, Observed(), SITE, NOW), 3)  # type: ignore[misc]
        what = "1,000 pods and 1,000 services" if service else "1,000 pods"
        row(f"plan {what}", plan * 1e3, "ms", plan, decode, "≤ 20")


def many() -> None:
    """Measure one pass for each of 5,000 jobs of 8 pods."""
    jobs = [settled(8) for _ in range(100 if QUICK else 5000)]
    gc.freeze()
    decode = cpu(lambda: [msgspec.json.decode(one, type=Pod) for _, _, raw, _ in jobs for one in raw], 1, runs=2)
    decide = cpu(lambda: [reconcile(job, observed, SITE, NOW) for job, observed, _, _ in jobs], 1)
    row(f"re-evaluate {len(jobs):,} jobs x 8 pods", decide, "s", decide, decode, "≤ 0.5")


def growth() -> None:
    """Measure the same job at four sizes: the cost per pod must not grow."""
    for size in (10, 100, 1000) if QUICK else (10, 100, 1000, 10000):
        job, observed, raw, _ = settled(size)
        decode = cpu(lambda raw=raw: [msgspec.json.decode(one, type=Pod) for one in raw], max(1, 1000 // size), 3)  # type: ignore[misc]
        decide = cpu(lambda job=job, seen=observed: reconcile(job, seen, SITE, NOW), max(1, 10000 // size))  # type: ignore[misc]
        row(f"steady state, {size:,} pods, per pod", decide * 1e6 / size, "µs", decide, decode)


def storm() -> None:
    """Measure a pass in which all pods have failed and may be restarted: the cost must stay linear."""
    restart = Restart(frozenset({CauseKind.EXIT}))
    for size in (100, 1000) if QUICK else (100, 1000, 10000):
        books = (RoleLedger("worker", reached=size),)
        job = factories.job(factories.role("worker", size, restart=restart), ledger=Ledger(Phase.RUNNING, roles=books))
        failed = Observed(tuple(factories.pod(index, "Failed", code=1) for index in range(size)))
        raw = settled(size)[2]
        decode = cpu(lambda raw=raw: [msgspec.json.decode(one, type=Pod) for one in raw], 1)  # type: ignore[misc]
        decide = cpu(lambda job=job, failed=failed: reconcile(job, failed, SITE, NOW), 1)  # type: ignore[misc]
        row(f"all of {size:,} pods fail at once, per pod", decide * 1e6 / size, "µs", decide, decode)


def row(what: str, value: float, unit: str, cost: float, floor: float, target: str = "") -> None:
    """Print one line of the table."""
    print(f"{what:44} {value:9.2f} {unit:3} {cost / floor:7.3f} x decode  {target}", flush=True)


if __name__ == "__main__":
    print(f"trainwright {trainwright.__version__}, msgspec {msgspec.__version__}, Python {platform.python_version()}")
    print(f"a pod is {len(settled(1)[2][0]):,} bytes on the wire; CPU time, smallest of several runs\n")
    for part in (steady, planning, growth, storm, many):
        part()
