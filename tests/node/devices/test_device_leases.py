# SPDX-License-Identifier: Apache-2.0
"""The lock files: one holder per device, for any content of the files and any end of a holder."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from patience import PATIENCE
from trainwright.errors import EngineError
from trainwright.node.devices import leases
from trainwright.node.devices.leases import LeaseFolder, LeaseHolder, own_description

GPU = "nvidia.com/gpu"


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_device_has_one_holder_who_is_described(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path)
    assert folder.holder(GPU, "0") is None
    lease = folder.take(GPU, "0")
    assert lease is not None
    lease.describe(own_description("run-1", job="default/train", pod="train-0", since="2026-11-16T12:03:11Z"))

    assert folder.take(GPU, "0") is None
    assert folder.take(GPU, "1") is not None
    holder = folder.holder(GPU, "0")
    assert holder is not None
    assert (holder.pid, holder.uid, holder.alive) == (os.getpid(), os.getuid(), True)
    assert str(holder).endswith(" (run run-1, job default/train) since 2026-11-16T12:03:11Z")
    lease.close()
    lease.close()
    assert folder.holder(GPU, "0") is None


def test_held_devices_are_listed_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path)
    names = [("amd.com/gpu", "0"), (GPU, "2"), (GPU, "10"), ("x.com/a+b", "0000:3b:00.0")]
    held = [folder.take(*name) for name in reversed(names)]
    free = folder.take(GPU, "3")
    assert free is not None
    free.close()
    with folder.mutex():
        assert [(one.resource, one.device) for one in folder.held()] == names
    assert all(held)


def test_a_lease_lives_as_long_as_anybody_who_inherited_it(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path)
    lease = folder.take(GPU, "0")
    assert lease is not None
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], pass_fds=(lease.fd,))
    lease.close()
    assert folder.take(GPU, "0") is None
    child.kill()
    child.wait()
    assert folder.take(GPU, "0") is not None


def test_a_lease_that_is_under_way_in_a_socket_is_held(tmp_path: Path) -> None:
    """An engine may die after it has sent a descriptor and before a supervisor has read it."""
    folder = LeaseFolder(tmp_path)
    lease = folder.take(GPU, "0")
    assert lease is not None
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"x"], [lease.fd])
    ours.close()
    lease.close()
    assert folder.take(GPU, "0") is None
    theirs.close()
    assert folder.take(GPU, "0") is not None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b'{"pid": "x"}',
        json.dumps({"user": "a\n\x1b[31mb" + "c" * 500, "run": "r", "pid": 2**40}).encode(),
    ],
)
def test_a_description_is_shown_and_never_trusted(tmp_path: Path, text: bytes) -> None:
    folder = LeaseFolder(tmp_path)
    lease = folder.take(GPU, "0")
    assert lease is not None
    (path,) = tmp_path.glob("*gpu+0")
    path.write_bytes(text)
    holder = folder.holder(GPU, "0")
    assert holder is not None
    assert str(holder).isprintable()
    assert len(str(holder)) < 200
    assert folder.take(GPU, "0") is None


def test_somebody_who_gives_another_users_process_is_not_believed(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path)
    lease = folder.take(GPU, "0")
    assert lease is not None
    lease.describe(LeaseHolder(user="alice", uid=os.getuid() + 1, pid=os.getpid()))
    assert str(folder.holder(GPU, "0")).startswith("alice, unverified")


def test_what_a_dead_holder_wrote_means_nothing(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path)
    lease = folder.take(GPU, "0")
    assert lease is not None
    lease.describe(own_description("run-1"))
    lease.close()
    assert folder.holder(GPU, "0") is None
    assert folder.held() == []


def test_a_link_or_a_pipe_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "trainwright+nvidia.com%2Fgpu+0").symlink_to(precious)
    os.mkfifo(tmp_path / "trainwright+nvidia.com%2Fgpu+1")
    for device in ("0", "1"):
        with pytest.raises(EngineError, match=r"devices cannot be leased: .*gpu\+."):
            LeaseFolder(tmp_path).take(GPU, device)
    assert precious.read_text() == "mine"


def test_a_folder_that_is_not_there_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"missing: No such file.*TRAINWRIGHT_LEASES can name a folder"):
        LeaseFolder(tmp_path / "missing").take(GPU, "0")


def test_the_files_are_open_to_everybody_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        LeaseFolder(tmp_path).take(GPU, "0")
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()] == ["0o666"]


def test_a_file_that_was_removed_is_not_locked_in_place_of_its_successor(tmp_path: Path) -> None:
    """Another process may remove the file between open and lock; then the lock would be useless."""
    folder = LeaseFolder(tmp_path)
    first = folder.take(GPU, "0")
    assert first is not None
    (path,) = tmp_path.iterdir()
    opened = os.open(path, os.O_RDWR)
    first.close()
    path.unlink()
    second = folder.take(GPU, "0")
    assert second is not None
    assert os.fstat(second.fd).st_ino == path.stat().st_ino != os.fstat(opened).st_ino
    os.close(opened)


@pytest.mark.parametrize(
    ("modes", "expected"),
    [((0o1777, 0o1777), 0), ((0o755, 0o1777), 1), ((0o777, 0o1777), 1), ((None, 0o1777), 1), ((0o755, 0o755), 1)],
)
def test_all_users_choose_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modes: tuple[int | None, int], expected: int
) -> None:
    folders = [tmp_path / "lock", tmp_path / "tmp"]
    for folder, mode in zip(folders, modes, strict=True):
        if mode is not None:
            folder.mkdir()
            folder.chmod(mode)
    monkeypatch.setattr(leases, "_SHARED_FOLDERS", tuple(map(str, folders)))
    monkeypatch.delenv("TRAINWRIGHT_LEASES")
    assert LeaseFolder().path == folders[expected]


#: Repeatedly takes one to eight devices under the mutex, checks that no other process has them, and releases them.
TAKER = """
import fcntl, os, random, sys, time
from pathlib import Path
from trainwright.node.devices.leases import LeaseFolder
folder, witness = LeaseFolder(Path(sys.argv[1])), Path(sys.argv[2])
while True:
    held = []
    wanted = random.randint(1, 8)
    with folder.mutex() as free:
        for device in random.sample(range(8), 8) if free else ():
            lease = folder.take("nvidia.com/gpu", str(device))
            if lease is not None:
                held.append((device, lease))
            if len(held) == wanted:
                break
    files = []
    for device, lease in held:
        file = os.open(witness / str(device), os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.write(os.open(witness / "twice", os.O_WRONLY | os.O_APPEND), b"%d\\n" % device)
        files.append(file)
        os.write(os.open(witness / "given", os.O_WRONLY | os.O_APPEND), b".")
    time.sleep(random.random() / 200)
    for file in files:
        os.close(file)
    for _, lease in held:
        lease.close()
"""


def test_processes_that_are_killed_at_random_never_share_a_device(tmp_path: Path) -> None:
    witness, folder = tmp_path / "witness", tmp_path / "leases"
    witness.mkdir()
    folder.mkdir()
    for name in (*map(str, range(8)), "twice", "given"):
        (witness / name).touch()
    words = [sys.executable, "-c", TAKER, str(folder), str(witness)]
    takers = [subprocess.Popen(words) for _ in range(4)]
    try:
        for kill in range(10):
            given = (witness / "given").stat().st_size
            until(lambda given=given: (witness / "given").stat().st_size > given + 50)  # type: ignore[misc]
            takers[kill % 4].send_signal(signal.SIGKILL)
            takers[kill % 4].wait()
            takers[kill % 4] = subprocess.Popen(words)
    finally:
        for taker in takers:
            taker.kill()
            taker.wait()
    assert (witness / "twice").read_text() == ""
    assert LeaseFolder(folder).held() == []


def test_threads_that_make_the_same_file_at_once_agree_on_it(tmp_path: Path) -> None:
    for number in range(50):
        found: list[object] = []
        threads = [
            threading.Thread(
                target=lambda number=number, found=found: found.append(LeaseFolder(tmp_path).take(GPU, str(number)))
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(one is not None for one in found) == 1
