# SPDX-License-Identifier: Apache-2.0
"""List and watch, for as long as it takes: what the agent and its hosts files know of the cluster comes from here.

After an answer that the watch cannot go on (410), or none at all, it lists again and tells what it missed.
"""

import asyncio
from collections.abc import Callable

from trainwright.errors import ApiError, ForbiddenError, GoneError
from trainwright.local.agent.settings import Pace
from trainwright.model.job import Body
from trainwright.runtime.listwatch import ListWatch
from trainwright.runtime.ports import Change, Cluster, Happened, Page, Resource, Scope

Listed = Callable[[Page], None]
Changed = Callable[[Happened, Body, str], None]


class Follower:
    """Follows one resource. `listed` is told everything there is, `changed` what happens after that."""

    def __init__(self, cluster: Cluster, resource: Resource, scope: Scope, pace: Pace) -> None:
        self._feed = ListWatch(cluster, resource, scope)
        #: Called when we may not.
        self.forbidden: Callable[[ForbiddenError], None] = lambda _: None
        self._pace = pace
        self._wait = pace.unavailable

    async def run(self, listed: Listed, changed: Changed) -> None:
        """For ever."""

        def all_listed(page: Page) -> None:
            self._wait = self._pace.unavailable
            listed(page)

        def all_changed(batch: tuple[Change, ...]) -> None:
            for change in batch:
                if change.what is not Happened.BOOKMARK:
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
