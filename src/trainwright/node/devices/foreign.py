# SPDX-License-Identifier: Apache-2.0
"""Processes on the GPUs of this run that no run has started: they take memory and time from its pods.

A lease keeps other runs off a device, not a program that somebody started by hand. The driver knows who is there.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from trainwright.node.devices.inventory import GPU, driver_table, listed_gpus
from trainwright.node.devices.leases import LeaseFolder
from trainwright.node.devices.pool import DevicePool

_QUERY = ("--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader")
#: Seconds between two looks at the GPUs that this run holds.
PERIOD = 60.0
#: A chain of parents is not longer; a process that we cannot follow counts as nobody's.
_MOST_PARENTS = 1000


class ForeignProcess(Struct, frozen=True):
    """A process on a GPU: the GPU's index, and the process as the driver names it."""

    device: str
    pid: int
    name: str

    def __str__(self) -> str:
        """The warning."""
        return (
            f"warning: GPU {self.device} is in use by process {self.pid} ({self.name}), which no run of trainwright"
            " started; a pod that has this GPU shares it with that process"
        )


def foreign(environment: Mapping[str, str], devices: Iterable[str], folder: LeaseFolder) -> list[ForeignProcess]:
    """The processes on these GPUs that descend from no holder of a lease. Asks the driver: may take seconds."""
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
    """A process and all its ancestors, as far as /proc tells."""
    found: set[int] = set()
    while pid > 0 and pid not in found and len(found) < _MOST_PARENTS:
        found.add(pid)
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            pid = int(text.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


class ForeignProcessWatch:
    """Warns once of each such process, while this run holds the GPU."""

    def __init__(self, pool: DevicePool, notify: Callable[[str], None]) -> None:
        self._pool, self._notify = pool, notify
        self._told: set[ForeignProcess] = set()
        self._wake = asyncio.Event()
        pool.leased = self._wake.set

    async def run(self) -> None:
        """Until cancelled: look at once when a device was leased, and again from time to time."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            devices = [device for resource, device in self._pool.held() if resource == GPU]
            if not devices:
                continue
            for one in await asyncio.to_thread(foreign, dict(os.environ), devices, self._pool.folder):
                if one not in self._told:
                    self._told.add(one)
                    self._notify(str(one))
            asyncio.get_running_loop().call_later(PERIOD, self._wake.set)
