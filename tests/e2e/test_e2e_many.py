# SPDX-License-Identifier: Apache-2.0
"""Hundreds of short pods: all of them succeed, and nothing is left of any."""

import json

from e2e_jobs import container, job, role, worker
from e2e_stage import Stage

pytest_plugins = ["e2e_fixtures"]

MANY = 300


def test_hundreds_of_short_pods_succeed_and_leak_nothing(stage: Stage) -> None:
    done = stage.run("run", "--no-logs", "-o", "json", job(role("worker", container("true"), replicas=MANY)))

    assert done.code == 0, done.out[-2000:]
    assert stage.left() == []
    folder = stage.folder_of()
    assert not (folder / "pods").exists()
    assert not (folder / "nodes").exists()
    assert len((folder / "replicas.jsonl").read_text().splitlines()) == MANY
    assert [item for item in done.items if item["type"] == "event" and item["warning"]] == []


def test_a_supervisor_keeps_nothing_of_pods_that_are_gone(stage: Stage) -> None:
    """A hundred restarts while the run lives: no descriptor, process, mount or folder is left of them."""
    flaky = f"n=$(cat {stage.work}/n 2>/dev/null || echo 0); echo $((n + 1)) > {stage.work}/n; [ $n -ge 20 ] || exit 1; echo up; exec sleep 60"
    run = stage.start("run", "-o", "json", worker(flaky, restarts=100))
    run.until('"text":"up"')
    supervisor = stage.pid("trainwright.local.supervisor")

    held = len(list(__import__("pathlib").Path(f"/proc/{supervisor}/fd").iterdir()))
    pods = list((stage.folder_of() / "pods").iterdir())
    run.signal(2)
    done = run.end()

    assert held < 40
    assert len(pods) <= 2
    assert done.code == 130
    json.loads(done.out.splitlines()[-1])
