# SPDX-License-Identifier: Apache-2.0
"""Pods in sandboxes: addresses, names, volumes and last words, with real namespaces."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from node_agent import AgentRig, agent_rig, container, end, settle, waiting

from trainwright.errors import EngineError
from trainwright.model.meta import Key
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, PODS, SECRETS, SERVICES

#: One per test process, so that they do not meet.
NUMBER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
NETWORK = f"10.{240 + NUMBER % 10}"


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[AgentRig]:
    network = {"subnet": f"{NETWORK}.0.0/16", "holder": None}
    made = agent_rig(tmp_path, runtime="sandbox", network=network, outside=False, visible=(str(tmp_path),))
    try:
        node = await made.__aenter__()
    except EngineError as error:
        pytest.skip(str(error))
    yield node
    await made.__aexit__(None, None, None)


def run(box: AgentRig, name: str, last: int, *containers: dict[str, Any], net: str = NETWORK, **spec: Any) -> None:
    meta = {"name": name, "namespace": "space", "labels": {"name": name}}
    meta["annotations"] = {"trainwright.dev/address": f"{net}.1.{last}"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    box.create(
        PODS, {**body, "spec": {"nodeName": "node-0", "restartPolicy": "Never", "containers": containers, **spec}}
    )


async def test_a_pod_has_its_own_address_and_name_and_finds_others_in_all_four_forms(box: AgentRig) -> None:
    selector = {"spec": {"selector": {"name": "peer"}}}
    box.create(SERVICES, {"metadata": {"name": "front", "namespace": "space"}, **selector})
    run(box, "peer", 2, container("exec sleep 60"))
    forms = ("", ".space", ".space.svc", ".space.svc.cluster.local")
    names = " ".join(f"{name}{form}" for name in ("peer", "front") for form in forms)
    run(
        box,
        "pod",
        3,
        container(f"hostname; for name in {names} pod; do getent ahostsv4 $name | head -n 1 | cut -d' ' -f1; done"),
    )

    status = await box.phase("Succeeded")

    assert box.log().split() == ["pod", *[f"{NETWORK}.1.2"] * 8, f"{NETWORK}.1.3"]
    assert status["podIP"] == f"{NETWORK}.1.3"


async def test_names_that_come_later_are_seen_in_a_running_pod(box: AgentRig) -> None:
    run(box, "pod", 3, container("until getent ahostsv4 late; do sleep 0.02; done"))
    await box.phase("Running")
    run(box, "late", 4, container())
    await box.phase("Succeeded")
    assert box.log().split()[0] == f"{NETWORK}.1.4"


async def test_volumes_are_at_their_mount_paths(box: AgentRig, tmp_path: Path) -> None:
    meta = {"namespace": "space"}
    box.create(CONFIG_MAPS, {"metadata": {**meta, "name": "config"}, "data": {"a.txt": "configured"}})
    box.create(SECRETS, {"metadata": {**meta, "name": "secret"}, "data": {"key": "c2VjcmV0"}})
    box.create(CLAIMS, {"metadata": {**meta, "name": "claim"}, "spec": {}})
    (tmp_path / "host").mkdir()
    volumes = [
        {"name": "config", "configMap": {"name": "config"}},
        {"name": "secret", "secret": {"secretName": "secret"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "host", "hostPath": {"path": str(tmp_path / "host")}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Mi"}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/mnt/{volume['name']}"} for volume in volumes[:-1]]
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - a path inside the pod
    first = container("echo first > /mnt/scratch/x; echo m > /mnt/memory/m", "first", volumeMounts=mounts)
    script = (
        "cat /mnt/config/a.txt /mnt/secret/key; echo; cat /mnt/scratch/x /mnt/memory/m;"
        "echo kept > /mnt/claim/x; echo out > /mnt/host/x; df -k --output=size /mnt/memory /dev/shm | tail -n 2;"
        "touch /mnt/config/y 2> /dev/null || echo closed"
    )
    run(box, "pod", 3, container(script, volumeMounts=mounts), initContainers=[first], volumes=volumes)

    await box.ended()

    assert box.log().split() == ["configuredsecret", "first", "m", "1024", "2048", "closed"]
    assert (tmp_path / "claims/space/claim/x").read_text() == "kept\n"
    assert (tmp_path / "host/x").read_text() == "out\n"


async def test_last_words_are_the_message_of_the_end(box: AgentRig) -> None:
    run(box, "pod", 3, container("echo so it goes > /dev/termination-log; exit 3"))
    assert end(await box.phase("Failed"))["message"] == "so it goes\n"
    own = container("echo elsewhere > /tmp/words; exit 0", terminationMessagePath="/tmp/words")  # noqa: S108 - the pod's
    run(box, "own", 4, own)
    assert end(await box.phase("Succeeded", "own"))["message"] == "elsewhere\n"


async def test_a_private_tmp_and_the_pods_files_go_with_the_pod(box: AgentRig) -> None:
    run(box, "pod", 3, container("touch /tmp/mine"))
    await box.phase("Succeeded")
    uid = box.pod()["metadata"]["uid"]
    folder = box.folder / "pods" / uid
    assert (folder / "tmp/mine").exists()
    box.delete()
    await box.gone()
    await settle(lambda: not folder.exists())


async def test_nothing_is_held_of_a_pod_that_has_ended(box: AgentRig) -> None:
    supervisor = Path(f"/proc/{box.agent.context.link.process.pid}/fd")

    def spaces() -> int:
        return sum("mnt:" in os.fsdecode(one.readlink()) for one in supervisor.iterdir())

    run(box, "pod", 3, container("exec sleep 60"))
    await box.phase("Running")
    before = spaces()
    box.delete()
    await box.gone()
    await settle(lambda: spaces() == before - 1)


async def test_host_network_is_the_machines_own(box: AgentRig) -> None:
    shown = str(Path("/proc/self/ns/net").readlink())
    run(box, "pod", 3, container("readlink /proc/self/ns/net"), net="127.9", hostNetwork=True)
    status = await box.phase("Succeeded")
    assert box.log().strip() == shown
    assert status["podIP"] == "127.9.1.3"


async def test_a_pod_without_an_address_says_so(box: AgentRig) -> None:
    run(box, "pod", 3, container())
    await box.phase("Succeeded")
    box.create(
        PODS,
        {
            "metadata": {"name": "bare", "namespace": "space"},
            "spec": {"nodeName": "node-0", "containers": [container()]},
        },
    )
    status = await box.until(lambda status: waiting(status).get("reason") == "CreateContainerConfigError", "bare")
    assert "no address was reserved" in waiting(status)["message"]


async def test_a_new_pod_of_the_same_name_has_the_address_of_the_old_one(box: AgentRig) -> None:
    for _ in range(3):
        run(box, "pod", 3, container("trap '' TERM; echo up; while :; do sleep 0.05; done"))
        await box.phase("Running")
        await settle(box.log)
        box.store.delete(PODS.whole(), Key("space", "pod"), grace=0)
        await box.gone()


async def test_an_agent_that_gives_addresses_gives_each_pod_one_and_takes_it_back(tmp_path: Path) -> None:
    network, asked = {"subnet": f"{NETWORK}.0.0/16", "holder": None}, list[tuple[str, int]]()

    async def tokens(pod: dict[str, Any], audience: str, seconds: int) -> str:
        asked.append((audience, seconds))
        return f"{pod['metadata']['name']}-{len(asked)}"

    source = {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 1}}
    volumes = [{"name": "t", "projected": {"sources": [source]}}]
    read = container(
        "cat /t/token; echo; hostname -i; sleep 1; cat /t/token", volumeMounts=[{"name": "t", "mountPath": "/t"}]
    )
    made = agent_rig(
        tmp_path,
        tokens=tokens,
        runtime="sandbox",
        network=network,
        outside=False,
        visible=(str(tmp_path),),
        kubelet=True,
        range=f"{NETWORK}.4.0/22",
    )
    try:
        node = await made.__aenter__()
    except EngineError as error:
        pytest.skip(str(error))
    try:
        node.run(read, name="a", volumes=volumes)
        status = await node.ended("a")
        words = [line.split(" ", 1)[1] for line in node.log("a").splitlines()]
        pool = node.agent.context.addresses
    finally:
        await made.__aexit__(None, None, None)

    assert status["podIP"] == f"{NETWORK}.4.2"
    assert words[1] == f"{NETWORK}.4.2"
    assert words[0] != words[2]  # renewed meanwhile
    assert set(asked) == {("vault", 1)}
    assert pool is not None
    assert not pool._taken
