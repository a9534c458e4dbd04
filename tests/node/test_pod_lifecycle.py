# SPDX-License-Identifier: Apache-2.0
"""A pod's life on a node, with real processes: how it runs, is restarted, fails and ends."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace
from node_agent import PACE, AgentRig, agent_rig, alive, container, end, manifest, settle, state, waiting

from patience import PATIENCE
from trainwright.model.meta import Key
from trainwright.node.devices.inventory import GPU, KNOWN_VARIABLES, DeviceSet
from trainwright.node.supervisor import journal
from trainwright.node.worker import PodWorker
from trainwright.runtime.ports import NODES, PODS, SECRETS


async def test_a_pod_that_ends_well_has_succeeded_and_says_everything_a_kubelet_would(node: AgentRig) -> None:
    node.run(container("echo hello; echo trouble >&2"))

    status = await node.phase("Succeeded")

    uid = node.pod()["metadata"]["uid"]
    assert end(status)["exitCode"] == 0
    assert end(status)["reason"] == "Completed"
    assert end(status)["containerID"] == status["containerStatuses"][0]["containerID"] == f"trainwright://{uid}-main-0"
    assert (status["podIP"], status["podIPs"]) == ("127.3.0.7", [{"ip": "127.3.0.7"}])
    assert status["hostIP"] == "127.0.0.1"
    assert status["startTime"]
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": "False",
        "Ready": "False",
    }
    assert node.log() == "hello\ntrouble\n"
    assert node.notices == ["image is not used by the process runtime: commands run with this machine's programs"]


async def test_a_pod_that_starts_and_ends_in_no_time_is_one_write(node: AgentRig) -> None:
    await asyncio.sleep(0.05)
    before = int(node.store.version)
    node.run({"name": "main", "command": ["true"]})
    await node.phase("Succeeded")
    await asyncio.sleep(0.05)
    assert int(node.store.version) - before == 2  # the pod, and its end


ENDS = {
    "exit code": ("exit 3", 3, 0, "Error"),
    "its own SIGTERM": ("kill -TERM $$", 143, 15, "Error"),
    "its own SIGKILL": ("kill -KILL $$", 137, 9, "Error"),
    "the code of a signal": ("exit 137", 137, 0, "Error"),
    "a command its shell cannot find": ("exec no-such-program", 127, 0, "Error"),
}


@pytest.mark.parametrize(("script", "code", "signalled", "reason"), ENDS.values(), ids=ENDS.keys())
async def test_a_container_that_ends_badly(node: AgentRig, script: str, code: int, signalled: int, reason: str) -> None:
    node.run(container(script))
    status = await node.phase("Failed")
    assert (end(status)["exitCode"], end(status).get("signal", 0), end(status)["reason"]) == (code, signalled, reason)


async def test_programs_that_cannot_be_run_have_ended_with_the_reason(node: AgentRig, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no program")
    node.run({"name": "main", "command": ["no-such-program"]}, name="missing")
    node.run({"name": "main", "command": [f"{tmp_path}/notes"]}, name="plain")
    node.run({"name": "main", "command": ["true"], "workingDir": "/nowhere/at/all"}, name="homeless")

    missing, plain = end(await node.phase("Failed", "missing")), end(await node.phase("Failed", "plain"))
    homeless = end(await node.phase("Failed", "homeless"))

    assert (missing["exitCode"], missing["reason"]) == (127, "ContainerCannotRun")
    assert "no-such-program" in missing["message"]
    assert (plain["exitCode"], plain["reason"]) == (126, "ContainerCannotRun")
    assert (homeless["exitCode"], homeless["reason"]) == (128, "StartError")
    assert "/nowhere/at/all" in homeless["message"]


async def test_init_containers_run_one_after_the_other_before_the_rest(node: AgentRig, tmp_path: Path) -> None:
    def note(word: str) -> str:
        return f"echo {word} >> {tmp_path}/order; sleep 0.05"

    inits = [container(note("one"), "one"), container(note("two"), "two")]
    node.run(container(note("main")), initContainers=inits)

    status = await node.phase("Succeeded")

    assert (tmp_path / "order").read_text().split() == ["one", "two", "main"]
    assert [one["state"]["terminated"]["exitCode"] for one in status["initContainerStatuses"]] == [0, 0]


async def test_a_failed_init_container_fails_a_pod_that_is_not_restarted(node: AgentRig) -> None:
    node.run(container("exit 0"), initContainers=[container("exit 4", "first"), container("exit 0", "second")])
    status = await node.phase("Failed")
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert status["initContainerStatuses"][1]["state"]["waiting"]["reason"] == "ContainerCreating"
    assert waiting(status)["reason"] == "PodInitializing"


async def test_a_failed_init_container_is_tried_again_where_the_policy_says_so(node: AgentRig, tmp_path: Path) -> None:
    script = f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit 1; }}"
    node.run(container("exit 0"), initContainers=[container(script, "first")], restartPolicy="OnFailure")
    status = await node.phase("Succeeded")
    assert status["initContainerStatuses"][0]["restartCount"] == 1


async def test_several_containers_run_together_and_all_must_end(node: AgentRig) -> None:
    node.run(container("exit 1", "one"), container("sleep 0.2", "two"))
    await node.until(lambda status: "containerStatuses" in status and "terminated" in state(status))
    assert node.status()["phase"] == "Running"
    status = await node.phase("Failed")
    assert [end(status, 0)["exitCode"], end(status, 1)["exitCode"]] == [1, 0]


async def test_on_failure_restarts_at_once_then_backs_off_and_counts(node: AgentRig, tmp_path: Path) -> None:
    node.run(container(f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) -ge 3"), restartPolicy="OnFailure")

    crashed = await node.until(lambda status: waiting(status).get("reason") == "CrashLoopBackOff")
    assert crashed["phase"] == "Running"
    assert crashed["containerStatuses"][0]["restartCount"] == 1
    assert crashed["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert waiting(crashed)["message"].startswith("back-off 0.1s restarting failed container=main pod=pod_space(")

    status = await node.phase("Succeeded")
    assert status["containerStatuses"][0]["restartCount"] == 2
    assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert node.log(restart=2) == ""


async def test_always_restarts_even_what_ended_well(node: AgentRig) -> None:
    node.run(container("exit 0"), restartPolicy="Always")
    status = await node.until(lambda status: "containerStatuses" in status and restarts(status) >= 2)
    assert status["phase"] == "Running"


def restarts(status: dict) -> int:  # type: ignore[type-arg]
    return int(status["containerStatuses"][0]["restartCount"])


async def test_a_calm_time_makes_the_back_off_short_again(tmp_path: Path) -> None:
    async with agent_rig(
        tmp_path, delays=replace(PACE, restart_backoff=60.0, max_restart_backoff=60.0, backoff_reset=0.05)
    ) as node:
        node.run(container("sleep 0.1; exit 1"), restartPolicy="OnFailure")
        await node.until(lambda status: "containerStatuses" in status and restarts(status) >= 3)


async def test_kill_minus_nine_from_outside_is_seen_as_one_and_answered(node: AgentRig) -> None:
    node.run(container("echo $$; exec sleep 60"), restartPolicy="OnFailure")
    await node.phase("Running")
    await settle(lambda: node.log().strip())
    os.kill(int(node.log()), signal.SIGKILL)
    status = await node.until(lambda status: restarts(status) == 1 and "running" in state(status))
    assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137


async def test_what_the_main_process_leaves_behind_ends_with_it(node: AgentRig, tmp_path: Path) -> None:
    node.run(container(f"sleep 60 & echo $! > {tmp_path}/child"))
    await node.phase("Succeeded")
    child = int((tmp_path / "child").read_text())
    await settle(lambda: not alive(child))


async def test_a_deleted_pod_ends_by_sigterm_and_is_gone(node: AgentRig) -> None:
    node.run(container("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done"))
    await node.phase("Running")
    await settle(node.log)
    log = next((node.folder / "logs" / "pod").glob("*.log"))
    before = asyncio.get_running_loop().time()
    node.delete()
    await node.gone()
    assert asyncio.get_running_loop().time() - before < 20
    assert log.read_text() == "up\nbye\n"


async def test_the_last_status_of_a_deleted_pod_is_stored_before_it_goes(node: AgentRig) -> None:
    node.run(container("exec sleep 60"), restartPolicy="Always")
    node.store.patch(PODS.whole(), Key("space", "pod"), {"metadata": {"finalizers": ["example.com/wait"]}})
    await node.phase("Running")
    node.delete(grace=5)
    status = await node.phase("Failed")
    assert (end(status)["exitCode"], end(status)["signal"]) == (143, 15)


async def test_what_ignores_sigterm_is_killed_with_its_whole_tree_after_the_grace_period(
    node: AgentRig, tmp_path: Path
) -> None:
    node.run(container(f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/child; wait; wait"))
    await node.phase("Running")
    await settle(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    child = int((tmp_path / "child").read_text())
    before = asyncio.get_running_loop().time()
    node.delete(grace=1)
    await node.gone()
    assert 0.9 < asyncio.get_running_loop().time() - before < 30
    await settle(lambda: not alive(child))


async def test_a_shorter_grace_period_overtakes_a_longer_one(node: AgentRig) -> None:
    node.run(container("trap '' TERM; while :; do sleep 0.05; done"))
    await node.phase("Running")
    node.delete(grace=60)
    await asyncio.sleep(0.1)
    before = asyncio.get_running_loop().time()
    node.delete(grace=1)
    await node.gone()
    assert asyncio.get_running_loop().time() - before < 30


async def test_an_object_that_vanishes_takes_its_processes_along_at_once(node: AgentRig) -> None:
    node.run(container("trap '' TERM; echo $$; while :; do sleep 0.05; done"))
    await node.phase("Running")
    await settle(lambda: node.log().strip())
    pid = int(node.log())
    node.delete(grace=0)
    await settle(lambda: not alive(pid))


async def test_a_new_pod_of_the_same_name_waits_until_the_old_one_has_ended(node: AgentRig, tmp_path: Path) -> None:
    script = f"mkdir {tmp_path}/lock || exit 9; trap '' TERM; sleep 0.3; exec sleep 60"
    node.run(container(script))
    await node.phase("Running")
    await settle((tmp_path / "lock").exists)
    node.delete(grace=0)
    (tmp_path / "lock").rmdir()
    node.run(container(script))
    await node.phase("Running")
    await settle((tmp_path / "lock").exists)


async def test_a_pod_begins_only_when_nothing_is_left_of_the_one_before(node: AgentRig) -> None:
    left = asyncio.Event()
    before = asyncio.create_task(wait_for(left))
    body = manifest(name="apart")
    body["spec"]["nodeName"] = "nobody"
    worker = PodWorker(node.create(PODS, body), node.agent.context, before)
    await asyncio.sleep(0.1)
    assert node.status("apart") == {"phase": "Pending"}
    left.set()
    await node.phase("Succeeded", "apart")
    assert worker.object_gone() is None


async def wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def test_pre_stop_runs_before_sigterm_and_within_the_grace_period(node: AgentRig, tmp_path: Path) -> None:
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", f"echo hook >> {tmp_path}/order"]}}}
    trap = f"trap 'echo term >> {tmp_path}/order; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    node.run(container(trap, lifecycle=hook))
    await node.phase("Running")
    await settle(lambda: node.log().strip())
    node.delete(grace=10)
    await node.gone()
    assert (tmp_path / "order").read_text().split() == ["hook", "term"]


async def test_a_pre_stop_that_takes_too_long_is_cut_off(node: AgentRig, tmp_path: Path) -> None:
    hook = {"preStop": {"exec": {"command": ["sleep", "60"]}}}
    trap = f"trap 'echo term >> {tmp_path}/order; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    node.run(container(trap, lifecycle=hook))
    await node.phase("Running")
    await settle(lambda: node.log().strip())
    node.delete(grace=1)
    await node.gone()
    assert (tmp_path / "order").read_text().split() == ["term"]


async def test_a_pod_past_its_deadline_has_failed(node: AgentRig) -> None:
    script = "trap 'sleep 0.2; exit 7' TERM; while :; do sleep 0.02; done"
    node.run(container(script), activeDeadlineSeconds=2, terminationGracePeriodSeconds=5)
    await node.phase("Running")
    status = await node.phase("Failed")
    assert status["reason"] == "DeadlineExceeded"
    assert end(status)["exitCode"] == 7


async def test_a_finished_pod_that_is_deleted_goes_at_once(node: AgentRig) -> None:
    node.run()
    await node.phase("Succeeded")
    node.delete()
    await node.gone()
    await settle(lambda: not node.agent._workers)


async def test_a_pod_that_cannot_be_configured_waits_says_why_and_runs_once_it_can(node: AgentRig) -> None:
    node.create(SECRETS, {"metadata": {"name": "tokens", "namespace": "space"}, "data": {"key": "aGk="}})
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}}]
    node.run(container("echo $TOKEN", env=env))

    status = await node.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError")
    assert status["phase"] == "Pending"
    assert waiting(status)["message"] == (
        "spec.containers[0].env[0].valueFrom.secretKeyRef.name: there is no Secret 'token' in namespace 'space';"
        " did you mean `tokens`?"
    )

    node.create(SECRETS, {"metadata": {"name": "token", "namespace": "space"}, "data": {"key": "c2VjcmV0"}})
    await node.phase("Succeeded")
    assert node.log() == "secret\n"


async def test_a_pod_that_cannot_be_configured_can_be_deleted(node: AgentRig) -> None:
    node.run({"name": "main", "image": "some/image"})
    status = await node.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError")
    assert waiting(status)["message"].startswith("spec.containers[0].command: missing; the image is not used")
    node.delete()
    await node.gone()


async def test_native_sidecars_are_refused_with_a_sentence(node: AgentRig) -> None:
    node.run(container(), initContainers=[container("sleep 60", "side", restartPolicy="Always")])
    status = await node.until(lambda status: status.get("initContainerStatuses"))
    message = status["initContainerStatuses"][0]["state"]["waiting"]["message"]
    assert message.startswith("spec.initContainers[0].restartPolicy: Always is not supported")


async def test_what_is_mounted_nowhere_is_refused_in_the_process_runtime(node: AgentRig) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    node.run(container("exit 0", volumeMounts=mounts), volumes=[{"name": "data", "emptyDir": {}}])
    status = await node.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError")
    assert "--runtime sandbox" in waiting(status)["message"]


async def test_a_port_that_is_taken_is_explained(node: AgentRig) -> None:
    node.run(container("echo 'OSError: [Errno 98] Address already in use' >&2; exit 1"))
    status = await node.phase("Failed")
    assert end(status)["message"] == (
        "Address already in use: another process on this machine already listens on that port;"
        ' "--runtime sandbox" gives every replica its own network'
    )


async def test_the_end_of_the_log_is_the_message_where_the_pod_asks_for_it(node: AgentRig) -> None:
    node.run(container("echo one; echo two; exit 1", terminationMessagePolicy="FallbackToLogsOnError"), name="asks")
    node.run(container("echo one; exit 1"), name="silent")
    assert end(await node.phase("Failed", "asks"))["message"] == "one\ntwo"
    assert "message" not in end(await node.phase("Failed", "silent"))


async def test_a_container_that_takes_too_much_memory_is_said_to_be_killed_for_it(node: AgentRig) -> None:
    hold = "import time; x = bytearray(100 << 20); x[::4096] = b'y' * len(x[::4096]); time.sleep(300)"
    node.run(container(f'exec python3 -c "{hold}"', resources=limit("24Mi")))
    status = await node.phase("Failed")
    assert (end(status)["exitCode"], end(status)["reason"]) == (137, "OOMKilled")


def limit(memory: str) -> dict[str, dict[str, str]]:
    return {"limits": {"memory": memory, "cpu": "1"}}


async def test_fields_that_have_no_effect_are_named_once(node: AgentRig) -> None:
    for index in range(2):
        node.run(name=f"pod-{index}", securityContext={"runAsUser": 1}, hostAliases=[{"ip": "1.2.3.4"}])
    await node.phase("Succeeded", "pod-1")
    told = [notice for notice in node.notices if "ignored" in notice]
    assert told[0] == "spec.hostAliases, spec.securityContext: ignored on this node"


async def test_a_pod_that_cannot_be_read_stops_nothing(node: AgentRig) -> None:
    broken = manifest(name="broken")
    del broken["spec"]["containers"]
    node.create(PODS, broken)
    node.run()
    await node.phase("Succeeded")
    assert any("pod space/broken cannot be run" in notice for notice in node.notices)


async def test_gpus_are_handed_out_and_given_back(tmp_path: Path) -> None:
    show = "echo $CUDA_VISIBLE_DEVICES/$NVIDIA_VISIBLE_DEVICES"
    one = {"limits": {"nvidia.com/gpu": 1}}
    async with agent_rig(tmp_path, devices={GPU: DeviceSet(("0", "1", "2"), KNOWN_VARIABLES[GPU])}) as node:
        node.run(container(f"{show}; sleep 0.2", resources=one), container(show, "other", resources=one), name="two")
        await node.phase("Running", "two")
        node.run(container(show, resources=one), name="one")
        node.run(container(show), name="none")
        for name in ("two", "one", "none"):
            await node.phase("Succeeded", name)
        assert (node.log("two"), node.log("two", "other")) == ("0/0\n", "1/1\n")
        assert (node.log("one"), node.log("none")) == ("2/2\n", "/\n")
        node.run(container(show, resources={"limits": {"nvidia.com/gpu": 3}}), name="all")
        await node.phase("Succeeded", "all")
        assert node.log("all") == "0,1,2/0,1,2\n"


async def test_the_node_is_registered_with_what_it_offers(node: AgentRig) -> None:
    found = node.store.get(NODES.whole(), Key("", "node-0"))
    assert found["metadata"]["labels"]["kubernetes.io/hostname"] == "node-0"
    assert found["status"]["allocatable"] == {"cpu": "4", "memory": "8Gi", "pods": "110"}
    assert [(one["type"], one["status"]) for one in found["status"]["conditions"]] == [("Ready", "True")]


async def test_heartbeats_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, heartbeat=0.05) as node:

        def beat() -> str:
            status = node.store.get(NODES.whole(), Key("", "node-0"))["status"]
            return str(status["conditions"][0]["lastHeartbeatTime"])

        first = beat()
        await settle(lambda: beat() > first)


async def test_a_dead_supervisor_fails_its_pods_and_its_node(node: AgentRig) -> None:
    node.run(container("echo $$; exec sleep 60"), restartPolicy="Always")
    await node.phase("Running")
    await settle(lambda: node.log().strip())
    os.kill(node.agent.context.link.process.pid, signal.SIGKILL)
    status = await node.phase("Failed")
    assert status["reason"] == "SupervisorLost"
    assert (end(status)["exitCode"], end(status)["reason"]) == (137, "SupervisorLost")
    await settle(lambda: not alive(int(node.log())))
    node.run(name="later")
    assert (await node.phase("Failed", "later"))["reason"] == "SupervisorLost"
    found = node.store.get(NODES.whole(), Key("", "node-0"))
    assert found["status"]["conditions"][0]["status"] == "False"


async def test_a_pod_that_arrives_between_the_loss_of_the_supervisor_and_the_end_of_the_agent_has_a_reason(
    node: AgentRig,
) -> None:
    os.kill(node.agent.context.link.process.pid, signal.SIGKILL)
    await settle(lambda: not node.agent.context.link.alive)
    # The agent of this test runs no pod of another node, so this test is the agent of that pod.
    removing = asyncio.create_task(asyncio.sleep(PATIENCE))  # so the pod does not ask the supervisor for anything yet
    worker = PodWorker(node.run(nodeName="other"), node.agent.context, removing)
    stopping = worker.agent_stopping(0)
    assert stopping is not None
    await stopping
    removing.cancel()
    assert (node.status()["phase"], node.status().get("reason")) == ("Failed", "SupervisorLost")


async def test_a_stopped_supervisor_is_killed_with_its_pods(tmp_path: Path) -> None:
    """Also a process that has left its session and forgotten whose it is; and only then the pod has failed."""
    stray = "echo $$; exec env -u TRAINWRIGHT_CONTAINER setsid sh -c 'echo $$; sleep 60; true'"
    async with agent_rig(tmp_path, silence_grace=0.5) as node:
        node.run(container(f"{stray} & exec sleep 60"), restartPolicy="Always")
        await settle(lambda: "pod" in [path.name for path in (tmp_path / "logs").glob("*")] and len(words(node)) == 2)
        pids = [int(word) for word in words(node)]
        supervisor = node.agent.context.link.process.pid
        os.kill(supervisor, signal.SIGSTOP)
        status = await node.phase("Failed")
        assert [alive(pid) for pid in pids] == [False, False]
        assert status["reason"] == "SupervisorLost"
        told = f"the supervisor (process {supervisor}) is stopped and has not answered for 0."
        assert status["message"].startswith(told)
        assert status["message"].endswith("it and its pods were killed")


def words(node: AgentRig) -> list[str]:
    return node.log().split()


async def test_a_supervisor_that_goes_on_in_time_keeps_its_pods(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, silence_grace=30.0) as node:
        node.run(container("echo $$; exec sleep 60"))
        await node.phase("Running")
        supervisor = node.agent.context.link.process.pid
        os.kill(supervisor, signal.SIGSTOP)
        await asyncio.sleep(2)
        os.kill(supervisor, signal.SIGCONT)
        await asyncio.sleep(1.5)
        assert node.status()["phase"] == "Running"
        assert node.agent.context.link.alive


@pytest.mark.parametrize("kubelet", [False, True])
async def test_an_agent_whose_supervisor_is_stopped_can_end(tmp_path: Path, *, kubelet: bool) -> None:
    async with agent_rig(tmp_path, silence_grace=0.5, kubelet=kubelet) as node:
        node.run(container("echo $$; exec sleep 60"))
        await node.phase("Running")
        await settle(lambda: node.log().strip())
        pid = int(words(node)[-1])
        os.kill(node.agent.context.link.process.pid, signal.SIGSTOP)
        await asyncio.wait_for(node.agent.stop(None), PATIENCE)
        assert not alive(pid)


async def test_what_another_agent_left_running_is_lost_and_restarted_by_its_policy(tmp_path: Path) -> None:
    running = {"name": "main", "restartCount": 2, "state": {"running": {"startedAt": "2026-11-15T12:00:00Z"}}}
    async with agent_rig(tmp_path) as node:
        for name, policy in (("again", "OnFailure"), ("never", "Never")):
            body = manifest(name=name, restartPolicy=policy)
            body["spec"]["nodeName"] = "elsewhere"
            node.create(PODS, body)
            status = {"phase": "Running", "containerStatuses": [running]}
            node.store.patch(PODS.whole(), Key("space", name), {"status": status}, status=True)
            node.store.patch(PODS.whole(), Key("space", name), {"spec": {"nodeName": "node-0"}})
        never, again = await node.phase("Failed", "never"), await node.phase("Succeeded", "again")
        assert (end(never)["exitCode"], end(never)["reason"]) == (137, "ContainerStatusUnknown")
        assert again["containerStatuses"][0]["restartCount"] == 3


async def test_the_agent_ends_its_pods_with_itself(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as node:
        node.run(container("echo $$; exec sleep 60"))
        await node.phase("Running")
        await settle(lambda: node.log().strip())
        pid = int(node.log())
        await node.agent.stop(grace=5)
        assert not alive(pid)
        assert end(node.status())["exitCode"] == 143


async def test_hundreds_of_short_pods_leave_nothing_behind(node: AgentRig) -> None:
    for index in range(200):
        node.run({"name": "main", "command": ["true"]}, name=f"pod-{index}")
    for index in range(200):
        await node.phase("Succeeded", f"pod-{index}")
        node.delete(f"pod-{index}")
    await settle(lambda: not node.agent._workers)
    link = node.agent.context.link
    assert not link.on_ended
    await settle(lambda: not link._pending)
    await link.ping()  # requests are carried out in order: everything was forgotten before this answer
    assert journal.read(str(link.folder / "journal")) == {}
    assert not (node.folder / "pods").exists()
