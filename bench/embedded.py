# SPDX-License-Identifier: Apache-2.0
"""Measures `trainwright run` against the same programs started by hand: start-up, many jobs, one job of many pods.

Run: python bench/embedded.py [--quick] [process] [sandbox]
"""

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import trainwright

QUICK = "--quick" in sys.argv
RUNTIMES = [word for word in sys.argv[1:] if word in ("process", "sandbox")] or ["process", "sandbox"]
TRAINWRIGHT = [str(Path(sys.executable).with_name("trainwright"))]


def job(name: str, replicas: int = 1) -> dict[str, Any]:
    """Return a job whose replicas succeed at once."""
    container = {"name": "main", "image": "none", "command": ["/bin/true"]}
    roles = [{"type": "w", "replicas": replicas, "template": {"spec": {"containers": [container]}}}]
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": roles},
    }


@contextmanager
def manifest(jobs: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Write the jobs to a file; yield its path and an environment with a separate state folder."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.yaml"
        file.write_text("\n---\n".join(json.dumps(one) for one in jobs))
        yield str(file), os.environ | {"TRAINWRIGHT_STATE": f"{folder}/state"}


def wall(act: Callable[[], None], times: int) -> float:
    """Return the wall time in seconds, the smallest of several calls."""
    best = float("inf")
    for _ in range(times):
        began = perf_counter()
        act()
        best = min(best, perf_counter() - began)
    return best


def run(words: list[str], env: dict[str, str] | None = None) -> None:
    """Run a command, and exit if it fails."""
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr.decode()[-2000:]}")


def cpu(act: Callable[[], None]) -> float:
    """Return the CPU seconds of all child processes that `act` starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    act()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def line(what: str, value: str, ratio: str = "", target: str = "") -> None:
    """Print one row of the table."""
    print(f"| {what} | {value} | {ratio} | {target} |", flush=True)


def start_up(runtime: str) -> None:
    floor = wall(lambda: run(["/bin/true"]), 10)
    with manifest([job("one")]) as (file, env):
        took = wall(lambda: run([*TRAINWRIGHT, "run", "--runtime", runtime, file], env), 5 if QUICK else 10)
    line(f"{runtime}: one pod of `true`, minus the time of `true` itself", f"{took - floor:.3f} s", "", "≤ 0.6 s")


def many_jobs(runtime: str, number: int, target: int) -> None:
    with manifest([job(f"job-{i}") for i in range(number)]) as (file, env):
        took = wall(lambda: run([*TRAINWRIGHT, "run", "--runtime", runtime, file], env), 1 if QUICK else 3)
    floor = wall(lambda: run(["/bin/true"]), 50) * number
    rate = f"{number / took:.0f} pods/s"
    line(f"{runtime}: {number} one-pod jobs", rate, f"{took / floor:.2f}", f"≥ {target} pods/s")


BARE = "import subprocess\nfor _ in range({}): subprocess.Popen(['/bin/true'], stdin=subprocess.DEVNULL).wait()"


def many_pods(runtime: str, number: int, target: str) -> None:
    floor = cpu(lambda: run([sys.executable, "-c", BARE.format(number)]))
    with manifest([job("large", number)]) as (file, env):
        spent = cpu(lambda: run([*TRAINWRIGHT, "run", "--runtime", runtime, file], env))
    line(f"{runtime}: one job of {number} pods, CPU", f"{spent:.2f} s", f"{spent / floor:.2f}", target)


def main() -> None:
    print(f"Trainwright {trainwright.__version__}, CPython {platform.python_version()}, {platform.system()}\n")
    print("| what | value | ratio to bare processes | target |\n|---|---|---|---|")
    helped = wall(lambda: run([*TRAINWRIGHT, "--help"]), 10)
    line("`trainwright --help`", f"{helped * 1000:.0f} ms", "", "≤ 150 ms")
    for runtime in RUNTIMES:
        plain = runtime == "process"
        start_up(runtime)
        many_jobs(runtime, 100 if QUICK else 500, 100 if plain else 60)
        many_pods(runtime, 200 if QUICK else 1000, "≤ 3" if plain else "")


if __name__ == "__main__":
    main()
