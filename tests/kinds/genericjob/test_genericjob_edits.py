# SPDX-License-Identifier: Apache-2.0
"""What an edit of a job does: the table of `docs/compatibility.md`. Scaling and templates are in `objects`."""

from typing import Any

import pytest
from genericjob_driver import GANGS, Driver, aggregate, manifest, phases, replicas

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.meta import ADOPT

FOUR = [f"demo-worker-{rank}" for rank in range(4)]
FIRST = [{"worker": [0]}]


def test_a_type_that_is_removed_takes_its_pods_and_services_along() -> None:
    driver = Driver(manifest(replicas("ps", 1), replicas("worker", 2), service={})).running()
    driver.edit(replicaSpecs=[replicas("worker", 2)])
    status = driver.go()

    assert driver.names() == driver.names("Service") == FOUR[:2]
    assert [task["type"] for task in status["tasks"]] == ["worker"]


def test_a_type_that_is_added_is_made() -> None:
    driver = Driver(manifest()).running()
    driver.edit(replicaSpecs=[replicas(), replicas("ps", 1)])
    status = driver.go()

    assert driver.names() == ["demo-ps-0", *FOUR]
    assert (status["phase"], status["aggregate"]) == ("Running", aggregate(running=4, creating=1))


def test_services_come_and_go() -> None:
    driver = Driver(manifest()).running()
    driver.edit(service={})
    driver.go()
    assert driver.names("Service") == FOUR

    driver.edit(service=None)
    driver.go()

    assert driver.names("Service") == []
    assert driver.status["aggregate"] == aggregate(running=4)


def test_a_pod_group_comes_and_goes() -> None:
    driver = Driver(manifest(), gangs=GANGS).running()
    driver.edit(scheduler={"t9kScheduler": {}})
    driver.go()
    assert driver.names("PodGroup") == ["demo"]

    driver.edit(scheduler=None)
    driver.go()

    assert driver.names("PodGroup") == []
    assert driver.status["aggregate"] == aggregate(running=4)


def test_new_rules_judge_what_has_already_ended() -> None:
    driver = Driver(manifest(successRules=FIRST)).running()
    driver.end("worker-1")
    driver.edit(successRules=[{"worker": [1]}])

    assert driver.go()["phase"] == "Succeeded"


def test_a_raised_limit_does_not_revive_what_has_failed_for_good() -> None:
    rules = [{"worker": [3]}]
    driver = Driver(manifest(successRules=rules, failureRules=rules)).running()
    driver.end("worker-0", code=1)
    driver.edit(replicaSpecs=[replicas(restartPolicy={"limit": 5})])
    driver.wait(100)
    driver.settle()

    assert phases(driver.status)["worker-0"] == "Failed"


def test_a_clean_up_policy_given_after_the_end_is_carried_out() -> None:
    driver = Driver(manifest(successRules=FIRST)).running()
    driver.end("worker-0")
    assert driver.names() == FOUR

    driver.edit(cleanUpPolicy="Unfinished")
    driver.go()

    assert driver.names() == FOUR[:1]


def test_debug_wins_over_a_resume() -> None:
    mode = {
        "pause": {"enabled": True, "resumeSpecs": [{"type": "worker", "command": ["r"]}]},
        "debug": {"enabled": True},
    }
    driver = Driver(manifest(runMode=mode))
    driver.go()
    driver.pause(enabled=False)
    driver.go()

    assert driver.pod_spec("worker-0")["containers"][0]["command"] == ["sleep", "inf"]


def test_a_rank_that_comes_back_starts_anew() -> None:
    driver = Driver(manifest(successRules=FIRST)).running()
    driver.end("worker-3")
    driver.edit(replicaSpecs=[replicas(count=2)])
    driver.go()
    driver.reap()
    driver.edit(replicaSpecs=[replicas(count=4)])
    driver.go()

    assert phases(driver.status)["worker-3"] == "Creating"


def test_nothing_is_decided_under_an_edit_that_cannot_be_applied() -> None:
    driver = Driver(manifest(replicas(count=2))).running()
    driver.edit(failureRules=[{"ghost": [0]}])
    driver.go()
    assert driver.end("worker-0", "worker-1")["phase"] == "Running"

    driver.edit(failureRules=[])

    assert driver.go()["phase"] == "Succeeded"


ENDED = {"type": "Completed", "status": "True", "lastTransitionTime": "2021-01-18T02:36:31Z"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize(
    ("conditions", "at"),
    [
        ([ENDED], "2021-01-18T02:36:31Z"),
        ([], "1970-01-01T00:00:00Z"),
        ([ENDED | {"lastTransitionTime": "x"}], "1970-01-01T00:00:00Z"),
    ],
    ids=["with its time", "without a time", "with a time that is none"],
)
def test_a_job_that_ended_under_the_original_stays_ended(phase: str, conditions: list[Any], at: str) -> None:
    document: Any = manifest() | {"status": {"phase": phase, "conditions": conditions, "tasks": []}}
    driver = Driver(document)
    status = driver.go()

    assert (status["phase"], driver.names()) == (phase, [])
    assert status["trainwright"]["outcome"] == {
        "result": phase,
        "reason": "External",
        "at": at,
        "message": "ended under another controller",
    }


def test_a_job_that_ended_under_the_original_and_is_younger_than_its_conditions_has_its_birth_for_an_end() -> None:
    document: Any = manifest() | {"status": {"phase": "Failed"}}
    document["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"

    assert Driver(document).go()["trainwright"]["times"] == {"ended": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_a_job_that_had_not_ended_under_the_original_is_begun_anew_once_it_is_handed_over(phase: str) -> None:
    said = {"phase": phase, "conditions": [], "tasks": []}
    driver = Driver(manifest() | {"status": said})

    assert (driver.go(), driver.names()) == (said, [])
    driver.document["metadata"]["annotations"] = {ADOPT: "true"}
    assert (driver.go()["phase"], driver.names()) == ("Pending", FOUR)


def test_a_status_that_says_nothing_is_nobodys() -> None:
    driver = Driver(manifest() | {"status": {"phase": "", "conditions": [], "tasks": None}})

    assert (driver.go()["phase"], driver.names()) == ("Pending", FOUR)


@pytest.mark.parametrize("word", ["finalizers", "annotations", "labels"])
def test_other_metadata_is_nobodys_business(word: str) -> None:
    document = manifest()
    document["metadata"][word] = ["a/b"] if word == "finalizers" else {"a": "b"}

    assert load(GENERICJOB, document).problems == ()
