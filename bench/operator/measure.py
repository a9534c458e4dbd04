# SPDX-License-Identifier: Apache-2.0
"""One run of `--compare`: a new control plane, one contestant, one case.

CPU is measured twice: until the last job has succeeded, and until the operator is idle and makes no more writes. The
metrics of API server and etcd are read before and after that time, because reading them uses CPU.
"""

import asyncio
import ssl
import urllib.request
from time import perf_counter, sleep
from typing import Any

from cases import Task
from cluster_audit import Calls, read_on
from cluster_nodes import fake_nodes
from cluster_plane import ControlPlane
from contestants import CONNECTIONS, NODES, idle, plane_for, running
from cpu import IDLE, Meter, memory, resting
from drive import (
    LIMIT,
    Body,
    Place,
    Sizes,
    calls_of,
    fill,
    manifests,
    namespace,
    plane_processes,
    quantile,
    reach,
    submit,
    waits,
)
from results import Run
from shapes import SHAPES
from versions import now

from trainwright.kube.cluster import connected
from trainwright.kube.config import ConnectionOptions, load
from trainwright.runtime.ports import PODS

SHAPE = SHAPES["tfjob"]
#: Seconds without a write after which an operator has no more work, and the longest wait for them.
_CALM, _PATIENCE = 2, 20.0
#: Jobs that are run before the measurement: the first request of a kind costs an API server more than the others.
_WARM_UP = Sizes(4, 2)
#: Seconds for which the CPU at rest is measured, if other jobs exist.
_REST = 10.0
_ETCD_BYTES = "etcd_network_client_grpc_received_bytes_total"
_BODY_BYTES = "apiserver_request_body_size_bytes_sum"
Found = dict[str, Any]


def perform(task: Task) -> Run:
    """Measure one run from the start of its control plane."""
    began, case = perf_counter(), task.case
    with plane_for(task.who) as plane:
        if task.who == "nobody":
            found = _without_operator(plane, case.sizes)
        else:
            with running(plane, SHAPE, task.who, case.mode) as place:
                found = _with_operator(place, case.sizes, case.present)
                place.kubelet.kill()  # it would delete all its pods
                place.operator.kill()
    return Run(
        case=case.name,
        round=task.number,
        who=task.who,
        mode=case.mode,
        jobs=case.sizes.jobs,
        pods=case.sizes.pods,
        date=now(),
        took=round(perf_counter() - began, 1),
        **found,
    )


def _with_operator(place: Place, sizes: Sizes, present: int) -> Found:
    plane, operator = place.plane, place.operator
    if present:
        fill(place, present)
    else:
        asyncio.run(reach(place, namespace(plane), manifests(SHAPE, _WARM_UP, 0.0)))
    _settle(AuditTail(plane), place)
    idle(plane)
    rest = resting(place.processes, _REST) if present else {}
    space, jobs = namespace(plane), manifests(SHAPE, sizes)
    mark, before = plane.mark(), _bytes(plane)
    tail, meter = AuditTail(plane), Meter(place.processes)
    reached = asyncio.run(reach(place, space, jobs))
    cpu, others = meter.read(), meter.others()
    seconds, is_quiet = _settle(tail, place)
    found = {
        "wall": round(reached.wall, 3),
        "cpu": cpu,
        "cpu_quiet": meter.read(),
        "tail": seconds,
        "is_quiet": is_quiet,
        "others": round(others, 4),
        "peak": round(memory(operator.pid), 1),
        "memory": round(memory(operator.pid, "VmRSS"), 1),
        "running": len(reached.running) / sizes.jobs,
        "present": present,
        "rest": rest,
    }
    after = _bytes(plane)
    calls = plane.audit(mark).where(namespace=space)
    events = _terminal_events(plane, space) / sizes.jobs
    return found | _calls(place, sizes, calls) | _difference(before, after) | {"events": events}


def _calls(place: Place, sizes: Sizes, calls: Calls) -> Found:
    ours = calls_of(place.user, calls)
    found = waits(calls, sizes, place)
    return {
        "p50": round(quantile(found, 0.5), 3),
        "p99": round(quantile(found, 0.99), 3),
        "writes": {
            f"{verb} {what}": number for (verb, what), number in sorted(ours.writes.tally("verb", "resource").items())
        },
        "conflicts": len(ours.where(code=409)),
        "reads": len(ours.reads),
    }


# -- no operator -----------------------------------------------------------------------------------------------------


def _without_operator(plane: ControlPlane, sizes: Sizes) -> Found:
    """Submit the jobs and play the kubelet for pods that exist already: what the operators' runs have in common."""
    space, jobs = namespace(plane), manifests(SHAPE, sizes)
    _warm_up_kubelet(plane)
    asyncio.run(_submit(plane, space, pods=_pods(jobs, sizes)))
    idle(plane)
    before, tail = _bytes(plane), AuditTail(plane)
    meter = Meter(plane_processes(plane))
    with fake_nodes(plane, NODES, binds=True, connections=CONNECTIONS) as kubelet:
        meter.add("kubelet", kubelet)
        began = perf_counter()
        asyncio.run(_submit(plane, space, jobs=jobs))
        _until_reported(tail, 2 * sizes.jobs * sizes.pods)
        wall, cpu, others = perf_counter() - began, meter.read(), meter.others()
        sleep(_CALM)
        cpu_quiet = meter.read()
        kubelet.kill()
    path = f"/api/v1/namespaces/{space}/pods?limit=1&fieldSelector=status.phase!=Succeeded"
    assert not plane.call("GET", path)["items"], "not every pod has succeeded"
    found = {"wall": round(wall, 3), "cpu": cpu, "cpu_quiet": cpu_quiet, "tail": float(_CALM)}
    return found | {"others": round(others, 4)} | _difference(before, _bytes(plane))


def _warm_up_kubelet(plane: ControlPlane) -> None:
    """Make a few of the same requests before the measurement."""
    space, jobs, tail = namespace(plane), manifests(SHAPE, _WARM_UP, 0.0), AuditTail(plane)
    asyncio.run(_submit(plane, space, pods=_pods(jobs, _WARM_UP)))
    asyncio.run(_submit(plane, space, jobs=jobs))
    with fake_nodes(plane, NODES, binds=True, connections=CONNECTIONS) as kubelet:
        _until_reported(tail, 2 * _WARM_UP.jobs * _WARM_UP.pods)
        kubelet.kill()


async def _submit(
    plane: ControlPlane, space: str, *, jobs: list[Body] | None = None, pods: list[Body] | None = None
) -> None:
    async with connected(load(ConnectionOptions(kubeconfig=str(plane.kubeconfig())))) as cluster:
        await submit(cluster, SHAPE.resource if jobs else PODS, space, jobs or pods or [])


def _pods(jobs: list[Body], sizes: Sizes) -> list[Body]:
    """Return the pods of jobs, with nothing but their template."""
    found = []
    for job in jobs:
        template = SHAPE.worker(job["spec"])["template"]
        for index in range(sizes.pods):
            meta = {**template["metadata"], "name": f"{job['metadata']['name']}-worker-{index}"}
            spec = {"restartPolicy": "Never", **template["spec"]}
            found.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    return found


def _until_reported(tail: "AuditTail", number: int) -> None:
    """Wait until the kubelet has written every status. The audit log says so without a request to the API server."""
    deadline = perf_counter() + LIMIT
    while number > 0:
        assert perf_counter() < deadline, f"the kubelet did not write {number} statuses in {LIMIT:.0f} s"
        sleep(0.25)
        number -= len(tail.new().where(user="kubelet-fake", verb="patch", resource="pods/status", code=200))


# -- until idle ------------------------------------------------------------------------------------------------------


class AuditTail:
    """The calls that were added to the audit log since the last look."""

    def __init__(self, plane: ControlPlane) -> None:
        self._path = plane.layout.audit_log
        self._place = self._path.stat().st_size

    def new(self) -> Calls:
        """Return the calls since the last look."""
        calls, self._place = read_on(self._path, self._place)
        return calls


def _settle(tail: AuditTail, place: Place) -> tuple[float, bool]:
    """Wait until the operator is idle and makes no writes; return the seconds, and whether it did become idle."""
    began, calm = perf_counter(), 0
    tail.new()
    while calm < _CALM and perf_counter() - began < _PATIENCE:
        share = resting({"operator": place.operator}, 1.0)["operator"]
        wrote = calls_of(place.user, tail.new()).writes
        calm = calm + 1 if share < IDLE and not wrote else 0
    return round(perf_counter() - began, 1), calm >= _CALM


# -- what is stored --------------------------------------------------------------------------------------------------


def _terminal_events(plane: ControlPlane, space: str) -> int:
    """Return the number of jobs with an event that they have succeeded."""
    events = plane.call("GET", f"/api/v1/namespaces/{space}/events")["items"]
    about = [one["involvedObject"] for one in events if "Succeeded" in one.get("reason", "")]
    return len({one["name"] for one in about if one["kind"] == SHAPE.resource.kind})


def _bytes(plane: ControlPlane) -> dict[str, int]:
    """Return the byte counters: that of etcd, and those of request bodies by verb and resource."""
    server = _text(f"{plane.server}/metrics", plane)
    found = {"etcd": sum(value for _, value in _samples(_text(f"{plane.layout.etcd}/metrics"), _ETCD_BYTES))}
    for labels, value in _samples(server, _BODY_BYTES):
        what = f"{labels['verb']} {labels['resource']}"
        found[what] = found.get(what, 0) + value
    return found


def _difference(before: dict[str, int], after: dict[str, int]) -> Found:
    grown = {name: value - before.get(name, 0) for name, value in sorted(after.items())}
    etcd = grown.pop("etcd")
    return {"etcd_bytes": etcd, "body_bytes": {name: value for name, value in grown.items() if value}}


def _samples(text: str, name: str) -> list[tuple[dict[str, str], int]]:
    """Return the labels and values of a metric in Prometheus's text format."""
    found = []
    for line in text.splitlines():
        if line.startswith(name) and line[len(name)] in " {":
            labels, _, value = line[len(name) :].strip("{").rpartition(" ")
            pairs = [pair.split("=", 1) for pair in labels.rstrip("}").split(",") if pair]
            found.append(({key: word.strip('"') for key, word in pairs}, int(float(value))))
    return found


def _text(url: str, plane: ControlPlane | None = None) -> str:
    headers = {"Authorization": f"Bearer {plane.tokens['admin']}"} if plane else {}
    tls = ssl.create_default_context(cafile=str(plane.authority)) if plane else None
    asked = urllib.request.Request(url, headers=headers)  # noqa: S310 - a URL of our own
    with urllib.request.urlopen(asked, timeout=60, context=tls) as answer:  # noqa: S310 - a URL of our own
        return str(answer.read(), "utf-8")
