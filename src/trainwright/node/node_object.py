# SPDX-License-Identifier: Apache-2.0
"""The agent's node object: made or taken over at the start, given signs of life where those are asked for.

On an engine of our own that is a Node with a heartbeat. Where the agent stands in for a kubelet, the node has all that
a kubelet says of one, and its signs of life are a Lease, by which Kubernetes notices that a node has died.
"""

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

from trainwright import __version__
from trainwright.errors import AlreadyExistsError, NotFoundError
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.units import rfc3339
from trainwright.node.settings import AgentSettings
from trainwright.runtime.ports import LEASES, NODES, Clock, Cluster

_NODES = NODES.whole()
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Where Kubernetes looks for the leases of nodes, and for how many seconds one counts: both a kubelet's.
_LEASES, _LEASED = "kube-node-lease", 40
#: The whole status is told again after so many signs of life, and after a silence of so many.
_STATUS = 30
_SILENCE = 1.5
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
_READY = ("True", "AgentReady", "the node agent runs pods")


class AgentNode:
    """One node of a cluster, seen from itself."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: AgentSettings) -> None:
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        self._state = _READY
        #: Since when it is as it is, and since when there is an agent.
        self._turned = self._begun = ""
        self._uid = ""
        #: How many signs of life there were, and when the last one was.
        self._beats = 0
        self._heard = clock.now()

    @property
    def name(self) -> str:
        """As the cluster knows it."""
        return self._settings.node

    async def register(self) -> None:
        """Have a node of our name that is ready."""
        settings = self._settings
        meta = {"name": settings.node, "labels": _labels(settings.node) | settings.labels}
        spec: Body = {"taints": list(settings.taints)} if settings.taints else {}
        body: Body = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec}
        try:
            made = await self._cluster.create(_NODES, body)
        except AlreadyExistsError:
            made = await self._cluster.patch(_NODES, self._key, {"metadata": {"labels": meta["labels"]}})
        self._uid = made["metadata"]["uid"]
        self._turn(*_READY)
        self._begun = self._turned
        if settings.kubelet:
            await self._lease()
        await self._tell(self._offer())

    async def beat(self) -> None:
        """A sign of life. A node that somebody has deleted took its lease along, and is made anew."""
        if not self._settings.kubelet:
            await self._tell({})
            return
        try:
            await self._renew()
            self._beats += 1
            # Who was silent may have been found dead, and a lease does not take that back.
            if self._silent() or not self._beats % _STATUS:
                await self._tell(self._offer())
            self._heard = self._clock.now()
        except NotFoundError:
            state = self._state
            await self.register()
            if state != _READY:
                await self.fail(*state[1:])

    async def fail(self, reason: str, message: str) -> None:
        """Nothing can be run here any more."""
        self._turn("False", reason, message)
        await self._tell({})

    async def remove(self) -> None:
        """Take the node off the cluster; its lease goes with it."""
        with suppress(NotFoundError):
            await self._cluster.delete(_NODES, self._key, uid=self._uid)

    def _silent(self) -> bool:
        return (self._clock.now() - self._heard).total_seconds() > _SILENCE * self._settings.heartbeat

    @property
    def _key(self) -> Key:
        return Key("", self._settings.node)

    def _turn(self, *state: str) -> None:
        self._state = (state[0], state[1], state[2])
        self._turned = rfc3339(self._clock.now())

    async def _tell(self, more: Body) -> None:
        status = more | {"conditions": self._conditions()}
        await self._cluster.patch(_NODES, self._key, {"status": status}, status=True)

    async def _lease(self) -> None:
        """A lease that goes when the node does, also if one of another node of our name is left."""
        key = Key(_LEASES, self._settings.node)
        owner = {"apiVersion": "v1", "kind": "Node", "name": key.name, "uid": self._uid}
        meta = {"name": key.name, "namespace": key.namespace, "ownerReferences": [owner]}
        head = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        try:
            await self._cluster.create(LEASES, {**head, "metadata": meta, "spec": self._terms()})
        except AlreadyExistsError:
            await self._cluster.patch(LEASES, key, {"metadata": {"ownerReferences": [owner]}, "spec": self._terms()})

    async def _renew(self) -> None:
        await self._cluster.patch(LEASES, Key(_LEASES, self._settings.node), {"spec": self._terms()})

    def _terms(self) -> Body:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self._settings.node, "leaseDurationSeconds": _LEASED, "renewTime": now}

    def _offer(self) -> Body:
        settings = self._settings
        found: Body = {
            "capacity": settings.capacity,
            "allocatable": settings.capacity if settings.allocatable is None else settings.allocatable,
            "addresses": [
                {"type": "InternalIP", "address": settings.address},
                {"type": "Hostname", "address": settings.node},
            ],
            "nodeInfo": {
                "operatingSystem": sys.platform,
                "architecture": _architecture(),
                "kernelVersion": platform.release(),
                "containerRuntimeVersion": f"trainwright-{settings.runtime}://{__version__}",
            },
        }
        if settings.kubelet:
            found["nodeInfo"] |= _machine()
            found["daemonEndpoints"] = {"kubeletEndpoint": {"Port": settings.port}}
        return found

    def _conditions(self) -> list[Body]:
        """A kubelet says whether it is ready last. What we do not measure is told so."""
        others = ("False", "NotMeasured", "the node agent does not look at this")
        found = [self._condition(kind, others, self._begun) for kind in _PRESSURES] if self._settings.kubelet else []
        return [*found, self._condition("Ready", self._state, self._turned)]

    def _condition(self, kind: str, state: tuple[str, str, str], since: str) -> Body:
        status, reason, message = state
        return {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": rfc3339(self._clock.now()),
            "lastTransitionTime": since,
        }


def _labels(name: str) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": sys.platform,
        "kubernetes.io/arch": _architecture(),
    }


def _architecture() -> str:
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, machine)


def _machine() -> dict[str, str]:
    """What else a kubelet tells of its machine; what cannot be read is empty."""
    own = _text("/etc/machine-id")
    system = [line.partition("=")[2] for line in _text("/etc/os-release").splitlines() if line.startswith("PRETTY_")]
    return {
        "machineID": own,
        "systemUUID": own,
        "bootID": _text("/proc/sys/kernel/random/boot_id"),
        "osImage": system[0].strip('"') if system else platform.system(),
        "kubeletVersion": f"trainwright-{__version__}",
        "kubeProxyVersion": "",
    }


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(errors="replace").strip()
    return ""
