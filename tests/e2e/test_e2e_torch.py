# SPDX-License-Identifier: Apache-2.0
"""PyTorchJobs that train with PyTorch: DDP with the losses of one process, and elastic jobs that lose workers.

`make test-torch` runs these with a Python that has PyTorch; nothing else does.
"""

import os
import re
from collections.abc import Callable

import pytest
from e2e_workspace import RunningCommand, Workspace, until

from single_process import EXAMPLES, PATIENCE, accuracy, figure, losses
from torch_training import PROGRAMS, STEPS, check_continued, ddp_alone, steps, worlds
from torch_training import figure as elastic_figure

pytest_plugins = ["e2e_fixtures"]
pytestmark = pytest.mark.torch

JOB = "pytorch-torchrun"
Record = Callable[[str, object], None]


def started(workspace: Workspace, name: str, *options: str) -> RunningCommand:
    """An example, run with the Python that has PyTorch."""
    env = workspace.env | {"PATH": os.pathsep.join([str(PROGRAMS), workspace.env["PATH"]])}
    return workspace.start("run", *options, str(EXAMPLES / "pytorchjob" / f"{name}.yaml"), env=env)


def elastic(workspace: Workspace) -> RunningCommand:
    """The elastic example, until it has made some steps after its first checkpoint."""
    path = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[pytorch].env"
    run = started(workspace, "torchrun", "--set", f"{path}[STEPS].value='{STEPS}'")
    wait_for_step(run, 13)
    return run


def wait_for_step(run: RunningCommand, number: int, world: int = 3) -> None:
    def made() -> bool:
        assert run.process.poll() is None, run.said
        return any(step.world == world and step.number >= number for step in steps(run.said))

    until(made, f"step {number} with {world} workers", PATIENCE)


def trainer(run: RunningCommand, rank: int) -> str:
    """The process id of a training process in its pod."""
    return str(re.findall(rf"process (\d+) is rank {rank} of", run.said)[-1])


def test_one_process_learns() -> None:
    alone = ddp_alone()

    assert len(losses(alone)) == 40
    assert losses(alone)[0] > 2
    assert losses(alone)[-1] < 0.05
    assert accuracy(alone) > 0.99


def test_a_master_and_workers_train_one_network_together(workspace: Workspace, record_property: Record) -> None:
    done = started(workspace, "ddp").end(PATIENCE)

    assert done.code == 0, done.said
    for rank, replica in enumerate(["Master-0", "Worker-0", "Worker-1"]):
        assert f"{replica} | rank {rank} of 3: PyTorch" in done.out, done.out
    assert losses(done.out) == pytest.approx(losses(ddp_alone()), abs=1e-4), done.out
    assert accuracy(done.out) == accuracy(ddp_alone())
    record_property("figure", figure(f"PyTorch DDP, 3 processes, {workspace.runtime}", done.out))


def test_torchrun_replaces_a_killed_training_process(sandbox: Workspace, record_property: Record) -> None:
    run = elastic(sandbox)
    assert sandbox.run("exec", JOB, "worker-2", "--", "kill", "-9", trainer(run, 2)).code == 0
    done = run.end(PATIENCE)

    assert done.code == 0, done.said
    # torchrun starts it again: the pod does not end.
    assert re.search(rf"^{JOB} succeeded after [\dms.]+$", done.out, re.M), done.out
    check_continued(done.out)
    record_property("figure", elastic_figure("PyTorch elastic, a killed training process", done.out))


@pytest.mark.parametrize(("rank", "restarts"), [(2, 1), (0, 3)], ids=["worker", "rendezvous"])
def test_a_job_that_loses_a_worker_continues(
    sandbox: Workspace, rank: int, restarts: int, record_property: Record
) -> None:
    """Without the rendezvous of worker 0, torchrun ends in all workers. All are restarted, and meet there again."""
    run = elastic(sandbox)
    torchrun = f"kill -9 $(sed -n 's/PPid:\\s*//p' /proc/{trainer(run, rank)}/status)"
    sandbox.run("exec", JOB, f"worker-{rank}", "--", "sh", "-c", torchrun)
    done = run.end(PATIENCE)

    assert done.code == 0, done.said
    assert int(re.findall(rf"^{JOB} succeeded after .*, (\d) restarts?$", done.out, re.M)[0]) >= restarts, done.out
    check_continued(done.out)
    record_property("figure", elastic_figure(f"PyTorch elastic, a killed worker {rank}", done.out))


def test_a_job_goes_on_with_two_workers_and_with_three_again(sandbox: Workspace, record_property: Record) -> None:
    run = elastic(sandbox)
    assert sandbox.run("scale", JOB, "worker=2").code == 0
    wait_for_step(run, 23, world=2)
    assert sandbox.run("scale", JOB, "worker=3").code == 0
    done = run.end(PATIENCE)

    assert done.code == 0, done.said
    assert worlds(done.out) == [3, 2, 3]
    check_continued(done.out, times=2)
    record_property("figure", elastic_figure("PyTorch elastic, scaled", done.out))
