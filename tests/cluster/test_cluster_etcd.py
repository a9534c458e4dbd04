# SPDX-License-Identifier: Apache-2.0
"""Elastic PaddleJobs under the operator and a real etcd: what their launchers keep there follows `worker.replicas`.

The etcd is the control plane's own; fake nodes play the workers, the test plays their launchers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_client import until
from cluster_etcd import Workers
from cluster_operator import Operator, grant, started
from cluster_paddlejobs import PaddleJobs, paddlejob, role
from cluster_plane import ControlPlane

from trainwright.crd.rbac import RBAC

pytest_plugins = ("cluster_fixtures",)


@contextmanager
def operator(plane: ControlPlane, namespace: str, log: Path, server: str) -> Iterator[Operator]:
    """One of this namespace, alone, that is told of this server."""
    grant(plane, namespace, "operator", {"kind": "User", "name": "operator", "apiGroup": RBAC})
    alone = ("--no-leader-elect", f"--namespace={namespace}", "--resync-period=1s")
    with started(plane.kubeconfig("operator"), log, *alone, "--etcd-server", server) as process:
        yield process
    assert "Traceback" not in log.read_text()


def elastic() -> dict[str, Any]:
    return paddlejob("demo", elastic=1, worker=role(3, runs="forever") | {"requests": 1, "limits": 4})


def here(plane: ControlPlane) -> str:
    return plane.layout.etcd.removeprefix("http://")


def test_the_number_that_launchers_keep_follows_the_size(
    plane: ControlPlane, namespace: str, nodes: object, tmp_path: Path
) -> None:
    jobs, workers = PaddleJobs(plane, namespace), Workers(plane.layout.etcd, namespace, "demo")
    lease = workers.leased("3")
    with operator(plane, namespace, tmp_path / "log", f"127.0.0.1:1,{here(plane)}"):
        jobs.make(elastic())
        jobs.until("demo", "Running")
        uids = {name: pod["metadata"]["uid"] for name, pod in jobs.children("demo").items()}
        jobs.edit("demo", worker={"replicas": 2})
        until(lambda: workers.number == "2", "launchers know of two")
        until(lambda: set(jobs.children("demo")) == {"worker-0", "worker-1"}, "the third is gone")
        jobs.edit("demo", worker={"replicas": 9})
        until(lambda: workers.number == "4", "launchers know of four, which is the most")
        until(lambda: len(jobs.children("demo")) == 4, "there are four")
        workers.put("3", lease)  # a launcher that starts late puts what it was told when its pod was made
        until(lambda: workers.number == "4", "it is put right again")

    assert workers.lease == lease  # it is the launchers', and ends with them
    found = {name: pod["metadata"]["uid"] for name, pod in jobs.children("demo").items()}
    assert [found[name] == uids[name] for name in ("worker-0", "worker-1")] == [True, True]
    assert jobs.events("demo") == ["Running", "Scaled", "Scaled"]


def test_an_operator_that_dies_before_it_could_tell_leaves_that_to_the_next(
    plane: ControlPlane, namespace: str, nodes: object, tmp_path: Path
) -> None:
    jobs, workers = PaddleJobs(plane, namespace), Workers(plane.layout.etcd, namespace, "demo")
    workers.put("3")
    with operator(plane, namespace, tmp_path / "log", "127.0.0.1:1"):
        jobs.make(elastic())
        jobs.until("demo", "Running")
        jobs.edit("demo", worker={"replicas": 2})
        until(lambda: "FailedSync" in jobs.events("demo"), "people are told that the server is away")
        until(lambda: len(jobs.children("demo")) == 2, "the size is changed all the same")
    assert workers.number == "3"
    with operator(plane, namespace, tmp_path / "next", here(plane)):
        until(lambda: workers.number == "2", "launchers know of two")

    told = [one for one in jobs.events("demo") if one != "Running"]
    assert sorted(told) == ["FailedSync", "Scaled"]


def test_where_launchers_keep_no_number_none_is_put(
    plane: ControlPlane, namespace: str, nodes: object, tmp_path: Path
) -> None:
    jobs, workers = PaddleJobs(plane, namespace), Workers(plane.layout.etcd, namespace, "demo")
    with operator(plane, namespace, tmp_path / "log", here(plane)):
        jobs.make(elastic())
        jobs.until("demo", "Running")
        jobs.edit("demo", worker={"replicas": 2})
        until(lambda: jobs.events("demo") == ["Running", "Scaled"], "the change is told")
        until(lambda: len(jobs.children("demo")) == 2, "the third is gone")

    assert workers.number == ""
