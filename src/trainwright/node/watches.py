# SPDX-License-Identifier: Apache-2.0
"""Watches of an agent: `ResourceFollower` lists and watches a resource; `ConfigMapWaiter` waits for ConfigMaps.

A container that cannot be configured waits for its ConfigMaps. In the embedded engine one watch on our label serves all
containers of a node. In another cluster the agent is allowed to watch only the ConfigMaps that its pods refer to, each
by its name, as kubelets do. The agent looks for other missing objects every few seconds.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from trainwright.errors import ApiError, ForbiddenError, GoneError
from trainwright.model.job import Body
from trainwright.model.meta import KIND, Key
from trainwright.node.settings import AgentDelays
from trainwright.runtime.informer import ListWatch
from trainwright.runtime.ports import CONFIG_MAPS, Cluster, ListPage, Resource, Selection, WatchEvent, WatchEventType

Listed = Callable[[ListPage], None]
Changed = Callable[[WatchEventType, Body, str], None]


class ResourceFollower:
    """Lists and watches one resource; lists again after an error."""

    def __init__(self, cluster: Cluster, resource: Resource, scope: Selection, delays: AgentDelays) -> None:
        self._feed = ListWatch(cluster, resource, scope)
        #: Called when the API server forbids the list or the watch.
        self.on_forbidden: Callable[[ForbiddenError], object] = lambda _: None
        self._delays = delays
        self._wait = delays.api_retry

    async def run(self, listed: Listed, changed: Changed) -> None:
        """Call `listed` with every list and `changed` with every later change, until cancelled."""

        def all_listed(page: ListPage) -> None:
            self._wait = self._delays.api_retry
            listed(page)

        def all_changed(batch: tuple[WatchEvent, ...]) -> None:
            for change in batch:
                if change.what is not WatchEventType.BOOKMARK:
                    changed(change.what, change.item, change.version)

        await self._feed.run(all_listed, all_changed, self._wait_before_next)

    async def _wait_before_next(self, error: ApiError | None) -> None:
        if error is None:
            await asyncio.sleep(self._wait)  # the server ended the watch: continue after its last event
        elif not isinstance(error, GoneError):
            self._feed.relist()
            if isinstance(error, ForbiddenError):
                self.on_forbidden(error)
            await asyncio.sleep(error.retry_after or self._wait)
            self._wait = min(2 * self._wait, self._delays.max_api_retry)


#: A wait takes only this time if the watch received a newer version of the ConfigMap before the wait began.
_REREAD_DELAY_SECONDS = 0.05
#: The watch of one ConfigMap ends this many seconds after the last wait, since a container often waits several times.
_IDLE_WATCH_SECONDS = 30.0


class ConfigMapWaiter:
    """Wakes containers when a ConfigMap that they wait for changes. `by_name`: one watch for each ConfigMap."""

    def __init__(self, cluster: Cluster, delays: AgentDelays, *, by_name: bool = False) -> None:
        self._cluster, self._delays, self._by_name = cluster, delays, by_name
        #: For each ConfigMap: its watch, and the number of containers that wait for it.
        self._name_watches: dict[Key, asyncio.Task[None]] = {}
        self._waiting_containers: Counter[Key] = Counter()
        self._label_watch: asyncio.Task[None] | None = None
        self._versions: dict[Key, int] = {}
        self._woken = asyncio.Event()

    async def wait_changed(self, known: Mapping[Key, int], seconds: float) -> None:
        """Wait, at most `seconds`, until a ConfigMap is newer than its version in `known`; 0: it did not exist."""
        if not known:
            await asyncio.sleep(seconds)
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        with self._watching(known):
            await asyncio.sleep(_REREAD_DELAY_SECONDS if self._has_newer(known) else 0)
            while not self._has_newer(known) and loop.time() < end:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), end - loop.time())

    @contextmanager
    def _watching(self, known: Mapping[Key, int]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        if not self._by_name:
            if self._label_watch is None:
                follower = ResourceFollower(self._cluster, CONFIG_MAPS.whole(), Selection(labels=KIND), self._delays)
                self._label_watch = watch = loop.create_task(follower.run(self._listed, self._changed))
                # If the agent is not allowed to watch, each wait takes all its `seconds`; then the agent reads again.
                follower.on_forbidden = lambda _: watch.cancel()
            yield
            return
        for key in known:
            if key not in self._name_watches:
                one = Selection(key.namespace, fields=f"metadata.name={key.name}")
                follower = ResourceFollower(self._cluster, CONFIG_MAPS.whole(), one, self._delays)
                self._name_watches[key] = loop.create_task(follower.run(partial(self._listed_one, key), self._changed))
        self._waiting_containers.update(known.keys())
        try:
            yield
        finally:
            self._waiting_containers.subtract(known.keys())
            for key in known:
                loop.call_later(_IDLE_WATCH_SECONDS, self._end_idle_watch, key)

    def _end_idle_watch(self, key: Key) -> None:
        """End the watch of a ConfigMap if no container waits for it."""
        if self._waiting_containers[key] <= 0 and (watch := self._name_watches.pop(key, None)) is not None:
            watch.cancel()
            self._versions.pop(key, None)
            del self._waiting_containers[key]

    async def close(self) -> None:
        """End all watches."""
        await end_tasks(*self._name_watches.values(), self._label_watch)

    def _has_newer(self, known: Mapping[Key, int]) -> bool:
        return any(self._versions.get(key, 0) > version for key, version in known.items())

    def _listed(self, page: ListPage) -> None:
        self._versions = {object_key(body): _version(body) for body in page.items}
        self._wake()

    def _listed_one(self, key: Key, page: ListPage) -> None:
        self._versions.pop(key, None)
        self._versions |= {object_key(body): _version(body) for body in page.items}
        self._wake()

    def _changed(self, event: WatchEventType, body: Body, _version_of_watch: str) -> None:
        if event is WatchEventType.DELETED:
            self._versions.pop(object_key(body), None)
            return
        self._versions[object_key(body)] = _version(body)
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        self._woken.clear()


def object_key(body: Body) -> Key:
    """The namespace and the name of an object."""
    return Key(body["metadata"].get("namespace", ""), body["metadata"]["name"])


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel the tasks and wait for their ends."""
    present = [task for task in tasks if task is not None]
    for task in present:
        task.cancel()
    await asyncio.gather(*present, return_exceptions=True)


def _version(body: Body) -> int:
    return int(body["metadata"].get("resourceVersion") or 0)
