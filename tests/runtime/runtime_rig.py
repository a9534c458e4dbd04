# SPDX-License-Identifier: Apache-2.0
"""What the tests of this directory stand on: the real store under virtual time, a wire to it that can be cut, stretched
and counted, and a kubelet of a few lines. The machinery under test knows only the `Cluster` port.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from trainwright.local.cluster import LocalCluster
from trainwright.local.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.site import Site
from trainwright.runtime.controller import Controller
from trainwright.runtime.ports import EVERYTHING, Change, Cluster, Page, Propagation, Resource, Scope
from trainwright.runtime.resources import EVENTS, JOBS, NODES, PODS, SERVICES
from trainwright.runtime.settings import Settings

START = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
JOB = JOBS["genericjob"]
WRITES = ("create", "patch", "status", "delete")
#: The mark of tests whose time is virtual.
VIRTUAL = pytest.mark.looptime

# On Python 3.11, pytest-asyncio asks for the current event loop before it sets its own, which makes one that nobody
# closes; told once that there is none, Python makes none.
asyncio.set_event_loop(None)


class LoopClock:
    """The loop's own time, as a date; `offset` sets it forward or back."""

    def __init__(self) -> None:
        self.offset = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time() + self.offset)


class Call(NamedTuple):
    """One request."""

    verb: str
    resource: str
    name: str = ""
    body: Any = None
    #: Since when a watch goes on, how old a list may be, what a write is based on.
    version: str = ""
    at: float = 0.0

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name}".strip()


async def nothing(call: Call) -> None:
    """What happens before or after most requests."""


class Wire:
    """A `Cluster` in front of another: remembers each request; `before` may refuse it, `after` may lose its answer."""

    def __init__(self, inner: Cluster) -> None:
        self.inner = inner
        self.calls: list[Call] = []
        self.before: Callable[[Call], Awaitable[None]] = nothing
        self.after: Callable[[Call], Awaitable[None]] = nothing
        #: Seconds by which watches lag.
        self.lag = 0.0
        self.under_way = self.most = 0

    def made(self, *verbs: str) -> list[str]:
        """The requests of these verbs; all that write if none is said."""
        return [str(call) for call in self.calls if call.verb in (verbs or WRITES)]

    async def _send(self, call: Call, request: Callable[[], Awaitable[Any]]) -> Any:
        call = call._replace(at=asyncio.get_running_loop().time())
        self.calls.append(call)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.before(call)
            answer = await request()
            await self.after(call)
        finally:
            self.under_way -= 1
        return answer

    async def list(self, resource: Resource, scope: Scope = EVERYTHING, *, not_older_than: str = "") -> Page:
        call = Call("list", resource.id, version=not_older_than)
        page: Page = await self._send(call, lambda: self.inner.list(resource, scope, not_older_than=not_older_than))
        return page

    async def watch(
        self, resource: Resource, scope: Scope = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[Change, ...], None]:
        call = Call("watch", resource.id, version=since, at=asyncio.get_running_loop().time())
        self.calls.append(call)
        await self.before(call)
        async with aclosing(self.inner.watch(resource, scope, since=since)) as batches:
            async for batch in batches:
                if self.lag:
                    await asyncio.sleep(self.lag)
                yield batch

    async def get(self, resource: Resource, key: Key) -> Any:
        return await self._send(Call("get", resource.id, key.name), lambda: self.inner.get(resource, key))

    async def create(self, resource: Resource, body: Body) -> Any:
        call = Call("create", resource.id, body["metadata"]["name"], body)
        return await self._send(call, lambda: self.inner.create(resource, body))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        call = Call("status" if status else "patch", resource.id, key.name, body, version)
        return await self._send(
            call, lambda: self.inner.patch(resource, key, body, uid=uid, version=version, status=status)
        )

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> Any:
        call = Call("delete", resource.id, key.name, {"uid": uid, "grace": grace})
        return await self._send(
            call, lambda: self.inner.delete(resource, key, uid=uid, grace=grace, propagation=propagation)
        )
