# SPDX-License-Identifier: Apache-2.0
"""What survives kill -9 of the background engine, its agents and its supervisors, with real processes."""

import json
import os
import signal
import time
from typing import Any

import pytest
from e2e_jobs import job, role, shell, worker
from e2e_workspace import FinishedCommand, Workspace, until

from trainwright.cli.state import is_live

pytest_plugins = ["e2e_fixtures"]


def _ok(done: FinishedCommand) -> FinishedCommand:
    assert done.code == 0, done.said
    return done


def _up(work: Workspace, *words: str) -> int:
    _ok(work.run("up", *words))
    return int(_status(work)["pid"])


def _status(work: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_ok(work.run("status", "-o", "json")).out)
    return found


def _kill(work: Workspace, mark: str) -> None:
    pids = list(work.pids(mark))
    assert pids, work.pids()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _kill_engine(work: Workspace) -> None:
    _kill(work, "up --foreground")
    until(lambda: not is_live(work.state / ".engine" / "lock"))


def _count(work: Workspace, code: int = 0) -> str:
    """A script that writes numbered lines until the test calls `_let_end`, and then says how many there were."""
    return (
        f"i=0; while [ ! -e {work.work}/go ]; do echo line $i; i=$((i+1)); sleep 0.05; done; echo $i lines; exit {code}"
    )


def _hold(work: Workspace, end: str) -> str:
    """A script that runs until the test calls `_let_end`."""
    return f"echo begun; while [ ! -e {work.work}/go ]; do sleep 0.02; done; {end}"


def _let_end(work: Workspace) -> None:
    (work.work / "go").touch()


def _is_complete(lines: list[str]) -> bool:
    """Whether these are all lines of `_count`, each once and in order."""
    texts = [line.split(" | ")[-1] for line in lines]
    return len(texts) > 1 and texts == [
        *(f"line {number}" for number in range(len(texts) - 1)),
        f"{len(texts) - 1} lines",
    ]


def _replica(work: Workspace) -> int:
    """The process of the only replica. For a moment, its child has the same arguments before it runs `sleep`."""

    def alone() -> int:
        found = work.pids("while [")
        return next(iter(found)) if len(found) == 1 else 0

    found: int = until(alone, "one process")
    return found


def _lines(work: Workspace, name: str = "e2e") -> list[str]:
    return work.run("logs", name).out.splitlines()


def test_a_replica_keeps_its_process_and_its_log_over_a_killed_engine(workspace: Workspace) -> None:
    _up(workspace)
    _ok(workspace.run("submit", worker(_count(workspace, 7))))
    until(lambda: "line 3" in "\n".join(_lines(workspace)))
    before = _replica(workspace)
    _kill_engine(workspace)
    assert _replica(workspace) == before, "the replica runs on"
    seen = len(_lines(workspace))
    until(lambda: len(_lines(workspace)) > seen, "its output is logged without an engine")
    _up(workspace)
    assert "1/1" in workspace.run("get").out
    assert _replica(workspace) == before, "the same process"
    assert workspace.run("exec", "e2e", "worker-0", "--", "echo", "inside").out == "inside\n"
    seen = len(_lines(workspace))
    until(lambda: len(_lines(workspace)) > seen, "its output is logged under the new engine")
    _let_end(workspace)
    assert workspace.run("wait", "e2e").code == 1
    assert _is_complete(_lines(workspace)), _lines(workspace)
    assert "exited with code 7" in workspace.run("explain", "e2e").out
    _ok(workspace.run("down"))


def test_an_exit_code_of_the_gap_is_not_lost(workspace: Workspace) -> None:
    _up(workspace)
    body = job(role("worker", shell(_hold(workspace, "exit 9")), restarts=0))
    _ok(workspace.run("submit", body))
    until(lambda: "begun" in "\n".join(_lines(workspace)))
    _kill_engine(workspace)
    _let_end(workspace)
    until(lambda: not workspace.pids("while ["))
    _up(workspace)
    assert workspace.run("wait", "e2e").code == 1
    assert "exited with code 9" in workspace.run("explain", "e2e").out
    _ok(workspace.run("down"))


def test_an_acknowledged_submission_survives_an_immediate_kill(process: Workspace) -> None:
    _up(process)
    for number in range(5):
        _ok(process.run("submit", worker("echo ran; sleep 0.2", name=f"job-{number}")))
        _kill_engine(process)
        _up(process)
    for number in range(5):
        assert process.run("wait", f"job-{number}").code == 0
        assert [line.split(" | ")[-1] for line in _lines(process, f"job-{number}")] == ["ran"], "it ran once"
    _ok(process.run("down"))


def test_a_killed_supervisor_loses_its_replicas_and_they_are_restarted(process: Workspace) -> None:
    _up(process)
    _ok(process.run("submit", worker(_hold(process, "echo done"))))
    until(lambda: "begun" in "\n".join(_lines(process)))
    old = process.pids("while [")
    assert old
    _kill(process, "supervisor.main")
    until(lambda: not set(old) & set(process.pids("while [")), "no process of the lost replica runs on")
    until(lambda: sum("begun" in line for line in _lines(process)) == 2)
    _let_end(process)
    assert process.run("wait", "e2e").code == 0
    assert sum("begun" in line for line in _lines(process)) == 2
    _ok(process.run("down"))


def test_engine_and_supervisor_killed_together_leave_no_process_unnoticed(process: Workspace) -> None:
    _up(process)
    _ok(process.run("submit", worker(_hold(process, "echo done"))))
    until(lambda: "begun" in "\n".join(_lines(process)))
    old = process.pids("while [")
    assert old
    _kill_engine(process)
    _kill(process, "supervisor.main")
    _up(process)
    until(lambda: not set(old) & set(process.pids("while [")), "the leftovers are killed")
    _let_end(process)
    assert process.run("wait", "e2e").code == 0
    _ok(process.run("down"))


def test_a_killed_agent_is_replaced_and_its_replicas_run_on(process: Workspace) -> None:
    _up(process, "--nodes", "2")
    _ok(process.run("submit", worker(_count(process), replicas=2)))
    _ok(process.run("wait", "--for", "running", "e2e"))
    before, agents = process.pids("while ["), set(process.pids("agent_main"))
    assert (len(before), len(agents)) == (2, 2)
    _kill(process, "agent_main")
    until(lambda: len(set(process.pids("agent_main")) - agents) == 2, "the agents are replaced")
    assert process.pids("while [") == before
    _let_end(process)
    assert process.run("wait", "e2e").code == 0
    info = json.loads((process.folder_of() / "run.json").read_bytes())
    assert info["endings"][0]["restarts"] == 0, "no replica was lost"
    _ok(process.run("down"))


def test_a_deadline_passes_while_no_engine_runs(process: Workspace) -> None:
    _up(process)
    container = {"name": "tensorflow", "image": "none", "command": ["sleep", "1000"]}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "e2e"},
        "spec": {
            "runPolicy": {"activeDeadlineSeconds": 3, "cleanPodPolicy": "All"},
            "tfReplicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": {"containers": [container]}}}},
        },
    }
    _ok(process.run("submit", body))
    _ok(process.run("wait", "--for", "running", "e2e"))
    began = time.monotonic()
    _kill_engine(process)
    time.sleep(3.5)
    _up(process)
    assert process.run("wait", "e2e").code == 1
    assert time.monotonic() - began < 10, "the deadline did not begin again"
    assert "deadline" in process.run("explain", "e2e").out
    until(lambda: not process.pids("sleep 1000"))
    _ok(process.run("down"))


def test_attach_and_wait_survive_a_restart_of_the_engine(process: Workspace) -> None:
    _up(process)
    _ok(process.run("submit", worker(_count(process))))
    _ok(process.run("wait", "--for", "running", "e2e"))
    views = [process.start(*words) for words in (("attach", "e2e"), ("wait", "e2e"), ("logs", "-f", "e2e"))]
    views[0].until("line ")
    views[2].until("line ")
    _kill_engine(process)
    views[0].until("waiting for `trainwright up`")
    _up(process)
    _let_end(process)
    assert [one.end().code for one in views] == [0, 0, 0]
    lines = views[2].said.splitlines()
    assert _is_complete(lines), lines
    assert lines[-2].split(" | ")[-1] in views[0].said
    assert lines[-1].split(" | ")[-1] in views[0].said
    _ok(process.run("down"))


@pytest.mark.parametrize("damage", ["foreign", "cut"])
def test_a_damaged_store_is_refused_and_left_as_it_is(process: Workspace, damage: str) -> None:
    _up(process)
    _ok(process.run("submit", worker("true")))
    assert process.run("wait", "e2e").code == 0
    _ok(process.run("down"))
    store = process.state / ".engine" / "store.db"
    content = b"not a database" * 100 if damage == "foreign" else store.read_bytes()[:5000]
    store.write_bytes(content)
    done = process.run("up")
    assert done.code == 3, done.said
    assert str(store) in done.err
    assert store.read_bytes() == content
    assert process.run("status").code == 3
    assert process.run("logs", "e2e").code == 0, "the records need no store"
