# SPDX-License-Identifier: Apache-2.0
"""The Node object of an agent: registration, conditions and heartbeats.

In the embedded engine a heartbeat is a write of the Node's status. An agent that replaces a kubelet writes all fields
that a kubelet writes. Its heartbeat renews a Lease, because Kubernetes counts a node without a renewed Lease as dead.
"""

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

from trainwright import __version__
from trainwright.errors import AlreadyExistsError, ApiError, NotFoundError
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.units import rfc3339
from trainwright.node.settings import AgentSettings
from trainwright.runtime.ports import LEASES, NODES, Clock, Cluster

_NODES = NODES.whole()
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: The namespace of the leases of nodes, and the seconds for which a lease is valid: both as a kubelet has them.
_LEASE_NAMESPACE, _LEASE_SECONDS = "kube-node-lease", 40
#: The agent writes the whole status at every 30th heartbeat, and if the heartbeat before was over 1.5 intervals ago.
_HEARTBEATS_PER_STATUS = 30
_MAX_LATE_INTERVALS = 1.5
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
_READY_STATE = ("True", "AgentReady", "the node agent runs pods")
_DRAINING = "SupervisorDraining"


class AgentNode:
    """The Node object of one agent."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: AgentSettings) -> None:
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        self._key, self._lease_key = Key("", settings.node), Key(_LEASE_NAMESPACE, settings.node)
        self._state = _READY_STATE
        self._state_since = self._registered_at = ""
        self._uid = ""
        self._beats = 0
        self._last_beat = clock.now()

    async def register(self) -> None:
        """Create the Node, or take over an existing Node of this name, and set it to ready."""
        settings = self._settings
        labels = {
            "kubernetes.io/hostname": settings.node,
            "kubernetes.io/os": sys.platform,
            "kubernetes.io/arch": _architecture(),
        }
        meta = {"name": settings.node, "labels": labels | settings.labels}
        spec: Body = {"taints": list(settings.taints)} if settings.taints else {}
        body: Body = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec}
        try:
            made = await self._cluster.create(_NODES, body)
        except AlreadyExistsError:
            made = await self._cluster.patch(_NODES, self._key, {"metadata": {"labels": meta["labels"]}})
            if is_draining(made):
                await self._cluster.patch(_NODES, self._key, {"spec": {"unschedulable": None}})
        self._uid = made["metadata"]["uid"]
        self._set_state(*_READY_STATE)
        self._registered_at = self._state_since
        if settings.kubelet:
            await self._create_lease()
        await self._write_status(self._node_status())

    async def beat(self) -> None:
        """Send a heartbeat. If the Node was deleted (its lease is then deleted, too), register the node again."""
        if not self._settings.kubelet:
            await self._write_status({})
            return
        try:
            await self._cluster.patch(LEASES, self._lease_key, {"spec": self._lease_spec()})
            self._beats += 1
            # Kubernetes may have set a late node to Unknown, and a renewed lease alone does not undo that.
            elapsed = (self._clock.now() - self._last_beat).total_seconds()
            is_late = elapsed > _MAX_LATE_INTERVALS * self._settings.heartbeat
            if is_late or not self._beats % _HEARTBEATS_PER_STATUS:
                await self._write_status(self._node_status())
            self._last_beat = self._clock.now()
        except NotFoundError:
            await self.restore()

    async def restore(self) -> None:
        """Register the node again after its Node was deleted. Its state stays the same."""
        state = self._state
        await self.register()
        if state != _READY_STATE:
            await self.fail(*state[1:])

    async def fail(self, reason: str, message: str) -> None:
        """Set the node to not ready, if the API server can be reached."""
        self._set_state("False", reason, message)
        with suppress(ApiError):
            await self._write_status({})

    async def drain(self, message: str) -> None:
        """Let the node take no new pods until it is registered again, but count its pods as running.

        A node that is not ready would not do: after a grace period, its pods would count as lost and start elsewhere.
        """
        try:
            await self._cluster.patch(_NODES, self._key, {"spec": {"unschedulable": True}})
        except NotFoundError:
            return  # the node is new, so it has no pods
        self._set_state("True", _DRAINING, message)
        await self._write_status({})

    async def remove(self) -> None:
        """Delete the Node; Kubernetes deletes its lease."""
        with suppress(NotFoundError):
            await self._cluster.delete(_NODES, self._key, uid=self._uid)

    def _set_state(self, *state: str) -> None:
        self._state = (state[0], state[1], state[2])
        self._state_since = rfc3339(self._clock.now())

    async def _write_status(self, fields: Body) -> None:
        status = fields | {"conditions": self._conditions()}
        await self._cluster.patch(_NODES, self._key, {"status": status}, status=True)

    async def _create_lease(self) -> None:
        """Create a lease that the Node owns, or take over the lease of an earlier Node of this name."""
        key, spec = self._lease_key, self._lease_spec()
        owners = [{"apiVersion": "v1", "kind": "Node", "name": key.name, "uid": self._uid}]
        meta = {"name": key.name, "namespace": key.namespace, "ownerReferences": owners}
        head = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        try:
            await self._cluster.create(LEASES, {**head, "metadata": meta, "spec": spec})
        except AlreadyExistsError:
            await self._cluster.patch(LEASES, key, {"metadata": {"ownerReferences": owners}, "spec": spec})

    def _lease_spec(self) -> Body:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self._settings.node, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": now}

    def _node_status(self) -> Body:
        settings = self._settings
        found: Body = {
            "capacity": settings.capacity,
            "allocatable": settings.offered,
            "addresses": [
                {"type": "InternalIP", "address": settings.address},
                {"type": "Hostname", "address": settings.node},
            ],
            "nodeInfo": {
                "operatingSystem": sys.platform,
                "architecture": _architecture(),
                "kernelVersion": platform.release(),
                "containerRuntimeVersion": f"trainwright-{settings.runtime}://{__version__}",
                **_machine_info(),
            },
        }
        if settings.kubelet:
            found["daemonEndpoints"] = {"kubeletEndpoint": {"Port": settings.port}}
        return found

    def _conditions(self) -> list[Body]:
        """The conditions in the order of a kubelet: Ready is the last condition."""
        state = ("False", "NotMeasured", "the node agent does not measure this")
        types = _PRESSURES if self._settings.kubelet else ()
        pressures = [self._condition(one, state, self._registered_at) for one in types]
        return [*pressures, self._condition("Ready", self._state, self._state_since)]

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


def _architecture() -> str:
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, machine)


def _machine_info() -> dict[str, str]:
    """The other facts that a kubelet writes about its machine; a fact that cannot be read is empty."""
    machine_id = _read_text("/etc/machine-id")
    release = _read_text("/etc/os-release").splitlines()
    system = [line.partition("=")[2] for line in release if line.startswith("PRETTY_")]
    return {
        "machineID": machine_id,
        "systemUUID": machine_id,
        "bootID": _read_text("/proc/sys/kernel/random/boot_id"),
        "osImage": system[0].strip('"') if system else platform.system(),
        "kubeletVersion": f"trainwright-{__version__}",
        "kubeProxyVersion": "",
    }


def _read_text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(errors="replace").strip()
    return ""


def is_draining(node: Body) -> bool:
    """Whether a node takes no pods because its supervisor is of another version."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("reason") == _DRAINING for one in conditions)
