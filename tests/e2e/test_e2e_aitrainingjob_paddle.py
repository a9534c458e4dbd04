# SPDX-License-Identifier: Apache-2.0
"""An AITrainingJob that trains with PaddlePaddle: the program of the PaddleJob finds its peers by other variables.

`make test-paddle` installs it, in an environment of its own, and runs these; nothing else does.
"""

import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from e2e_workspace import EXAMPLES, RunningCommand, Workspace

pytest_plugins = ["e2e_fixtures"]
pytestmark = pytest.mark.paddle

EXAMPLE = EXAMPLES / "aitrainingjob" / "paddle.yaml"
PATIENCE = 180.0


def started(workspace: Workspace, pace: float) -> RunningCommand:
    """The example, run with the Python that has PaddlePaddle."""
    where = "spec.replicaSpecs.trainer.template.spec.containers[aitj-trainer].env[PACE].value"
    path = os.pathsep.join([str(Path(sys.prefix) / "paddle" / "bin"), workspace.env["PATH"]])
    return workspace.start("run", "--set", f"{where}='{pace}'", str(EXAMPLE), env=workspace.env | {"PATH": path})


def losses(said: str, rank: int = 0) -> list[float]:
    return [float(loss) for loss in re.findall(rf"trainer-{rank} \| step +\d+/40  loss +([\d.]+)", said)]


def test_two_trainers_train_one_model_together(workspace: Workspace) -> None:
    done = started(workspace, 0).end(PATIENCE)

    assert done.code == 0, done.said
    assert re.search(r"trainer-1 \| process \d+ is trainer 1 of 2, PaddlePaddle 3", done.out), done.out
    assert len(losses(done.out)) == 8
    assert losses(done.out)[-1] < losses(done.out)[0] / 5
    assert losses(done.out, 1) == losses(done.out)
    shutil.rmtree(workspace.home / ".cache", ignore_errors=True)  # not ours, but left in the home of a plain process


def test_both_begin_anew_when_one_is_killed(sandbox: Workspace) -> None:
    run = started(sandbox, 0.1)
    deadline = time.monotonic() + PATIENCE
    while "trainer-1 | step 10/40" not in run.said:
        assert time.monotonic() < deadline, run.said
        assert run.process.poll() is None, run.said
        time.sleep(0.05)
    victims = [pid for pid, words in sandbox.pids("is_collective=True").items() if words.startswith("python3 -uc")]
    os.kill(max(victims), signal.SIGKILL)
    done = run.end(PATIENCE)

    assert done.code == 0, done.said
    assert "TrainingJobRestarting: restart times is 1" in done.out
    assert losses(done.out)[:2] == losses(done.out)[-8:-6]
    assert losses(done.out)[-1] < losses(done.out)[0] / 5
