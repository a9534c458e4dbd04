# SPDX-License-Identifier: Apache-2.0
"""List, then watch, then go on from where the watch broke off. Keeps a `Cache` in step and says what has changed.

`controller` runs one per resource. A watch that the server has forgotten (410) begins with a new list, never older than
our own writes; a server that does not answer is asked again, ever more rarely, with some jitter.
"""

import asyncio
import logging
from collections.abc import Callable
from random import random

from trainwright.errors import ApiError, GoneError
from trainwright.model.meta import Key
from trainwright.runtime.cache import Cache
from trainwright.runtime.ports import Change, Cluster, Happened, Scope
from trainwright.runtime.telemetry import Telemetry

#: Called with the UIDs of jobs and the keys of objects that changed.
Listener = Callable[[set[str], set[Key]], None]
_LOG = logging.getLogger(__name__)
_FIRST, _MOST = 0.2, 30.0


class Informer:
    """One resource, watched."""

    def __init__(self, cluster: Cluster, cache: Cache, scope: Scope, listener: Listener, telemetry: Telemetry) -> None:
        self.cache = cache
        self.scope = scope
        self.synced = asyncio.Event()
        self._cluster = cluster
        self._telemetry = telemetry
        self._listener = listener
        self._since = ""

    async def run(self) -> None:
        """Until cancelled."""
        pause = _FIRST
        while True:
            try:
                if not self._since:
                    await self._list()
                pause = _FIRST
                await self._watch()
            except GoneError:
                self._since = ""
            except ApiError as error:
                _LOG.warning("watch interrupted resource=%s error=%s", self.cache.resource.id, error)
                await asyncio.sleep(pause * (0.5 + random()))  # noqa: S311 - jitter, not a secret
                pause = min(pause * 2, _MOST)

    async def _list(self) -> None:
        page = await self._cluster.list(
            self.cache.resource, self.scope, not_older_than=str(self.cache.newest) if self.cache.newest else ""
        )
        self._telemetry.lists[self.cache.resource.id] += 1
        before = set(self.cache.keys())
        jobs = self.cache.replace(page)
        self._since = page.version
        self.synced.set()
        self._listener(jobs, before | set(self.cache.keys()))

    async def _watch(self) -> None:
        async for changes in self._cluster.watch(self.cache.resource, self.scope, since=self._since):
            self._take(changes)

    def _take(self, changes: tuple[Change, ...]) -> None:
        jobs: set[str] = set()
        keys: set[Key] = set()
        for change in changes:
            if change.what is not Happened.BOOKMARK:
                jobs |= self.cache.apply(change)
                meta = self.cache.resource.meta(change.item)
                keys.add(Key(meta.namespace, meta.name))
        self._since = changes[-1].version
        self._telemetry.changes[self.cache.resource.id] += len(changes)
        self._listener(jobs, keys)
