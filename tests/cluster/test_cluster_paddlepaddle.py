# SPDX-License-Identifier: Apache-2.0
"""PaddleJobs that train with PaddlePaddle under the operator, on two `trainwright node` agents of a real control plane.

`make test-paddle` installs PaddlePaddle and runs these; nothing else does.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_agents import agent, agent_plane, left
from cluster_client import until
from cluster_etcd import Workers
from cluster_operator import QUICK, started
from cluster_paddlejobs import PaddleJobs
from cluster_plane import ControlPlane
from cluster_process import Process

pytest_plugins = ("cluster_fixtures",)
pytestmark = pytest.mark.paddle
EXAMPLES = Path(__file__).parents[2] / "examples" / "paddlejob"
#: Importing PaddlePaddle alone takes five seconds where others are at work too.
PATIENCE = 240.0
Body = dict[str, Any]
Record = Callable[[str, object], None]
#: Pods find the Python that has PaddlePaddle first.
ENV = {"PATH": os.pathsep.join([str(Path(sys.prefix) / "paddle" / "bin"), os.environ["PATH"]])}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("paddle")
    with agent_plane(folder) as plane:
        yield plane
        assert plane.audit().where(user="operator", denied=True) == ()
    assert left([str(folder)]) == []


@pytest.fixture(scope="module")
def agents(plane: ControlPlane) -> Iterator[None]:
    """Two, each with a GPU, or so they say."""
    offer = ("--cpus", "4", "--gpus", "1", "--working-dir", str(plane.layout.folder))
    with agent(plane, "east", *offer, env=ENV), agent(plane, "west", *offer, env=ENV):
        yield


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Process]:
    """It knows an etcd where elastic jobs may meet: the one that there is anyway."""
    log, etcd = plane.layout.logs / "operator.log", plane.layout.etcd.removeprefix("http://")
    words = ("--lease", "default/operator", "--etcd-server", etcd, *QUICK)
    with started(plane.kubeconfig("operator"), log, *words) as process:
        process.until(lambda: process.leads(plane, "default"))
        yield process
        assert process.end() == 0


class Training(PaddleJobs):
    """An example, run."""

    def start(self, file: str, change: Callable[[Body], None] | None = None) -> str:
        """Apply it, with this change of its job; the job's name."""
        bodies: list[Body] = list(yaml.safe_load_all((EXAMPLES / f"{file}.yaml").read_text()))
        if change is not None:
            change(bodies[-1])
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
        self.plane.kubectl("-n", self.namespace, "apply", "-f", "-", given=text)
        return str(bodies[-1]["metadata"]["name"])

    def log(self, pod: str) -> str:
        """What it has said so far."""
        return self.plane.kubectl("-n", self.namespace, "logs", pod, check=False).stdout

    def end(self, name: str) -> None:
        """Wait for its completion."""
        until(lambda: self.status(name).get("phase") in ("Completed", "Failed"), f"{name} ends", PATIENCE)
        logs = {pod: self.log(f"{name}-{pod}")[-2000:] for pod in self.children(name)}
        assert self.status(name)["phase"] == "Completed", (self.status(name), logs)

    def nodes(self, name: str) -> set[str]:
        """Where its pods are."""
        return {pod["spec"].get("nodeName", "") for pod in self.children(name).values()}


@pytest.fixture
def training(plane: ControlPlane, namespace: str, operator: Process) -> Training:
    return Training(plane, namespace)


def losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss +([\d.]+)", said)]


@pytest.mark.parametrize("intranet", ["PodIP", "Service"])
def test_two_workers_on_two_nodes_train_one_network_together(
    agents: None, training: Training, intranet: str, record_property: Record
) -> None:
    name = training.start("resnet", lambda job: job["spec"].update(intranet=intranet))
    until(lambda: training.nodes(name) == {"east", "west"}, "one is on each node")
    training.end(name)
    found = losses(training.log(f"{name}-worker-0"))

    assert found == losses(training.log(f"{name}-worker-1"))
    assert found[0] > 1
    assert found[-1] < 0.1
    services = {"worker-0", "worker-1"} if intranet == "Service" else set()
    assert set(training.children(name, "services")) == services
    record_property("figure", f"PaddlePaddle, 2 nodes, {intranet}: loss {found[0]:.4f} → {found[-1]:.4f}")


@pytest.mark.parametrize("file", ["wide_and_deep", "wide_and_deep_service"], ids=["PodIP", "Service"])
def test_servers_on_two_nodes_hold_what_two_workers_learn(
    agents: None, training: Training, file: str, record_property: Record
) -> None:
    name = training.start(file)
    until(lambda: training.nodes(name) == {"east", "west"}, "they are on both nodes")
    training.end(name)

    for rank in (0, 1):
        said = training.log(f"{name}-worker-{rank}")
        assert f"worker {rank} of 2 servers and 2 workers" in said
        # Each sees half of the inputs only: the other half it can know from the servers alone.
        before, now = map(float, re.findall(r"on inputs of all workers: loss ([\d.]+) .*loss ([\d.]+)", said)[0])
        assert now < 0.2 * before
        record_property("figure", f"PaddlePaddle, 2 nodes, {file}, worker {rank}: loss {before:.4f} → {now:.4f}")
    until(lambda: set(training.children(name)) == {"worker-0", "worker-1"}, "those that serve for ever are ended")


# -- elastic -----------------------------------------------------------------------------------------------------------


def steps(said: str, size: int) -> list[int]:
    """Which steps were made by so many workers."""
    return [int(step) for step in re.findall(rf"^step +(\d+)/200 .* by {size} workers", said, re.M)]


def victims(pod: str) -> list[int]:
    """The processes of a pod: the launcher, and what it launched."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"-uc" in words and f"POD={pod}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


class Elastic(Training):
    """The example, on nodes whose pods are plain processes: those reach an etcd of this machine."""

    def begin(self, folder: Path) -> None:
        """Its checkpoints and logs go to a folder of the test."""

        def change(job: Body) -> None:
            pod = job["spec"]["worker"]["template"]["spec"]
            pod["nodeSelector"] = {"pool": "plain"}
            pod["volumes"] = [{"name": "checkpoints", "hostPath": {"path": str(folder)}}]
            (main,) = pod["containers"]
            main["volumeMounts"] = [{"name": "checkpoints", "mountPath": str(folder)}]
            given = {"CHECKPOINTS": str(folder), "PADDLE_LOG_DIR": str(folder / "$(POD)")}
            for entry in main["env"]:
                entry.update({"value": given[entry["name"]]} if entry["name"] in given else {})

        self.start("elastic", change)

    def grows(self, size: int) -> None:
        """Wait until so many workers have made more steps than anybody had."""
        known = max([0, *self._made(2), *self._made(3)])
        until(lambda: max([0, *self._made(size)]) > known, f"{size} workers go on from {known}", PATIENCE)

    def _made(self, size: int) -> list[int]:
        return steps(self.log("elastic-worker-0"), size)

    def scale(self, replicas: int) -> None:
        self.edit("elastic", worker={"replicas": replicas})


def test_an_elastic_job_goes_on_with_two_with_three_and_after_a_kill(
    plane: ControlPlane, namespace: str, operator: Process, tmp_path: Path, record_property: Record
) -> None:
    job = Elastic(plane, namespace)
    workers = Workers(plane.layout.etcd, namespace, "elastic")
    workers.put("3")
    plain = ("--runtime", "process", "--label", "pool=plain", "--cpus", "4", "--working-dir", str(tmp_path))
    with agent(plane, "north", *plain, env=ENV), agent(plane, "south", *plain, env=ENV):
        job.begin(tmp_path)
        job.grows(3)
        job.scale(2)
        until(lambda: workers.number == "2", "a launcher before 2.3 would know")
        job.grows(2)
        job.scale(3)
        until(lambda: workers.number == "3", "a launcher before 2.3 would know")
        job.grows(3)
        for victim in victims("elastic-worker-1"):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        job.grows(3)
        job.end("elastic")
        said, pods = job.log("elastic-worker-0"), job.children("elastic")

    assert pods["worker-1"]["status"]["containerStatuses"][0]["restartCount"] >= 1
    assert [reason for reason in job.events("elastic") if reason != "Running"] == ["Scaled", "Scaled", "Completed"]
    begins = [int(step) for step in re.findall(r"worker 0 of \d, from step (\d+)", said)]
    assert begins == sorted(begins)
    assert len(set(begins)) >= 4  # at the start, and after each of three changes
    found = losses(said)
    assert found[0] > 1
    assert found[-1] < 0.01
    record_property("figure", f"PaddlePaddle, elastic on 2 nodes: loss {found[0]:.4f} → {found[-1]:.4f}")
