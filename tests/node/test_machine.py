# SPDX-License-Identifier: Apache-2.0
"""The resources of this machine, and their division among nodes."""

import os
from pathlib import Path

import pytest

from trainwright.errors import UsageError
from trainwright.node.devices.inventory import GPU, DeviceSet, found_gpus, numbered
from trainwright.node.machine import CgroupLimits, NodeCapacity, cgroup_limits, machine, share

GI = 1024**3


def gpus(*ids: str) -> dict[str, DeviceSet]:
    return {GPU: DeviceSet(ids, ("CUDA_VISIBLE_DEVICES",))}


def test_this_machine_has_something() -> None:
    here = machine({GPU: DeviceSet()})
    assert 0 < here.cpu <= (os.cpu_count() or 1) * 1000
    assert here.memory > 2**27
    assert here.devices == {}


def test_gpus_can_be_pretended() -> None:
    pretended = machine({GPU: DeviceSet(numbered(3))})
    assert pretended.devices[GPU].ids == ("0", "1", "2")
    assert pretended.capacity()["nvidia.com/gpu"] == "3"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (NodeCapacity(8000, 16 * GI), {"cpu": "8", "memory": "16777216Ki", "pods": "10000"}),
        (
            NodeCapacity(1500, GI, gpus("4")),
            {"cpu": "1500m", "memory": "1048576Ki", "pods": "10000", "nvidia.com/gpu": "1"},
        ),
    ],
)
def test_a_share_as_kubernetes_writes_it(given: NodeCapacity, expected: dict[str, str]) -> None:
    assert given.capacity() == expected


def test_nodes_share_the_machine_and_nothing_is_handed_out_twice() -> None:
    whole = NodeCapacity(8000, 9 * GI, gpus("0", "1", "2", "3", "4"))
    assert share(whole, 1) == (whole,)
    assert share(whole, 3) == (
        NodeCapacity(2666, 3 * GI, gpus("0", "3")),
        NodeCapacity(2666, 3 * GI, gpus("1", "4")),
        NodeCapacity(2666, 3 * GI, gpus("2")),
    )


@pytest.mark.parametrize("nodes", [0, -1, 3000])
def test_a_machine_cannot_be_shared_out_among_just_any_number(nodes: int) -> None:
    with pytest.raises(UsageError, match=str(nodes)):
        share(NodeCapacity(2000, GI), nodes)


def driver(folder: Path, script: str) -> dict[str, str]:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": str(folder)}


TWO = 'printf "0, GPU-aaaa-1\\n1, GPU-bbbb-2\\n"'


@pytest.mark.parametrize(
    ("script", "visible", "expected"),
    [
        (TWO, None, ("0", "1")),
        (TWO, "1", ("1",)),
        (TWO, "1,0", ("1", "0")),
        (TWO, "GPU-bbbb", ("1",)),
        (TWO, "", ()),
        (TWO, "0,7,1", ("0",)),
        ("echo No devices were found; exit 6", None, ()),
        ("echo No devices were found", None, ()),
        ("exec /nowhere", None, ()),
    ],
)
def test_the_driver_says_which_gpus_there_are(
    tmp_path: Path, script: str, visible: str | None, expected: tuple[str, ...]
) -> None:
    environment = driver(tmp_path, script)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    assert found_gpus(environment) == expected


def test_without_a_driver_there_are_no_gpus(tmp_path: Path) -> None:
    assert found_gpus({"PATH": str(tmp_path)}) == ()


V2 = "30 1 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw"
V1 = (
    "31 1 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 1 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
)
LAYOUTS: dict[str, tuple[dict[str, str], CgroupLimits]] = {
    "none at all": ({}, CgroupLimits()),
    "v2": (
        {
            "proc/self/cgroup": "0::/job/pod",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/job/pod/cpu.max": "150000 100000",
            "sys/fs/cgroup/job/pod/memory.max": "1073741824",
        },
        CgroupLimits(1500, GI),
    ),
    "v2, no limit": (
        {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpu.max": "max 100000",
            "sys/fs/cgroup/memory.max": "max",
        },
        CgroupLimits(),
    ),
    "v2, the group above holds": (
        {
            "proc/self/cgroup": "0::/job/pod",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/job/cpu.max": "200000 100000",
            "sys/fs/cgroup/job/pod/cpu.max": "300000 100000",
            "sys/fs/cgroup/job/memory.max": str(2 * GI),
            "sys/fs/cgroup/job/pod/memory.max": str(4 * GI),
        },
        CgroupLimits(2000, 2 * GI),
    ),
    "v1": (
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/a\n3:memory:/a",
            "proc/self/mountinfo": V1,
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(GI),
        },
        CgroupLimits(500, GI),
    ),
    "v1, no limit": (
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/",
            "proc/self/mountinfo": V1,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
        CgroupLimits(),
    ),
    "v1, a container that sees its path outside": (
        {
            "proc/self/cgroup": "3:memory:/docker/abc/inner",
            "proc/self/mountinfo": "32 1 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(GI),
            "sys/fs/cgroup/memory/inner/memory.limit_in_bytes": str(GI // 2),
        },
        CgroupLimits(None, GI // 2),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_control_groups_limit_what_we_have(tmp_path: Path, name: str) -> None:
    files, expected = LAYOUTS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    assert cgroup_limits(tmp_path) == expected
