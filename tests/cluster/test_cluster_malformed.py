# SPDX-License-Identifier: Apache-2.0
"""Jobs that no schema has seen, statuses that somebody broke, a server that forgets and goes away.

A control plane of its own, with definitions that take anything and without a watch cache: there a compaction of etcd
is felt at once.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_client import RefusedError, until
from cluster_install import trainwright
from cluster_jobs import Body, Jobs, job, role
from cluster_nodes import fake_nodes
from cluster_operator import Operator, started
from cluster_plane import ControlPlane

from trainwright.crd.schema import crds
from trainwright.kinds.registry import KINDS

ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
LONG = "a" * 240


def _lax(plane: ControlPlane) -> None:
    """Definitions without any check. The operator wants to see that its own part of the status is kept."""
    bodies = []
    for body in crds(KINDS):
        status = {**ANYTHING, "properties": {"trainwright": ANYTHING}}
        schema = {"type": "object", **ANYTHING, "properties": {"spec": ANYTHING, "status": status}}
        versions = [{**version, "schema": {"openAPIV3Schema": schema}} for version in body["spec"]["versions"]]
        bodies.append({**body, "spec": {**body["spec"], "versions": versions}})
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    plane.kubectl("apply", "--server-side", "-f", "-", given=given)
    plane.kubectl("wait", "--for=condition=Established", "--timeout=100s", "crd", "--all")


@pytest.fixture(scope="module")
def lax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    flags = {"kube-apiserver": ["--watch-cache=false"]}
    folder = tmp_path_factory.mktemp("lax")
    with (
        ControlPlane(folder, controllers=False, scheduler=False, flags=flags, first=_lax) as plane,
        fake_nodes(plane, 1, binds=True),
    ):
        yield plane


@pytest.fixture(scope="module")
def running(lax: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with started(lax.kubeconfig("admin"), log, "--no-leader-elect") as process:
        yield process
        assert process.end() == 0
    assert "Traceback" not in log.read_text()


@pytest.fixture
def there(lax: ControlPlane, running: Operator) -> Jobs:
    return Jobs(lax, "default")


def _with(**role_fields: Any) -> Body:
    return {"replicaSpecs": [{**role(), **role_fields}]}


def _template(**spec: Any) -> Body:
    return _with(template={"spec": {"containers": [{"name": "main", "image": "none"}], **spec}})


#: What is wrong, and a part of what is said of it.
SPECS: dict[str, tuple[Any, str]] = {
    "no-spec": (None, "spec: missing"),
    "spec-text": ("text", "spec: expected a mapping"),
    "spec-list": ([1, 2], "spec: expected a mapping"),
    "spec-empty": ({}, "spec.replicaSpecs: missing"),
    "roles-mapping": ({"replicaSpecs": {"worker": {}}}, "spec.replicaSpecs: expected a list"),
    "roles-null": ({"replicaSpecs": None}, "spec.replicaSpecs"),
    "roles-none": ({"replicaSpecs": []}, "spec.replicaSpecs"),
    "roles-numbers": ({"replicaSpecs": [1, None, "x"]}, "spec.replicaSpecs[0]: expected a mapping"),
    "type-missing": ({"replicaSpecs": [{"template": {}}]}, "spec.replicaSpecs[0].type: missing"),
    "type-path": (_with(type="../../pods"), "spec.replicaSpecs[0].type"),
    "type-number": (_with(type=7), "spec.replicaSpecs[0].type: expected text"),
    "replicas-text": (_with(replicas="two"), "spec.replicaSpecs[0].replicas: expected a whole number"),
    "replicas-negative": (_with(replicas=-1), "spec.replicaSpecs[0].replicas"),
    "replicas-huge": (_with(replicas=10**12), "spec.replicaSpecs[0].replicas"),
    "template-missing": ({"replicaSpecs": [{"type": "worker"}]}, "spec.replicaSpecs[0].template: missing"),
    "template-text": (_with(template="text"), "spec.replicaSpecs[0].template: expected a mapping"),
    "template-empty": (_with(template={}), "spec.replicaSpecs[0].template.spec: missing"),
    "containers-text": (_template(containers="text"), "template.spec.containers: expected a list"),
    "containers-numbers": (_template(containers=[1, 2]), "template.spec.containers[0]: expected a mapping"),
    "command-mapping": (_template(containers=[{"name": "a", "image": "b", "command": {}}]), "containers[0].command"),
    "env-numbers": (
        _template(containers=[{"name": "a", "image": "b", "env": [{"name": "A", "value": 1}]}]),
        "put it in quotes",
    ),
    "labels-list": (
        _with(template={"metadata": {"labels": []}, "spec": {"containers": []}}),
        "metadata.labels: expected a mapping",
    ),
    "rules-text": ({**_with(), "successRules": "all"}, "spec.successRules: expected a list"),
    "rules-unknown": ({**_with(), "failureRules": [{"nobody": [0]}]}, "there is no replica type 'nobody'"),
    "policy-unknown": (_with(restartPolicy={"policy": "Sometimes"}), "restartPolicy.policy"),
    "service-ports": ({**_with(), "service": {"ports": [{"port": "http"}]}}, "spec.service.ports[0].port"),
    "variables": (
        _template(containers=[{"name": "a", "image": "b", "command": ["$(service.port[x])"]}]),
        "$(service.port[x])",
    ),
    "mode-text": ({**_with(), "runMode": "debug"}, "spec.runMode: expected a mapping"),
    LONG: (_with(), "has 249 characters; at most 63 are allowed"),
}


def test_a_job_that_slipped_past_the_schema_fails_and_says_why(there: Jobs) -> None:
    for name, (spec, _) in SPECS.items():
        there.make(
            {**job(name), "spec": spec} if spec is not None else {k: v for k, v in job(name).items() if k != "spec"}
        )
    began = time.monotonic()
    there.make(job("sound", role(replicas=2)))
    there.until("sound", "Succeeded")
    assert time.monotonic() - began < 30

    for name in SPECS:
        until(lambda name=name: there.phase(name) == "Failed" and there.events(name), name, 15)  # type: ignore[misc]
    said = {name: [there.condition(name, "Failed"), *there.events(name)] for name in SPECS}
    wrong = {name: told for name, told in said.items() if not all(SPECS[name][1] in text for text in told)}
    assert wrong == {}
    assert {len(told) for told in said.values()} == {2}
    assert all(told[1].startswith("Failed ") for told in said.values())
    assert sorted(there.pods()) == ["sound-worker-0", "sound-worker-1"]
    described = there.kubectl("describe", "gj", "replicas-text")
    assert "Warning  Failed" in described


#: Statuses that nobody of ours wrote; whether the job can go on all the same.
STATUSES: dict[str, tuple[Any, bool]] = {
    "text": ("text", True),
    "number": (7, True),
    "phase-number": ({"phase": 7}, True),
    "conditions-text": ({"conditions": "text"}, True),
    "conditions-numbers": ({"conditions": [1, 2]}, True),
    "tasks-number": ({"tasks": 5, "aggregate": "x"}, True),
    "unknown": ({"somebody": {"else": "s"}}, True),
    "ledger-text": ({"trainwright": "text"}, False),
    "ledger-roles": ({"trainwright": {"roles": 7}}, False),
    "ledger-phase": ({"trainwright": {"phase": "Dreaming"}}, False),
    "ledger-indexes": ({"trainwright": {"phase": "Running", "roles": [{"name": "worker", "retries": "x"}]}}, False),
}


def _put(there: Jobs, name: str, status: Any) -> bool:
    try:
        there.plane.call("PUT", f"{there.path}/{name}/status", {**there.find(name), "status": status})
    except RefusedError:
        return False
    return True


@pytest.mark.parametrize("name", STATUSES)
def test_a_status_that_somebody_broke(there: Jobs, name: str) -> None:
    broken, goes_on = STATUSES[name]
    there.make(job(name, role(replicas=2, runs="forever")))
    there.until(name, "Running")
    uids = {one["metadata"]["uid"] for one in there.pods(name).values()}

    until(lambda: _put(there, name, broken), "it is broken")

    if goes_on:
        there.until(name, "Running")
    else:
        until(lambda: "status.trainwright: cannot be read" in there.condition(name), f"{there.status(name)}")
        assert any(event.startswith("Invalid status.trainwright: cannot be read") for event in there.events(name))
        assert there.status(name)["trainwright"] == broken["trainwright"], "what cannot be read is not written over"
    assert {one["metadata"]["uid"] for one in there.pods(name).values()} == uids
    there.plane.call("DELETE", f"{there.path}/{name}")


def test_definitions_that_would_drop_our_state_are_refused(lax: ControlPlane, tmp_path: Path) -> None:
    """Somebody else's CRD of the same name: nothing would be remembered, so nothing is begun."""
    name = "genericjobs.batch.tensorstack.dev"
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    found = lax.call("GET", path)
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": ANYTHING, "status": {"type": "object"}}}}
    theirs = [{**one, "schema": schema} for one in found["spec"]["versions"]]
    with ControlPlane(tmp_path / "plane", controllers=False, scheduler=False) as plane:
        body = {
            "apiVersion": found["apiVersion"],
            "kind": found["kind"],
            "metadata": {"name": name},
            "spec": {**found["spec"], "versions": theirs},
        }
        plane.call("POST", path.rpartition("/")[0], body)
        words = ["operator", "--kubeconfig", str(plane.kubeconfig()), "--no-leader-elect", "--kinds", "genericjob"]
        done = trainwright(*words, check=False)

    assert done.returncode == 2
    assert f"{name} belongs to another operator: its status has no `trainwright`" in done.stderr


def test_a_server_that_goes_away_and_forgets_loses_nothing(there: Jobs, running: Operator) -> None:
    """Killed and started again, and its history compacted, while jobs run and fail: the watches begin anew (410)."""
    names = [f"outage-{number}" for number in range(20)]
    for name in names:
        there.make(job(name, role(replicas=2, limit=4, exit="1,0", runs="0.5")))
    for _ in range(2):
        there.plane.restart("kube-apiserver")
        there.plane.compact()
        time.sleep(1)
    for name in names:
        status = there.until(name, "Succeeded")
        assert status["tasks"][0]["restartCount"] == 2
    assert running.alive
