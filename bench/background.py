# SPDX-License-Identifier: Apache-2.0
"""Measures the background engine: idle, a restart with 1,000 running pods, and thousands of kept jobs.

Run: python bench/background.py [--quick] [idle] [restart] [kept]

The floors: an idle Python process with asyncio, starting a Python process, and a `get` without any job.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import msgspec

from trainwright.cli.state import is_live
from trainwright.local.settings import SOCKET
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.local.storage.store import Store
from trainwright.model.meta import RUN, Key
from trainwright.node.supervisor import journal
from trainwright.runtime.ports import BY_ID, WallClock

QUICK = "--quick" in sys.argv
PARTS = [word for word in sys.argv[1:] if not word.startswith("-")] or ["idle", "restart", "kept"]
TRAINWRIGHT = [sys.executable, "-m", "trainwright"]
IDLE_SECONDS = 3 if QUICK else 30
PODS = 20 if QUICK else 1000
KEPT = (10, 50) if QUICK else (1000, 10_000)
_TICKS = os.sysconf("SC_CLK_TCK")
_GENERIC = "genericjobs.batch.tensorstack.dev"


def job(name: str, replicas: int, script: str) -> dict[str, Any]:
    """Return a job whose replicas run a shell script."""
    container = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    roles = [{"type": "worker", "replicas": replicas, "template": {"spec": {"containers": [container]}}}]
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": roles},
    }


class Place:
    """A state folder of its own, and the command in it."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.state = self.folder / "state"
        self.env = {**os.environ, "TRAINWRIGHT_STATE": str(self.state)}
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode

    def run(self, *words: str) -> str:
        """Run a command and return its output."""
        done = subprocess.run([*TRAINWRIGHT, *words], env=self.env, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise SystemExit(f"trainwright {' '.join(words)}: {done.stderr}")
        return done.stdout

    def timed(self, *words: str, times: int = 3) -> float:
        """Return the wall time of a command in seconds, the smallest of several runs."""
        best = float("inf")
        for _ in range(times):
            began = perf_counter()
            self.run(*words)
            best = min(best, perf_counter() - began)
        return best

    def submit(self, body: dict[str, Any]) -> None:
        """Submit one job."""
        file = self.folder / "job.yaml"
        file.write_text(json.dumps(body))
        self.run("submit", str(file))

    def status(self) -> dict[str, Any]:
        """Return what the engine says about itself."""
        found: dict[str, Any] = json.loads(self.run("status", "-o", "json"))
        return found

    def kill(self) -> None:
        """Kill the engine with SIGKILL."""
        os.kill(int(self.status()["pid"]), signal.SIGKILL)
        while is_live(self.state / ".engine" / "lock"):
            sleep(0.001)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) * 1024 / 1e6


def measure_idle(place: Place) -> None:
    """Print the CPU and the memory of an engine without jobs."""
    idle = "import asyncio; asyncio.run(asyncio.sleep(3600))"
    floor = subprocess.Popen([sys.executable, "-c", idle])  # noqa: S603
    place.run("up", "--runtime", "process")
    pid = int(place.status()["pid"])
    sleep(2)
    before, bare = cpu_seconds(pid), cpu_seconds(floor.pid)
    sleep(IDLE_SECONDS)
    share, bare_share = ((cpu_seconds(one) - at) / IDLE_SECONDS for one, at in ((pid, before), (floor.pid, bare)))
    floor_memory = memory(floor.pid)
    floor.kill()
    floor.wait()
    print(
        f"idle engine: {share:.2%} of a CPU, {memory(pid):.0f} MB; idle Python: {bare_share:.2%}, {floor_memory:.0f} MB"
    )
    place.run("down")


def measure_restart(place: Place) -> None:
    """Print how long `up` takes after a kill while many pods run, and when the new engine sees the end of a pod."""
    place.run("up", "--runtime", "process")
    began = perf_counter()
    for number in range(4):
        body = job(f"many-{number}", PODS // 4, "exec sleep 3600")
        body["spec"]["replicaSpecs"][0]["restartPolicy"] = {"policy": "OnFailure", "limit": 100}
        place.submit(body)
    while _running(place) < PODS:
        sleep(0.2)
    print(f"{PODS} pods ran {perf_counter() - began:.1f} s after the first job was submitted")
    bare = _python()
    for _ in range(3):
        place.kill()
        began = perf_counter()
        place.run("up")
        up = perf_counter() - began
        _end_one(place)
        seen = perf_counter() - began
        print(
            f"restart with {PODS} pods: `up` {up:.2f} s, an end was seen after {seen:.2f} s (bare Python {bare:.2f} s)"
        )
        while _running(place) < PODS:
            sleep(0.2)
    print(f"memory with {PODS} pods: {memory(int(place.status()['pid'])):.0f} MB")
    place.run("down", "--end", "--grace", "2s")


def _running(place: Place) -> int:
    with BlockingClient(place.state / ".engine" / SOCKET) as client:
        pods, _ = client.list("pods")
    return sum((pod.get("status") or {}).get("phase") == "Running" for pod in pods)


def _end_one(place: Place) -> None:
    """Kill the process of the last replica, and wait until the engine has replaced its pod."""
    entries = journal.read(str(place.state / ".engine" / "nodes" / "node-0" / "journal"))
    last = [entry for entry in entries.values() if not entry["ended"]][-1]
    os.kill(last["pid"], signal.SIGKILL)
    with BlockingClient(place.state / ".engine" / SOCKET) as client:
        while any(pod["metadata"]["uid"] == last["pod"] and _lives(pod) for pod in client.list("pods")[0]):
            sleep(0.01)


def _lives(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _python() -> float:
    began = perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return perf_counter() - began


def measure_kept(place: Place) -> None:
    """Print memory, start and `get` with many finished jobs."""
    place.run("up", "--runtime", "process", "--keep-jobs", str(max(KEPT) + 10))
    empty = place.timed("get", "-a") if not QUICK else 0.0
    place.submit(job("pattern", 2, "true"))
    place.run("wait", "pattern")
    place.run("down")
    present = 1
    for wanted in KEPT:
        asyncio.run(_copy_jobs(place, present, wanted))
        present = wanted
        began = perf_counter()
        place.run("up")
        up = perf_counter() - began
        sleep(2)
        pid = int(place.status()["pid"])
        times = ", ".join(f"`{' '.join(words)}` {place.timed(*words):.2f} s" for words in (["get"], ["get", "-a"]))
        print(f"{wanted} kept jobs: {memory(pid):.0f} MB, `up` {up:.2f} s, {times} (no job: {empty:.2f} s)")
        place.run("down")


async def _copy_jobs(place: Place, first: int, last: int) -> None:
    """Copy the finished job `pattern` with its record, under other names, into the files of an engine that is down."""
    engine = place.state / ".engine"
    source = (place.state / "default" / "pattern" / "latest").resolve()
    texts = {name: (source / name).read_text() for name in ("run.json", "status.json", "status.yaml", "replicas.jsonl")}
    clock, resource = WallClock(), BY_ID[_GENERIC].whole()
    store = Store.open(clock, engine / "store.db")
    pattern = store.get(resource, Key("default", "pattern"))
    for number in range(first, last):
        name, run = f"kept-{number:05}", f"20260101-000000-{number:06x}"
        folder = engine / "jobs" / run
        folder.mkdir()
        for file, text in texts.items():
            (folder / file).write_text(text.replace("pattern", name))
        names = place.state / "default" / name
        names.mkdir()
        (names / run).symlink_to(folder)
        (names / "latest").symlink_to(run)
        meta = {"name": name, "namespace": "default", "annotations": {RUN: run}}
        store.create(resource, {**pattern, "metadata": meta})
        status = {"status": pattern["status"]}
        store.patch(resource, Key("default", name), msgspec.json.decode(msgspec.json.encode(status)), status=True)
    store.close()


def main() -> None:
    """Measure the parts."""
    measures = {"idle": measure_idle, "restart": measure_restart, "kept": measure_kept}
    for part in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            place = Place(folder)
            try:
                measures[part](place)
            finally:
                with suppress(SystemExit):
                    if is_live(place.state / ".engine" / "lock"):
                        place.run("down", "--end", "--grace", "1s")


if __name__ == "__main__":
    main()
