# SPDX-License-Identifier: Apache-2.0
"""The examples that training-operator 1.9.4 publishes: each is valid as it is, and `plan` shows the right variables.

The tables are those of the contract. `{j}` is the name of the job.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from trainwright.cli.main import cli

PUBLISHED = Path(__file__).parent / "published"
_RANKS = (
    "PYTHONUNBUFFERED=1 MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR={j}-master-0 PET_MASTER_ADDR={j}-master-0"
    " WORLD_SIZE=%d RANK=%d PET_NODE_RANK=%d PET_NPROC_PER_NODE=%s PET_NNODES=%d"
)
_ELASTIC = (
    "LOGLEVEL=DEBUG PYTHONUNBUFFERED=1 PET_NPROC_PER_NODE=auto PET_RDZV_ENDPOINT={j}-worker-0:23456"
    " PET_RDZV_BACKEND=c10d PET_NNODES=%s PET_MAX_RESTARTS=100"
)
_XGBOOST = (
    "MASTER_PORT=9991 MASTER_ADDR={j}-master-0 WORLD_SIZE=3 RANK=%d PYTHONUNBUFFERED=1 WORKER_PORT=9991"
    " WORKER_ADDRS={j}-worker-0,{j}-worker-1"
)
_JAX = "PYTHONUNBUFFERED=1 COORDINATOR_PORT=6666 COORDINATOR_ADDRESS={j}-worker-0 NUM_PROCESSES=2 PROCESS_ID=%d"
_PADDLE = "PYTHONUNBUFFERED=1 PADDLE_JOB_ID={j} PADDLE_NNODES=2"
_PADDLES = {
    "worker-0": f"{_PADDLE} POD_IP_DUMMY=status.podIP PADDLE_MASTER=$(POD_IP_DUMMY):37777",
    "worker-1": f"{_PADDLE} PADDLE_MASTER={{j}}-worker-0:37777",
}
_JAXES = {f"worker-{index}": _JAX % index for index in range(2)}
_XGBOOSTS = {"master-0": _XGBOOST % 0, "worker-0": _XGBOOST % 1, "worker-1": _XGBOOST % 2}


def _pair(processes: str = "auto", world: int = 2) -> dict[str, str]:
    names = ("master-0", "worker-0")
    return {name: _RANKS % (world, rank, rank, processes, 2) for rank, name in enumerate(names)}


#: File -> pod -> its variables, in order.
EXPECTED: dict[str, dict[str, str]] = {
    "jax/cpu-demo/demo.yaml": _JAXES,
    "jax/jax-dist-spmd-mnist/jaxjob_dist_spmd_mnist_gloo.yaml": _JAXES,
    "paddlepaddle/simple-cpu.yaml": _PADDLES,
    "paddlepaddle/simple-gpu.yaml": _PADDLES,
    "pytorch/cpu-demo/demo.yaml": _pair("2", 4),
    "pytorch/deepspeed-demo/pytorch_deepspeed_demo.yaml": _pair(),
    "pytorch/elastic/echo/echo.yaml": {f"worker-{index}": _ELASTIC % "1:2" for index in range(2)},
    "pytorch/elastic/imagenet/imagenet.yaml": {f"worker-{index}": _ELASTIC % "1:3" for index in range(2)},
    "pytorch/mnist/v1/pytorch_job_mnist_gloo.yaml": _pair(),
    "pytorch/mnist/v1/pytorch_job_mnist_mpi.yaml": _pair(),
    "pytorch/mnist/v1/pytorch_job_mnist_nccl.yaml": _pair(),
    "pytorch/simple.yaml": _pair(),
    "pytorch/smoke-dist/pytorch_job_sendrecv.yaml": {
        name: _RANKS % (4, rank, rank, "auto", 4)
        for rank, name in enumerate(("master-0", "worker-0", "worker-1", "worker-2"))
    },
    "xgboost/lightgbm-dist/xgboostjob_v1_lightgbm_dist_training.yaml": _XGBOOSTS,
    "xgboost/smoke-dist/xgboostjob_v1_rabit_test.yaml": _XGBOOSTS,
    "xgboost/smoke-dist/xgboostjob_v1alpha1_rabit_test.yaml": _XGBOOSTS,
    "xgboost/xgboost-dist/xgboostjob_v1_iris_predict.yaml": _XGBOOSTS,
    "xgboost/xgboost-dist/xgboostjob_v1_iris_predict_local.yaml": _XGBOOSTS,
    "xgboost/xgboost-dist/xgboostjob_v1_iris_train.yaml": _XGBOOSTS,
    "xgboost/xgboost-dist/xgboostjob_v1_iris_train_local.yaml": _XGBOOSTS,
    "xgboost/xgboostjob.yaml": _XGBOOSTS,
}


def test_the_table_has_every_example() -> None:
    assert {str(path.relative_to(PUBLISHED)) for path in PUBLISHED.rglob("*.yaml")} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_is_valid_as_it_is(name: str) -> None:
    done = CliRunner().invoke(cli, ["validate", str(PUBLISHED / name)])

    assert done.exit_code == 0, done.output
    # Only an old example has fields that pod templates do not have.
    assert ("0 warnings" in done.output) == ("v1alpha1" not in name)


@pytest.mark.parametrize("name", EXPECTED)
def test_plan_shows_the_variables_that_the_contract_requires(name: str) -> None:
    done = CliRunner().invoke(cli, ["plan", "-o", "json", str(PUBLISHED / name)])
    preview: dict[str, Any] = msgspec.json.decode(done.stdout)
    job, objects = preview["name"], preview["objects"]

    found = {
        body["metadata"]["name"].removeprefix(f"{job}-"): " ".join(map(_text, body["spec"]["containers"][0]["env"]))
        for body in objects
        if body["kind"] == "Pod"
    }
    assert found == {pod: text.replace("{j}", job) for pod, text in EXPECTED[name].items()}
    autoscalers = [body for body in objects if body["kind"] == "HorizontalPodAutoscaler"]
    assert len(autoscalers) == ("imagenet" in name)


def _text(entry: dict[str, Any]) -> str:
    value = entry["value"] if "value" in entry else entry["valueFrom"]["fieldRef"]["fieldPath"]
    return f"{entry['name']}={value}"
