# SPDX-License-Identifier: Apache-2.0
"""List, then watch from there. The one loop for everything that follows a resource."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from trainwright.errors import ApiError, GoneError
from trainwright.runtime.ports import EVERYTHING, Change, Cluster, Page, Resource, Scope


class ListWatch:
    """Follows one resource: `listed` gets everything there is, `changed` each batch of changes after that.

    After an interruption the watch goes on from the last version that it saw. Where the server has forgotten that
    version (410), everything is listed again.
    """

    def __init__(self, cluster: Cluster, resource: Resource, scope: Scope = EVERYTHING) -> None:
        self._cluster = cluster
        self._resource = resource
        self._scope = scope
        self._version = ""

    def relist(self) -> None:
        """List again instead of going on with the watch."""
        self._version = ""

    async def run(
        self,
        listed: Callable[[Page], None],
        changed: Callable[[tuple[Change, ...]], None],
        rest: Callable[[ApiError | None], Awaitable[None]],
        newest: Callable[[], str] = lambda: "",
    ) -> None:
        """Until cancelled, or until `rest` raises: it waits between two tries and gets the error that ended the last.

        A list is never older than the version that `newest` returns.
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
