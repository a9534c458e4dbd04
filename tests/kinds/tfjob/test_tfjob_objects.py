# SPDX-License-Identifier: Apache-2.0
"""Names, labels, owners, ports, restart policies: what the original's tools look for on pods, services and groups."""

from typing import Any

import pytest
from tfjob_driver import Driver, conditions, container, gangs, labels, manifest, policy, replicas

from trainwright.kinds.gangs import PLUGINS_API, T9K_API, VOLCANO_API
from trainwright.model.job import Body
from trainwright.model.site import Site
from trainwright.testing.factories import UID

OWNER = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "name": "demo",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": True,
}


def made(document: Body, site: Site | None = None) -> Driver:
    driver = Driver(document, site=site)
    driver.go()
    return driver


def wire_labels(kind: str, index: int, **more: str) -> dict[str, str]:
    named = {"operator-name": "tfjob-controller", "job-name": "demo", "replica-type": kind, "replica-index": str(index)}
    return {f"training.kubeflow.org/{key}": text for key, text in (named | more).items()}


ROLE = {"training.kubeflow.org/job-role": "master"}


@pytest.mark.parametrize(
    ("types", "leaders"),
    [
        ({"Worker": 2, "PS": 1}, ["worker-0"]),
        ({"Chief": 1, "Worker": 2}, ["chief-0"]),
        ({"Master": 2, "Worker": 1}, ["master-0", "master-1"]),
        ({"PS": 1, "Evaluator": 1}, []),
    ],
    ids=["worker 0", "the chief", "every master", "nobody"],
)
def test_who_leads_is_labelled(types: dict[str, Any], leaders: list[str]) -> None:
    driver = made(manifest(**types))

    for name in driver.names():
        kind, index = name.rsplit("-", 1)
        expected = wire_labels(kind, int(index)) | (ROLE if name in leaders else {})
        assert labels(driver.body("Pod", name)) == expected


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
def test_every_child_has_the_names_and_the_owner_of_the_original(version: str) -> None:
    driver = made(manifest(version=version, WORKER=2, ps=1, Eval=1))

    names = ["evaluator-0", "ps-0", "worker-0", "worker-1"]
    assert driver.names() == driver.names("Service") == names
    assert [body["metadata"]["ownerReferences"] for body in driver.bodies.values()] == [[OWNER]] * 8
    assert {body["metadata"]["namespace"] for body in driver.bodies.values()} == {"lab"}


def test_the_service_is_headless_and_selects_by_the_labels_of_the_original() -> None:
    service = made(manifest(Worker=2)).body("Service", "worker-1")

    assert labels(service) == wire_labels("worker", 1)
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": wire_labels("worker", 1),
        "ports": [{"name": "tfjob-port", "port": 2222}],
    }


@pytest.mark.parametrize(
    ("ports", "pod", "service"),
    [
        pytest.param(None, [("tfjob-port", 2222)], [("tfjob-port", 2222)], id="none: the usual one"),
        pytest.param([("tfjob-port", 1)], [("tfjob-port", 1)], [("tfjob-port", 1)], id="its own"),
        pytest.param(
            [("customPort", 1234)],
            [("customPort", 1234), ("tfjob-port", 2222)],
            [("customPort", 1234), ("tfjob-port", 2222)],
            id="beside another",
        ),
        pytest.param(
            [(None, 80), (None, 81)],
            [(None, 80), (None, 81), ("tfjob-port", 2222)],
            [("port-80", 80), ("port-81", 81), ("tfjob-port", 2222)],
            id="without names: services need some",
        ),
        pytest.param(
            [("grpc", 2222), ("grpc2", 2222)],
            [("grpc", 2222), ("grpc2", 2222), ("tfjob-port", 2222)],
            [("tfjob-port", 2222)],
            id="one number twice: services refuse that",
        ),
    ],
)
def test_ports(
    ports: list[tuple[str | None, int]] | None,
    pod: list[tuple[str | None, int]],
    service: list[tuple[str, int]],
) -> None:
    given = [({"name": name} if name else {}) | {"containerPort": number} for name, number in ports or ()]
    main = container(ports=given) if ports is not None else container()
    driver = made(manifest(Worker=replicas(pod={"containers": [container("side"), main]})))

    found = driver.body("Pod", "worker-0")["spec"]["containers"]
    assert [(one.get("name"), one["containerPort"]) for one in found[1]["ports"]] == pod
    assert "ports" not in found[0]
    assert [(one["name"], one["port"]) for one in driver.body("Service", "worker-0")["spec"]["ports"]] == service


@pytest.mark.parametrize(
    ("given", "expected"),
    [("ExitCode", "Never"), ("Never", "Never"), ("Always", "Always"), ("OnFailure", "OnFailure"), (None, "Never")],
)
def test_the_restart_policy_of_the_type_is_the_pods(given: str | None, expected: str) -> None:
    more: dict[str, Any] = {} if given is None else {"restartPolicy": given}
    driver = made(manifest(Worker=replicas(pod={"restartPolicy": "Always"}, **more)))

    assert driver.body("Pod", "worker-0")["spec"]["restartPolicy"] == expected


def test_labels_and_annotations_of_the_template_are_kept_and_those_of_the_job_are_not_passed_on() -> None:
    document = manifest(Worker=1)
    document["metadata"] |= {"labels": {"of": "the job"}, "annotations": {"of": "the job"}}
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    template["metadata"] = {
        "name": "passed-over",
        "labels": {"test-key": "test-value", "training.kubeflow.org/job-name": "other"},
        "annotations": {"a": "b"},
        "finalizers": ["example.org/stay"],
    }
    metadata = made(document).body("Pod", "worker-0")["metadata"]

    assert metadata["name"] == "demo-worker-0"
    assert labels({"metadata": metadata}) == wire_labels("worker", 0) | ROLE | {"test-key": "test-value"}
    assert (metadata["annotations"], metadata["finalizers"]) == ({"a": "b"}, ["example.org/stay"])


# -- gangs ---------------------------------------------------------------------------------------------------------

CPU: dict[str, Any] = {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 1, "memory": "1Gi"}}}
GANG = {"queue": "research", "priorityClass": "high", "scheduleTimeoutSeconds": 30}
NOT_OURS = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"


def ganged(site: Site, *, scheduling: Body | None = None, **more: Any) -> Driver:
    pod = {"containers": [container(**CPU), container("side", **CPU)]}
    given = GANG if scheduling is None else scheduling
    types: dict[str, Any] = {"PS": replicas(1, pod=pod), "Worker": replicas(2, pod=pod)}
    return made(manifest(spec=policy(schedulingPolicy=given) | more, **types), site)


def test_volcano_is_asked_before_any_pod_is_made() -> None:
    """Pods that were made before their group was admitted led to quota deadlocks."""
    driver = ganged(gangs(VOLCANO_API, PLUGINS_API))
    group = driver.bodies["PodGroup", "demo"]

    assert group["apiVersion"] == VOLCANO_API
    assert group["spec"] == {
        "minMember": 3,
        "queue": "research",
        "priorityClassName": "high",
        "minResources": {"cpu": "3", "memory": "6442450944"},
    }
    assert group["metadata"]["ownerReferences"] == [OWNER]
    assert driver.names() == []
    assert conditions(driver.status) == ["Created"]

    driver.group("Pending")
    assert driver.names() == []

    driver.group("Inqueue")
    pod = driver.body("Pod", "worker-1")
    assert driver.names() == ["ps-0", "worker-0", "worker-1"]
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": "demo",
        "volcano.sh/task-spec": "worker",
    }


def test_scheduler_plugins_take_pods_at_once() -> None:
    driver = ganged(gangs(PLUGINS_API))
    group, pod = driver.bodies["PodGroup", "demo"], driver.body("Pod", "ps-0")

    assert (group["apiVersion"], group["spec"]) == (
        PLUGINS_API,
        {"minMember": 3, "minResources": {"cpu": "3", "memory": "6442450944"}, "scheduleTimeoutSeconds": 30},
    )
    assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "demo"
    assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"


def test_the_scheduler_of_the_embedded_engine_is_as_good() -> None:
    driver = ganged(gangs(T9K_API))

    assert driver.bodies["PodGroup", "demo"]["spec"] == {"minMember": 3, "queue": "research", "priority": 0}
    assert driver.body("Pod", "ps-0")["metadata"]["labels"]["scheduler.tensorstack.dev/group-name"] == "demo"


def test_a_scheduler_that_the_template_names_is_left_alone() -> None:
    document = manifest(spec=policy(schedulingPolicy={}), Worker=replicas(2, pod={"schedulerName": "mine"}))
    driver = made(document, gangs(PLUGINS_API))
    pod = driver.body("Pod", "worker-0")

    assert pod["spec"]["schedulerName"] == "mine"
    assert "scheduling.x-k8s.io/pod-group" in pod["metadata"]["labels"]
    assert driver.running().said().count(("SetPodTemplateSchedulerName", NOT_OURS)) == 1


@pytest.mark.parametrize(
    ("named", "site"),
    [
        pytest.param("", gangs(VOLCANO_API), id="no scheduler is named"),
        pytest.param("volcano", gangs(VOLCANO_API), id="the gang's own"),
        pytest.param("mine", Site(gangs=frozenset({PLUGINS_API}), gang_scheduler="mine"), id="the operator's"),
        pytest.param("mine", Site(), id="there is no gang"),
    ],
)
def test_of_the_right_scheduler_nothing_is_said(named: str, site: Site) -> None:
    document = manifest(spec=policy(schedulingPolicy={}), Worker=replicas(2, pod={"schedulerName": named}))

    assert "SetPodTemplateSchedulerName" not in [reason for reason, _ in made(document, site).said()]


@pytest.mark.parametrize(
    ("scheduling", "expected"),
    [
        ({}, {"minMember": 3, "queue": "default", "minResources": {"cpu": "3", "memory": "6442450944"}}),
        (
            {"minAvailable": 2},
            {"minMember": 2, "queue": "default", "minResources": {"cpu": "2", "memory": "4294967296"}},
        ),
        ({"minResources": {"cpu": 9}}, {"minMember": 3, "queue": "default", "minResources": {"cpu": 9}}),
    ],
    ids=["all of them", "so many", "as it says"],
)
def test_what_the_group_asks_for(scheduling: Body, expected: Body) -> None:
    assert ganged(gangs(VOLCANO_API), scheduling=scheduling).bodies["PodGroup", "demo"]["spec"] == expected


def test_a_group_follows_the_size_of_its_job_but_keeps_its_queue() -> None:
    """The original overwrote a queue that volcano had been told to move the group to."""
    driver = ganged(gangs(VOLCANO_API))
    driver.group("Inqueue")
    driver.scale("Worker", 4)

    patches = [patch for plan in driver.plans for patch in plan.patches]
    assert [patch.body["spec"]["minMember"] for patch in patches] == [5]
    assert "queue" not in patches[0].body["spec"]


@pytest.mark.parametrize("how", ["end", "suspend"])
def test_the_group_goes_when_nothing_runs_any_more(how: str) -> None:
    driver = ganged(gangs(PLUGINS_API)).running()
    assert driver.names("PodGroup") == ["demo"]

    driver.end("worker-0") if how == "end" else driver.suspend()
    deletes = [delete for plan in driver.plans for delete in plan.deletes if delete.kind == "PodGroup"]
    assert driver.names("PodGroup") == []
    assert len(deletes) == 1


def test_without_a_gang_scheduler_the_job_runs_and_says_so() -> None:
    driver = ganged(Site())

    assert driver.names() == ["ps-0", "worker-0", "worker-1"]
    assert driver.names("PodGroup") == []
    missing = f"none of {VOLCANO_API}, {PLUGINS_API}, {T9K_API} is installed: pods start one by one"
    assert ("GangUnavailable", missing) in driver.said()


def test_a_job_that_wants_no_gang_gets_none() -> None:
    driver = made(manifest(Worker=2), gangs(VOLCANO_API))

    assert driver.names() == ["worker-0", "worker-1"]
    assert driver.names("PodGroup") == []


@pytest.mark.parametrize(
    ("word", "apis", "expected", "scheduler"),
    [
        ("volcano", (VOLCANO_API, PLUGINS_API), VOLCANO_API, "volcano"),
        ("Volcano", (VOLCANO_API,), VOLCANO_API, "volcano"),
        ("mine", (VOLCANO_API, PLUGINS_API), PLUGINS_API, "mine"),
        ("", (VOLCANO_API, PLUGINS_API), None, None),
    ],
)
@pytest.mark.parametrize("asked", [True, False], ids=["asked", "not asked"])
def test_where_the_operator_is_told_a_scheduler_every_job_is_a_gang(
    word: str, apis: tuple[str, ...], expected: str | None, scheduler: str | None, asked: bool
) -> None:
    spec = policy(schedulingPolicy={}) if asked else {}
    driver = made(manifest(spec=spec, Worker=2), Site(gangs=frozenset(apis), gang_scheduler=word))
    if not word and asked:
        expected, scheduler = VOLCANO_API, "volcano"

    assert driver.bodies.get(("PodGroup", "demo"), {}).get("apiVersion") == expected
    if expected == VOLCANO_API:
        driver.group("Running")
    assert driver.body("Pod", "worker-0")["spec"].get("schedulerName") == scheduler


def test_a_scheduler_that_the_operator_is_told_and_that_is_not_there_is_missed() -> None:
    driver = made(manifest(Worker=2), Site(gangs=frozenset({PLUGINS_API}), gang_scheduler="volcano"))

    assert driver.names() == ["worker-0", "worker-1"]
    assert driver.said()[0] == ("GangUnavailable", f"{VOLCANO_API} is not installed: pods start one by one")


def test_annotations_of_the_job_are_the_groups() -> None:
    document = manifest(spec=policy(schedulingPolicy={}), Worker=2)
    document["metadata"]["annotations"] = {
        "team": "a",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    }
    group = made(document, gangs(VOLCANO_API)).bodies["PodGroup", "demo"]

    assert {key: text for key, text in group["metadata"]["annotations"].items() if "trainwright" not in key} == {
        "team": "a"
    }
