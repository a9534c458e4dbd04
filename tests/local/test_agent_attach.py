# SPDX-License-Identifier: Apache-2.0
"""An agent that is killed, and its successor: the pods are the same processes, and nothing that happened is lost."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kept_agent import KeptNode, kept_node
from node_agent import alive, container, end, settle

from trainwright.errors import EngineError, UnavailableError
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node import adoption
from trainwright.node.link import SupervisorLink
from trainwright.node.supervisor import identity
from trainwright.runtime.ports import Resource

COUNT = "echo $$; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[KeptNode]:
    async with kept_node(tmp_path) as made:
        yield made


async def test_a_pod_keeps_its_process_and_its_log_has_neither_gap_nor_repetition(node: KeptNode) -> None:
    first = await node.begin_agent()
    node.create(container(COUNT))
    await settle(lambda: node.log().count("line") > 3)
    pid = int(node.log().split()[0])
    await node.kill_agent()
    seen = node.log().count("line")
    await settle(lambda: node.log().count("line") > seen + 3)
    assert await node.begin_agent() == first
    before = node.log().count("line")
    await settle(lambda: node.log().count("line") > before + 3)
    assert alive(pid)
    words = node.log().split("\n")
    assert words[0] == str(pid)
    numbers = [int(one.split()[1]) for one in words[1:-1]]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert node.status()["phase"] == "Running"
    assert node.status()["containerStatuses"][0]["restartCount"] == 0

    os.kill(pid, signal.SIGTERM)
    assert end(await node.until("Failed"))["signal"] == 15


async def test_an_exit_code_of_the_gap_is_reported(node: KeptNode, tmp_path: Path) -> None:
    await node.begin_agent()
    node.create(container(f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 7"))
    await node.until("Running")
    await node.kill_agent()
    (tmp_path / "go").touch()
    await settle(lambda: node.ends_in_journal() == 1)
    await asyncio.sleep(0.3)
    ended = next(iter(node.journal().values()))["ended"]["at"]
    await node.begin_agent()
    found = end(await node.until("Failed"))
    assert (found["exitCode"], found["reason"]) == (7, "Error")
    assert abs(datetime.fromisoformat(found["finishedAt"]).timestamp() - ended) < 0.001
    await settle(lambda: node.journal() == {})


async def test_a_container_that_was_started_but_not_reported_is_not_started_again(
    node: KeptNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is stopped in the middle: the supervisor has its request, the store has not its answer."""
    await node.begin_agent()
    store_patch = node.store.patch

    def without_containers(resource: Resource, key: Key, body: Body, **how: Any) -> Body:
        if "containerStatuses" in body.get("status", {}):
            raise UnavailableError("the store takes no status of a container yet")
        return store_patch(resource, key, body, **how)

    monkeypatch.setattr(node.store, "patch", without_containers)
    node.create(container(f"echo once >> {tmp_path}/starts; exec sleep 60"))
    await settle(node.journal)
    await node.kill_agent()
    monkeypatch.undo()
    assert "containerStatuses" not in node.status()
    await settle(lambda: (tmp_path / "starts").exists() and all(one["pid"] for one in node.journal().values()))
    (entry,) = node.journal().values()
    await node.begin_agent()
    await node.until("Running")
    await asyncio.sleep(0.2)
    assert (tmp_path / "starts").read_text() == "once\n"
    assert [*node.journal().values()] == [entry]


async def test_a_second_agent_cannot_command_the_supervisor_of_the_first(node: KeptNode, tmp_path: Path) -> None:
    await node.begin_agent()
    assert identity.lock_for_agent(str(node.node_folder)) is None
    forged = os.open(tmp_path / "forged", os.O_RDWR | os.O_CREAT)
    with pytest.raises(EngineError, match="another agent commands this supervisor"):
        await SupervisorLink.attach(node.node_folder, forged)
    own = os.open(node.node_folder / "agent.lock", os.O_RDWR)  # the right file, but without the lock
    with pytest.raises(EngineError, match="another agent commands this supervisor"):
        await SupervisorLink.attach(node.node_folder, own)
    for fd in (forged, own):
        os.close(fd)
    node.create(container("exit 3"))
    assert end(await node.until("Failed"))["exitCode"] == 3


async def test_pods_that_are_gone_or_unknown_are_ended(node: KeptNode) -> None:
    await node.begin_agent()
    node.create(container("echo $$; exec sleep 60"))
    await settle(lambda: node.log().strip())
    pid = int(node.log())
    await node.kill_agent()
    node.delete(grace=0)
    assert alive(pid)
    await node.begin_agent()
    await settle(lambda: not alive(pid))
    await settle(lambda: node.journal() == {})


async def test_a_supervisor_that_died_without_an_agent_takes_its_pods_along(node: KeptNode, tmp_path: Path) -> None:
    await node.begin_agent()
    node.create(container("echo $$; exec sleep 60"), name="runs")
    node.create(container(f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 7"), name="ends")
    await node.until("Running", "runs")
    await node.until("Running", "ends")
    await settle(lambda: node.log("runs").strip())
    pid = int(node.log("runs"))
    await node.kill_agent()
    (tmp_path / "go").touch()
    await settle(lambda: node.ends_in_journal() == 1)
    await node.kill_supervisor()
    assert alive(pid)  # nobody has noticed
    await node.begin_agent()
    lost = await node.until("Failed", "runs")
    assert not alive(pid)
    assert lost["reason"] == "SupervisorLost"
    known = await node.until("Failed", "ends")
    assert "reason" not in known
    assert end(known)["exitCode"] == 7
    node.create(container("exit 3"), name="next")
    assert end(await node.until("Failed", "next"))["exitCode"] == 3
    assert not adoption.has_old_journal(node.node_folder)


async def test_after_a_reboot_pods_are_lost_with_their_node_and_nothing_is_killed(node: KeptNode) -> None:
    await node.begin_agent()
    node.create(container("echo $$; exec sleep 60"))
    await settle(lambda: node.log().strip())
    pid = int(node.log())
    await node.kill_agent()
    await node.kill_supervisor()
    lock = node.node_folder / "supervisor.lock"
    boot = identity.boot_id()
    lock.write_text(lock.read_text().replace(boot, "another-boot"))
    try:
        await node.begin_agent()
        lost = await node.until("Failed")
        assert (lost["reason"], "restarted" in lost["message"]) == ("NodeLost", True)
        assert alive(pid)  # after a real reboot, another process may have this mark or this pid
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_ends_are_not_lost_if_agents_are_killed_before_they_can_store_them(
    node: KeptNode, tmp_path: Path
) -> None:
    """A new supervisor begins an empty journal, and its agent may be killed at once."""
    await node.begin_agent()
    node.create(container(f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 7"))
    await node.until("Running")
    await node.kill_agent()
    (tmp_path / "go").touch()
    await settle(lambda: node.ends_in_journal() == 1)
    await node.kill_supervisor()
    config = node.settings.supervisor()
    for _ in range(2):  # the first starts a supervisor, the second attaches to it
        link = await adoption.connect(config)
        assert node.journal() == {}
        await link.close()
    await node.begin_agent()
    assert end(await node.until("Failed"))["exitCode"] == 7


async def test_hooks_run_once_and_probes_go_on(node: KeptNode, tmp_path: Path) -> None:
    hook = {"postStart": {"exec": {"command": ["/bin/sh", "-c", f"echo hook >> {tmp_path}/hooks"]}}}
    probe = {"exec": {"command": ["test", "-e", str(tmp_path / "go")]}, "periodSeconds": 1}
    node.create(container("exec sleep 60", lifecycle=hook, readinessProbe=probe))
    await node.begin_agent()
    await settle(lambda: node.status().get("containerStatuses", [{}])[0].get("started"))
    assert not node.status()["containerStatuses"][0]["ready"]
    await node.kill_agent()
    (tmp_path / "go").touch()
    await node.begin_agent()
    await settle(lambda: node.status()["containerStatuses"][0]["ready"])
    assert (tmp_path / "hooks").read_text() == "hook\n"


async def test_a_hook_that_an_earlier_agent_began_is_not_run_again(node: KeptNode, tmp_path: Path) -> None:
    script = f"echo hook >> {tmp_path}/hooks; sleep 1"
    hook = {"postStart": {"exec": {"command": ["/bin/sh", "-c", script]}}}
    node.create(container("exec sleep 60", lifecycle=hook))
    await node.begin_agent()
    await settle((tmp_path / "hooks").exists)
    await node.kill_agent()
    await node.begin_agent()
    await settle(lambda: node.status().get("containerStatuses", [{}])[0].get("started"))
    assert (tmp_path / "hooks").read_text() == "hook\n"


async def test_a_restart_that_was_not_reported_counts(node: KeptNode, tmp_path: Path) -> None:
    """Both ends are known to the supervisor, and the status tells of the last one."""
    script = f"echo run >> {tmp_path}/runs; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 5"
    node.create(container(script), restartPolicy="OnFailure")
    await node.begin_agent()
    await node.until("Running")
    (tmp_path / "go").touch()
    await settle(lambda: len(node.journal()) > 1)
    await node.kill_agent()
    (tmp_path / "go").unlink()
    before = node.status()["containerStatuses"][0]["restartCount"]
    newest = max(one["restart"] for one in node.journal().values())
    await node.begin_agent()
    await settle(lambda: node.status()["containerStatuses"][0]["restartCount"] >= max(newest, before))
    await settle(lambda: "running" in node.status()["containerStatuses"][0]["state"])
    status = node.status()["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 5
    runs = (tmp_path / "runs").read_text().count("run")
    assert runs == status["restartCount"] + 1
    await settle(lambda: len(node.journal()) == 1)


async def test_a_supervisor_that_does_not_answer_is_fenced(node: KeptNode) -> None:
    supervisor = await node.begin_agent()
    node.create(container("echo $$; exec sleep 60"))
    await node.until("Running")
    pid = int(node.log())
    await node.kill_agent()
    os.kill(supervisor, signal.SIGSTOP)
    assert await node.begin_agent() != supervisor
    assert (await node.until("Failed"))["reason"] == "SupervisorLost"
    assert not alive(pid)
    assert not alive(supervisor)


async def test_a_foreign_socket_is_not_trusted(node: KeptNode) -> None:
    """A process that listens in the place of the supervisor gets no orders."""
    await node.begin_agent()
    await node.kill_agent()
    path = node.node_folder / "supervisor.sock"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as forged:
        forged.bind(str(path))
        forged.listen()
        with pytest.raises(EngineError, match=f"process {os.getpid()} of user"):
            await SupervisorLink.attach(node.node_folder, forged.fileno())


async def test_a_pod_that_is_stopped_and_detached_is_not_stopped_twice(node: KeptNode) -> None:
    node.create(container("trap 'echo term' TERM; echo up; while :; do sleep 0.05; done"))
    await node.begin_agent()
    await settle(lambda: "up" in node.log())
    node.delete(grace=3)
    await settle(lambda: "term" in node.log())
    node.agents[-1].send_signal(signal.SIGUSR1)
    assert await node.agents[-1].wait() == 0
    log = node.log()
    await node.begin_agent()
    await settle(lambda: not node.exists())
    assert log.count("term") == 1


async def test_a_pod_that_was_lost_stays_lost(node: KeptNode) -> None:
    """Whatever happens to later supervisors, and although its containers could be restarted."""
    await node.begin_agent()
    node.create(container("exec sleep 60"), restartPolicy="OnFailure")
    await node.until("Running")
    lost = None
    for number in range(2):
        await node.kill_agent()
        await node.kill_supervisor()
        await node.begin_agent()
        lost = lost or await node.until("Failed")
        node.create(container("exec sleep 60"), name=f"next-{number}")
        await node.until("Running", f"next-{number}")
    await settle(lambda: not adoption.has_old_journal(node.node_folder))
    assert node.status() == lost
