# SPDX-License-Identifier: Apache-2.0
"""PaddleJobs that train with PaddlePaddle, to a lower loss: by its launcher, and with its parameter servers.

`make test-paddle` installs it, in an environment of its own, and runs these; nothing else does.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_workspace import EXAMPLES, FinishedCommand, Workspace

pytest_plugins = ["e2e_fixtures"]
pytestmark = pytest.mark.paddle

PADDLEJOB = EXAMPLES / "paddlejob"
#: Importing PaddlePaddle alone takes five seconds where others are at work too.
PATIENCE = 180.0
Record = Callable[[str, object], None]


def trained(workspace: Workspace, name: str, *options: str) -> FinishedCommand:
    """An example, run to its end with the Python that has PaddlePaddle."""
    path = os.pathsep.join([str(Path(sys.prefix) / "paddle" / "bin"), workspace.env["PATH"]])
    run = workspace.start("run", *options, str(PADDLEJOB / f"{name}.yaml"), env=workspace.env | {"PATH": path})
    return run.end(PATIENCE)


def losses(said: str, replica: str) -> list[float]:
    return [float(loss) for loss in re.findall(rf"^{replica} \| .*\bloss:? +([\d.]+)", said, re.M)]


def figure(record: Record, what: str, found: list[float]) -> None:
    record("figure", f"{what}: loss {found[0]:.4f} → {found[-1]:.4f}")


# -- collective --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intranet", ["PodIP", "Service"])
def test_two_workers_train_one_network_together(sandbox: Workspace, intranet: str, record_property: Record) -> None:
    done = trained(sandbox, "resnet", "--gpus", "2", "--set", f"spec.intranet={intranet}")

    assert done.code == 0, done.said
    for rank in (0, 1):
        assert f"worker-{rank} | worker {rank} of 2, PaddlePaddle 3" in done.out, done.out
    found = losses(done.out, "worker-0")
    # What is printed is the average of both, so both print the same.
    assert found == losses(done.out, "worker-1")
    assert len(found) == 8
    assert found[0] > 1
    assert found[-1] < 0.1
    figure(record_property, f"PaddlePaddle, 2 workers, {intranet}", found)


def test_paddles_own_check_finds_two_workers(sandbox: Workspace) -> None:
    done = trained(sandbox, "simple")

    assert done.code == 0, done.said
    for rank in (0, 1):
        assert f"worker-{rank} | Prepare distributed training with 2 nodes 1 cards" in done.out, done.out
        assert f"worker-{rank} | Distributed training completed" in done.out, done.out


# -- parameter servers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wide_and_deep", "wide_and_deep_service"], ids=["PodIP", "Service"])
def test_two_servers_hold_what_two_workers_learn(sandbox: Workspace, name: str, record_property: Record) -> None:
    done = trained(sandbox, name)

    assert done.code == 0, done.said
    for role, place in (("ps", "server"), ("worker", "worker")):
        for rank in (0, 1):
            assert f"{role}-{rank} | {place} {rank} of 2 servers and 2 workers" in done.out, done.out
    for worker in ("worker-0", "worker-1"):
        # Each sees half of the inputs only: the other half it can know from the servers alone.
        before, now = map(
            float, re.findall(rf"^{worker} \| on inputs .*loss ([\d.]+) .*loss ([\d.]+)", done.out, re.M)[0]
        )
        assert before > 1
        assert now < 0.2 * before
        figure(record_property, f"PaddlePaddle, 2 ps + 2 workers, {name}, {worker}", [before, now])
    assert re.search(r"^ *[\d.]+s  ps-1  Stopped", done.out, re.M), done.out  # they serve for ever
