# SPDX-License-Identifier: Apache-2.0
"""One test for each row of the original's table of transitions, with what is said on the way."""

from collections.abc import Callable
from typing import Any

import pytest
from aitrainingjob_driver import Driver, last, manifest, replicas, told

from trainwright.model.job import Body

NODES = ("trainer-0", "trainer-1", "spare")
WHY = "pod demo-trainer-1: container aitj-main on node node-1 exited with reason Error exitcode 137"


def driver(count: int = 2, *, spec: Body | None = None, **more: Any) -> Driver:
    return Driver(manifest(trainer=replicas(count, **more), spec=spec))


def test_nothing_to_pending_in_the_first_pass() -> None:
    status = driver().go()

    assert last(status) == ("Pending", "all pods are waiting for scheduling")
    assert status["startTime"] == "2026-11-15T12:00:00Z"
    assert "startRunningTime" not in status


def test_pending_to_creating_when_all_pods_have_a_node() -> None:
    world = driver()
    world.go()

    assert world.place("trainer-0")["phase"] == "Pending"
    assert last(world.place("trainer-1")) == ("Creating", "creating containers")


@pytest.mark.parametrize("placed", [False, True], ids=["Pending", "Creating"])
def test_pending_or_creating_to_running_when_all_pods_run(placed: bool) -> None:
    world = driver()
    world.go()
    if placed:
        world.place()
    world.wait(7)

    status = world.start_all()

    assert last(status) == ("Running", "all pods are running")
    assert status["startRunningTime"] == "2026-11-15T12:00:07Z"
    assert world.phases == ["Pending", *(["Creating"] if placed else []), "Running"]


def test_restarting_to_running_when_all_pods_run() -> None:
    world = driver(restartPolicy="OnFailure").running()
    began = world.status["startRunningTime"]
    world.end("trainer-1", code=137)

    status = world.again()

    assert world.phases == ["Pending", "Running", "Terminating", "Restarting", "Running"]
    assert status["startRunningTime"] == began  # no restart resets it


@pytest.mark.parametrize("before", ["Pending", "Creating", "Running", "Restarting"])
def test_active_to_terminating_when_a_restart_is_decided(before: str) -> None:
    world = driver(restartPolicy="OnFailure")
    world.go()
    if before == "Creating":
        world.place()
    elif before in ("Running", "Restarting"):
        world.start_all()
    count = 1
    if before == "Restarting":
        world.end("trainer-0", code=1)
        world.pass_by(60)
        count = 2
    assert world.status["phase"] == before
    world.start("demo-trainer-1")
    world.exit("demo-trainer-1", 137)

    world.catch_up()
    world.step()

    assert last(world.status) == ("Terminating", f"restart times is {count}, {WHY}")
    assert world.status["RestartReplicaName"] == "trainer"
    assert world.status["RestartCount"] == {"trainer": count}


@pytest.mark.parametrize(
    ("scope", "gone", "message"),
    [
        ("All", ["a-0", "a-1", "b-0"], "All pods are restarting now"),
        ("Replica", ["a-0", "a-1"], "a pods are restarting now"),
        ("Pod", ["a-1"], "pod is restarting now"),
    ],
)
def test_terminating_to_restarting_when_the_pods_of_the_scope_are_gone(
    scope: str, gone: list[str], message: str
) -> None:
    one = replicas(2, restartPolicy="OnFailure", restartScope=scope)
    world = Driver(manifest(a=one, b=1)).running()
    world.exit("demo-a-1", 1)
    world.go(reaps=False)
    world.wait(60)
    world.go(reaps=False)
    kept = {"a-0", "a-1", "b-0"} - set(gone)

    assert world.status["phase"] == "Terminating"
    assert world.status["RestartReplicaName"] == "a"
    assert set(world.names()) == kept

    status = world.go()

    assert last(status) == ("Restarting", message)
    assert status["RestartReplicaName"] == ""
    assert world.names("Service") == ["a-0", "a-1", "b-0"]


def test_running_to_pending_when_a_pod_has_vanished() -> None:
    world = driver(restartPolicy="OnFailure").running()
    world.vanish("demo-trainer-1")

    status = world.go()

    assert last(status) == ("Pending", "all pods are waiting for scheduling")
    assert world.names() == ["trainer-0", "trainer-1"]
    assert "RestartCount" not in status
    assert world.start_all()["phase"] == "Running"


@pytest.mark.parametrize("before", ["Pending", "Creating", "Running", "Restarting"])
def test_active_to_terminating_when_an_end_is_decided(before: str) -> None:
    world = driver(restartPolicy="OnFailure")
    world.go()
    world.place()
    if before in ("Running", "Restarting"):
        world.start_all()
    if before == "Restarting":
        world.end("trainer-0", code=1)
        world.pass_by(60)
        world.place()
    elif before == "Pending":
        world = driver()
        world.go()
        world.bind("demo-trainer-0")
    assert world.status["phase"] == before

    status = world.annotate(reaps=False, Failed="wrong data")

    assert last(status) == ("Terminating", "wrong data; deleting pods")
    assert "endTime" not in status
    assert world.names() == []


@pytest.mark.parametrize(
    ("code", "phase", "message"),
    [
        (0, "Succeed", "job demo completed; kept pods"),
        (
            1,
            "Failed",
            "pod demo-trainer-0 is failed, container aitj-main on node node-1 exited with reason Error exitcode 1; "
            "kept pods",
        ),
    ],
    ids=["Succeed", "Failed"],
)
def test_active_to_its_end_at_once_when_pods_are_kept(code: int, phase: str, message: str) -> None:
    world = driver(spec={"cleanPodPolicy": "None"}).running()
    world.wait(5)

    status = world.end("trainer-0", "trainer-1", code=code)

    assert last(status) == (phase, message)
    assert status["endTime"] == "2026-11-15T12:00:05Z"
    assert "Terminating" not in world.phases
    assert (world.names(), world.names("Service")) == (["trainer-0", "trainer-1"], ["trainer-0", "trainer-1"])


def succeeds(world: Driver) -> Body:
    return world.end("trainer-0", "trainer-1", reaps=False)


def fails(world: Driver) -> Body:
    return world.end("trainer-1", code=1, reaps=False)


def times_out(world: Driver) -> Body:
    world.wait(100)
    return world.go(reaps=False)


def preempts(world: Driver) -> Body:
    return world.annotate(reaps=False, Preempted="by team b")


def loses_its_node(world: Driver) -> Body:
    world.lose_node("trainer-1")
    world.wait(61)
    return world.go(reaps=False)


@pytest.mark.parametrize(
    ("ends", "phase", "message"),
    [
        (succeeds, "Succeed", "job demo completed"),
        (
            fails,
            "Failed",
            "pod demo-trainer-1 is failed, container aitj-main on node trainer-1 exited with reason Error exitcode 1",
        ),
        (
            times_out,
            "Timeout",
            "job demo has been running since 2026-11-15T12:00:00Z, and at 2026-11-15T12:01:40Z for longer than "
            "100 seconds",
        ),
        (preempts, "Preempted", "by team b"),
        (loses_its_node, "NodeFail", "pod demo-trainer-1 is failed, Node trainer-1 is failed and offline"),
    ],
    ids=["Succeed", "Failed", "Timeout", "Preempted", "NodeFail"],
)
def test_terminating_to_its_end_when_all_pods_are_gone(
    ends: Callable[[Driver], Body], phase: str, message: str
) -> None:
    document = manifest(trainer=2, spec={"timeLimit": 100})
    world = Driver(document, nodes=NODES).running()

    assert last(ends(world)) == ("Terminating", f"{message}; deleting pods")
    world.wait(3)
    status = world.go()

    assert last(status) == (phase, f"{message}; deleted pods")
    assert status["endTime"] > status["startRunningTime"]
    assert [one for one, _ in told(status)] == ["Pending", "Running", "Terminating", phase]
    assert (world.names(), world.names("Service")) == ([], [])
    assert world.pass_by(10**6) == status


@pytest.mark.parametrize("policy", ["All", "Any", "Rank0", "None"])
@pytest.mark.parametrize("of_job", ["All", "Any"])
def test_a_type_without_replicas_has_no_say_in_how_a_job_ends(of_job: str, policy: str) -> None:
    idle = replicas(0, completePolicy=policy, failPolicy=policy)
    spec = {"completePolicy": of_job, "failPolicy": of_job}

    done = Driver(manifest(spec=spec, trainer=2, pserver=idle)).running()
    assert done.end("trainer-0")["phase"] == "Running"
    assert done.end("trainer-1")["phase"] == "Succeed"
    failed = Driver(manifest(spec=spec, trainer=2, pserver=idle)).running()
    phase, message = last(failed.end("trainer-0", code=1))
    assert (phase, "out of reach" in message, "no success rule" in message) == ("Failed", False, False)


def test_a_type_that_is_scaled_to_nothing_is_not_waited_for() -> None:
    world = Driver(manifest(trainer=1, pserver=1)).running()
    world.end("trainer-0")

    assert world.status["phase"] == "Running"
    assert world.scale("pserver", 0)["phase"] == "Succeed"
