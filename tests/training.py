# SPDX-License-Identifier: Apache-2.0
"""The elastic trainer of `examples/aitrainingjob/elastic.yaml` as tests see it: its manifest, its curve, its processes.

Whatever happens to it, the loss of a step is that of an undisturbed run, so `Training.check` can tell whether it went
on or began anew, and `Training.lost` what a fault cost. For `tests/examples`, `tests/e2e` and `tests/cluster`.
"""

import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from msgspec import Struct

from patience import PATIENCE

Body = dict[str, Any]
EXAMPLE = Path(__file__).parents[1] / "examples" / "aitrainingjob" / "elastic.yaml"
PORT = 24446
#: Its output, and when it came, also goes where it outlives the pod.
RECORD = """
import os, time
def print(text, say=print):
    say(text)
    with open(os.path.join(os.environ["CHECKPOINTS"], "said-" + os.environ["TRAININGJOB_REPLICA_INDEX"]), "a") as file:
        file.write(f"{time.time()} {text}\\n")
"""
#: And it makes its steps without a pause once there is a file of that name beside its checkpoint.
HURRY = "time.sleep(pace)", 'os.path.exists(os.path.join(env["CHECKPOINTS"], "hurry")) or time.sleep(pace)'


class Point(Struct, frozen=True):
    """One step of the training."""

    at: float
    step: int
    world: int
    loss: float


def job() -> Body:
    """The manifest, without its volume."""
    *_, body = yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8"))
    return dict(body)


def program() -> str:
    """What its containers run."""
    (container,) = job()["spec"]["replicaSpecs"]["trainer"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["python3", "-uc"]
    return str(container["command"][2])


def environment(folder: Path, steps: int, rank: int, hosts: list[str]) -> dict[str, str]:
    """What a job would tell a trainer; nothing else is needed to start one by hand."""
    return {
        "TRAININGJOB_NAME": "elastic",
        "TRAININGJOB_REPLICA_INDEX": str(rank),
        "TRAININGJOB_REPLICA_RESTARTCOUNT": "0",
        "TRAINER_HOSTS": ",".join(hosts),
        "STEPS": str(steps),
        "PACE": "0",
        "PATIENCE": "20",
        "CHECKPOINTS": str(folder),
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": os.environ["PATH"],
    }


@cache
def undisturbed(steps: int) -> dict[int, float]:
    """The loss of each step, where nothing happens."""
    with TemporaryDirectory() as folder:
        made = Training(Path(folder), steps)
        env = environment(made.folder, steps, 0, ["127.0.0.1:0"])
        words = [sys.executable, "-c", RECORD + program()]
        subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
        return {point.step: point.loss for point in made.points}


class Training:
    """One training, whose checkpoint and output are in a folder of the test."""

    def __init__(self, folder: Path, steps: int, pace: float = 0.0) -> None:
        self.folder, self.steps, self.pace = folder, steps, pace
        folder.mkdir(exist_ok=True)

    # -- its manifest ------------------------------------------------------------------------------------------------

    def manifest(self, name: str = "elastic", pod: Body | None = None, **role: Any) -> Body:
        """The job, with that folder in place of its claim; `role` and `pod` are added to what it says of trainers."""
        body = job()
        body["metadata"]["name"] = name
        trainers = body["spec"]["replicaSpecs"]["trainer"]
        trainers |= role
        template = trainers["template"]["spec"]
        (container,) = template["containers"]
        container["command"] = ["python3", "-uc", RECORD + program().replace(*HURRY)]
        given = {"STEPS": str(self.steps), "PACE": str(self.pace), "CHECKPOINTS": str(self.folder)}
        known = {one["name"]: one["value"] for one in container["env"]} | given
        container["env"] = [{"name": key, "value": value} for key, value in known.items()]
        container["volumeMounts"] = [{"name": "checkpoints", "mountPath": str(self.folder)}]
        container["resources"] = (pod or {}).pop("resources", {})
        template["volumes"] = [{"name": "checkpoints", "hostPath": {"path": str(self.folder)}}]
        template |= pod or {}
        return body

    def hurry(self) -> None:
        """Let it come to its end: what happens in the middle of it has happened."""
        (self.folder / "hurry").touch()

    # -- what it says ------------------------------------------------------------------------------------------------

    def lines(self, rank: int = 0) -> list[tuple[float, str]]:
        """What a trainer said, over all its lives, and when."""
        path = self.folder / f"said-{rank}"
        parts = [line.partition(" ") for line in path.read_text().splitlines()] if path.exists() else []
        return [(float(at), text) for at, _, text in parts if text]

    def said(self, rank: int = 0) -> str:
        """The same, as one text."""
        return "\n".join(text for _, text in self.lines(rank))

    @property
    def points(self) -> list[Point]:
        """The steps that were made, in the order in which they were."""
        found = [(at, re.match(r"step +(\d+)/\d+  world (\d+)  loss ([\d.]+)", text)) for at, text in self.lines()]
        return [Point(at, int(line[1]), int(line[2]), float(line[3])) for at, line in found if line]

    @property
    def step(self) -> int:
        """How far it has come."""
        return max((point.step for point in self.points), default=0)

    @property
    def worlds(self) -> list[int]:
        """How many there were, in the order in which that changed."""
        sizes = [point.world for point in self.points]
        return [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before]

    # -- judging it --------------------------------------------------------------------------------------------------

    def check(self, repeated: int = 0) -> None:
        """Every step was made, at most so many of them twice, each to the loss that it always has.

        One that is asked to end saves what it has, and may do so when a step was told but not yet counted.
        """
        steps = [point.step for point in self.points]
        assert sorted(set(steps)) == list(range(1, self.steps + 1)), self.said()
        assert len(steps) - self.steps <= repeated, self.said()
        known = undisturbed(self.steps)
        assert [point for point in self.points if abs(point.loss - known[point.step]) > 2e-6] == []
        assert re.search(r"^trained: [\d.]+% of the digits are known$", self.said(), re.MULTILINE), self.said()
        assert list(self.folder.glob("*.npy*")) == []

    def lost(self, since: float) -> str:
        """What a fault at that time cost so far: the longest wait for a step not made before, and what was repeated."""
        reached: dict[int, float] = {}
        for point in self.points:
            reached.setdefault(point.step, point.at)
        gaps = {step: at - reached[step - 1] for step, at in reached.items() if step > 1}
        longest = max(gap for step, gap in gaps.items() if reached[step] > since)
        again = len([point for point in self.points if point.at > since and reached[point.step] < point.at])
        return f"{longest - statistics.median(gaps.values()):.1f} s lost, {again} steps made again"

    # -- its processes -----------------------------------------------------------------------------------------------

    def process(self, rank: int, patience: float = PATIENCE) -> int:
        """The process of a trainer, as this machine knows it."""
        deadline = time.monotonic() + patience
        while not (found := self._processes(rank)):
            assert time.monotonic() < deadline, f"there is no trainer {rank}"
            time.sleep(0.05)
        return found[-1]

    def _processes(self, rank: int) -> list[int]:
        marks = {f"CHECKPOINTS={self.folder}".encode(), f"TRAININGJOB_REPLICA_INDEX={rank}".encode()}
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[1:2] == [b"-uc"] and marks <= set((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
        return found

    def until(self, step: int, patience: float = PATIENCE) -> float:
        """Wait until it has come so far; the time."""
        deadline = time.monotonic() + patience
        while self.step < step:
            assert time.monotonic() < deadline, f"step {step} is never made: {self.said()[-2000:]}"
            time.sleep(0.02)
        return time.time()
