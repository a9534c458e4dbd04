# SPDX-License-Identifier: Apache-2.0
"""What is made: names, labels, owners, services, the pod group."""

from typing import Any

import pytest
from genericjob_driver import GANGS, Driver, container, manifest, replicas

from trainwright.model.event import EventReason, Notice
from trainwright.model.meta import DIGEST
from trainwright.testing.factories import UID

OWNERS = [
    {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "name": "demo",
        "uid": UID,
        "controller": True,
        "blockOwnerDeletion": True,
    }
]
SELECTOR = {"genericjob": "demo", "genericjob-replica": "demo-worker-0"}
ORIGINAL = SELECTOR | {
    "tensorstack.dev/component": "genericjob",
    "tensorstack.dev/component-type": "user",
    "tensorstack.dev/owner-name": "demo",
}
OURS = {
    "trainwright.dev/kind": "genericjob",
    "trainwright.dev/job-uid": UID,
    "trainwright.dev/role": "worker",
    "trainwright.dev/index": "0",
}
GANG = {
    "scheduler.tensorstack.dev/group-name": "demo",
    "scheduler.tensorstack.dev/queue": "default",
    "scheduler.tensorstack.dev/role": "worker",
}
ATTEMPT = {"trainwright.dev/attempt": "0"}


def t9k(**settings: Any) -> dict[str, Any]:
    return {"t9kScheduler": settings}


def test_a_pod_is_made_exactly_so() -> None:
    driver = Driver(manifest())
    driver.go()

    assert driver.bodies["Pod", "demo-worker-0"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "demo-worker-0",
            "namespace": "lab",
            "labels": ORIGINAL | OURS | ATTEMPT,
            "ownerReferences": OWNERS,
        },
        "spec": {"containers": [{"name": "main", "image": "busybox"}], "restartPolicy": "Never"},
    }


def test_names_are_job_type_rank() -> None:
    driver = Driver(manifest(replicas("master", 1), replicas("worker", 11)))
    driver.go()

    assert driver.names() == sorted(["demo-master-0", *(f"demo-worker-{rank}" for rank in range(11))])
    assert driver.names("Service") == driver.names("PodGroup") == []


def test_pods_are_made_in_document_order_then_by_rank_after_the_first_of_each_role() -> None:
    driver = Driver(manifest(replicas("worker", 2), replicas("master", 1)))
    driver.step()

    assert driver.writes == [
        "status",
        "create Pod demo-worker-0",
        "create Pod demo-master-0",
        "create Pod demo-worker-1",
    ]


def test_the_template_is_passed_through() -> None:
    """Metadata, unknown fields and pod settings stay; labels of the original and ours win over the user's."""
    spec = replicas(pod={"nodeSelector": {"gpu": "a100"}, "tolerations": [{"key": "x"}], "restartPolicy": "Always"})
    spec["template"]["metadata"] = {
        "labels": {"team": "vision", "genericjob": "other", "trainwright.dev/index": "7"},
        "annotations": {"note": "mine"},
    }
    driver = Driver(manifest(spec))
    driver.go()
    body = driver.bodies["Pod", "demo-worker-0"]

    assert body["metadata"]["labels"] == {"team": "vision"} | ORIGINAL | OURS | ATTEMPT
    assert body["metadata"]["annotations"] == {"note": "mine"}
    assert body["spec"] == {
        "containers": [{"name": "main", "image": "busybox"}],
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "x"}],
        "restartPolicy": "Never",
    }


@pytest.mark.parametrize("given", [None, "Always", "OnFailure", "Never"])
def test_the_kubelet_never_restarts(given: str | None) -> None:
    driver = Driver(manifest(replicas(pod={"restartPolicy": given} if given else {})))
    driver.go()

    assert driver.pod_spec("worker-0")["restartPolicy"] == "Never"


def test_a_service_is_made_exactly_so() -> None:
    driver = Driver(manifest(service={"ports": [{"name": "http", "port": 2222}]}))
    driver.go()

    assert driver.names("Service") == driver.names()
    assert driver.bodies["Service", "demo-worker-0"] == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "demo-worker-0",
            "namespace": "lab",
            "labels": SELECTOR | OURS,
            "ownerReferences": OWNERS,
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": SELECTOR,
            "ports": [{"name": "http", "port": 2222}],
        },
    }


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        pytest.param([{"port": 80}], [{"port": 80}], id="without a name"),
        pytest.param(
            [{"name": "a", "port": 53, "protocol": "UDP"}, {"name": "b", "port": 53, "protocol": "TCP"}],
            [{"name": "a", "port": 53, "protocol": "UDP"}, {"name": "b", "port": 53, "protocol": "TCP"}],
            id="one port, two protocols",
        ),
        pytest.param(
            [{"name": "a", "port": 80, "targetPort": "web", "appProtocol": "http"}],
            [{"name": "a", "port": 80, "targetPort": "web", "appProtocol": "http"}],
            id="every field of a headless service's port",
        ),
        pytest.param([{"name": "a", "port": 80, "targetPort": 8080}], [{"name": "a", "port": 80, "targetPort": 8080}]),
    ],
)
def test_ports_are_those_of_the_user(ports: list[Any], expected: list[Any]) -> None:
    driver = Driver(manifest(service={"ports": ports}))
    driver.go()

    assert driver.bodies["Service", "demo-worker-3"]["spec"]["ports"] == expected


def test_a_service_without_ports_gives_names_only() -> None:
    driver = Driver(manifest(service={}))
    driver.go()

    assert driver.names("Service") == driver.names()
    assert "ports" not in driver.bodies["Service", "demo-worker-0"]["spec"]


def test_services_are_made_before_their_pods() -> None:
    driver = Driver(manifest(replicas(count=2), service={}))
    driver.step()

    assert driver.writes[1:] == [
        "create Service demo-worker-0",
        "create Pod demo-worker-0",
        "create Service demo-worker-1",
        "create Pod demo-worker-1",
    ]


def test_a_service_outlives_a_restart_of_its_pod() -> None:
    driver = Driver(manifest(replicas(restartPolicy={"limit": 1}), service={})).running()
    driver.fail_and_restart("worker-1")

    assert driver.writes.count("create Service demo-worker-1") == 1
    assert driver.names("Service") == driver.names()


def test_a_pod_group_is_made_exactly_so() -> None:
    document = manifest(replicas("ps", 1), replicas("worker", 4), scheduler=t9k(queue="night", priority=50))
    driver = Driver(document, gangs=GANGS)
    driver.step()
    body = driver.bodies["PodGroup", "demo"]

    assert sorted(body["metadata"].pop("annotations")) == [DIGEST]
    assert body == {
        "apiVersion": "scheduler.tensorstack.dev/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": "demo",
            "namespace": "lab",
            "labels": {"trainwright.dev/kind": "genericjob", "trainwright.dev/job-uid": UID},
            "ownerReferences": OWNERS,
        },
        "spec": {"minMember": 5, "queue": "night", "priority": 50},
    }
    assert driver.writes[1] == "create PodGroup demo"


@pytest.mark.parametrize(
    ("settings", "spec"),
    [
        pytest.param({}, {"minMember": 4, "queue": "default", "priority": 0}, id="defaults"),
        pytest.param({"queue": "a"}, {"minMember": 4, "queue": "a", "priority": 0}, id="queue"),
        pytest.param({"priority": 100}, {"minMember": 4, "queue": "default", "priority": 100}, id="priority"),
    ],
)
def test_queue_and_priority_have_defaults(settings: dict[str, Any], spec: dict[str, Any]) -> None:
    driver = Driver(manifest(scheduler=t9k(**settings)), gangs=GANGS)
    driver.go()

    assert driver.bodies["PodGroup", "demo"]["spec"] == spec
    queue = {"scheduler.tensorstack.dev/queue": spec["queue"]}
    assert driver.bodies["Pod", "demo-worker-0"]["metadata"]["labels"] == ORIGINAL | OURS | ATTEMPT | GANG | queue


def test_pods_of_a_group_name_their_scheduler() -> None:
    driver = Driver(manifest(scheduler=t9k(queue="default", priority=50)), gangs=GANGS)
    driver.go()

    assert driver.pod_spec("worker-0")["schedulerName"] == "t9k-scheduler"
    assert driver.bodies["Pod", "demo-worker-0"]["metadata"]["labels"] == ORIGINAL | OURS | ATTEMPT | GANG


@pytest.mark.parametrize("scheduler", [None, {}], ids=["absent", "empty"])
def test_without_a_scheduler_nothing_of_it_is_made(scheduler: Any) -> None:
    driver = Driver(manifest(replicas(pod={"schedulerName": "mine"}), scheduler=scheduler), gangs=GANGS)
    driver.go()

    assert driver.names("PodGroup") == []
    assert driver.pod_spec("worker-0")["schedulerName"] == "mine"
    assert driver.bodies["Pod", "demo-worker-0"]["metadata"]["labels"] == ORIGINAL | OURS | ATTEMPT
    assert driver.plans[0].events == ()


def test_a_cluster_without_the_scheduler_runs_the_job_and_says_so() -> None:
    driver = Driver(manifest(scheduler=t9k()))
    driver.step()

    missing = "scheduler.tensorstack.dev/v1beta1 is not installed: pods start one by one"
    assert driver.plans[0].events == (Notice(EventReason.GANG_MISSING, missing),)
    assert driver.names("PodGroup") == []
    assert "schedulerName" not in driver.pod_spec("worker-0")
    assert driver.bodies["Pod", "demo-worker-0"]["metadata"]["labels"] == ORIGINAL | OURS | ATTEMPT


@pytest.mark.parametrize("code", [0, 1], ids=["succeeded", "failed"])
def test_the_pod_group_goes_when_the_job_ends(code: int) -> None:
    driver = Driver(manifest(replicas(count=1), scheduler=t9k()), gangs=GANGS).running()
    assert driver.names("PodGroup") == ["demo"]

    driver.end("worker-0", code=code)

    assert driver.names("PodGroup") == []


def test_the_pod_group_goes_with_a_pause_and_comes_back() -> None:
    driver = Driver(manifest(scheduler=t9k()), gangs=GANGS).running()
    driver.pause()
    driver.go()
    assert driver.names("PodGroup") == []

    driver.pause(enabled=False)
    driver.reap()
    driver.go()

    assert driver.names("PodGroup") == ["demo"]


def test_the_pod_group_follows_the_number_of_replicas() -> None:
    driver = Driver(manifest(scheduler=t9k()), gangs=GANGS).running()
    driver.edit(replicaSpecs=[replicas(count=6)])
    driver.catch_up()
    plan = driver.step()

    assert [(patch.kind, patch.name, patch.body["spec"]["minMember"]) for patch in plan.patches] == [
        ("PodGroup", "demo", 6)
    ]


def test_scaling_makes_and_removes_the_highest_ranks() -> None:
    driver = Driver(manifest(service={})).running()
    driver.edit(replicaSpecs=[replicas(count=5)])
    driver.go()
    assert driver.names() == driver.names("Service") == [f"demo-worker-{rank}" for rank in range(5)]

    driver.edit(replicaSpecs=[replicas(count=2)])
    driver.go()

    assert driver.names() == driver.names("Service") == ["demo-worker-0", "demo-worker-1"]


def test_an_edited_template_reaches_new_pods_only() -> None:
    driver = Driver(manifest(replicas(restartPolicy={"limit": 1}))).running()
    driver.edit(replicaSpecs=[replicas(restartPolicy={"limit": 1}, pod={"containers": [container(image="new")]})])
    driver.go()
    assert driver.pod_spec("worker-0")["containers"][0]["image"] == "busybox"
    assert driver.pod("worker-0").metadata.deletion_timestamp is None

    driver.fail_and_restart("worker-1")

    assert driver.pod_spec("worker-0")["containers"][0]["image"] == "busybox"
    assert driver.pod_spec("worker-1")["containers"][0]["image"] == "new"
