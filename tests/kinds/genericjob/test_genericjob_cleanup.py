# SPDX-License-Identifier: Apache-2.0
"""Clean-up after the end: which pods and services go, and how the status tells of them."""

from typing import Any

import pytest
from genericjob_driver import Driver, aggregate, manifest, phases, replicas

from trainwright.model.event import Emit, EventReason, default_emit

RULES: dict[str, Any] = {"successRules": [{"worker": [0]}], "failureRules": [{"worker": [0]}]}


def ended(code: int, **spec: Any) -> Driver:
    """Worker 0 has decided; 1 had failed, 2 runs, 3 is pending, 4 is unknown."""
    driver = Driver(manifest(replicas(count=5), service={}, **RULES, **spec))
    driver.go()
    for rank in (0, 1, 2, 4):
        driver.start(f"demo-worker-{rank}")
    driver.bind("demo-worker-3")
    driver.change("demo-worker-4", phase="Unknown")
    driver.exit("demo-worker-1", 1)
    driver.go()
    driver.end("worker-0", code=code)
    driver.reap()
    driver.go()
    return driver


@pytest.mark.parametrize("code", [0, 1], ids=["succeeded", "failed"])
@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        pytest.param({}, [0, 1, 2, 3, 4], id="default"),
        pytest.param({"cleanUpPolicy": "None"}, [0, 1, 2, 3, 4], id="None"),
        pytest.param({"cleanUpPolicy": "Unfinished"}, [0, 1], id="Unfinished"),
        pytest.param({"cleanUpPolicy": "All"}, [], id="All"),
    ],
)
def test_which_pods_stay(policy: Any, kept: list[int], code: int) -> None:
    driver = ended(code, **policy)

    names = [f"demo-worker-{rank}" for rank in kept]
    assert (driver.names(), driver.names("Service")) == (names, names)
    end = "Failed" if code else "Succeeded"
    before = [end, "Failed", "Running", "Pending", "Unknown"]
    assert list(phases(driver.status).values()) == [
        phase if rank in kept else "Deleted" for rank, phase in enumerate(before)
    ]
    assert driver.status["aggregate"]["deleted"] == 5 - len(kept)
    assert driver.status["phase"] == end


def test_pods_are_removed_after_the_end_is_stored() -> None:
    driver = Driver(manifest(cleanUpPolicy="All", **RULES)).running()
    driver.writes.clear()
    driver.end("worker-0")

    assert driver.writes == ["status", *(f"delete Pod demo-worker-{rank}" for rank in range(4))]


@pytest.mark.parametrize("writes", range(6))
def test_a_killed_operator_finishes_the_clean_up(writes: int) -> None:
    driver = Driver(manifest(cleanUpPolicy="Unfinished", service={}, **RULES)).running()
    driver.exit("demo-worker-0")
    driver.catch_up()
    driver.step(dies_after=writes)
    driver.settle()

    assert driver.status["phase"] == "Succeeded"
    assert (driver.names(), driver.names("Service")) == (["demo-worker-0"], ["demo-worker-0"])
    assert driver.status["aggregate"] == aggregate(succeeded=1, deleted=3)


def test_nothing_is_made_again_after_the_end() -> None:
    driver = Driver(manifest(service={}, **RULES)).running()
    driver.end("worker-0")
    driver.vanish("demo-worker-1")
    driver.wait(10_000)
    driver.settle()

    assert driver.names() == ["demo-worker-0", "demo-worker-2", "demo-worker-3"]
    assert driver.status["aggregate"] == aggregate(succeeded=1, running=2, deleted=1)


def in_back_off_at_the_end() -> Driver:
    """Worker 1 had failed and waits to be restarted when worker 0 decides; its old pod has ended, so it is kept."""
    driver = Driver(manifest(replicas(restartPolicy={"limit": 3}), cleanUpPolicy="Unfinished", **RULES)).running()
    driver.end("worker-1", code=1)
    driver.end("worker-0")
    driver.wait(100)
    driver.settle()
    return driver


def test_a_replica_in_back_off_is_not_restarted_after_the_end() -> None:
    driver = in_back_off_at_the_end()

    assert driver.names() == ["demo-worker-0", "demo-worker-1"]
    assert driver.pod("worker-1").status.phase == "Failed"


def test_a_replica_in_back_off_at_the_end_is_shown_with_its_pod() -> None:
    assert phases(in_back_off_at_the_end().status)["worker-1"] == "Failed"


@pytest.mark.parametrize(
    ("code", "moment", "message"),
    [
        (0, EventReason.SUCCEEDED, 'rule {"worker":[0]} fulfilled by worker 0'),
        (
            1,
            EventReason.FAILED,
            'rule {"worker":[0]} fulfilled by worker 0; demo-worker-0: container main exited with code 1',
        ),
    ],
    ids=["succeeded", "failed"],
)
def test_two_events_tell_of_a_job(code: int, moment: EventReason, message: str) -> None:
    driver = Driver(manifest(**RULES)).running()
    driver.end("worker-0", code=code)

    assert [default_emit(event) for plan in driver.plans for event in plan.events] == [
        Emit(EventReason.RUNNING, "demo is running."),
        Emit(moment, message, warning=bool(code)),
    ]


def test_a_job_that_is_being_deleted_makes_nothing() -> None:
    driver = Driver(manifest())
    driver.document["metadata"]["deletionTimestamp"] = "2026-11-15T12:00:00Z"
    driver.go()

    assert driver.truth == {}
