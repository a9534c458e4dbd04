# SPDX-License-Identifier: Apache-2.0
"""The elastic trainer of `examples/aitrainingjob/elastic.yaml`, started by hand with the environment that a job gives.

Its loss falls in the same way with any number of trainers, whoever dies: every test holds it against one undisturbed
run. Real processes and sockets, no engine.
"""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from examples_driver import address

from patience import PATIENCE
from training import PORT, RECORD, Training, environment, program, undisturbed

#: Not one at which it saves anyway.
STEPS = 42


class Trainers(Training):
    """Those of one job, and their processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, STEPS)
        self._live: list[subprocess.Popen[bytes]] = []

    def start(
        self, rank: int, world: int, *, change: tuple[str, str] = ("\n", "\n"), **more: float
    ) -> subprocess.Popen[bytes]:
        """One of them; `change` is something else in its program, `more` are other settings."""
        env = environment(self.folder, STEPS, rank, [f"{address(number)}:{PORT}" for number in range(world)])
        env |= {name.upper(): str(value) for name, value in more.items()}
        words = [sys.executable, "-uc", RECORD + program().replace(*change)]
        self._live.append(subprocess.Popen(words, env=env))
        return self._live[-1]

    def all(self, world: int, pace: float = 0.0) -> list[subprocess.Popen[bytes]]:
        """A whole world, trainer 0 last."""
        return [self.start(rank, world, pace=pace) for rank in reversed(range(world))][::-1]

    def wait_for(self, text: str, rank: int = 0) -> None:
        """Until it has said that."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said(rank):
            assert time.monotonic() < deadline, f"{text!r} is not in: {self.said(rank)}"
            time.sleep(0.005)

    def close(self) -> None:
        for one in self._live:
            one.kill()
            one.wait()


@pytest.fixture
def trainers(tmp_path: Path) -> Iterator[Trainers]:
    made = Trainers(tmp_path)
    yield made
    made.close()


def ends(*processes: subprocess.Popen[bytes]) -> list[int]:
    return [process.wait(PATIENCE) for process in processes]


def test_the_loss_falls() -> None:
    expected = undisturbed(STEPS)

    assert len(expected) == STEPS
    assert expected[1] > 2.2
    assert expected[STEPS] < 1.1


@pytest.mark.parametrize("world", [2, 3, 4])
def test_any_number_of_trainers_comes_to_the_same(trainers: Trainers, world: int) -> None:
    assert ends(*trainers.all(world)) == [0] * world
    trainers.check()
    assert trainers.worlds == [world]
    assert [f"in step with {world} from step 0 on" in trainers.said(rank) for rank in range(1, world)] == [True] * (
        world - 1
    )


@pytest.mark.parametrize("killed", [[1], [1, 2]], ids=["one", "two"])
def test_trainers_that_are_killed_join_again_and_no_step_is_lost(trainers: Trainers, killed: list[int]) -> None:
    running = trainers.all(3, pace=0.02)
    trainers.wait_for("step  15/")
    for rank in killed:
        running[rank].kill()
    trainers.wait_for("lost a trainer after step")
    again = [trainers.start(rank, 3) for rank in killed]

    assert ends(running[0], *again) == [0] * (1 + len(killed))
    trainers.check()
    assert re.search(r"^step .*  back after [\d.]+ s$", trainers.said(), re.MULTILINE)


def test_trainer_0_goes_on_from_the_last_tenth_step_when_it_is_killed(trainers: Trainers) -> None:
    running = trainers.all(3, pace=0.02)
    trainers.wait_for("step  15/")
    running[0].kill()
    trainers.wait_for("lost trainer 0 after step", 1)
    again = trainers.start(0, 3)

    assert ends(again, *running[1:]) == [0, 0, 0]
    assert "goes on from step 10, saved " in trainers.said()
    trainers.check(repeated=9)
    assert "in step with 3 from step 10 on" in trainers.said(1)


def test_trainer_0_saves_what_it_has_when_it_is_asked_to_end(trainers: Trainers) -> None:
    running = trainers.all(3, pace=0.02)
    trainers.wait_for("step  15/")
    running[0].terminate()
    assert ends(running[0]) == [143]
    again = trainers.start(0, 3)

    assert ends(again, *running[1:]) == [0, 0, 0]
    trainers.check(repeated=1)


@pytest.mark.parametrize("others", [(4, 2, 4), (1, 3, 2)], ids=str)
def test_the_next_world_may_be_of_another_size(trainers: Trainers, others: tuple[int, int, int]) -> None:
    """As when a job is scaled: all are asked to end, and others begin."""
    for world, text in zip(others, ("step  10/", "step  20/"), strict=False):
        running = trainers.all(world, pace=0.02)
        trainers.wait_for(text)
        for one in running:
            one.terminate()
        ends(*running)

    assert ends(*trainers.all(others[-1])) == [0] * others[-1]
    trainers.check(repeated=2)
    assert tuple(trainers.worlds) == others


def test_a_half_written_checkpoint_does_not_matter(trainers: Trainers) -> None:
    first = trainers.start(0, 1, pace=0.02)
    trainers.wait_for("step  15/")
    first.kill()
    ends(first)
    (trainers.folder / "elastic.npy.part").write_bytes(b"half of it")

    assert ends(trainers.start(0, 1)) == [0]
    trainers.check(repeated=9)


def test_trainer_0_needs_nobody_once_the_last_step_is_saved(trainers: Trainers) -> None:
    """It was killed after that, when the others had ended well: nobody starts those again."""
    died = trainers.start(0, 1, change=("time.sleep(pace)", "state[0] == steps and os.kill(os.getpid(), 9)"))
    assert ends(died) == [-signal.SIGKILL]

    assert ends(trainers.start(0, 2)) == [0]
    assert f"goes on from step {STEPS}" in trainers.said()
    trainers.check()


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_is_waited_for_for_ever(trainers: Trainers, rank: int) -> None:
    assert ends(trainers.start(rank, 2, patience=0.3)) == [75]
    assert "nobody came for 0.3 s: gave up waiting for" in trainers.said(rank)


def visit(says: bytes) -> None:
    """Once it listens."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(ConnectionRefusedError), socket.create_connection((address(0), PORT), 5) as visitor:
            visitor.sendall(says)
            return
        time.sleep(0.02)


@pytest.mark.parametrize(
    "says", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1\0\0\0\7"], ids=["nothing", "nonsense", "of another world"]
)
def test_a_visitor_does_not_disturb(trainers: Trainers, says: bytes) -> None:
    leader = trainers.start(0, 2)
    visit(says)

    assert ends(leader, trainers.start(1, 2)) == [0, 0]
    trainers.check()
    assert "lost" not in trainers.said()
