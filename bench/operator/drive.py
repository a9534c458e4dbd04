# SPDX-License-Identifier: Apache-2.0
"""One measured run: submits jobs to a control plane with an operator, and reads the results from the audit log.

Nothing here watches pods, so that the measurement itself uses little CPU.
"""

import asyncio
import os
from datetime import datetime
from itertools import count
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from cluster_audit import Call, Calls
from cluster_plane import ControlPlane
from cluster_process import Process
from msgspec import Struct
from shapes import Shape

from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.codec import collection_path
from trainwright.kube.config import ConnectionOptions, load
from trainwright.kube.http import RequestPolicy
from trainwright.runtime.ports import CONFIG_MAPS, EVENTS, PODS, SERVICES, Selection

Body = dict[str, Any]
#: Seconds that a pod of a measured job runs.
RUNS = 5.0
#: The number of jobs that are submitted concurrently.
AT_ONCE = 8
#: A process that uses a smaller share of a CPU is idle.
_RESTS = 0.05
_TICK = os.sysconf("SC_CLK_TCK")
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
    #: All other processes of the benchmark.
    parts: list[Process]
    #: The operator's user name at the API server.
    user: str = "operator"


def measured(place: Place, sizes: Sizes) -> tuple[Result, str]:
    """Submit jobs in a new namespace, wait until all have succeeded, and return the result and the namespace."""
    plane, operator = place.plane, place.operator
    space = namespace(plane)
    jobs = [place.shape.manifest(f"job-{number}", sizes.pods, str(RUNS)) for number in range(sizes.jobs)]
    mark, others = plane.mark(), Others([operator, *place.parts])
    before, began = spent(operator.pid), perf_counter()
    asyncio.run(reach(place, space, jobs))
    wall = perf_counter() - began
    cpu, share = spent(operator.pid) - before, others.share()
    calls = plane.audit(mark).where(namespace=space)
    ours = Calls(call for call in calls.where(user=place.user) if not call.resource.startswith("leases"))
    result = Result(
        wall=wall,
        waits=waits(calls, sizes, place),
        cpu=cpu,
        peak=memory(operator.pid),
        writes=len(ours.writes),
        conflicts=len(ours.where(code=409)),
        reads=len(ours.reads),
        others=share,
    )
    return result, space


def namespace(plane: ControlPlane) -> str:
    """Create a new namespace and return its name."""
    name = f"bench-{next(_numbers)}"
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


async def reach(place: Place, space: str, jobs: list[Body], phase: str = "Succeeded") -> None:
    """Submit jobs, a few at a time, and wait until all of them have reached the phase."""
    operator, resource = place.operator, place.shape.resource
    async with connected(load(ConnectionOptions(kubeconfig=str(place.plane.kubeconfig())))) as cluster:
        since = (await cluster.list(resource, Selection(namespace=space))).version
        seen = asyncio.create_task(_reached(cluster, place.shape, (space, since), (len(jobs), phase)))
        pending = iter(jobs)

        async def submit() -> None:
            for job in pending:
                await cluster.create(resource, {**job, "metadata": {**job["metadata"], "namespace": space}})

        await asyncio.gather(*[submit() for _ in range(AT_ONCE)])
        while not seen.done():
            assert operator.alive, f"{operator.name} has ended:\n{operator.tail()}"
            await asyncio.wait([seen], timeout=1)
        await seen


async def _reached(cluster: KubeCluster, shape: Shape, whence: tuple[str, str], wanted: tuple[int, str]) -> None:
    space, since = whence
    number, phase = wanted
    reached: set[str] = set()
    while True:
        async for changes in cluster.watch(shape.resource, Selection(namespace=space), since=since):
            for change in changes:
                if change.item is not None and shape.phase(change.item) == phase:
                    reached.add(change.item["metadata"]["name"])
            since = changes[-1].version
            if len(reached) == number:
                return


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


# -- results ---------------------------------------------------------------------------------------------------------


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


def spent(pid: int) -> float:
    """Return the CPU seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def memory(pid: int, what: str = "VmHWM") -> float:
    """Return the peak memory of a process, or its current memory (VmRSS), in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(what))) / 1024


class Others:
    """Measures the CPU time of programs that do not belong to the benchmark."""

    def __init__(self, ours: list[Process]) -> None:
        self._pids = [os.getpid(), *(one.pid for one in ours)]
        self._busy, self._all = self._now()

    def _now(self) -> tuple[float, float]:
        fields = [int(word) / _TICK for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4] - sum(spent(pid) for pid in self._pids), sum(fields)

    def share(self) -> float:
        """Return their share of all CPUs since this object was created."""
        busy, all_ = self._now()
        return max(busy - self._busy, 0.0) / max(all_ - self._all, 0.001)


def resting(pid: int, seconds: float) -> float:
    """Return the share of a CPU that a process uses during this time."""
    before, began = spent(pid), perf_counter()
    sleep(seconds)
    return (spent(pid) - before) / (perf_counter() - began)


def quiet(process: Process) -> None:
    """Wait until a process is idle."""
    process.until(lambda: process.alive and resting(process.pid, 1.0) < _RESTS)
