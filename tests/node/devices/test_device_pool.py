# SPDX-License-Identifier: Apache-2.0
"""Devices of pods: all of a gang or none, the same after a restart, never those of another run."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from trainwright.node.devices.inventory import DeviceSet, numbered
from trainwright.node.devices.leases import LeaseFolder
from trainwright.node.devices.pool import LINGER, DevicePool, DeviceRequest
from trainwright.runtime.ports import WallClock

GPU = "nvidia.com/gpu"


def pool(folder: Path, count: int = 8, nodes: int = 1, run: str = "one") -> DevicePool:
    ids = numbered(count)
    sets = {f"node-{index}": {GPU: DeviceSet(ids[index::nodes])} for index in range(nodes)}
    return DevicePool(sets, run, WallClock(), LeaseFolder(folder))


def pod(name: str, count: int, node: str = "node-0", replica: str = "") -> DeviceRequest:
    labels = {"trainwright.dev/job-uid": "job", "trainwright.dev/role": "worker", "trainwright.dev/index": replica}
    owner = {"name": "train", "controller": True}
    meta: dict[str, Any] = {"name": name, "namespace": "space", "uid": name, "ownerReferences": [owner]}
    if replica:
        meta["labels"] = labels
    return DeviceRequest(name, node, {"metadata": meta}, {GPU: count})


def test_a_gang_gets_all_of_its_devices_or_none(tmp_path: Path) -> None:
    first, second = pool(tmp_path), pool(tmp_path, run="two")
    assert first.grant([pod("a", 3)]) == {"a": {GPU: ("0", "1", "2")}}
    assert second.grant([pod("b", 4), pod("c", 4)]) is None
    assert second.held() == []
    assert second.grant([pod("b", 4), pod("c", 1)]) == {"b": {GPU: ("3", "4", "5", "6")}, "c": {GPU: ("7",)}}
    first.close()
    second.close()


def test_what_others_hold_is_known_with_their_names(tmp_path: Path) -> None:
    first, second = pool(tmp_path, 4, nodes=2), pool(tmp_path, 4, nodes=2, run="two")
    first.grant([pod("a", 2, "node-1")])
    second.look()
    assert second.changes == 1
    ((name, found),) = second.elsewhere().items()
    assert name == "node-1"
    assert [device for device, _ in found[GPU].devices] == ["1", "3"]
    assert all("(run one, job space/train) since 20" in holder for _, holder in found[GPU].devices)
    assert found[GPU].amount == 2000
    first.close()
    second.look()
    assert (second.changes, second.elsewhere()) == (2, {})


def test_a_replica_has_its_devices_back_and_nobody_else_gets_them_meanwhile(tmp_path: Path) -> None:
    first, second = pool(tmp_path, 4), pool(tmp_path, 4, run="two")
    first.grant([pod("a-0", 1, replica="0")])
    had = first.grant([pod("b-0", 2, replica="1")])
    first.keep(lambda body: body["metadata"]["name"] == "a-0", now=100.0)
    assert second.grant([pod("x", 2)]) is None
    assert first.grant([pod("b-1", 2, replica="1")]) == {"b-1": had["b-0"] if had else None}
    first.keep(lambda body: body["metadata"]["name"] != "b-0", now=100.0 + 2 * LINGER)
    assert second.grant([pod("x", 2)]) is None
    first.close()


def test_a_device_that_nobody_needs_is_given_back_after_a_moment(tmp_path: Path) -> None:
    first, second = pool(tmp_path, 1), pool(tmp_path, 1, run="two")
    first.grant([pod("a", 1)])
    first.keep(lambda _: False, now=100.0)
    first.keep(lambda _: False, now=100.0 + LINGER / 2)
    assert first.held() == [(GPU, "0")]
    assert second.grant([pod("x", 1)]) is None
    first.keep(lambda _: False, now=100.0 + LINGER)
    assert first.held() == []
    assert second.grant([pod("x", 1)]) is not None
    second.close()


def test_the_devices_of_a_lost_node_are_leased_anew_once_its_processes_have_died(tmp_path: Path) -> None:
    one = pool(tmp_path, 1)
    supervisor = one.channel("node-0")
    one.grant([pod("a", 1)])
    one.node_lost("node-0")  # the socket of its supervisor still holds the lock
    one.keep(lambda _: True, now=0.0)
    assert one.held() == []
    one.look()
    assert one.elsewhere() == {}  # it is already counted as the pod's device
    supervisor.close()
    one.keep(lambda _: True, now=0.0)
    assert one.held() == [(GPU, "0")]
    one.close()


def test_a_new_supervisor_of_a_lost_node_is_handed_what_its_pods_have(tmp_path: Path) -> None:
    """This includes devices that were leased again before there was a supervisor to send them to."""
    one = pool(tmp_path, 2)
    one.channel("node-0").handed()
    one.grant([pod("a", 1)])
    one.node_lost("node-0")
    one.keep(lambda _: True, now=0.0)
    assert one.held() == [(GPU, "0")]
    theirs = one.channel("node-0").theirs
    theirs.setblocking(False)
    data, (fd,), *_ = socket.recv_fds(theirs, 1000, 8)
    assert data == b'{"do":"hold","device":"nvidia.com/gpu/0"}\n'
    one.close()
    theirs.close()
    assert LeaseFolder(tmp_path).take(GPU, "0") is None
    os.close(fd)
    assert LeaseFolder(tmp_path).take(GPU, "0") is not None


@pytest.mark.parametrize("bound", [True, False])
def test_a_pod_that_is_granted_devices_again_gives_up_those_it_had(tmp_path: Path, bound: bool) -> None:
    one = pool(tmp_path, 2, nodes=2 if bound else 1)
    assert one.grant([pod("a", 1)]) == {"a": {GPU: ("0",)}}
    assert one.grant([pod("a", 1, "node-1" if bound else "node-0")]) == {"a": {GPU: ("1" if bound else "0",)}}
    one.close()
