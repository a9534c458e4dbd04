# SPDX-License-Identifier: Apache-2.0
"""PyTorchJobs that train with PyTorch under the operator, on two `trainwright node` agents of a real control plane.

`make test-torch` runs these with a Python that has PyTorch; nothing else does.
"""

from collections.abc import Callable, Iterator

import pytest
from cluster_client import until
from cluster_plane import ControlPlane
from cluster_training import PATIENCE, Body, TrainingJobs, training_plane

from single_process import accuracy, figure, losses
from torch_training import PROGRAMS, STEPS, check_continued, ddp_alone, steps
from torch_training import figure as elastic_figure

pytest_plugins = ("cluster_fixtures",)
pytestmark = pytest.mark.torch
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with training_plane(tmp_path_factory.mktemp("torch"), PROGRAMS) as plane:
        yield plane


@pytest.fixture
def jobs(plane: ControlPlane, namespace: str) -> TrainingJobs:
    return TrainingJobs(plane, namespace, "pytorchjob")


def test_a_master_and_workers_on_two_nodes_train_one_network_together(
    jobs: TrainingJobs, record_property: Record
) -> None:
    name = jobs.start("ddp")
    until(lambda: jobs.nodes(name) == {"east", "west"}, "they are on both nodes")
    jobs.end(name)
    said = jobs.log(f"{name}-master-0")

    for rank, replica in enumerate(["master-0", "worker-0", "worker-1"]):
        assert f"rank {rank} of 3: PyTorch" in jobs.log(f"{name}-{replica}")
    assert losses(said) == pytest.approx(losses(ddp_alone()), abs=1e-4)
    assert accuracy(said) == accuracy(ddp_alone())
    record_property("figure", figure("PyTorch DDP, 3 processes on 2 nodes", said))


def short(job: Body) -> None:
    """A training of few steps."""
    (main,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    main["env"] = [one | ({"value": str(STEPS)} if one["name"] == "STEPS" else {}) for one in main["env"]]


@pytest.mark.parametrize("lost", ["worker-2", "worker-0"], ids=["worker", "rendezvous"])
def test_a_job_that_loses_a_pod_continues(jobs: TrainingJobs, lost: str, record_property: Record) -> None:
    """Without the rendezvous of worker 0, torchrun ends in all workers. All are restarted, and meet there again."""
    name = jobs.start("torchrun", short)
    first = f"{name}-worker-0"
    until(lambda: any(step.number >= 13 for step in steps(jobs.log(first))), "it is past a checkpoint", PATIENCE)
    before, pods = jobs.log(first), jobs.pods(name)
    jobs.lose(f"{name}-{lost}")
    jobs.end(name)
    said = jobs.log(first)

    assert jobs.pods(name)[lost]["metadata"]["uid"] != pods[lost]["metadata"]["uid"]
    check_continued(said)
    if lost == "worker-0":  # its log begins anew with its pod
        assert steps(said)[0].number > 1
        said = before + said
    record_property("figure", elastic_figure(f"PyTorch elastic on 2 nodes, {lost} deleted", said))
