# SPDX-License-Identifier: Apache-2.0
"""TFJobs that train with TensorFlow, to a lower loss, and on from a checkpoint when a worker was killed.

`make test-tensorflow` installs it and runs these; nothing else does.
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
pytestmark = pytest.mark.tensorflow

TFJOB = EXAMPLES / "tfjob"
#: Importing TensorFlow alone takes ten seconds where others are at work too.
PATIENCE = 180.0


def started(workspace: Workspace, name: str, *options: str) -> RunningCommand:
    """An example, run with the Python that has TensorFlow."""
    path = os.pathsep.join([str(Path(sys.prefix) / "bin"), workspace.env["PATH"]])
    return workspace.start("run", *options, str(TFJOB / f"{name}.yaml"), env=workspace.env | {"PATH": path})


def losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss +([\d.]+)", said)]


def steps(said: str) -> list[int]:
    return [int(step) for step in re.findall(r"Worker-0 \| step +(\d+)/", said)]


def wait_for(run: RunningCommand, text: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while text not in run.said:
        assert time.monotonic() < deadline, run.said
        assert run.process.poll() is None, run.said
        time.sleep(0.05)


def env(name: str, value: str) -> tuple[str, str]:
    return "--set", f"spec.tfReplicaSpecs.Worker.template.spec.containers[tensorflow].env[{name}].value='{value}'"


def test_two_workers_train_one_model_together(sandbox: Workspace) -> None:
    done = started(sandbox, "multi-worker", *env("STEPS", "40"), *env("PACE", "0")).end(PATIENCE)

    assert done.code == 0, done.said
    assert steps(done.out) == list(range(1, 41))
    assert losses(done.out)[0] > 10
    assert losses(done.out)[-1] < 0.1
    assert re.search(r"Worker-0 \| found y = 3\.0\d x \+ 1\.9\d, true is y = 3 x \+ 2", done.out), done.out


def test_a_worker_that_is_killed_goes_on_from_the_checkpoint(sandbox: Workspace) -> None:
    run = started(sandbox, "multi-worker", *env("STEPS", "40"), *env("PACE", "0.1"))
    wait_for(run, "step 15/40")
    before = run.said

    victims = [pid for pid, words in sandbox.pids("MultiWorkerMirrored").items() if "python3 -uc" in words]
    killed = max(victims)
    os.kill(killed, signal.SIGKILL)
    done = run.end(PATIENCE)

    assert done.code == 0, done.said
    assert "killed by SIGKILL" in done.out
    assert "job multi-worker is restarting because Worker replica(s) failed." in done.out
    assert done.out.count("goes on from step 10") == 2, done.out
    known = dict(zip(steps(before), losses(before), strict=True))
    after = done.out[done.out.index("goes on from step 10") :]
    assert steps(after) == list(range(11, 41))
    # The same data and the same parameters: what was trained twice comes out alike.
    for step, loss in zip(steps(after), losses(after), strict=True):
        assert step not in known or abs(known[step] - loss) < 0.01
    assert losses(after)[0] < losses(before)[0] / 5
    assert losses(after)[-1] < 0.1


def test_a_chief_trains_with_workers_and_parameter_servers(workspace: Workspace) -> None:
    done = started(workspace, "dist-mnist").end(PATIENCE)

    assert done.code == 0, done.said
    assert "2 workers, 2 servers" in done.out
    assert "the parameters are held by task:0 task:1" in done.out
    assert len(losses(done.out)) == 8
    assert losses(done.out)[-1] < losses(done.out)[0] / 2
    shutil.rmtree(workspace.home / ".keras", ignore_errors=True)  # not ours, but left in the home of a plain process


@pytest.mark.parametrize(
    ("name", "says"), [("mnist", "summaries: events.out.tfevents"), ("smoke", "2 replicas in step")]
)
def test_the_other_examples_run(sandbox: Workspace, name: str, says: str) -> None:
    done = started(sandbox, name).end(PATIENCE)

    assert done.code == 0, done.said
    assert says in done.out
