# SPDX-License-Identifier: Apache-2.0
"""Nodes that hang: they are noticed and killed, no replica runs twice, and what is only slow is left alone.

The replicas hold a lock for as long as any of their processes lives, so that a second one at the same time is seen.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from e2e_jobs import Body, job, python, role
from e2e_workspace import FinishedCommand, RunningCommand, Workspace, until

pytest_plugins = ["e2e_fixtures"]

#: Takes its lock, leaves a process of another session with it, and waits for the end.
PROGRAM = """
import fcntl, os, subprocess, time
lock = open("{work}/lock-$(rank)", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open("{work}/twice", "a").write("$(rank) ")
subprocess.Popen(["sleep", "307"], start_new_session=True, pass_fds=[lock.fileno()])
print("up on", os.environ["NODE"])
while not os.path.exists("{work}/go"):
    time.sleep(0.05)
print("done")
"""
NODE = [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
#: Seconds that a stopped agent or supervisor gets.
GRACE = 1.0
#: How long its silence was, as the message tells it.
SILENT = r"has not answered for (?:1\.\d|[23]) s"


def waiting(workspace: Workspace, replicas: int) -> Body:
    """A job that is over when the test says so."""
    container = python(PROGRAM.format(work=workspace.work), env=NODE)
    return job(role("worker", container, replicas=replicas, restarts=3), port=2222)


def begun(workspace: Workspace, replicas: int, *options: str, grace: float = GRACE, **how: object) -> RunningCommand:
    """A run all of whose replicas are up."""
    body = waiting(workspace, replicas)
    run = workspace.start("run", "--node-grace", f"{grace}s", *options, body, **how)
    until(lambda: ups(run) == replicas, f"all are up: {run.said}")
    return run


def ups(run: RunningCommand) -> int:
    return run.said.count("| up on node-")


def finished(workspace: Workspace, run: RunningCommand) -> FinishedCommand:
    (workspace.work / "go").touch()
    done = run.end()
    assert not (workspace.work / "twice").exists(), f"{(workspace.work / 'twice').read_text()}: {done.said}"
    assert workspace.left() == []
    return done


def agent_of(workspace: Workspace, node: str) -> int:
    agents = workspace.pids("trainwright.local.agent_main")
    (found,) = (pid for pid, words in agents.items() if f'"node":"{node}"' in words)
    return found


def supervisor_of(workspace: Workspace, node: str) -> int:
    supervisors = workspace.pids("trainwright.node.supervisor")
    (found,) = (pid for pid, words in supervisors.items() if f"/nodes/{node}" in words and "agent_main" not in words)
    return found


def below(pid: int) -> list[int]:
    """Everything that descends from a process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def send(number: int, *pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def calm(done: FinishedCommand, workspace: Workspace, replicas: int) -> None:
    """Nothing was lost, nothing was restarted."""
    assert done.code == 0, done.said
    assert "not answered" not in done.said
    assert "lost" not in done.said
    assert done.out.count("| up on node-") == replicas, done.said
    status = json.loads(workspace.run("get", "-o", "json", "e2e").out)["status"]
    assert "restart" not in json.dumps(status.get("conditions", "")).lower(), status


@pytest.mark.parametrize("what", ["agent", "everything"])
def test_the_replicas_of_a_stopped_agent_are_restarted_elsewhere(workspace: Workspace, what: str) -> None:
    run = begun(workspace, 2, "--nodes", "2")
    agent = agent_of(workspace, "node-1")
    stopped = [agent] if what == "agent" else [agent, *below(agent)]
    (lost,) = re.findall(r"worker-(\d) \| up on node-1", run.said)
    assert len(stopped) >= {"agent": 1, "everything": 4}[what]

    send(signal.SIGSTOP, *stopped)
    until(lambda: ups(run) == 3, f"it is restarted: {run.said}")
    send(signal.SIGCONT, *stopped)  # they are dead, and stay so
    time.sleep(0.3)
    done = finished(workspace, run)

    assert done.code == 0, done.said
    told = rf"node-1 is lost: its agent \(process {agent}\) is stopped and {SILENT}"
    assert re.search(told + "; it and its pods were killed", done.out), done.out
    assert re.findall(rf"worker-{lost} \| up on (node-\d)", done.out) == ["node-1", "node-0"]
    assert re.search(r"node node-1 is lost \(its agent \(process \d+\) is stopped", done.out), done.out
    assert done.out.count("| done") == 2


def test_a_stopped_supervisor_is_killed_and_its_replicas_are_restarted_elsewhere(workspace: Workspace) -> None:
    run = begun(workspace, 2, "--nodes", "2")
    supervisor = supervisor_of(workspace, "node-1")

    send(signal.SIGSTOP, supervisor)
    until(lambda: ups(run) == 3, f"it is restarted: {run.said}")
    send(signal.SIGCONT, supervisor)
    done = finished(workspace, run)

    assert done.code == 0, done.said
    told = rf"the supervisor \(process {supervisor}\) is stopped and {SILENT}; it and its pods were"
    assert re.search(told, done.out), done.out
    assert re.findall(r"\| up on (node-\d)", done.out)[2:] == ["node-0"]


def test_an_agent_that_is_killed_while_its_supervisor_is_stopped_leaves_nothing(workspace: Workspace) -> None:
    """The supervisor cannot end its pods then; the engine does, before the node counts as lost."""
    run = begun(workspace, 2, "--nodes", "2")
    send(signal.SIGSTOP, supervisor_of(workspace, "node-1"))
    send(signal.SIGKILL, agent_of(workspace, "node-1"))
    until(lambda: ups(run) == 3, f"it is restarted: {run.said}")
    assert finished(workspace, run).code == 0


def test_an_agent_and_its_supervisor_that_are_killed_leave_nothing(workspace: Workspace) -> None:
    run = begun(workspace, 2, "--nodes", "2")
    send(signal.SIGKILL, supervisor_of(workspace, "node-1"), agent_of(workspace, "node-1"))
    until(lambda: ups(run) == 3, f"it is restarted: {run.said}")
    assert finished(workspace, run).code == 0


@pytest.mark.parametrize("nodes", [1, 2])
def test_when_the_last_node_hangs_the_run_ends_and_says_why(workspace: Workspace, nodes: int) -> None:
    run = begun(workspace, nodes, "--nodes", str(nodes))
    hung = (
        [supervisor_of(workspace, "node-0")]
        if nodes == 1
        else [agent_of(workspace, f"node-{one}") for one in range(nodes)]
    )

    send(signal.SIGSTOP, *hung)
    done = run.end()

    assert done.code == 3, done.said
    what = "the supervisor" if nodes == 1 else "its agent"
    assert re.search(rf"no node is left: node-0: {what} \(process \d+\) is stopped and has not answered", done.out)
    assert not (workspace.work / "twice").exists()
    assert workspace.left() == []


@pytest.mark.parametrize("part", ["agent", "supervisor"])
def test_the_only_node_comes_back_with_revive(process: Workspace, part: str) -> None:
    run = begun(process, 1, "--revive", "0.2s")
    send(signal.SIGSTOP, (agent_of if part == "agent" else supervisor_of)(process, "node-0"))
    until(lambda: ups(run) == 2, f"it is restarted: {run.said}")
    done = finished(process, run)

    assert done.code == 0, done.said
    assert "node-0 is started again" in done.out


@pytest.mark.parametrize("part", ["agent", "supervisor"])
def test_one_that_goes_on_in_time_is_left_alone(process: Workspace, part: str) -> None:
    run = begun(process, 2, "--nodes", "2", grace=20)
    pid = (agent_of if part == "agent" else supervisor_of)(process, "node-1")
    send(signal.SIGSTOP, pid)
    time.sleep(2)
    send(signal.SIGCONT, pid)
    time.sleep(0.5)
    calm(finished(process, run), process, 2)


def test_an_engine_that_was_stopped_itself_does_not_take_its_nodes_for_dead(process: Workspace) -> None:
    """Ctrl-Z, or a laptop that slept: also if the agents go on a little later than the engine."""
    run = begun(process, 2, "--nodes", "2")
    agents = [agent_of(process, "node-0"), agent_of(process, "node-1")]
    send(signal.SIGSTOP, run.pid, *agents)
    time.sleep(2 * GRACE)
    send(signal.SIGCONT, run.pid)
    time.sleep(GRACE / 5)
    send(signal.SIGCONT, *agents)
    time.sleep(GRACE)
    send(signal.SIGSTOP, run.pid)
    time.sleep(2 * GRACE)
    send(signal.SIGCONT, run.pid)
    time.sleep(GRACE)
    calm(finished(process, run), process, 2)


@contextmanager
def burning(count: int) -> Iterator[None]:
    """More work than the machine has CPUs for."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in burners:
            one.kill()
            one.wait()


def test_a_loaded_machine_raises_no_alarm(process: Workspace) -> None:
    run = begun(process, 4, "--nodes", "4", grace=0.5)
    with burning(6):
        time.sleep(4)  # a silent agent would count as hung after 3 s
    calm(finished(process, run), process, 4)


def test_an_engine_that_is_killed_takes_a_stopped_agent_along(workspace: Workspace) -> None:
    run = begun(workspace, 2, "--nodes", "2", grace=600)
    send(signal.SIGSTOP, agent_of(workspace, "node-1"))

    run.process.kill()
    run.end()

    until(lambda: not workspace.left(), "nothing is left")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_can_be_ended_while_a_node_hangs(workspace: Workspace, nodes: int) -> None:
    run = begun(workspace, 2, "--nodes", str(nodes), grace=600, start_new_session=True)
    top = agent_of(workspace, "node-1") if nodes == 2 else supervisor_of(workspace, "node-0")
    send(signal.SIGSTOP, top, *below(top))

    run.signal(signal.SIGINT)
    run.until("ending 2 replicas")
    run.signal(signal.SIGINT)
    done = run.end()

    assert done.code == 130, done.said
    assert workspace.left() == []
