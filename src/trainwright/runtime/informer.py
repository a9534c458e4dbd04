# SPDX-License-Identifier: Apache-2.0
"""Keeps a `Cache` in step with a resource and says what has changed.

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
from trainwright.runtime.listwatch import ListWatch
from trainwright.runtime.ports import Change, Cluster, Happened, Page, Scope
from trainwright.runtime.telemetry import Telemetry

#: Called with the UIDs of jobs and the keys of objects that changed.
Listener = Callable[[set[str], set[Key]], None]
_LOG = logging.getLogger(__name__)
_FIRST, _MOST = 0.2, 30.0


class Informer:
    """One resource, watched."""

    def __init__(self, cluster: Cluster, cache: Cache, scope: Scope, listener: Listener, telemetry: Telemetry) -> None:
        self.cache = cache
        self.synced = asyncio.Event()
        self._feed = ListWatch(cluster, cache.resource, scope)
        self._telemetry = telemetry
        self._listener = listener
        self._pause = _FIRST
        self._began = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        self._began = asyncio.get_running_loop().time()
        await self._feed.run(self._listed, self._take, self._rest, lambda: str(self.cache.newest or ""))

    async def _rest(self, error: ApiError | None) -> None:
        """Even a server that ends every watch at once is not asked without pause."""
        loop = asyncio.get_running_loop()
        if error is not None and not isinstance(error, GoneError):
            _LOG.warning(Line("watch interrupted", resource=self.cache.resource.id, error=error))
        if loop.time() - self._began > self._pause:
            self._pause = _FIRST
        await asyncio.sleep(self._pause * (0.5 + random()))  # noqa: S311 - jitter, not a secret
        self._pause = min(self._pause * 2, _MOST)
        self._began = loop.time()

    def _listed(self, page: Page) -> None:
        self._telemetry.lists[self.cache.resource.id] += 1
        before = dict(zip(self.cache.keys(), self.cache.items(), strict=True))
        jobs = self.cache.replace(page)
        self.synced.set()
        keys = before.keys() | set(self.cache.keys())
        self._listener(jobs, {key for key in keys if self.cache.get(key) is not before.get(key)})

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
        self._pause = _FIRST
        self._telemetry.changes[self.cache.resource.id] += len(changes)
        if jobs or keys:
            self._listener(jobs, keys)
