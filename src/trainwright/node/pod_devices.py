# SPDX-License-Identifier: Apache-2.0
"""The devices of a node: which pod has which, and how its containers are told.

The embedded engine's scheduler has chosen a pod's devices when it bound the pod (the annotation `DEVICES`), and has
leased them. Where another scheduler binds pods, the agent chooses, and leases the devices when a pod starts.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from trainwright.model.job import Body
from trainwright.model.meta import DEVICES
from trainwright.model.units import quantity
from trainwright.node.devices.inventory import DeviceSet, holders
from trainwright.node.devices.pool import DevicePool, DeviceRequest, Granted, lease_name


def asked(container: Body, resource: str) -> int:
    """How many devices a container is limited to; that is also its request."""
    resources = container.get("resources")
    if not resources:
        return 0
    limit = (resources.get("limits") or {}).get(resource) or (resources.get("requests") or {}).get(resource)
    return int(quantity(limit) or 0) if limit else 0


def needed(spec: Body, resource: str) -> int:
    """How many a pod needs at once: its init containers run before the others and use theirs."""
    inits = max((asked(container, resource) for container in spec.get("initContainers") or ()), default=0)
    return max(inits, sum(asked(container, resource) for container in spec["containers"]))


class NodeDevices:
    """What is free and what is taken, by pod.

    `pool` leases what this agent chooses. `scheduled`: the engine's scheduler chooses, and nothing is given without it.
    """

    def __init__(
        self,
        devices: Mapping[str, DeviceSet],
        node: str = "",
        pool: DevicePool | None = None,
        *,
        scheduled: bool = False,
    ) -> None:
        self._scheduled = scheduled
        self.all = {resource: found for resource, found in devices.items() if found.ids}
        self._node, self._pool = node, pool
        self._held: dict[str, Granted] = {}
        self._freed: set[asyncio.Future[None]] = set()

    def take(self, uid: str, pod: Body) -> Granted | None:
        """The devices of a pod, the same ones if it has them already; None while some of them are not free."""
        if uid in self._held:
            return self._held[uid]
        given = self._granted(uid, pod) if self._pool is not None else _chosen(pod)
        if given is None:
            return None
        taken: Granted = {}
        for resource, found in self.all.items():
            count = needed(pod["spec"], resource)
            used = {one for held in self._held.values() for one in held.get(resource, ())}
            wanted = given.get(resource) or (() if self._scheduled else found.ids)
            free = tuple(one for one in wanted if one in found.ids and one not in used)
            if len(free) < count:
                self.free(uid)
                return None
            if count:
                taken[resource] = free[:count]
        if taken:
            self._held[uid] = taken
        return taken

    def _granted(self, uid: str, pod: Body) -> Granted | None:
        """What can be leased now, for a pod that another scheduler has bound."""
        assert self._pool is not None  # noqa: S101 - for the type checker
        wanted = {name: count for name in self._pool.resources if (count := needed(pod["spec"], name))}
        if not wanted:
            return {}
        with self._pool.alone():
            found = self._pool.grant([DeviceRequest(uid, self._node, pod, wanted)])
        return None if found is None else found[uid]

    def leases(self, pod: Body, held: Granted) -> list[str]:
        """Those of a pod's devices that are leased, as the supervisor knows them."""
        leased = self._pool.resources if self._pool is not None else _chosen(pod)
        return [lease_name(resource, one) for resource, ids in held.items() if resource in leased for one in ids]

    def missing(self, spec: Body) -> str:
        """What a pod asks for of devices, in words: `2 of 4 nvidia.com/gpu; 0-3 held by alice (…) since …`."""
        wanted = {resource: needed(spec, resource) for resource in self.all}
        elsewhere = self._pool.elsewhere().get(self._node, {}) if self._pool is not None else {}
        return ", ".join(
            f"{count} of {len(self.all[name].ids)} {name}{holders([elsewhere[name]]) if name in elsewhere else ''}"
            for name, count in wanted.items()
            if count
        )

    def free(self, uid: str) -> None:
        """Give back what a pod has, if it has any."""
        if self._pool is not None and self._pool.granted(uid):
            loop, pool = asyncio.get_running_loop(), self._pool
            pool.release(uid, loop.time())
            loop.call_later(pool.linger, lambda: pool.expire(loop.time()))
        if self._held.pop(uid, None):
            for future in self._freed:
                if not future.done():
                    future.set_result(None)
            self._freed.clear()

    async def change(self, seconds: float) -> None:
        """Until a pod gives devices back, but not longer than that."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._freed.add(future)
        try:
            await asyncio.wait({future}, timeout=seconds)
        finally:
            self._freed.discard(future)

    def variables(self, spec: Body, index: int, held: Granted, *, init: bool) -> dict[str, str]:
        """What tells a container its devices; one that has none is told so, lest it takes them all."""
        return {
            name: ",".join(own(spec, index, held, resource, init=init))
            for resource, found in self.all.items()
            for name in found.variables
        }


def _chosen(pod: Body) -> Granted:
    """The devices that the engine's scheduler has leased for the pod."""
    text = (pod["metadata"].get("annotations") or {}).get(DEVICES)
    try:
        return msgspec.json.decode(text, type=Granted) if text else {}
    except msgspec.DecodeError:
        return {}


def own(spec: Body, index: int, held: Granted, resource: str, *, init: bool) -> tuple[str, ...]:
    """The devices of one container, of those that its pod has."""
    containers = spec["initContainers"] if init else spec["containers"]
    before = 0 if init else sum(asked(container, resource) for container in containers[:index])
    return held.get(resource, ())[before : before + asked(containers[index], resource)]
