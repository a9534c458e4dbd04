# SPDX-License-Identifier: Apache-2.0
"""A JAXJob that trains with JAX under the operator, on two `trainwright node` agents of a real control plane.

`make test-jax` installs JAX and runs this; nothing else does.
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
pytestmark = pytest.mark.jax
PROGRAMS = Path(sys.prefix) / "jax" / "bin"
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with training_plane(tmp_path_factory.mktemp("jax"), PROGRAMS) as plane:
        yield plane


def test_processes_on_two_nodes_train_one_network_together(
    plane: ControlPlane, namespace: str, record_property: Record
) -> None:
    jobs = TrainingJobs(plane, namespace, "jaxjob")
    name = jobs.start("train")
    until(lambda: jobs.nodes(name) == {"east", "west"}, "they are on both nodes")
    jobs.end(name)
    said = jobs.log(f"{name}-worker-0")

    for rank in range(3):
        assert f"process {rank} of 3: 3 devices" in jobs.log(f"{name}-worker-{rank}")
    coordinator = {"COORDINATOR_ADDRESS": "127.0.0.1", "COORDINATOR_PORT": "{port}"}
    python = PROGRAMS / "python3"
    alone = single_process("jaxjob/train.yaml", "Worker", python, NUM_PROCESSES="1", PROCESS_ID="0", **coordinator)
    assert losses(said) == pytest.approx(losses(alone), abs=1e-4)
    assert accuracy(said) == accuracy(alone)
    record_property("figure", figure("JAX, 3 processes on 2 nodes", said))
