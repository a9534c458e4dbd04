# SPDX-License-Identifier: Apache-2.0
"""What this machine has: CPUs, memory and devices, and how nodes share it out. The engine asks once, when it starts.

Each node agent reports its `Share` as the capacity of its Node.
"""

import os
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from trainwright.errors import UsageError
from trainwright.local import cgroups
from trainwright.local.devices.inventory import DeviceSet, inventory
from trainwright.local.scheduling.requests import PODS

#: As good as no limit: what a machine can really run is for its memory to say.
_MOST_PODS = "10000"


class Share(Struct, frozen=True):
    """What one node has: thousandths of a CPU, bytes, and its devices by resource name."""

    cpu: int
    memory: int
    devices: dict[str, DeviceSet] = {}

    def capacity(self) -> dict[str, str]:
        """As Kubernetes writes it, for `status.capacity` and `status.allocatable` of a Node."""
        cpu = f"{self.cpu}m" if self.cpu % 1000 else str(self.cpu // 1000)
        devices = {name: str(len(found.ids)) for name, found in self.devices.items() if found.ids}
        return {"cpu": cpu, "memory": f"{self.memory // 1024}Ki", PODS: _MOST_PODS} | devices


def machine(devices: Mapping[str, DeviceSet]) -> Share:
    """All of this machine that this process may use, with the devices that the user says it has: see `inventory`."""
    held = cgroups.limits()
    cpu = _cpus() * 1000
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Share(min(cpu, held.cpu or cpu), min(memory, held.memory or memory), inventory(devices))


def share(whole: Share, nodes: int) -> tuple[Share, ...]:
    """The machine, shared out among that many nodes: CPUs and memory in equal parts, devices in turn."""
    if nodes < 1:
        raise UsageError(f"there must be at least one node, not {nodes}")
    if whole.cpu < nodes:
        raise UsageError(f"{nodes} nodes are more than this machine can be shared out among: it has {whole.cpu}m CPU")
    return tuple(
        Share(whole.cpu // nodes, whole.memory // nodes, _dealt(whole.devices, index, nodes)) for index in range(nodes)
    )


def _dealt(devices: Mapping[str, DeviceSet], index: int, nodes: int) -> dict[str, DeviceSet]:
    """Every n-th device is that node's."""
    return {name: replace(found, ids=found.ids[index::nodes]) for name, found in devices.items()}


def _cpus() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
