# SPDX-License-Identifier: Apache-2.0
"""List, then watch, then go on from where the watch broke off. Keeps a `Cache` in step and says what has changed.

`controller` runs one per resource. A watch that the server has forgotten (410) begins with a new list, never older than
our own writes or than what was told before; a server that does not answer is asked again, ever more rarely, with some
jitter.
"""

import asyncio
import logging
from collections.abc import Callable
from random import random

from trainwright.errors import ApiError, GoneError
from trainwright.model.meta import Key
from trainwright.runtime.cache import Cache
from trainwright.runtime.line import Line
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
        self._pause = _FIRST

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                if not self._since:
                    await self._list()
                await self._watch()
            except GoneError:
                self._since = ""
            except ApiError as error:
                _LOG.warning(Line("watch interrupted", resource=self.cache.resource.id, error=error))
            if loop.time() - began > self._pause:
                self._pause = _FIRST
            await self._rest()

    async def _rest(self) -> None:
        """Even a server that ends every watch at once is not asked without pause."""
        await asyncio.sleep(self._pause * (0.5 + random()))  # noqa: S311 - jitter, not a secret
        self._pause = min(self._pause * 2, _MOST)

    async def _list(self) -> None:
        newest = self.cache.newest
        page = await self._cluster.list(self.cache.resource, self.scope, not_older_than=str(newest) if newest else "")
        self._telemetry.lists[self.cache.resource.id] += 1
        before = dict(zip(self.cache.keys(), self.cache.items(), strict=True))
        jobs = self.cache.replace(page)
        self._since = page.version
        self.synced.set()
        keys = before.keys() | set(self.cache.keys())
        self._listener(jobs, {key for key in keys if self.cache.get(key) is not before.get(key)})

    async def _watch(self) -> None:
        async for changes in self._cluster.watch(self.cache.resource, self.scope, since=self._since):
            self._take(changes)

    def _take(self, changes: tuple[Change, ...]) -> None:
        jobs: set[str] = set()
        keys: set[Key] = set()
        for change in changes:
            if change.what is not Happened.BOOKMARK:
                meta = self.cache.resource.meta(change.item)
                key = Key(meta.namespace, meta.name)
                before = self.cache.get(key)
                jobs |= self.cache.apply(change)
                # Our own writes come back here: they are no news.
                if self.cache.get(key) is not before:
                    keys.add(key)
        self._since = changes[-1].version
        self._pause = _FIRST
        self._telemetry.changes[self.cache.resource.id] += len(changes)
        if jobs or keys:
            self._listener(jobs, keys)
