# SPDX-License-Identifier: Apache-2.0
"""An engine that is killed with SIGKILL, and its successor: the pods are the same processes at the same addresses."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from detached_engine import GPU, DetachedEngine, detached_engine
from node_agent import alive, container, settle

from trainwright.local.persistent import network_name
from trainwright.model.meta import ADDRESS, DEVICES, Key
from trainwright.node import adoption
from trainwright.node.devices.leases import LeaseFolder
from trainwright.runtime.ports import NODES

COUNT = "echo $$; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"
SLEEP = "echo $$; exec sleep 300"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[DetachedEngine]:
    async with detached_engine(tmp_path, runtime="process") as made:
        yield made


async def test_a_pod_outlives_its_engine(engine: DetachedEngine) -> None:
    await engine.create("pod", container(COUNT))
    pid = int((await engine.said("pod", 4))[0])
    before = await engine.pod("pod")
    await engine.kill()
    seen = len(engine.log("pod").splitlines())
    await settle(lambda: len(engine.log("pod").splitlines()) > seen + 3)
    await engine.begin()
    seen = len(engine.log("pod").splitlines())
    await settle(lambda: len(engine.log("pod").splitlines()) > seen + 3)
    assert alive(pid)
    lines = engine.log("pod").split("\n")[1:-1]
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
    after = await engine.pod("pod")
    assert after["status"] == before["status"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await engine.delete("pod", grace=1)
    await engine.until_gone("pod")
    assert not alive(pid)


async def test_an_engine_that_is_told_to_leave_its_pods_leaves_them(engine: DetachedEngine) -> None:
    await engine.create("pod", container(SLEEP))
    pid = int((await engine.said("pod"))[0])
    await engine.end(keep_running=True)
    assert alive(pid)
    await engine.begin()
    assert (await engine.pod("pod"))["status"]["phase"] == "Running"
    node = await engine.get(NODES, Key("", "node-0"))
    assert [one["status"] for one in node["status"]["conditions"]] == ["True"]
    await engine.end(keep_running=False)
    assert not alive(pid)
    assert engine.supervisors() == {}


async def test_a_supervisor_that_is_killed_is_replaced(engine: DetachedEngine) -> None:
    """The engine must go on for days: its pods are lost, and its node is not."""
    await engine.create("pod", container(SLEEP))
    pid = int((await engine.said("pod"))[0])
    await engine.until("pod", "Running")  # otherwise the answer to the start is lost, too: another failure
    first = engine.supervisors()["node-0"]
    os.kill(first, signal.SIGKILL)
    lost = await engine.until("pod", "Failed")
    assert lost["status"]["reason"] == "SupervisorLost"
    await settle(lambda: not alive(pid))
    await engine.create("next", container("exit 3"))
    ended = await engine.until("next", "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert engine.supervisors()["node-0"] != first


async def test_a_pod_that_is_being_deleted_has_only_the_rest_of_its_grace_period(engine: DetachedEngine) -> None:
    """It got its SIGTERM once, and gets its SIGKILL when the time of the first engine has passed."""
    stubborn = "trap 'echo term' TERM; echo $$; while :; do sleep 0.05; done"
    await engine.create("pod", container(stubborn))
    pid = int((await engine.said("pod"))[0])
    await engine.delete("pod", grace=4)
    await settle(lambda: "term" in engine.log("pod"))
    begun = asyncio.get_running_loop().time()
    await engine.kill()
    await asyncio.sleep(1.5)
    await engine.begin()
    await engine.until_gone("pod")
    assert not alive(pid)
    assert asyncio.get_running_loop().time() - begun < 5.5
    assert engine.log("pod").count("term") == 1


async def test_a_back_off_continues(engine: DetachedEngine) -> None:
    """The second restart waits ten seconds after the end, whoever waits."""
    await engine.create("pod", container("echo $(date +%s.%N); exit 1"), restartPolicy="OnFailure")
    await settle(lambda: engine.log("pod", 1))
    second = float(engine.log("pod", 1))
    await engine.kill()
    await asyncio.sleep(4)
    await engine.begin()
    await asyncio.sleep(0.5)
    assert engine.log("pod", 2) == ""
    await settle(lambda: engine.log("pod", 2))
    assert 9.5 < float(engine.log("pod", 2)) - second < 13
    assert engine.log("pod", 1) == f"{engine.log('pod', 1).strip()}\n"  # it was not started a second time


async def test_addresses_and_ports_stay_reserved(engine: DetachedEngine) -> None:
    record = (engine.folder / "network.json").read_text()
    await engine.create("first", container(SLEEP))
    first = (await engine.pod("first"))["metadata"]["annotations"][ADDRESS]
    await engine.said("first")
    await engine.kill()
    await engine.begin()
    assert (engine.folder / "network.json").read_text() == record
    await engine.create("second", container(SLEEP))
    second = (await engine.pod("second"))["metadata"]["annotations"][ADDRESS]
    assert second != first
    assert second.rsplit(".", 2)[0] == first.rsplit(".", 2)[0]  # from the same range


@pytest.mark.parametrize("nodes", [1, 2])
async def test_devices_stay_with_their_pods(tmp_path: Path, nodes: int) -> None:
    async with detached_engine(tmp_path, runtime="process", gpus=2, nodes=nodes) as engine:
        one = {"limits": {GPU: 1}}
        await engine.create("first", container(f"echo $NVIDIA_VISIBLE_DEVICES; {SLEEP}", resources=one))
        (device, _) = await engine.said("first", 2)
        await engine.kill()
        await engine.begin()
        await engine.create("second", container(f"echo $NVIDIA_VISIBLE_DEVICES; {SLEEP}", resources=one))
        (other, _) = await engine.said("second", 2)
        assert {device, other} == {"0", "1"}
        holder = LeaseFolder().holder(GPU, device)
        assert holder is not None
        assert holder.pid in engine.supervisors().values()
        granted = json.loads((await engine.pod("first"))["metadata"]["annotations"][DEVICES])
        assert granted == {GPU: [device]}
        await engine.create("third", container(f"echo $NVIDIA_VISIBLE_DEVICES; {SLEEP}", resources=one))
        await asyncio.sleep(1)
        assert engine.log("third") == ""
        await engine.delete("first", grace=0)
        assert (await engine.said("third", 2))[0] == device


async def test_a_supervisor_of_another_protocol_is_drained(engine: DetachedEngine, tmp_path: Path) -> None:
    """Its pods run to their end, and their ends are known; new pods wait until then."""
    await engine.create("old", container(f"echo $$; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 7"))
    pid = int((await engine.said("old"))[0])
    await engine.until("old", "Running")
    (supervisor,) = engine.supervisors().values()
    await engine.kill()
    lock = tmp_path / "nodes/node-0/supervisor.lock"
    lock.write_text(lock.read_text().replace('"protocol": 1', '"protocol": 99'))
    await engine.begin()
    await engine.create("new", container("exit 3"))
    await asyncio.sleep(1.5)
    assert alive(pid)
    assert (await engine.pod("old"))["status"]["phase"] == "Running"
    assert (await engine.pod("new"))["status"]["phase"] == "Pending"
    node = await engine.get(NODES, Key("", "node-0"))
    (ready,) = node["status"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("True", "SupervisorDraining")
    assert "1 running container must end" in ready["message"]
    (tmp_path / "go").touch()
    ended = await engine.until("old", "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    await engine.until("new", "Failed")
    assert supervisor not in engine.supervisors().values()


async def test_a_supervisor_of_another_protocol_can_be_ended(engine: DetachedEngine, tmp_path: Path) -> None:
    await engine.create("old", container(SLEEP))
    pid = int((await engine.said("old"))[0])
    await engine.kill()
    lock = tmp_path / "nodes/node-0/supervisor.lock"
    lock.write_text(lock.read_text().replace('"protocol": 1', '"protocol": 99'))
    assert await adoption.end_supervisor(tmp_path / "nodes/node-0")
    assert not alive(pid)
    await engine.begin()
    assert (await engine.until("old", "Failed"))["status"]["reason"] == "SupervisorLost"


# -- several nodes: each agent has its own process --------------------------------------------------------------------


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[DetachedEngine]:
    async with detached_engine(tmp_path, runtime="process", nodes=2) as made:
        yield made


async def _pair(engine: DetachedEngine) -> dict[str, int]:
    """A pod on each of two nodes, by node: their processes."""
    for number in (0, 1):
        await engine.create(f"pod-{number}", container(SLEEP), nodeName=f"node-{number}")
    for number in (0, 1):
        await engine.until(f"pod-{number}", "Running")
    return {f"node-{number}": int((await engine.said(f"pod-{number}"))[0]) for number in (0, 1)}


async def test_the_pods_of_several_nodes_outlive_the_engine(nodes: DetachedEngine) -> None:
    pids = await _pair(nodes)
    supervisors = nodes.supervisors()
    agents = nodes.agents()
    assert len(agents) == 2
    await nodes.kill()
    await settle(lambda: not any(map(alive, agents)))
    await nodes.begin()
    assert all(map(alive, pids.values()))
    assert nodes.supervisors() == supervisors
    for number in (0, 1):
        assert (await nodes.pod(f"pod-{number}"))["status"]["phase"] == "Running"
        await nodes.delete(f"pod-{number}", grace=0)
    await settle(lambda: not any(map(alive, pids.values())))


def _replaced(engine: DetachedEngine, before: list[int]) -> bool:
    return len(engine.agents()) == 2 and engine.agents() != before


async def test_an_agent_that_is_killed_is_replaced_and_its_pods_go_on(nodes: DetachedEngine) -> None:
    pids = await _pair(nodes)
    supervisors = nodes.supervisors()
    for _ in range(2):
        before = nodes.agents()
        os.kill(before[-1], signal.SIGKILL)
        await settle(partial(_replaced, nodes, before))
    await nodes.create("next", container("exit 3"), nodeName="node-1")
    await nodes.until("next", "Failed")
    assert all(map(alive, pids.values()))
    assert nodes.supervisors() == supervisors
    for number in (0, 1):
        await nodes.until(f"pod-{number}", "Running")
        node = await nodes.get(NODES, Key("", f"node-{number}"))
        assert [one["status"] for one in node["status"]["conditions"]] == ["True"]


async def test_a_supervisor_of_one_of_several_nodes_that_is_killed_is_replaced(nodes: DetachedEngine) -> None:
    pids = await _pair(nodes)
    first = nodes.supervisors()
    os.kill(first["node-1"], signal.SIGKILL)
    lost = await nodes.until("pod-1", "Failed")
    assert lost["status"]["reason"] == "SupervisorLost"
    await settle(lambda: not alive(pids["node-1"]))
    await settle(lambda: nodes.supervisors().get("node-1") not in (None, first["node-1"]))
    await nodes.create("next", container("exit 3"), nodeName="node-1")
    await nodes.until("next", "Failed")
    assert alive(pids["node-0"])


async def test_several_nodes_are_left_or_ended(nodes: DetachedEngine) -> None:
    pids = await _pair(nodes)
    await nodes.end(keep_running=True)
    assert all(map(alive, pids.values()))
    await nodes.begin()
    await nodes.end(keep_running=False)
    assert not any(map(alive, pids.values()))
    assert nodes.supervisors() == {}


async def test_a_node_that_the_next_engine_does_not_have_is_ended(nodes: DetachedEngine) -> None:
    pids = await _pair(nodes)
    await nodes.kill()
    nodes.options["nodes"] = 1
    await nodes.begin()
    await settle(lambda: not alive(pids["node-1"]))
    assert alive(pids["node-0"])
    node = await nodes.get(NODES, Key("", "node-1"))
    assert [one["status"] for one in node["status"]["conditions"]] == ["Unknown"]


# -- sandboxes --------------------------------------------------------------------------------------------------------


LISTEN = "python3 -c 'import socket; s = socket.create_server((\"\", 7000)); print(1, flush=True)\nwhile 1: s.accept()'"


def _reach(host: str) -> str:
    return f'python3 -c \'import socket; socket.create_connection(("{host}", 7000), 5); print("reached")\''


async def test_a_sandbox_keeps_its_network_and_its_names(tmp_path: Path) -> None:
    """A pod of the next engine reaches a pod of the first engine by its name, and the other way round."""
    async with detached_engine(tmp_path, runtime="sandbox") as engine:
        go = f"{tmp_path}/place/go"
        await engine.create("server", container(f"{LISTEN} & until [ -e {go} ]; do sleep 0.05; done; {_reach('late')}"))
        await engine.said("server")
        before = await engine.pod("server")
        await engine.kill()
        await engine.begin()
        await engine.create("client", container(_reach("server")))
        await engine.until("client", "Succeeded", "Failed")
        assert engine.log("client") == "reached\n"
        await engine.create("late", container(LISTEN))
        await engine.said("late")
        (tmp_path / "place/go").touch()
        await settle(lambda: "reached" in engine.log("server"))
        assert (await engine.pod("server"))["status"]["podIP"] == before["status"]["podIP"]
        late = (await engine.pod("late"))["status"]["podIP"]
        assert late != before["status"]["podIP"]
        assert late.rsplit(".", 2)[0] == before["status"]["podIP"].rsplit(".", 2)[0]


async def test_several_nodes_keep_the_network_that_they_share(tmp_path: Path) -> None:
    async with detached_engine(tmp_path, runtime="sandbox", nodes=2) as engine:
        wait = f"until [ -e {tmp_path}/place/go ]; do sleep 0.05; done"
        await engine.create("server", container(f"{LISTEN} & {wait}; {_reach('late')}; wait"), nodeName="node-0")
        await engine.said("server")
        await engine.kill()
        await engine.begin()
        await engine.create("client", container(_reach("server")), nodeName="node-1")
        await engine.until("client", "Succeeded", "Failed")
        assert engine.log("client") == "reached\n"
        await engine.create("late", container(LISTEN), nodeName="node-1")
        await engine.said("late")
        await asyncio.sleep(0.5)  # the name comes a little later to the other node
        (tmp_path / "place/go").touch()
        await settle(lambda: "reached" in engine.log("server"))
        first = engine.supervisors()["node-1"]
        os.kill(first, signal.SIGKILL)  # its successor joins the same network
        await settle(lambda: engine.supervisors().get("node-1") not in (None, first))
        await engine.create("again", container(_reach("server")), nodeName="node-1")
        await engine.until("again", "Succeeded", "Failed")
        assert engine.log("again") == "reached\n"
        name = network_name(tmp_path)
        assert _listens(name)
        await engine.end(keep_running=True)
        assert _listens(name)
        await engine.begin()
        await engine.end(keep_running=False)
        await settle(lambda: not _listens(name))


def _listens(network: str) -> bool:
    return network in Path("/proc/net/unix").read_text()


async def test_a_sandbox_of_a_dead_supervisor_is_made_again(tmp_path: Path) -> None:
    async with detached_engine(tmp_path, runtime="sandbox") as engine:
        await engine.create("server", container(SLEEP))
        await engine.until("server", "Running")
        await engine.kill()
        os.kill(engine.supervisors()["node-0"], signal.SIGKILL)
        await settle(lambda: engine.supervisors() == {})
        await engine.begin()
        assert (await engine.until("server", "Failed"))["status"]["reason"] == "SupervisorLost"
        await engine.create("client", container("exit 3"))
        await engine.until("client", "Failed")


async def test_pods_whose_network_was_killed_are_lost(tmp_path: Path) -> None:
    """The next engine cannot join that network, so its pods would reach no new pod."""
    async with detached_engine(tmp_path, runtime="sandbox", nodes=2) as engine:
        await engine.create("old", container(SLEEP))
        await engine.until("old", "Running")
        await engine.kill()
        (keeper,) = [pid for pid in _pids() if network_name(tmp_path) in _words(pid)]
        os.kill(keeper, signal.SIGKILL)
        await settle(lambda: not _listens(network_name(tmp_path)))
        await engine.begin()
        assert (await engine.until("old", "Failed"))["status"]["reason"] == "SupervisorLost"
        assert "the process that held their network was killed" in engine.output()
        await engine.create("server", container(LISTEN))
        await engine.said("server")
        await engine.create("client", container(_reach("server")))
        await engine.until("client", "Succeeded", "Failed")
        assert engine.log("client") == "reached\n"


def _pids() -> list[int]:
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
