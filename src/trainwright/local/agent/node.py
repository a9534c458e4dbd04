# SPDX-License-Identifier: Apache-2.0
"""The agent's node object: made or taken over at the start, given a sign of life where that is asked for."""

import os
import platform
import sys

from trainwright.errors import AlreadyExistsError
from trainwright.local.agent.settings import Settings
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import Clock, Cluster
from trainwright.runtime.resources import NODES

_NODES = NODES.whole()
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Node:
    """One node of a cluster, seen from itself."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: Settings) -> None:
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        self._turned = ""

    async def register(self) -> None:
        """Have a node of our name that is ready."""
        settings = self._settings
        meta = {"name": settings.node, "labels": _labels(settings.node) | settings.labels}
        body: Body = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}}
        try:
            await self._cluster.create(_NODES, body)
        except AlreadyExistsError:
            await self._cluster.patch(_NODES, self._key, {"metadata": {"labels": meta["labels"]}})
        self._turned = rfc3339(self._clock.now())
        await self._cluster.patch(_NODES, self._key, {"status": self._offer() | self._condition()}, status=True)

    async def beat(self) -> None:
        """A sign of life."""
        await self._cluster.patch(_NODES, self._key, {"status": self._condition()}, status=True)

    async def fail(self, reason: str, message: str) -> None:
        """Nothing can be run here any more."""
        self._turned = rfc3339(self._clock.now())
        status = self._condition("False", reason, message)
        await self._cluster.patch(_NODES, self._key, {"status": status}, status=True)

    @property
    def _key(self) -> Key:
        return Key("", self._settings.node)

    def _offer(self) -> Body:
        settings = self._settings
        return {
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
                "containerRuntimeVersion": f"trainwright-{settings.runtime}://",
            },
        }

    def _condition(self, status: str = "True", reason: str = "AgentReady", message: str = "") -> Body:
        condition = {
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": message or "the node agent runs pods",
            "lastHeartbeatTime": rfc3339(self._clock.now()),
            "lastTransitionTime": self._turned,
        }
        return {"conditions": [condition]}


def _labels(name: str) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": sys.platform,
        "kubernetes.io/arch": _architecture(),
    }


def _architecture() -> str:
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, machine)
