# SPDX-License-Identifier: Apache-2.0
"""Jobs that train with TensorFlow under the operator, on two `trainwright node` agents of a real control plane.

`make test-tensorflow` installs TensorFlow and runs these; nothing else does.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_agents import agent, agent_plane, left
from cluster_client import until
from cluster_operator import QUICK, started
from cluster_plane import ControlPlane
from cluster_process import Process
from cluster_tfjobs import TFJobs

pytest_plugins = ("cluster_fixtures",)
pytestmark = pytest.mark.tensorflow
EXAMPLES = Path(__file__).parents[2] / "examples" / "tfjob"
#: Importing TensorFlow alone takes ten seconds where others are at work too.
PATIENCE = 240.0
#: Pods whose logs are to be read.
KEPT = {"cleanPodPolicy": "None"}
Body = dict[str, Any]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("tensorflow")
    with agent_plane(folder) as plane:
        yield plane
        assert plane.audit().where(user="operator", denied=True) == ()
    assert left([str(folder)]) == []


@pytest.fixture(scope="module")
def agents(plane: ControlPlane) -> Iterator[tuple[Process, Process]]:
    """Two, whose pods find the Python that has TensorFlow first."""
    env = {"PATH": os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]])}
    with agent(plane, "east", "--cpus", "4", env=env) as east, agent(plane, "west", "--cpus", "4", env=env) as west:
        yield east, west


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Process]:
    log = plane.layout.logs / "operator.log"
    with started(plane.kubeconfig("operator"), log, "--lease", "default/operator", *QUICK) as process:
        process.until(lambda: process.leads(plane, "default"))
        yield process
        assert process.end() == 0


class Training(TFJobs):
    """An example, run."""

    def start(self, name: str, **env: str) -> None:
        """With these variables for the containers of workers, and a volume if it asks for one."""
        bodies: list[Body] = list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))
        for body in bodies:
            if body["kind"] == "PersistentVolumeClaim":
                self.volume(body["metadata"]["name"])
            else:
                container = body["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
                known = {one["name"]: one["value"] for one in container["env"]} | env
                container["env"] = [{"name": key, "value": value} for key, value in known.items()]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
        self.plane.kubectl("-n", self.namespace, "apply", "-f", "-", given=text)

    def volume(self, claim: str) -> None:
        """A folder of this machine, as a cluster's storage would give one."""
        folder = self.plane.layout.folder / "volumes" / self.namespace
        folder.mkdir(parents=True)
        spec = {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": self.namespace, "name": claim},
        }
        body = {"metadata": {"name": f"volume-{self.namespace}"}, "spec": spec}
        self.plane.call("POST", "/api/v1/persistentvolumes", body)

    def log(self, pod: str) -> str:
        """What it has said so far."""
        return self.plane.kubectl("-n", self.namespace, "logs", pod, check=False).stdout

    def end(self, name: str) -> None:
        """Wait for success."""
        until(lambda: {"Succeeded", "Failed"} & set(self.conditions(name)), f"{name}: {self.status(name)}", PATIENCE)
        logs = {pod: self.log(f"{name}-{pod}")[-2000:] for pod in self.children(name)}
        assert self.conditions(name)[-1] == "Succeeded", (self.status(name), logs)

    def nodes(self, name: str) -> set[str]:
        """Where its pods are."""
        return {pod["spec"].get("nodeName", "") for pod in self.children(name).values()}


@pytest.fixture
def training(plane: ControlPlane, namespace: str, agents: object, operator: Process) -> Training:
    return Training(plane, namespace)


def losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss +([\d.]+)", said)]


def steps(said: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step +(\d+)/", said, re.MULTILINE)]


def test_two_workers_on_two_nodes_train_one_model_together(training: Training) -> None:
    training.start("multi-worker", STEPS="40", PACE="0")
    until(lambda: training.nodes("multi-worker") == {"east", "west"}, "one is on each node")
    training.end("multi-worker")
    said = training.log("multi-worker-worker-0")

    assert steps(said) == list(range(1, 41))
    assert losses(said)[0] > 10
    assert losses(said)[-1] < 0.1
    assert re.search(r"found y = 3\.0\d x \+ 1\.9\d, true is y = 3 x \+ 2", said), said


def test_a_worker_that_is_killed_goes_on_from_the_checkpoint(
    training: Training, agents: tuple[Process, Process]
) -> None:
    training.start("multi-worker", STEPS="40", PACE="0.2")
    until(lambda: 15 in steps(training.log("multi-worker-worker-0")), "it has made 15 steps", PATIENCE)
    before = training.log("multi-worker-worker-0")
    uids = {name: pod["metadata"]["uid"] for name, pod in training.children("multi-worker").items()}
    os.kill(trainer({process.pid for process in agents}, '"index":1'), signal.SIGKILL)
    training.end("multi-worker")
    said = training.log("multi-worker-worker-0")

    assert training.children("multi-worker")["worker-0"]["metadata"]["uid"] != uids["worker-0"]
    reasons = [reason for reason, _ in training.events("multi-worker")]
    assert reasons[-1] == "TFJobSucceeded"
    assert "TFJobRestarting" in reasons
    first = int(re.findall(r"goes on from step (\d+)", said)[0])
    assert first >= 10
    assert steps(said) == list(range(first + 1, 41))
    # The same data and the same parameters: what was trained twice comes out alike.
    known = dict(zip(steps(before), losses(before), strict=True))
    for step, loss in zip(steps(said), losses(said), strict=True):
        assert step not in known or abs(known[step] - loss) < 0.01
    assert losses(said)[0] < losses(before)[0] / 5
    assert losses(said)[-1] < 0.1


def trainer(agents: set[int], task: str) -> int:
    """The process of the worker whose TF_CONFIG has this, below one of these agents."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environ = (entry / "environ").read_bytes().decode(errors="replace")
            if words[1:2] == [b"-uc"] and task in environ and ancestors(int(entry.name)) & agents:
                return int(entry.name)
    raise AssertionError(f"there is no process with {task}")


def ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.add(pid)
    return found


def test_a_chief_trains_with_workers_and_parameter_servers(training: Training) -> None:
    training.start("dist-mnist")
    until(lambda: training.nodes("dist-mnist") == {"east", "west"}, "they are on both nodes")
    training.end("dist-mnist")
    said = training.log("dist-mnist-chief-0")

    assert "2 workers, 2 servers" in said
    assert "the parameters are held by task:0 task:1" in said
    assert len(losses(said)) == 8
    assert losses(said)[-1] < losses(said)[0] / 2
    until(lambda: set(training.children("dist-mnist")) == {"chief-0"}, "those that serve for ever are ended")


def test_the_same_program_trains_as_an_aitrainingjob(training: Training) -> None:
    """What finds its peers by other variables."""
    claim, job = yaml.safe_load_all((EXAMPLES.parent / "aitrainingjob" / "tensorflow.yaml").read_text())
    training.volume(claim["metadata"]["name"])
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [claim, job | {"spec": job["spec"] | KEPT}]})
    training.plane.kubectl("-n", training.namespace, "apply", "-f", "-", given=text)
    done = ("wait", "--for=jsonpath={.status.phase}=Succeed", "aitj/tensorflow", f"--timeout={PATIENCE:.0f}s")
    training.plane.kubectl("-n", training.namespace, *done)
    said = training.log("tensorflow-trainer-0")

    assert steps(said) == list(range(1, 61))
    assert losses(said)[-1] < 0.1
