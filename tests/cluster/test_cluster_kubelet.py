# SPDX-License-Identifier: Apache-2.0
"""A job whose pods run in real containers, put on a real node by the real scheduler, looked after by the operator."""

from collections.abc import Iterator
from typing import Any

import pytest
from cluster_binaries import MissingError
from cluster_client import until
from cluster_container import real_node
from cluster_images import BUSYBOX
from cluster_jobs import Body, Jobs, job, role
from cluster_operator import Operator
from cluster_paddlejobs import PaddleJobs, paddlejob
from cluster_plane import ControlPlane
from cluster_process import Process

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")
NODE = "node-0"


@pytest.fixture(scope="module")
def kubelet(plane: ControlPlane) -> Iterator[Process]:
    try:
        with real_node(plane, NODE) as process:
            yield process
    except MissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def there(plane: ControlPlane, namespace: str, kubelet: Process, operator: Operator) -> Jobs:
    return Jobs(plane, namespace)


def _shell(script: str, replicas: int = 1, **more: Any) -> Body:
    found = role(replicas=replicas, **more)
    main = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    found["template"]["spec"] = {"containers": [main], "nodeSelector": {"kubernetes.io/hostname": NODE}}
    return found


def test_a_job_succeeds_in_containers_and_its_logs_are_read(there: Jobs) -> None:
    there.apply(job("real", _shell("echo rank $(rank) of $(replicas[worker]) on `hostname`; sleep 1", replicas=2)))

    status = there.until("real", "Succeeded")
    assert status["aggregate"]["succeeded"] + status["aggregate"]["running"] == 2
    assert {one["spec"]["nodeName"] for one in there.pods().values()} == {NODE}
    for rank in range(2):
        name = f"real-worker-{rank}"
        assert there.kubectl("logs", name) == f"rank {rank} of 2 on {name}\n"
    there.kubectl("delete", "gj", "real")
    there.until_pods(0)


def test_a_container_that_fails_is_restarted_as_the_job_says_and_the_job_fails_when_it_may_not_be(there: Jobs) -> None:
    there.apply(job("fails", _shell("echo try; exit 3", limit=1)))

    status = there.until("fails", "Failed")
    assert status["tasks"][0]["restartCount"] == 1
    assert status["tasks"][0]["replicas"][0]["containers"] == [{"name": "main", "state": "Terminated", "exitCode": 3}]
    assert status["trainwright"]["failures"][-1]["cause"] | {"message": ""} == {
        "why": "Exit",
        "code": 3,
        "reason": "Error",
        "container": "main",
        "node": NODE,
        "message": "",
    }
    until(lambda: len(there.events("fails")) >= 2, f"{there.events('fails')}")
    assert (
        there.events("fails")[-1]
        == "Failed worker 0 failed for good; fails-worker-0: container main exited with code 3"
    )
    assert there.kubectl("logs", "fails-worker-0") == "try\n"


def test_an_image_that_is_not_there_is_told(there: Jobs) -> None:
    absent = _shell("true")
    absent["template"]["spec"]["containers"][0]["image"] = "trainwright.test/absent:1"
    there.apply(job("absent", absent))

    until(lambda: "cannot be created: ErrImageNeverPull" in there.condition("absent"), f"{there.status('absent')}")
    assert there.phase("absent") == "Pending"
    there.kubectl("delete", "gj", "absent")
    there.until_pods(0)


def test_pods_wait_for_the_addresses_of_their_peers_and_read_them(there: Jobs) -> None:
    """A real kubelet's words for a ConfigMap that is not there yet are no trouble, and it starts pods when it is."""
    paddle = PaddleJobs(there.plane, there.namespace)
    script = "echo $PADDLE_CURRENT_ENDPOINT of $PADDLE_TRAINER_ENDPOINTS"
    main = {"name": "paddle", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    pod = {"containers": [main], "nodeSelector": {"kubernetes.io/hostname": NODE}}
    paddle.make(paddlejob("real", worker={"replicas": 2, "template": {"spec": pod}}, cleanPodPolicy="Never"))

    status = paddle.until("real", "Completed", 90)
    assert [one["type"] for one in status["conditions"]] == ["Running", "Completed"]
    listed = paddle.data("real")["PADDLE_TRAINER_ENDPOINTS"]
    for rank, endpoint in enumerate(listed.split(",")):
        assert there.kubectl("logs", f"real-worker-{rank}") == f"{endpoint} of {listed}\n"
    there.kubectl("delete", "pdj", "real")
    there.until_pods(0)
