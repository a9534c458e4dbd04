# SPDX-License-Identifier: Apache-2.0
"""The original controller's own test scenarios, as ours: what is there, what one pass makes of it, what is said."""

from typing import Any

import pytest
from tfjob_driver import Driver, condition, conditions, counts, manifest, policy, replicas

from trainwright.kinds.tfjob import TFJOB
from trainwright.kinds.tfjob.policies import POD_POLICIES
from trainwright.model.child import ContainerState, ContainerStatus, Terminated
from trainwright.model.job import Body
from trainwright.model.site import Site

#: Pending, active, succeeded and failed pods of a type.
Pods = tuple[int, int, int, int]
NONE: Pods = (0, 0, 0, 0)


def arranged(workers: int, servers: int, worker_pods: Pods, ps_pods: Pods, services: tuple[int, int]) -> Driver:
    """A job whose children are as a table says, before its first pass."""
    types: dict[str, Any] = {"Worker": workers} | ({"PS": servers} if servers else {})
    driver = Driver(manifest(**types))
    driver.step()
    driver.document.pop("status")
    for kind, pods, count in (("worker", worker_pods, services[0]), ("ps", ps_pods, services[1])):
        for index in range(workers if kind == "worker" else servers):
            _set(driver, f"demo-{kind}-{index}", index, pods)
            if index >= count:
                driver.delete(("Service", f"demo-{kind}-{index}"))
    driver.restart_operator()
    driver.writes.clear()
    return driver


def _set(driver: Driver, name: str, index: int, pods: Pods) -> None:
    pending, active, succeeded, _ = pods
    if index >= sum(pods):
        driver.vanish(name)
    elif index >= pending:
        driver.start(name)
        if index >= pending + active:
            driver.exit(name, 0 if index < pending + active + succeeded else 1)


@pytest.mark.parametrize(
    ("arrangement", "writes", "expected", "last"),
    [
        pytest.param((1, 0, NONE, NONE, (0, 0)), (1, 0, 1), {"Worker": "0/0/0"}, "Created", id="local job"),
        pytest.param(
            (4, 2, NONE, NONE, (0, 0)), (6, 0, 6), {"PS": "0/0/0", "Worker": "0/0/0"}, "Created", id="distributed job"
        ),
        pytest.param(
            (4, 2, (4, 0, 0, 0), (2, 0, 0, 0), (4, 2)),
            (0, 0, 0),
            {"PS": "0/0/0", "Worker": "0/0/0"},
            "Created",
            id="all replicas pending",
        ),
        pytest.param(
            (4, 2, (0, 4, 0, 0), (0, 2, 0, 0), (4, 2)),
            (0, 0, 0),
            {"PS": "2/0/0", "Worker": "4/0/0"},
            "Running",
            id="all replicas running",
        ),
        pytest.param(
            (4, 2, (2, 0, 0, 0), (1, 0, 0, 0), (2, 1)),
            (3, 0, 3),
            {"PS": "0/0/0", "Worker": "0/0/0"},
            "Created",
            id="2 workers, 1 PS pending",
        ),
        pytest.param(
            (4, 2, (2, 1, 0, 0), (1, 0, 0, 0), (3, 1)),
            (2, 0, 2),
            {"PS": "0/0/0", "Worker": "1/0/0"},
            "Running",
            id="2 workers, 1 PS pending, 1 worker running",
        ),
        pytest.param(
            (4, 2, (2, 0, 1, 0), (1, 0, 0, 0), (3, 1)),
            (2, 0, 2),
            {"PS": "0/0/0", "Worker": "0/1/0"},
            "Created",
            id="2 workers, 1 PS pending, 1 worker succeeded",
        ),
        pytest.param(
            (4, 2, (0, 0, 4, 0), (0, 0, 2, 0), (4, 2)),
            (0, 0, 0),
            {"PS": "0/2/0", "Worker": "0/4/0"},
            "Succeeded",
            id="succeeded",
        ),
    ],
)
def test_one_pass_makes_what_is_missing_and_says_what_is(
    arrangement: tuple[int, int, Pods, Pods, tuple[int, int]],
    writes: tuple[int, int, int],
    expected: dict[str, str],
    last: str,
) -> None:
    driver = arranged(*arrangement)
    driver.step()

    made = [write for write in driver.writes if write.startswith("create Pod")]
    removed = [write for write in driver.writes if write.startswith("delete")]
    served = [write for write in driver.writes if write.startswith("create Service")]
    assert (len(made), len(removed), len(served)) == writes
    assert counts(driver.status) == expected
    assert conditions(driver.status)[-1] == last
    assert condition(driver.status, last)[1] == f"TFJob{last}"
    assert driver.status["startTime"]


# -- clean-up, deadline, budget, time to live ------------------------------------------------------------------------

ALL = ["ps-0", "ps-1", "worker-0", "worker-1", "worker-2", "worker-3"]


@pytest.mark.parametrize(
    ("ended", "clean", "left"),
    [
        pytest.param(False, "All", [], id="running, All"),
        pytest.param(False, "Running", ["worker-0"], id="running, Running"),
        pytest.param(True, "Running", ALL, id="succeeded, Running"),
        pytest.param(True, "None", ALL, id="succeeded, None"),
        pytest.param(False, "None", ALL, id="running, None"),
    ],
)
def test_what_is_left_of_a_job_that_succeeded(ended: bool, clean: str, left: list[str]) -> None:
    driver = Driver(manifest(spec=policy(cleanPodPolicy=clean), Worker=4, PS=2)).running()
    driver.end(*(ALL if ended else ["worker-0"]))

    assert driver.names() == driver.names("Service") == left


def test_running_also_removes_what_is_pending() -> None:
    driver = Driver(manifest(spec=policy(cleanPodPolicy="Running"), Chief=1, Worker=2))
    driver.go()
    driver.start_all("chief-0")
    driver.end("chief-0")

    assert driver.names() == driver.names("Service") == ["chief-0"]


@pytest.mark.parametrize(("deadline", "left"), [(None, ALL), (2, []), (0, [])])
def test_the_deadline_removes_what_the_clean_up_says(deadline: int | None, left: list[str]) -> None:
    given = {} if deadline is None else {"activeDeadlineSeconds": deadline}
    driver = Driver(manifest(spec=policy(cleanPodPolicy="All", **given), Worker=4, PS=2)).running()
    driver.pass_by(3)

    assert driver.names() == driver.names("Service") == left


@pytest.mark.parametrize(
    ("limit", "restarts", "past"), [(0, 0, False), (3, 2, False), (3, 3, True), (4, 4, True), (0, 1, True)]
)
def test_the_budget_counts_restarts_inside_pods(limit: int, restarts: int, past: bool) -> None:
    types: dict[str, Any] = {"Worker": replicas(4, restartPolicy="OnFailure")}
    driver = Driver(manifest(spec=policy(backoffLimit=limit, cleanPodPolicy="All"), **types)).running()
    for index in range(restarts):
        if driver.names():
            driver.restarted_in_place(f"worker-{index}", 1)

    assert (driver.names() == []) is past


@pytest.mark.parametrize("clean", ["None", "Running", "All"])
def test_a_budget_that_is_used_up_respects_the_clean_up(clean: str) -> None:
    types: dict[str, Any] = {"Worker": replicas(2, restartPolicy="OnFailure")}
    driver = Driver(manifest(spec=policy(backoffLimit=1, cleanPodPolicy=clean), **types)).running()
    driver.restarted_in_place("worker-0", 1)

    assert driver.names() == (["worker-0", "worker-1"] if clean == "None" else [])


@pytest.mark.parametrize("code", [0, 1], ids=["succeeded", "failed"])
@pytest.mark.parametrize(
    ("ttl", "seconds", "gone"), [(None, 10**6, False), (3, 2, False), (3, 3, True), (180, 86400, True), (0, 0, True)]
)
def test_time_to_live(code: int, ttl: int | None, seconds: int, gone: bool) -> None:
    given = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    driver = Driver(manifest(spec=policy(**given), Worker=1)).running()
    driver.end("worker-0", code=code)
    driver.pass_by(seconds)

    assert driver.gone is gone


def test_a_suspended_job_outlives_its_time_to_live() -> None:
    driver = Driver(manifest(spec=policy(suspend=True, ttlSecondsAfterFinished=10), Worker=1))
    driver.pass_by(1000)

    assert not driver.gone
    assert conditions(driver.status) == ["Created", "Suspended"]


# -- exit codes, scaling ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "again"),
    [(1, False), (2, False), (3, False), (127, False), (128, True), (130, True), (137, True), (138, True), (255, True)],
)
def test_exit_codes_tell_whether_to_try_again(code: int, again: bool) -> None:
    driver = Driver(manifest(Worker=replicas(2, restartPolicy="ExitCode"))).running()
    status = driver.end("worker-1", code=code)

    assert conditions(status)[-1] == ("Restarting" if again else "Failed")
    driver.pass_by(60)
    assert driver.names() == ["worker-0", "worker-1"]
    attempt = driver.pods()["demo-worker-1"].metadata.labels or {}
    assert attempt["trainwright.dev/attempt"] == ("1" if again else "0")


def test_a_pod_that_failed_without_a_word_of_its_main_container_is_tried_again() -> None:
    """The original has a code of its own for that, and it is above 128."""
    driver = Driver(manifest(Worker=replicas(1, restartPolicy="ExitCode"))).running()
    init = ContainerStatus("fetch", state=ContainerState(terminated=Terminated(1)))
    driver.change("demo-worker-0", phase="Failed", init_container_statuses=(init,), container_statuses=None)

    assert conditions(driver.go())[-1] == "Restarting"


def test_scaling_down_removes_the_last() -> None:
    driver = Driver(manifest(spec={"enableDynamicWorker": True}, Worker=3, PS=1)).running()
    driver.scale("Worker", 2)

    assert driver.names() == driver.names("Service") == ["ps-0", "worker-0", "worker-1"]


def test_scaling_up_makes_what_is_missing() -> None:
    driver = Driver(manifest(spec={"enableDynamicWorker": True}, Worker=1, PS=1)).running()
    driver.scale("Worker", 3)

    assert driver.names() == driver.names("Service") == ["ps-0", "worker-0", "worker-1", "worker-2"]
    assert conditions(driver.start_all()) == ["Created", "Running"]


def test_scaling_a_running_job_is_not_a_restart() -> None:
    driver = Driver(manifest(Worker=2)).running()

    assert conditions(driver.scale("Worker", 4)) == ["Created", "Running"]
    assert [reason for reason, _ in driver.said()] == ["TFJobRunning"]


def test_restart_policies_of_pods() -> None:
    assert POD_POLICIES == {"ExitCode": "Never", "Never": "Never", "Always": "Always", "OnFailure": "OnFailure"}


@pytest.mark.parametrize(
    ("types", "ends", "last"),
    [
        ({"Worker": 1}, {}, "Running"),
        ({"Worker": 1}, {"worker-0": 0}, "Succeeded"),
        ({"Master": 1}, {"master-0": 0}, "Succeeded"),
        ({"Chief": 1}, {"chief-0": 0}, "Succeeded"),
        ({"Worker": 2}, {"worker-0": 0, "worker-1": 1}, "Succeeded"),
        ({"Worker": 2}, {"worker-1": 1}, "Failed"),
        ({"Worker": 2}, {"worker-1": 0}, "Running"),
    ],
)
def test_worker_0_decides_where_there_is_no_chief(types: dict[str, Any], ends: dict[str, int], last: str) -> None:
    driver = Driver(manifest(**types)).running()
    for name, code in ends.items():
        driver.exit(f"demo-{name}", code)

    assert conditions(driver.go())[-1] == last


def test_all_workers_must_succeed_where_that_is_asked() -> None:
    driver = Driver(manifest(spec={"successPolicy": "AllWorkers"}, Worker=2, PS=1)).running()

    assert conditions(driver.end("worker-0"))[-1] == "Running"
    assert conditions(driver.end("worker-1"))[-1] == "Succeeded"


def test_a_terminating_pod_counts_as_nothing() -> None:
    """The original counts it among the failed, and so failed jobs of which one pod was deleted."""
    driver = Driver(manifest(Worker=7)).running()
    for name, code in (("worker-1", 0), ("worker-2", 0), ("worker-3", 0)):
        driver.exit(f"demo-{name}", code)
    driver.delete(("Pod", "demo-worker-6"))
    driver.catch_up()
    driver.step()

    assert counts(driver.status) == {"Worker": "3/3/0"}


def test_the_edits_of_the_command_line() -> None:
    document = manifest(worker=2, PS=1)

    assert TFJOB.suspend(document, True) == {"spec": {"runPolicy": {"suspend": True}}}
    assert TFJOB.suspend(document, False) == {"spec": {"runPolicy": {"suspend": False}}}
    assert TFJOB.scale(document, "Worker", 3) == {"spec": {"tfReplicaSpecs": {"worker": {"replicas": 3}}}}
    assert TFJOB.scale(document, "ps", 0) == {"spec": {"tfReplicaSpecs": {"PS": {"replicas": 0}}}}


@pytest.mark.parametrize(
    ("role", "count", "expected"),
    [
        (
            "wroker",
            1,
            "spec.tfReplicaSpecs: there is no replica type 'wroker'; the job has worker; did you mean `worker`?",
        ),
        ("chief", 1, "spec.tfReplicaSpecs: there is no replica type 'chief'; the job has worker"),
        (
            "worker",
            -1,
            "spec.tfReplicaSpecs.worker.replicas: expected a whole number from 0 to 10000, found the number -1",
        ),
    ],
)
def test_an_edit_that_makes_no_sense(role: str, count: int, expected: str) -> None:
    document: Body = manifest(worker=2)

    assert str(TFJOB.scale(document, role, count)) == expected


def test_the_state_in_one_word_is_the_last_condition_that_holds() -> None:
    driver = Driver(manifest(Worker=1), site=Site())
    states = [{}, driver.go(), driver.start_all(), driver.suspend()]

    assert [TFJOB.phase_of(state) for state in states] == ["", "Created", "Running", "Suspended"]
    assert TFJOB.phase_of(driver.suspend(False)) == "Created"
