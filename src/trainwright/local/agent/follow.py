# SPDX-License-Identifier: Apache-2.0
"""List and watch, for as long as it takes: what the agent and its hosts files know of the cluster comes from here.

After an answer that the watch cannot go on (410), or none at all, it lists again and tells what it missed.
"""

import asyncio
from collections.abc import Callable

from trainwright.errors import ApiError, ForbiddenError, GoneError
from trainwright.local.agent.settings import Pace
from trainwright.model.job import Body
from trainwright.runtime.ports import Change, Cluster, Happened, Page, Resource, Scope

Listed = Callable[[Page], None]
Changed = Callable[[Happened, Body, str], None]


class Follower:
    """Follows one resource. `listed` is told everything there is, `changed` what happens after that."""

    def __init__(self, cluster: Cluster, resource: Resource, scope: Scope, pace: Pace) -> None:
        self._cluster = cluster
        self._resource = resource
        self.scope = scope
        #: Called when we may not; it may make the scope a smaller one.
        self.forbidden: Callable[[ForbiddenError], None] = lambda _: None
        self._pace = pace
        self._version = ""
        self._wait = pace.unavailable

    async def run(self, listed: Listed, changed: Changed) -> None:
        """For ever."""
        while True:
            try:
                if not self._version:
                    await self._list(listed)
                await self._watch(changed)
                await asyncio.sleep(self._wait)  # a watch that ends by itself goes on from where it was
            except GoneError:
                self._version = ""
            except ApiError as error:
                self._version = ""
                if isinstance(error, ForbiddenError):
                    self.forbidden(error)
                await asyncio.sleep(error.retry_after or self._wait)
                self._wait = min(2 * self._wait, self._pace.patience)

    async def _list(self, listed: Listed) -> None:
        page = await self._cluster.list(self._resource, self.scope)
        self._version, self._wait = page.version, self._pace.unavailable
        listed(page)

    async def _watch(self, changed: Changed) -> None:
        watch = self._cluster.watch(self._resource, self.scope, since=self._version)
        try:
            async for batch in watch:
                self._tell(batch, changed)
        finally:
            await watch.aclose()

    def _tell(self, batch: tuple[Change, ...], changed: Changed) -> None:
        for change in batch:
            if change.what is not Happened.BOOKMARK:
                changed(change.what, change.item, change.version)
        if batch:
            self._version = batch[-1].version
