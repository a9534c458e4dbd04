# SPDX-License-Identifier: Apache-2.0
"""The world outside, one of our own making: pods reach it where the machine has the means, and nothing stays behind."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxed import SOURCE, Sandboxed, eventually, python, unavailable

_ASK = "import socket; print(socket.create_connection(('203.0.113.1', 80), 5).makefile().read())"
_MEANS = {"root": ["iptables-restore", "nft"], "user": ["slirp4netns", "pasta"]}

pytestmark = pytest.mark.skipif(bool(unavailable("root")), reason="a world of our own needs root")

Make = Callable[..., Sandboxed]


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    """Supervisors on a machine that has only some of the programs which could help."""
    end, ours = os.pipe()
    monkeypatch.setenv("WORLD_SOURCE", str(SOURCE))
    monkeypatch.setenv("WORLD_END", str(end))
    boxes = []

    def make(who: str, *programs: str, net: int | None = None, **config: Any) -> Sandboxed:
        under = [sys.executable, str(Path(__file__).parent / "world.py")]
        if net is not None:
            under = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{net}"]
        box = Sandboxed(folder, who, [*under, *_hidden(programs, tmp_path)], passed=(end,), outside=True, **config)
        boxes.append(box)
        return box

    yield make
    for box in boxes:
        box.end()
    os.close(end)
    os.close(ours)


def _hidden(programs: tuple[str, ...], tmp_path: Path) -> list[str]:
    """A command line that hides all others of the programs."""
    empty = tmp_path / "empty"
    empty.touch(0o644)
    known = [*_MEANS["root"], "iptables-save", *_MEANS["user"]]
    wanted = {*programs, *(["nft"] if "pasta" in programs else [])}
    wanted |= {"iptables-save"} if "iptables-restore" in programs else set()
    paths = {os.path.realpath(found) for name in known if name not in wanted and (found := shutil.which(name))}
    script = "".join(f"mount --bind {empty} {path}; " for path in sorted(paths))
    return ["unshare", "--mount", "sh", "-c", script + 'exec "$@"', "sh"]


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")


def asks(box: Sandboxed, *pods: str) -> list[str]:
    """What the world calls these pods, all of which ask at once."""
    argv = [python(box.who) or "", "-S", "-c", _ASK]
    names = []
    for pod in pods:
        box.open(pod)
        names.append(box.attempt(argv, pod)[0])
    for name in names:
        box.event("ended", container=name)
    return [box.said(name).strip() for name in names]


def within(net: int, *command: str) -> str:
    """What a command says in a network namespace."""
    enter = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{net}", *command]
    return subprocess.run(enter, capture_output=True, text=True, check=True).stdout


def rules(net: int) -> str:
    return within(net, "iptables-save") + within(net, "nft", "list", "ruleset")


@pytest.mark.parametrize(
    ("who", "program"), [(who, program) for who in _MEANS for program in _MEANS[who]], indirect=["who"]
)
def test_pods_reach_the_outside_by_the_address_of_the_machine(who: str, program: str, machine: Make) -> None:
    _need(program, *(["nft"] if program == "pasta" else []))
    box = machine(who, program)
    assert box.ready()["outside"] is True
    assert asks(box, "a", "b") == ["192.0.2.10", "192.0.2.10"]


_LACKING = {
    "root": "neither iptables nor nft is installed",
    "user": "neither slirp4netns nor pasta with nft is installed",
}


def test_without_the_means_there_is_one_notice(who: str, machine: Make) -> None:
    ready = machine(who).ready()
    assert ready["outside"] is False
    assert ready["notices"] == [f"pods cannot reach the outside network: {_LACKING[who]}"]


@pytest.mark.parametrize("who", ["root"], indirect=True)
@pytest.mark.parametrize("program", _MEANS["root"])
def test_the_host_reaches_pods_and_is_left_as_it_was_found(who: str, program: str, machine: Make) -> None:
    _need("nft", "iptables-save")
    box = machine(who, program)
    box.ready()
    net = os.open(f"/proc/{box.process.pid}/ns/net", os.O_RDONLY)
    before = within(net, "cat", "/proc/net/route").count("eth0")
    address = box.open("web")
    box.hears(box.start("echo up; exec sleep 300", "web"), "up")
    script = f"import socket; socket.create_connection(('{address}', 1), 2)"
    with pytest.raises(subprocess.CalledProcessError) as refused:
        within(net, sys.executable, "-c", script)
    assert "ConnectionRefusedError" in refused.value.stderr
    assert within(net, "cat", "/proc/sys/net/ipv4/conf/eth0/forwarding") == "1\n"
    box.end()
    assert "trainwright" not in rules(net)
    assert within(net, "cat", "/proc/sys/net/ipv4/conf/eth0/forwarding") == "0\n"
    eventually(lambda: "tw" not in within(net, "cat", "/proc/net/dev"))
    assert within(net, "cat", "/proc/net/route").count("eth0") == before
    os.close(net)


@pytest.mark.parametrize("who", ["root"], indirect=True)
@pytest.mark.parametrize("program", _MEANS["root"])
def test_what_a_killed_supervisor_leaves_the_next_one_removes(who: str, program: str, machine: Make) -> None:
    _need("nft", "iptables-save")
    first = machine(who, program)
    first.ready()
    net = os.open(f"/proc/{first.process.pid}/ns/net", os.O_RDONLY)
    first.process.kill()
    first.process.wait()
    eventually(lambda: "tw" not in within(net, "cat", "/proc/net/dev"))
    assert f"trainwright_{first.process.pid}_" in rules(net)
    second = machine(who, program, net=net)
    second.ready()
    assert f"trainwright_{first.process.pid}_" not in rules(net)
    assert f"trainwright_{second.process.pid}_" in rules(net)
    second.end()
    assert within(net, "cat", "/proc/sys/net/ipv4/conf/eth0/forwarding") == "0\n"
    os.close(net)


@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_the_last_of_several_supervisors_leaves_the_host_as_it_was_found(who: str, folder: Path, machine: Make) -> None:
    _need("nft")
    first = machine(who, "nft")
    first.ready()
    net = os.open(f"/proc/{first.process.pid}/ns/net", os.O_RDONLY)
    second = machine(who, "nft", net=net, subnet="10.201.0.0/16")
    second.ready()
    first.end()
    assert within(net, "cat", "/proc/sys/net/ipv4/conf/eth0/forwarding") == "1\n"
    second.end()
    assert within(net, "cat", "/proc/sys/net/ipv4/conf/eth0/forwarding") == "0\n"
    assert not Path(f"/run/trainwright/forwarding-{os.fstat(net).st_ino}").exists()
    os.close(net)


@pytest.mark.parametrize("who", ["user"], indirect=True)
def test_helpers_do_not_outlive_a_killed_supervisor(who: str, machine: Make) -> None:
    _need("slirp4netns")
    box = machine(who, "slirp4netns")
    box.ready()
    helpers = [pid for pid in box.descendants() if Path(f"/proc/{pid}/comm").read_text() == "slirp4netns\n"]
    assert helpers
    box.process.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in helpers))
