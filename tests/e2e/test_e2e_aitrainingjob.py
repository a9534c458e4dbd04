# SPDX-License-Identifier: Apache-2.0
"""Real training that goes on whatever happens to it: an elastic AITrainingJob on this machine, and what a fault costs.

The trainer needs NumPy, so pods find the Python of these tests first. Every test ends with the whole curve: all steps,
each to the loss that it has in an undisturbed run.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_workspace import EXAMPLES, RunningCommand, Workspace, until

from training import Training

pytest_plugins = ["e2e_fixtures"]

Tell = Callable[[str, object], None]


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path / "training", steps=50, pace=0.04)


def started(workspace: Workspace, *words: str | dict[str, object]) -> RunningCommand:
    """A run whose pods find the Python that has NumPy."""
    path = os.pathsep.join([str(Path(sys.prefix) / "bin"), workspace.env["PATH"]])
    return workspace.start("run", *words, env=workspace.env | {"PATH": path})


def ended(run: RunningCommand) -> str:
    """What it said, once it has succeeded."""
    done = run.end()
    assert done.code == 0, done.said
    return done.said


def test_the_example_trains(sandbox: Workspace) -> None:
    role = "spec.replicaSpecs.trainer"
    pace = f"{role}.template.spec.containers[aitj-trainer].env[PACE].value='0'"
    example = str(EXAMPLES / "aitrainingjob" / "elastic.yaml")
    said = ended(started(sandbox, "--set", f"{role}.replicas=3", "--set", pace, example))

    assert re.search(r"trainer-0 \| step 100/100  world 3  loss 0\.\d+", said), said
    assert re.search(r"trainer-0 \| trained: 9\d\.\d% of the digits are known", said), said


@pytest.mark.parametrize(("rank", "again"), [(2, 0), (0, 9)], ids=["another", "the one that leads"])
def test_it_survives_the_kill_of_a_pod(
    workspace: Workspace, training: Training, record_property: Tell, rank: int, again: int
) -> None:
    run = started(workspace, training.manifest())
    training.until(15)
    fault = time.time()
    os.kill(training.process(rank), signal.SIGKILL)
    training.hurry()  # the others wait for it
    said = ended(run)

    training.check(repeated=again)
    assert training.worlds == [4]
    assert re.search(rf"trainer {rank} of 4, restarts 1$", training.said(rank), re.MULTILINE)
    assert [training.said(other).count("process ") for other in range(4) if other != rank] == [1, 1, 1], said
    record_property("figure", f"a pod is killed ({workspace.runtime}, trainer {rank}): {training.lost(fault)}")


@pytest.mark.parametrize("leader", [False, True], ids=["without", "with the one that leads"])
def test_it_survives_the_loss_of_a_node(
    workspace: Workspace, training: Training, record_property: Tell, leader: bool
) -> None:
    """One of three, whose agent is killed -9: what ran there goes on elsewhere."""
    run = started(workspace, "--nodes", "3", training.manifest())
    training.until(15)
    home = node_of(run, 0)
    lost = home if leader else next(node for node in ("node-0", "node-1", "node-2") if node != home)
    fault = time.time()
    os.kill(agent_of(workspace, lost), signal.SIGKILL)
    until(lambda: any("\nlost " in training.said(rank) for rank in range(4)), "those that are left notice it")
    training.hurry()
    said = ended(run)

    training.check(repeated=9 if leader else 0)
    assert f"{lost} is lost: its agent" in said
    assert set(training.worlds) == {4}
    what = "trainer 0's" if leader else "another"
    record_property("figure", f"a node is lost ({workspace.runtime}, {what}): {training.lost(fault)}")


def node_of(run: RunningCommand, rank: int) -> str:
    found = re.findall(rf"trainer-{rank} +.*(node-\d)", run.said)
    assert found, run.said
    return str(found[-1])


def agent_of(workspace: Workspace, node: str) -> int:
    """The process of that node's agent."""
    agents = workspace.pids("trainwright.local.agent_main")
    (found,) = (pid for pid, words in agents.items() if f'"node":"{node}"' in words)
    return found


def test_it_becomes_smaller_when_a_node_is_lost_and_larger_when_it_returns(
    sandbox: Workspace, tmp_path: Path, record_property: Tell
) -> None:
    """Two nodes with two GPUs each, one for each trainer: 4, 2 and 4 again.

    The node returns when its pods are lost (5 s). It then gets none of this job for 10 s, so two trainers stay without
    a place for the 3 s after which a role becomes smaller.
    """
    training = Training(tmp_path / "training", steps=150, pace=0.4)
    body = training.manifest(pod={"resources": {"limits": {"nvidia.com/gpu": 1}}})
    run = started(sandbox, "--nodes", "2", "--gpus", "4", "--revive", "6s", body)
    fault = training.until(3)
    os.kill(agent_of(sandbox, "node-1"), signal.SIGKILL)
    until(lambda: training.worlds == [4, 2], f"two go on: {run.said}")
    training.until(training.step + 10)
    smaller, grown = training.lost(fault), time.time()
    until(lambda: training.worlds == [4, 2, 4], f"four go on: {run.said}")
    training.hurry()
    said = ended(run)

    training.check(repeated=12)
    assert "TrainingJobScaled: trainer is scaled from 4 to 2 replicas: 2 of 4 pods found no place" in said
    assert "TrainingJobScaled: trainer is scaled from 2 to 4 replicas: there is room for 2 more" in said
    record_property("figure", f"4 trainers become 2: {smaller}")
    record_property("figure", f"2 trainers become 4: {training.lost(grown)}")


def test_it_is_scaled_by_hand(workspace: Workspace, tmp_path: Path, record_property: Tell) -> None:
    training = Training(tmp_path / "training", steps=200, pace=0.15)  # commands take their time, too
    run = started(workspace, training.manifest(edlPolicy="Manual"))
    training.until(15)
    fault = time.time()
    assert workspace.run("scale", "elastic", "trainer=2").code == 0
    until(lambda: training.worlds == [4, 2], f"two go on: {training.said()}")
    smaller, grown = training.lost(fault), time.time()
    assert re.search(r"trainer-1 +Running +node-0 +0 ", workspace.run("get", "elastic").out)  # which was no restart
    assert workspace.run("scale", "elastic", "trainer=4").code == 0
    until(lambda: training.worlds == [4, 2, 4], f"four go on: {training.said()}")
    training.hurry()
    ended(run)

    training.check(repeated=2)
    assert training.worlds == [4, 2, 4]
    record_property("figure", f"4 trainers become 2 by hand ({workspace.runtime}): {smaller}")
    record_property("figure", f"2 trainers become 4 by hand ({workspace.runtime}): {training.lost(grown)}")


def test_what_was_preempted_goes_on_when_it_is_submitted_again(
    workspace: Workspace, training: Training, record_property: Tell
) -> None:
    body = training.manifest()
    run = started(workspace, body)
    training.until(15)
    fault = time.time()
    assert workspace.run("annotate", "elastic", "Preempted=room is needed").code == 0
    done = run.end()
    assert done.code == 1, done.said
    assert "Preempted" in done.out
    assert "room is needed" in done.out
    before = training.step

    training.hurry()
    ended(started(workspace, body))

    training.check(repeated=1)
    (on,) = re.findall(r"goes on from step (\d+), saved ", training.said())
    assert before - 1 <= int(on) <= before
    record_property("figure", f"preempted, submitted again ({workspace.runtime}): {training.lost(fault)}")
