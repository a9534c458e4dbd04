# SPDX-License-Identifier: Apache-2.0
"""Lists and watches: the list-watch loop, and the informers that keep caches up to date.

If the API server has forgotten the version from which a watch continues (410 Gone), the loop lists again. This list
is never older than our own writes or than the events already seen. If the server does not answer, an informer retries
with increasing pauses and jitter.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from functools import partial
from random import random
from typing import Any

from msgspec.structs import replace

from trainwright.core.observe import is_minor_change
from trainwright.errors import ApiError, GoneError
from trainwright.model.meta import KIND, Key
from trainwright.runtime.cache import Cache, ClusterCache, JobKey
from trainwright.runtime.ports import (
    EVERYTHING,
    PODS,
    SERVICES,
    Cluster,
    ListPage,
    Resource,
    Selection,
    WatchEvent,
    WatchEventType,
)
from trainwright.runtime.telemetry import LogMessage, Telemetry

_LOG = logging.getLogger(__name__)
#: An informer pauses after a watch has ended. The pause doubles from the first value up to the second value.
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 30.0
#: A function that is called with the UIDs of jobs whose objects changed and with the keys of these objects.
Listener = Callable[[set[str], set[Key]], None]
#: Whether the change of an object, given before and after, is minor (the last argument: all children of the same job);
#: and a function that is called with the UIDs of jobs whose objects had minor changes.
MinorChanges = tuple[Callable[[Any, Any, Collection[Any]], bool], Callable[[set[str]], None]]


class ListWatch:
    """Follows one resource: `listed` gets all objects, `changed` gets each later batch of watch events.

    After an interruption the watch continues from the last version that it saw. If the server has forgotten that
    version (410), everything is listed again.
    """

    def __init__(self, cluster: Cluster, resource: Resource, scope: Selection = EVERYTHING) -> None:
        self._cluster = cluster
        self._resource = resource
        self._scope = scope
        self._version = ""

    def relist(self) -> None:
        """List again instead of continuing the watch."""
        self._version = ""

    async def run(
        self,
        listed: Callable[[ListPage], None],
        changed: Callable[[tuple[WatchEvent, ...]], None],
        rest: Callable[[ApiError | None], Awaitable[None]],
        newest: Callable[[], str] = lambda: "",
    ) -> None:
        """Run until cancelled or until `rest` raises.

        `rest` waits between two tries; its argument is the error that ended the last try. A list is never older than
        the version that `newest` returns.
        """
        while True:
            ended: ApiError | None = None
            try:
                if not self._version:
                    page = await self._cluster.list(self._resource, self._scope, not_older_than=newest())
                    listed(page)
                    self._version = page.version
                watch = self._cluster.watch(self._resource, self._scope, since=self._version)
                async with aclosing(watch) as batches:
                    async for changes in batches:
                        changed(changes)
                        self._version = changes[-1].version
            except GoneError as error:
                ended, self._version = error, ""
            except ApiError as error:
                ended = error
            await rest(ended)


class Informer:
    """Keeps the cache of one resource up to date and calls the listener for each change."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        scope: Selection,
        listener: Listener,
        telemetry: Telemetry,
        minor: MinorChanges | None = None,
    ) -> None:
        self.cache = cache
        self.synced = asyncio.Event()
        self._list_watch = ListWatch(cluster, cache.resource, scope)
        self._telemetry = telemetry
        self._listener = listener
        self._minor = minor
        self._pause = _FIRST_PAUSE_SECONDS
        self._began = 0.0

    async def run(self) -> None:
        """Run until cancelled."""
        self._began = asyncio.get_running_loop().time()
        await self._list_watch.run(
            self._listed, self._changed, self._rest, lambda: str(self.cache.newest_version or "")
        )

    async def _rest(self, error: ApiError | None) -> None:
        """Wait before the next try, even without an error, because a server may end each new watch immediately."""
        loop = asyncio.get_running_loop()
        if error is not None and not isinstance(error, GoneError):
            _LOG.warning(LogMessage("watch interrupted", resource=self.cache.resource.id, error=error))
        if loop.time() - self._began > self._pause:
            self._pause = _FIRST_PAUSE_SECONDS
        await asyncio.sleep(self._pause * (0.5 + random()))  # noqa: S311 - jitter, not a secret
        self._pause = min(self._pause * 2, _MAX_PAUSE_SECONDS)
        self._began = loop.time()

    def _listed(self, page: ListPage) -> None:
        self._telemetry.lists[self.cache.resource.id] += 1
        before = dict(zip(self.cache.keys(), self.cache.items(), strict=True))
        jobs = self.cache.replace(page)
        self.synced.set()
        keys = before.keys() | set(self.cache.keys())
        self._listener(jobs, {key for key in keys if self.cache.get(key) is not before.get(key)})

    def _changed(self, changes: tuple[WatchEvent, ...]) -> None:
        jobs: set[str] = set()
        minor_jobs: set[str] = set()
        keys: set[Key] = set()
        for change in changes:
            if change.what is not WatchEventType.BOOKMARK:
                meta = self.cache.resource.meta(change.item)
                key = Key(meta.namespace, meta.name)
                before = self.cache.get(key)
                owners = self.cache.apply(change)
                after = self.cache.get(key)
                # The watch also reports our own writes. These are already in the cache and do not change it.
                if after is not before:
                    keys.add(key)
                (minor_jobs if owners and self._is_minor(before, after) else jobs).update(owners)
        self._pause = _FIRST_PAUSE_SECONDS
        self._telemetry.watch_events[self.cache.resource.id] += len(changes)
        if self._minor is not None and minor_jobs:
            self._minor[1](minor_jobs)
        if jobs or keys:
            self._listener(jobs, keys)

    def _is_minor(self, before: Any, after: Any) -> bool:
        return self._minor is not None and self._minor[0](before, after, self.cache.siblings(after))


def informers(
    cluster: Cluster,
    cluster_cache: ClusterCache,
    telemetry: Telemetry,
    job_changed: Callable[[JobKey], None],
    children_changed: Callable[[set[str]], None],
    minor_changes: Callable[[set[str]], None],
) -> list[Informer]:
    """One informer for each cache. The last two functions are called with the UIDs of the jobs that own the children.

    `minor_changes` is called instead of `children_changed` if the next pass can wait a little: services were created,
    or `is_minor_change` is true for the pods.
    """
    scope, child_scope = cluster_cache.scope, replace(cluster_cache.scope, labels=KIND)
    targets: list[tuple[Cache, Selection, Listener]] = [
        *((cache, scope, partial(_each, job_changed, kind)) for kind, cache in cluster_cache.jobs.items()),
        *((cache, child_scope, lambda uids, _: children_changed(uids)) for cache in cluster_cache.children.values()),
        (cluster_cache.nodes.cache, EVERYTHING, lambda _, keys: children_changed(cluster_cache.affected_jobs(keys))),
    ]
    minor = {PODS.id: (is_minor_change, minor_changes), SERVICES.id: (_is_created, minor_changes)}
    return [
        Informer(cluster, cache, scope, listener, telemetry, minor.get(cache.resource.id))
        for cache, scope, listener in targets
    ]


def _is_created(before: Any, after: Any, _: Collection[Any]) -> bool:
    return before is None and after is not None


def _each(job_changed: Callable[[JobKey], None], kind: str, _uids: set[str], keys: set[Key]) -> None:
    for key in keys:
        job_changed((kind, key))
