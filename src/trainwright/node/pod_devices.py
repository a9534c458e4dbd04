# SPDX-License-Identifier: Apache-2.0
"""The devices of a node: which pod has which device, and the variables that tell containers their devices.

The scheduler of the embedded engine chooses and leases the devices of a pod when it binds the pod (annotation
`DEVICES`). If another scheduler binds the pod, the agent chooses and leases the devices when the pod starts.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from trainwright.model.job import Body
from trainwright.model.meta import DEVICES
from trainwright.model.units import quantity
from trainwright.node.devices.inventory import DeviceSet, holders
from trainwright.node.devices.pool import DevicePool, DeviceRequest, Granted, lease_name


def device_count(container: Body, resource: str) -> int:
    """The number of devices of a container: its limit, which is also its request."""
    resources = container.get("resources") or {}
    limit = (resources.get("limits") or {}).get(resource) or (resources.get("requests") or {}).get(resource)
    return int(quantity(limit) or 0) if limit else 0


def pod_device_count(spec: Body, resource: str) -> int:
    """The number of devices that a pod needs at the same time. Main containers reuse devices of init containers."""
    inits = max((device_count(container, resource) for container in spec.get("initContainers") or ()), default=0)
    return max(inits, sum(device_count(container, resource) for container in spec["containers"]))


class NodeDevices:
    """The devices of a node, and which pod has which device.

    `pool` leases the devices that the agent chooses. If `scheduled`, only the engine's scheduler chooses.
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
        self.by_resource = {resource: found for resource, found in devices.items() if found.ids}
        self._node, self._pool = node, pool
        self._held: dict[str, Granted] = {}
        self._freed = asyncio.Event()

    def take(self, uid: str, pod: Body) -> Granted | None:
        """Take the devices of a pod, or return the devices that it has already; None if some of them are not free."""
        if uid in self._held:
            return self._held[uid]
        chosen = self._lease(uid, pod) if self._pool is not None else scheduled_devices(pod)
        if chosen is None:
            return None
        taken: Granted = {}
        for resource, found in self.by_resource.items():
            count = pod_device_count(pod["spec"], resource)
            used = {one for held in self._held.values() for one in held.get(resource, ())}
            candidates = chosen.get(resource) or (() if self._scheduled else found.ids)
            free = tuple(one for one in candidates if one in found.ids and one not in used)
            if len(free) < count:
                self.free(uid)
                return None
            if count:
                taken[resource] = free[:count]
        if taken:
            self._held[uid] = taken
        return taken

    def _lease(self, uid: str, pod: Body) -> Granted | None:
        """Lease devices for a pod that another scheduler has bound; None if too few devices are free."""
        assert self._pool is not None  # noqa: S101 - for the type checker
        wanted = {name: count for name in self._pool.resources if (count := pod_device_count(pod["spec"], name))}
        if not wanted:
            return {}
        with self._pool.alone():
            found = self._pool.grant([DeviceRequest(uid, self._node, pod, wanted)])
        return None if found is None else found[uid]

    def leases(self, pod: Body, held: Granted) -> list[str]:
        """The names of a pod's leased devices, as in messages to the supervisor."""
        leased = self._pool.resources if self._pool is not None else scheduled_devices(pod)
        return [lease_name(resource, one) for resource, ids in held.items() if resource in leased for one in ids]

    def describe_request(self, spec: Body) -> str:
        """The devices that a pod asks for, as text, such as `2 of 4 nvidia.com/gpu; 0-3 held by alice (…) since …`."""
        wanted = {resource: pod_device_count(spec, resource) for resource in self.by_resource}
        elsewhere = self._pool.elsewhere().get(self._node, {}) if self._pool is not None else {}
        held = {name: holders([found]) for name, found in elsewhere.items()}
        return ", ".join(
            f"{count} of {len(self.by_resource[name].ids)} {name}{held.get(name, '')}"
            for name, count in wanted.items()
            if count
        )

    def free(self, uid: str) -> None:
        """Return the devices of a pod to the node, if the pod has devices."""
        if self._pool is not None and self._pool.granted(uid):
            loop, pool = asyncio.get_running_loop(), self._pool
            pool.release(uid, loop.time())
            loop.call_later(pool.linger, lambda: pool.expire(loop.time()))
        if self._held.pop(uid, None):
            self._freed.set()
            self._freed.clear()

    async def wait_freed(self, seconds: float) -> None:
        """Wait until a pod returns devices, at most `seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._freed.wait(), seconds)

    def variables(self, spec: Body, index: int, held: Granted, *, init: bool) -> dict[str, str]:
        """The variables that list a container's devices; "" if it has none, since an unset variable means all."""
        containers = spec["initContainers"] if init else spec["containers"]
        variables: dict[str, str] = {}
        for resource, found in self.by_resource.items():
            before = 0 if init else sum(device_count(container, resource) for container in containers[:index])
            own = held.get(resource, ())[before : before + device_count(containers[index], resource)]
            variables |= dict.fromkeys(found.variables, ",".join(own))
        return variables


def scheduled_devices(pod: Body) -> Granted:
    """The devices that the scheduler of the engine has leased for the pod."""
    text = (pod["metadata"].get("annotations") or {}).get(DEVICES)
    try:
        return msgspec.json.decode(text, type=Granted) if text else {}
    except msgspec.DecodeError:
        return {}
