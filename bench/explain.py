# SPDX-License-Identifier: Apache-2.0
"""Measures `explain`, `describe`, `events`, `history` and `get` of a failed and of a live run, against a bare Python.

Run: python bench/explain.py [--quick]
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

TIMES = 3 if "--quick" in sys.argv else 15
TRAINWRIGHT = str(Path(sys.executable).with_name("trainwright"))
COMMANDS = ("explain", "describe", "events", "history", "get")
TARGET_SECONDS = 0.2


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


def wall(words: list[str], env: dict[str, str]) -> float:
    """Return the wall time of a command in seconds, the smallest of several runs. The first run is not counted."""
    best = float("inf")
    for number in range(TIMES + 1):
        began = perf_counter()
        subprocess.run(words, env=env, capture_output=True, check=True)  # noqa: S603
        best = min(best, perf_counter() - began) if number else best
    return best


def main() -> None:
    """Print one row per command."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TRAINWRIGHT_STATE": f"{folder}/state"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        file = Path(folder) / "job.yaml"
        run = [TRAINWRIGHT, "run", "--runtime", "process", str(file)]
        file.write_text(json.dumps(job("failed", 4, "echo 'ValueError: bad'; exit 3")))
        subprocess.run(run, env=env, capture_output=True, check=False)  # noqa: S603
        file.write_text(json.dumps(job("live", 4, "sleep 600")))
        live = subprocess.Popen(run, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        try:
            sleep(3)
            floor = wall([sys.executable, "-c", "pass"], env)
            print(f"{'bare Python (floor)':28} {floor * 1000:6.0f} ms")
            for name in ("failed", "live"):
                for command in COMMANDS:
                    spent = wall([TRAINWRIGHT, command, name], env)
                    note = "" if command != "explain" or spent <= TARGET_SECONDS else "  above the target of 200 ms"
                    print(f"{command + ' ' + name:28} {spent * 1000:6.0f} ms{note}")
        finally:
            live.send_signal(signal.SIGINT)
            live.wait()


if __name__ == "__main__":
    main()
