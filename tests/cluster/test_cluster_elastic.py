# SPDX-License-Identifier: Apache-2.0
"""Real training that goes on whatever happens to it, under the operator, on `trainwright node` agents of a real plane.

The trainer needs NumPy, so pods find the Python of these tests first. Every test ends with the whole curve: all steps,
each to the loss that it has in an undisturbed run. What a fault cost is printed at the end.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster_agents import agent, agent_plane, condition, left
from cluster_client import until
from cluster_operator import QUICK, started
from cluster_plane import ControlPlane
from cluster_process import Process

from training import Training

pytest_plugins = ("cluster_fixtures",)
Body = dict[str, Any]
Tell = Callable[[str, object], None]
PATIENCE = 150.0
#: Nodes and places are given up, and looked for again, sooner than anybody would want it elsewhere.
HASTY: tuple[str, ...] = ("--node-grace", "3s", "--gpu-grace", "3s", "--avoid-node-period", "5s")
HASTY += ("--elastic-patience", "3s", "--elastic-cooldown", "5s")
#: What a detector that read of a Xid in the log of the kernel puts on a node.
TAINT = "nvidia.com/syslog-xid-error"
#: One GPU for each trainer, and there are four in the pool.
GPUS = {"resources": {"limits": {"nvidia.com/gpu": 1}}, "nodeSelector": {"pool": "gpus"}}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("elastic")
    with agent_plane(folder) as plane:
        yield plane
        assert plane.audit().where(user="operator", denied=True) == ()
    assert left([str(folder)]) == []


@pytest.fixture(scope="module")
def agents(plane: ControlPlane) -> Iterator[dict[str, Process]]:
    """Three nodes. What has GPUs is in a pool of its own, and two of the three are in it."""
    env = {"PATH": os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]])}
    pool = ("--gpus", "2", "--label", "pool=gpus")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(agent(plane, name, "--cpus", "4", *words, env=env))
            for name, words in (("east", ()), ("west", pool), ("south", pool))
        }


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Process]:
    log = plane.layout.logs / "operator.log"
    with started(plane.kubeconfig("operator"), log, "--lease", "default/operator", *HASTY, *QUICK) as process:
        process.until(lambda: process.leads(plane, "default"))
        yield process
        assert process.end() == 0


class Elastic(Training):
    """The elastic job of one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, steps: int, pace: float) -> None:
        folder = plane.layout.folder / "training"
        folder.mkdir(exist_ok=True)
        super().__init__(folder / namespace, steps, pace)
        self.plane, self.namespace = plane, namespace

    def kubectl(self, *words: str, given: str = "") -> str:
        return self.plane.kubectl("-n", self.namespace, *words, given=given).stdout

    def apply(self, **more: Any) -> None:
        self.kubectl("apply", "-f", "-", given=json.dumps(self.manifest(**more)))

    @property
    def status(self) -> Body:
        path = f"/apis/elasticdeeplearning.ai/v1/namespaces/{self.namespace}/aitrainingjobs/elastic"
        found = self.plane.find(path) or {}
        return found.get("status") or {}

    @property
    def nodes(self) -> dict[int, str]:
        """Where each trainer is."""
        items = self.plane.call("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return {
            int(pod["metadata"]["labels"]["TrainingJobReplicaIndex"]): pod["spec"].get("nodeName", "") for pod in items
        }

    def ends(self, phase: str = "Succeed") -> None:
        """Wait for its end."""
        ends = ("Succeed", "Failed", "Timeout", "Preempted", "NodeFail")
        until(lambda: self.status.get("phase") in ends, f"it ends: {self.status}\n{self.said()}", PATIENCE)
        assert self.status["phase"] == phase, (self.status, self.said())

    def until_worlds(self, *worlds: int) -> float:
        """Wait until it has had these; the time."""
        until(lambda: self.worlds == list(worlds), f"{worlds}: {self.status}\n{self.said()}", PATIENCE)
        return time.time()


@pytest.fixture
def job(plane: ControlPlane, namespace: str, agents: object, operator: Process) -> Elastic:
    return Elastic(plane, namespace, steps=100, pace=0.1)


def test_it_survives_the_kill_of_a_pod(job: Elastic, record_property: Tell) -> None:
    job.apply()
    fault = job.until(15, PATIENCE)
    os.kill(job.process(2), signal.SIGKILL)
    job.ends()

    job.check()
    assert job.status["RestartCount"] == {"trainer": 1}
    assert "trainer 2 of 4, restarts 1" in job.said(2)
    record_property("figure", f"a pod is killed (control plane): {job.lost(fault)}")


def test_it_survives_the_kill_of_the_pod_that_leads(job: Elastic, record_property: Tell) -> None:
    job.apply()
    fault = job.until(15, PATIENCE)
    os.kill(job.process(0), signal.SIGKILL)
    job.ends()

    job.check(repeated=9)
    record_property("figure", f"the pod that leads is killed (control plane): {job.lost(fault)}")


def test_it_survives_the_kill_of_a_pod_while_no_operator_is_there(
    job: Elastic, operator: Process, record_property: Tell
) -> None:
    job.apply()
    fault = job.until(15, PATIENCE)
    operator.kill()
    os.kill(job.process(2), signal.SIGKILL)
    time.sleep(1)
    operator.start()
    job.ends()

    job.check()
    assert job.status["RestartCount"] == {"trainer": 1}
    record_property("figure", f"a pod and the operator are killed (control plane): {job.lost(fault)}")


def test_it_survives_the_loss_of_a_node(
    plane: ControlPlane, job: Elastic, agents: dict[str, Process], record_property: Tell
) -> None:
    """One of three, killed -9: what ran there goes on elsewhere."""
    job.apply()
    fault = job.until(15, PATIENCE)
    assert set(job.nodes.values()) == set(agents)
    lost = job.nodes[0]
    agents[lost].kill()
    job.ends()
    back(plane, agents, lost)

    job.check(repeated=9)
    assert job.worlds == [4]
    assert f"Node {lost} is failed and offline" in job.kubectl("describe", "aitj", "elastic")
    record_property("figure", f"a node is lost (control plane): {job.lost(fault)}")


def back(plane: ControlPlane, agents: dict[str, Process], name: str) -> None:
    """Start it again, until Kubernetes trusts it."""
    agents[name].start()
    node = f"/api/v1/nodes/{name}"
    until(lambda: condition(plane, name) == "True", f"{name} is ready")
    until(lambda: not plane.call("GET", node)["spec"].get("taints"), f"Kubernetes trusts {name} again")


def test_it_becomes_smaller_when_a_node_is_lost_and_larger_when_it_returns(
    plane: ControlPlane, namespace: str, agents: dict[str, Process], operator: Process, record_property: Tell
) -> None:
    """Two nodes with two GPUs each, one for each trainer: 4, 2 and 4 again."""
    job = Elastic(plane, namespace, steps=500, pace=0.1)
    job.apply(pod=dict(GPUS))
    fault = job.until(15, PATIENCE)
    agents["south"].kill()
    job.until_worlds(4, 2)
    job.until(job.step + 20, PATIENCE)
    smaller = job.lost(fault)
    back(plane, agents, "south")
    grown = time.time()
    job.until_worlds(4, 2, 4)
    job.ends()

    job.check(repeated=12)
    events = job.kubectl("get", "events", "--field-selector", "involvedObject.kind=AITrainingJob")
    assert events.count("Scaled") == 2, events
    record_property("figure", f"4 trainers become 2 (control plane): {smaller}")
    record_property("figure", f"2 trainers become 4 (control plane): {job.lost(grown)}")


def test_it_becomes_smaller_when_gpus_fail_and_larger_when_they_are_well(
    plane: ControlPlane, namespace: str, agents: dict[str, Process], operator: Process, record_property: Tell
) -> None:
    """As a detector says it: by a taint of the node, which is ready all the time."""
    job = Elastic(plane, namespace, steps=500, pace=0.1)
    job.apply(pod=dict(GPUS))
    fault = job.until(15, PATIENCE)
    plane.kubectl("taint", "node", "south", f"{TAINT}=xid-79:NoSchedule")
    job.until_worlds(4, 2)
    job.until(job.step + 20, PATIENCE)
    smaller = job.lost(fault)
    assert set(job.nodes.values()) == {"west"}
    told = job.kubectl("describe", "aitj", "elastic")
    assert f"GPUs of node south have failed: tainted {TAINT}" in told, told
    plane.kubectl("taint", "node", "south", f"{TAINT}-")
    grown = time.time()
    job.until_worlds(4, 2, 4)
    job.ends()

    job.check(repeated=12)
    record_property("figure", f"GPUs fail, 4 trainers become 2 (control plane): {smaller}")
    record_property("figure", f"GPUs are well, 2 trainers become 4 (control plane): {job.lost(grown)}")


def test_it_is_scaled_by_hand(job: Elastic, record_property: Tell) -> None:
    job.apply(edlPolicy="Manual")
    fault = job.until(15, PATIENCE)
    resize(job, 2)
    job.until_worlds(4, 2)
    smaller, grown = job.lost(fault), time.time()
    resize(job, 4)
    job.ends()

    job.check(repeated=2)
    assert job.worlds == [4, 2, 4]
    assert job.status.get("RestartCount", {}) == {}
    record_property("figure", f"4 trainers become 2 by hand (control plane): {smaller}")
    record_property("figure", f"2 trainers become 4 by hand (control plane): {job.lost(grown)}")


def resize(job: Elastic, replicas: int) -> None:
    change = {"spec": {"replicaSpecs": {"trainer": {"replicas": replicas}}}}
    job.kubectl("patch", "aitj", "elastic", "--type=merge", "-p", json.dumps(change))


def test_what_was_preempted_goes_on_when_it_is_submitted_again(job: Elastic, record_property: Tell) -> None:
    job.apply()
    fault = job.until(15, PATIENCE)
    job.kubectl("annotate", "aitj", "elastic", "Preempted=room is needed")
    job.ends("Preempted")
    assert job.nodes == {}
    assert "room is needed" in job.kubectl("describe", "aitj", "elastic")
    before = job.step
    job.kubectl("delete", "aitj", "elastic")
    job.apply()
    job.ends()

    job.check(repeated=1)
    assert f"goes on from step {before}, saved " in job.said() or f"goes on from step {before - 1}, " in job.said()
    record_property("figure", f"preempted, submitted again (control plane): {job.lost(fault)}")
