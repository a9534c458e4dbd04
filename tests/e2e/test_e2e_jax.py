# SPDX-License-Identifier: Apache-2.0
"""JAXJobs that train with JAX: several processes on parts of the data have the losses of one process on all of it.

`make test-jax` installs JAX, in an environment of its own, and runs these; nothing else does.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_workspace import FinishedCommand, Workspace

from single_process import EXAMPLES, PATIENCE, accuracy, figure, losses, single_process

pytest_plugins = ["e2e_fixtures"]
pytestmark = pytest.mark.jax

PROGRAMS = Path(sys.prefix) / "jax" / "bin"
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def alone() -> str:
    """What one process prints."""
    coordinator = {"COORDINATOR_ADDRESS": "127.0.0.1", "COORDINATOR_PORT": "{port}"}
    python = PROGRAMS / "python3"
    return single_process("jaxjob/train.yaml", "Worker", python, NUM_PROCESSES="1", PROCESS_ID="0", **coordinator)


def trained(workspace: Workspace, name: str, *options: str) -> FinishedCommand:
    """An example, run to its end with the Python that has JAX."""
    env = workspace.env | {"PATH": os.pathsep.join([str(PROGRAMS), workspace.env["PATH"]])}
    return workspace.start("run", *options, str(EXAMPLES / "jaxjob" / f"{name}.yaml"), env=env).end(PATIENCE)


def test_one_process_learns(alone: str) -> None:
    assert len(losses(alone)) == 40
    assert losses(alone)[0] > 2
    assert losses(alone)[-1] < 0.05
    assert accuracy(alone) > 0.99


@pytest.mark.parametrize("size", [2, 3])
def test_processes_train_one_network_together(
    workspace: Workspace, size: int, alone: str, record_property: Record
) -> None:
    done = trained(workspace, "train", "--set", f"spec.jaxReplicaSpecs.Worker.replicas={size}")

    assert done.code == 0, done.said
    for rank in range(size):
        assert f"Worker-{rank} | process {rank} of {size}: {size} devices" in done.out, done.out
    assert losses(done.out) == pytest.approx(losses(alone), abs=1e-4), done.out
    assert accuracy(done.out) == accuracy(alone)
    record_property("figure", figure(f"JAX, {size} processes, {workspace.runtime}", done.out))


def test_two_processes_compute_a_sum(sandbox: Workspace) -> None:
    done = trained(sandbox, "psum")

    assert done.code == 0, done.said
    for rank in (0, 1):
        assert f"Worker-{rank} | process {rank} of 2: the sum is 2.0" in done.out, done.out
