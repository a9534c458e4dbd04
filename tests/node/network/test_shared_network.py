# SPDX-License-Identifier: Apache-2.0
"""The network that the node agents of a machine share: the first agent creates it, and it lasts while one uses it."""

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patience import PATIENCE
from trainwright.errors import EngineError
from trainwright.node.network.pools import _claimed
from trainwright.node.network.shared import NetworkMember, address, join

Join = Callable[[], NetworkMember]


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Join]:
    """Joins a network that belongs to this test; all members leave it at the end."""
    members: list[NetworkMember] = []

    def one() -> NetworkMember:
        try:
            members.append(join(tmp_path.name + str(os.getpid())))
        except EngineError as error:
            pytest.skip(str(error))
        return members[-1]

    yield one
    for member in members:
        if member.spaces:
            member.close()


def keeper(member: NetworkMember) -> "subprocess.Popen[bytes]":
    assert member._keeper is not None
    return member._keeper


def soon(so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return so()


def test_all_have_one_network_and_each_a_range_of_its_own(joined: Join) -> None:
    first, second = joined(), joined()

    assert os.fstat(first.spaces["net"]).st_ino == os.fstat(second.spaces["net"]).st_ino
    assert first.subnet == second.subnet
    assert first.range != second.range
    assert second._keeper is None


def test_a_range_that_was_left_does_not_come_round_again_at_once(joined: Join) -> None:
    first, second = joined(), joined()
    before = second.range
    second.close()

    assert joined().range not in (first.range, before)


def test_the_last_to_leave_ends_it(joined: Join) -> None:
    first, second = joined(), joined()
    process = keeper(first)
    first._keeper = None  # otherwise `close` would wait for its end
    first.close()
    assert process.poll() is None
    second.close()

    assert soon(lambda: process.poll() is not None)
    assert soon(lambda: not Path(f"/sys/class/net/tw{process.pid}").exists())


def test_a_killed_keeper_leaves_the_network_to_those_who_hold_it(joined: Join) -> None:
    first, second = joined(), joined()
    keeper(first).send_signal(signal.SIGKILL)

    assert select.select([second], [], [], 5)[0] == [second]
    assert soon(lambda: keeper(first).poll() is not None)
    assert os.fstat(first.spaces["net"]).st_ino == os.fstat(second.spaces["net"]).st_ino
    assert _claimed(f"\0trainwright/{first.subnet}") is None  # its addresses are still taken
    assert joined().subnet != first.subnet


NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-c")
CONNECT = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.settimeout(5)
s.connect("\\0" + sys.argv[1])
sys.exit(bool(s.recv(100)))
"""
LISTEN = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind("\\0" + sys.argv[1])
s.listen()
print("there", flush=True)
sys.stdin.read()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")


@needs_root
def test_nobody_else_is_let_in(joined: Join, tmp_path: Path) -> None:
    joined()
    place = address(tmp_path.name + str(os.getpid())).removeprefix("\0")

    assert subprocess.run([*NOBODY, CONNECT, place], check=False, cwd="/").returncode == 0


@needs_root
def test_a_network_of_somebody_else_is_not_joined(tmp_path: Path) -> None:
    name = tmp_path.name + str(os.getpid())
    argv = [*NOBODY, LISTEN, address(name).removeprefix("\0")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(EngineError, match="another user listens"):
            join(name)
