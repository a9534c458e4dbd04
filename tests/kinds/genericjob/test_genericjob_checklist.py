# SPDX-License-Identifier: Apache-2.0
"""The conformance checklist of the reference, line by line, each told as the manual tells it."""

from typing import Any

import pytest
from genericjob_driver import (
    GANGS,
    Driver,
    aggregate,
    condition,
    conditions,
    container,
    manifest,
    phases,
    replicas,
    restart_count,
)

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB

FOUR = [f"demo-worker-{rank}" for rank in range(4)]
RULES: dict[str, Any] = {"successRules": [{"worker": [0]}], "failureRules": [{"worker": [0]}, {"worker": [1]}]}


def test_01_basic_create() -> None:
    driver = Driver(manifest(**RULES))
    assert (driver.go()["phase"], driver.names()) == ("Pending", FOUR)

    status = driver.start_all()

    assert status["phase"] == "Running"
    assert [(kind, truth) for kind, truth, *_ in conditions(status)] == [
        ("Initialized", "True"),
        ("Running", "True"),
        ("ReplicaFailure", "False"),
    ]


@pytest.mark.parametrize(
    ("policy", "kept", "counts"),
    [
        ("None", FOUR, aggregate(succeeded=1, running=3)),
        ("Unfinished", FOUR[:1], aggregate(succeeded=1, deleted=3)),
        ("All", [], aggregate(deleted=4)),
    ],
)
def test_02_success_though_others_run(policy: str, kept: list[str], counts: Any) -> None:
    driver = Driver(manifest(cleanUpPolicy=policy, **RULES)).running()
    driver.end("worker-0")
    driver.reap()
    status = driver.go()

    assert (status["phase"], driver.names(), status["aggregate"]) == ("Succeeded", kept, counts)
    assert [name for name, phase in phases(status).items() if phase != "Deleted"] == [
        name.removeprefix("demo-") for name in kept
    ]


def test_03_failure_with_limit_0() -> None:
    driver = Driver(manifest(**RULES)).running()
    status = driver.end("worker-1", code=42)

    assert status["phase"] == "Failed"
    assert condition(status, "Failed") == ("True", "Failed", 'The job is failed with rule: {"worker":[1]}')
    assert condition(status, "ReplicaFailure") == (
        "True",
        "ErrorInPod",
        "Pod[demo-worker-1] exited with error code 42",
    )


def test_04_two_restarts_then_failure() -> None:
    spec = replicas(restartPolicy={"policy": "OnFailure", "limit": 2})
    driver = Driver(manifest(spec, **RULES)).running()
    seen = []
    for _ in range(3):
        driver.fail_and_restart("worker-1")
        seen.append(driver.status["phase"])

    assert seen == ["Running", "Running", "Failed"]
    assert restart_count(driver.status) == 2


def test_05_a_replica_without_a_rule_fails() -> None:
    driver = Driver(manifest(**RULES)).running()

    assert driver.end("worker-2", code=1)["phase"] == "Running"
    assert driver.end("worker-0")["phase"] == "Succeeded"


def test_06_an_and_rule_needs_all() -> None:
    driver = Driver(manifest(successRules=[{"worker": [3]}], failureRules=[{"worker": [0, 1]}])).running()

    assert driver.end("worker-1", code=1)["phase"] == "Running"
    assert driver.end("worker-0", code=1)["phase"] == "Failed"


def test_07_a_rule_over_several_types() -> None:
    document = manifest(replicas("master", 3), replicas("worker", 2), successRules=[{"master": [2], "worker": [0, 1]}])
    driver = Driver(document).running()

    assert driver.end("worker-0", "worker-1", "master-0")["phase"] == "Running"
    assert driver.end("master-2")["phase"] == "Succeeded"


def test_08_substitution() -> None:
    text = "$(type) $(rank) $(replicas[worker]) $(service.worker[3].host) $(service.port[http]) $(OTHER) $$(rank)"
    spec = replicas(pod={"containers": [container(command=[text])]})
    driver = Driver(manifest(spec, service={"ports": [{"name": "http", "port": 2222}]}))
    driver.go()

    assert driver.pod_spec("worker-2")["containers"][0]["command"] == [
        "worker 2 4 demo-worker-3 2222 $(OTHER) $$(rank)"
    ]


def test_09_services() -> None:
    driver = Driver(manifest(service={"ports": [{"name": "http", "port": 2222}]}))
    driver.go()
    assert driver.names("Service") == FOUR
    assert driver.bodies["Service", "demo-worker-1"]["spec"]["ports"] == [{"name": "http", "port": 2222}]

    spec = replicas(pod={"containers": [container(args=["$(service.port[http])"])]})
    refused = Driver(manifest(spec))

    assert [problem.path for problem in refused.load().errors] == [
        "spec.replicaSpecs[0].template.spec.containers[0].args[0]"
    ]
    assert (refused.go()["phase"], refused.truth) == ("Failed", {})


def test_10_the_t9k_scheduler() -> None:
    document = manifest(
        replicas("ps", 1), replicas("worker", 4), scheduler={"t9kScheduler": {"queue": "default", "priority": 10}}
    )
    driver = Driver(document, gangs=GANGS)
    driver.go()

    assert driver.bodies["PodGroup", "demo"]["spec"] == {"minMember": 5, "queue": "default", "priority": 10}
    labels = driver.bodies["Pod", "demo-ps-0"]["metadata"]["labels"]
    assert {name: text for name, text in labels.items() if name.startswith("scheduler.")} == {
        "scheduler.tensorstack.dev/group-name": "demo",
        "scheduler.tensorstack.dev/queue": "default",
        "scheduler.tensorstack.dev/role": "ps",
    }
    assert driver.pod_spec("ps-0")["schedulerName"] == "t9k-scheduler"


@pytest.mark.parametrize(
    ("settings", "command", "init"),
    [
        ([], ["sleep", "inf"], True),
        ([{"type": "worker", "skipInitContainer": True, "command": ["/usr/bin/sshd"]}], ["/usr/bin/sshd"], False),
    ],
    ids=["default", "override"],
)
def test_11_debug(settings: Any, command: list[str], init: bool) -> None:
    pod = {"containers": [container(command=["train"], args=["now"])], "initContainers": [container("init")]}
    driver = Driver(manifest(replicas(pod=pod), runMode={"debug": {"enabled": True, "replicaSpecs": settings}}))
    driver.go()
    spec = driver.pod_spec("worker-0")

    assert spec["containers"] == [container(command=command)]
    assert ("initContainers" in spec) == init


def test_12_pause() -> None:
    resume = [{"type": "worker", "command": ["resume"]}]
    spec = replicas(pod={"containers": [container(command=["train"])]})
    driver = Driver(manifest(spec, runMode={"pause": {"enabled": True, "resumeSpecs": resume}}))
    assert (driver.go()["phase"], driver.names()) == ("Paused", [])

    driver.pause(enabled=False)
    assert (driver.go()["phase"], driver.names()) == ("Resuming", FOUR)
    assert driver.start_all()["phase"] == "Running"
    assert driver.pod_spec("worker-0")["containers"][0]["command"] == ["resume"]

    driver.pause()
    driver.go()
    driver.reap()

    assert (driver.go()["phase"], driver.names()) == ("Paused", [])


def test_13_always_restarts_success() -> None:
    spec = replicas(restartPolicy={"policy": "Always", "limit": 1})
    driver = Driver(manifest(spec, **RULES)).running()
    driver.fail_and_restart("worker-0", code=0)

    assert (driver.status["phase"], restart_count(driver.status)) == ("Running", 1)
    assert phases(driver.status)["worker-0"] == "Running"


def test_14_all_finished_without_any_rule_fulfilled() -> None:
    rules = [{"worker": [0, 1]}]
    driver = Driver(manifest(replicas(count=2), successRules=rules, failureRules=rules)).running()
    driver.end("worker-0")

    assert driver.end("worker-1", code=1)["phase"] == "Failed"


def test_15_a_pod_deleted_by_somebody_else() -> None:
    driver = Driver(manifest(**RULES)).running()
    driver.delete(("Pod", "demo-worker-1"))
    driver.go()
    driver.reap()
    status = driver.go()
    assert status["aggregate"] == aggregate(creating=1, running=3)

    assert driver.start_all()["aggregate"] == aggregate(running=4)
    assert (driver.status["phase"], restart_count(driver.status)) == ("Running", None)


def test_16_the_status_survives_the_controller() -> None:
    """Nothing but the stored manifest and the children is carried over."""
    spec = replicas(restartPolicy={"policy": "OnFailure", "limit": 2})
    driver = Driver(manifest(spec, **RULES)).running()
    driver.fail_and_restart("worker-1")
    driver.restart_operator()
    successor = Driver(driver.document)
    successor.server = driver.server
    successor.restart_operator()
    assert successor.go() == driver.status

    successor.fail_and_restart("worker-1")
    assert (successor.status["phase"], restart_count(successor.status)) == ("Running", 2)
    assert successor.end("worker-1", code=1)["phase"] == "Failed"
    assert load(GENERICJOB, successor.document).errors == ()
