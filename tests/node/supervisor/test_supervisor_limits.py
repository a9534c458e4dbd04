# SPDX-License-Identifier: Apache-2.0
"""Limits: real cgroups where we may make them (version 1 or 2, whichever is there), and version 2 in a made-up tree.

Where we may make none, and as if that were so, the supervisor measures memory itself.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervised import Supervised, supervised

from patience import PATIENCE
from trainwright.node.supervisor.launch import join_cgroups
from trainwright.node.supervisor.loop import Loop, Timer
from trainwright.node.supervisor.resource_limits import INTERVAL, Cgroups, MemoryWatch

_EAT = "x = bytearray(200 << 20); x[::4096] = b'y' * len(x[::4096]); print('not reached')"


def _need_cgroups() -> None:
    if Cgroups().version == "none":
        pytest.skip("cgroups are not allowed here")


def _places() -> set[Path]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup" in line]
    # `os.walk` skips groups that other processes remove meanwhile; `rglob` would fail.
    found = (Path(parent) / name for mount in mounts for parent, names, _ in os.walk(mount) for name in names)
    return {path for path in found if path.name.startswith("trainwright-")}


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
        argv = ["sh", "-c", "sleep 0.2; cat /proc/self/cgroup"]  # the supervisor moves it just after its start
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
    """Files of /proc and of a cgroup tree of version 2, those that the code reads."""
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
    assert (cgroups.version, cgroups.refusals) == ("v2", {})
    group = cgroups.group({"memory": 1 << 30, "cpu": 1.5})
    base = root / "user.slice" / f"trainwright-{os.getpid()}"
    assert group.folders == [str(base / "1")]
    assert (base / "cgroup.subtree_control").read_text() == "+memory +cpu"
    written = {file.name: file.read_text() for file in (base / "1").iterdir()}
    limits = {"memory.max": "1073741824", "memory.swap.max": "0", "memory.oom.group": "1", "cpu.max": "150000 100000"}
    assert written == {**limits, "cgroup.procs": ""}
    assert not stale.parent.exists()
    join_cgroups(42, group.entries)
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
    assert cgroups.remove_leftovers()
    for file in Path(group.folders[0]).iterdir():
        file.unlink()
    assert not cgroups.remove_leftovers()
    assert not Path(group.folders[0]).exists()


@pytest.mark.parametrize(
    ("shared", "own", "version", "refused"),
    [
        ("pids", "/user.slice/app.scope", "none", ["memory", "cpu"]),
        ("", "/", "none", ["memory", "cpu"]),
        ("memory pids", "/user.slice/app.scope", "v2", ["cpu"]),
    ],
    ids=["not shared out", "in the root of a container", "memory alone, as systemd does for users"],
)
def test_of_each_limit_that_no_group_can_have_it_says_why(
    tmp_path: Path, shared: str, own: str, version: str, refused: list[str]
) -> None:
    proc, _ = _tree(tmp_path, shared, own)
    cgroups = Cgroups(str(proc))
    why = "no cgroup above this process lets it limit {}"
    assert (cgroups.version, cgroups.refusals) == (version, {name: why.format(name) for name in refused})


# -- without cgroups --------------------------------------------------------------------------------------------------

_HIDE = 'mount -t tmpfs none /sys/fs/cgroup && exec "$0" "$@"'
_HOLD = "x = bytearray({} << 20); x[::4096] = b'y' * len(x[::4096]); print('full', flush=True); time.sleep(300)"


def _hold(mebibytes: int) -> str:
    return f'python3 -c "import time; {_HOLD.format(mebibytes)}"'


@pytest.fixture
def without(tmp_path: Path) -> Iterator[Supervised]:
    """A supervisor that finds no usable cgroup on any machine."""
    mounting = ("unshare", "-m" if os.geteuid() == 0 else "-rm", "/bin/sh", "-c", _HIDE)
    with supervised(tmp_path, mounting if Cgroups().version != "none" else ()) as one:
        yield one


def test_each_limit_that_no_cgroup_enforces_is_one_notice(without: Supervised) -> None:
    for _ in range(2):
        assert without.ended(without.shell("exit 3", limits={"memory": 64 << 20}))["code"] == 3
    (memory,) = without.events
    assert memory["text"].startswith("limits.memory is checked only once a second, and ")
    for _ in range(2):
        without.ended(without.shell("exit 3", limits={"memory": 64 << 20, "cpu": 1}))
    assert without.events[0] == memory
    (cpu,) = without.events[1:]
    assert cpu["text"].startswith("limits.cpu is not enforced, since trainwright cannot make a cgroup for it: ")
    assert cpu["text"].partition("; ")[2].startswith(("root may", "start it with `systemd-run"))


@pytest.mark.parametrize(
    "script",
    [f"exec {_hold(200)}", f"{_hold(200)} & wait", f"(setsid {_hold(200)} &); sleep 300"],
    ids=["main process", "child", "daemon"],
)
def test_without_cgroups_a_container_that_takes_too_much_memory_is_killed(without: Supervised, script: str) -> None:
    other = without.shell("sleep 300", limits={"memory": 64 << 20})
    name = without.shell(script, limits={"memory": 64 << 20})
    end = without.ended(name)
    assert (end["code"], end["signal"], end["oom"]) == (137, 9, True)
    without.call("kill", container=other)
    assert without.ended(other)["oom"] is False
    without.eventually(lambda: not without.children())


def test_without_cgroups_what_is_run_in_a_container_counts_for_it(without: Supervised) -> None:
    name = without.shell("sleep 300", limits={"memory": 64 << 20})
    without.ask("exec", container=name, argv=["/bin/sh", "-c", f"exec {_hold(200)}"], env=None, timeout=60)
    assert without.ended(name)["oom"] is True


class ManualLoop(Loop):
    """Keeps timers until the test runs them."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def later(self, seconds: float, act: Callable[[], None]) -> Timer:
        assert seconds >= INTERVAL
        self.due.append(act)
        return Timer(act)

    def ring(self) -> None:
        due, self.due = self.due, []
        for act in due:
            act()


_FORK = """
import mmap, os, sys
x = bytearray(40 << 20)
x[::4096] = b'y' * len(x[::4096])
file = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)
file[::4096]
for _ in range(2):
    os.fork()
os.write(1, b'full\\n')
sys.stdin.read()
"""


@pytest.mark.parametrize(("limit", "killed"), [(100, []), (30, ["one"])], ids=["below", "above"])
def test_memory_is_measured_as_a_cgroup_counts_it(tmp_path: Path, limit: int, killed: list[str]) -> None:
    """Four processes share 40 MiB, and have mapped a file of 200 MiB."""
    file, found, loop = tmp_path / "file", list[str](), ManualLoop()
    file.write_bytes(bytes(200 << 20))
    watch = MemoryWatch(loop, found.append)
    with subprocess.Popen(
        [sys.executable, "-c", _FORK, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(4)] == [b"full\n"] * 4
        watch.add(process.pid, "one", limit << 20)
        watch.add(os.getpid(), "two", 1 << 40)
        loop.ring()
        assert found == killed
        watch.remove(process.pid)
        loop.ring()
        assert (found, len(loop.due)) == (killed, 1)
        watch.remove(os.getpid())
        loop.ring()
        assert loop.due == []
        process.communicate()
