# SPDX-License-Identifier: Apache-2.0
"""List and watch, for as long as it takes: what the agent and its hosts files know of the cluster comes from here.

After an answer that the watch cannot go on (410), or none at all, it lists again and tells what it missed.

Containers that wait for a ConfigMap of their job are woken as soon as it comes: `start` waits here between tries.

On an engine of our own there is one watch for all pods of a node, from the first need on, of what carries our label:
other objects that are missing are looked for every few seconds. Where the watch is not allowed, so are these. A node of
somebody else's cluster may watch only the ConfigMaps that its pods refer to, each by its name, as kubelets do.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from trainwright.errors import ApiError, ForbiddenError, GoneError
from trainwright.model.job import Body
from trainwright.model.meta import KIND, Key
from trainwright.node.settings import AgentDelays
from trainwright.runtime.informer import ListWatch
from trainwright.runtime.ports import CONFIG_MAPS, Cluster, ListPage, Resource, Selection, WatchEvent, WatchEventType

Listed = Callable[[ListPage], None]
Changed = Callable[[WatchEventType, Body, str], None]


class ResourceFollower:
    """Follows one resource. `listed` is told everything there is, `changed` what happens after that."""

    def __init__(self, cluster: Cluster, resource: Resource, scope: Selection, pace: AgentDelays) -> None:
        self._feed = ListWatch(cluster, resource, scope)
        #: Called when we may not.
        self.forbidden: Callable[[ForbiddenError], None] = lambda _: None
        self._pace = pace
        self._wait = pace.unavailable

    async def run(self, listed: Listed, changed: Changed) -> None:
        """For ever."""

        def all_listed(page: ListPage) -> None:
            self._wait = self._pace.unavailable
            listed(page)

        def all_changed(batch: tuple[WatchEvent, ...]) -> None:
            for change in batch:
                if change.what is not WatchEventType.BOOKMARK:
                    changed(change.what, change.item, change.version)

        await self._feed.run(all_listed, all_changed, self._rest)

    async def _rest(self, error: ApiError | None) -> None:
        if error is None:
            await asyncio.sleep(self._wait)  # a watch that ends by itself goes on from where it was
        elif not isinstance(error, GoneError):
            self._feed.relist()
            if isinstance(error, ForbiddenError):
                self.forbidden(error)
            await asyncio.sleep(error.retry_after or self._wait)
            self._wait = min(2 * self._wait, self._pace.patience)


#: An answer that is newer than what the watch has told is not asked for again at once.
_BLINK = 0.05
#: Seconds that the watch of one name goes on after the last container waited for it: it will wait again.
_LINGER = 30.0


class ConfigMapWaiter:
    """The ConfigMaps of jobs, as far as anybody waits for them."""

    def __init__(self, cluster: Cluster, pace: AgentDelays, *, by_name: bool = False) -> None:
        self._cluster, self._pace, self._by_name = cluster, pace, by_name
        #: By name: the watch, and how many containers wait for it.
        self._watches: dict[Key, asyncio.Task[None]] = {}
        self._users: Counter[Key] = Counter()
        self._follower = ResourceFollower(cluster, CONFIG_MAPS.whole(), Selection(labels=KIND), pace)
        self._follower.forbidden = self._forbidden
        self._task: asyncio.Task[None] | None = None
        self._versions: dict[Key, int] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    async def change(self, known: Mapping[Key, int], seconds: float) -> None:
        """Until one of these is newer than the version that is known of it (0: it is not there), or time is up."""
        if not known:
            await asyncio.sleep(seconds)
            return
        with self._watching(known):
            await self._change(known, seconds)

    @contextmanager
    def _watching(self, known: Mapping[Key, int]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        if not self._by_name:
            if self._task is None:
                self._task = loop.create_task(self._follower.run(self._listed, self._changed))
            yield
            return
        for key in known:
            if key not in self._watches:
                one = Selection(key.namespace, fields=f"metadata.name={key.name}")
                follower = ResourceFollower(self._cluster, CONFIG_MAPS.whole(), one, self._pace)
                self._watches[key] = loop.create_task(follower.run(partial(self._listed_one, key), self._changed))
        self._users.update(known.keys())
        try:
            yield
        finally:
            self._users.subtract(known.keys())
            for key in known:
                loop.call_later(_LINGER, self._leave, key)

    def _leave(self, key: Key) -> None:
        """End the watch of a name that no container waits for any more."""
        if self._users[key] <= 0 and (watch := self._watches.pop(key, None)) is not None:
            watch.cancel()
            self._versions.pop(key, None)
            del self._users[key]

    async def _change(self, known: Mapping[Key, int], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        await asyncio.sleep(_BLINK if self._newer(known) else 0)
        while not self._newer(known) and loop.time() < end:
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait({future}, timeout=end - loop.time())
            finally:
                self._waiting.discard(future)

    async def close(self) -> None:
        """Watch no more."""
        tasks = [*self._watches.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _newer(self, known: Mapping[Key, int]) -> bool:
        return any(self._versions.get(key, 0) > version for key, version in known.items())

    def _listed(self, page: ListPage) -> None:
        self._versions = {_key(body): _version(body) for body in page.items}
        self._wake()

    def _listed_one(self, key: Key, page: ListPage) -> None:
        self._versions.pop(key, None)
        self._versions |= {_key(body): _version(body) for body in page.items}
        self._wake()

    def _changed(self, what: WatchEventType, body: Body, _version_of_watch: str) -> None:
        if what is WatchEventType.DELETED:
            self._versions.pop(_key(body), None)
            return
        self._versions[_key(body)] = _version(body)
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _forbidden(self, _error: ForbiddenError) -> None:
        """Nothing is told, and everybody looks by himself."""
        if self._task is not None:
            self._task.cancel()


def _key(body: Body) -> Key:
    return Key(body["metadata"].get("namespace", ""), body["metadata"]["name"])


def _version(body: Body) -> int:
    return int(body["metadata"].get("resourceVersion") or 0)
