# SPDX-License-Identifier: Apache-2.0
"""More than fifty broken jobs, really run: the first line of `trainwright explain` names the true cause."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import Any

from e2e_broken import BrokenJob, aitrainingjob, broken, files, paddlejob, tensorflow, tfjob
from e2e_jobs import job, python, role, shell, worker
from e2e_workspace import Workspace, until

from patience import PATIENCE
from trainwright.model.verdict import FailureClass as Class

pytest_plugins = ["e2e_fixtures"]

#: Explains several jobs with one start of Python, one JSON document for each.
EXPLAIN_ALL = """
import sys
from trainwright.cli.main import run
for name in sys.argv[1:]:
    code = run(["explain", name, "-o", "json"])
    assert code == 0, (name, code)
"""


def explained(workspace: Workspace, name: str = "e2e") -> dict[str, Any]:
    """What `explain` says."""
    done = workspace.run("explain", name, "-o", "json")
    assert done.code == 0, done.said
    found: dict[str, Any] = json.loads(done.out)
    return found


def all_explained(workspace: Workspace, names: list[str]) -> dict[str, dict[str, Any]]:
    """What `explain` says about each of these jobs."""
    command = [sys.executable, "-c", EXPLAIN_ALL, *names]
    done = subprocess.run(command, env=workspace.env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    texts = re.split(r"(?<=^})\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(names, (json.loads(text) for text in texts if text), strict=True))


def wrong(row: BrokenJob, found: dict[str, Any]) -> str:
    """What the explanation gets wrong; empty if it is right."""
    expected, headline = row.failure_class.value, found["headline"]
    missing = [word for word in row.words if word not in headline]
    # If the command could not be started, the message of the node often says what to do.
    advised = found.get("action") or row.failure_class is Class.COMMAND_NOT_FOUND
    if found.get("class", "") == expected and not missing and advised:
        return ""
    return f"{found.get('class')} is not {expected}, or no {missing}, or no action: {headline}"


def check(workspace: Workspace, name: str, failure_class: Class, *words: str) -> None:
    """The first line of the explanation names this."""
    assert not (why := wrong(BrokenJob({}, failure_class, words), explained(workspace, name))), f"{name}: {why}"


def test_the_first_line_names_the_true_cause(either: Workspace) -> None:
    for name, (text, mode) in files().items():
        (either.work / name).write_text(text)
        (either.work / name).chmod(mode)
    rows = broken(str(either.work))
    table = {name: row for name, row in rows.items() if either.runtime == "sandbox" or not row.sandbox}
    bodies = [row.body | {"metadata": {"name": name}} for name, row in table.items()]
    done = either.run("run", either.write(*bodies))

    assert done.code == 1, done.said
    told = all_explained(either, list(table))
    bad = {name: why for name, row in table.items() if (why := wrong(row, told[name]))}
    assert not bad, "\n".join(f"{name}: {why}" for name, why in bad.items())
    assert len({row.body["kind"] for row in table.values()}) == 4
    assert len(table) >= 40


def test_the_first_line_is_the_headline(process: Workspace) -> None:
    process.run("run", worker("echo 'error: no data'; exit 3"))

    first = process.run("explain", "e2e").out.splitlines()[0]
    assert first == explained(process)["headline"]
    assert first == "e2e failed: worker-0 exited with code 3 on node node-0: error: no data"


def test_signals_and_requests_from_outside(either: Workspace) -> None:
    """A user kills programs, and ends a job by an annotation."""
    warning = "echo 'Connection refused, retrying'; "  # an error that the program survived is not the cause
    bodies = [
        worker(f"{warning} exec sleep 6001", name="killed"),
        tfjob({}, Worker=tensorflow(shell("exec sleep 6002"))) | {"metadata": {"name": "terminated"}},
        aitrainingjob(shell("exec sleep 6003")) | {"metadata": {"name": "preempted"}},
    ]
    run = either.start("run", either.write(*bodies))
    os.kill(either.pid("sleep 6001"), signal.SIGKILL)
    os.kill(either.pid("sleep 6002"), signal.SIGTERM)
    either.pid("sleep 6003")
    assert either.run("annotate", "preempted", "Preempted=room is needed").code == 0
    assert run.end().code == 1, run.said

    check(either, "killed", Class.KILLED, "worker-0", "killed by SIGKILL")
    check(either, "terminated", Class.KILLED, "Worker-0", "killed by SIGTERM")
    check(either, "preempted", Class.REQUESTED, "Preempted", "room is needed")


def test_nodes_that_die(process: Workspace) -> None:
    policies = {"failPolicy": "Any", "restartPolicy": "Never"}
    body = aitrainingjob(shell("exec sleep 6004"), 2, policies) | {"metadata": {"name": "lost"}}
    run = process.start("run", "--nodes", "2", process.write(body))
    until(lambda: len(process.pids("sleep 6004")) == 2, "both run")
    agents = process.pids("trainwright.local.agent_main")
    (agent,) = (pid for pid, words in agents.items() if '"node":"node-1"' in words)
    os.kill(agent, signal.SIGKILL)
    assert run.end().code == 1, run.said

    check(process, "lost", Class.NODE_LOST, "node-1", "lost its node")


def test_what_waits_and_what_was_interrupted(process: Workspace) -> None:
    """A live run is explained, too: what has no place, and what cannot be created any more."""
    gpu, data = {"limits": {"nvidia.com/gpu": 1}}, process.work / "data"
    data.mkdir()
    volume = {"name": "v", "hostPath": {"path": str(data), "type": "Directory"}}
    mount = [{"name": "v", "mountPath": str(data)}]
    vanish = shell(f"rmdir {data}; exit 1", volumeMounts=mount)
    bodies = [
        job(role("worker", shell("exec sleep 6005", resources=gpu)), name="holder"),
        job(role("worker", vanish, restarts=1, volumes=[volume]), name="vanished"),
    ]
    run = process.start("run", "--gpus", "1", process.write(*bodies))
    process.pid("sleep 6005")
    late = job(role("worker", shell("true", resources=gpu)), name="waits")
    second = process.start("run", "--gpus", "1", process.write(late))
    second.until("nvidia.com/gpu: needs 1")

    check(process, "waits", Class.UNSCHEDULABLE, "worker-0", "nvidia.com/gpu: needs 1, 0 of 1", "default/holder")
    until(lambda: explained(process, "vanished").get("class") == Class.MISSING_OBJECT, "it cannot be created")
    check(process, "vanished", Class.MISSING_OBJECT, "worker-0", str(data))
    for one in (second, run):
        one.signal(signal.SIGINT)
        assert one.end().code == 130, one.said
    assert "interrupted" in explained(process, "holder")["headline"]
    assert "interrupted" in explained(process, "waits")["headline"]


def test_runs_that_end_before_their_jobs(process: Workspace) -> None:
    timeout = process.start("run", "--timeout", "1", worker("exec sleep 6006", name="timeout"))
    killed = process.start("run", worker("echo up; exec sleep 6007", name="killed"))
    killed.until("| up")
    killed.process.kill()
    killed.end()
    assert timeout.end().code == 124, timeout.said

    assert "--timeout" in explained(process, "timeout")["headline"]
    assert "killed" in explained(process, "killed")["headline"]
    until(lambda: not process.left(), "nothing is left")


def test_replicas_that_share_a_port(process: Workspace) -> None:
    """In the process runtime, replicas share the ports of the machine."""
    port = free_port()
    hold = f"import asyncio\nasync def main(): await (await asyncio.start_server(print, '127.0.0.1', {port}))"
    program = f"{hold}.serve_forever()\nasyncio.run(main())"
    done = process.run("run", paddlejob(python(program), 2))

    assert done.code == 1, done.said
    check(process, "paddle", Class.PORT_IN_USE, f"{port}", "already in use")


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: int = server.getsockname()[1]
    return found
