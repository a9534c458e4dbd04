# SPDX-License-Identifier: Apache-2.0
"""Submits jobs to a control plane with an operator, waits for them, and reads their times from the audit log.

Nothing here watches pods, so that the measurement itself uses little CPU.
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime
from itertools import count
from time import perf_counter
from typing import Any

from cluster_audit import Call, Calls
from cluster_plane import ControlPlane
from cluster_process import Process
from cpu import Meter, memory
from msgspec import Struct
from shapes import Shape

from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.codec import collection_path
from trainwright.kube.config import ConnectionOptions, load
from trainwright.kube.http import RequestPolicy
from trainwright.runtime.ports import CONFIG_MAPS, EVENTS, PODS, SERVICES, Resource, Selection

Body = dict[str, Any]
#: Seconds that a pod of a measured job runs.
RUNS = 5.0
#: The number of jobs that are submitted concurrently.
AT_ONCE = 8
#: Seconds after which a run that has not ended is given up.
LIMIT = 900.0
_numbers = count(1)


class Sizes(Struct, frozen=True):
    """The number of jobs, and of pods per job."""

    jobs: int
    pods: int

    def __str__(self) -> str:
        return f"{self.jobs:,} x {self.pods}"


class Result(Struct, frozen=True, kw_only=True):
    """The result of one run. Times in seconds, sizes in MiB."""

    wall: float
    #: For each job, the time from its submission to the creation of its last pod.
    waits: tuple[float, ...]
    cpu: float
    peak: float
    writes: int
    conflicts: int
    reads: int
    #: The share of the machine that other programs used.
    others: float


class Place(Struct, frozen=True):
    """The control plane, the shape of the jobs, and the operator that manages them."""

    plane: ControlPlane
    shape: Shape
    operator: Process
    kubelet: Process
    #: The operator's user name at the API server.
    user: str = "operator"

    @property
    def processes(self) -> dict[str, Process]:
        """Return all processes of the benchmark except the driver, by the names of the results file."""
        return {"operator": self.operator, "kubelet": self.kubelet, **plane_processes(self.plane)}


def plane_processes(plane: ControlPlane) -> dict[str, Process]:
    """Return the processes of a control plane, by the names of the results file."""
    return {"apiserver": plane.processes["kube-apiserver"], "etcd": plane.processes["etcd"]}


def measured(place: Place, sizes: Sizes) -> tuple[Result, str]:
    """Submit jobs in a new namespace, wait until all have succeeded, and return the result and the namespace."""
    plane = place.plane
    space = namespace(plane)
    mark, meter = plane.mark(), Meter(place.processes)
    reached = asyncio.run(reach(place, space, manifests(place.shape, sizes)))
    cpu, share = meter.read()["operator"], meter.others()
    calls = plane.audit(mark).where(namespace=space)
    ours = calls_of(place.user, calls)
    result = Result(
        wall=reached.wall,
        waits=waits(calls, sizes, place),
        cpu=cpu,
        peak=memory(place.operator.pid),
        writes=len(ours.writes),
        conflicts=len(ours.where(code=409)),
        reads=len(ours.reads),
        others=share,
    )
    return result, space


def manifests(shape: Shape, sizes: Sizes, runs: float = RUNS) -> list[Body]:
    """Return the jobs of a measured run, or of another run whose pods run for another time."""
    return [shape.manifest(f"job-{number}", sizes.pods, str(runs)) for number in range(sizes.jobs)]


def namespace(plane: ControlPlane) -> str:
    """Create a new namespace and return its name."""
    name = f"bench-{next(_numbers)}"
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


# -- submit and wait -------------------------------------------------------------------------------------------------


class Reached(Struct, frozen=True):
    """The time from the first submission until the last job reached its phase, and the jobs seen in phase Running."""

    wall: float
    running: frozenset[str]


async def reach(place: Place, space: str, jobs: list[Body], phase: str = "Succeeded") -> Reached:
    """Submit jobs, a few at a time, and wait until all of them have reached the phase."""
    operator, resource = place.operator, place.shape.resource
    async with connected(load(ConnectionOptions(kubeconfig=str(place.plane.kubeconfig())))) as cluster:
        since = (await cluster.list(resource, Selection(namespace=space))).version
        seen = asyncio.create_task(_reached(cluster, place.shape, (space, since), (len(jobs), phase)))
        began = perf_counter()
        await submit(cluster, resource, space, jobs)
        while not seen.done():
            assert operator.alive, f"{operator.name} has ended:\n{operator.tail()}"
            assert perf_counter() - began < LIMIT, f"not all jobs were {phase} after {LIMIT:.0f} s"
            await asyncio.wait([seen], timeout=1)
        ended, running = await seen
        return Reached(ended - began, running)


async def submit(cluster: KubeCluster, resource: Resource, space: str, bodies: Iterable[Body]) -> None:
    """Create objects in a namespace, a few at a time."""
    pending = iter(bodies)

    async def work() -> None:
        for body in pending:
            await cluster.create(resource, {**body, "metadata": {**body["metadata"], "namespace": space}})

    await asyncio.gather(*[work() for _ in range(AT_ONCE)])


async def _reached(
    cluster: KubeCluster, shape: Shape, whence: tuple[str, str], wanted: tuple[int, str]
) -> tuple[float, frozenset[str]]:
    """Return when the last job reached the phase, and the jobs that were seen in phase Running."""
    space, since = whence
    number, phase = wanted
    reached: set[str] = set()
    running: set[str] = set()
    while True:
        async for changes in cluster.watch(shape.resource, Selection(namespace=space), since=since):
            for change in changes:
                if change.item is not None:
                    name, found = change.item["metadata"]["name"], shape.phase(change.item)
                    if found == phase:
                        reached.add(name)
                    if found == "Running" or (name not in running and _is_running(change.item)):
                        running.add(name)
            since = changes[-1].version
            if len(reached) == number:
                return perf_counter(), frozenset(running)


def _is_running(document: Body) -> bool:
    conditions = (document.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Running" and one["status"] == "True" for one in conditions)


def clear(plane: ControlPlane, shape: Shape, space: str) -> None:
    """Delete everything in a namespace; no garbage collector runs here."""
    asyncio.run(_clear(plane, shape, space))


async def _clear(plane: ControlPlane, shape: Shape, space: str) -> None:
    patient = RequestPolicy(timeout=300.0, retry_seconds=300.0)
    async with connected(load(ConnectionOptions(kubeconfig=str(plane.kubeconfig()))), patient) as cluster:
        for resource in (shape.resource, PODS, SERVICES, CONFIG_MAPS, EVENTS):
            while (await cluster.list(resource, Selection(namespace=space))).items:
                options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
                plane.call("DELETE", collection_path(resource, space), options)


def fill(place: Place, number: int) -> None:
    """Create jobs of one pod: half of them end, half run forever."""
    if number < 2:
        return
    for phase, runs in (("Succeeded", "0"), ("Running", "forever")):
        jobs = [place.shape.manifest(f"there-{index}", 1, runs) for index in range(number // 2)]
        asyncio.run(reach(place, namespace(place.plane), jobs, phase))


# -- the audit log ---------------------------------------------------------------------------------------------------


def calls_of(user: str, calls: Calls) -> Calls:
    """Return the calls of an operator without those for its lease."""
    return Calls(call for call in calls.where(user=user) if not call.resource.startswith("leases"))


def waits(calls: Calls, sizes: Sizes, place: Place) -> tuple[float, ...]:
    """Return the time from each job's submission to its last pod, from the audit log of the API server."""
    jobs = calls.where(user="admin", verb="create", resource=place.shape.resource.id)
    submitted = {call.name: _at(call) for call in jobs}
    made: dict[str, list[float]] = {}
    for call in calls.where(user=place.user, verb="create", resource=PODS.id, code=201):
        made.setdefault(call.name.rsplit("-", 2)[0], []).append(_at(call))
    short = [name for name in submitted if len(made.get(name, ())) != sizes.pods]
    assert len(submitted) == sizes.jobs
    assert not short, f"not every pod was made once: {short[:3]}"
    return tuple(sorted(max(made[name]) - at for name, at in submitted.items()))


def _at(call: Call) -> float:
    return datetime.fromisoformat(call.at).timestamp()


def quantile(values: tuple[float, ...], share: float) -> float:
    """Return a quantile of sorted values."""
    return values[min(int(share * len(values)), len(values) - 1)]
