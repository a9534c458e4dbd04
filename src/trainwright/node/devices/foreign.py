# SPDX-License-Identifier: Apache-2.0
"""Foreign processes on the GPUs of this run: no run has started them. They take memory and time from our pods.

A lease excludes other runs from a device, but not programs that a user started by hand. The driver lists all
processes on each GPU, also the processes of such programs.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from trainwright.node.devices.inventory import GPU, driver_table, listed_gpus
from trainwright.node.devices.leases import LeaseFolder
from trainwright.node.devices.pool import DevicePool
from trainwright.node.supervisor import tree

_QUERY = ("--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader")
#: Seconds between two checks of the GPUs that this run holds.
PERIOD = 60.0


class ForeignProcess(Struct, frozen=True):
    """A process on a GPU: the index of the GPU, and the pid and the name that the driver shows."""

    device: str
    pid: int
    name: str

    def __str__(self) -> str:
        """The text of the warning."""
        return (
            f"warning: GPU {self.device} is in use by process {self.pid} ({self.name}), which no run of trainwright"
            " started; a pod that has this GPU shares it with that process"
        )


def foreign(environment: Mapping[str, str], devices: Iterable[str], folder: LeaseFolder) -> list[ForeignProcess]:
    """The processes on these GPUs that are neither lease holders nor their descendants. The driver may need seconds."""
    indexes = {uuid: index for index, uuid in listed_gpus(environment)}
    wanted = set(devices)
    found = []
    for row in driver_table(environment, _QUERY):
        if len(row) < 3 or not row[1].isdecimal() or indexes.get(row[0]) not in wanted:
            continue
        found.append(ForeignProcess(indexes[row[0]], int(row[1]), ", ".join(row[2:])))
    if not found:
        return []
    holders = {one.holder.pid for one in folder.held() if one.resource == GPU}
    return [one for one in found if holders.isdisjoint(_ancestry(one.pid))]


def _ancestry(pid: int) -> set[int]:
    """A process and all its ancestors, as far as /proc shows them."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = tree.parent_of(pid)
    return found


class ForeignProcessWatch:
    """Warns once about each foreign process, while this run holds the GPU."""

    def __init__(self, pool: DevicePool, notify: Callable[[str], None]) -> None:
        self._pool, self._notify = pool, notify
        self._warned: set[ForeignProcess] = set()
        self._wake = asyncio.Event()
        pool.leased = self._wake.set

    async def run(self) -> None:
        """Check when this run leases a device, and then every `PERIOD` seconds, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            devices = [device for resource, device in self._pool.held() if resource == GPU]
            if not devices:
                continue
            for one in await asyncio.to_thread(foreign, dict(os.environ), devices, self._pool.folder):
                if one not in self._warned:
                    self._warned.add(one)
                    self._notify(str(one))
            asyncio.get_running_loop().call_later(PERIOD, self._wake.set)
