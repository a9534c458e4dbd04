# SPDX-License-Identifier: Apache-2.0
"""The elastic trainer of `examples/pytorchjob/torchrun.yaml` as tests see it: what it prints, and how to judge it.

Whatever happens to it, the loss of a step is that of a single process that nothing disturbs. For `tests/e2e` and
`tests/cluster`.
"""

import itertools
import re
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec import Struct

from single_process import single_process

#: The Python that has PyTorch, and torchrun.
PROGRAMS = Path(sys.prefix) / "torch" / "bin"
#: Where the trainings of tests end, and how often they save.
STEPS, SAVED = 60, 10
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}


class Step(Struct, frozen=True):
    """One line of rank 0."""

    number: int
    world: int
    loss: float


@cache
def ddp_alone() -> str:
    """What the program of `ddp.yaml` prints if there is one process."""
    return single_process("pytorchjob/ddp.yaml", "Master", PROGRAMS / "python3", **_ALONE)


@cache
def undisturbed() -> tuple[Step, ...]:
    """The steps of one process, where nothing happens."""
    with TemporaryDirectory() as folder:
        given = {"STEPS": str(STEPS), "PACE": "0", "CHECKPOINT": f"{folder}/checkpoint"}
        return steps(single_process("pytorchjob/torchrun.yaml", "Worker", PROGRAMS / "python3", **_ALONE, **given))


def steps(said: str) -> tuple[Step, ...]:
    """In the order in which they were made."""
    found = re.findall(rf"\bstep (\d+)/{STEPS}  world (\d+)  loss ([\d.]+)", said)
    return tuple(Step(int(number), int(world), float(loss)) for number, world, loss in found)


def worlds(said: str) -> list[int]:
    """How many processes there were, in the order in which that changed."""
    sizes = [step.world for step in steps(said)]
    return [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before]


def check_continued(said: str, times: int = 1) -> None:
    """It began anew at least so often, always after the last checkpoint, and all steps have the losses they should.

    The log of a new pod begins after a checkpoint too. On a busy machine a worker may be back too late for one round of
    torchrun, and cause another.
    """
    known = {step.number: step.loss for step in undisturbed()}
    made = steps(said)
    assert [known[step.number] for step in made] == pytest.approx([step.loss for step in made], abs=1e-4), said
    numbers = [step.number for step in made]
    assert numbers[0] % SAVED == 1, said
    assert sorted(set(numbers)) == list(range(numbers[0], STEPS + 1)), said
    begins = [(before, now) for before, now in itertools.pairwise(numbers) if now != before + 1]
    assert [now for _, now in begins] == [before - before % SAVED + 1 for before, _ in begins], said
    assert len(re.findall(r"rank 0 of \d, from step [1-9]", said)) >= times, said


def figure(what: str, said: str) -> str:
    """For the end of the log."""
    made = steps(said)
    again = len(made) - len({step.number for step in made})
    passed = " → ".join(map(str, worlds(said)))
    return f"{what}: world {passed}, {again} steps made again, loss {made[0].loss:.6f} → {made[-1].loss:.6f}"
