# SPDX-License-Identifier: Apache-2.0
"""Helpers for the tests of this directory: the real store under virtual time, a `Cluster` that records requests and can
fail or delay them, and a simple kubelet.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pytest

from trainwright.errors import NotFoundError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.site import Site
from trainwright.runtime.controller import Controller
from trainwright.runtime.ports import (
    EVENTS,
    EVERYTHING,
    JOBS,
    PODS,
    Cluster,
    ListPage,
    Propagation,
    Resource,
    Selection,
    WatchEvent,
    WatchEventType,
)
from trainwright.runtime.settings import ControllerSettings

START = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
JOB = JOBS["genericjob"]
WRITES = ("create", "patch", "status", "delete")
#: The mark of tests whose time is virtual.
VIRTUAL = pytest.mark.looptime

# On Python 3.11, pytest-asyncio gets the current event loop before it sets its own. Python would then create a loop
# that is never closed. After this call it creates none.
asyncio.set_event_loop(None)


class LoopClock:
    """The time of the event loop as a date, plus `offset` seconds."""

    def __init__(self) -> None:
        self.offset = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time() + self.offset)


class Call(NamedTuple):
    """One request."""

    verb: str
    resource: str
    name: str = ""
    body: Any = None
    #: The version from which a watch continues, the minimum version of a list, or the version that a write expects.
    version: str = ""
    at: float = 0.0

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name}".strip()


def through_json(body: Body) -> Body:
    """The body as a server in another process receives it."""
    sent: Body = msgspec.json.decode(msgspec.json.encode(body))
    return sent


async def nothing(call: Call) -> None:
    """The default of `RecordingCluster.before` and `RecordingCluster.after`."""


class RecordingCluster:
    """Forwards requests to a `Cluster` and records them. `before` may refuse one, `after` may lose its response."""

    def __init__(self, inner: Cluster) -> None:
        self.inner = inner
        self.calls: list[Call] = []
        self.before: Callable[[Call], Awaitable[None]] = nothing
        self.after: Callable[[Call], Awaitable[None]] = nothing
        #: Seconds by which watch events are late.
        self.lag = 0.0
        self.under_way = self.most = 0

    def made(self, *verbs: str) -> list[str]:
        """The requests with these verbs; without arguments, all writes."""
        return [str(call) for call in self.calls if call.verb in (verbs or WRITES)]

    async def _send(self, call: Call, request: Callable[[], Awaitable[Any]]) -> Any:
        call = call._replace(at=asyncio.get_running_loop().time())
        self.calls.append(call)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.before(call)
            answer = await request()
            await self.after(call)
        finally:
            self.under_way -= 1
        return answer

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        call = Call("list", resource.id, version=not_older_than)
        page: ListPage = await self._send(call, lambda: self.inner.list(resource, scope, not_older_than=not_older_than))
        return page

    async def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        call = Call("watch", resource.id, version=since, at=asyncio.get_running_loop().time())
        self.calls.append(call)
        await self.before(call)
        async with aclosing(self.inner.watch(resource, scope, since=since)) as batches:
            async for batch in batches:
                if self.lag:
                    await asyncio.sleep(self.lag)
                yield batch

    async def get(self, resource: Resource, key: Key) -> Any:
        return await self._send(Call("get", resource.id, key.name), lambda: self.inner.get(resource, key))

    async def create(self, resource: Resource, body: Body) -> Any:
        body = through_json(body)
        call = Call("create", resource.id, body["metadata"]["name"], body)
        return await self._send(call, lambda: self.inner.create(resource, body))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        body = through_json(body)
        call = Call("status" if status else "patch", resource.id, key.name, body, version)
        return await self._send(
            call, lambda: self.inner.patch(resource, key, body, uid=uid, version=version, status=status)
        )

    async def replace_status(self, resource: Resource, document: Body) -> Any:
        document = through_json(document)
        metadata = document["metadata"]
        call = Call("status", resource.id, metadata["name"], document, metadata["resourceVersion"])
        return await self._send(call, lambda: self.inner.replace_status(resource, document))

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> Any:
        call = Call("delete", resource.id, key.name, {"uid": uid, "grace": grace})
        return await self._send(
            call, lambda: self.inner.delete(resource, key, uid=uid, grace=grace, propagation=propagation)
        )


# -- jobs ------------------------------------------------------------------------------------------------------------


def manifest(name: str = "train", replicas: int = 2, **more: Any) -> Body:
    """A GenericJob. Options: `service=True`, `limit=` (of restarts), `cleans=`, `gpus=`, `roles=`, `paused=`."""
    container: Body = {"name": "main", "image": "busybox", "command": ["true"]}
    if "gpus" in more:
        container["resources"] = {"limits": {"nvidia.com/gpu": more["gpus"]}}
    template = {"spec": {"containers": [container]}}
    roles = more.get("roles", {"worker": replicas})
    restart = {"policy": "OnFailure", "limit": more.get("limit", 0)}
    spec: Body = {
        "replicaSpecs": [
            {"type": role, "replicas": many, "template": template, "restartPolicy": restart}
            for role, many in roles.items()
        ],
        "successRules": [{role: list(range(many)) for role, many in roles.items()}],
        "cleanUpPolicy": more.get("cleans", "None"),
    }
    if more.get("service"):
        spec["service"] = {"ports": [{"name": "sync", "port": 29600}]}
    if "paused" in more:
        spec["runMode"] = {"pause": {"enabled": more["paused"]}}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def key(name: str = "train") -> Key:
    """A key in the namespace of all tests."""
    return Key("default", name)


# -- a cluster with one controller -----------------------------------------------------------------------------------


class Run(NamedTuple):
    """The life of a pod: seconds until it runs, seconds that it runs (None: for ever), and its exit code."""

    starts: float = 0.5
    lasts: float | None = 5.0
    code: int = 0


def all_is_well(pod: Body) -> Run:
    """Every pod succeeds after the default times."""
    return Run()


class Kubelet:
    """Simulates every pod with the `Run` that `script` returns. A deleted pod ends `grace` seconds later."""

    def __init__(self, store: Store, script: Callable[[Body], Run]) -> None:
        self.store = store
        self.script = script
        self.grace = 0.2
        #: Name and UID of every pod that was ever created.
        self.born: list[tuple[str, str]] = []
        #: By UID; an event is set when the pod must end.
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            async for batch in LocalCluster(self.store).watch(PODS.whole(), since="0"):
                for change in batch:
                    self._see(change)
        finally:
            for task in self._tasks:
                task.cancel()

    def _see(self, change: WatchEvent) -> None:
        metadata = change.item["metadata"]
        uid = metadata["uid"]
        if uid not in self._ends:
            self._ends[uid] = asyncio.Event()
            self.born.append((metadata["name"], uid))
            task = asyncio.create_task(self._live(change.item, self._ends[uid]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if "deletionTimestamp" in metadata or change.what is WatchEventType.DELETED:
            self._ends[uid].set()

    async def _live(self, pod: Body, ends: asyncio.Event) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        run = self.script(pod)
        if not await _set_within(ends, run.starts):
            self.store.bind(key(name), "node-1")
            self._state(name, "Running", {"running": {}})
            if not await _set_within(ends, run.lasts):
                self.exit(name, run.code)
        await ends.wait()
        if self._there(name, uid):
            await asyncio.sleep(self.grace)
        if self._there(name, uid):
            self.store.delete(PODS, key(name), uid=uid, grace=0)

    def _there(self, name: str, uid: str) -> bool:
        try:
            return bool(self.store.get(PODS, key(name))["metadata"]["uid"] == uid)
        except NotFoundError:
            return False

    def exit(self, name: str, code: int = 0) -> None:
        """The pod's container ends."""
        end = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        self._state(name, "Failed" if code else "Succeeded", end)

    def _state(self, name: str, phase: str, state: Body) -> None:
        (container, *_) = self.store.get(PODS, key(name))["spec"]["containers"]
        status = {"phase": phase, "containerStatuses": [{"name": container["name"], "state": state}]}
        self.store.patch(PODS, key(name), {"status": status}, status=True)


async def _set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether the event is set within this time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


@asynccontextmanager
async def at_work(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine in the background. It must not end before the context does."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        (end,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(end, asyncio.CancelledError), end
        await asyncio.sleep(0)


class ControllerRig:
    """A store, a simulated kubelet, recorded requests, and one controller at a time."""

    def __init__(self, script: Callable[[Body], Run] | None = None, **knobs: Any) -> None:
        self.clock = LoopClock()
        self.store = Store(self.clock)
        self.wire = RecordingCluster(LocalCluster(self.store))
        self.kubelet = Kubelet(self.store, script or all_is_well)
        self.knobs = knobs
        self.site = Site()
        self.controller = self.made()

    def made(self) -> Controller:
        """Replace the controller by a new one with empty caches."""
        self.controller = Controller(self.wire, self.clock, lambda _job: self.site, ControllerSettings(**self.knobs))
        return self.controller

    def submit(self, name: str = "train", replicas: int = 2, **more: Any) -> Body:
        return self.store.create(JOB, manifest(name, replicas, **more))

    def status(self, name: str = "train") -> Body:
        found: Body = self.store.get(JOB, key(name)).get("status") or {}
        return found

    def phase(self, name: str = "train") -> str:
        return str(self.status(name).get("phase", ""))

    def pods(self) -> dict[str, str]:
        return {one["metadata"]["name"]: one["status"]["phase"] for one in self.store.list(PODS)[0]}

    def events(self) -> list[str]:
        """The reasons of all events, in order."""
        told = sorted(self.store.list(EVENTS)[0], key=lambda one: int(one["metadata"]["resourceVersion"]))
        return [one["reason"] for one in told]

    def passes(self) -> int:
        return self.controller.telemetry.passes.total()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run a kubelet and a controller, and check that no task is left at the end."""
        async with at_work(self.kubelet.run()), at_work(self.controller.run()):
            yield
        assert asyncio.all_tasks() == {asyncio.current_task()}, "something is still at work"

    async def until(self, condition: Callable[[], bool], limit: float = 120.0) -> None:
        """Wait for a condition. Raises AssertionError after `limit` seconds of virtual time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            passed = loop.time() - began
            assert passed < limit, f"not within {limit} s: {self.pods()}"
            await asyncio.sleep(max(0.05, min(passed / 20, 0.5)))

    async def finished(self, *names: str) -> None:
        """Wait until these jobs have ended."""
        await self.until(lambda: all(self.phase(name) in ("Succeeded", "Failed") for name in names or ("train",)))
