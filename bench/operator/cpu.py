# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of processes, as the kernel counts them."""

import os
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, sleep

from cluster_process import Process

#: A process that uses a smaller share of a CPU is idle.
IDLE = 0.05
_TICK = os.sysconf("SC_CLK_TCK")


def spent(pid: int) -> float:
    """Return the CPU seconds that a process has used so far, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def memory(pid: int, what: str = "VmHWM") -> float:
    """Return the peak memory of a process, or its current memory (VmRSS), in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(what))) / 1024


class Meter:
    """Measures the CPU time of the benchmark's processes, by name, and that of all other programs."""

    def __init__(self, processes: Mapping[str, Process]) -> None:
        self._pids = {"driver": os.getpid(), **{name: one.pid for name, one in processes.items()}}
        self._before = {name: spent(pid) for name, pid in self._pids.items()}
        self._busy, self._all = _machine()

    def add(self, name: str, process: Process) -> None:
        """Measure also a process that was started after this object was created."""
        self._pids[name], self._before[name] = process.pid, 0.0

    def read(self) -> dict[str, float]:
        """Return the CPU seconds of each process since this object was created."""
        return {name: round(spent(pid) - self._before[name], 3) for name, pid in self._pids.items()}

    def others(self) -> float:
        """Return the share of all CPUs that other programs have used since this object was created."""
        busy, all_ = _machine()
        ours = sum(self.read().values())
        return max(busy - self._busy - ours, 0.0) / max(all_ - self._all, 0.001)


def _machine() -> tuple[float, float]:
    """Return the busy and the total CPU seconds of the machine."""
    fields = [int(word) / _TICK for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def resting(processes: Mapping[str, Process], seconds: float) -> dict[str, float]:
    """Return the share of a CPU that each process uses during this time."""
    before, began = {name: spent(one.pid) for name, one in processes.items()}, perf_counter()
    sleep(seconds)
    passed = perf_counter() - began
    return {name: round((spent(one.pid) - before[name]) / passed, 4) for name, one in processes.items()}


def quiet(process: Process, share: float = IDLE) -> None:
    """Wait until a process is idle."""
    process.until(lambda: process.alive and resting({"": process}, 1.0)[""] < share)
