# SPDX-License-Identifier: Apache-2.0
"""From the states of containers to the status of a pod."""

from typing import Any

import pytest

from trainwright.node.status import CREATING, INITIALIZING, ContainerView, PodFailure, StatusFacts, compose, phase

NOW = "2026-11-15T12:00:00Z"
RUNNING = {"running": {"startedAt": NOW}}
DONE = {"terminated": {"exitCode": 0}}
FAILED = {"terminated": {"exitCode": 1}}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}
REFUSED = {"waiting": {"reason": "CreateContainerConfigError"}}


def seen(state: dict[str, Any], last: dict[str, Any] | None = None, **more: Any) -> ContainerView:
    return ContainerView("main", state, last=last, **more)


def facts(policy: str = "Never", **more: Any) -> StatusFacts:
    return StatusFacts(policy, NOW, **more)


OVER = PodFailure("DeadlineExceeded", "too long")
PHASES: dict[str, tuple[StatusFacts, list[ContainerView], list[ContainerView], str]] = {
    "nothing has begun": (facts(), [], [seen(CREATING)], "Pending"),
    "cannot be configured": (facts(), [], [seen(REFUSED)], "Pending"),
    "one runs, one cannot be configured": (facts(), [], [seen(RUNNING), seen(REFUSED)], "Pending"),
    "runs": (facts(), [], [seen(RUNNING)], "Running"),
    "one runs, one has failed": (facts(), [], [seen(RUNNING), seen(FAILED)], "Running"),
    "all ended well": (facts(), [], [seen(DONE), seen(DONE)], "Succeeded"),
    "one ended badly": (facts(), [], [seen(DONE), seen(FAILED)], "Failed"),
    "ended well, Always": (facts("Always"), [], [seen(DONE)], "Running"),
    "ended badly, Always": (facts("Always"), [], [seen(FAILED)], "Running"),
    "ended well, OnFailure": (facts("OnFailure"), [], [seen(DONE)], "Succeeded"),
    "ended badly, OnFailure": (facts("OnFailure"), [], [seen(FAILED)], "Running"),
    "one ended well, one badly, OnFailure": (facts("OnFailure"), [], [seen(DONE), seen(FAILED)], "Running"),
    "backs off": (facts("OnFailure"), [], [seen(BACK_OFF, FAILED)], "Running"),
    "init runs": (facts(), [seen(RUNNING)], [seen(INITIALIZING)], "Pending"),
    "init between": (facts(), [seen(DONE), seen(CREATING)], [seen(INITIALIZING)], "Pending"),
    "init done": (facts(), [seen(DONE)], [seen(RUNNING)], "Running"),
    "init failed": (facts(), [seen(FAILED)], [seen(INITIALIZING)], "Failed"),
    "init failed, tried again": (facts("Always"), [seen(FAILED)], [seen(INITIALIZING)], "Pending"),
    "init backs off": (facts("OnFailure"), [seen(BACK_OFF, FAILED)], [seen(INITIALIZING)], "Pending"),
    "overdue": (facts(failure=OVER), [], [seen(RUNNING)], "Failed"),
    "ended by deletion, well": (facts("Always", stopped=True), [], [seen(DONE)], "Succeeded"),
    "ended by deletion, badly": (facts("Always", stopped=True), [], [seen(FAILED)], "Failed"),
    "deleted before it began": (facts(stopped=True), [], [seen(CREATING)], "Failed"),
    "deleted while it initialized": (facts("Always", stopped=True), [seen(FAILED)], [seen(INITIALIZING)], "Failed"),
}


@pytest.mark.parametrize(("given", "inits", "mains", "expected"), PHASES.values(), ids=PHASES.keys())
def test_the_phase(given: StatusFacts, inits: list[ContainerView], mains: list[ContainerView], expected: str) -> None:
    assert phase(given, inits, mains) == expected


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one.get("reason", "")) for one in status["conditions"]}


CONDITIONS: dict[str, tuple[list[ContainerView], list[ContainerView], str, str]] = {
    "not ready": ([], [seen(RUNNING)], "True ", "False ContainersNotReady"),
    "ready": ([], [seen(RUNNING, ready=True)], "True ", "True "),
    "initializing": (
        [seen(RUNNING)],
        [seen(INITIALIZING)],
        "False ContainersNotInitialized",
        "False ContainersNotReady",
    ),
    "succeeded": ([], [seen(DONE)], "True PodCompleted", "False PodCompleted"),
    "failed": ([], [seen(FAILED)], "True ", "False PodFailed"),
}


@pytest.mark.parametrize(("inits", "mains", "initialized", "ready"), CONDITIONS.values(), ids=CONDITIONS.keys())
def test_the_conditions(inits: list[ContainerView], mains: list[ContainerView], initialized: str, ready: str) -> None:
    found = conditions(compose(facts(), inits, mains, (), NOW))
    assert " ".join(found["Initialized"]) == initialized
    assert " ".join(found["Ready"]) == " ".join(found["ContainersReady"]) == ready
    assert found["PodScheduled"] == ("True", "")


def test_who_is_not_ready_is_named() -> None:
    status = compose(facts(), [], [ContainerView("a", RUNNING, ready=True), ContainerView("b", CREATING)], (), NOW)
    assert status["conditions"][-1]["message"] == "containers with unready status: [b]"


def test_a_condition_keeps_the_time_it_turned_and_others_are_left_alone() -> None:
    before = "2026-11-15T11:00:00Z"
    known = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": before},
        {"type": "Ready", "status": "False", "lastTransitionTime": before},
        {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": before, "reason": "Because"},
    ]
    status = compose(facts(), [], [seen(RUNNING, ready=True)], known, NOW)
    turned = {one["type"]: one["lastTransitionTime"] for one in status["conditions"]}
    assert turned == {
        "DisruptionTarget": before,
        "PodScheduled": before,
        "Initialized": NOW,
        "ContainersReady": NOW,
        "Ready": NOW,
    }
    assert known[2] in status["conditions"]


def test_a_container_is_told_whole() -> None:
    one = ContainerView(
        "main", RUNNING, "some/image", FAILED, ready=True, started=True, restarts=2, id="trainwright://x"
    )
    status = compose(facts(address="10.1.2.3", host="10.0.0.1", failure=OVER), [], [one], (), NOW)
    assert status["containerStatuses"] == [
        {
            "name": "main",
            "image": "some/image",
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 2,
            "state": RUNNING,
            "lastState": FAILED,
            "containerID": "trainwright://x",
        }
    ]
    assert (status["podIP"], status["podIPs"]) == ("10.1.2.3", [{"ip": "10.1.2.3"}])
    assert (status["hostIP"], status["hostIPs"]) == ("10.0.0.1", [{"ip": "10.0.0.1"}])
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "DeadlineExceeded", "too long")
    assert "initContainerStatuses" not in status
