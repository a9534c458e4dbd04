# SPDX-License-Identifier: Apache-2.0
"""The edits that `suspend`, `resume` and `scale` make: each changes what was asked for and nothing else."""

from copy import deepcopy

import pytest
from genericjob_driver import manifest, replicas

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.local.storage.metadata import merge
from trainwright.model.job import Body
from trainwright.model.problem import Problem

PAUSE = {"pause": {"resumeSpecs": [{"type": "worker", "args": ["--resume"]}]}}


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param({}, id="immediate"),
        pytest.param({"runMode": None}, id="null"),
        pytest.param({"runMode": PAUSE}, id="resume settings"),
        pytest.param({"runMode": {"pause": {"enabled": True}}}, id="enabled"),
        pytest.param({"runMode": {"pause": {"enable": True}}}, id="old spelling"),
        pytest.param({"runMode": {"debug": {"enabled": True}}}, id="debug"),
    ],
)
@pytest.mark.parametrize("on", [True, False])
def test_suspend_says_whether_the_job_is_paused_and_leaves_the_rest(mode: Body, on: bool) -> None:
    stored = manifest(**mode)
    before = deepcopy(stored)
    edited = merge(stored, GENERICJOB.suspend(stored, on))

    assert load(GENERICJOB, edited).job.lifecycle.suspended is on
    assert load(GENERICJOB, edited).errors == ()
    assert GENERICJOB.check_edit(load(GENERICJOB, stored).wire, load(GENERICJOB, edited).wire) == ()
    assert {**edited["spec"], "runMode": None} == {**before["spec"], "runMode": None}
    assert stored == before


def test_scale_changes_one_type() -> None:
    stored = manifest(replicas("ps", 1, restartPolicy={"policy": "Never"}), replicas("worker", 4))
    before = deepcopy(stored)
    patch = GENERICJOB.scale(stored, "worker", 7)

    assert isinstance(patch, dict)
    edited = merge(stored, patch)
    assert [(role.name, role.replicas) for role in load(GENERICJOB, edited).job.roles] == [("ps", 1), ("worker", 7)]
    assert edited["spec"]["replicaSpecs"][0] == before["spec"]["replicaSpecs"][0]
    assert stored == before


@pytest.mark.parametrize(
    ("role", "count", "problem"),
    [
        pytest.param(
            "wroker",
            2,
            Problem("spec.replicaSpecs", "there is no replica type 'wroker'; the job has ps, worker", "worker"),
            id="unknown",
        ),
        pytest.param(
            "worker",
            -1,
            Problem("spec.replicaSpecs[1].replicas", "expected a whole number from 0 to 10000, found the number -1"),
            id="negative",
        ),
        pytest.param(
            "ps",
            10_001,
            Problem("spec.replicaSpecs[0].replicas", "expected a whole number from 0 to 10000, found the number 10001"),
            id="too many",
        ),
    ],
)
def test_scale_refuses_what_cannot_be(role: str, count: int, problem: Problem) -> None:
    assert GENERICJOB.scale(manifest(replicas("ps", 1), replicas("worker", 4)), role, count) == problem
