# SPDX-License-Identifier: Apache-2.0
"""A machine as a cluster: nodes that die, GPUs that are handed out, requests that are respected, gangs."""

import os
import re
import signal
import time

import pytest
from e2e_jobs import Body, job, python, role, shell, worker
from e2e_workspace import FinishedCommand, Workspace, until

pytest_plugins = ["e2e_fixtures"]

GPU = "nvidia.com/gpu"
CPUS = len(os.sched_getaffinity(0))


def said(done: FinishedCommand) -> dict[str, list[str]]:
    """What each replica printed."""
    found: dict[str, list[str]] = {}
    for item in done.items:
        if item["type"] == "log":
            found.setdefault(item["replica"], []).append(item["text"])
    return found


def test_replicas_are_spread_over_nodes_and_outlive_one(workspace: Workspace) -> None:
    """Kill one node's agent: its replica is restarted elsewhere, and the job succeeds."""
    wait = f"echo on $NODE; until [ -e {workspace.work}/go ]; do sleep 0.05; done; echo done"
    env = [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    body = job(role("worker", shell(wait, env=env), replicas=3, restarts=3), port=2222)
    run = workspace.start("run", "--nodes", "3", body)
    until(lambda: run.said.count("| on node-") == 3, "all are up")
    assert sorted(re.findall(r"\| on (node-\d)", run.said)) == ["node-0", "node-1", "node-2"]
    (lost,) = re.findall(r"worker-(\d) \| on node-1", run.said)

    agent = agent_of(workspace, "node-1")
    os.kill(agent, signal.SIGKILL)
    until(lambda: run.said.count("| on node-") == 4, "it is restarted")
    (workspace.work / "go").touch()
    done = run.end()

    assert done.code == 0, done.said
    assert f"node-1 is lost: its agent (process {agent})" in done.out
    assert re.findall(rf"worker-{lost} \| on (node-\d)", done.out)[1] in ("node-0", "node-2")
    assert done.out.count("| done") == 3
    assert workspace.left() == []


def agent_of(workspace: Workspace, node: str) -> int:
    """The process of that node's agent."""
    agents = workspace.pids("trainwright.local.agent_main")
    (found,) = (pid for pid, words in agents.items() if f'"node":"{node}"' in words)
    return found


@pytest.mark.parametrize("nodes", [["node-1"], ["node-0", "node-1"]], ids=["one of two", "all"])
def test_a_node_that_is_started_again_is_used_again(workspace: Workspace, nodes: list[str]) -> None:
    """What fits nowhere else waits for it, even if no node is left meanwhile."""
    wait = f"echo up; until [ -e {workspace.work}/go ]; do sleep 0.05; done; echo done"
    body = job(role("worker", shell(wait, resources={"limits": {GPU: 2}}), replicas=2, restarts=3), port=2222)
    run = workspace.start("run", "--nodes", "2", "--gpus", "4", "--revive", "1s", body)
    until(lambda: run.said.count("| up") == 2, "all are up")

    for node in nodes:
        os.kill(agent_of(workspace, node), signal.SIGKILL)
    until(lambda: run.said.count("| up") == 2 + len(nodes), "it is restarted")
    (workspace.work / "go").touch()
    done = run.end()

    assert done.code == 0, done.said
    assert done.out.count("is started again") == len(nodes)
    assert done.out.count("| done") == 2
    assert workspace.left() == []


def test_a_run_ends_while_a_node_is_to_be_started_again(process: Workspace) -> None:
    wait = f"until [ -e {process.work}/go ]; do sleep 0.05; done; echo done"
    run = process.start("run", "--nodes", "2", "--revive", "1h", worker(wait, replicas=1))
    idle = until(lambda: re.findall(r"on node-(\d)|node-(\d)", run.said), "it has a node")
    other = "node-1" if "0" in idle[0] else "node-0"
    os.kill(agent_of(process, other), signal.SIGKILL)
    (process.work / "go").touch()
    done = run.end()

    assert done.code == 0, done.said
    assert process.left() == []


def test_pods_on_different_nodes_reach_each_other_by_name(sandbox: Workspace) -> None:
    talk = """
import socket, time
server = socket.create_server(("0.0.0.0", 2222))
while True:
    try:
        other = socket.create_connection(("e2e-worker-%d" % (1 - $(rank)), 2222))
        break
    except OSError:
        time.sleep(0.1)
server.accept()
print("met")
time.sleep(1)  # so that each replica is seen running on its node
"""
    body = job(role("worker", python(talk), replicas=2), port=2222)
    done = sandbox.run("run", "--nodes", "2", "--timeout", "100", body)

    assert done.code == 0, done.said
    assert done.out.count("| met") == 2
    assert {"node-0", "node-1"} <= set(re.findall(r"node-\d", done.out))


def test_an_engine_of_many_nodes_that_is_killed_takes_everything_along(workspace: Workspace) -> None:
    run = workspace.start("run", "--nodes", "2", worker("echo up; exec sleep 304", replicas=2))
    until(lambda: run.said.count("| up") == 2)

    run.process.kill()
    run.end()

    until(lambda: not workspace.left(), f"{workspace.left()}")


def test_ctrl_c_ends_many_nodes_in_good_order(workspace: Workspace) -> None:
    polite = "trap 'echo leaving; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    run = workspace.start("run", "--nodes", "2", worker(polite, replicas=2), start_new_session=True)
    until(lambda: run.said.count("| up") == 2)

    os.killpg(run.pid, signal.SIGINT)
    done = run.end()

    assert done.code == 130, done.said
    assert done.out.count("| leaving") == 2
    assert workspace.left() == []


def test_gpus_are_handed_out_once(process: Workspace) -> None:
    both = " && ".join(f"[ -e {process.work}/up-{rank} ]" for rank in range(2))
    hold = f"touch {process.work}/up-$(rank); until {both}; do sleep 0.05; done"
    take = shell(f"echo $CUDA_VISIBLE_DEVICES; {hold}", resources={"limits": {GPU: 2}})
    none = shell("echo [$CUDA_VISIBLE_DEVICES]")
    done = process.run("run", "-o", "json", "--gpus", "4", job(role("worker", take, replicas=2), role("other", none)))

    assert done.code == 0, done.said
    seen = said(done)
    given = [seen[f"worker-{rank}"][0].split(",") for rank in range(2)]
    assert sorted(one for part in given for one in part) == ["0", "1", "2", "3"]
    assert seen["other-0"][0] in ("[]", "[-1]", "[NoDevFiles]")


def test_what_does_not_fit_waits_says_why_and_runs_when_there_is_room(process: Workspace) -> None:
    most = {"requests": {GPU: 3}, "limits": {GPU: 3}}
    tell = f"echo begin; until [ -e {process.work}/go ]; do sleep 0.05; done; echo end"
    run = process.start("run", "--gpus", "4", job(role("worker", shell(tell, resources=most), replicas=2)))
    run.until("nvidia.com/gpu: needs 3")
    (process.work / "go").touch()
    done = run.end()

    assert done.code == 0, done.said
    assert re.search(r"worker-1 +Pending .*nvidia\.com/gpu: needs 3, .*1 of 4 is free", done.out), done.out
    order = re.findall(r"worker-\d \| \w+", done.out)
    assert order == [f"worker-{rank} | {word}" for rank in (0, 1) for word in ("begin", "end")]


def test_cpu_requests_are_respected(process: Workspace) -> None:
    """Never more at once than there is CPU for."""
    ask = {"requests": {"cpu": str(CPUS * 0.6)}}
    alone = f"mkdir {process.work}/lock || exit 1; sleep 0.3; rmdir {process.work}/lock"
    done = process.run("run", job(role("worker", shell(alone, resources=ask), replicas=3)))

    assert done.code == 0, done.said
    assert "not all 3 replicas can run at the same time" in done.err


def gang(replicas: int, script: str, gpus: int) -> Body:
    ask = {"limits": {GPU: gpus}}
    return job(
        role("worker", shell(script, resources=ask), replicas=replicas),
        name="gang",
        scheduler={"t9kScheduler": {"queue": "default", "priority": 50}},
    )


def test_a_gang_that_can_never_fit_is_refused(process: Workspace) -> None:
    done = process.run("run", "--gpus", "4", gang(5, "true", 1))

    assert (done.code, done.out) == (2, "")
    assert "can never fit: gang needs 5 pods at once: nvidia.com/gpu: needs 5 together, all nodes have 4" in done.err


def test_a_gang_waits_as_a_whole(process: Workspace) -> None:
    """Room for three of four is no room."""
    wait = shell("echo hold; until [ -e go ]; do sleep 0.05; done", resources={"limits": {GPU: 1}})
    holder = job(role("holder", wait), name="holder")
    late = gang(4, "echo mine; sleep 0.2", 1)
    late["spec"]["runMode"] = {"pause": {"enabled": True}}
    run = process.start("run", "--gpus", "4", process.write(holder, late))
    run.until("holder/holder-0 | hold")

    assert process.run("resume", "--wait", "0", "gang").code == 0
    run.until("gang needs 4 pods at once")
    time.sleep(0.3)
    assert "| mine" not in run.said
    assert len(process.pids("echo mine")) == 0
    (process.work / "go").touch()
    done = run.end()

    assert done.code == 0, done.said
    assert done.out.count("| mine") == 4


@pytest.mark.parametrize("nodes", [1, 2])
def test_nodes_share_the_machine_out(process: Workspace, nodes: int) -> None:
    body = job(role("worker", shell("true", resources={"limits": {GPU: 3}})))
    done = process.run("run", "--nodes", str(nodes), "--gpus", "4", body)

    assert done.code == (0 if nodes == 1 else 2), done.said
    assert nodes == 1 or f"{GPU}: needs 3, this node has 2" in done.err
