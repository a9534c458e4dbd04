# SPDX-License-Identifier: Apache-2.0
"""The variables, labels, ports and services of each kind of Kubeflow v1: names, values and order are the contract."""

from typing import Any

import pytest
from kubeflow_driver import FRAMEWORKS, Driver, manifest, replicas

from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.site import Site

each = pytest.mark.parametrize("kind", FRAMEWORKS)


def made(kind: str, **types: Any) -> Driver:
    driver = Driver(manifest(kind, **types))
    driver.go()
    return driver


def ports(name: str, number: int) -> list[Body]:
    return [{"name": name, "containerPort": number}]


def test_a_jaxjob() -> None:
    """The example cpu-demo of the original."""
    driver = made("jaxjob", Worker=2)

    assert driver.variables("worker-1") == [
        "PYTHONUNBUFFERED=1",
        "COORDINATOR_PORT=6666",
        "COORDINATOR_ADDRESS=demo-worker-0",
        "NUM_PROCESSES=2",
        "PROCESS_ID=1",
    ]
    assert driver.variables("worker-0")[-1] == "PROCESS_ID=0"


def test_a_jaxjob_with_another_port() -> None:
    driver = made("jaxjob", Worker=replicas("jaxjob", 2, ports=ports("jaxjob-port", 1234)))

    assert "COORDINATOR_PORT=1234" in driver.variables("worker-0")
    assert driver.body("Service", "worker-0")["spec"]["ports"] == [{"name": "jaxjob-port", "port": 1234}]


def test_an_xgboostjob() -> None:
    """The example xgboostjob.yaml of the original."""
    one: dict[str, Any] = {"ports": ports("xgboostjob-port", 9991)}
    driver = made("xgboostjob", Master=replicas("xgboostjob", 1, **one), Worker=replicas("xgboostjob", 2, **one))

    assert driver.variables("worker-1") == [
        "MASTER_PORT=9991",
        "MASTER_ADDR=demo-master-0",
        "WORLD_SIZE=3",
        "RANK=2",
        "PYTHONUNBUFFERED=1",
        "WORKER_PORT=9991",
        "WORKER_ADDRS=demo-worker-0,demo-worker-1",
    ]
    ranks = {name: driver.env(name)["RANK"] for name in driver.names()}
    assert ranks == {"master-0": "0", "worker-0": "1", "worker-1": "2"}


@pytest.mark.parametrize("types", [{"Master": 1}, {"Master": 1, "Worker": 0}], ids=["none", "zero"])
def test_an_xgboostjob_without_workers_has_no_list_of_workers(types: dict[str, int]) -> None:
    driver = made("xgboostjob", **types)

    assert driver.variables("master-0") == [
        "MASTER_PORT=9999",
        "MASTER_ADDR=demo-master-0",
        "WORLD_SIZE=1",
        "RANK=0",
        "PYTHONUNBUFFERED=1",
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("jaxjob", {"COORDINATOR_ADDRESS": "127.0.0.9", "COORDINATOR_PORT": "40001"}),
        (
            "xgboostjob",
            {"MASTER_ADDR": "127.0.0.8", "MASTER_PORT": "40002", "WORKER_ADDRS": "127.0.0.9", "WORKER_PORT": "40001"},
        ),
    ],
)
def test_where_names_do_not_resolve_the_variables_have_the_reserved_addresses(
    kind: str, expected: dict[str, str]
) -> None:
    key, port = Key("lab", "demo"), FRAMEWORKS[kind][1].main.port
    hosts = {(key, "demo-worker-0"): "127.0.0.9", (key, "demo-master-0"): "127.0.0.8"}
    reserved = {(key, "demo-worker-0", port): 40001, (key, "demo-master-0", port): 40002}
    driver = Driver(manifest(kind), site=Site(names_resolve=False, hosts=hosts, ports=reserved))
    driver.go()

    assert expected.items() <= driver.env("worker-0").items()
    assert set(driver.load().job.dialect.endpoints(driver.job)) == {role.name for role in driver.job.roles}


# -- what is the same for each kind ----------------------------------------------------------------------------------


@each
def test_every_container_gets_the_variables_after_its_own_but_no_init_container_does(kind: str) -> None:
    own = {"name": "WORLD_SIZE", "value": "mine"}
    main = FRAMEWORKS[kind][1].main.name
    pod = {
        "initContainers": [{"name": "first", "image": "x"}],
        "containers": [{"name": main, "image": "x", "env": [own]}, {"name": "side", "image": "x"}],
    }
    driver = Driver(manifest(kind))
    for one in driver.document["spec"][driver.framework.field].values():
        one["template"]["spec"] = pod
    driver.go()
    spec = driver.body("Pod", "worker-0")["spec"]

    assert driver.variables("worker-0")[0] == "WORLD_SIZE=mine"
    assert driver.variables("worker-0")[1:] == driver.variables("worker-0", 1) != []
    assert "env" not in spec["initContainers"][0]
    assert [[port["name"] for port in one.get("ports", ())] for one in spec["containers"]] == [
        [FRAMEWORKS[kind][1].main.port_name],
        [],
    ]


@each
def test_pods_have_the_labels_of_the_original_and_services_select_by_them(kind: str) -> None:
    driver = made(kind)
    labels = driver.body("Pod", "worker-0")["metadata"]["labels"]
    service = driver.body("Service", "worker-0")["spec"]
    names = {
        "training.kubeflow.org/job-name": "demo",
        "training.kubeflow.org/operator-name": f"{kind}-controller",
        "training.kubeflow.org/replica-index": "0",
        "training.kubeflow.org/replica-type": "worker",
    }

    assert names.items() <= labels.items()
    assert labels["trainwright.dev/kind"] == kind
    assert service["selector"] == names
    assert service["clusterIP"] == "None"
    main = FRAMEWORKS[kind][1].main
    assert service["ports"] == [{"name": main.port_name, "port": main.port}]


@pytest.mark.parametrize(("kind", "leader"), [("jaxjob", "worker-0"), ("xgboostjob", "master-0")])
def test_the_leader_has_its_label_and_nobody_else(kind: str, leader: str) -> None:
    driver = made(kind)
    labels = {name: driver.body("Pod", name)["metadata"]["labels"] for name in driver.names()}

    assert [name for name in labels if "training.kubeflow.org/job-role" in labels[name]] == [leader]
    assert labels[leader]["training.kubeflow.org/job-role"] == "master"


@pytest.mark.parametrize(
    ("restart", "pod"), [("", "Never"), ("Never", "Never"), ("OnFailure", "OnFailure"), ("ExitCode", "Never")]
)
@each
def test_the_restart_policy_of_a_pod(kind: str, restart: str, pod: str) -> None:
    driver = Driver(manifest(kind, restart=restart))
    driver.go()

    assert driver.body("Pod", "worker-0")["spec"]["restartPolicy"] == pod
