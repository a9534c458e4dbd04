# SPDX-License-Identifier: Apache-2.0
"""Every manifest of the manuals, every published one, and our own examples load and come to run."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from genericjob_driver import GANGS, Driver, manifest

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB, wire
from trainwright.model.job import Body
from trainwright.model.meta import ADOPT
from trainwright.testing.factories import UID

HERE = Path(__file__).parent
MANUALS = sorted(path for path in (HERE / "manuals").glob("*.yaml") if not path.stem.startswith("status-"))
EXAMPLES = sorted((HERE.parents[2] / "examples" / "genericjob").glob("*.yaml"))


def read(path: Path) -> Body:
    """The one GenericJob of a file."""
    found = [body for body in yaml.safe_load_all(path.read_text()) if body["kind"] == "GenericJob"]
    assert len(found) == 1
    job: Body = found[0]
    return job


def test_all_manifests_of_the_manuals_are_here() -> None:
    assert sorted(path.stem for path in MANUALS) == [
        "basic",
        "cleanup-all",
        "cleanup-none",
        "cleanup-unfinished",
        "debug-command",
        "debug-default",
        "env",
        "pause-command",
        "pause-default",
        "published-keras",
        "published-keras-gpu",
        "published-keras-gpu-scheduler",
        "published-llama3-finetune",
        "published-model-download",
        "published-use-podgroup",
        "published-use-queue",
        "resources",
        "restart",
        "rules",
        "scheduler",
        "service",
        "shared-memory",
        "variables",
    ]


@pytest.mark.parametrize("path", MANUALS, ids=lambda path: path.stem)
def test_a_published_manifest_loads(path: Path) -> None:
    problems = load(GENERICJOB, read(path)).problems

    typo = "spec.replicaSpecs[0].template.spec.containers[0].commands: unknown field; did you mean `command`?"
    expected = [typo] if path.stem == "published-llama3-finetune" else []
    assert [str(problem) for problem in problems] == expected
    assert all(problem.warning for problem in problems)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_without_a_word(path: Path) -> None:
    assert load(GENERICJOB, read(path)).problems == ()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_in_two_lines_what_it_shows(path: Path) -> None:
    lines = path.read_text().splitlines()
    document = read(path)

    assert [line.startswith("# ") for line in lines[:3]] == [True, True, False]
    assert document["metadata"]["name"] == path.stem
    images = [
        container["image"]
        for spec in document["spec"]["replicaSpecs"]
        for group in ("initContainers", "containers")
        for container in spec["template"]["spec"].get(group, ())
    ]
    assert all(":" in image and not image.endswith(":latest") for image in images)


@pytest.mark.parametrize("path", MANUALS + EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_it_comes_to_run(path: Path) -> None:
    document = read(path)
    document["metadata"] |= {"uid": UID, "generation": 1}
    driver = Driver(document, gangs=GANGS).running()

    paused = "pause" in path.stem and path in MANUALS
    assert driver.status["phase"] == ("Paused" if paused else "Running")
    wanted = [] if paused else [f"{role.name}-{i}" for role in driver.job.roles for i in range(role.replicas)]
    assert driver.names() == sorted(f"{document['metadata']['name']}-{name}" for name in wanted)


def status(name: str) -> Any:
    return yaml.safe_load((HERE / "manuals" / f"status-{name}.yaml").read_text())


def with_status(body: Body) -> Body:
    return manifest(name="generic-example") | {"status": body}


@pytest.mark.parametrize("name", ["failed", "failed-new", "tasks", "aggregate"])
def test_a_published_status_is_read(name: str) -> None:
    loaded = load(GENERICJOB, with_status(status(name)))

    assert loaded.problems == ()
    assert msgspec.convert(status(name), wire.GenericJobStatus) == loaded.wire.status


def test_the_old_failed_status_in_full() -> None:
    read = load(GENERICJOB, with_status(status("failed"))).wire.status

    rule = 'The job is failed with rule: { "worker": [0] }'
    assert read == wire.GenericJobStatus(
        phase="Failed",
        conditions=(
            wire.JobCondition(
                "Initializing", "True", "-", "The job has been initialized successfully.", "2021-01-18T02:36:09Z"
            ),
            wire.JobCondition("Running", "True", "-", "All pods are running normally.", "2021-01-18T02:36:09Z"),
            wire.JobCondition("ReplicaFailure", "False", "-", "All pods are running normally.", "2021-01-18T02:36:09Z"),
            wire.JobCondition("Completed", "False", "Failed", rule, "2021-01-18T02:36:31Z"),
            wire.JobCondition("Failed", "True", "Failed", rule, "2021-01-18T02:36:31Z"),
        ),
    )


def test_the_old_and_the_new_name_of_the_list_of_replicas() -> None:
    old = load(GENERICJOB, with_status(status("tasks"))).wire.status.tasks[0]
    new = load(GENERICJOB, with_status(status("failed-new"))).wire.status.tasks[0]

    assert (old.restart_count, old.replicas, [one.name for one in old.status]) == (
        3,
        None,
        ["generic-example-worker-0", "generic-example-worker-1"],
    )
    assert (new.status, new.replicas[0].containers) == (None, (wire.ContainerStatus("main", "Terminated", 127),))


def test_the_aggregate() -> None:
    read = load(GENERICJOB, with_status(status("aggregate"))).wire.status

    assert read.aggregate == wire.Aggregate(pending=1, running=2)


def test_an_old_status_is_rewritten_in_the_new_spelling() -> None:
    document = with_status(status("failed") | status("tasks") | {"phase": "Running"})
    document["metadata"]["annotations"] = {ADOPT: "true"}
    driver = Driver(document).running()

    assert [one["type"] for one in driver.status["conditions"]] == ["Initialized", "Running", "ReplicaFailure"]
    assert [sorted(task) for task in driver.status["tasks"]] == [["replicas", "type"]]
