# SPDX-License-Identifier: Apache-2.0
"""Kinds that say what their job has come to only when its pods are gone: a run waits for that, unless it is hurried."""

import signal
from pathlib import Path

import pytest
import yaml
from run_command import CommandRunner, script

from trainwright.model.job import Body

SLOW = "trap 'sleep {}; exit 0' TERM; touch up; while true; do sleep 0.1; done"


@pytest.fixture
def runner(tmp_path: Path) -> CommandRunner:
    return CommandRunner(tmp_path)


def training(slow: float, **spec: str) -> Body:
    """The first trainer is done at once, and that is enough; the second takes its time to end."""
    first, second = script("until [ -e up ]; do sleep 0.05; done"), script(SLOW.format(slow))
    types = {"first": {"template": first}, "second": {"template": second}}
    head = {"apiVersion": "elasticdeeplearning.ai/v1", "kind": "AITrainingJob", "metadata": {"name": "demo"}}
    return {**head, "spec": {"replicaSpecs": types, "completePolicy": "Any", **spec}}


def final(runner: CommandRunner) -> Body:
    """The status that is kept."""
    found: Body = yaml.safe_load((runner.latest() / "status.yaml").read_text())["status"]
    return found


def test_a_run_waits_until_the_pods_that_its_kind_removes_are_gone(runner: CommandRunner) -> None:
    done = runner.run(training(1.0))

    assert done.returncode == 0
    assert "demo  Terminating" in done.stdout
    assert "demo  Succeed" in done.stdout
    assert (final(runner)["phase"], final(runner)["conditions"][-1]["message"]) == (
        "Succeed",
        "job demo completed; deleted pods",
    )


def test_where_pods_are_kept_there_is_nothing_to_wait_for(runner: CommandRunner) -> None:
    done = runner.run(training(0.1, cleanPodPolicy="None"))

    assert done.returncode == 0
    assert "Terminating\n" not in done.stdout.replace("second-0  Terminating\n", "")
    assert final(runner)["phase"] == "Succeed"


def test_whoever_is_in_a_hurry_need_not_wait(runner: CommandRunner) -> None:
    with runner.live(training(30.0)) as run:
        run.until("demo  Terminating")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 0

    assert final(runner)["trainwright"]["phase"] == "Succeeded"
    assert final(runner)["phase"] == "Succeed"  # whoever is killed at once has gone all the same
