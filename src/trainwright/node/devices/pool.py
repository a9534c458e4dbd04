# SPDX-License-Identifier: Apache-2.0
"""The devices of one engine: which pod has which, and the leases that keep other runs and users off them.

The scheduler grants devices before it binds pods, all of a gang or none. A lease is handed over to the supervisor of
the node first, which holds it for as long as a container may use the device (see `supervisor.leases`).

A lease outlasts its pod for a moment, so that the pod that replaces it gets the same devices. The leases of a lost node
are taken anew: that succeeds only once every process that was left on it has died.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Literal

from msgspec import Struct

from trainwright.jsonlines import encode
from trainwright.model.job import Body
from trainwright.model.meta import INDEX, JOB_UID, ROLE
from trainwright.model.units import rfc3339
from trainwright.node.devices.inventory import DeviceSet, LeasedDevices
from trainwright.node.devices.leases import DeviceLease, LeaseFolder, LeaseHolder, own_description
from trainwright.node.supervisor.protocol import LeaseMessage
from trainwright.runtime.ports import Clock

LINGER = 5.0

#: A resource name and the id of a device.
Device = tuple[str, str]
#: By resource name: the ids of the devices that a pod has.
Granted = dict[str, tuple[str, ...]]


class DeviceRequest(Struct, frozen=True):
    """A pod that is about to be bound to a node, and how many devices it needs there, by resource name."""

    uid: str
    node: str
    pod: Body
    counts: dict[str, int]

    @property
    def replica(self) -> tuple[str, ...]:
        """The same for a pod and for the one that replaces it."""
        meta = self.pod["metadata"]
        labels = meta.get("labels") or {}
        return tuple(labels.get(name, "") for name in (JOB_UID, ROLE, INDEX)) if JOB_UID in labels else (self.uid,)


class LeaseChannel:
    """The engine's end of the socket over which a supervisor is handed the locks of its node's devices."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()

    def handed(self) -> None:
        """The supervisor has its end; ours must be the only other one."""
        self.theirs.close()

    def hold(self, lease: DeviceLease) -> None:
        """Have the supervisor hold it too. One that has died needs no lease."""
        with suppress(OSError):
            socket.send_fds(self._ours, [_message("hold", lease)], [lease.fd])

    def drop(self, lease: DeviceLease) -> None:
        """Have the supervisor let go of it."""
        with suppress(OSError):
            self._ours.sendall(_message("drop", lease))

    def close(self) -> None:
        """Hang up; the supervisor keeps what it holds until it ends."""
        self._ours.close()
        self.theirs.close()


class DevicePool:
    """All devices of an engine's nodes."""

    def __init__(
        self, nodes: Mapping[str, Mapping[str, DeviceSet]], run: str, clock: Clock, folder: LeaseFolder | None = None
    ) -> None:
        self._where = {
            (resource, device): node
            for node, sets in nodes.items()
            for resource, found in sets.items()
            for device in found.ids
        }
        #: The names of all resources that nodes have devices of.
        self.resources = frozenset(resource for resource, _ in self._where)
        self.folder = folder or LeaseFolder()
        self._run, self._clock = run, clock
        self._channels: dict[str, LeaseChannel] = {}
        self._leases: dict[Device, DeviceLease] = {}
        self._pods: dict[str, tuple[DeviceRequest, Granted]] = {}
        #: By the monotonic clock: when a lease that no pod uses is given back.
        self._due: dict[Device, float] = {}
        #: What a replica had last.
        self._former: dict[tuple[str, ...], Granted] = {}
        self._elsewhere: dict[Device, LeaseHolder] = {}
        #: Counts how often others took or gave back a device.
        self.changes = 0
        #: Seconds that a device stays leased after its pod has ended.
        self.linger = LINGER
        #: Called when this engine has leased devices.
        self.leased: Callable[[], None] = lambda: None

    # -- nodes ----------------------------------------------------------------------------------------------------

    def channel(self, node: str) -> LeaseChannel:
        """A channel for a new supervisor of that node, which is handed the leases of the pods that are there."""
        old = self._channels.pop(node, None)
        if old is not None:
            old.close()
        self._channels[node] = channel = LeaseChannel()
        for device in self._used():
            if self._where[device] == node and device in self._leases:
                channel.hold(self._leases[device])
        return channel

    def node_lost(self, node: str) -> None:
        """Let go of the node's devices. Processes that are left there hold them until they have died.

        A pod that a new agent of the node starts again waits until `keep` has leased its devices anew.
        """
        for device in [device for device in self._leases if self._where[device] == node]:
            self._leases.pop(device).close()
            self._due.pop(device, None)

    def close(self) -> None:
        """Give everything back."""
        for lease in self._leases.values():
            lease.close()
        for channel in self._channels.values():
            channel.close()
        self._leases.clear()
        self._due.clear()
        self._channels.clear()

    # -- pods -----------------------------------------------------------------------------------------------------

    def grant(self, requests: Sequence[DeviceRequest]) -> dict[str, Granted] | None:
        """Devices for all of these pods, by UID, leased; or None, and nothing is leased that was not before."""
        chosen: dict[str, Granted] = {}
        taken: set[Device] = set()
        before = {one.uid: self._pods.pop(one.uid) for one in requests if one.uid in self._pods}
        with ExitStack() as undo:
            fresh: list[DeviceLease] = []
            for request in requests:
                granted = self._choose(request, taken, fresh, undo)
                if granted is None:
                    self._pods |= before
                    return None
                chosen[request.uid] = granted
            undo.pop_all()
        self._leases.update({(lease.resource, lease.device): lease for lease in fresh})
        for request in requests:
            self._settle(request, chosen[request.uid])
        if fresh:
            self.leased()
        return chosen

    def _choose(
        self, request: DeviceRequest, taken: set[Device], fresh: list[DeviceLease], undo: ExitStack
    ) -> Granted | None:
        granted: Granted = {}
        for resource, count in request.counts.items():
            ids: list[str] = []
            for device in self._candidates(request, resource, taken):
                if len(ids) == count:
                    break
                if device not in self._leases:
                    lease = self.folder.take(*device)
                    if lease is None:
                        continue
                    undo.callback(lease.close)
                    fresh.append(lease)
                taken.add(device)
                ids.append(device[1])
            if len(ids) < count:
                return None
            granted[resource] = tuple(sorted(ids, key=_order))
        return granted

    def _candidates(self, request: DeviceRequest, resource: str, taken: set[Device]) -> list[Device]:
        """Free devices of the node: first those that the replica had, then those that are leased already."""
        former = self._former.get(request.replica, {}).get(resource, ())
        used = self._used() | taken
        free = [
            device
            for device, node in self._where.items()
            if node == request.node and device[0] == resource and device not in used
        ]
        return sorted(free, key=lambda one: (one[1] not in former, one not in self._leases))

    def _used(self) -> set[Device]:
        return {device for _, granted in self._pods.values() for device in _devices(granted)}

    def _settle(self, request: DeviceRequest, granted: Granted) -> None:
        """The pod has its devices: the supervisor holds the locks too, and others are told by whom."""
        self._pods[request.uid] = request, granted
        self._former[request.replica] = granted
        for device in _devices(granted):
            self._due.pop(device, None)
            self._hand_over(request, self._leases[device])

    def _hand_over(self, request: DeviceRequest, lease: DeviceLease) -> None:
        meta = request.pod["metadata"]
        owner = next((one["name"] for one in meta.get("ownerReferences") or () if one.get("controller")), "")
        job = f"{meta.get('namespace', '')}/{owner}" if owner else ""
        lease.since = lease.since or rfc3339(self._clock.now())
        lease.describe(own_description(self._run, job=job, pod=meta["name"], since=lease.since))
        channel = self._channels.get(request.node)
        if channel is not None:
            channel.hold(lease)

    def release(self, uid: str, now: float) -> None:
        """Take back the devices of a pod that is over; they stay leased for a moment."""
        _, granted = self._pods.pop(uid, (None, {}))
        self._due.update({device: now + self.linger for device in _devices(granted) if device in self._leases})

    def expire(self, now: float) -> None:
        """Give back leases that no pod has used for a moment."""
        due = [device for device, when in self._due.items() if when <= now]
        for device in due:
            self._give_back(device)
        if due:  # others may have them now, so nobody has them back
            kept = {
                name: had for name, had in self._former.items() if not self._leases.keys().isdisjoint(_devices(had))
            }
            self._former = kept

    def keep(self, holds: Callable[[Body], bool], now: float) -> None:
        """Release the devices of pods that are over, and lease those anew that were lost with their node."""
        for uid, (request, granted) in [*self._pods.items()]:
            if holds(request.pod):
                self._renew(request, granted)
            else:
                self.release(uid, now)
        self.expire(now)

    def _give_back(self, device: Device) -> None:
        del self._due[device]
        lease, channel = self._leases.pop(device), self._channels.get(self._where[device])
        if channel is not None:
            channel.drop(lease)
        lease.close()

    def _renew(self, request: DeviceRequest, granted: Granted) -> None:
        for device in _devices(granted):
            if device not in self._leases and (lease := self.folder.take(*device)) is not None:
                self._leases[device] = lease
                self._hand_over(request, lease)

    @property
    def active(self) -> bool:
        """Whether any pod has devices, or had some until a moment ago."""
        return bool(self._leases or self._pods)

    def granted(self, uid: str) -> bool:
        """Whether a pod was granted devices."""
        return uid in self._pods

    def held(self) -> list[Device]:
        """The devices that this engine has leased."""
        return [*self._leases]

    # -- other runs -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """See which devices others hold."""
        seen = {
            device: holder
            for device in self._where
            if device not in self._leases and (holder := self.folder.holder(*device)) is not None
        }
        self.changes += seen != self._elsewhere
        self._elsewhere = seen

    def elsewhere(self) -> dict[str, dict[str, LeasedDevices]]:
        """By node and resource: the devices that others held when we last looked, and who they are."""
        found: dict[str, dict[str, LeasedDevices]] = {}
        used = self._used()
        for (resource, device), holder in self._elsewhere.items():
            if (resource, device) in self._leases or (resource, device) in used:
                continue
            mine = holder.pid == os.getpid() and holder.run == self._run
            told = "processes of this run that are being ended" if mine else str(holder)
            here = found.setdefault(self._where[resource, device], {})
            before = here.get(resource, LeasedDevices())
            here[resource] = LeasedDevices((*before.devices, (device, told)))
        return found

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep other runs from taking leases meanwhile, and look what they hold. False: another one is at it."""
        with self.folder.mutex() as free:
            if free:
                self.look()
            yield free


def _devices(granted: Granted) -> list[Device]:
    return [(resource, device) for resource, ids in granted.items() for device in ids]


def _order(device: str) -> tuple[int, str]:
    return int(device) if device.isdecimal() else -1, device


def _message(what: Literal["hold", "drop"], lease: DeviceLease) -> bytes:
    message: LeaseMessage = {"do": what, "device": lease_name(lease.resource, lease.device)}
    return encode(message)


def lease_name(resource: str, device: str) -> str:
    """What agent and supervisor call a device."""
    return f"{resource}/{device}"


def counts(asks: Iterable[tuple[str, int]], resources: frozenset[str]) -> dict[str, int]:
    """How many devices a pod asks for, from amounts in thousandths."""
    return {name: amount // 1000 for name, amount in asks if amount and name in resources}
