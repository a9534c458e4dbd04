# SPDX-License-Identifier: Apache-2.0
"""One example per policy of an AITrainingJob, run: each comes to what its first lines say."""

import os
import re
import signal
from collections import Counter

import pytest
import yaml
from e2e_jobs import Body
from e2e_workspace import EXAMPLES, FinishedCommand, RunningCommand, Workspace, until

pytest_plugins = ["e2e_fixtures"]

FOLDER = EXAMPLES / "aitrainingjob"
#: These need something to happen to them, or more than Python.
OTHERS = {
    "edl-manual",
    "edl-never",
    "elastic",
    "paddle",
    "paddle-mnist",
    "preempted",
    "restart-on-node-fail",
    "tensorflow",
}
#: File, phase at the end, restarts by type, and what was said how often.
TABLE = [
    ("restart-never", "Failed", {}, {"trainer-0 | try 0": 1}),
    ("restart-on-failure", "Succeed", {"trainer": 2}, {"trainer-0 | try 2": 1}),
    ("restart-exit-code", "Failed", {"trainer": 1}, {"trainer-0 | try 1": 1, "trainer-0 | try 2": 0}),
    ("restart-on-node-fail-with-exit-code", "Succeed", {"trainer": 1}, {"trainer-0 | try 1": 1}),
    ("restart-always", "Succeed", {"trainer": 2}, {"trainer-0 | try 2": 1, "trainer-0 | try 3": 0}),
    ("restart-budget", "Succeed", {"trainer": 2}, {"trainer-0 | try 2": 1}),
    ("scope-pod", "Succeed", {"trainer": 1}, {"| up, restarts 0": 3, "| up, restarts 1": 1, "trainer-1 | up": 2}),
    ("scope-replica", "Succeed", {"trainer": 1}, {"| up, restarts 0": 3, "| up, restarts 1": 2, "pserver-0 | up": 1}),
    ("scope-all", "Succeed", {"pserver": 1, "trainer": 1}, {"| up, restarts 0": 3, "| up, restarts 1": 3}),
    ("end-any", "Succeed", {}, {"trainer-1 | found": 1, "| searching": 3}),
    ("end-rank0", "Succeed", {}, {"trainer-0 | done": 1, "trainer-1 | failing": 1}),
    ("end-all", "Succeed", {}, {"trainer-2 | the last one is done": 1}),
    ("end-none", "Succeed", {}, {"pserver-0 | no use": 1, "| done": 2}),
    ("end-job", "Succeed", {}, {"large-0 | out of memory": 1, "| trained": 2}),
    ("clean-all", "Succeed", {}, {"pserver-0 | serving": 1, "| trained": 2}),
    ("clean-none", "Succeed", {}, {"| trained": 2}),
    ("time-limit", "Timeout", {}, {"| training": 2}),
]


def status(workspace: Workspace, name: str) -> Body:
    found: Body = yaml.safe_load((workspace.folder_of(name) / "status.yaml").read_text())
    return dict(found["status"])


def check(workspace: Workspace, done: FinishedCommand, name: str, phase: str) -> None:
    """The exit code and the last status say the same."""
    assert done.code == (0 if phase == "Succeed" else 1), done.said
    body = status(workspace, name)
    assert body["phase"] == phase, body
    assert body["conditions"][-1]["type"] == phase
    assert [one["status"] for one in body["conditions"]] == ["False"] * (len(body["conditions"]) - 1) + ["True"]
    assert body["endTime"] >= body["startTime"]
    assert workspace.left() == []


def test_every_example_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == OTHERS | {row[0] for row in TABLE}


@pytest.mark.parametrize(("name", "phase", "restarts", "lines"), TABLE, ids=[row[0] for row in TABLE])
def test_it_comes_to_what_it_says(
    process: Workspace, name: str, phase: str, restarts: dict[str, int], lines: dict[str, int]
) -> None:
    done = process.run("run", str(FOLDER / f"{name}.yaml"))

    check(process, done, name, phase)
    assert status(process, name).get("RestartCount", {}) == restarts
    assert {line: done.out.count(line) for line in lines} == lines, done.said


def test_the_readmes_example_learns_its_digits(workspace: Workspace) -> None:
    done = workspace.run("run", str(FOLDER / "paddle-mnist.yaml"))

    check(workspace, done, "paddle-mnist", "Succeed")
    assert re.search(r"trainer-0 \| paddle-mnist: trainer 0 of 1, hosts \S+:\d+$", done.out, re.MULTILINE), done.out
    losses = [float(loss) for loss in re.findall(r"epoch \d/5  loss ([\d.]+)", done.out)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 5


# -- where something has to happen -----------------------------------------------------------------------------------


def test_one_whose_node_is_lost_is_started_on_another(workspace: Workspace) -> None:
    name = "restart-on-node-fail"
    run = workspace.start("run", "--nodes", "2", str(FOLDER / f"{name}.yaml"))
    (home,) = until(lambda: re.findall(r"try 0 on (node-\d)", run.said), "it runs")
    agents = workspace.pids("trainwright.local.agent_main")
    (agent,) = (pid for pid, words in agents.items() if f'"node":"{home}"' in words)
    os.kill(agent, signal.SIGKILL)
    done = run.end()

    check(workspace, done, name, "Succeed")
    other = {"node-0": "node-1", "node-1": "node-0"}[home]
    assert f"trainer-0 | try 1 on {other}" in done.out
    assert f"Node {home} is failed and offline" in str(status(workspace, name)["conditions"]), status(workspace, name)


def test_all_are_told_of_the_new_world_when_it_is_scaled(workspace: Workspace) -> None:
    run = workspace.start("run", str(FOLDER / "edl-manual.yaml"))
    until(lambda: run.said.count("| one of 2:") == 2, "both are up")
    assert workspace.run("scale", "edl-manual", "trainer=3").code == 0
    done = run.end()

    check(workspace, done, "edl-manual", "Succeed")
    worlds = re.findall(r"trainer-\d \| one of (\d): (\S+)", done.out)
    assert Counter(number for number, _ in worlds) == {"2": 2, "3": 3}
    assert all(len(set(hosts.split(","))) == int(number) for number, hosts in worlds)
    assert status(workspace, "edl-manual").get("RestartCount", {}) == {}


@pytest.mark.parametrize("wanted", [0, 5], ids=["too few", "too many"])
def test_it_is_not_scaled_beyond_its_bounds(process: Workspace, wanted: int) -> None:
    run = process.start("run", str(FOLDER / "edl-manual.yaml"))
    until(lambda: run.said.count("| one of 2:") == 2, "both are up")
    refused = process.run("scale", "edl-manual", f"trainer={wanted}")
    process.run("delete", "edl-manual")
    run.end()

    assert refused.code == 2, refused.said
    assert "expected a whole number from 1 to 4" in refused.err


def test_one_that_is_never_scaled_refuses(process: Workspace) -> None:
    run = process.start("run", str(FOLDER / "edl-never.yaml"))
    until(lambda: run.said.count("| one of 2") == 2, "both are up")
    refused = process.run("scale", "edl-never", "trainer=3")
    process.run("delete", "edl-never")
    run.end()

    assert refused.code == 2, refused.said
    assert "edlPolicy" in refused.err


@pytest.mark.parametrize(
    ("note", "phase"),
    [
        ("Preempted=room is needed", "Preempted"),
        ("preempted=room is needed", "Preempted"),
        ("Failed=it was wrong", "Failed"),
        ("nodefailed=it burns", "NodeFail"),
        ("NodeFail=it burns", "NodeFail"),
        ("Timeout=too long", "Timeout"),
        ("Succeed=good enough", "Succeed"),
    ],
    ids=lambda text: text.partition("=")[0],
)
def test_an_annotation_ends_it_whatever_its_policies(process: Workspace, note: str, phase: str) -> None:
    run = begun(process)
    assert process.run("annotate", "preempted", note).code == 0
    done = run.end()

    check(process, done, "preempted", phase)
    assert done.out.count("| saving") == 2
    assert note.partition("=")[2] in status(process, "preempted")["conditions"][-1]["message"]


def begun(workspace: Workspace) -> RunningCommand:
    run = workspace.start("run", str(FOLDER / "preempted.yaml"))
    until(lambda: run.said.count("| training") == 2, "both are up")
    return run


#: Asked to end, it prints when its process began, in ticks since the machine did, and how many seconds ago that was.
WATCH = """trap 'cat /proc/$$$$/stat /proc/uptime; exit 1' TERM; sleep 60 & wait"""


def test_a_time_limit_of_one_second_is_a_second_of_running(process: Workspace) -> None:
    """Three times: in whichever part of a second a job begins to run, it gets all of its time."""
    main = {"name": "aitj-main", "image": "busybox", "command": ["sh", "-c", WATCH]}
    body = {
        "apiVersion": "elasticdeeplearning.ai/v1",
        "kind": "AITrainingJob",
        "metadata": {"name": "short"},
        "spec": {
            "timeLimit": 1,
            "replicaSpecs": {"trainer": {"replicas": 1, "template": {"spec": {"containers": [main]}}}},
        },
    }
    for _ in range(3):
        done = process.run("run", body)

        check(process, done, "short", "Timeout")
        stat, uptime = (line.split(" | ")[1] for line in done.out.splitlines() if line.startswith("trainer-0 | "))
        began = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        assert float(uptime.split()[0]) - began >= 1.0, done.said
