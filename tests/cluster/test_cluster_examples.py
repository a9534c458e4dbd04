# SPDX-License-Identifier: Apache-2.0
"""Every example, applied with kubectl: it comes to what its text says, as far as pods without programs can."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster_jobs import Jobs
from cluster_operator import Operator
from cluster_plane import ControlPlane

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")
EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*.yaml"))
#: All others succeed, since all their pods do.
OTHERS = {
    "aitrainingjob/elastic.yaml": "Pending",  # nobody here makes its volume
    "aitrainingjob/tensorflow.yaml": "Pending",
    "local/checkpoint.yaml": "Pending",  # likewise
    "local/pause.yaml": "Paused",
    "paddlejob/elastic.yaml": "Pending",  # likewise
    "paddlejob/wide_and_deep_volcano.yaml": "Pending",  # nobody of that name places its pods
    "pytorchjob/torchrun.yaml": "Created",  # nobody here makes its volume
    "tfjob/mnist.yaml": "Created",  # likewise
    "tfjob/multi-worker.yaml": "Created",
}


def _place(path: Path) -> str:
    return re.sub("[/_]", "-", str(path.with_suffix(""))) + "-example"


@pytest.fixture(scope="module")
def applied(plane: ControlPlane, nodes: object, operator: Operator) -> Iterator[ControlPlane]:
    """All of them, each in a namespace of its own."""
    for path in FILES:
        plane.kubectl("create", "namespace", _place(path))
    # A job that resizes itself goes on from Pending when its pods have found no place for 30 s: it is made last.
    for path in sorted(FILES, key=lambda path: str(path) == "aitrainingjob/elastic.yaml"):
        plane.kubectl("apply", "-n", _place(path), "-f", str(EXAMPLES / path))
    yield plane
    for path in FILES:
        plane.call("DELETE", f"/api/v1/namespaces/{_place(path)}")


@pytest.mark.parametrize("path", FILES, ids=str)
def test_an_example_comes_to_what_it_should(applied: ControlPlane, path: Path) -> None:
    jobs, name, phase = Jobs(applied, _place(path)), path.stem, OTHERS.get(str(path), "Succeeded")
    if path.parent.name in ("tfjob", "jaxjob", "xgboostjob", "pytorchjob", "kubeflow-paddlejob"):
        _train(jobs, path, phase)
        return
    if path.parent.name == "aitrainingjob":
        _fit(jobs, name, {"Succeeded": "Succeed"}.get(phase, phase))
        return
    if path.parent.name == "paddlejob":
        _paddle(jobs, path, {"Succeeded": "Completed"}.get(phase, phase))
        return

    jobs.kubectl("wait", f"--for=jsonpath={{.status.phase}}={phase}", f"gj/{name}", "--timeout=100s")

    assert jobs.kubectl("get", "gj", "-o", "name").split() == [f"genericjob.batch.tensorstack.dev/{name}"]
    assert jobs.condition(name) == ""
    assert [
        event
        for event in jobs.events(name)
        if event.split()[0] not in ("Running", "Succeeded", "Suspended", "GangUnavailable")
    ] == []


def _train(jobs: Jobs, path: Path, last: str) -> None:
    """Pods of fake nodes only ever succeed, so that every condition comes in its turn."""
    *_, job = yaml.safe_load_all((EXAMPLES / path).read_text(encoding="utf-8"))
    kind, name = f"{job['kind'].lower()}.kubeflow.org", job["metadata"]["name"]
    jobs.kubectl("wait", f"--for=condition={last}", f"{kind}/{name}", "--timeout=100s")

    assert jobs.kubectl("get", kind, "-o", "name").split() == [f"{kind}/{name}"]
    assert jobs.kubectl("get", kind, name).splitlines()[1].split()[1] == last
    warnings = ("get", "events", "--field-selector", f"type=Warning,involvedObject.kind={job['kind']}", "-o", "name")
    if last != "Created":  # a job whose pods have no place is told why, sooner or later
        assert jobs.kubectl(*warnings) == ""


def _fit(jobs: Jobs, name: str, last: str) -> None:
    jobs.kubectl("wait", f"--for=jsonpath={{.status.phase}}={last}", f"aitj/{name}", "--timeout=100s")

    assert jobs.kubectl("get", "aitj", "-o", "name").split() == [f"aitrainingjob.elasticdeeplearning.ai/{name}"]
    assert jobs.kubectl("get", "aitj", name).split()[-4:-1] == [name, last, "0"]
    warnings = ("get", "events", "--field-selector", "type=Warning,involvedObject.kind=AITrainingJob", "-o", "name")
    assert jobs.kubectl(*warnings) == ""


def _paddle(jobs: Jobs, path: Path, last: str) -> None:
    *_, job = yaml.safe_load_all((EXAMPLES / path).read_text(encoding="utf-8"))
    name = job["metadata"]["name"]
    jobs.kubectl("wait", f"--for=jsonpath={{.status.phase}}={last}", f"pdj/{name}", "--timeout=100s")

    assert jobs.kubectl("get", "pdj", "-o", "name").split() == [f"paddlejob.batch.paddlepaddle.org/{name}"]
    mode = "PS" if "ps" in job["spec"] else "Collective"
    assert jobs.kubectl("get", "pdj", name).splitlines()[1].split()[1:3] == [last, mode]
    selected = ("get", "events", "--field-selector", "type=Warning,involvedObject.kind=PaddleJob")
    warnings = jobs.kubectl(*selected, "-o", "jsonpath={.items[*].reason}").split()
    assert warnings == (["GangUnavailable"] if "schedulingPolicy" in job["spec"] else [])
