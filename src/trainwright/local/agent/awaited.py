# SPDX-License-Identifier: Apache-2.0
"""Containers that wait for a ConfigMap of their job are woken as soon as it comes: `start` waits here between tries.

One watch for all pods of a node, from the first need on, of what carries our label: other objects that are missing are
looked for every few seconds, as a kubelet does. Where the watch is not allowed, so are these.
"""

import asyncio
from collections.abc import Mapping

from trainwright.errors import ForbiddenError
from trainwright.local.agent.follow import Follower
from trainwright.local.agent.settings import Pace
from trainwright.model.job import Body
from trainwright.model.meta import KIND, Key
from trainwright.runtime.ports import Cluster, Happened, Page, Scope
from trainwright.runtime.resources import CONFIG_MAPS

#: An answer that is newer than what the watch has told is not asked for again at once.
_BLINK = 0.05


class Awaited:
    """The ConfigMaps of jobs, as far as anybody waits for them."""

    def __init__(self, cluster: Cluster, pace: Pace) -> None:
        self._follower = Follower(cluster, CONFIG_MAPS.whole(), Scope(labels=KIND), pace)
        self._follower.forbidden = self._forbidden
        self._task: asyncio.Task[None] | None = None
        self._versions: dict[Key, int] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    async def change(self, known: Mapping[Key, int], seconds: float) -> None:
        """Until one of these is newer than the version that is known of it (0: it is not there), or time is up."""
        if not known:
            await asyncio.sleep(seconds)
            return
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._follower.run(self._listed, self._changed))
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
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _newer(self, known: Mapping[Key, int]) -> bool:
        return any(self._versions.get(key, 0) > version for key, version in known.items())

    def _listed(self, page: Page) -> None:
        self._versions = {_key(body): _version(body) for body in page.items}
        self._wake()

    def _changed(self, what: Happened, body: Body, _version_of_watch: str) -> None:
        if what is Happened.DELETED:
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
