# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the job of `run … -- COMMAND` is told by its options, since nobody wrote its manifest."""

import pytest

from trainwright.cli.main import run
from trainwright.cli.run.from_command import lines
from trainwright.model.problem import Problem

_CONTAINER = "spec.replicaSpecs[0].template.spec.containers[0]"


@pytest.mark.parametrize(
    ("path", "message", "option"),
    [
        ("metadata.name", "too long", "--name"),
        ("metadata.namespace", "no", "--namespace"),
        ("spec.replicaSpecs[0].replicas", "no", "--replicas"),
        (f"{_CONTAINER}.resources.limits.memory", "no", "--memory-per-replica"),
        (f"{_CONTAINER}.resources.requests.cpu", "no", "--cpus-per-replica"),
        (f"{_CONTAINER}.image", "no", "--image"),
        (
            f"{_CONTAINER}.resources",
            "can never fit: node-0: memory: needs 9Ti, this node has 1Gi",
            "--memory-per-replica",
        ),
        (
            f"{_CONTAINER}.resources",
            "can never fit: node-0: cpu: needs 9, this node has 1; nvidia.com/gpu: needs 2, this node has none",
            "--gpus-per-replica and --cpus-per-replica",
        ),
        (
            "spec",
            "can never fit: gang needs 4 pods at once: cpu: needs 4 together, all nodes have 2",
            "--cpus-per-replica and --replicas",
        ),
        ("spec.cleanUpPolcy", "unknown field", "spec.cleanUpPolcy (--print shows the manifest)"),
    ],
)
def test_the_option_of_a_problem(path: str, message: str, option: str) -> None:
    assert list(lines([Problem(path, message)])) == [f"error: {option}: {message}"]


def test_a_warning_and_the_nearest_word() -> None:
    (line,) = lines([Problem("metadata.name", "odd", "even", warning=True)])

    assert line == "warning: --name: odd; did you mean `even`?"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--memory-per-replica", "8GB"], "--memory-per-replica: expected a quantity such as 2, 500m, 16Gi or 100M"),
        (["--name", "A_b"], "--name: 'A_b' becomes part of object names"),
    ],
)
def test_a_mistake_on_the_command_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", *words, "--", "true"]) == 2

    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"trainwright: error: {told}")
    assert last == "trainwright: nothing was started: the input has 1 error"
