# SPDX-License-Identifier: Apache-2.0
"""Limits: real cgroups where we may make them (version 1 or 2, whichever is there), and version 2 in a made-up tree."""

import os
import subprocess
from pathlib import Path

import pytest
from supervised import Supervised, supervised

from patience import PATIENCE
from trainwright.local.supervisor.cgroups import Cgroups

_EAT = "import sys; x = bytearray(200 << 20); x[::4096] = b'y' * len(x[::4096]); print('not reached')"


def _need_cgroups() -> None:
    if Cgroups().version == "none":
        pytest.skip("cgroups are not allowed here")


def _places() -> set[Path]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup" in line]
    return {path for mount in mounts for path in Path(mount).rglob("trainwright-*") if path.is_dir()}


def _ours(one: Supervised) -> list[Path]:
    return [path for path in _places() if path.name == f"trainwright-{one.process.pid}"]


def test_a_container_that_takes_more_memory_than_it_may_is_killed_and_it_is_told(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        _need_cgroups()
        name = one.start("python3", "-c", _EAT, limits={"memory": 64 << 20})
        end = one.ended(name)
        assert (end["code"], end["signal"], end["oom"]) == (137, 9, True)
        assert "not reached" not in one.log(name).read_text()
        other = one.shell("kill -9 $$", limits={"memory": 64 << 20})
        assert one.ended(other)["oom"] is False


def test_limits_hold_for_what_enters_and_go_with_the_container(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        _need_cgroups()
        name = one.shell("sleep 300", limits={"memory": 64 << 20, "cpu": 0.5})
        (pid,) = one.children()
        one.eventually(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/sh\0-c\0sleep"))
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        assert f"trainwright-{one.process.pid}/1" in groups
        argv = ["sh", "-c", "sleep 0.2; cat /proc/self/cgroup"]  # it is moved a moment after its start
        assert one.call("exec", container=name, argv=argv, env=None, timeout=PATIENCE)["output"] == groups
        assert _ours(one)
        one.call("kill", container=name)
        one.ended(name)
        one.eventually(lambda: not any((path / "1").exists() for path in _ours(one)))
        one.hang_up()
        assert _ours(one) == []


def test_a_refused_start_leaves_no_group(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        _need_cgroups()
        before = one.descriptors()
        one.try_start("no-such-program", limits={"memory": 64 << 20})
        assert not any((path / "1").exists() for path in _ours(one))
        assert one.descriptors() == before


def test_a_cpu_limit_is_half_a_cpu(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        _need_cgroups()
        name = one.shell("sleep 300", limits={"cpu": 0.5})
        quotas = [file.read_text() for path in _ours(one) for file in path.glob("1/cpu.*") if file.name in _QUOTA]
        assert quotas in (["50000\n"], ["50000 100000\n"])
        one.call("kill", container=name)
        one.ended(name)


_QUOTA = ("cpu.cfs_quota_us", "cpu.max")


def _tree(tmp_path: Path, shared: str, own: str = "/user.slice/app.scope") -> tuple[Path, Path]:
    """A /proc and a cgroup tree of version 2, as far as we look at them."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text(f"30 23 0:26 / {root} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n")
    (proc / "self" / "cgroup").write_text(f"0::{own}\n")
    for folder in ("", "user.slice", "user.slice/app.scope"):
        (root / folder).mkdir()
        (root / folder / "cgroup.subtree_control").write_text("" if folder.endswith("scope") else shared)
        (root / folder / "cgroup.procs").touch()
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return proc, root


def test_version_2_makes_a_group_beside_our_own(tmp_path: Path) -> None:
    proc, root = _tree(tmp_path, "cpu memory pids\n")
    stale = root / "user.slice" / "trainwright-4194305" / "7"
    stale.mkdir(parents=True)
    cgroups = Cgroups(str(proc))
    assert (cgroups.version, cgroups.refusal) == ("v2", "")
    group = cgroups.group({"memory": 1 << 30, "cpu": 1.5})
    base = root / "user.slice" / f"trainwright-{os.getpid()}"
    assert group.folders == [str(base / "1")]
    assert (base / "cgroup.subtree_control").read_text() == "+memory +cpu"
    written = {file.name: file.read_text() for file in (base / "1").iterdir()}
    limits = {"memory.max": "1073741824", "memory.swap.max": "0", "memory.oom.group": "1", "cpu.max": "150000 100000"}
    assert written == {**limits, "cgroup.procs": ""}
    assert not stale.parent.exists()
    group.add(42)
    group.kill()
    assert [(base / "1" / name).read_text() for name in ("cgroup.procs", "cgroup.kill")] == ["42", "1"]
    group.close()


@pytest.mark.parametrize(
    ("file", "text", "oom"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 1\n", True),
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True),
    ],
    ids=["v2", "v2, none", "v1"],
)
def test_the_kernel_s_count_tells_whether_memory_ran_out(tmp_path: Path, file: str, text: str, oom: bool) -> None:
    proc, _ = _tree(tmp_path, "cpu memory")
    group = Cgroups(str(proc)).group({"memory": 1 << 20})
    (Path(group.folders[0]) / file).write_text(text)
    assert group.oom() is oom
    group.close()


def test_a_group_that_is_still_busy_is_removed_later(tmp_path: Path) -> None:
    proc, _ = _tree(tmp_path, "cpu memory")
    cgroups = Cgroups(str(proc))
    group = cgroups.group({"cpu": 1})
    cgroups.remove(group)
    assert cgroups.tidy()
    for file in Path(group.folders[0]).iterdir():
        file.unlink()
    assert not cgroups.tidy()
    assert not Path(group.folders[0]).exists()


@pytest.mark.parametrize(
    ("shared", "own", "refusal"),
    [
        ("pids", "/user.slice/app.scope", "no cgroup of version 2 above ours shares out cpu"),
        ("", "/", "no cgroup of version 2 above ours shares out cpu"),
    ],
    ids=["not shared out", "in the root of a container"],
)
def test_where_no_group_can_be_made_it_says_why(tmp_path: Path, shared: str, own: str, refusal: str) -> None:
    proc, _ = _tree(tmp_path, shared, own)
    cgroups = Cgroups(str(proc))
    assert (cgroups.version, cgroups.refusal) == ("none", refusal)
    with pytest.raises(OSError, match=refusal):
        cgroups.group({"memory": 1})


_WITHOUT = ("unshare", "-m", "/bin/sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$0" "$@"')


def test_limits_that_cannot_be_had_are_one_notice(tmp_path: Path) -> None:
    if subprocess.run([*_WITHOUT, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    one = Supervised(tmp_path, _WITHOUT)
    try:
        assert one.event("ready")["cgroup"] == "none"
        for _ in range(2):
            assert one.ended(one.shell("exit 3", limits={"memory": 64 << 20}))["code"] == 3
        (notice,) = one.events
        assert notice["text"].startswith("memory and CPU limits are not enforced: /sys/fs/cgroup")
    finally:
        one.end()
