# SPDX-License-Identifier: Apache-2.0
"""The devices of one engine: which pod has which device, and the leases that exclude other runs and users.

The scheduler grants devices before it binds pods: to all pods of a gang, or to none of them. A grant also sends
each lease to the supervisor of the node. The supervisor holds the lease too, even if the engine is killed.

A lease outlasts its pod by some seconds, so that the replacement pod gets the same devices. After a node is lost, the
pool leases the devices of its pods again. This succeeds only when every old process with the device has ended.
"""

import array
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from trainwright.jsonlines import LineSplitter, decode, encode
from trainwright.model.job import Body
from trainwright.model.meta import INDEX, JOB_UID, ROLE
from trainwright.model.units import rfc3339
from trainwright.node.devices.inventory import DeviceSet, LeasedDevices
from trainwright.node.devices.leases import DeviceLease, LeaseFolder, LeaseHolder, own_description
from trainwright.node.supervisor.protocol import LeaseMessage
from trainwright.runtime.ports import Clock

_MAX_LINE_BYTES, _MAX_DESCRIPTORS = 1 << 16, 16
LINGER = 5.0  # seconds that a device stays leased after its pod has ended

_RECEIVE = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
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
        """The identity of the replica: equal for a pod and its replacement."""
        meta = self.pod["metadata"]
        labels = meta.get("labels") or {}
        return tuple(labels.get(name, "") for name in (JOB_UID, ROLE, INDEX)) if JOB_UID in labels else (self.uid,)


class LeaseChannel:
    """The engine's end of the socket through which a supervisor receives the locks of its node's devices."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()

    def handed(self) -> None:
        """Close our copy of the supervisor's end, after the supervisor has inherited it."""
        self.theirs.close()

    def hold(self, lease: DeviceLease) -> None:
        """Let the supervisor hold a lease too. A supervisor that has died needs no lease."""
        with suppress(OSError):
            message: LeaseMessage = {"do": "hold", "device": lease_name(lease.resource, lease.device)}
            socket.send_fds(self._ours, [encode(message)], [lease.fd])

    def drop(self, lease: DeviceLease) -> None:
        """Let the supervisor release a lease."""
        with suppress(OSError):
            message: LeaseMessage = {"do": "drop", "device": lease_name(lease.resource, lease.device)}
            self._ours.sendall(encode(message))

    def held(self) -> list[tuple[str, int]]:
        """The leases that a living supervisor holds, by name, and the descriptors of their locks.

        The supervisor sends them when it gets this channel, before it answers the agent.
        """
        lines = LineSplitter(_MAX_LINE_BYTES)
        names: list[str] = []
        fds: list[int] = []
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
        while True:
            try:
                data, parts, _, _ = self._ours.recvmsg(_MAX_LINE_BYTES, space, _RECEIVE)
            except OSError:  # nothing more has arrived
                break
            for _, _, body in parts:
                fds += array.array("i", body)
            names += [str(decode(line)["device"]) for line in lines.feed(data)]
            if not data:
                break
        return list(zip(names, fds, strict=True))

    def close(self) -> None:
        """Disconnect. The supervisor keeps its leases until it ends."""
        self._ours.close()
        self.theirs.close()


class DevicePool:
    """All devices of an engine's nodes."""

    def __init__(
        self, nodes: Mapping[str, Mapping[str, DeviceSet]], run: str, clock: Clock, folder: LeaseFolder | None = None
    ) -> None:
        self._node_of = {
            (resource, device): node
            for node, sets in nodes.items()
            for resource, found in sets.items()
            for device in found.ids
        }
        #: The names of all resources with devices on any node.
        self.resources = frozenset(resource for resource, _ in self._node_of)
        self.folder = folder or LeaseFolder()
        self._run, self._clock = run, clock
        self._channels: dict[str, LeaseChannel] = {}
        #: The processes of supervisors that outlive this engine, by node.
        self._supervisors: dict[str, int] = {}
        self._leases: dict[Device, DeviceLease] = {}
        self._pods: dict[str, tuple[DeviceRequest, Granted]] = {}
        #: For each lease that no pod uses: the time at which the lease ends, on the monotonic clock.
        self._due: dict[Device, float] = {}
        #: The last devices of each replica.
        self._former: dict[tuple[str, ...], Granted] = {}
        self._held_by_others: dict[Device, LeaseHolder] = {}
        #: How many calls of `look` found that other runs had taken or released a device.
        self.changes = 0
        #: Seconds that a device stays leased after its pod has ended.
        self.linger = LINGER
        #: Called when this engine has leased devices.
        self.leased: Callable[[], None] = lambda: None

    # -- nodes ----------------------------------------------------------------------------------------------------

    def channel(self, node: str) -> LeaseChannel:
        """Make a channel for a new supervisor of that node, and send the leases of the node's pods through it."""
        old = self._channels.pop(node, None)
        if old is not None:
            old.close()
        self._channels[node] = channel = LeaseChannel()
        for device in self._used():
            if self._node_of[device] == node and device in self._leases:
                channel.hold(self._leases[device])
        return channel

    def claim(self, pods: Iterable[tuple[Body, Granted]]) -> None:
        """Learn from the store which devices an earlier engine has granted to which pods."""
        for pod, granted in pods:
            known = {name: ids for name, ids in granted.items() if all((name, one) in self._node_of for one in ids)}
            node = (pod.get("spec") or {}).get("nodeName") or ""
            request = DeviceRequest(pod["metadata"]["uid"], node, pod, {name: len(ids) for name, ids in known.items()})
            if known:
                self._pods[request.uid] = request, known
                self._former[request.replica] = known

    def take_over(self, node: str, supervisor: int, now: float) -> None:
        """Share the leases that a supervisor which outlives engines holds, after it has got the node's channel.

        Descriptions of the node's leases name the supervisor's process, since it stays when the engine ends.
        """
        self._supervisors[node] = supervisor
        by_name = {lease_name(*device): device for device in self._node_of}
        users = {device: request for request, granted in self._pods.values() for device in _devices(granted)}
        for name, fd in self._channels[node].held():
            device = by_name.get(name)
            if device is None or device in self._leases:
                os.close(fd)
                continue
            before = self.folder.holder(*device)
            self._leases[device] = lease = DeviceLease(*device, fd)
            lease.since = before.since if before is not None else ""
            if device in users:
                self._hand_over(users[device], lease)
            else:
                self._due[device] = now + self.linger

    def node_lost(self, node: str) -> None:
        """Release the devices of a node. A process that still runs there holds its devices until it ends.

        A new agent of the node may start the same pod again. The pod then waits until `keep` has leased its devices.
        """
        for device in [device for device in self._leases if self._node_of[device] == node]:
            self._leases.pop(device).close()
            self._due.pop(device, None)

    def close(self) -> None:
        """Release all leases."""
        for lease in self._leases.values():
            lease.close()
        for channel in self._channels.values():
            channel.close()
        self._leases.clear()
        self._due.clear()
        self._channels.clear()

    # -- pods -----------------------------------------------------------------------------------------------------

    def grant(self, requests: Sequence[DeviceRequest]) -> dict[str, Granted] | None:
        """Lease devices for all of these pods; return them by pod UID. If too few are free: None, and no new lease."""
        chosen: dict[str, Granted] = {}
        taken: set[Device] = set()
        before = {one.uid: self._pods.pop(one.uid) for one in requests if one.uid in self._pods}
        with ExitStack() as undo:
            fresh: list[DeviceLease] = []
            for request in requests:
                found = self._choose(request, taken, fresh, undo)
                if found is None:
                    self._pods |= before
                    return None
                chosen[request.uid] = found
            undo.pop_all()
        self._leases.update({(lease.resource, lease.device): lease for lease in fresh})
        for request in requests:
            granted = chosen[request.uid]
            self._pods[request.uid] = request, granted
            self._former[request.replica] = granted
            for device in _devices(granted):
                self._due.pop(device, None)
                self._hand_over(request, self._leases[device])
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
        """Free devices of the node: first the replica's last devices, then devices that are already leased."""
        former = self._former.get(request.replica, {}).get(resource, ())
        used = self._used() | taken
        free = [
            device
            for device, node in self._node_of.items()
            if node == request.node and device[0] == resource and device not in used
        ]
        return sorted(free, key=lambda one: (one[1] not in former, one not in self._leases))

    def _used(self) -> set[Device]:
        return {device for _, granted in self._pods.values() for device in _devices(granted)}

    def _hand_over(self, request: DeviceRequest, lease: DeviceLease) -> None:
        """Write the holder's description into the lock file, and send the lock to the supervisor of the pod's node."""
        meta = request.pod["metadata"]
        owner = next((one["name"] for one in meta.get("ownerReferences") or () if one.get("controller")), "")
        job = f"{meta.get('namespace', '')}/{owner}" if owner else ""
        lease.since = lease.since or rfc3339(self._clock.now())
        own = own_description(self._run, job=job, pod=meta["name"], since=lease.since)
        lease.describe(replace(own, pid=self._supervisors.get(request.node, own.pid)))
        channel = self._channels.get(request.node)
        if channel is not None:
            channel.hold(lease)

    def release(self, uid: str, now: float) -> None:
        """Release the devices of a pod that has ended. The devices stay leased for `linger` seconds."""
        _, granted = self._pods.pop(uid, (None, {}))
        self._due.update({device: now + self.linger for device in _devices(granted) if device in self._leases})

    def expire(self, now: float) -> None:
        """End leases that no pod has used for `linger` seconds."""
        due = [device for device, when in self._due.items() if when <= now]
        for device in due:
            del self._due[device]
            lease, channel = self._leases.pop(device), self._channels.get(self._node_of[device])
            if channel is not None:
                channel.drop(lease)
            lease.close()
        if due:  # other runs may take these devices now, so replicas no longer prefer them
            self._former = {
                name: had for name, had in self._former.items() if not self._leases.keys().isdisjoint(_devices(had))
            }

    def keep(self, holds: Callable[[Body], bool], now: float) -> None:
        """Release the devices of pods that have ended, and lease again devices that were lost with their node."""
        for uid, (request, granted) in [*self._pods.items()]:
            if not holds(request.pod):
                self.release(uid, now)
                continue
            for device in _devices(granted):
                if device not in self._leases and (lease := self.folder.take(*device)) is not None:
                    self._leases[device] = lease
                    self._hand_over(request, lease)
        self.expire(now)

    @property
    def active(self) -> bool:
        """Whether a pod has devices, or leases of ended pods are left."""
        return bool(self._leases or self._pods)

    def granted(self, uid: str) -> bool:
        """Whether a pod was granted devices."""
        return uid in self._pods

    def held(self) -> list[Device]:
        """The devices that this engine has leased."""
        return [*self._leases]

    # -- other runs -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Find out which devices other runs hold."""
        found = {
            device: holder
            for device in self._node_of
            if device not in self._leases and (holder := self.folder.holder(*device)) is not None
        }
        self.changes += found != self._held_by_others
        self._held_by_others = found

    def elsewhere(self) -> dict[str, dict[str, LeasedDevices]]:
        """The devices that other runs held at the last `look`, with their holders, by node and resource."""
        found: dict[str, dict[str, LeasedDevices]] = {}
        used = self._used()
        for (resource, device), holder in self._held_by_others.items():
            if (resource, device) in self._leases or (resource, device) in used:
                continue
            is_own = holder.pid in (os.getpid(), *self._supervisors.values()) and holder.run == self._run
            text = "processes of this run that are being ended" if is_own else str(holder)
            here = found.setdefault(self._node_of[resource, device], {})
            before = here.get(resource, LeasedDevices())
            here[resource] = LeasedDevices((*before.devices, (device, text)))
        return found

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep other runs from taking leases, and call `look`. Yields False if another run has the mutex."""
        with self.folder.mutex() as free:
            if free:
                self.look()
            yield free


def _devices(granted: Granted) -> list[Device]:
    return [(resource, device) for resource, ids in granted.items() for device in ids]


def _order(device: str) -> tuple[int, str]:
    return int(device) if device.isdecimal() else -1, device


def lease_name(resource: str, device: str) -> str:
    """The name of a device in messages between agent and supervisor."""
    return f"{resource}/{device}"


def counts(asks: Iterable[tuple[str, int]], resources: frozenset[str]) -> dict[str, int]:
    """The number of devices that a pod requests, by resource, from amounts in thousandths."""
    return {name: amount // 1000 for name, amount in asks if amount and name in resources}
