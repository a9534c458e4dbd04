# SPDX-License-Identifier: Apache-2.0
"""What pods have been waiting for: by role and reason, not before they have waited for long."""

from typing import Any

import pytest
from passes import lived, view

from trainwright.core.report import waiting_events
from trainwright.model.child import ContainerState, ContainerStatus, ObjectCondition, Pod, Terminated, Waiting
from trainwright.model.event import PodWaiting
from trainwright.model.ledger import Ledger, Outcome, Phase, Reason
from trainwright.model.plan import Status
from trainwright.model.rule import Result
from trainwright.testing.factories import NOW, job, later, pod, role

GIVEN = job(role(replicas=3), role("ps"), ledger=lived())
LONG = later(-60)


def waiting(reason: str, message: str = "", name: str = "main") -> ContainerStatus:
    return ContainerStatus(name, state=ContainerState(waiting=Waiting(reason, message)))


def told(*pods: Pod, ledger: Ledger | None = None) -> dict[tuple[str, str], PodWaiting]:
    return waiting_events(Status(ledger or GIVEN.ledger, view(GIVEN, *pods).roles), NOW)


PULL = waiting("ImagePullBackOff", "Back-off pulling image")
UNPLACED = ObjectCondition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available", LONG)
CASES: dict[str, tuple[dict[str, Any], tuple[str, str] | None]] = {
    "an image": (
        {"containers": (PULL,)},
        ("ImagePullBackOff", "job-worker-0 container main waiting message: Back-off pulling image"),
    ),
    "an init container first": (
        {"inits": (waiting("CrashLoopBackOff", "back-off 10s", "prepare"),), "containers": (PULL,)},
        ("CrashLoopBackOff", "job-worker-0 container prepare waiting message: back-off 10s"),
    ),
    "a crash loop of a pod that runs": (
        {"phase": "Running", "containers": (waiting("CrashLoopBackOff", "back-off 10s"),)},
        ("CrashLoopBackOff", "job-worker-0 container main waiting message: back-off 10s"),
    ),
    "no place": (
        {"conditions": (UNPLACED,)},
        ("Unschedulable", "job-worker-0 condition message: 0/3 nodes are available"),
    ),
    "a place was found since": (
        {"conditions": (UNPLACED, ObjectCondition("Initialized", "True", "", "", later(-5)))},
        None,
    ),
    "a condition that says nothing": ({"conditions": (ObjectCondition("PodScheduled", "False"),)}, None),
    "nothing known": ({}, None),
    "as every container begins": ({"containers": (waiting("ContainerCreating"),), "conditions": (UNPLACED,)}, None),
    "not for long": ({"containers": (PULL,), "born": later(-9)}, None),
    "since nobody knows when": ({"containers": (PULL,), "born": None}, None),
    "on its way out": ({"containers": (PULL,), "deleting": NOW}, None),
    "it has ended": (
        {"phase": "Failed", "containers": (PULL, ContainerStatus("x", state=ContainerState(terminated=Terminated(1))))},
        None,
    ),
}


@pytest.mark.parametrize(("given", "expected"), CASES.values(), ids=CASES)
def test_what_is_told_of_one_pod(given: dict[str, Any], expected: tuple[str, str] | None) -> None:
    more: dict[str, Any] = {"phase": "Pending", "born": LONG} | given
    found = [(event.reason, str(event)) for event in told(pod(0, **more)).values()]

    assert found == ([] if expected is None else [expected])


def test_each_reason_is_told_once_for_a_role_with_the_first_of_its_pods() -> None:
    pods = [pod(index, "Pending", born=LONG, containers=(PULL,)) for index in (2, 1)]
    pods += [pod(0, "Pending", born=LONG, role="ps", conditions=(UNPLACED,))]
    found = told(*pods)

    assert [*found] == [("worker", "ImagePullBackOff"), ("ps", "Unschedulable")]
    assert found["worker", "ImagePullBackOff"] == PodWaiting(
        "job-worker-1", "ImagePullBackOff", "Back-off pulling image", "main"
    )


def test_nothing_is_told_of_a_job_that_has_ended() -> None:
    ended = Ledger(Phase.FAILED, outcome=Outcome(Result.FAILED, Reason.DEADLINE, NOW))

    assert told(pod(0, "Pending", born=LONG, containers=(PULL,)), ledger=ended) == {}
