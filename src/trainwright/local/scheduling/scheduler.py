# SPDX-License-Identifier: Apache-2.0
"""Gives pods their nodes: watches pods, nodes and pod groups, asks `placement`, binds, and tells those who wait why.

What comes in one burst is decided in one pass. A reason is written to a pod that has waited for a moment, and again
when it has changed, but not for each pod that comes and goes before it: a thousand waiting pods must not cost a
thousand writes whenever one of them gets its turn.

Nodes whose agent no longer answers are said to be Unknown. The pods on them stay as they are: `core` judges those.

`agents` calls `node_lost` when an agent has ended and nothing of its pods runs any more. An agent that hangs is killed
first (`local.watchdog`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from trainwright.errors import ApiError, ConflictError, GoneError, NotFoundError
from trainwright.local.scheduling.affinity import ready_condition
from trainwright.local.scheduling.cache import Leased, PodInfo, SchedulerCache, finished
from trainwright.local.scheduling.placement import Placements, place
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
#: Events that come within this time are one burst.
COALESCE = 0.002
#: So long a pod waits before its reason is written; most have their node by then.
PATIENCE = 0.2
#: Time for each reason that is written, besides: at most 200 a second.
_PACE = 0.005
#: So many pods are bound in one go; agents may begin with them before the next.
_BATCH = 64
#: A cluster that does not answer is asked again after so long.
_AGAIN = 1.0
#: Seconds between two looks at the leases of other runs, while a pod waits for a device.
_DEVICE_PERIOD = 0.5
#: Another run needs some milliseconds to take its leases: how often, and after how many seconds, we ask again.
_MUTEX_TRIES = 50
_MUTEX_PAUSE = 0.01


class Bind(Protocol):
    """How pods are put on nodes: `Store.bind`."""

    def __call__(self, key: Key, node: str, *, uid: str = "", annotations: Mapping[str, str] | None = None) -> Body:
        """Put a pod on a node, with these annotations; ConflictError if it is on another one or on its way out."""
        ...


class Scheduler:
    """The loop around `place`."""

    def __init__(self, cluster: Cluster, bind: Bind, clock: Clock, devices: DevicePool | None = None) -> None:
        self.board = SchedulerCache()
        self._cluster, self._bind, self._clock = cluster, bind, clock
        self._devices = devices if devices is not None and devices.resources else None
        self._changed, self._untold = asyncio.Event(), asyncio.Event()
        self._decided = -1
        self._waiting: tuple[tuple[PodInfo, str], ...] = ()
        #: How long the last pass took, in seconds.
        self._took = 0.0
        #: Another run was quicker to lease a device: to be tried again.
        self._refused = False
        #: By UID: the reason that the pod has in its status.
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Until cancelled."""
        board = self.board
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(NODES, board.nodes_listed, board.node, board.node_gone))
            group.create_task(self._follow(POD_GROUPS, board.groups_listed, board.group, board.group_gone))
            group.create_task(self._follow(PODS, board.pods_listed, board.pod, board.pod_gone))
            group.create_task(self._decide())
            group.create_task(self._tell())
            if self._devices is not None:
                group.create_task(self._look_after(self._devices))

    # -- watching -------------------------------------------------------------------------------------------------

    async def _follow(
        self,
        resource: Resource,
        listed: Callable[[Iterable[Body]], None],
        seen: Callable[[Body], None],
        gone: Callable[[Body], None],
    ) -> None:
        """Tell the board what there is of a resource, and what happens to it."""

        def all_listed(page: ListPage) -> None:
            listed(page.items)
            self._look()

        def changed(changes: tuple[WatchEvent, ...]) -> None:
            _apply(changes, seen, gone)
            self._look()

        async def rest(error: ApiError | None) -> None:
            if error is not None and not isinstance(error, GoneError):
                _LOG.warning("watch interrupted resource=%s error=%s", resource.id, error)
                await asyncio.sleep(_AGAIN)

        await ListWatch(self._cluster, resource.whole()).run(all_listed, changed, rest)

    def _look(self) -> None:
        """Wake the decision if there is anything to decide."""
        if self.board.news != self._decided:
            self._changed.set()

    # -- deciding -------------------------------------------------------------------------------------------------

    async def _decide(self) -> None:
        took = 0.0
        while True:
            await self._changed.wait()
            # The more there is to go through, the larger the bursts: a quarter of the time is enough for deciding.
            await asyncio.sleep(max(COALESCE, 3 * took))
            self._changed.clear()
            decisions, granted = await self._decisions()
            self._waiting = decisions.waiting
            if any(self._told.get(claim.uid) != reason for claim, reason in self._waiting):
                self._untold.set()
            took = self._took
            for count, (claim, node) in enumerate(decisions.placed, 1):
                self._place(claim, node, granted.get(claim.uid))
                if count % _BATCH == 0:
                    await asyncio.sleep(0)

    async def _decisions(self) -> tuple[Placements, dict[str, Granted]]:
        """Where pods go, and the devices that were leased for them."""
        devices = self._devices
        if devices is None or not self._asks_devices():
            return self._placed(None), {}
        for _ in range(_MUTEX_TRIES):
            with devices.alone() as free:
                if free:
                    return self._leased(devices)
            await asyncio.sleep(_MUTEX_PAUSE)
        return self._leased(devices)  # its holder was stopped: the lock of each device still decides

    def _placed(self, leased: Leased | None) -> Placements:
        board, loop = self.board, asyncio.get_running_loop()
        began = loop.time()
        self._decided = board.news
        decisions = place(board.pending.values(), board.offers.values(), board.tally, board.groups, leased)
        self._took = loop.time() - began
        return decisions

    def _leased(self, devices: DevicePool) -> tuple[Placements, dict[str, Granted]]:
        """Lease what the pods need that have a node now: for all members of a gang, or for none of them."""
        devices.keep(self._lives, asyncio.get_running_loop().time())
        decisions = self._placed(devices.elsewhere())
        together: dict[object, list[tuple[PodInfo, str]]] = {}
        for claim, node in decisions.placed:
            together.setdefault(claim.group or claim.uid, []).append((claim, node))
        placed: list[tuple[PodInfo, str]] = []
        granted: dict[str, Granted] = {}
        for members in together.values():
            found = devices.grant([one for claim, node in members if (one := self._request(claim, node)) is not None])
            if found is None:
                self._refused = True
                continue
            placed += members
            granted |= found
        return replace(decisions, placed=tuple(placed)), granted

    def _request(self, claim: PodInfo, node: str) -> DeviceRequest | None:
        wanted = counts(claim.asks, self._devices.resources) if self._devices is not None else {}
        seat = self.board.seat(claim.key)
        return DeviceRequest(claim.uid, node, seat.body, wanted) if wanted and seat is not None else None

    def _asks_devices(self) -> bool:
        names = self._devices.resources if self._devices is not None else frozenset()
        return any(name in names and amount for claim in self.board.pending.values() for name, amount in claim.asks)

    def _lives(self, pod: Body) -> bool:
        """Whether a pod may use its devices: it is still there, and has not ended."""
        meta = pod["metadata"]
        seat = self.board.seat(Key(meta.get("namespace", ""), meta["name"]))
        return seat is not None and seat.claim.uid == meta["uid"] and not finished(seat.body)

    async def _look_after(self, devices: DevicePool) -> None:
        """Give back leases that are not needed any more, and see what other runs have given back."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_DEVICE_PERIOD)
            if devices.active:
                devices.keep(self._lives, loop.time())
            await self._lease_for_bound(devices)
            if not self._asks_devices():
                continue
            known = devices.changes
            with devices.alone():
                pass
            if devices.changes != known or self._refused:
                self._refused = False
                self._changed.set()

    async def _lease_for_bound(self, devices: DevicePool) -> None:
        """Lease devices for pods that name their node themselves: their agent waits for the annotation."""
        for seat in self.board.bound():
            claim, wanted = seat.claim, counts(seat.claim.asks, devices.resources)
            if not wanted or devices.granted(claim.uid):
                continue
            with devices.alone():
                found = devices.grant([DeviceRequest(claim.uid, seat.node, seat.body, wanted)])
            if found is None:
                continue
            try:
                change = {"metadata": {"annotations": _annotations(found[claim.uid])}}
                await self._cluster.patch(PODS.whole(), claim.key, change, uid=claim.uid)
            except ApiError as error:
                _LOG.info("devices not written pod=%s error=%s", claim.key, error)
                devices.release(claim.uid, asyncio.get_running_loop().time())

    def _place(self, claim: PodInfo, node: str, granted: Granted | None) -> None:
        """The answer enters the picture at once; a pod that has become another meanwhile comes by the watch."""
        annotations = _annotations(granted) if granted else None
        try:
            self.board.pod(self._bind(claim.key, node, uid=claim.uid, annotations=annotations))
        except (ConflictError, NotFoundError) as error:
            _LOG.info("pod not bound pod=%s node=%s error=%s", claim.key, node, error)

    # -- telling --------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        """Write their reasons to those who still wait."""
        while True:
            await self._untold.wait()
            await asyncio.sleep(PATIENCE)
            self._untold.clear()
            waiting = self._waiting
            self._told = {claim.uid: self._told[claim.uid] for claim, _ in waiting if claim.uid in self._told}
            news = [(claim, why) for claim, why in waiting if self._told.get(claim.uid) != why]
            for claim, why in news:
                await self._explain(claim, why)
            await asyncio.sleep(len(news) * _PACE)

    async def _explain(self, claim: PodInfo, why: str) -> None:
        seat = self.board.seat(claim.key)
        if seat is None or claim.key not in self.board.pending or seat.claim.uid != claim.uid:
            return
        self._told[claim.uid] = why
        conditions = unscheduled((seat.body.get("status") or {}).get("conditions") or (), why, self._clock)
        body = {"status": {"conditions": conditions}}
        try:
            await self._cluster.patch(
                PODS.whole(), claim.key, body, uid=claim.uid, version=str(seat.version), status=True
            )
        except ApiError as error:
            # It has changed, so another pass follows, and with it another try.
            _LOG.info("reason not written pod=%s error=%s", claim.key, error)
            self._told.pop(claim.uid, None)


def unscheduled(conditions: Iterable[Body], why: str, clock: Clock) -> list[Body]:
    """A pod's conditions with the one that says why it has no node; the time is that of the first such word."""
    before = [one for one in conditions if one.get("type") == "PodScheduled" and one.get("status") == "False"]
    since = before[0].get("lastTransitionTime") if before else None
    told = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": why,
        "lastTransitionTime": since or rfc3339(clock.now()),
    }
    return [*(one for one in conditions if one.get("type") != "PodScheduled"), told]


def _annotations(granted: Granted) -> dict[str, str]:
    return {DEVICES: msgspec.json.encode(granted).decode()}


def _apply(changes: tuple[WatchEvent, ...], seen: Callable[[Body], None], gone: Callable[[Body], None]) -> None:
    for change in changes:
        if change.what is WatchEventType.DELETED:
            gone(change.item)
        elif change.what is not WatchEventType.BOOKMARK:
            seen(change.item)


_WHOLE = NODES.whole()


async def node_lost(cluster: Cluster, name: str, clock: Clock, why: str = "the node agent went away") -> None:
    """Nothing is known of the node any more. One that is not there, or not ready already, is left as it is."""
    try:
        node = await cluster.get(_WHOLE, Key("", name))
    except NotFoundError:
        return
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = ready_condition(node)
    if ready.get("status") in ("Unknown", "False"):
        return
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": why}
    unknown |= {key: ready[key] for key in ("lastHeartbeatTime",) if key in ready}
    unknown["lastTransitionTime"] = rfc3339(clock.now())
    others = [one for one in conditions if one.get("type") != "Ready"]
    await cluster.patch(_WHOLE, Key("", name), {"status": {"conditions": [*others, unknown]}}, status=True)
