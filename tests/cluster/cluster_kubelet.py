# SPDX-License-Identifier: Apache-2.0
"""Fake nodes, for scale: pods go Pending → Running → Succeeded or Failed by status patches, and end when deleted.

A program of its own, so that what it costs is not counted as ours; `cluster_nodes` starts it. It says `ready` when its
nodes are there. SIGTERM: its pods and nodes go with it; SIGKILL: they stay, as those of a lost machine.
"""

import argparse
import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import cluster_pods as pods
import msgspec
from cluster_api import CONNECTIONS, PAUSE, Api, note, session_for
from cluster_pods import Body, Pod, Script

#: How often a pod that waits for a ConfigMap looks for it.
_LOOK = 0.3
_MISSING = 404


class Kubelets:
    """Nodes `<prefix>-0` and so on. With `binds`, pods that have no node get one from here: where no scheduler runs."""

    def __init__(self, api: Api, prefix: str, number: int, script: Script, *, binds: bool = False) -> None:
        self._api = api
        self._names = [f"{prefix}-{index}" for index in range(number)]
        self._nodes = frozenset(self._names)
        self._next = itertools.cycle(self._names)
        self._script = script
        self._binds = binds
        self._addresses = itertools.count(1)
        self._seen: Counter[str] = Counter()
        self._pods: dict[str, Pod] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Until cancelled."""
        await asyncio.gather(*(self._register(name) for name in self._names))
        ready()
        while True:
            try:
                await self._follow()
            except aiohttp.ClientError as error:
                note("the watch broke off:", error)
                await asyncio.sleep(PAUSE)

    async def _follow(self) -> None:
        since, there = await self._api.list()
        for uid in self._pods.keys() - {pod.metadata.uid for pod in there}:
            self._forget(uid)
        for pod in there:
            self._look(pod)
        async for what, pod in self._api.watch(since):
            if what == "DELETED":
                self._forget(pod.metadata.uid)
            else:
                self._look(pod)

    async def _register(self, name: str) -> None:
        await self._api.send("POST", "/api/v1/nodes", pods.node(name))
        await self._api.send("PATCH", f"/api/v1/nodes/{name}/status", {"status": pods.node_status()})

    async def leave(self) -> None:
        """Take everything along, as a drained node would."""
        for task in (*self._lives.values(), *self._errands):
            task.cancel()
        now = {"gracePeriodSeconds": 0}
        await asyncio.gather(*(self._api.send("DELETE", pod.path, now) for pod in self._pods.values()))
        await asyncio.gather(*(self._api.send("DELETE", f"/api/v1/nodes/{name}", {}) for name in self._names))

    # -- pods ------------------------------------------------------------------------------------------------------

    def _look(self, pod: Pod) -> None:
        if pod.spec.node_name in self._nodes:
            known = self._pods.get(pod.metadata.uid)
            self._pods[pod.metadata.uid] = pod
            if known is None:
                self._begin(pod)
            if pod.metadata.deletion_timestamp and not (known and known.metadata.deletion_timestamp):
                self._stop(pod)
        elif self._binds and not pod.spec.node_name and not pod.spec.scheduling_gates:
            self._soon(self._bind(pod))

    def _begin(self, pod: Pod) -> None:
        before = self._seen[pod.path]
        self._seen[pod.path] += 1
        if pod.status.phase == "Pending":
            self._lives[pod.metadata.uid] = asyncio.create_task(self._live(pod, before))

    def _stop(self, pod: Pod) -> None:
        life = self._lives.pop(pod.metadata.uid, None)
        if life:
            life.cancel()
        self._soon(self._end(pod))

    def _forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        life = self._lives.pop(uid, None)
        if life:
            life.cancel()

    def _soon(self, errand: Awaitable[None]) -> None:
        task = asyncio.ensure_future(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _bind(self, pod: Pod) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": next(self._next)}
        names = {"name": pod.metadata.name, "uid": pod.metadata.uid}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": names, "target": target}
        await self._api.send("POST", f"{pod.path}/binding", body)  # 409: it was bound since

    async def _live(self, pod: Pod, before: int) -> None:
        script = pods.script_of(pod, self._script)
        if script.waiting:
            await self._report(pod, pods.waiting(pod, script.waiting))
            return
        await asyncio.sleep(script.starts)
        if script.init and pod.spec.init_containers:
            await self._report(pod, pods.failed_before(pod, script.init))
            return
        address = self._address()
        for name in pod.needs:
            await self._await(pod, address, name)
        await self._report(pod, pods.running(pod, address))
        time = script.time(before)
        if time is not None:
            await asyncio.sleep(time)
            await self._report(pod, pods.ended(pod, script.code(before), script.reason))

    async def _await(self, pod: Pod, address: str, name: str) -> None:
        """Until the ConfigMap is there, which the pod's status asks for meanwhile."""
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/configmaps/{name}"
        if await self._api.send("GET", path, {}) == _MISSING:
            await self._report(pod, pods.unconfigured(pod, address, name))
        while await self._api.send("GET", path, {}) == _MISSING:
            await asyncio.sleep(_LOOK)

    async def _end(self, pod: Pod) -> None:
        script = pods.script_of(pod, self._script)
        await asyncio.sleep(script.stops)
        if pod.status.phase == "Running":
            await self._report(pod, pods.terminated(pod))
            await asyncio.sleep(script.confirms)
        gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        await self._api.send("DELETE", pod.path, gone)

    async def _report(self, pod: Pod, status: Body) -> None:
        body = {"metadata": {"uid": pod.metadata.uid}, "status": status}  # 409 if it is another by now
        await self._api.send("PATCH", f"{pod.path}/status", body)

    def _address(self) -> str:
        number = next(self._addresses)
        return f"10.{128 + (number >> 16) % 64}.{number >> 8 & 255}.{number & 255}"


# -- the program ---------------------------------------------------------------------------------------------------


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fake nodes for a Kubernetes API server.")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="as cluster_users writes it")
    parser.add_argument("--prefix", default="fake")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--script", default="{}", help="what usually becomes of a pod, as JSON")
    parser.add_argument("--binds", action="store_true", help="give nodes to pods that have none")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="at most that many at once")
    return parser.parse_args()


async def _main(asked: argparse.Namespace) -> None:
    script = msgspec.json.decode(asked.script, type=Script)
    async with session_for(asked.kubeconfig, asked.connections) as session:
        kubelets = Kubelets(Api(session), asked.prefix, asked.nodes, script, binds=asked.binds)
        work = asyncio.ensure_future(kubelets.run(lambda: print("ready", flush=True)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            await kubelets.leave()


if __name__ == "__main__":
    asyncio.run(_main(_arguments()))
