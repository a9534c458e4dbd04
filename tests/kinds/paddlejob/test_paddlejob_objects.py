# SPDX-License-Identifier: Apache-2.0
"""The objects of a PaddleJob, to the byte where programs read them: pods, services, the ConfigMap."""

from typing import Any

import pytest
from paddlejob_driver import Driver, container, manifest, role

from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.site import Site


def test_a_pod_as_the_document_shows_it() -> None:
    world = Driver(manifest(ps=1, worker=1))
    world.go()
    pod = world.bodies["Pod", "demo-ps-0"]
    spec = pod["spec"]

    assert {key: text for key, text in pod["metadata"]["labels"].items() if "trainwright" not in key} == {
        "paddle-res-name": "demo-ps-0",
        "paddle-res-type": "ps",
    }
    assert pod["metadata"]["annotations"] == {"paddle-resource": "ps"}
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "batch.paddlepaddle.org/v1",
        "PaddleJob",
        True,
        True,
    )
    assert (spec["hostname"], spec["subdomain"], spec["restartPolicy"]) == ("demo-ps-0", "demo-ps-0", "Never")
    (main,) = spec["containers"]
    assert main["env"][:4] == [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "PADDLE_TRAINER_ID", "value": "0"},
        {"name": "TRAINING_ROLE", "value": "PSERVER"},
        {"name": "PADDLE_TRAINING_ROLE", "value": "PSERVER"},
    ]
    assert main["envFrom"] == [{"configMapRef": {"name": "demo"}}]
    assert "ports" not in main
    assert world.env("worker-0")["TRAINING_ROLE"] == "TRAINER"


def test_the_users_own_labels_variables_and_sources_stay() -> None:
    mine = container(env=[{"name": "A", "value": "b"}], envFrom=[{"secretRef": {"name": "s"}}])
    meta = {"labels": {"team": "x", "paddle-res-type": "lies"}, "annotations": {"note": "y"}}
    world = Driver(manifest(worker=role(1, pod={"containers": [mine], "hostname": "lies"}, meta=meta)))
    world.go()
    pod = world.bodies["Pod", "demo-worker-0"]

    assert (pod["metadata"]["labels"]["team"], pod["metadata"]["labels"]["paddle-res-type"]) == ("x", "worker")
    assert pod["metadata"]["annotations"] == {"note": "y", "paddle-resource": "worker"}
    assert pod["spec"]["hostname"] == "demo-worker-0"
    main = pod["spec"]["containers"][0]
    assert main["env"][0] == {"name": "A", "value": "b"}
    assert main["envFrom"] == [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "demo"}}]


@pytest.mark.parametrize(
    ("spec", "given", "expected"),
    [
        ({}, None, {"worker": "Never", "ps": "Never"}),
        ({"intranet": "Service"}, None, {"worker": "OnFailure", "ps": "Never"}),
        ({"intranet": "Host"}, None, {"worker": "Never", "ps": "Never"}),
        ({"intranet": "Service"}, "Never", {"worker": "Never", "ps": "Never"}),
        ({}, "OnFailure", {"worker": "OnFailure", "ps": "OnFailure"}),
    ],
)
def test_the_restart_policy_is_the_users_or_the_originals(spec: Body, given: str | None, expected: Body) -> None:
    pod = {} if given is None else {"restartPolicy": given}
    world = Driver(manifest(ps=role(1, pod=pod), worker=role(1, pod=pod), **spec))
    world.go()

    assert {name: world.bodies["Pod", f"demo-{name}-0"]["spec"]["restartPolicy"] for name in expected} == expected


def test_a_service_for_each_pod_only_where_names_are_asked_for() -> None:
    world = Driver(manifest(ps=1, worker=1, intranet="Service"))
    world.go()
    service = world.bodies["Service", "demo-ps-0"]

    assert world.names("Service") == ["ps-0", "worker-0"]
    assert service["spec"]["selector"] == {"paddle-res-name": "demo-ps-0"}
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert [(one["name"], one["port"]) for one in service["spec"]["ports"]] == [
        (f"p-{place}", 36000 + place) for place in range(20)
    ]
    assert world.bodies["Pod", "demo-ps-0"]["spec"]["containers"][0]["ports"] == [{"containerPort": 36000}]
    for intranet in ("PodIP", "Host"):
        other = Driver(manifest(ps=1, worker=1, intranet=intranet))
        other.run()
        assert other.names("Service") == []


def test_the_worked_example() -> None:
    world = Driver(manifest(ps=2, worker=2, withGloo=1))
    world.run()

    assert world.data == {
        "TRAINER_PORTS_NUM": "20",
        "PADDLE_PORT": "36000",
        "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.2:36000,10.0.0.3:36000",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.4:36000,10.0.0.5:36000",
        "PADDLE_TRAINERS": "10.0.0.4,10.0.0.5",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_WITH_GLOO": "1",
        "PADDLE_GLOO_RENDEZVOUS": "3",
        "PADDLE_GLOO_HTTP_ENDPOINT": "10.0.0.2:36018",
    }
    body = world.bodies["ConfigMap", "demo"]
    assert body["metadata"]["labels"]["paddle-res-name"] == "demo"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"ps": 1}, "1"),
        ({"ps": 1, "withGloo": 0}, None),
        ({"ps": 1, "withGloo": 2}, "2"),
        ({"ps": 0, "withGloo": 2}, None),
        ({}, None),
        ({"withGloo": 1}, None),
    ],
)
def test_gloo_is_on_with_servers_unless_it_is_said_otherwise(spec: dict[str, Any], expected: str | None) -> None:
    world = Driver(manifest(worker=1, **spec))
    world.run()

    assert world.data.get("PADDLE_WITH_GLOO") == expected
    assert ("PADDLE_GLOO_HTTP_ENDPOINT" in world.data) is (expected is not None)


@pytest.mark.parametrize("intranet", ["PodIP", "Service", "Host"])
def test_nobody_is_told_of_servers_and_heterogeneous_workers_that_are_scaled_away(intranet: str) -> None:
    world = Driver(manifest(ps=1, worker=2, heter=1, intranet=intranet))
    world.run()
    assert {"PADDLE_GLOO_HTTP_ENDPOINT", "STAGE_NUM"} <= world.data.keys()

    world.document["spec"]["heter"]["replicas"] = 0
    world.scale("ps", 0)
    world.run()

    told = [world.read[pod.metadata.uid] for pod in world.pods().values()]
    assert len(told) == 2
    for one in told:
        assert not [key for key in one if "GLOO" in key or "HETER" in key or "STAGE" in key]
        assert len([key for key in one if key.startswith("TRAINWRIGHT_")]) == 1


@pytest.mark.parametrize(("intranet", "again"), [("PodIP", True), ("Host", True), ("Service", False)])
def test_a_server_that_comes_back_under_another_address_takes_all_along_unless_it_goes_by_name(
    intranet: str, again: bool
) -> None:
    world = Driver(manifest(ps=role(1, pod={"restartPolicy": "OnFailure"}), worker=2, intranet=intranet))
    world.run()
    world.change("demo-ps-0", pod_ip="10.9.9.9")
    world.wait_out()
    world.run()

    assert world.names() == [f"{name}#1" if again else name for name in ("ps-0", "worker-0", "worker-1")]
    assert world.phase == "Running"
    ips = [pod.status.pod_ip for pod in world.pods().values()]
    for pod in world.pods().values() if again else ():
        told = world.read[pod.metadata.uid]
        ends = f"{told['PADDLE_PSERVERS_IP_PORT_LIST']},{told['PADDLE_TRAINER_ENDPOINTS']}"
        assert [end.rpartition(":")[0] for end in ends.split(",")] == ips


def test_by_name_hosts_have_a_dot_so_that_paddles_launcher_takes_them_for_hosts() -> None:
    world = Driver(manifest(worker=2, intranet="Service"))
    world.step()

    assert world.names("ConfigMap") == ["demo"], "before any pod runs"
    assert world.data["PADDLE_TRAINER_ENDPOINTS"] == "demo-worker-0.lab:36000,demo-worker-1.lab:36000"
    assert world.env("worker-1")["POD_IP"] == "demo-worker-1.lab"
    assert world.env("worker-1")["PADDLE_CURRENT_ENDPOINT"] == "$(POD_IP):36000"


@pytest.mark.parametrize("intranet", ["PodIP", "Service", "Host"])
def test_where_pods_have_no_network_each_has_a_host_and_ports_of_its_own(intranet: str) -> None:
    hosts = {(Key("lab", "demo"), f"demo-worker-{place}"): f"127.1.0.{place + 2}" for place in range(2)}
    site = Site(names_resolve=False, hosts=hosts, host_ports=(10000, 19999))
    world = Driver(manifest(worker=2, intranet=intranet), site=site)
    world.run()
    ports = [world.env(f"worker-{place}")["PADDLE_PORT"] for place in range(2)]
    ends = world.data["PADDLE_TRAINER_ENDPOINTS"].split(",")

    assert [end.rpartition(":")[2] for end in ends] == ports
    assert abs(int(ports[0]) - int(ports[1])) >= 20
    assert "PADDLE_PORT" not in world.data, "nobody's in particular"
    if intranet == "Service":
        assert [end.rpartition(":")[0] for end in ends] == ["127.1.0.2", "127.1.0.3"]


# -- elastic -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "old", "new"),
    [
        ({}, "3", "1:3"),
        ({"requests": 2}, "2:3", "2:3"),
        ({"limits": 5}, "1:5", "1:5"),
        ({"requests": 2, "limits": 5}, "2:5", "2:5"),
    ],
)
def test_an_elastic_worker_is_told_what_both_launchers_read(bounds: dict[str, Any], old: str, new: str) -> None:
    site = Site(elastic_server="etcd:2379, second:2379")
    world = Driver(manifest(worker=role(3, **bounds), elastic=1), site=site)
    world.run()
    env = {key: value for key, value in world.env("worker-2").items() if "ELASTIC" in key}
    pod = world.bodies["Pod", "demo-worker-2"]["spec"]

    assert env == {
        "PADDLE_ELASTIC_JOB_ID": "lab-demo",
        "PADDLE_ELASTIC_NP": old,
        "PADDLE_ELASTIC_TIMEOUT": "60",
        "PADDLE_ELASTIC_SERVER": "etcd:2379",
        "PADDLE_ELASTIC_LEVEL": "1",
    }
    told = world.env("worker-2")
    assert (told["PADDLE_MASTER"], told["PADDLE_NNODES"]) == ("etcd://etcd:2379", new)
    assert told["PADDLE_JOB_ID"] == world.job.uid, "no other job's name begins so"
    assert (told["PADDLE_PORT"], pod["restartPolicy"]) == ("36000", "OnFailure")
    assert "envFrom" not in pod["containers"][0]
    assert world.names("ConfigMap") == []


def test_without_a_server_paddle_looks_for_the_service_by_itself_and_what_the_user_says_counts() -> None:
    mine = container(env=[{"name": "PADDLE_ELASTIC_TIMEOUT", "value": "6"}, {"name": "PADDLE_MASTER", "value": "x"}])
    world = Driver(manifest(worker=role(2, pod={"containers": [mine]}), elastic=1))
    world.go()
    env = world.env("worker-0")

    assert (env["PADDLE_ELASTIC_TIMEOUT"], env["PADDLE_MASTER"]) == ("6", "x")
    assert not {"PADDLE_ELASTIC_SERVER", "PADDLE_NNODES", "PADDLE_ELASTIC_LEVEL"} & set(env)


def test_an_elastic_job_grows_and_shrinks_without_disturbing_who_runs() -> None:
    world = Driver(manifest(worker=role(3, requests=2, limits=4), elastic=1))
    world.run()
    before = {name: pod.metadata.uid for name, pod in world.pods().items()}
    world.scale("worker", 2)
    world.run()
    assert world.status["elastic"] == "DONE"
    world.scale("worker", 4)
    assert world.status["elastic"] == "DOING"
    world.run()

    after = {name: pod.metadata.uid for name, pod in world.pods().items()}
    assert len(after) == 4
    assert all(after[f"demo-worker-{place}"] == before[f"demo-worker-{place}"] for place in (0, 1))
    assert (world.status["elastic"], world.phase) == ("DONE", "Running")
