# SPDX-License-Identifier: Apache-2.0
"""The scheduler: watches pods, nodes and pod groups, places and binds pods, and writes the reasons why pods wait.

One pass handles all events that arrive together. The scheduler writes a reason only to a pod that has waited for a
short time, and again only after the reason has changed. So if one of a thousand waiting pods is placed, this does not
cause a thousand writes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from trainwright.errors import ApiError, ConflictError, GoneError, NotFoundError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.scheduling.affinity import ready_condition
from trainwright.local.scheduling.cache import Leased, PodInfo, SchedulerCache, finished
from trainwright.local.scheduling.placement import Placements, place
from trainwright.local.storage.metadata import key_of
from trainwright.model.job import Body
from trainwright.model.meta import DEVICES, Key
from trainwright.model.units import rfc3339
from trainwright.node.devices.pool import DevicePool, DeviceRequest, Granted, counts
from trainwright.runtime.informer import ListWatch
from trainwright.runtime.ports import (
    NODES,
    POD_GROUPS,
    PODS,
    Clock,
    Cluster,
    ListPage,
    Resource,
    WatchEvent,
    WatchEventType,
)

_LOG = logging.getLogger(__name__)
#: Seconds between the first event and the pass, so that one pass handles many events.
_COALESCE_SECONDS = 0.002
#: Seconds until the reason of a waiting pod is written. Most pods get a node within this time.
_REASON_DELAY_SECONDS = 0.2
#: Pause in seconds after each written reason, so that at most 200 reasons are written per second.
_REASON_PAUSE_SECONDS = 0.005
#: After this many bound pods the scheduler lets other tasks run, so that agents can start the pods.
_BINDS_PER_ITERATION = 64
#: Seconds until an interrupted watch is started again.
_RETRY_SECONDS = 1.0
#: Seconds between two checks of the leases of other runs while a pod waits for a device.
_LEASE_CHECK_SECONDS = 0.5
#: All runs share one mutex for device leases. We try this many times to get it, with this pause in seconds.
_MUTEX_TRIES = 50
_MUTEX_PAUSE_SECONDS = 0.01


class Scheduler:
    """Places pods until it is cancelled."""

    def __init__(self, cluster: LocalCluster, clock: Clock, devices: DevicePool | None = None) -> None:
        self.cache = SchedulerCache()
        self._cluster, self._clock = cluster, clock
        self._devices = devices if devices is not None and devices.resources else None
        self._wake, self._reasons_changed = asyncio.Event(), asyncio.Event()
        self._decided_revision = -1
        self._waiting: tuple[tuple[PodInfo, str], ...] = ()
        #: The duration of the last pass, in seconds.
        self._pass_seconds = 0.0
        #: Whether another run leased a device before us, so that another pass is needed.
        self._lease_refused = False
        #: By UID of a pod: the reason that was written into its status.
        self._written: dict[str, str] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        cache = self.cache
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(NODES, cache.replace_nodes, cache.update_node, cache.remove_node))
            group.create_task(self._follow(POD_GROUPS, cache.replace_groups, cache.update_group, cache.remove_group))
            group.create_task(self._follow(PODS, cache.replace_pods, cache.update_pod, cache.remove_pod))
            group.create_task(self._place_pods())
            group.create_task(self._write_reasons())
            if self._devices is not None:
                group.create_task(self._maintain_leases(self._devices))

    # -- watching -------------------------------------------------------------------------------------------------

    async def _follow(
        self,
        resource: Resource,
        replace_all: Callable[[Iterable[Body]], None],
        update: Callable[[Body], None],
        remove: Callable[[Body], None],
    ) -> None:
        """Put the objects of a resource, and later changes, into the cache."""

        def all_listed(page: ListPage) -> None:
            replace_all(page.items)
            self._wake_if_changed()

        def changed(changes: tuple[WatchEvent, ...]) -> None:
            for change in changes:
                if change.what is WatchEventType.DELETED:
                    remove(change.item)
                elif change.what is not WatchEventType.BOOKMARK:
                    update(change.item)
            self._wake_if_changed()

        async def on_end(error: ApiError | None) -> None:
            if error is not None and not isinstance(error, GoneError):
                _LOG.warning("watch interrupted resource=%s error=%s", resource.id, error)
                await asyncio.sleep(_RETRY_SECONDS)

        await ListWatch(self._cluster, resource.whole()).run(all_listed, changed, on_end)

    def _wake_if_changed(self) -> None:
        """Start a pass if the cache has changed since the last pass."""
        if self.cache.revision != self._decided_revision:
            self._wake.set()

    # -- placing -------------------------------------------------------------------------------------------------

    async def _place_pods(self) -> None:
        while True:
            await self._wake.wait()
            # Wait for three times the duration of the last pass, so that passes use at most a quarter of the time.
            await asyncio.sleep(max(_COALESCE_SECONDS, 3 * self._pass_seconds))
            self._wake.clear()
            decisions, granted = await self._decide()
            self._waiting = decisions.waiting
            if any(self._written.get(pod.uid) != reason for pod, reason in self._waiting):
                self._reasons_changed.set()
            for count, (pod, node) in enumerate(decisions.placed, 1):
                self._bind_pod(pod, node, granted.get(pod.uid))
                if count % _BINDS_PER_ITERATION == 0:
                    await asyncio.sleep(0)

    async def _decide(self) -> tuple[Placements, dict[str, Granted]]:
        """The placements, and the devices that were leased for them."""
        devices = self._devices
        if devices is None or not self._devices_requested():
            return self._run_pass(None), {}
        for _ in range(_MUTEX_TRIES):
            with devices.alone() as free:
                if free:
                    return self._place_and_lease(devices)
            await asyncio.sleep(_MUTEX_PAUSE_SECONDS)
        return self._place_and_lease(devices)  # Go on without the mutex. This is safe: each device has a lock.

    def _run_pass(self, leased: Leased | None) -> Placements:
        cache, loop = self.cache, asyncio.get_running_loop()
        start = loop.time()
        self._decided_revision = cache.revision
        decisions = place(cache.pending.values(), cache.nodes.values(), cache.usage, cache.groups, leased)
        self._pass_seconds = loop.time() - start
        return decisions

    def _place_and_lease(self, devices: DevicePool) -> tuple[Placements, dict[str, Granted]]:
        """Place pods and lease their devices. The members of a gang get all their devices or none."""
        devices.keep(self._uses_devices, asyncio.get_running_loop().time())
        decisions = self._run_pass(devices.elsewhere())
        gangs: dict[object, list[tuple[PodInfo, str]]] = {}
        for pod, node in decisions.placed:
            gangs.setdefault(pod.group or pod.uid, []).append((pod, node))
        placed: list[tuple[PodInfo, str]] = []
        granted: dict[str, Granted] = {}
        for members in gangs.values():
            found = devices.grant([one for pod, node in members if (one := self._request(pod, node, devices))])
            if found is None:
                self._lease_refused = True
                continue
            placed += members
            granted |= found
        return replace(decisions, placed=tuple(placed)), granted

    def _request(self, pod: PodInfo, node: str, devices: DevicePool) -> DeviceRequest | None:
        wanted, cached = counts(pod.requests, devices.resources), self.cache.cached(pod.key)
        return DeviceRequest(pod.uid, node, cached.body, wanted) if wanted and cached is not None else None

    def _devices_requested(self) -> bool:
        names = self._devices.resources if self._devices is not None else frozenset()
        return any(name in names and amount for pod in self.cache.pending.values() for name, amount in pod.requests)

    def _uses_devices(self, pod: Body) -> bool:
        """Whether a pod can still use its devices, because it exists and has not ended."""
        cached = self.cache.cached(key_of(pod))
        return cached is not None and cached.info.uid == pod["metadata"]["uid"] and not finished(cached.body)

    async def _maintain_leases(self, devices: DevicePool) -> None:
        """Return leases that are no longer needed. Start a pass when the leases of other runs have changed."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LEASE_CHECK_SECONDS)
            if devices.active:
                devices.keep(self._uses_devices, loop.time())
            await self._lease_for_bound(devices)
            if not self._devices_requested():
                continue
            before = devices.changes
            with devices.alone():
                pass
            if devices.changes != before or self._lease_refused:
                self._lease_refused = False
                self._wake.set()

    async def _lease_for_bound(self, devices: DevicePool) -> None:
        """Lease devices for pods that were created with a node. The agent waits for the annotation with the devices."""
        for cached in self.cache.bound():
            pod, wanted = cached.info, counts(cached.info.requests, devices.resources)
            if not wanted or devices.granted(pod.uid):
                continue
            with devices.alone():
                found = devices.grant([DeviceRequest(pod.uid, cached.node, cached.body, wanted)])
            if found is None:
                continue
            try:
                change = {"metadata": {"annotations": _annotations(found[pod.uid])}}
                await self._cluster.patch(PODS.whole(), pod.key, change, uid=pod.uid)
            except ApiError as error:
                _LOG.info("devices not written pod=%s error=%s", pod.key, error)
                devices.release(pod.uid, asyncio.get_running_loop().time())

    def _bind_pod(self, pod: PodInfo, node: str, granted: Granted | None) -> None:
        """Bind a pod and put the answer into the cache at once. After a conflict, the watch reports the new state."""
        annotations = _annotations(granted) if granted else None
        try:
            self.cache.update_pod(self._cluster.store.bind(pod.key, node, uid=pod.uid, annotations=annotations))
        except (ConflictError, NotFoundError) as error:
            _LOG.info("pod not bound pod=%s node=%s error=%s", pod.key, node, error)

    # -- reasons --------------------------------------------------------------------------------------------------

    async def _write_reasons(self) -> None:
        """Write the reasons of pods that still wait."""
        while True:
            await self._reasons_changed.wait()
            await asyncio.sleep(_REASON_DELAY_SECONDS)
            self._reasons_changed.clear()
            waiting = self._waiting
            self._written = {pod.uid: self._written[pod.uid] for pod, _ in waiting if pod.uid in self._written}
            changed_reasons = [(pod, reason) for pod, reason in waiting if self._written.get(pod.uid) != reason]
            for pod, reason in changed_reasons:
                await self._write_reason(pod, reason)
            await asyncio.sleep(len(changed_reasons) * _REASON_PAUSE_SECONDS)

    async def _write_reason(self, pod: PodInfo, reason: str) -> None:
        cached = self.cache.cached(pod.key)
        if cached is None or pod.key not in self.cache.pending or cached.info.uid != pod.uid:
            return
        self._written[pod.uid] = reason
        conditions = unscheduled((cached.body.get("status") or {}).get("conditions") or (), reason, self._clock)
        body, version = {"status": {"conditions": conditions}}, str(cached.version)
        try:
            await self._cluster.patch(PODS.whole(), pod.key, body, uid=pod.uid, version=version, status=True)
        except ApiError as error:
            # The pod has changed, so there will be another pass, which writes the reason.
            _LOG.info("reason not written pod=%s error=%s", pod.key, error)
            self._written.pop(pod.uid, None)


def unscheduled(conditions: Iterable[Body], reason: str, clock: Clock) -> list[Body]:
    """A pod's conditions with PodScheduled=False and the reason. If PodScheduled was False, its time stays."""
    before = [one for one in conditions if one.get("type") == "PodScheduled" and one.get("status") == "False"]
    since = before[0].get("lastTransitionTime") if before else None
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": reason,
        "lastTransitionTime": since or rfc3339(clock.now()),
    }
    return [*(one for one in conditions if one.get("type") != "PodScheduled"), condition]


def _annotations(granted: Granted) -> dict[str, str]:
    return {DEVICES: msgspec.json.encode(granted).decode()}


async def mark_node_lost(cluster: Cluster, name: str, clock: Clock, reason: str = "the node agent went away") -> None:
    """Set the Ready condition of a node to Unknown. Do nothing if the node does not exist or is already not ready.

    If the disk is full, try again until the condition is stored: otherwise the node's pods would look alive for ever.
    """
    while True:
        try:
            await _mark_node_lost(cluster, name, clock, reason)
        except UnavailableError:
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return


async def _mark_node_lost(cluster: Cluster, name: str, clock: Clock, reason: str) -> None:
    try:
        node = await cluster.get(NODES.whole(), Key("", name))
    except NotFoundError:
        return
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = ready_condition(node)
    if ready.get("status") in ("Unknown", "False"):
        return
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": reason}
    unknown |= {key: ready[key] for key in ("lastHeartbeatTime",) if key in ready}
    unknown["lastTransitionTime"] = rfc3339(clock.now())
    others = [one for one in conditions if one.get("type") != "Ready"]
    await cluster.patch(NODES.whole(), Key("", name), {"status": {"conditions": [*others, unknown]}}, status=True)
