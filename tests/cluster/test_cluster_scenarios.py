# SPDX-License-Identifier: Apache-2.0
"""The same jobs on the embedded engine, as real processes, and on a real control plane, on fake nodes: they end alike.

All of them run at once in both places; then their final statuses are compared, field by field, and their events.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from cluster_client import run, until
from cluster_jobs import ENDS, Jobs
from cluster_operator import Operator
from cluster_plane import ControlPlane
from cluster_process import PlaneError, Process
from cluster_scenarios import SCENARIOS, Body, Scenario, Step, plain

from trainwright.kinds.genericjob import GENERICJOB

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")
PATIENCE = 60.0


def _reached(status: Body, step: Step) -> bool:
    """The phase, and what the replicas are: counts may lag behind."""
    replicas = [one for task in status.get("tasks") or () for one in task["replicas"]]
    return status.get("phase") == step.phase and sum(one["phase"] == "Running" for one in replicas) >= step.running


# -- on a cluster --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_cluster(plane: ControlPlane, nodes: object, operator: Operator) -> Iterator[Jobs]:
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "scenarios"}})
    until(lambda: plane.find("/api/v1/namespaces/scenarios/serviceaccounts/default"), "its account")
    jobs = Jobs(plane, "scenarios")
    for one in SCENARIOS:
        jobs.make(one.body("/nowhere"))
    steps = [threading.Thread(target=_walk_cluster, args=(jobs, one)) for one in SCENARIOS if one.steps]
    for thread in steps:
        thread.start()
    yield jobs
    for thread in steps:
        thread.join()
    plane.call("DELETE", "/api/v1/namespaces/scenarios")


def _walk_cluster(jobs: Jobs, scenario: Scenario) -> None:
    for step in scenario.steps:
        until(lambda step=step: _reached(jobs.status(scenario.name), step), f"{scenario.name}: {step}")  # type: ignore[misc]
        jobs.plane.call("PATCH", f"{jobs.path}/{scenario.name}", _edit(jobs.find(scenario.name), step))


def _edit(document: Body, step: Step) -> Body:
    if step.do == "scale":
        found = GENERICJOB.scale(document, "worker", step.number)
        assert isinstance(found, dict)
        return found
    return GENERICJOB.suspend(document, step.do == "pause")


# -- on this machine -----------------------------------------------------------------------------------------------


class Machine:
    """`trainwright run` of all of them, and the other commands beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "counts").mkdir()
        self._env = {"TRAINWRIGHT_STATE": str(folder / "state")}
        bodies = [one.body(str(folder / "counts")) for one in SCENARIOS]
        (folder / "all.yaml").write_text("\n---\n".join(json.dumps(body) for body in bodies))
        words = ["run", "--runtime", "process", "-o", "json", "--timeout", f"{PATIENCE:.0f}", str(folder / "all.yaml")]
        self.process = Process("run", self._words(*words), folder / "run.log", self._env)

    def _words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "trainwright", *words]

    def call(self, *words: str) -> str:
        env = [f"{key}={value}" for key, value in {**self._env, "PATH": os.environ["PATH"]}.items()]
        return run(["env", *env, *self._words(*words)], check=False).stdout

    def find(self, name: str) -> Body:
        said = self.call("get", "-o", "json", name)
        found: Body = json.loads(said) if said else {}
        return found

    def events(self, name: str) -> list[str]:
        """As `Jobs.events` has them."""
        lines = (self.folder / "state" / "default" / name / "latest" / "events.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [f"{one['reason']} {one['message']}" for one in found if one["involvedObject"]["name"] == name]

    def walk(self, scenario: Scenario) -> None:
        for step in scenario.steps:
            so = partial(self._reached, scenario.name, step)
            until(so, f"{scenario.name}: {step}")
            words = {"pause": ["suspend"], "resume": ["resume"], "scale": ["scale"]}[step.do]
            self.call(*words, scenario.name, *([f"worker={step.number}"] if step.do == "scale" else []))

    def _reached(self, name: str, step: Step) -> bool:
        return _reached(self.find(name).get("status") or {}, step)


@pytest.fixture(scope="module")
def on_machine(tmp_path_factory: pytest.TempPathFactory, on_cluster: Jobs) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.process.start()
    with ThreadPoolExecutor() as pool:
        list(pool.map(machine.walk, [one for one in SCENARIOS if one.steps]))
    until(lambda: not machine.process.alive, f"it ends; see {machine.process.log}")
    yield machine
    machine.process.kill()


# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_a_job_ends_alike_here_and_there(on_cluster: Jobs, on_machine: Machine, scenario: Scenario) -> None:
    here, told = plain(on_machine.find(scenario.name)["status"]), on_machine.events(scenario.name)
    on_cluster.until(scenario.name, *ENDS, patience=PATIENCE)
    with suppress(PlaneError):  # counts follow; whatever else differs is shown below
        until(lambda: plain(on_cluster.status(scenario.name)) == here, "it is as here", 12)
    there = plain(on_cluster.status(scenario.name))

    assert there == here
    assert here["phase"] == scenario.end
    until(lambda: len(_events(on_cluster, scenario)) >= len(told), f"{_events(on_cluster, scenario)}", 5)
    assert _events(on_cluster, scenario) == told


def _events(jobs: Jobs, scenario: Scenario) -> list[str]:
    """Without the one that says what this cluster does not have, and as exact as our own supervisor is."""
    found = [event for event in jobs.events(scenario.name) if not event.startswith("GangUnavailable")]
    return [
        re.sub(r"ended with SIG\w+, or exit code (\d+) from the program", r"exited with code \1", one) for one in found
    ]
