# SPDX-License-Identifier: Apache-2.0
"""Pods and services of an AITrainingJob: names, labels, variables, ports, what is taken from the template."""

from typing import Any

import pytest
from aitrainingjob_driver import Driver, container, manifest, ports, replicas

from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.site import Site

OPEN = {"containers": [container(ports=ports(24446))]}


def made(document: Body, **more: Any) -> Driver:
    world = Driver(document, **more)
    world.go()
    return world


def foreign(labels: dict[str, str]) -> dict[str, str]:
    """Labels that are not ours."""
    return {key: text for key, text in labels.items() if not key.startswith("trainwright.dev/")}


# -- variables -----------------------------------------------------------------------------------------------------


def test_the_worked_example_of_the_reference() -> None:
    document = manifest(name="paddle-mnist", meta={"namespace": "default"}, trainer=replicas(2, pod=OPEN))
    world = made(document)
    env = world.bodies["Pod", "paddle-mnist-trainer-1"]["spec"]["containers"][0]["env"]

    assert {one["name"]: one["value"] for one in env} == {
        "TRAINER_INSTANCES": "paddle-mnist-trainer-0.default,paddle-mnist-trainer-1.default",
        "TRAINER_INSTANCES_NUM": "2",
        "TRAINER_PORTS": "24446",
        "TRAINER_PORTS_NUM": "1",
        "TRAINER_HOSTS": "paddle-mnist-trainer-0.default:24446,paddle-mnist-trainer-1.default:24446",
        "TRAINER_HOSTS_NUM": "2",
        "TRAININGJOB_REPLICA_NAME": "trainer",
        "TRAININGJOB_REPLICA_TYPE": "trainer",
        "TRAININGJOB_REPLICA_INDEX": "1",
        "TRAININGJOB_REPLICA_RESTARTCOUNT": "0",
        "TRAININGJOB_SERVICE": "paddle-mnist-trainer-1.default",
        "TRAININGJOB_NAME": "paddle-mnist",
        "TRAININGJOB_NAMESPACE": "default",
        "TRAININGJOB_PORTS": "24446",
    }


def test_hosts_are_instances_times_ports_and_every_type_is_told_of_every_type() -> None:
    several = {"containers": [container(ports=[*ports(1, 2), {"name": "metrics", "containerPort": 9}])]}
    env = made(manifest(PServer=replicas(2, pod=several), trainer=1)).env("trainer-0")

    assert env["PSERVER_INSTANCES"] == "demo-PServer-0.lab,demo-PServer-1.lab"
    assert env["PSERVER_PORTS"] == "1,2"
    assert env["PSERVER_HOSTS"] == "demo-PServer-0.lab:1,demo-PServer-0.lab:2,demo-PServer-1.lab:1,demo-PServer-1.lab:2"
    assert (env["PSERVER_PORTS_NUM"], env["PSERVER_HOSTS_NUM"]) == ("2", "4")
    assert (env["TRAINER_PORTS"], env["TRAINER_PORTS_NUM"]) == ("", "0")
    assert (env["TRAINER_HOSTS"], env["TRAINER_HOSTS_NUM"]) == ("", "0")
    assert env["TRAININGJOB_PORTS"] == ""


def test_names_are_lower_case_where_objects_bear_them() -> None:
    world = made(manifest(PServer=1))

    assert world.names() == world.names("Service") == ["pserver-0"]
    env = world.env("pserver-0")
    assert env["TRAININGJOB_REPLICA_NAME"] == env["TRAININGJOB_REPLICA_TYPE"] == "pserver"
    assert env["TRAININGJOB_SERVICE"] == "demo-pserver-0.lab"


def test_a_name_with_a_dash_is_also_told_under_one_that_shells_have() -> None:
    types: Body = {"hetero-ps": replicas(1, pod=OPEN)}
    env = made(manifest(**types)).env("hetero-ps-0")

    assert env["HETERO-PS_HOSTS"] == env["HETERO_PS_HOSTS"] == "demo-hetero-ps-0.lab:24446"
    assert env["HETERO_PS_INSTANCES_NUM"] == "1"


def test_variables_follow_the_users_own_in_every_container_and_init_container() -> None:
    own = [{"name": "TRAININGJOB_NAME", "value": "mine"}, {"name": "X", "value": "$(TRAINER_HOSTS)"}]
    pod = {
        "initContainers": [container("aitj-init", env=own)],
        "containers": [container(env=own, ports=ports(7)), container("sidecar", ports=ports(8))],
    }
    world = made(manifest(trainer=replicas(1, pod=pod)))
    main, sidecar, init = (
        world.env("trainer-0"),
        world.env("trainer-0", 1),
        world.env("trainer-0", group="initContainers"),
    )

    assert [one["TRAININGJOB_NAME"] for one in (main, sidecar, init)] == ["demo"] * 3
    assert main["X"] == "$(TRAINER_HOSTS)"
    assert [one["TRAINER_HOSTS"] for one in (main, sidecar, init)] == ["demo-trainer-0.lab:7"] * 3
    assert (main["TRAININGJOB_PORTS"], sidecar["TRAININGJOB_PORTS"]) == ("7", "")
    assert "TRAININGJOB_PORTS" not in init


def test_the_restart_count_is_that_of_the_type_when_the_pod_is_made() -> None:
    world = Driver(manifest(a=replicas(2, restartPolicy="OnFailure", restartScope="Pod"), b=1)).running()
    world.end("a-1", code=1)
    world.again()

    counts = {name: world.env(name)["TRAININGJOB_REPLICA_RESTARTCOUNT"] for name in ("a-0", "a-1", "b-0")}
    assert counts == {"a-0": "0", "a-1": "1", "b-0": "0"}
    assert world.body("Pod", "a-1")["metadata"]["labels"]["RestartCount"] == "1"


def test_where_names_do_not_resolve_each_replica_has_a_host_and_ports_of_its_own() -> None:
    key = Key("lab", "demo")
    names = ("demo-trainer-0", "demo-trainer-1", "demo-ps-0")
    site = Site(
        names_resolve=False,
        hosts={(key, name): f"127.0.0.{place}" for place, name in enumerate(names)},
        ports={(key, name, 24446): 20000 + place for place, name in enumerate(names)},
    )
    env = made(manifest(ps=replicas(1, pod=OPEN), trainer=replicas(2, pod=OPEN)), site=site).env("trainer-1")

    assert env["TRAINER_HOSTS"] == "127.0.0.0:20000,127.0.0.1:20001"
    assert env["TRAINER_INSTANCES"] == "127.0.0.0,127.0.0.1"
    assert env["TRAININGJOB_SERVICE"] == "127.0.0.1"
    assert env["TRAININGJOB_PORTS"] == env["TRAINER_PORTS"] == "20001"
    assert (env["PS_HOSTS"], env["PS_PORTS"]) == ("127.0.0.2:20002", "20002")


# -- pods ----------------------------------------------------------------------------------------------------------


def test_labels_the_originals_over_the_templates_and_the_jobs_own_last() -> None:
    template = {"metadata": {"labels": {"JobName": "x", "team": "a"}, "annotations": {"note": "n"}}}
    one = replicas(2)
    one["template"] |= template
    document = manifest(trainer=one, spec={"priority": "high"}, meta={"labels": {"team": "b", "stage": "test"}})
    meta = made(document).body("Pod", "trainer-1")["metadata"]

    assert foreign(meta["labels"]) == {
        "GroupName": "elasticdeeplearning.ai",
        "TrainingJobName": "demo",
        "JobName": "demo",
        "PodRole": "trainer",
        "TrainingJobReplicaName": "trainer",
        "TrainingJobReplicaIndex": "1",
        "RestartCount": "0",
        "priority": "high",
        "team": "a",
        "stage": "test",
    }
    assert meta["annotations"] == {"note": "n"}
    assert meta["ownerReferences"] == [
        {
            "apiVersion": "elasticdeeplearning.ai/v1",
            "kind": "AITrainingJob",
            "name": "demo",
            "uid": document["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_no_priority_no_label() -> None:
    assert "priority" not in made(manifest(trainer=1)).body("Pod", "trainer-0")["metadata"]["labels"]


@pytest.mark.parametrize(
    ("pod", "spec", "expected"),
    [
        pytest.param({}, {}, (None, "Never"), id="neither"),
        pytest.param({"schedulerName": "mine"}, {}, ("mine", "Never"), id="the template's"),
        pytest.param({"schedulerName": "mine"}, {"schedulerName": "big"}, ("big", "Never"), id="the job's wins"),
        pytest.param({"restartPolicy": "Always"}, {}, (None, "Never"), id="kubelets restart nothing"),
    ],
)
def test_scheduler_and_restart_policy(pod: Body, spec: Body, expected: tuple[str | None, str]) -> None:
    found = made(manifest(trainer=replicas(1, pod=pod), spec=spec)).body("Pod", "trainer-0")["spec"]

    assert (found.get("schedulerName"), found["restartPolicy"]) == expected


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({}, (None, None)),
        ({"hostNetwork": True}, (True, "ClusterFirstWithHostNet")),
        ({"hostNetwork": True, "dnsPolicy": "Default"}, (True, "Default")),
        ({"hostNetwork": False}, (False, None)),
        ({"dnsPolicy": "None"}, (None, "None")),
    ],
)
def test_host_network_only_where_the_template_says_so(pod: Body, expected: tuple[bool | None, str | None]) -> None:
    spec = made(manifest(trainer=replicas(1, pod=pod))).body("Pod", "trainer-0")["spec"]

    assert (spec.get("hostNetwork"), spec.get("dnsPolicy")) == expected


def test_what_else_the_template_says_is_left_alone() -> None:
    pod = {"volumes": [{"name": "v", "emptyDir": {}}], "affinity": {"nodeAffinity": {}}, "nodeSelector": {"a": "b"}}
    spec = made(manifest(trainer=replicas(1, pod=pod))).body("Pod", "trainer-0")["spec"]

    assert {key: spec[key] for key in pod} == pod


# -- services ------------------------------------------------------------------------------------------------------


def test_a_headless_service_for_each_pod_with_the_ports_that_count() -> None:
    service = made(manifest(trainer=replicas(2, pod={"containers": [container(ports=ports(5, 6))]}))).body(
        "Service", "trainer-1"
    )
    names = {
        "GroupName": "elasticdeeplearning.ai",
        "TrainingJobName": "demo",
        "TrainingJobReplicaName": "trainer",
        "TrainingJobReplicaIndex": "1",
    }

    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names,
        "ports": [{"name": "aitj-5", "port": 5}, {"name": "aitj-6", "port": 6}],
    }
    assert foreign(service["metadata"]["labels"]) == names


def test_a_service_without_ports() -> None:
    assert "ports" not in made(manifest(trainer=1)).body("Service", "trainer-0")["spec"]


def test_without_the_prefix_the_first_container_counts_with_all_its_ports() -> None:
    pod = {"containers": [container("main", ports=[{"containerPort": 5}]), container("side", ports=ports(6))]}
    world = made(manifest(trainer=replicas(1, pod=pod)))

    assert world.env("trainer-0")["TRAINER_PORTS"] == "5"
    assert world.env("trainer-0")["TRAININGJOB_PORTS"] == "5"
    assert world.body("Service", "trainer-0")["spec"]["ports"] == [{"name": "aitj-5", "port": 5}]
    assert world.said()[0] == (
        "TrainingJobContainer",
        "no container is called aitj-…, so the first one counts, with all its ports (trainer: main)",
    )


def test_a_port_of_two_containers_is_exposed_once() -> None:
    pod = {"containers": [container(ports=ports(5)), container("aitj-other", ports=ports(5, 6))]}

    exposed = made(manifest(trainer=replicas(1, pod=pod))).body("Service", "trainer-0")["spec"]["ports"]
    assert [one["port"] for one in exposed] == [5, 6]
