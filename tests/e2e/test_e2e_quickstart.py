# SPDX-License-Identifier: Apache-2.0
"""The quickstart trains, leaves nothing, and survives kill -9; one whose budget is used up fails and says why."""

import os
import re
import signal
from functools import partial
from pathlib import Path

from e2e_jobs import job, role, shell
from e2e_workspace import EXAMPLES, RunningCommand, Workspace, until

pytest_plugins = ["e2e_fixtures"]

QUICKSTART = str(EXAMPLES / "quickstart.yaml")


def pace(seconds: float) -> tuple[str, str]:
    """Tests do not watch, so they need not wait."""
    return "--set", f"spec.replicaSpecs[coordinator].template.spec.containers[train].env[PACE].value='{seconds}'"


def test_the_quickstart_trains_to_success_and_leaves_nothing(workspace: Workspace) -> None:
    done = workspace.run("run", *pace(0.01), QUICKSTART)

    assert (done.code, done.err) == (0, ""), done.said
    assert len(re.findall(r"^coordinator-0 \| step +\d+/40  loss", done.out, re.M)) == 40
    assert "coordinator-0 | found y = " in done.out
    assert done.out.count(" | done") == 3
    assert re.search(r'^quickstart succeeded after \d+\.\ds: rule {"coordinator":\[0]} is fulfilled$', done.out, re.M)
    folder = workspace.folder_of("quickstart")
    assert done.out.splitlines()[-1] == f"logs and final status: {folder}"
    assert workspace.left() == []
    assert kept(folder) == ["events.jsonl", "logs", "replicas.jsonl", "run.json", "status.json", "status.yaml"]
    assert len([*folder.glob("logs/*/*.log")]) == 4
    assert "phase: Succeeded" in (folder / "status.yaml").read_text()
    assert [*workspace.work.iterdir()] == []


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_worker_that_is_killed_is_restarted_and_the_job_succeeds(workspace: Workspace) -> None:
    run = workspace.start("run", *pace(0.02), QUICKSTART)
    run.until("step  3/40")

    os.kill(worker(workspace, 1), signal.SIGKILL)
    done = run.end()

    assert done.code == 0, done.said
    assert "worker 1 is gone, waiting for it to be started again" in done.out
    assert re.search(r"worker-1 +Failed +killed by SIGKILL", done.out), done.out
    assert "quickstart-worker-1: container train was killed by SIGKILL (exit code 137)" in done.out
    assert done.out.count("worker-1 | worker 1 has ") == 2
    assert re.search(r"^quickstart succeeded after .*, 1 restart: rule", done.out, re.M)
    assert len([*workspace.folder_of("quickstart").glob("logs/*worker-1/*.log")]) == 2


def worker(workspace: Workspace, rank: int) -> int:
    """The process of one of the quickstart's workers, as this machine counts."""
    return workspace.pid(f"random.seed({rank})")


def test_kills_beyond_the_budget_fail_the_job_which_says_why(workspace: Workspace) -> None:
    doomed = shell("echo I am here; echo so far so good; exec sleep 60")
    run = workspace.start(
        "run",
        job(role("worker", doomed, replicas=2, restarts=1), failureRules=[{"worker": [1]}], cleanUpPolicy="All"),
    )
    for attempt in range(2):
        until(partial(said, run, "worker-1 | so far so good", attempt + 1))
        os.kill(main_process(workspace, "worker-1"), signal.SIGKILL)
    done = run.end()

    assert done.code == 1, done.said
    end = done.out[done.out.index("\n\n") :]
    assert re.search(r'^e2e failed after .*, 1 restart: worker-1 failed, which rule {"worker":\[1]} names$', end, re.M)
    assert '{"worker":[1]}' in re.search(r"^  rule: +(.*)$", end, re.M)[1]  # type: ignore[index]
    assert re.search(r"^  replica: worker-1 \(pod e2e-worker-1\)$", end, re.M)
    assert "was killed by SIGKILL (exit code 137); 1 of 1 restart was used" in end
    assert "  last lines of worker-1:\n    | I am here\n    | so far so good\n" in end


def said(run: RunningCommand, text: str, times: int) -> bool:
    return run.said.count(text) == times


def main_process(workspace: Workspace, replica: str) -> int:
    """The main process of a replica: its environment names its pod."""
    for pid in workspace.pids("sleep 60"):
        if f"HOSTNAME=e2e-{replica}" in Path(f"/proc/{pid}/environ").read_text():
            return pid
    raise AssertionError(f"{replica} does not run: {workspace.pids()}")
