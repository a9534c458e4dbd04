# SPDX-License-Identifier: Apache-2.0
"""The agent where it stands in for a kubelet, on an API server that others use too."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from node_agent import NODE, AgentRig, agent_rig, container, end, manifest, settings, settle, waiting

from trainwright.errors import NotFoundError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node.agent import admission_order, admission_refusal
from trainwright.node.devices.inventory import GPU, DeviceSet
from trainwright.runtime.ports import LEASES, NODES, PODS, WallClock

LEASE = Key("kube-node-lease", NODE)
MOUNTING = {"name": "i", "volumeMounts": [{"name": "w", "mountPath": "/w"}]}


async def test_the_node_has_what_a_kubelet_says_and_a_lease(tmp_path: Path) -> None:
    taint = {"key": "a", "effect": "NoSchedule"}
    async with agent_rig(tmp_path, kubelet=True, heartbeat=0.02, port=10250, taints=(taint,)) as node:
        found = node.store.get(NODES.whole(), Key("", NODE))
        lease = node.store.get(LEASES.whole(), LEASE)
        await settle(lambda: renewed(node) != lease["spec"]["renewTime"])

    kinds = [one["type"] for one in found["status"]["conditions"]]
    assert kinds == ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
    assert found["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    assert found["spec"]["taints"] == [taint]
    assert lease["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == (NODE, 40)


def renewed(node: AgentRig) -> str:
    return str(node.store.get(LEASES.whole(), LEASE)["spec"]["renewTime"])


async def test_a_node_whose_lease_is_gone_is_made_anew(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, kubelet=True, heartbeat=0.02) as node:
        node.store.delete(NODES.whole(), Key("", NODE))
        await settle(lambda: ready(node) == "True")


def ready(node: AgentRig) -> str:
    try:
        found = node.store.get(NODES.whole(), Key("", NODE))
    except NotFoundError:
        return ""
    return next((str(one["status"]) for one in found["status"].get("conditions", []) if one["type"] == "Ready"), "")


async def test_an_agent_that_leaves_says_so_and_why_its_pods_ended(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, kubelet=True) as node:
        node.run(container("trap 'echo saved; exit 0' TERM; echo began; while :; do sleep 0.02; done"))
        await node.phase("Running")
        await settle(lambda: "began" in node.log())
        await node.agent.leave(None, remove=False)
        status = node.status()
        assert (status["phase"], status["reason"]) == ("Failed", "Terminated")
        assert end(status)["exitCode"] == 0
        assert "saved" in node.log()
        assert ready(node) == "False"


async def test_an_agent_that_ends_since_its_supervisor_did_says_that(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, kubelet=True) as node:
        os.kill(node.agent.context.link.process.pid, signal.SIGKILL)
        await settle(lambda: not node.agent.context.link.alive)
        await node.agent.leave(0, remove=False)
        found = node.store.get(NODES.whole(), Key("", NODE))["status"]["conditions"]
        assert [one["reason"] for one in found if one["type"] == "Ready"] == ["SupervisorLost"]


async def test_an_agent_may_take_its_node_along(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, kubelet=True) as node:
        await node.agent.leave(0, remove=True)
        assert ready(node) == ""


async def test_what_ran_before_has_failed_where_it_may_not_run_again(tmp_path: Path) -> None:
    store = Store(WallClock())
    running = {"name": "main", "restartCount": 2, "state": {"running": {"startedAt": "2026-11-15T12:00:00Z"}}}
    for name, policy in (("again", "OnFailure"), ("never", "Never")):
        store.create(PODS.whole(), manifest(name=name, restartPolicy=policy))
        status = {"phase": "Running", "startTime": "2026-11-15T12:00:00Z", "containerStatuses": [running]}
        store.patch(PODS.whole(), Key("space", name), {"status": status}, status=True)
    async with agent_rig(tmp_path, lambda _: LocalCluster(store), kubelet=True) as node:
        node.store = store
        never, again = await node.phase("Failed", "never"), await node.phase("Succeeded", "again")

    assert (never["reason"], end(never)["reason"]) == ("NodeLost", "ContainerStatusUnknown")
    assert again["containerStatuses"][0]["restartCount"] == 3


async def test_pods_beyond_what_the_node_has_are_refused_and_the_others_run(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, kubelet=True) as node:
        for name in ("first", "second"):
            node.run(container("exec sleep 60", resources={"requests": {"cpu": "3"}}), name=name)
        await node.phase("Running", "first")
        status = await node.phase("Failed", "second")
        node.delete("first", grace=0)
        await node.gone("first")
        node.run(container(resources={"requests": {"cpu": "3"}}), name="third")
        await node.phase("Succeeded", "third")

    assert status["reason"] == "OutOfcpu"
    assert status["message"].endswith("cpu, requested: 3, free: 1")


async def test_the_message_from_a_log_has_no_timestamps(tmp_path: Path) -> None:
    """The log file has them, for `kubectl logs --timestamps`."""
    async with agent_rig(tmp_path, kubelet=True) as node:
        node.run(container("echo one; echo MemoryError; exit 1", terminationMessagePolicy="FallbackToLogsOnError"))
        status = await node.phase("Failed")

    assert end(status)["message"] == "one\nMemoryError"


async def test_only_conditions_of_our_own_are_written(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, kubelet=True) as node:
        body = node.run(container("exec sleep 60"))
        await node.phase("Running")
        worker = node.agent.worker(Key("space", "pod"))
        assert worker is not None
        gate = {"type": "gate", "status": "True"}
        worker.pod.body = {**body, "status": {"conditions": [gate, {"type": "PodScheduled", "status": "True"}]}}
        kinds = [one["type"] for one in worker.pod.report.compose()["conditions"]]

    assert kinds == ["Initialized", "ContainersReady", "Ready"]


async def test_logs_go_with_their_pod_and_those_of_pods_that_went_before(tmp_path: Path) -> None:
    old = tmp_path / "logs" / "old" / "12345678-main-0.log"
    gone = tmp_path / "pods" / "12345678-1234" / "volumes"
    old.parent.mkdir(parents=True)
    gone.mkdir(parents=True)
    old.write_text("words\n")
    async with agent_rig(tmp_path, kubelet=True) as node:
        node.run(container("echo words"))
        await node.phase("Succeeded")
        assert node.log().endswith("Z words\n")
        assert not old.parent.exists()
        assert not gone.parent.exists()
        node.delete()
        await settle(lambda: not (tmp_path / "logs" / "pod").exists())


def body(**spec: Any) -> Body:
    return manifest(**spec)


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        ({}, "", ""),
        ({"initContainers": [{"name": "i", "restartPolicy": "Always"}]}, "UnsupportedPod", "spec.initContainers[0]"),
        ({"hostPID": True}, "UnsupportedPod", "spec.hostPID"),
        ({"volumes": [{"name": "v", "nfs": {}}]}, "UnsupportedPod", "spec.volumes[0].nfs"),
        ({"volumes": [{"name": "other", "nfs": {}}]}, "", ""),
        (
            {"initContainers": [MOUNTING], "volumes": [{"name": "w", "nfs": {}}]},
            "UnsupportedPod",
            "spec.volumes[0].nfs",
        ),
        ({"securityContext": {"runAsUser": 0}}, "", ""),
        ({"securityContext": {"runAsUser": 7}}, "UnsupportedPod", "spec.containers[0].securityContext.runAsUser: 7"),
        ({"securityContext": {"runAsNonRoot": True}}, "UnsupportedPod", "securityContext.runAsNonRoot"),
        ({"overhead": {"memory": "9Gi"}}, "OutOfmemory", "requested: 9Gi, free: 8Gi"),
        ({"overhead": {"example.com/x": "1"}}, "OutOfexample.com/x", "free: 0"),
    ],
    ids=[
        "fits",
        "sidecar",
        "pids",
        "volume",
        "unmounted",
        "init volume",
        "user",
        "other user",
        "not root",
        "memory",
        "unknown",
    ],
)
def test_what_an_agent_cannot_give(tmp_path: Path, spec: Body, reason: str, text: str) -> None:
    given = settings(tmp_path, kubelet=True, runtime="sandbox")
    told = admission_refusal(body(**spec) if "volumes" not in spec else mounting(spec), [], given)

    assert (told.reason if told else "") == reason
    assert text in (told.message if told else "")


def mounting(spec: Body) -> Body:
    return manifest(container(volumeMounts=[{"name": "v", "mountPath": "/v"}]), **spec)


def test_those_that_were_taken_before_come_first() -> None:
    taken = {"metadata": {"name": "z", "creationTimestamp": "2"}, "status": {"startTime": "3"}}
    older = {"metadata": {"name": "b", "creationTimestamp": "1"}}
    newer = {"metadata": {"name": "a", "creationTimestamp": "2"}, "status": {}}

    assert sorted([newer, older, taken], key=admission_order) == [taken, older, newer]


async def test_agents_of_one_machine_do_not_give_one_device_twice(tmp_path: Path) -> None:
    """Each was given a pod by its own scheduler, which knows nothing of the other's."""
    offer: dict[str, Any] = {"kubelet": True, "devices": {GPU: DeviceSet(("0", "1"), ("CUDA_VISIBLE_DEVICES",))}}
    offer["capacity"] = {"cpu": "4", "memory": "8Gi", "pods": "110", GPU: "2"}
    both, one = {"limits": {GPU: 2}}, {"limits": {GPU: 1}}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with agent_rig(tmp_path / "a", **offer) as first, agent_rig(tmp_path / "b", **offer) as second:
        go = tmp_path / "go"
        first.run(container(f"until [ -e {go} ]; do sleep 0.02; done", resources=one))
        await first.phase("Running")
        second.run(container("echo $CUDA_VISIBLE_DEVICES", resources=one), name="one")
        await second.phase("Succeeded", "one")
        assert second.log("one").endswith(" 1\n")
        second.run(container("echo $CUDA_VISIBLE_DEVICES", resources=both), name="both")
        await settle(lambda: "held by" in waiting(second.status("both")).get("message", ""))
        told = waiting(second.status("both"))["message"]
        assert told.startswith("spec.containers: the requested devices (2 of 2 nvidia.com/gpu; 0 held by ")
        go.touch()
        await second.phase("Succeeded", "both")
        assert second.log("both").endswith(" 0,1\n")
