# SPDX-License-Identifier: Apache-2.0
"""Mounts at their real paths, also paths that the host does not have. The host does not change."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from sandboxed import Sandboxed

from trainwright.node.supervisor import outside

Mounts = list[dict[str, Any]]

# Paths that this machine does not have.
_MISSING = {
    "top": "/sandbox-data",
    "deep": "/sandbox-data/a/b",
    "below a folder": "/opt/sandbox-data",
    "deep below a folder": "/usr/share/sandbox-data/a/b",
    "in /etc": "/etc/sandbox-data",
    "in /dev": "/dev/sandbox-data",
    "behind a link": "/var/run/sandbox-data",
    "in /tmp": "/tmp/sandbox-data",  # noqa: S108 - a path in the pod
}


@pytest.fixture
def data(folder: Path) -> Path:
    path = folder / "data, with: odd 'names"
    path.mkdir()
    (path / "file").write_text("inside\n")
    os.chown(path, folder.stat().st_uid, folder.stat().st_gid)
    return path


def at(source: Path | None, target: str, **fields: Any) -> Mounts:
    return [{"source": None if source is None else str(source), "target": target, **fields}]


def _host() -> list[list[Path]]:
    """The entries of the folders in which the tests mount something.

    The records of outside networks are left out: engines of other tests make and remove them at the same time.
    """
    folders = ("/", "/opt", "/usr/share", "/etc", "/dev", "/run", "/mnt")
    return [sorted(one for one in Path(path).iterdir() if str(one) != outside._RECORDS) for path in folders]


@pytest.mark.parametrize("target", [*_MISSING.values(), "/mnt"], ids=[*_MISSING, "there"])
def test_a_folder_is_seen_where_it_is_mounted(box: Sandboxed, data: Path, target: str) -> None:
    before = _host()
    box.open()
    assert box.run(f"cat {target}/file; echo made > {target}/new", mounts=at(data, target)) == "inside\n"
    assert (data / "new").read_text() == "made\n"
    assert _host() == before


@pytest.mark.parametrize("target", ["/sandbox-data", "/mnt", "/opt/sandbox-data/a"])
def test_the_machine_s_tmp_is_seen_where_it_is_mounted(box: Sandboxed, data: Path, target: str) -> None:
    """The pod's private /tmp must not appear in a volume that shows the machine's /tmp."""
    box.open()
    machine = Path("/tmp")  # noqa: S108 - the machine's
    file = shlex.quote(f"{target}/{data.relative_to(machine)}/file")
    said = box.run(f"cat {file}", mounts=at(machine, target))
    assert said == "inside\n"


@pytest.mark.parametrize("target", [*_MISSING.values(), "/etc/hostname"], ids=[*_MISSING, "there"])
def test_a_file_is_seen_where_it_is_mounted(box: Sandboxed, data: Path, target: str) -> None:
    box.open()
    assert box.run(f"cat {target}", mounts=at(data / "file", target)) == "inside\n"


def test_what_is_beside_a_missing_place_stays_the_hosts(box: Sandboxed, data: Path, folder: Path) -> None:
    """New roots and covers hide nothing: devices, links, sockets, other mounts, and folders that can be written."""
    places = ["/sandbox-top", "/dev/sandbox", "/etc/sandbox", "/usr/sandbox", "/proc-not", "/opt/sandbox"]
    mounts = [one for place in places for one in at(data, place)]
    hosts = folder / "hosts"
    hosts.write_text("1.2.3.4 name\n")
    box.open(hosts=str(hosts))
    script = "readlink /bin; ls /etc/passwd; echo x >/dev/null && head -c 2 /dev/zero | wc -c; cat /etc/hosts; echo $$"
    said = box.run(script, mounts=mounts).split()
    link = [str(Path("/bin").readlink())] if Path("/bin").is_symlink() else []
    assert said == [*link, "/etc/passwd", "2", "1.2.3.4", "name", "2"]


@pytest.mark.parametrize("base", ["/dev", "/etc", "/"])
def test_the_entries_beside_a_missing_place_are_the_hosts_and_no_others(box: Sandboxed, data: Path, base: str) -> None:
    box.open()
    target = f"{base.rstrip('/')}/sandbox-data"
    usual = {"sandbox-data", ".host", "termination-log"}
    found = box.run(f"ls -A {base}", mounts=at(data, target)).split()
    assert {*found} - usual == {path.name for path in Path(base).iterdir()}


def test_folders_beside_a_missing_place_can_be_written_for_good(box: Sandboxed, data: Path) -> None:
    base = box.folder / "base"
    (base / "kept").mkdir(parents=True)
    for path in (base, base / "kept"):
        os.chown(path, box.folder.stat().st_uid, box.folder.stat().st_gid)
    box.open(tmp=None)
    script = f"echo 1 > {base}/kept/file; echo 2 > {base}/lost; cat {base}/missing/file"
    assert box.run(script, mounts=at(data, f"{base}/missing")) == "inside\n"
    assert sorted(path.name for path in base.rglob("*")) == ["file", "kept"]


def test_files_beside_a_missing_place_can_be_replaced(box: Sandboxed, data: Path) -> None:
    base = box.folder / "base"
    base.mkdir()
    (base / "state").write_text("old")
    for path in (base, base / "state"):
        os.chown(path, box.folder.stat().st_uid, box.folder.stat().st_gid)
    box.open(tmp=None)
    script = f"cd {base}; echo new > next; mv next state; cat state"
    assert box.run(script, mounts=at(data, f"{base}/missing")) == "new\n"


@pytest.mark.parametrize("private", [True, False], ids=["in a private /tmp", "elsewhere"])
def test_a_place_in_the_working_directory_is_made_there(box: Sandboxed, data: Path, private: bool) -> None:
    """Container engines do the same, so all other files that are written there stay."""
    work = box.folder / "work"
    work.mkdir()
    os.chown(work, box.folder.stat().st_uid, box.folder.stat().st_gid)
    own = str(box.folder / "tmp")
    box.open(keep=[str(work)], tmp=own if private else None)
    assert box.run("cat data/file; echo out > result", mounts=at(data, f"{work}/data"), cwd=str(work)) == "inside\n"
    assert sorted(path.name for path in work.rglob("*")) == ["data", "result"]


def test_mounts_lie_in_each_other_whatever_their_order(box: Sandboxed, data: Path, folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "file").write_text("inner\n")
    mounts = [*at(inner, "/sandbox-data/a/inner"), *at(data, "/sandbox-data/a"), *at(inner / "file", "/sandbox-data/x")]
    box.open()
    script = "cat /sandbox-data/a/file /sandbox-data/a/inner/file /sandbox-data/x"
    assert box.run(script, mounts=mounts) == "inside\ninner\ninner\n"


@pytest.mark.parametrize(
    ("part", "target"),
    [("", "/mnt"), ("", "/sandbox-data"), ("", "/opt/sandbox-data"), ("file", "/etc/hostname"), ("file", "/sandbox")],
)
def test_a_read_only_mount_cannot_be_written(box: Sandboxed, data: Path, part: str, target: str) -> None:
    box.open()
    written = f"{target}/new" if not part else target
    said = box.run(f"echo x > {written} || true", mounts=at(data / part, target, readonly=True))
    assert "Read-only file system" in said
    assert [path.name for path in data.iterdir()] == ["file"]


def test_below_a_read_only_mount_there_can_be_another(box: Sandboxed, data: Path, folder: Path) -> None:
    mounts = [*at(data, "/sandbox-data", readonly=True), *at(data / "file", "/sandbox-data/more/file")]
    box.open()
    assert box.run("cat /sandbox-data/file /sandbox-data/more/file", mounts=mounts) == "inside\ninside\n"
    assert [path.name for path in data.iterdir()] == ["file"]


_SIZE = "df --output=size -k {} | tail -1"


def test_memory_is_as_large_as_asked(box: Sandboxed) -> None:
    box.open()
    assert box.run(_SIZE.format("/scratch"), mounts=at(None, "/scratch", tmpfs=3 << 20)).strip() == "3072"


@pytest.mark.parametrize("shm", [None, 0], ids=["no volume", "a volume without a sizeLimit"])
def test_shared_memory_is_usually_as_large_as_the_machine_s(box: Sandboxed, shm: int | None) -> None:
    """The machine's own /dev/shm, but no less than the kernel's default, half of the memory."""
    memory = int(re.findall(r"MemTotal: *(\d+) kB", Path("/proc/meminfo").read_text())[0])
    own = os.statvfs("/dev/shm")  # noqa: S108
    box.open(shm=shm)
    size = int(box.run(_SIZE.format("/dev/shm")))  # noqa: S108
    assert size == pytest.approx(max(memory // 2, own.f_blocks * own.f_frsize >> 10), rel=0.02)


@pytest.mark.parametrize(
    ("shm", "mounts", "size"),
    [(8 << 20, [], 8192), (None, at(None, "/dev/shm", tmpfs=4 << 20), 4096)],  # noqa: S108
    ids=["as asked", "a volume"],
)
def test_shared_memory_has_its_size(box: Sandboxed, shm: int | None, mounts: Mounts, size: int) -> None:
    box.open(shm=shm)
    assert int(box.run(_SIZE.format("/dev/shm"), mounts=mounts)) == size  # noqa: S108


def test_the_containers_of_a_pod_share_memory_and_tmp_and_other_pods_do_not(box: Sandboxed, folder: Path) -> None:
    shared = at(folder / "memory", "/scratch", tmpfs=1 << 20)
    box.open("a")
    box.open("b")
    box.run("for place in /dev/shm /tmp /scratch; do touch $place/mine; done", "a", mounts=shared)
    assert box.run("ls /dev/shm /tmp /scratch", "a", mounts=shared).count("mine") == 3
    assert box.run("ls /dev/shm /tmp", "b").count("mine") == 0
    assert not Path("/tmp/mine").exists()  # noqa: S108
    assert not Path("/dev/shm/mine").exists()  # noqa: S108
    assert not list((folder / "memory").iterdir())


def test_tmp_is_private_but_what_must_be_seen_in_it_is(box: Sandboxed, folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    (work / "script").write_text("here\n")
    os.chown(work, folder.stat().st_uid, folder.stat().st_gid)
    box.open(keep=[str(work), "/usr", "/tmp/no-such-folder"])  # noqa: S108
    script = "cat script; touch written /tmp/private; ls /tmp; stat -c %a /tmp"
    said = box.run(script, cwd=str(work)).split()
    assert said == ["here", "private", folder.name, "1777"]
    assert (work / "written").exists()
    assert not Path("/tmp/private").exists()  # noqa: S108


def test_tmp_is_the_hosts_where_that_is_the_working_directory(box: Sandboxed, folder: Path) -> None:
    box.open(keep=["/tmp"])  # noqa: S108
    assert folder.name in box.run("ls /tmp", cwd="/tmp")  # noqa: S108


def test_a_new_root_is_as_roots_are_and_does_not_contain_itself(box: Sandboxed, data: Path) -> None:
    box.open(keep=["/tmp"])  # noqa: S108 - so that the folder of the new root is in sight
    script = "stat -c %a /; cut -d ' ' -f 5 /proc/self/mountinfo | grep root- || true"
    assert box.run(script, mounts=at(data, "/sandbox-data")) == "755\n"


def test_each_container_has_its_own_root(box: Sandboxed, data: Path) -> None:
    box.open()
    mounts = at(data, "/sandbox-data")
    assert "mine" in box.run("touch /mine; ls /", mounts=mounts)
    assert "mine" not in box.run("ls /", mounts=mounts)


def test_a_program_can_be_mounted_and_run(box: Sandboxed, data: Path) -> None:
    (data / "tool").write_text("#!/bin/sh\necho from the volume\n")
    (data / "tool").chmod(0o755)
    box.open()
    name, answer = box.attempt(["/sandbox-data/tool"], mounts=at(data, "/sandbox-data"))
    assert answer.get("ok"), answer
    box.event("ended", container=name)
    assert box.said(name) == "from the volume\n"


@pytest.mark.parametrize(
    ("part", "target", "words"),
    [
        ("missing", "/sandbox-data", "No such file or directory"),
        ("file", "/mnt", "it is a folder on this machine, not a file"),
        ("", "/etc/passwd", "it is a file on this machine, not a folder"),
        ("", "/etc/passwd/below", "it is a file on this machine, not a folder"),
        ("", "/proc", "nothing can be mounted in /proc"),
        ("", "/proc/sys", "nothing can be mounted in /proc"),
        ("", "/proc/sandbox-data", "nothing can be mounted in /proc"),
        ("", "/dev/fd", "nothing can be mounted in /proc"),
        ("", "/", "the root itself cannot be replaced"),
    ],
    ids=[
        "no source",
        "file on folder",
        "folder on file",
        "below a file",
        "/proc",
        "there in /proc",
        "missing in /proc",
        "a link to /proc",
        "the root",
    ],
)
def test_a_mount_that_cannot_be_is_refused_by_name(
    box: Sandboxed, data: Path, part: str, target: str, words: str
) -> None:
    box.open()
    _, answer = box.attempt(["/bin/true"], mounts=at(data / part, target))
    assert answer["code"] == 128, answer
    assert target in answer["error"]
    assert words in answer["error"]
    assert box.run("echo fine") == "fine\n"
