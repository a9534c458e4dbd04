# SPDX-License-Identifier: Apache-2.0
"""Measures a sandboxed pod against a bare process in the same run: one after the other, and many at once.

Run: python bench/sandbox.py [--quick]
"""

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter, process_time, sleep

from trainwright import open_files
from trainwright.node.settings import AgentSettings
from trainwright.node.supervisor import launch
from trainwright.node.supervisor.protocol import NetworkConfig
from trainwright.node.supervisor.sandbox import SandboxRuntime

QUICK = "--quick" in sys.argv
TIMES, RUNS, MANY = (50, 2, 100) if QUICK else (200, 5, 1000)
TRUE, SLEEP = ["/bin/true"], ["/bin/sleep", "1000"]
NULL = os.open(os.devnull, os.O_RDWR)
STDIO = launch.Descriptors(NULL, NULL, NULL)


def reap() -> None:
    """Reap ended init processes, as the supervisor's loop does."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def bare() -> None:
    subprocess.run(TRUE, stdin=NULL, stdout=NULL, stderr=NULL, check=True)  # noqa: S603 - fixed


def begin(sandbox: SandboxRuntime, number: int, argv: list[str]) -> int:
    """Create a pod that runs this command, and return its pid."""
    name = str(number)
    address = f"10.200.{number // 250}.{number % 250 + 2}"
    sandbox.open({"pod": name, "host": f"pod-{name}", "address": address, "network": "own"})
    return sandbox.spawn(
        {"pod": name, "container": name, "argv": argv, "env": {}, "cwd": "/", "log": os.devnull}, STDIO
    ).pid


def pod(sandbox: SandboxRuntime) -> None:
    os.waitpid(begin(sandbox, 1, TRUE), 0)
    sandbox.ended("1")
    sandbox.close("1")
    reap()


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Return the wall time and the CPU time (with children) of one call in seconds, the smallest of several runs."""
    best = (float("inf"), float("inf"))
    for _ in range(RUNS):
        began, ours, theirs = perf_counter(), process_time(), _children()
        for _ in range(TIMES):
            work()
        took = (perf_counter() - began) / TIMES
        best = min(best, (took, (process_time() - ours + _children() - theirs) / TIMES))
    return best


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def available() -> int:
    """Return the available memory in KiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def crowd(sandbox: SandboxRuntime) -> tuple[float, float]:
    """Start many pods at once; return the seconds and KiB per pod."""
    before, began = available(), perf_counter()
    pids = [begin(sandbox, number, SLEEP) for number in range(MANY)]
    took = (perf_counter() - began) / MANY
    sleep(1)
    each = (before - available()) / MANY
    for number, pid in enumerate(pids):
        sandbox.kill(str(number))
        os.waitpid(pid, 0)
        sandbox.ended(str(number))
        sandbox.close(str(number))
    return took, each


if __name__ == "__main__":
    open_files.raise_limit()
    network: NetworkConfig = {"subnet": "10.200.0.0/16"}
    settings = AgentSettings(
        node="bench", runtime="sandbox", folder="", volumes="", cwd="/", outside=False, network=network
    )
    box = SandboxRuntime(settings.supervisor())
    print(f"Python {platform.python_version()}, Linux {platform.release()}, {os.cpu_count()} cores, uid {os.geteuid()}")
    peer, peer_cpu = measured(bare)
    wall, cpu = measured(lambda: pod(box))
    print(f"bare process (peer)      {peer * 1e3:6.2f} ms  {peer_cpu * 1e3:6.2f} ms CPU  {1 / peer:6.0f} a second")
    print(f"pod in a sandbox         {wall * 1e3:6.2f} ms  {cpu * 1e3:6.2f} ms CPU  {1 / wall:6.0f} a second")
    seconds, memory = crowd(box)
    print(f"{MANY} pods at once       {seconds * 1e3:6.2f} ms  {memory:6.0f} KiB each, `sleep` included")
    box.stop()
    reap()
