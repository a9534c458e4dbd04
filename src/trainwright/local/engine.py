# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: a store, the controller, a scheduler and node agents, put together. `trainwright run` makes one.

Each part is a client of the store and knows nothing of the others, as on a cluster. Everything about jobs goes through
`engine.cluster`; other processes reach the same verbs at `engine.sock` in the run's folder.
"""

import asyncio
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from trainwright.errors import EngineError
from trainwright.kinds.gangs import T9K_API
from trainwright.local.addresses import Addresses
from trainwright.local.checks import admission
from trainwright.local.cluster import LocalCluster
from trainwright.local.node_pool import NodePool
from trainwright.local.scheduling.scheduler import Scheduler
from trainwright.local.settings import SOCKET, EngineSettings
from trainwright.local.sockets.protocol import HeartbeatRequest, MetricsRequest
from trainwright.local.sockets.server import Verb, serve
from trainwright.local.storage.store import Store
from trainwright.model.child import Node
from trainwright.model.meta import Key
from trainwright.model.site import DeviceRules, Site, SizingRules
from trainwright.node.devices.foreign import ForeignProcessWatch
from trainwright.node.network.pools import BLOCKS, AddressPool, PortPool, SubnetPool, loopback, ranges
from trainwright.node.settings import HEARTBEAT
from trainwright.runtime import settings as runtime
from trainwright.runtime.controller import Controller
from trainwright.runtime.ports import NODES, WallClock

__all__ = ["Engine", "EngineSettings"]

#: A node whose agent has died is lost for certain: nobody needs to hope for it for as long as on a network.
NODE_GRACE = 5.0
LINGER = 5.0
#: And everything about it is seen at once, so roles that resize themselves need not wait to be sure.
DISTRUST = 10.0
SIZING = SizingRules(patience=3.0, cooldown=5.0)
DEVICES = DeviceRules(grace=5.0)
#: Seconds until counts are written: here that costs nothing, and somebody watches.
_COUNTS = 1.0
#: Seconds for the passes that are under way when the controller is stopped.
_DRAIN = 2.0


class Engine:
    """One engine; `start` it, and `stop` it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._clock = WallClock()
        self.store = Store(self._clock)
        self.cluster = LocalCluster(self.store)
        self._fleet = NodePool(self.cluster, self._clock, settings)
        self._open = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        #: Set when a part of the engine has failed: whoever waits for a job waits for this as well.
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def runtime(self) -> str:
        """`sandbox` or `process`."""
        return self._fleet.runtime

    @property
    def choice(self) -> str:
        """Why it is that one, in a sentence."""
        return self._fleet.choice

    async def start(self) -> None:
        """Everything up and ready. Raises EngineError."""
        admission.install(self.store)
        await self._fleet.prepare()
        pool, hosted = self._pools()
        addresses = Addresses(self.store, pool, PortPool(ranges(), start=os.getpid()), hosted)
        addresses.install()
        verbs: dict[str, Verb[Any]] = {
            "metrics": Verb(MetricsRequest, self._metrics),
            HEARTBEAT: Verb(HeartbeatRequest, self._fleet.heartbeat),
        }
        await self._open.enter_async_context(serve(self._settings.folder / SOCKET, self.cluster, verbs))
        await self._fleet.start()
        site = self._site()
        settings = runtime.ControllerSettings(resync=self._settings.resync, count_delay=_COUNTS)
        registry = self._settings.registry
        site_for = (lambda _job: site) if site.names_resolve else partial(addresses.placed, site)
        self._controller = Controller(self.cluster, self._clock, site_for, settings, registry=registry)
        self._control = self._run(self._controller.run())
        self._run(Scheduler(self.cluster, self.store.bind, self._clock, self._fleet.devices).run())
        self._run(ForeignProcessWatch(self._fleet.devices, self._settings.notify).run())
        if self._settings.revive is None:
            self._run(self._watch_nodes())

    def cleaned_up(self, kind: str, key: Key) -> bool:
        """Whether a job that has ended is cleaned up as its policy says, and its final status is stored."""
        return self._controller.cleaned_up(kind, key)

    async def stop_controller(self) -> None:
        """Write no status any more, and make no pod: what happens to pods from here on is not the job's doing."""
        await self._controller.drain(_DRAIN)
        self._control.cancel()
        await asyncio.gather(self._control, return_exceptions=True)

    async def stop(self, grace: float = 0.0) -> None:
        """End whatever still runs, giving it so many seconds, and take everything down."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fleet.stop(grace)
        await self._open.aclose()

    def _pools(self) -> tuple[AddressPool, AddressPool | None]:
        """Addresses for pods, and for those on this machine's own network where the others have one of their own.

        Two engines of one machine rarely share a part of the loopback range.
        """
        machine = loopback(f"127.{1 + os.getpid() % 250}.0.0/16")
        return (SubnetPool(self._fleet.subnet), machine) if self._fleet.subnet else (machine, None)

    def _site(self) -> Site:
        """In the sandbox names resolve, and everything is as on a cluster; bare processes are told addresses."""
        return Site(
            gangs=frozenset({T9K_API}),
            node_grace=NODE_GRACE,
            linger=LINGER,
            node_quarantine=DISTRUST,
            devices=DEVICES,
            sizing=SIZING,
            elastic_server=self._settings.elastic_server,
            names_resolve=self._fleet.runtime == "sandbox",
            host_ports=_host_ports(),
        )

    async def _watch_nodes(self) -> None:
        """An engine all of whose nodes are lost for good will run nothing again: better said than waited for."""
        async for _ in self.cluster.watch(NODES, since=""):
            nodes = (await self.cluster.list(NODES)).items
            if nodes and not any(node.ready for node in nodes):
                raise EngineError(f"no node is left: {'; '.join(map(_last_words, nodes))}")

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Parts of an engine run until they are stopped; one that ends by itself is a defect."""
        if task.cancelled() or self.broken.done():
            return
        error = task.exception()
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        told = error if isinstance(error, EngineError) else EngineError(f"a part of the engine has failed: {error!r}")
        self.broken.set_exception(told)

    async def _metrics(self, _request: MetricsRequest) -> str:
        return self._controller.telemetry.expose()


def _host_ports() -> tuple[int, int]:
    """Ports of this machine that replicas may share: not where single ones are given out, nor the kernel's own."""
    widest = max(ranges(BLOCKS), key=len)
    return widest.start, widest.stop - 1


def _last_words(node: Node) -> str:
    return ", ".join(f"{node.metadata.name}: {one.message}" for one in node.status.conditions or ())
