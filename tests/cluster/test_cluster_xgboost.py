# SPDX-License-Identifier: Apache-2.0
"""An XGBoostJob that trains with XGBoost under the operator, on two `trainwright node` agents of a real control plane.

`make test-xgboost` installs XGBoost and runs this; nothing else does.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_client import until
from cluster_plane import ControlPlane
from cluster_training import TrainingJobs, training_plane

from single_process import accuracy, figure, losses, single_process

pytest_plugins = ("cluster_fixtures",)
pytestmark = pytest.mark.xgboost
PROGRAMS = Path(sys.prefix) / "xgboost" / "bin"
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with training_plane(tmp_path_factory.mktemp("xgboost"), PROGRAMS) as plane:
        yield plane


def test_a_master_and_workers_on_two_nodes_train_one_model_together(
    plane: ControlPlane, namespace: str, record_property: Record
) -> None:
    jobs = TrainingJobs(plane, namespace, "xgboostjob")
    name = jobs.start("train")
    until(lambda: jobs.nodes(name) == {"east", "west"}, "they are on both nodes")
    jobs.end(name)
    said = jobs.log(f"{name}-master-0")

    for rank, replica in enumerate(["master-0", "worker-0", "worker-1"]):
        assert f"rank {rank} of 3: XGBoost" in jobs.log(f"{name}-{replica}")
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}
    alone = single_process("xgboostjob/train.yaml", "Master", PROGRAMS / "python3", WORLD_SIZE="1", RANK="0", **master)
    assert losses(said) == pytest.approx(losses(alone), abs=1e-4)
    assert accuracy(said) == accuracy(alone)
    record_property("figure", figure("XGBoost, 3 processes on 2 nodes", said))
