# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: a store, the controller, a scheduler and node agents.

As on a cluster, each part is a client of the store and does not know the other parts. This process manages jobs
through `engine.cluster`; other processes use the same verbs through `engine.sock` in the run's folder.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from trainwright.errors import EngineError
from trainwright.kinds.gangs import T9K_API
from trainwright.local import run_ids
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
from trainwright.model.units import rfc3339
from trainwright.node.devices.foreign import ForeignProcessWatch
from trainwright.node.network.pools import BLOCKS, AddressPool, PortPool, SubnetPool, loopback, ranges
from trainwright.node.settings import HEARTBEAT
from trainwright.runtime import settings as runtime
from trainwright.runtime.controller import Controller
from trainwright.runtime.ports import NODES, Clock, WallClock

__all__ = ["Engine", "EngineSettings"]

#: Times in seconds for lost nodes; shorter than on a cluster, because a lost local node cannot become reachable again.
_NODE_GRACE_SECONDS = 5.0
_LINGER_SECONDS = 5.0
#: Times in seconds for quarantine, resized roles and devices; short, because this engine sees every change at once.
_QUARANTINE_SECONDS = 10.0
_SIZING = SizingRules(patience=3.0, cooldown=5.0)
_DEVICES = DeviceRules(grace=5.0)
#: When the controller is stopped, it waits this many seconds for running passes.
_DRAIN_SECONDS = 2.0


class Engine:
    """One engine. The caller calls `start` first and `stop` at the end."""

    def __init__(self, settings: EngineSettings, store: Store | None = None) -> None:
        """`store` has the objects of an earlier engine, if the settings say that its pods have outlived it."""
        self._settings = settings
        self._clock = WallClock()
        self.store = store if store is not None else _open_store(self._clock, settings)
        self.cluster = LocalCluster(self.store)
        self._nodes = NodePool(self.cluster, self._clock, settings)
        self._contexts = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        #: Verbs of the socket in addition to those of the store and of this engine. Set them before `start`.
        self.verbs: dict[str, Verb[Any]] = {}
        #: The runtime (`sandbox` or `process`), and the reason for this choice; `start` sets both values.
        self.runtime, self.choice = settings.runtime, ""
        #: If a part of the engine fails, this future gets the exception. A caller that waits for a job must also wait
        #: for this future.
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start all parts and return when all nodes are ready. Raises EngineError."""
        admission.install(self.store)
        if self._settings.detached:
            run_ids.install(self.store, self._clock)
        await self._nodes.prepare()
        self.runtime, self.choice = self._nodes.runtime, self._nodes.choice
        pool, host_network_pool = self._address_pools()
        addresses = Addresses(self.store, pool, PortPool(ranges(), start=self._nodes.seed), host_network_pool)
        addresses.install()
        verbs: dict[str, Verb[Any]] = {
            "metrics": Verb(MetricsRequest, self._metrics),
            HEARTBEAT: Verb(HeartbeatRequest, self._nodes.heartbeat),
            **self.verbs,
        }
        await self._contexts.enter_async_context(serve(self._settings.folder / SOCKET, self.cluster, verbs))
        await self._nodes.start()
        site = self._site()
        settings = runtime.ControllerSettings(
            resync=self._settings.resync, count_delay=runtime.EMBEDDED_COUNT_DELAY_SECONDS, accept_delay=0.0
        )
        registry = self._settings.registry
        site_for = (lambda _job: site) if site.names_resolve else partial(addresses.with_reservations, site)
        self._controller = Controller(self.cluster, self._clock, site_for, settings, registry=registry)
        self._controller_task = self._start_task(self._controller.run())
        self._start_task(Scheduler(self.cluster, self._clock, self._nodes.devices).run())
        self._start_task(ForeignProcessWatch(self._nodes.devices, self._settings.notify).run())
        if self._settings.revive is None and not self._settings.detached:
            self._start_task(self._watch_nodes())

    def cleaned_up(self, kind: str, key: Key) -> bool:
        """Whether a job has ended, is cleaned up according to its policy, and its final status is stored."""
        return self._controller.cleaned_up(kind, key)

    async def stop_controller(self) -> None:
        """Stop the controller, so that it writes no status and creates no pods while the other parts are stopped."""
        await self._controller.drain(_DRAIN_SECONDS)
        self._controller_task.cancel()
        await asyncio.gather(self._controller_task, return_exceptions=True)

    @property
    def trouble(self) -> str:
        """A problem that lasts, such as a full disk; empty if there is none."""
        trouble = self.store.journal.trouble if self.store.journal is not None else None
        return f"{trouble.text} (since {rfc3339(trouble.since)})" if trouble is not None else ""

    async def stop(self, grace: float = 0.0, *, keep_running: bool = False) -> None:
        """Stop all pods, with a grace period in seconds, and all parts.

        `keep_running`: leave the pods of a detached engine to the next engine of the same folder.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._nodes.stop(grace, keep_running=keep_running)
        await self._contexts.aclose()
        if self.store.journal is not None:
            await asyncio.to_thread(self.store.close)

    def _address_pools(self) -> tuple[AddressPool, AddressPool | None]:
        """The addresses for pods, and a second pool for pods with host network if other pods have their own network.

        The loopback range depends on the process ID, so that two engines on one machine rarely use the same range.
        """
        loopback_pool = loopback(f"127.{1 + self._nodes.seed % 250}.0.0/16")
        return (SubnetPool(self._nodes.subnet), loopback_pool) if self._nodes.subnet else (loopback_pool, None)

    def _site(self) -> Site:
        """The site of this engine. Host names resolve only in the sandbox; the process runtime uses addresses."""
        return Site(
            gangs=frozenset({T9K_API}),
            node_grace=_NODE_GRACE_SECONDS,
            linger=_LINGER_SECONDS,
            node_quarantine=_QUARANTINE_SECONDS,
            devices=_DEVICES,
            sizing=_SIZING,
            elastic_server=self._settings.elastic_server,
            waiting=None,  # pods do not run in images, so no init container can wait
            has_autoscaler=False,
            names_resolve=self.runtime == "sandbox",
            host_ports=_host_ports(),
        )

    async def _watch_nodes(self) -> None:
        """Raise an error when no node is ready: lost nodes do not return, so the engine could never run a pod again."""
        async for _ in self.cluster.watch(NODES, since=""):
            nodes = (await self.cluster.list(NODES)).items
            if nodes and not any(node.ready for node in nodes):
                raise EngineError(f"no node is left: {'; '.join(map(_conditions_text, nodes))}")

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Report a part that has ended before the engine was stopped."""
        if task.cancelled() or self.broken.done():
            return
        error = task.exception()
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        failure = error if isinstance(error, EngineError) else EngineError(f"part of the engine has failed: {error!r}")
        self.broken.set_exception(failure)

    async def _metrics(self, _request: MetricsRequest) -> str:
        return self._controller.telemetry.expose()


def _open_store(clock: Clock, settings: EngineSettings) -> Store:
    """The store of an engine: in memory, or with the journal of the settings. Raises EngineError."""
    if settings.journal is None:
        return Store(clock)
    return Store.open(clock, settings.journal, notify=settings.notify)


def _host_ports() -> tuple[int, int]:
    """The range of ports for host networks: separate from the reserved ports of pods and from ephemeral ports."""
    widest = max(ranges(BLOCKS), key=len)
    return widest.start, widest.stop - 1


def _conditions_text(node: Node) -> str:
    return ", ".join(f"{node.metadata.name}: {one.message}" for one in node.status.conditions or ())
