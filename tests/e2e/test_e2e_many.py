# SPDX-License-Identifier: Apache-2.0
"""Hundreds of short pods: all of them succeed, and nothing is left of any, even while the run still lives."""

import json
import signal
from pathlib import Path

from e2e_jobs import container, job, role, shell
from e2e_traces import groups
from e2e_workspace import Workspace, until

pytest_plugins = ["e2e_fixtures"]

MANY = 300


def test_hundreds_of_short_pods_succeed_and_leak_nothing(workspace: Workspace) -> None:
    """One more waits, so that the supervisor can be looked at when they have gone."""
    last = shell("echo up; until [ -e go ]; do sleep 0.1; done")
    run = workspace.start("run", "-o", "json", job(role("short", container("true"), replicas=MANY), role("last", last)))
    until(lambda: run.said.count('"phase":"Succeeded"') >= MANY)

    supervisor = workspace.pid("trainwright.node.supervisor")
    until(lambda: len(list(Path(f"/proc/{supervisor}/fd").iterdir())) < 40, "descriptors are given back")
    until(lambda: len(children(supervisor)) <= 2, "there are no zombies")
    (workspace.work / "go").touch()
    done = run.end()

    assert done.code == 0, done.out[-2000:]
    assert workspace.left() == []
    folder = workspace.folder_of()
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["logs"]
    recorded = [json.loads(line)["uid"] for line in (folder / "replicas.jsonl").read_text().splitlines()]
    assert len(set(recorded)) == MANY + 1
    assert len(recorded) <= 2 * (MANY + 1)  # a pod is recorded again when its node is known
    assert [item for item in done.items if item["type"] == "event" and item["warning"]] == []


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_control_groups_go_with_their_containers(workspace: Workspace) -> None:
    limits = {"limits": {"cpu": "500m", "memory": "64Mi"}}
    run = workspace.start("run", job(role("worker", shell("echo up; exec sleep 60", resources=limits), replicas=3)))
    until(lambda: run.said.count("| up") == 3)
    supervisor = workspace.pid("trainwright.node.supervisor")

    run.signal(signal.SIGINT)
    run.end()

    until(lambda: not groups(supervisor), f"{groups(supervisor)}")
