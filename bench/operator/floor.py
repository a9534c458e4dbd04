# SPDX-License-Identifier: Apache-2.0
"""An operator that decides nothing: it makes only the writes of ours, at the same moments, with the same client.

Pods and services have the same bytes as ours (`bodies`); statuses and events are about as large as ours.

`compare` starts this program in turn with `trainwright operator`. It assumes that every job is new and will succeed,
checks neither the manifest nor errors, and has no lease, no queue and no periodic passes.

Run: python bench/operator/floor.py KUBECONFIG KIND
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).resolve().parents[2] / name) for name in ("tests/cluster", "tests")]

from bodies import ChildRequests
from msgspec import Struct
from shapes import SHAPES, TIME, Shape

from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.config import ConnectionOptions, load
from trainwright.model.meta import JOB_UID, KIND, Key
from trainwright.runtime.ports import CONFIG_MAPS, EVENTS, PODS, Resource, Selection

Body = dict[str, Any]


class Known(Struct):
    """A job, and the names of its pods that have run and of those that have ended."""

    shape: Shape
    document: Body
    replicas: int
    running: set[str]
    ended: set[str]
    addresses: dict[str, str]
    #: Held while the status is written: each write needs the version that the previous one returned.
    writing: asyncio.Lock
    told: bool = False

    @property
    def key(self) -> Key:
        meta = self.document["metadata"]
        return Key(meta["namespace"], meta["name"])


class Floor:
    """The operator: its jobs and running tasks."""

    def __init__(self, cluster: KubeCluster, shape: Shape) -> None:
        self._cluster = cluster
        self._shape = shape
        self._children = ChildRequests(shape)
        self._jobs: dict[str, Known] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: As in our operator, at most 16 jobs start at a time, and jobs that have started do not wait for new ones.
        self._turns = asyncio.Semaphore(16)

    async def run(self) -> None:
        jobs, pods = self._shape.resource, Selection(labels=KIND)
        await asyncio.gather(self._follow(jobs, Selection(), self._job), self._follow(PODS, pods, self._pod))

    async def _follow(self, resource: Resource, scope: Selection, look: Callable[[Any], None]) -> None:
        since = (await self._cluster.list(resource, scope)).version
        print("ready", resource.plural, flush=True)
        while True:
            async for changes in self._cluster.watch(resource, scope, since=since):
                for change in changes:
                    if change.item is not None:
                        look(change.item)
                since = changes[-1].version

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _job(self, document: Body) -> None:
        uid = document["metadata"]["uid"]
        if uid not in self._jobs:
            replicas = self._shape.worker(document["spec"])["replicas"]
            self._jobs[uid] = known = Known(self._shape, document, replicas, set(), set(), {}, asyncio.Lock())
            self._soon(self._begin(known))

    def _pod(self, pod: Any) -> None:
        known = self._jobs[pod.metadata.labels[JOB_UID]]
        name, phase = pod.metadata.name, pod.status.phase
        if pod.status.pod_ip and not self._shape.services:
            known.addresses[name] = pod.status.pod_ip
            if len(known.addresses) == known.replicas and not known.told:
                known.told = True
                self._soon(self._tell(known))
        if phase == "Pending":
            return
        if name not in known.running:
            known.running.add(name)
            if len(known.running) == known.replicas:
                self._soon(self._say(known, "Running"))
        if phase == "Succeeded" and name not in known.ended:
            known.ended.add(name)
            if len(known.ended) == known.replicas:
                self._soon(self._say(known, "Succeeded"))

    # -- writes ------------------------------------------------------------------------------------------

    async def _begin(self, known: Known) -> None:
        async with self._turns:
            if not self._shape.services:  # as in our operator: only a job with a gate is stored before its pods
                await self._store(known, "Pending")
            await asyncio.gather(*map(self._cluster.http.send, self._children.of(known.document)))

    async def _tell(self, known: Known) -> None:
        await self._cluster.create(CONFIG_MAPS, addresses(known))

    async def _say(self, known: Known, phase: str) -> None:
        await self._store(known, phase)
        if phase != "Running" or self._shape.has_running_event:
            await self._cluster.create(EVENTS, event(known, phase))

    async def _store(self, known: Known, phase: str) -> None:
        async with known.writing:
            document = {**known.document, "status": status(known, phase)}
            known.document = await self._cluster.replace_status(self._shape.resource, document)


def addresses(known: Known) -> Body:
    data = {"PADDLE_TRAINER_ENDPOINTS": ",".join(known.addresses.values()), "PADDLE_TRAINERS_NUM": str(known.replicas)}
    job, key, uid = known.shape.resource, known.key, known.document["metadata"]["uid"]
    owner = {"apiVersion": job.api_version, "kind": job.kind, "name": key.name, "uid": uid}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    labels = {KIND: known.shape.kind, JOB_UID: uid}
    meta = {"name": key.name, "namespace": key.namespace, "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def status(known: Known, phase: str) -> Body:
    """Return a status as large as our operator's."""
    names = [f"{known.key.name}-worker-{index}" for index in range(known.replicas)]
    times = {"accepted": TIME, "started": TIME, "running": TIME}
    attempt = {"number": 1, "start": TIME, "running": TIME, "lost": 100}
    history = {"attempts": [attempt], "begun": TIME, "until": TIME, "lost": {"Start": 100}, "productive": 0, "total": 1}
    roles = [{"name": "worker", "reached": known.replicas}]
    ledger: Body = {"phase": phase, "generation": 1, "roles": roles, "times": times, "history": history}
    if phase == "Succeeded":
        end = {"at": TIME, "reason": "Rule", "message": "every replica that counts has succeeded"}
        attempt |= {"end": TIME, "nodes": [f"fake-{index}" for index in range(min(known.replicas, 8))]}
        ledger |= {"outcome": {**end, "result": phase}, "verdict": {**end, "decision": phase}}
    return {**known.shape.status(phase, names), "trainwright": ledger}


def event(known: Known, phase: str) -> Body:
    key, uid = known.key, known.document["metadata"]["uid"]
    job = known.shape.resource
    about = {"kind": job.kind, "apiVersion": job.api_version, "namespace": key.namespace, "name": key.name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{key.name}.{phase.lower()}", "namespace": key.namespace},
        "involvedObject": about,
        "type": "Normal",
        "reason": phase,
        "message": f"{key.name} is {phase}",
        "source": {"component": "floor"},
        "firstTimestamp": TIME,
        "lastTimestamp": TIME,
        "count": 1,
    }


async def main(kubeconfig: str, kind: str) -> None:
    async with connected(load(ConnectionOptions(kubeconfig=kubeconfig))) as cluster:
        await Floor(cluster, SHAPES[kind]).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
