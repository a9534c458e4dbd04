# SPDX-License-Identifier: Apache-2.0
"""Leases of subnets: no subnet twice, none that the machine routes elsewhere, and free when the holder ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE
from trainwright.errors import EngineError
from trainwright.node.network.pools import lease

_HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"


def table(path: Path, *routes: tuple[str, str]) -> Path:
    """A routing table as the kernel shows it, of networks and masks."""

    def number(text: str) -> str:
        value = bytes(int(part) for part in text.split("."))
        return f"{int.from_bytes(value, sys.byteorder):08X}"

    lines = [f"eth0 {number(target)} 00000000 0001 0 0 0 {number(mask)} 0 0 0\n" for target, mask in routes]
    path.write_text(_HEAD + "".join(lines))
    return path


def test_two_leases_are_never_the_same(tmp_path: Path) -> None:
    routes = table(tmp_path / "routes")
    first, second = lease(str(tmp_path), routes), lease(str(tmp_path), routes)
    assert [first.subnet, second.subnet] == ["10.128.0.0/16", "10.129.0.0/16"]
    first.close()
    third = lease(str(tmp_path), routes)
    assert third.subnet == "10.128.0.0/16"
    for one in (first, second, third):
        one.close()


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ([("0.0.0.0", "0.0.0.0")], "10.128.0.0/16"),  # noqa: S104 - the default route
        ([("10.128.0.0", "255.255.0.0")], "10.129.0.0/16"),
        ([("10.128.7.0", "255.255.255.0"), ("10.129.1.2", "255.255.255.255")], "10.130.0.0/16"),
        ([("10.128.0.0", "255.192.0.0")], "10.192.0.0/16"),
        ([("10.0.0.0", "255.0.0.0")], "10.128.0.0/16"),
        ([("10.0.0.0", "255.0.0.0"), ("10.128.0.0", "255.255.0.0")], "10.129.0.0/16"),
    ],
    ids=["default", "the same", "parts", "wider, with room beside", "all of it", "all of it, and one in particular"],
)
def test_what_the_machine_routes_is_left_alone(tmp_path: Path, routes: list[tuple[str, str]], expected: str) -> None:
    one = lease(str(tmp_path), table(tmp_path / "routes", *routes))
    assert one.subnet == expected
    one.close()


def test_a_lease_ends_with_the_last_process_that_has_it(tmp_path: Path) -> None:
    routes = table(tmp_path / "routes")
    one = lease(str(tmp_path), routes)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=(one.fd,)) as heir:
        one.close()
        other = lease(str(tmp_path), routes)
        assert other.subnet == "10.129.0.0/16"
        other.close()
        assert heir.stdin is not None
        heir.stdin.close()
        heir.wait(PATIENCE)
    again = lease(str(tmp_path), routes)
    assert again.subnet == "10.128.0.0/16"
    again.close()


def test_when_all_are_taken_it_says_where_to_look(tmp_path: Path) -> None:
    routes = table(tmp_path / "routes")
    leases = [lease(str(tmp_path), routes) for _ in range(128)]
    assert len({one.subnet for one in leases}) == 128
    with pytest.raises(EngineError, match=r"all subnets of 10\.128\.0\.0/9 are leased"):
        lease(str(tmp_path), routes)
    for one in leases:
        one.close()


def test_a_lease_leaves_no_file_and_excludes_other_users(tmp_path: Path) -> None:
    one = lease(str(tmp_path), table(tmp_path / "routes"))
    claim = "import os, socket, sys; os.getuid() or os.setuid(65534); socket.socket(1).bind('\\0' + sys.argv[1])"
    words = [sys.executable, "-Sc", claim, f"{tmp_path}/{one.subnet}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "Address already in use" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["routes"]
    one.close()
