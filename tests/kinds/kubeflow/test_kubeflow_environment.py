# SPDX-License-Identifier: Apache-2.0
"""The variables, labels, ports and services of each kind of Kubeflow v1: names, values and order are the contract."""

from typing import Any

import pytest
from kubeflow_driver import FRAMEWORKS, Driver, manifest, replicas

from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.site import Site

each = pytest.mark.parametrize("kind", FRAMEWORKS)
JOB_ROLE = "training.kubeflow.org/job-role"


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


#: A manifest of a PyTorchJob (fields of the spec, types), a pod, and its variables in order.
PYTORCH: dict[str, tuple[Body, dict[str, Any], str, str]] = {
    "torchrun-cpu": (
        {"nprocPerNode": "2"},
        {"Master": 1, "Worker": 1},
        "master-0",
        "PYTHONUNBUFFERED=1 MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR=demo-master-0"
        " PET_MASTER_ADDR=demo-master-0 WORLD_SIZE=4 RANK=0 PET_NODE_RANK=0 PET_NPROC_PER_NODE=2 PET_NNODES=2",
    ),
    "torchrun-cpu, the worker": (
        {"nprocPerNode": "2"},
        {"Master": 1, "Worker": 1},
        "worker-0",
        "PYTHONUNBUFFERED=1 MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR=demo-master-0"
        " PET_MASTER_ADDR=demo-master-0 WORLD_SIZE=4 RANK=1 PET_NODE_RANK=1 PET_NPROC_PER_NODE=2 PET_NNODES=2",
    ),
    "auto": (
        {},
        {"Master": 1, "Worker": 3},
        "worker-2",
        "PYTHONUNBUFFERED=1 MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR=demo-master-0"
        " PET_MASTER_ADDR=demo-master-0 WORLD_SIZE=4 RANK=3 PET_NODE_RANK=3 PET_NPROC_PER_NODE=auto PET_NNODES=4",
    ),
    "only a master": (
        {"nprocPerNode": "3"},
        {"Master": 1},
        "master-0",
        "PYTHONUNBUFFERED=1 MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR=demo-master-0"
        " PET_MASTER_ADDR=demo-master-0 WORLD_SIZE=3 RANK=0 PET_NODE_RANK=0 PET_NPROC_PER_NODE=3 PET_NNODES=1",
    ),
    "elastic-example-echo": (
        {"elasticPolicy": {"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": 2, "maxRestarts": 100}},
        {"Worker": 2},
        "worker-1",
        "PYTHONUNBUFFERED=1 PET_NPROC_PER_NODE=auto PET_RDZV_ENDPOINT=demo-worker-0:23456 PET_RDZV_BACKEND=c10d"
        " PET_NNODES=1:2 PET_MAX_RESTARTS=100",
    ),
    "elastic with etcd": (
        {
            "elasticPolicy": {
                "rdzvHost": "etcd",
                "rdzvPort": 2379,
                "rdzvBackend": "etcd",
                "rdzvId": "x",
                "rdzvConf": [{"key": "timeout", "value": "900"}, {"key": "a", "value": "b"}],
                "nProcPerNode": 4,
                "minReplicas": 2,
            }
        },
        {"Worker": 2},
        "worker-0",
        "PYTHONUNBUFFERED=1 PET_RDZV_ENDPOINT=etcd:2379 PET_RDZV_BACKEND=etcd PET_NNODES=2:2 PET_NPROC_PER_NODE=4"
        " PET_RDZV_ID=x PET_RDZV_CONF=timeout=900,a=b",
    ),
    "elastic with a master": (
        {"elasticPolicy": {"maxReplicas": 3, "minReplicas": 1}},
        {"Master": 1, "Worker": 2},
        "worker-1",
        "PYTHONUNBUFFERED=1 MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR=demo-master-0"
        " PET_MASTER_ADDR=demo-master-0 WORLD_SIZE=3 RANK=2 PET_NODE_RANK=2 PET_NPROC_PER_NODE=auto"
        " PET_RDZV_ENDPOINT=demo-worker-0:23456 PET_RDZV_BACKEND=c10d PET_NNODES=1:3",
    ),
    "standalone": (
        {"elasticPolicy": {"standalone": True, "rdzvConf": []}},
        {"Worker": 2},
        "worker-0",
        "PYTHONUNBUFFERED=1 PET_NPROC_PER_NODE=auto PET_RDZV_ENDPOINT=demo-worker-0:23456 PET_RDZV_BACKEND=c10d"
        " PET_NNODES=2:2 PET_STANDALONE=1",
    ),
    "another port": (
        {"elasticPolicy": {"rdzvPort": 29400}},
        {"Worker": 1},
        "worker-0",
        "PYTHONUNBUFFERED=1 PET_NPROC_PER_NODE=auto PET_RDZV_ENDPOINT=demo-worker-0:29400 PET_RDZV_BACKEND=c10d"
        " PET_NNODES=1:1",
    ),
    "workers only: more than the original gives": (
        {},
        {"Worker": 3},
        "worker-2",
        "PYTHONUNBUFFERED=1 MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR=demo-worker-0"
        " PET_MASTER_ADDR=demo-worker-0 WORLD_SIZE=3 RANK=2 PET_NODE_RANK=2 PET_NPROC_PER_NODE=auto PET_NNODES=3",
    ),
}


@pytest.mark.parametrize(("spec", "types", "pod", "expected"), PYTORCH.values(), ids=PYTORCH)
def test_a_pytorchjob(spec: Body, types: dict[str, Any], pod: str, expected: str) -> None:
    driver = Driver(manifest("pytorchjob", spec, **types))
    driver.go()

    assert driver.variables(pod) == expected.split(" ")


def test_the_port_of_a_pytorchjob_is_that_of_the_leader() -> None:
    master, worker = (replicas("pytorchjob", 1, ports=ports("pytorchjob-port", port)) for port in (1111, 2222))

    assert made("pytorchjob", Master=master, Worker=worker).env("worker-0")["MASTER_PORT"] == "1111"
    assert made("pytorchjob", Worker=worker).env("worker-0")["MASTER_PORT"] == "2222"


def test_the_bounds_of_an_elastic_job_do_not_change_the_number_of_workers() -> None:
    driver = Driver(manifest("pytorchjob", {"elasticPolicy": {"minReplicas": 3, "maxReplicas": 4}}, Worker=2))
    driver.go()

    assert driver.names() == ["worker-0", "worker-1"]


def test_where_names_do_not_resolve_the_rendezvous_has_the_reserved_address() -> None:
    key, spec = Key("lab", "demo"), {"elasticPolicy": {"rdzvPort": 29400, "rdzvHost": "demo-worker-0"}}
    site = Site(
        names_resolve=False,
        hosts={(key, "demo-worker-0"): "127.0.0.9"},
        ports={(key, "demo-worker-0", 29400): 40001},
    )
    driver = Driver(manifest("pytorchjob", spec, Worker=2), site=site)
    driver.go()

    assert driver.env("worker-1")["PET_RDZV_ENDPOINT"] == "127.0.0.9:40001"
    assert driver.job.dialect.endpoints(driver.job) == {"Worker": (23456, 29400)}


_OWN_ADDRESS = "POD_IP_DUMMY={'fieldRef': {'fieldPath': 'status.podIP'}}"


def test_a_paddlejob_of_workers() -> None:
    """The example simple-cpu of the original."""
    driver = made("paddlejob", Worker=replicas("paddlejob", 2, ports=ports("master", 37777)))

    shared = ["PYTHONUNBUFFERED=1", "PADDLE_JOB_ID=demo", "PADDLE_NNODES=2"]
    assert driver.variables("worker-0") == [*shared, _OWN_ADDRESS, "PADDLE_MASTER=$(POD_IP_DUMMY):37777"]
    assert driver.variables("worker-1") == [*shared, "PADDLE_MASTER=demo-worker-0:37777"]


def test_a_paddlejob_with_parameter_servers() -> None:
    driver = made("paddlejob", Master=2, Worker=2)

    shared = ["PYTHONUNBUFFERED=1", "PADDLE_JOB_ID=demo", "PADDLE_NNODES=4"]
    servers, trainers = "PADDLE_SERVER_NUM=1", "PADDLE_TRAINER_NUM=1"
    assert driver.variables("master-0") == [*shared, _OWN_ADDRESS, "PADDLE_MASTER=$(POD_IP_DUMMY):36543", servers]
    assert driver.variables("master-1") == [*shared, "PADDLE_MASTER=demo-master-0:36543", servers]
    assert driver.variables("worker-0") == [*shared, "PADDLE_MASTER=demo-master-0:36543", trainers]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("jaxjob", {"COORDINATOR_ADDRESS": "127.0.0.9", "COORDINATOR_PORT": "40001"}),
        (
            "xgboostjob",
            {"MASTER_ADDR": "127.0.0.8", "MASTER_PORT": "40002", "WORKER_ADDRS": "127.0.0.9", "WORKER_PORT": "40001"},
        ),
        ("pytorchjob", {"MASTER_ADDR": "127.0.0.8", "MASTER_PORT": "40002"}),
        ("paddlejob", {"PADDLE_MASTER": "$(POD_IP_DUMMY):40001"}),
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
    assert labels["trainwright.dev/kind"] == FRAMEWORKS[kind][0].id
    assert service["selector"] == names
    assert service["clusterIP"] == "None"
    main = FRAMEWORKS[kind][1].main
    assert service["ports"] == [{"name": main.port_name, "port": main.port}]


@pytest.mark.parametrize(
    ("kind", "types", "leaders"),
    [
        ("jaxjob", {"Worker": 2}, ["worker-0"]),
        ("xgboostjob", {"Master": 1, "Worker": 1}, ["master-0"]),
        ("pytorchjob", {"Master": 1, "Worker": 1}, ["master-0"]),
        ("pytorchjob", {"Worker": 2}, ["worker-0"]),
        ("paddlejob", {"Worker": 2}, []),
        ("paddlejob", {"Master": 2, "Worker": 1}, ["master-0", "master-1"]),
    ],
)
def test_the_leaders_have_their_label_and_nobody_else(kind: str, types: dict[str, int], leaders: list[str]) -> None:
    driver = made(kind, **types)
    labels = {name: driver.body("Pod", name)["metadata"]["labels"] for name in driver.names()}

    marked = {name: one["training.kubeflow.org/job-role"] for name, one in labels.items() if JOB_ROLE in one}
    assert marked == dict.fromkeys(leaders, "master")


#: The restart policy of a replica spec that has none.
DEFAULTS = {"jaxjob": "Never", "xgboostjob": "Never", "pytorchjob": "OnFailure", "paddlejob": "OnFailure"}


@pytest.mark.parametrize(
    ("restart", "pod"), [("", "default"), ("Never", "Never"), ("OnFailure", "OnFailure"), ("ExitCode", "Never")]
)
@each
def test_the_restart_policy_of_a_pod(kind: str, restart: str, pod: str) -> None:
    driver = Driver(manifest(kind, restart=restart))
    driver.go()

    expected = pod if restart else DEFAULTS[kind]
    assert driver.body("Pod", "worker-0")["spec"]["restartPolicy"] == expected
