# SPDX-License-Identifier: Apache-2.0
"""TF_CONFIG, to the byte."""

from typing import Any

import pytest
from tfjob_driver import Driver, container, manifest, replicas

from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.site import Site

DENSE = '{{"cluster":{{{cluster}}},"task":{{"type":"{type}","index":{index}}},"environment":"cloud"}}'
WORKER0, PS0 = '"worker":["demo-worker-0.lab.svc:2222"]', '"ps":["demo-ps-0.lab.svc:2222"]'


def dense(cluster: str, kind: str = "worker", index: int = 0) -> str:
    return DENSE.format(cluster=cluster, type=kind, index=index)


def on_port(port: int, name: str = "tfjob-port", **more: Any) -> Body:
    return replicas(pod={"containers": [container(ports=[{"name": name, "containerPort": port}])]}, **more)


def config(pod: str, site: Site | None = None, dynamic: bool | None = None, **types: Any) -> str | None:
    spec = {} if dynamic is None else {"enableDynamicWorker": dynamic}
    driver = Driver(manifest(spec=spec, **types), site=site)
    driver.go()
    return driver.config(pod)


@pytest.mark.parametrize(
    ("types", "pod", "expected"),
    [
        pytest.param({"Worker": 1}, "worker-0", None, id="one worker is local"),
        pytest.param({"PS": 1}, "ps-0", None, id="one server is local"),
        pytest.param({"Worker": 1, "PS": 0}, "worker-0", None, id="one worker and no server is local"),
        pytest.param({"Worker": replicas(None)}, "worker-0", None, id="no number is one"),
        pytest.param({"Worker": 1, "PS": 1}, "worker-0", dense(f"{PS0},{WORKER0}"), id="worker and server"),
        pytest.param({"Worker": 1, "PS": 1}, "ps-0", dense(f"{PS0},{WORKER0}", "ps"), id="the server's own"),
        pytest.param(
            {"Chief": 1, "Worker": 1},
            "chief-0",
            dense(f'"chief":["demo-chief-0.lab.svc:2222"],{WORKER0}', "chief"),
            id="chief and worker is distributed",
        ),
        pytest.param(
            {"Worker": 2},
            "worker-1",
            dense('"worker":["demo-worker-0.lab.svc:2222","demo-worker-1.lab.svc:2222"]', index=1),
            id="two workers",
        ),
        pytest.param(
            {"Worker": 1, "PS": 1, "Evaluator": 1},
            "worker-0",
            dense(f'"evaluator":["demo-evaluator-0.lab.svc:2222"],{PS0},{WORKER0}'),
            id="the evaluator is listed",
        ),
        pytest.param(
            {"Worker": 1, "Eval": 1},
            "evaluator-0",
            dense(f'"evaluator":["demo-evaluator-0.lab.svc:2222"],{WORKER0}', "evaluator"),
            id="Eval, as the design calls it",
        ),
        pytest.param(
            {"Worker": 1, "master": 1},
            "master-0",
            dense(f'"master":["demo-master-0.lab.svc:2222"],{WORKER0}', "master"),
            id="keys in any case",
        ),
        pytest.param(
            {"Worker": 2, "PS": 0},
            "worker-0",
            dense('"ps":[],"worker":["demo-worker-0.lab.svc:2222","demo-worker-1.lab.svc:2222"]'),
            id="a type without replicas is listed",
        ),
        pytest.param(
            {"Worker": on_port(1111), "PS": on_port(2345)},
            "worker-0",
            dense('"ps":["demo-ps-0.lab.svc:2345"],"worker":["demo-worker-0.lab.svc:1111"]'),
            id="each type has its own port",
        ),
        pytest.param(
            {"Worker": on_port(1234, "customPort"), "PS": 1},
            "worker-0",
            dense(f"{PS0},{WORKER0}"),
            id="a port of another name is not the one",
        ),
    ],
)
def test_tf_config(types: dict[str, Any], pod: str, expected: str | None) -> None:
    assert config(pod, **types) == expected


@pytest.mark.parametrize(
    ("types", "domain", "expected"),
    [
        ({"Worker": 1}, "tf.training.org", None),
        (
            {"Worker": 1, "PS": 1},
            "tf.training.org",
            dense(
                '"ps":["demo-ps-0.lab.svc.tf.training.org:2222"],"worker":["demo-worker-0.lab.svc.tf.training.org:2222"]'
            ),
        ),
        (
            {"Worker": 1, "PS": 1, "Evaluator": 1},
            "tf.training.io",
            dense(
                '"evaluator":["demo-evaluator-0.lab.svc.tf.training.io:2222"],'
                '"ps":["demo-ps-0.lab.svc.tf.training.io:2222"],"worker":["demo-worker-0.lab.svc.tf.training.io:2222"]'
            ),
        ),
    ],
    ids=["local", "worker and server", "with an evaluator"],
)
def test_a_cluster_domain_is_appended(types: dict[str, Any], domain: str, expected: str | None) -> None:
    assert config("worker-0", Site(domain=domain), **types) == expected


SPARSE: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "a worker knows itself and the servers",
        {"Worker": 2, "PS": 2},
        "worker-1",
        '{"cluster":{"worker":{"1":"demo-worker-1.lab.svc:2222"},'
        '"ps":["demo-ps-0.lab.svc:2222","demo-ps-1.lab.svc:2222"]},"task":{"type":"worker","index":1}}',
    ),
    (
        "a server knows itself",
        {"Worker": 2, "PS": 2},
        "ps-1",
        '{"cluster":{"worker":{},"ps":["demo-ps-1.lab.svc:2222"]},"task":{"type":"ps","index":1}}',
    ),
    (
        "without servers",
        {"Worker": 2},
        "worker-0",
        '{"cluster":{"worker":{"0":"demo-worker-0.lab.svc:2222"},"ps":null},"task":{"type":"worker","index":0}}',
    ),
    (
        "a chief knows nobody",
        {"Worker": 1, "Chief": 1},
        "chief-0",
        '{"cluster":{"worker":{},"ps":[]},"task":{"type":"chief","index":0}}',
    ),
]


@pytest.mark.parametrize(("types", "pod", "expected"), [row[1:] for row in SPARSE], ids=[row[0] for row in SPARSE])
def test_dynamic_workers_know_only_what_stays(types: dict[str, Any], pod: str, expected: str) -> None:
    assert config(pod, dynamic=True, **types) == expected


def test_where_names_do_not_resolve_hosts_and_ports_stand_for_them() -> None:
    key = Key("lab", "demo")
    hosts = {(key, "demo-worker-0"): "127.3.0.1", (key, "demo-worker-1"): "127.3.0.2"}
    site = Site(names_resolve=False, hosts=hosts, ports={(key, "demo-worker-1", 2222): 40001})

    expected = dense('"worker":["127.3.0.1:2222","127.3.0.2:40001"]', index=1)
    assert config("worker-1", site, Worker=2) == expected
    sparse = '{"cluster":{"worker":{"1":"127.3.0.2:40001"},"ps":null},"task":{"type":"worker","index":1}}'
    assert config("worker-1", site, dynamic=True, Worker=2) == sparse


def test_it_is_appended_to_the_container_that_trains_and_to_no_other() -> None:
    own = {"name": "TF_CONFIG", "value": "{}"}
    pod = {
        "initContainers": [container("tensorflow-init")],
        "containers": [container("sidecar"), container(env=[own]), container("tensorflow2")],
    }
    driver = Driver(manifest(Worker=replicas(2, pod=pod)))
    driver.go()

    spec = driver.body("Pod", "worker-0")["spec"]
    assert [len(one.get("env") or ()) for one in spec["containers"]] == [0, 2, 0]
    assert spec["containers"][1]["env"][0] == own
    assert spec["containers"][1]["env"][1]["name"] == "TF_CONFIG"
    assert "env" not in spec["initContainers"][0]


def test_scaling_does_not_touch_pods_that_run() -> None:
    driver = Driver(manifest(Worker=2)).running()
    driver.scale("Worker", 3)

    assert driver.names() == ["worker-0", "worker-1", "worker-2"]
    assert "demo-worker-2" not in (driver.config("worker-0") or "")
    assert "demo-worker-2" in (driver.config("worker-2") or "")
