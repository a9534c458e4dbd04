# SPDX-License-Identifier: Apache-2.0
"""How many restarts people are shown: `run`, `get` and the status say the same, and no more than happened."""

import json
import re

import yaml
from e2e_jobs import Body, job, role, shell
from e2e_workspace import Workspace, until

pytest_plugins = ["e2e_fixtures"]

#: Notes that it began, and fails.
FAILS = "echo x >> {file}; exit 1"
#: Succeeds once so many have begun, while whatever failed last is in back-off.
WAITS = "until [ $(wc -l < {file} 2>/dev/null || echo 0) -ge {lines} ]; do sleep 0.05; done; sleep 0.5"


def final(workspace: Workspace, name: str) -> Body:
    body: Body = yaml.safe_load((workspace.folder_of(name) / "status.yaml").read_text())
    return dict(body["status"])


def told(workspace: Workspace, name: str) -> tuple[int, int]:
    """The restarts in the table of `get`, and in the headline below it."""
    out = workspace.run("get", name).out
    row = re.search(rf"default +{name} +\w+ +\w+ +\d+/\d+ +(\d+) ", out)
    line = re.search(rf"{name} succeeded after \S+, (\d+) restarts", out)
    assert row is not None, out
    assert line is not None, out
    return int(row[1]), int(line[1])


def test_restarts_that_wait_for_their_back_off_when_the_job_ends_never_happened(process: Workspace) -> None:
    """Two workers begin three times each, and their next restart is decided but never made: four, not six."""
    file = process.folder / "begun"
    body = job(
        role("chief", shell(WAITS.format(file=file, lines=6))),
        role("worker", shell(FAILS.format(file=file)), replicas=2, restarts=9),
        name="many",
        successRules=[{"chief": [0]}],
    )
    done = process.run("run", body)

    assert done.code == 0, done.said
    assert len(file.read_text().splitlines()) == 6
    assert "many succeeded after" in done.out
    assert ", 4 restarts" in done.out, done.said
    assert told(process, "many") == (4, 4)
    status = final(process, "many")
    assert {task["type"]: task.get("restartCount") for task in status["tasks"]} == {"chief": None, "worker": 4}
    (worker,) = (one for one in status["trainwright"]["roles"] if one["name"] == "worker")
    assert worker["restarts"] == {"Exit": 6}


def test_each_replica_has_the_limit_for_itself(process: Workspace) -> None:
    """Both fail at once with a limit of 1, and succeed with their second try."""
    file = process.folder / "tried"
    script = f"test -e {file}-$TW_RANK || {{ touch {file}-$TW_RANK; exit 1; }}"
    main = shell(script, env=[{"name": "TW_RANK", "value": "$(rank)"}])
    done = process.run("run", job(role("worker", main, replicas=2, restarts=1), name="twice"))

    assert done.code == 0, done.said
    assert ", 2 restarts" in done.out, done.said
    assert final(process, "twice")["tasks"][0]["restartCount"] == 2
    assert {one["type"]: one["status"] for one in final(process, "twice")["conditions"]}["Initialized"] == "True"


def test_restarts_inside_pods_are_shown(process: Workspace) -> None:
    """With OnFailure in a TFJob the node restarts the container and keeps the pod: once in each of two pods.

    A second restart in one pod would wait for the node's back-off of 10 seconds.
    """
    file, go = process.folder / "begun", process.folder / "go"
    script = f"mkdir {process.folder}/tried-$POD && exit 1; echo x >> {file}; until [ -e {go} ]; do sleep 0.05; done"
    pod = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    main = {"name": "tensorflow", "image": "none", "command": ["sh", "-c", script], "env": [pod]}
    replica = {"replicas": 2, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [main]}}}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "inside"},
        "spec": {"tfReplicaSpecs": {"Worker": replica}},
    }
    live = process.start("run", body)
    until(lambda: file.exists() and len(file.read_text().splitlines()) == 2)
    until(lambda: re.search(r"default +inside +TFJob +\w+ +2/2 +2 ", process.run("get", "inside").out))
    go.touch()
    done = live.end()

    assert done.code == 0, done.said
    assert "inside succeeded after" in done.said
    assert ", 2 restarts" in done.said
    assert told(process, "inside") == (2, 2)


def test_a_run_that_is_interrupted_tells_the_same(process: Workspace) -> None:
    file = process.folder / "begun"
    script = f"echo x >> {file}; test $(wc -l < {file}) -ge 2 || exit 1; sleep 60"
    body = job(role("worker", shell(script), restarts=5), name="stopped")
    live = process.start("run", "-o", "json", body)
    until(lambda: file.exists() and len(file.read_text().splitlines()) == 2)
    live.signal(2)
    (end,) = (one for one in (json.loads(line) for line in live.end().out.splitlines()) if one["type"] == "end")

    assert end["restarts"] == 1
    assert re.search(r"stopped +GenericJob +Interrupted +\d/1 +1 ", process.run("get", "stopped").out)
