# SPDX-License-Identifier: Apache-2.0
"""XGBoostJobs that train with XGBoost: processes that have parts of the data grow the trees of one that has all of it.

`make test-xgboost` installs XGBoost, in an environment of its own, and runs these; nothing else does.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_workspace import Workspace

from single_process import EXAMPLES, PATIENCE, accuracy, figure, losses, single_process

pytest_plugins = ["e2e_fixtures"]
pytestmark = pytest.mark.xgboost

PROGRAMS = Path(sys.prefix) / "xgboost" / "bin"
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def alone() -> str:
    """What one process prints."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}
    return single_process("xgboostjob/train.yaml", "Master", PROGRAMS / "python3", WORLD_SIZE="1", RANK="0", **master)


def test_one_process_learns(alone: str) -> None:
    assert len(losses(alone)) == 20
    assert losses(alone)[0] > 0.4
    assert losses(alone)[-1] < 0.1
    assert accuracy(alone) > 0.95


@pytest.mark.parametrize("workers", [1, 2])
def test_a_master_and_workers_train_one_model_together(
    workspace: Workspace, workers: int, alone: str, record_property: Record
) -> None:
    env = workspace.env | {"PATH": os.pathsep.join([str(PROGRAMS), workspace.env["PATH"]])}
    size = ("--set", f"spec.xgbReplicaSpecs.Worker.replicas={workers}")
    done = workspace.start("run", *size, str(EXAMPLES / "xgboostjob" / "train.yaml"), env=env).end(PATIENCE)

    assert done.code == 0, done.said
    for rank, replica in enumerate(["Master-0", "Worker-0", "Worker-1"][: workers + 1]):
        assert f"{replica} | rank {rank} of {workers + 1}: XGBoost" in done.out, done.out
    assert losses(done.out) == pytest.approx(losses(alone), abs=1e-4), done.out
    assert accuracy(done.out) == accuracy(alone)
    record_property("figure", figure(f"XGBoost, {workers + 1} processes, {workspace.runtime}", done.out))
