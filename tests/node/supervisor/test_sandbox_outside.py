# SPDX-License-Identifier: Apache-2.0
"""Pods reach a simulated outside network if the machine has the programs for it, and leave nothing on the host."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxed import SOURCE, Sandboxed, below, eventually, python, unavailable

from patience import PATIENCE

_ASK = "import socket; print(socket.create_connection(('203.0.113.1', 80), 5).makefile().read())"
_MEANS = {"root": ["iptables-restore", "nft"], "user": ["slirp4netns", "pasta"]}

pytestmark = pytest.mark.skipif(bool(unavailable("root")), reason="a world of our own needs root")

Make = Callable[..., Sandboxed]
Spaces = tuple[int, int]

_WORLD = [sys.executable, str(Path(__file__).parent / "outside_network.py")]
_TIDY = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from trainwright.node.supervisor.outside import tidy; tidy()"
_FORWARDING = "/proc/sys/net/ipv4/conf/eth0/forwarding"


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    """Supervisors on a machine that has only some of the network programs."""
    end, ours = os.pipe()
    monkeypatch.setenv("WORLD_SOURCE", str(SOURCE))
    monkeypatch.setenv("WORLD_END", str(end))
    boxes = []

    def make(who: str, *programs: str, beside: Spaces | None = None, forwarding: str = "0", **config: Any) -> Sandboxed:
        under = _WORLD if beside is None else _enter(*beside)
        if forwarding == "1":
            under = [*under, "sh", "-c", f'echo 1 > {_FORWARDING}; exec "$@"', "sh"]
        box = Sandboxed(folder, who, [*under, *_hidden(programs, tmp_path)], passed=(end,), outside=True, **config)
        boxes.append(box)
        return box

    yield make
    for box in boxes:
        box.end()
    os.close(end)
    os.close(ours)


def _hidden(programs: tuple[str, ...], tmp_path: Path) -> list[str]:
    """A command line that hides the other network programs."""
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
    """The source addresses that the outside server sees when all these pods connect at the same time."""
    argv = [python(box.who) or "", "-S", "-c", _ASK]
    names = []
    for pod in pods:
        box.open(pod)
        names.append(box.attempt(argv, pod)[0])
    for name in names:
        box.event("ended", container=name)
    return [box.said(name).strip() for name in names]


@pytest.fixture
def spaces() -> Iterator[Callable[[int], Spaces]]:
    """The network and mount namespaces of a process, kept open after its end."""
    held: list[int] = []

    def hold(pid: int) -> Spaces:
        net, mnt = (os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("net", "mnt"))
        held.extend((net, mnt))
        return net, mnt

    yield hold
    for fd in held:
        os.close(fd)


def _enter(net: int, mnt: int | None = None) -> list[str]:
    files = [] if mnt is None else [f"--mount=/proc/{os.getpid()}/fd/{mnt}"]
    return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{net}", *files]


def within(at: Spaces, *command: str, files: bool = False) -> str:
    """The output of a command on a machine; `files`: the command also sees its files, without the hidden programs."""
    enter = _enter(*(at if files else at[:1]))
    return subprocess.run([*enter, *command], capture_output=True, text=True, check=True).stdout


def rules(at: Spaces) -> str:
    return within(at, "iptables-save") + within(at, "nft", "list", "ruleset")


def forwards(at: Spaces) -> bool:
    return within(at, "cat", _FORWARDING) == "1\n"


def notes(at: Spaces) -> list[str]:
    """Our files in /run."""
    return within(at, "find", "/run", "-path", "*trainwright*", files=True).split()


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


Hold = Callable[[int], Spaces]

as_root = pytest.mark.parametrize("who", ["root"], indirect=True)
by_each = pytest.mark.parametrize("program", _MEANS["root"])


@as_root
@by_each
def test_the_host_reaches_pods_and_is_left_as_it_was_found(who: str, program: str, machine: Make, spaces: Hold) -> None:
    _need("nft", "iptables-save")
    box = machine(who, program)
    box.ready()
    at = spaces(box.process.pid)
    before = within(at, "cat", "/proc/net/route").count("eth0")
    address = box.open("web")
    box.hears(box.start("echo up; exec sleep 300", "web"), "up")
    script = f"import socket; socket.create_connection(('{address}', 1), 2)"
    with pytest.raises(subprocess.CalledProcessError) as refused:
        within(at, sys.executable, "-c", script)
    assert "ConnectionRefusedError" in refused.value.stderr
    assert forwards(at)
    box.end()
    assert "trainwright" not in rules(at)
    assert not forwards(at)
    assert notes(at) == []
    eventually(lambda: "tw" not in within(at, "cat", "/proc/net/dev"))
    assert within(at, "cat", "/proc/net/route").count("eth0") == before


def _killed(box: Sandboxed, spaces: Hold) -> tuple[Spaces, str]:
    """A machine with a ready supervisor, and the tag of the rules that it leaves when it is killed."""
    at = spaces(box.process.pid)
    box.process.kill()
    box.process.wait()
    eventually(lambda: f"tw{box.process.pid}" not in within(at, "cat", "/proc/net/dev"))
    tag = f"trainwright_{box.process.pid}_"
    assert tag in rules(at)
    return at, tag


@as_root
@by_each
def test_what_a_killed_supervisor_leaves_the_next_one_removes(
    who: str, program: str, machine: Make, spaces: Hold
) -> None:
    _need("nft", "iptables-save")
    first = machine(who, program)
    first.ready()
    at, tag = _killed(first, spaces)
    second = machine(who, program, beside=at)
    second.ready()
    assert tag not in rules(at)
    assert f"trainwright_{second.process.pid}_" in rules(at)
    second.end()
    assert not forwards(at)
    assert notes(at) == []


@as_root
@by_each
@pytest.mark.parametrize("forwarding", ["0", "1"])
def test_what_a_killed_supervisor_leaves_can_be_tidied(
    who: str, program: str, forwarding: str, machine: Make, spaces: Hold
) -> None:
    _need("nft", "iptables-save")
    box = machine(who, program, forwarding=forwarding)
    box.ready()
    at, tag = _killed(box, spaces)
    within(at, sys.executable, "-c", _TIDY, files=True)
    assert tag not in rules(at)
    assert forwards(at) == (forwarding == "1")
    assert notes(at) == []


@as_root
def test_tidying_leaves_those_alone_who_live(who: str, machine: Make, spaces: Hold) -> None:
    _need("nft", "iptables-save")
    first = machine(who, "nft")
    first.ready()
    second = machine(who, "nft", beside=spaces(first.process.pid), subnet="10.201.0.0/16")
    second.ready()
    at, tag = _killed(first, spaces)
    within(at, sys.executable, "-c", _TIDY, files=True)
    assert tag not in rules(at)
    assert f"trainwright_{second.process.pid}_" in rules(at)
    assert forwards(at)
    second.end()
    assert "trainwright" not in rules(at)
    assert not forwards(at)
    assert notes(at) == []


@as_root
def test_the_last_of_several_supervisors_leaves_the_host_as_it_was_found(who: str, machine: Make, spaces: Hold) -> None:
    _need("nft", "iptables-save")
    first = machine(who, "nft")
    first.ready()
    at = spaces(first.process.pid)
    second = machine(who, "nft", beside=at, subnet="10.201.0.0/16")
    second.ready()
    first.end()
    assert forwards(at)
    second.end()
    assert not forwards(at)
    assert notes(at) == []


_JOB = """
apiVersion: batch.tensorstack.dev/v1beta1
kind: GenericJob
metadata: {name: long}
spec:
  replicaSpecs:
    - type: worker
      replicas: 1
      template: {spec: {containers: [{name: main, image: any, command: [sleep, "300"]}]}}
"""


@as_root
@pytest.mark.parametrize("nodes", [1, 2])
def test_an_engine_tidies_after_a_supervisor_that_was_killed(
    who: str, nodes: int, folder: Path, monkeypatch: pytest.MonkeyPatch, spaces: Hold
) -> None:
    """With one node its supervisor owns the rules, with two the process that holds their network."""
    _need("nft", "iptables-save")
    (folder / "job.yaml").write_text(_JOB)
    end, ours = os.pipe()
    for name, value in {"SOURCE": SOURCE, "END": end}.items():
        monkeypatch.setenv(f"WORLD_{name}", str(value))
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(folder / "state"))
    command = ["-m", "trainwright", "run", "--runtime", "sandbox", "--nodes", str(nodes), str(folder / "job.yaml")]
    with subprocess.Popen([*_WORLD, sys.executable, *command], pass_fds=(end,), stdout=subprocess.DEVNULL) as engine:
        try:
            eventually(lambda: [pid for pid in below(engine.pid) if _command(pid).startswith("sleep\x00300")])
            at = spaces(engine.pid)
            assert "trainwright" in rules(at)
            key = "supervisor.main" if nodes == 1 else "supervisor.outside"
            (keeper,) = [pid for pid in below(engine.pid) if key in _command(pid)]
            os.kill(keeper, signal.SIGKILL)
            engine.send_signal(signal.SIGINT)
            engine.wait(PATIENCE)
            assert "trainwright" not in rules(at)
            assert not forwards(at)
            assert notes(at) == []
        finally:
            engine.kill()
            os.close(end)
            os.close(ours)


_ASKING = """
apiVersion: batch.tensorstack.dev/v1beta1
kind: GenericJob
metadata: {name: asks}
spec:
  replicaSpecs:
    - type: worker
      replicas: 2
      template: {spec: {containers: [{name: main, image: any, command: [sh, -c, "while :; do %s; sleep 0.1; done"]}]}}
"""


@as_root
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_outside_network_of_pods_survives_a_killed_background_engine(
    who: str, nodes: int, folder: Path, monkeypatch: pytest.MonkeyPatch, spaces: Hold
) -> None:
    """With one node its supervisor owns the rules, with two the process that holds their network."""
    _need("nft", "iptables-save")
    (folder / "asks.yaml").write_text(_ASKING % f'{sys.executable} -S -c \\"{_ASK}\\"')
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(folder / "state"))
    monkeypatch.setenv("WORLD_SOURCE", str(SOURCE))
    end, ours = os.pipe()
    monkeypatch.setenv("WORLD_END", str(end))
    lives = [*_WORLD, "sh", "-c", "echo; exec sleep 600"]
    with subprocess.Popen(lives, pass_fds=(end,), stdout=subprocess.PIPE) as world:
        assert world.stdout is not None
        world.stdout.readline()
        at = spaces(world.pid)

        def say(*words: str) -> str:
            return within(at, sys.executable, "-m", "trainwright", *words, files=True)

        def answers() -> int:
            return say("logs", "asks").count("192.0.2.10")

        def own_rules() -> list[str]:
            return [line for line in within(at, "iptables-save").splitlines() if "trainwright" in line]

        try:
            say("up", "--runtime", "sandbox", "--nodes", str(nodes))
            say("submit", str(folder / "asks.yaml"))
            eventually(lambda: answers() > 1)
            before = own_rules()
            assert before
            os.kill(json.loads(say("status", "-o", "json"))["pid"], signal.SIGKILL)
            reached = answers()
            eventually(lambda: answers() > reached)
            say("up", "--runtime", "sandbox", "--nodes", str(nodes))
            assert own_rules() == before
            reached = answers()
            eventually(lambda: answers() > reached)
            say("down", "--end")
            assert "trainwright" not in rules(at)
            assert not forwards(at)
            assert notes(at) == []
        finally:
            subprocess.run([*_enter(*at), sys.executable, "-m", "trainwright", "down", "--end"], check=False)
            world.kill()
            os.close(end)
            os.close(ours)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("who", ["user"], indirect=True)
def test_helpers_do_not_outlive_a_killed_supervisor(who: str, machine: Make) -> None:
    _need("slirp4netns")
    box = machine(who, "slirp4netns")
    box.ready()
    helpers = [pid for pid in box.descendants() if Path(f"/proc/{pid}/comm").read_text() == "slirp4netns\n"]
    assert helpers
    box.process.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in helpers))
