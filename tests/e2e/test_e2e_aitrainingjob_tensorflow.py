# SPDX-License-Identifier: Apache-2.0
"""An AITrainingJob that trains with TensorFlow: the program of the TFJob, which finds its peers by other variables.

`make test-tensorflow` installs it and runs these; nothing else does.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from e2e_workspace import EXAMPLES, RunningCommand, Workspace

pytest_plugins = ["e2e_fixtures"]
pytestmark = pytest.mark.tensorflow

EXAMPLE = EXAMPLES / "aitrainingjob" / "tensorflow.yaml"
#: Importing TensorFlow alone takes ten seconds where others are at work too.
PATIENCE = 180.0


def started(workspace: Workspace, **env: str) -> RunningCommand:
    """The example, run with the Python that has TensorFlow, and other settings."""
    where = "spec.replicaSpecs.trainer.template.spec.containers[aitj-trainer].env"
    words = [word for name, value in env.items() for word in ("--set", f"{where}[{name}].value='{value}'")]
    path = os.pathsep.join([str(Path(sys.prefix) / "bin"), workspace.env["PATH"]])
    return workspace.start("run", *words, str(EXAMPLE), env=workspace.env | {"PATH": path})


def curve(said: str) -> list[tuple[int, float]]:
    """Step and loss, as trainer 0 says them."""
    found = re.findall(r"trainer-0 \| step +(\d+)/\d+  loss +([\d.]+)", said)
    return [(int(step), float(loss)) for step, loss in found]


def test_two_trainers_train_one_model_together(sandbox: Workspace) -> None:
    done = started(sandbox, STEPS="40", PACE="0").end(PATIENCE)

    assert done.code == 0, done.said
    assert [step for step, _ in curve(done.out)] == list(range(1, 41))
    losses = [loss for _, loss in curve(done.out)]
    assert losses[0] > 10
    assert losses[-1] < 0.1
    assert re.search(r"trainer-0 \| found y = 3\.0\d x \+ 1\.9\d, true is y = 3 x \+ 2", done.out), done.out


def test_both_go_on_from_the_checkpoint_when_one_is_killed(sandbox: Workspace) -> None:
    run = started(sandbox, STEPS="40", PACE="0.1")
    deadline = time.monotonic() + PATIENCE
    while "step 15/40" not in run.said:
        assert time.monotonic() < deadline, run.said
        assert run.process.poll() is None, run.said
        time.sleep(0.05)
    before = dict(curve(run.said))
    os.kill(max(pid for pid, words in sandbox.pids("MultiWorkerMirrored").items() if "-uc" in words), signal.SIGKILL)
    done = run.end(PATIENCE)

    assert done.code == 0, done.said
    assert "killed by SIGKILL" in done.out
    assert "TrainingJobRestarting: restart times is " in done.out
    assert done.out.count("goes on from step 10") == 2, done.out
    after = curve(done.out[done.out.index("goes on from step 10") :])
    assert [step for step, _ in after] == list(range(11, 41))
    # The same data and the same parameters: what was trained twice comes out alike.
    assert [step for step, loss in after if step in before and abs(before[step] - loss) > 0.01] == []
    assert after[-1][1] < 0.1
